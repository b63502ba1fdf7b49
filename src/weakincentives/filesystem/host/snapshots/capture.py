"""Capture of a host directory as git trees: all of it, or only the paths that were touched.

A stat cache skips what is unchanged: same device, inode, size, times and mode mean the same
content of a file, and the same names in a directory. Files are opened relative to the listed
directory, so no name leads elsewhere. An entry that is removed or replaced during the walk is
captured as what it has become.
"""

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, suppress
from enum import Enum, auto
from typing import TypeAlias

from weakincentives.filesystem.host.files import Identity, identity_of, is_stable
from weakincentives.filesystem.host.snapshots.nodes import (
    Captured,
    CapturedDirectory,
    CapturedFile,
    CapturedLink,
    sort_as_git,
    store_directory,
)
from weakincentives.filesystem.host.snapshots.watcher import ChangeWatcher
from weakincentives.gitstore import PackTransaction
from weakincentives.history import is_written
from weakincentives.posix import (
    RootedDirectory,
    check_time,
    explain_error,
    grant_owner_access,
    is_temporary,
    join,
    make_accessible,
    os_error,
    parent_of,
    pin,
    read_range,
    set_permissions,
)
from weakincentives.posix.inotify import reports_all_changes

_LARGE_FILE = 16 * 1024 * 1024  # bytes from which a file is read in chunks
_CHUNK_SIZE = 1024 * 1024
_SEARCHABLE = stat.S_IRUSR | stat.S_IXUSR
_MAX_ATTEMPTS = 10  # at a file that changes while it is read
_NOT_A_DIRECTORY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_KIND_CHANGED = frozenset({errno.ELOOP, errno.EPERM, errno.EINVAL})


def capture(
    directory: RootedDirectory,
    batch: PackTransaction,
    prior: CapturedDirectory | None,
    touched: Collection[str] | None = None,
    watcher: ChangeWatcher | None = None,
) -> CapturedDirectory:
    """Capture the present state of `directory`; new objects are added to `batch`.

    Unchanged parts of the result are the nodes of `prior`; if nothing has changed, the
    result is `prior`. With `touched`, only these paths and what is below them are
    captured: the caller promises that everything else is as in `prior`. Directories that
    are listed are watched by `watcher` from then on.

    Raises:
        OSError: Something cannot be read. A capture is complete or fails.
    """
    with closing(Walk(directory, batch, watcher)) as walk:
        if prior is not None and touched is not None and "" not in touched:
            found = _PathUpdate(walk, prior).run(touched)
        else:
            found = walk.capture_directory("", prior)
    if found is None:
        raise os_error(errno.ENOENT, "")
    if prior is not None:
        found.reuse_notes(prior)
    return found


class Uncaptured(Enum):
    """An entry that has no captured node of its own."""

    GONE = auto()
    SPECIAL = auto()
    DIRECTORY = auto()
    """A directory that still has to be walked."""


Found: TypeAlias = Captured | Uncaptured


class _Frame:
    """A listed directory, completed after everything below it."""

    __slots__ = (
        "children",
        "directories",
        "identity",
        "parent",
        "path",
        "permissions",
        "prior",
        "specials",
    )

    def __init__(self, parent: "_Frame | None", path: str, prior: Captured | None) -> None:
        self.parent = parent
        self.path = path
        self.prior = prior if isinstance(prior, CapturedDirectory) else None
        self.permissions = 0
        self.identity: Identity | None = None
        self.children: dict[str, Captured] = {}
        self.directories: list[str] = []
        self.specials: set[str] = set()

    def prior_children(self) -> dict[str, Captured]:
        return {} if self.prior is None else self.prior.children

    def add(self, name: str, found: Found) -> None:
        if not isinstance(found, Uncaptured):
            self.children[name] = found
        elif found is Uncaptured.SPECIAL:
            self.specials.add(name)
        elif found is Uncaptured.DIRECTORY:
            self.directories.append(name)


