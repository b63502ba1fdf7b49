"""A walk through a directory of the host: every entry looked at once, what is new stored.

A file whose device, inode, size, times and mode are the same is the same file, and is not
read again. Files are opened in the directory that was listed, so no name leads elsewhere;
what is removed or replaced during the walk is gone, or is captured as what it has become.
"""

import errno
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from enum import Enum, auto
from typing import TypeAlias

from weakincentives.filesystem.host.files import identity_of
from weakincentives.filesystem.host.snapshots.tree import (
    Captured,
    CapturedDirectory,
    CapturedFile,
    CapturedLink,
    directory_entry,
    git_order,
    tree_content,
)
from weakincentives.gitstore import PackTransaction
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

_LARGE = 16 * 1024 * 1024  # read in pieces
_PIECE = 1024 * 1024
_ENTERED = stat.S_IRUSR | stat.S_IXUSR
_ATTEMPTS = 10  # at what somebody is writing or replacing
_NO_DIRECTORY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_REPLACED = frozenset({errno.ELOOP, errno.EPERM, errno.EINVAL})  # by something of another kind


class Uncaptured(Enum):
    """What was found, if it is nothing that is captured by itself."""

    GONE = auto()
    SPECIAL = auto()
    DIRECTORY = auto()
    """It is there, and has to be walked."""


Found: TypeAlias = Captured | Uncaptured


class _Frame:
    """A directory as it was listed, to be finished after everything below it."""

    __slots__ = ("children", "directories", "parent", "path", "permissions", "prior", "specials")

    def __init__(self, parent: "_Frame | None", path: str, prior: Captured | None) -> None:
        self.parent = parent
        self.path = path
        self.prior = prior if isinstance(prior, CapturedDirectory) else None
        self.permissions = 0
        self.children: dict[str, Captured] = {}
        self.directories: list[str] = []
        self.specials: set[str] = set()

    def known(self) -> dict[str, Captured]:
        return {} if self.prior is None else self.prior.children

    def place(self, name: str, found: Found) -> None:
        if not isinstance(found, Uncaptured):
            self.children[name] = found
        elif found is Uncaptured.SPECIAL:
            self.specials.add(name)
        elif found is Uncaptured.DIRECTORY:
            self.directories.append(name)