class Walk:
    """Walks a directory and adds new content to a pack."""

    def __init__(
        self,
        directory: RootedDirectory,
        batch: PackTransaction,
        watcher: ChangeWatcher | None = None,
    ) -> None:
        """Walk below `directory`; what is found is watched by `watcher` from then on."""
        self._directory = directory
        self._batch = batch
        self.add: Callable[[str, bytes], str] = batch.add
        self._watcher = watcher
        self._opened_up: dict[str, int] = {}  # original permissions by path
        # whether an unchanged stat of a directory means unchanged names, and nothing is to be
        # done for each of them
        self._trusts_directories = (
            watcher is None
            and not directory.crosses_mounts
            and reports_all_changes(directory.descriptor)
        )

    def close(self) -> None:
        """Restore the permissions of directories that had to be made accessible."""
        for path in sorted(self._opened_up, reverse=True):  # children first
            with suppress(OSError):  # removed meanwhile
                parent, name = self._directory.open_parent(path)
                try:
                    set_permissions(parent, name, self._opened_up[path])
                finally:
                    os.close(parent)

    def capture_path(self, path: str, known: Captured | None) -> Found:
        """Capture the entry at `path`, a directory with everything below it.

        Raises:
            OSError: Something cannot be read, or the parent is not a directory.
        """
        for _ in range(_MAX_ATTEMPTS):
            parent, name = self._directory.open_parent(path)
            try:
                found = self._capture_entry(parent, name, parent_of(path), known)
            finally:
                os.close(parent)
            if found is not Uncaptured.DIRECTORY:
                return found
            directory = self.capture_directory(path, known)
            if directory is not None:
                return directory
        raise os_error(
            errno.EBUSY, path, f"Path keeps changing; gave up after {_MAX_ATTEMPTS} attempts"
        )

    def capture_directory(self, path: str, prior: Captured | None) -> CapturedDirectory | None:
        """Capture the directory at `path` with everything below; None if it is gone.

        Raises:
            OSError: Something cannot be read.
        """
        frames: list[_Frame] = []
        pending = [_Frame(None, path, prior)]
        while pending:
            check_time("Snapshot")
            frame = pending.pop()
            if self._list(frame):
                frames.append(frame)
                prior_children = frame.prior_children()
                pending += [
                    _Frame(frame, join(frame.path, name), prior_children.get(name))
                    for name in frame.directories
                ]
        directory = None
        for frame in reversed(frames):  # children before their parents
            directory = self._complete(frame)
            if frame.parent is not None:
                frame.parent.children[frame.path.rpartition("/")[2]] = directory
        return directory

    def _list(self, frame: _Frame) -> bool:
        """Capture the entries of a directory; return False if it is not one any more."""
        try:
            descriptor = self._open(frame.path)
        except OSError as error:
            if error.errno not in _NOT_A_DIRECTORY or not frame.path:
                raise explain_error(error, frame.path) from None
            self._capture_replacement(frame)
            return False
        try:
            found = os.fstat(descriptor)
            frame.permissions = self._opened_up.get(frame.path, stat.S_IMODE(found.st_mode))
            prior_children = frame.prior_children()
            if self._watcher is not None:
                self._watcher.watch_directory(frame.path, descriptor)
            for name, mode in self._find_changes(frame, descriptor, identity_of(found)):
                known = prior_children.get(name)
                frame.add(name, self._capture_entry(descriptor, name, frame.path, known, mode))
        finally:
            os.close(descriptor)
        return True

    def _open(self, path: str) -> int:
        """Open a directory; make it accessible first if we own it."""
        try:
            descriptor = self._directory.open_directory(path)
        except PermissionError as error:
            if error.errno != errno.EACCES or not path:
                raise
            self._make_accessible(path)
            return self._directory.open_directory(path)
        if path and os.geteuid() and os.fstat(descriptor).st_mode & _SEARCHABLE != _SEARCHABLE:
            self._make_accessible(path)  # it can be listed, but its entries cannot be read
        return descriptor

    def _make_accessible(self, path: str) -> None:
        parent, name = self._directory.open_parent(path)
        try:
            with pin(parent, name) as descriptor, suppress(PermissionError):
                self._opened_up[path] = make_accessible(descriptor)
        finally:
            os.close(parent)

    def _capture_replacement(self, frame: _Frame) -> None:
        """Add what has replaced a directory to its parent."""
        if frame.parent is None:
            return
        try:
            found = self.capture_path(frame.path, frame.prior)
            frame.parent.add(frame.path.rpartition("/")[2], found)
        except OSError as error:
            if error.errno not in _NOT_A_DIRECTORY:  # otherwise the parent is gone too
                raise

    def _find_changes(
        self, frame: _Frame, descriptor: int, identity: Identity
    ) -> list[tuple[str, int]]:
        """Return the names in a directory that may have changed, except directories.

        Each comes with its presumed kind as a mode, 0 if unknown.
        """
        if not self._trusts_directories:
            return self._list_changes(frame, descriptor)
        if frame.prior is not None and frame.prior.identity == identity:
            frame.identity = identity
            return self._check_files(frame, frame.prior, descriptor)
        frame.identity = identity if is_stable(identity) else None
        return self._list_changes(frame, descriptor)

    def _check_files(
        self, frame: _Frame, prior: CapturedDirectory, descriptor: int
    ) -> list[tuple[str, int]]:
        """Check the files of a directory whose names are those of `prior`."""
        changed: list[tuple[str, int]] = []
        children = frame.children
        frame.specials.update(prior.special_names)
        for name, child in prior.children.items():
            if isinstance(child, CapturedFile):
                try:
                    found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed since
                if identity_of(found) == child.identity:
                    children[name] = child
                else:
                    changed.append((name, 0))
            elif isinstance(child, CapturedDirectory):
                frame.directories.append(name)
            else:
                children[name] = child  # the target of a link never changes
        return changed

    def _list_changes(self, frame: _Frame, descriptor: int) -> list[tuple[str, int]]:
        """List a directory, and check everything in it."""
        known, children, directories = frame.prior_children(), frame.children, frame.directories
        watcher = self._watcher
        changed: list[tuple[str, int]] = []
        with os.scandir(descriptor) as entries:
            for entry in entries:
                name = entry.name
                child = known.get(name)
                if isinstance(child, CapturedFile):
                    try:
                        found = entry.stat(follow_symlinks=False)
                        if identity_of(found) == child.identity:
                            children[name] = child
                            if found.st_nlink > 1 and watcher is not None:
                                watcher.watch_link(join(frame.path, name), descriptor, name)
                            continue
                    except FileNotFoundError:
                        continue  # removed since it was listed
                    changed.append((name, 0))
                elif is_temporary(name):
                    self._skip(frame.path, entry)
                elif entry.is_dir(follow_symlinks=False):
                    directories.append(name)
                else:
                    is_file = entry.is_file(follow_symlinks=False)
                    changed.append((name, stat.S_IFREG if is_file else 0))
        return changed

    def _skip(self, parent: str, entry: "os.DirEntry[str]") -> None:
        if self._watcher is not None and entry.is_dir(follow_symlinks=False):
            self._watcher.skip_directory(join(parent, entry.name))

    def _complete(self, frame: _Frame) -> CapturedDirectory:
        prior = frame.prior
        if (
            prior is not None
            and frame.children == prior.children
            and frame.permissions == prior.permissions
            and prior.special_names == frozenset(frame.specials)
        ):
            prior.identity = frame.identity
            return prior
        children = sort_as_git(frame.children)
        specials = frozenset(frame.specials)
        directory = store_directory(self.add, frame.path, children, frame.permissions, specials)
        directory.identity = frame.identity
        return directory

    def _capture_entry(
        self, directory: int, name: str, parent: str, known: Captured | None, mode: int = 0
    ) -> Found:
        """Capture `name` in an open directory, without entering a directory.

        A `mode` other than 0 is its presumed kind.
        """
        attempts = _MAX_ATTEMPTS
        while True:
            attempts -= 1
            try:
                mode = mode or os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
                if stat.S_ISREG(mode):
                    return self._capture_file(directory, name, parent, known)
                if stat.S_ISDIR(mode):
                    return Uncaptured.DIRECTORY
                if stat.S_ISLNK(mode):
                    return self._capture_link(directory, name, known)
                return Uncaptured.SPECIAL
            except FileNotFoundError:
                return Uncaptured.GONE
            except OSError as error:
                if error.errno not in _KIND_CHANGED or not attempts:
                    raise explain_error(error, join(parent, name)) from None
                mode = 0

    def _capture_file(
        self, directory: int, name: str, parent: str, known: Captured | None
    ) -> CapturedFile:
        for _ in range(_MAX_ATTEMPTS):
            descriptor, before = self._open_file(directory, name)
            try:
                # a store into a memory mapping need not change the times
                has_writer = is_written(descriptor) is True
                blob = store_content(self._batch, descriptor, before.st_size)
                after = os.fstat(descriptor)
            finally:
                os.close(descriptor)
            identity = identity_of(after)
            if blob is None or identity_of(before) != identity:
                continue  # it changed while it was read
            if after.st_nlink > 1 and self._watcher is not None:
                self._watcher.watch_link(join(parent, name), directory, name)
            found = known if isinstance(known, CapturedFile) else None
            if found and found.id == blob and found.permissions == stat.S_IMODE(after.st_mode):
                found.update_identity(identity)  # only its times differ
            else:
                found = CapturedFile.of(name, blob, identity)
            if has_writer:
                found.identity = None  # it is read again next time
            return found
        raise os_error(
            errno.EBUSY, name, f"File keeps changing; gave up after {_MAX_ATTEMPTS} attempts"
        )

    def _open_file(self, directory: int, name: str) -> tuple[int, os.stat_result]:
        """Open a file; make it accessible for a moment if we own it."""
        try:
            return self._directory.open_entry(directory, name)
        except PermissionError as error:
            if error.errno != errno.EACCES:
                raise
            with grant_owner_access(directory, name):
                descriptor, _ = self._directory.open_entry(directory, name)
            return descriptor, os.fstat(descriptor)

    def _capture_link(self, directory: int, name: str, known: Captured | None) -> CapturedLink:
        target = os.fsencode(os.readlink(name, dir_fd=directory))
        if isinstance(known, CapturedLink) and known.target == target:
            return known
        return CapturedLink.of(name, self._batch.add("blob", target), target)


def store_content(batch: PackTransaction, descriptor: int, size: int) -> str | None:
    """Add the content of an open file to `batch`; return its id, None if the size has changed."""
    if size <= _LARGE_FILE:
        data = read_range(descriptor, 0, size)
        return batch.add("blob", data) if len(data) == size else None
    try:
        return batch.add_blob(size, _read_chunks(descriptor, size))
    except ValueError:
        return None


def _read_chunks(descriptor: int, size: int) -> Iterator[bytes]:
    for offset in range(0, size, _CHUNK_SIZE):
        check_time("Snapshot")
        yield read_range(descriptor, offset, min(_CHUNK_SIZE, size - offset))


class _PathUpdate:
    """Captures some paths again and rebuilds the directories above them."""

    def __init__(self, walk: Walk, prior: CapturedDirectory) -> None:
        self._walk = walk
        self._above = {"": prior}
        self._found: dict[str, dict[str, Found]] = {}

    def run(self, touched: Collection[str]) -> CapturedDirectory:
        done = "\0"  # no path is below this one
        for path in sorted(filter(None, map(self._first_unknown, touched)), key=_in_tree_order):
            check_time("Snapshot")
            if not f"{path}/".startswith(f"{done}/"):
                done = self._capture(path)
        return self._rebuild()

    def _first_unknown(self, path: str) -> str | None:
        """Return `path` or its first parent that was not a directory; None if it is hidden."""
        directory, parent = self._above[""], ""
        for segment in path.split("/"):
            if is_temporary(segment):
                return None
            here = join(parent, segment)
            child = directory.children.get(segment)
            if here == path or not isinstance(child, CapturedDirectory):
                return here
            directory = self._above[here] = child
            parent = here
        return path

    def _capture(self, path: str) -> str:
        """Capture `path`, or its nearest parent that can still be reached; return that path."""
        while True:
            parent, _, name = path.rpartition("/")
            try:
                found = self._walk.capture_path(path, self._above[parent].children.get(name))
            except OSError as error:
                if error.errno not in _NOT_A_DIRECTORY or not parent:
                    raise explain_error(error, path) from None
                path = parent
            else:
                self._found.setdefault(parent, {})[name] = found
                return path

    def _rebuild(self) -> CapturedDirectory:
        for path in sorted(self._above, reverse=True):  # children first
            before = self._above[path]
            now = self._rebuild_directory(path, before, self._found.get(path, {}))
            if not path:
                return now
            if now is not before:
                # unless something else was captured in its place
                self._found.setdefault(parent_of(path), {}).setdefault(path.rpartition("/")[2], now)
        return self._above[""]

    def _rebuild_directory(
        self, path: str, before: CapturedDirectory, found: dict[str, Found]
    ) -> CapturedDirectory:
        children, specials = dict(before.children), set(before.special_names)
        is_in_order = True
        for name, node in found.items():
            old = children.get(name)
            specials.discard(name)
            if isinstance(node, Uncaptured):
                children.pop(name, None)
                if node is Uncaptured.SPECIAL:
                    specials.add(name)
            else:
                children[name] = node
                is_in_order = is_in_order and type(old) is type(node)
        if children == before.children and before.special_names == frozenset(specials):
            return before
        if not is_in_order:
            children = sort_as_git(children)
        add = self._walk.add
        return store_directory(add, path, children, before.permissions, frozenset(specials))


def _in_tree_order(path: str) -> str:
    """Return a sort key that puts the paths below a directory right after it."""
    return path.replace("/", "\0")