class Walk:
    """Looks at what is below a directory and adds what is new to a batch."""

    def __init__(self, directory: RootedDirectory, batch: PackTransaction) -> None:
        """Look at what is below `directory`."""
        self._directory = directory
        self._batch = batch
        self._closed: dict[str, int] = {}

    def close(self) -> None:
        """Close what had to be opened up."""
        for path in sorted(self._closed, key=lambda path: path.count("/"), reverse=True):
            with suppress(OSError):  # it is gone
                parent, name = self._directory.open_parent(path)
                try:
                    set_permissions(parent, name, self._closed[path])
                finally:
                    os.close(parent)

    def at(self, path: str, known: Captured | None) -> Found:
        """Return what is at `path`, a directory with everything below it.

        Raises:
            OSError: Something may not be read, or there is no directory to hold `path`.
        """
        for _ in range(_ATTEMPTS):
            parent, name = self._directory.open_parent(path)
            try:
                found = self._entry(parent, name, parent_of(path), known)
            finally:
                os.close(parent)
            if found is not Uncaptured.DIRECTORY:
                return found
            directory = self.below(path, known)
            if directory is not None:
                return directory
        raise os_error(errno.EBUSY, path, "Somebody replaces it without pause")

    def below(self, path: str, prior: Captured | None) -> CapturedDirectory | None:
        """Return the directory at `path` with all below it; None if there is none any more.

        Raises:
            OSError: Something may not be read.
        """
        frames: list[_Frame] = []
        pending = [_Frame(None, path, prior)]
        while pending:
            check_time("Snapshot")
            frame = pending.pop()
            if self._list(frame):
                frames.append(frame)
                known = frame.known()
                pending += [
                    _Frame(frame, join(frame.path, name), known.get(name))
                    for name in frame.directories
                ]
        directory = None
        for frame in reversed(frames):  # a directory comes after everything below it
            directory = self._finished(frame)
            if frame.parent is not None:
                frame.parent.children[frame.path.rpartition("/")[2]] = directory
        return directory

    def stored(
        self, path: str, children: dict[str, Captured], permissions: int, specials: frozenset[str]
    ) -> CapturedDirectory:
        """Return a directory of `children`, which are in git's order; its tree is added."""
        tree = self._batch.add("tree", tree_content(children))
        entry = directory_entry(path.rpartition("/")[2], tree)
        return CapturedDirectory(entry, children, permissions, specials)

    def _list(self, frame: _Frame) -> bool:
        """Look at what is in a directory; False if it is none any more."""
        try:
            descriptor = self._open(frame.path)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY or not frame.path:
                raise explain_error(error, frame.path) from None
            self._replaced(frame)
            return False
        try:
            frame.permissions = self._closed.get(
                frame.path, stat.S_IMODE(os.fstat(descriptor).st_mode)
            )
            known = frame.known()
            for name, mode in self._changed(frame, descriptor):
                found = self._entry(descriptor, name, frame.path, known.get(name), mode)
                frame.place(name, found)
        finally:
            os.close(descriptor)
        return True

    def _open(self, path: str) -> int:
        """Open a directory; one that is closed is opened up if it is ours."""
        try:
            descriptor = self._directory.open_directory(path)
        except PermissionError as error:
            if error.errno != errno.EACCES or not path:
                raise
            self._open_up(path)
            return self._directory.open_directory(path)
        if path and os.geteuid() and os.fstat(descriptor).st_mode & _ENTERED != _ENTERED:
            self._open_up(path)  # it could be listed, but nothing in it be looked at
        return descriptor

    def _open_up(self, path: str) -> None:
        parent, name = self._directory.open_parent(path)
        try:
            with pin(parent, name) as descriptor, suppress(PermissionError):
                self._closed[path] = make_accessible(descriptor)
        finally:
            os.close(parent)

    def _replaced(self, frame: _Frame) -> None:
        """Put what is in the place of a directory now into the one above."""
        if frame.parent is None:
            return
        try:
            frame.parent.place(frame.path.rpartition("/")[2], self.at(frame.path, frame.prior))
        except OSError as error:
            if error.errno not in _NO_DIRECTORY:  # then the one above is gone too
                raise

    def _changed(self, frame: _Frame, descriptor: int) -> list[tuple[str, int]]:
        """List a directory; return what may be new, apart from directories.

        Each has its name and what kind it seems to be, as a mode; 0 if that is not known.
        """
        known, children, directories = frame.known(), frame.children, frame.directories
        changed: list[tuple[str, int]] = []
        with os.scandir(descriptor) as entries:
            for entry in entries:
                name = entry.name
                child = known.get(name)
                if isinstance(child, CapturedFile):
                    try:
                        if identity_of(entry.stat(follow_symlinks=False)) == child.identity:
                            children[name] = child
                            continue
                    except FileNotFoundError:
                        continue  # removed since it was listed
                    changed.append((name, 0))
                elif is_temporary(name):
                    continue
                elif entry.is_dir(follow_symlinks=False):
                    directories.append(name)
                else:
                    is_file = entry.is_file(follow_symlinks=False)
                    changed.append((name, stat.S_IFREG if is_file else 0))
        return changed

    def _finished(self, frame: _Frame) -> CapturedDirectory:
        prior = frame.prior
        if (
            prior is not None
            and frame.children == prior.children
            and frame.permissions == prior.permissions
            and prior.here == frozenset(frame.specials)
        ):
            return prior
        children = git_order(frame.children)
        return self.stored(frame.path, children, frame.permissions, frozenset(frame.specials))

    def _entry(
        self, directory: int, name: str, parent: str, known: Captured | None, mode: int = 0
    ) -> Found:
        """Return what `name` in an open directory is; a directory is not entered.

        With a `mode` other than 0 it is first taken for what that says.
        """
        attempts = _ATTEMPTS
        while True:
            attempts -= 1
            try:
                mode = mode or os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
                if stat.S_ISREG(mode):
                    return self._file(directory, name, known)
                if stat.S_ISDIR(mode):
                    return Uncaptured.DIRECTORY
                if stat.S_ISLNK(mode):
                    return self._link(directory, name, known)
                return Uncaptured.SPECIAL
            except FileNotFoundError:
                return Uncaptured.GONE
            except OSError as error:
                if error.errno not in _REPLACED or not attempts:
                    raise explain_error(error, join(parent, name)) from None
                mode = 0

    def _file(self, directory: int, name: str, known: Captured | None) -> CapturedFile:
        for _ in range(_ATTEMPTS):
            descriptor, before = self._opened(directory, name)
            try:
                blob = self._blob(descriptor, before.st_size)
                after = os.fstat(descriptor)
            finally:
                os.close(descriptor)
            identity = identity_of(after)
            if blob is None or identity_of(before) != identity:
                continue  # somebody is writing it
            if (
                isinstance(known, CapturedFile)
                and known.id == blob
                and known.permissions == stat.S_IMODE(after.st_mode)
            ):
                known.see(identity)  # the same but for its times
                return known
            return CapturedFile.of(name, blob, identity)
        raise os_error(errno.EBUSY, name, "Somebody writes the file without pause")

    def _opened(self, directory: int, name: str) -> tuple[int, os.stat_result]:
        """Open a file; one that is closed is opened up for a moment if it is ours."""
        try:
            return self._directory.open_entry(directory, name)
        except PermissionError as error:
            if error.errno != errno.EACCES:
                raise
            with grant_owner_access(directory, name):
                descriptor, _ = self._directory.open_entry(directory, name)
            return descriptor, os.fstat(descriptor)

    def _blob(self, descriptor: int, size: int) -> str | None:
        """Add the content to the batch; None if it has another size by now."""
        if size <= _LARGE:
            data = read_range(descriptor, 0, size)
            return self._batch.add("blob", data) if len(data) == size else None
        try:
            return self._batch.add_blob(size, _pieces(descriptor, size))
        except ValueError:
            return None

    def _link(self, directory: int, name: str, known: Captured | None) -> CapturedLink:
        target = os.fsencode(os.readlink(name, dir_fd=directory))
        if isinstance(known, CapturedLink) and known.target == target:
            return known
        return CapturedLink.of(name, self._batch.add("blob", target), target)


def _pieces(descriptor: int, size: int) -> Iterator[bytes]:
    for offset in range(0, size, _PIECE):
        check_time("Snapshot")
        yield read_range(descriptor, offset, min(_PIECE, size - offset))


def capture(
    directory: RootedDirectory,
    batch: PackTransaction,
    prior: CapturedDirectory | None,
    touched: Collection[str] | None = None,
) -> CapturedDirectory:
    """Return what is in `directory` now, with every new object added to `batch`.

    Where nothing has changed, the result is made of the objects of `prior`; if nothing
    has changed at all, it is `prior`. With `touched`, nothing is looked at but these
    paths and what is below them: it is the caller's promise that all else is as in `prior`.

    Raises:
        OSError: Something may not be read. A capture holds everything or is not made.
    """
    with closing(Walk(directory, batch)) as walk:
        if prior is not None and touched is not None and "" not in touched:
            found = _Update(walk, prior).take(touched)
        else:
            found = walk.below("", prior)
    if found is None:
        raise os_error(errno.ENOENT, "")
    if prior is not None:
        found.learn(prior)
    return found


class _Update:
    """Finds out what became of some paths, and builds the directories above them anew."""

    def __init__(self, walk: Walk, prior: CapturedDirectory) -> None:
        self._walk = walk
        self._above = {"": prior}
        self._found: dict[str, dict[str, Found]] = {}

    def take(self, touched: Collection[str]) -> CapturedDirectory:
        done = "\0"  # below no path
        for path in sorted(filter(None, map(self._first_unknown, touched)), key=_in_tree_order):
            check_time("Snapshot")
            if not f"{path}/".startswith(f"{done}/"):
                done = self._look(path)
        return self._built()

    def _first_unknown(self, path: str) -> str | None:
        """Return `path`, or the first above it that was no directory; None if it is hidden."""
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

    def _look(self, path: str) -> str:
        """Find out what is at `path`, or the first above it that is no directory any more."""
        while True:
            parent, _, name = path.rpartition("/")
            try:
                found = self._walk.at(path, self._above[parent].children.get(name))
            except OSError as error:
                if error.errno not in _NO_DIRECTORY or not parent:
                    raise explain_error(error, path) from None
                path = parent
            else:
                self._found.setdefault(parent, {})[name] = found
                return path

    def _built(self) -> CapturedDirectory:
        for path in sorted(self._above, key=_depth, reverse=True):
            before = self._above[path]
            now = self._updated(path, before, self._found.get(path, {}))
            if not path:
                return now
            if now is not before:
                # unless something else has been found in its place
                self._found.setdefault(parent_of(path), {}).setdefault(path.rpartition("/")[2], now)
        return self._above[""]

    def _updated(
        self, path: str, before: CapturedDirectory, found: dict[str, Found]
    ) -> CapturedDirectory:
        children, specials = dict(before.children), set(before.here)
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
        if children == before.children and before.here == frozenset(specials):
            return before
        if not is_in_order:
            children = git_order(children)
        return self._walk.stored(path, children, before.permissions, frozenset(specials))


def _in_tree_order(path: str) -> str:
    """Return a key that puts what is below a path right behind it."""
    return path.replace("/", "\0")


def _depth(path: str) -> int:
    return path.count("/") + 1 if path else 0
