"""Capture of a host directory as git trees: all of it, or only the paths that were touched.

A stat cache skips what is unchanged: same device, inode, size, times and mode mean the same
content of a file, and the same names in a directory. Files are opened relative to the listed
directory, so no name leads elsewhere. An entry that is removed or replaced during the walk is
captured as what it has become.
"""

import errno
import os
import stat
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import TypeAlias

from weakincentives.filesystem.host.files import Identity, identity_of, is_stable
from weakincentives.filesystem.host.snapshots.nodes import (
    Captured,
    CapturedDirectory,
    CapturedFile,
    sort_as_git,
    store_directory,
)
from weakincentives.filesystem.host.snapshots.watcher import ChangeWatcher
from weakincentives.gitstore import PackTransaction
from weakincentives.history import is_written
from weakincentives.posix import (
    OpenDescriptor,
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
    reports_all_changes,
    restore_mode,
)

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
        scope = None if prior is None or touched is None else _find_scope(prior, touched)
        found = walk.capture_directory("", prior, scope)
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
Scope: TypeAlias = dict[str, "Scope | None"]
"""The names in a directory to capture again: with all below them, or only a part of that."""


@dataclass(slots=True, eq=False)
class _Frame:
    """A directory, completed after everything below it; with a scope, what is not in it stays."""

    parent: "_Frame | None"
    path: str
    prior: CapturedDirectory | None
    scope: Scope | None
    permissions: int = 0
    identity: Identity | None = None
    children: dict[str, Captured] = field(default_factory=dict[str, Captured])
    directories: list[str] = field(default_factory=list[str])
    specials: set[str] = field(default_factory=set[str])
    is_sorted: bool = False
    """Whether the children are in git's order."""

    @classmethod
    def of(
        cls, parent: "_Frame | None", path: str, prior: Captured | None, scope: Scope | None
    ) -> "_Frame":
        known = prior if isinstance(prior, CapturedDirectory) else None
        return cls(parent, path, known, scope if known else None)

    def prior_children(self) -> dict[str, Captured]:
        return {} if self.prior is None else self.prior.children

    def start_with(self, prior: CapturedDirectory, scope: Scope) -> list[tuple[str, int]]:
        """Take over a directory; return the names in it to capture, except directories."""
        self.permissions, self.identity = prior.permissions, prior.identity
        self.children, self.specials = dict(prior.children), set(prior.special_names)
        self.is_sorted = True
        self.directories += [name for name, inner in scope.items() if inner is not None]
        return [(name, 0) for name, inner in scope.items() if inner is None]

    def add(self, name: str, found: Found) -> None:
        if isinstance(found, Uncaptured):
            self.children.pop(name, None)
        else:
            self.is_sorted = self.is_sorted and type(self.children.get(name)) is type(found)
            self.children[name] = found
        self.specials.discard(name)
        if found is Uncaptured.SPECIAL:
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
        """Restore permissions of directories that were made accessible, unless they changed."""
        for path in sorted(self._opened_up, reverse=True):  # children first
            with suppress(OSError):  # removed meanwhile
                parent, name = self._directory.open_parent(path)
                with OpenDescriptor(parent), pin(parent, name) as pinned:
                    restore_mode(pinned, self._opened_up[path])

    def capture_path(self, path: str, known: Captured | None) -> Found:
        """Capture the entry at `path`, a directory with everything below it.

        Raises:
            OSError: Something cannot be read, or the parent is not a directory.
        """
        for _ in range(_MAX_ATTEMPTS):
            parent, name = self._directory.open_parent(path)
            with OpenDescriptor(parent):
                found = self._capture_entry(parent, name, parent_of(path), known)
            if found is not Uncaptured.DIRECTORY:
                return found
            directory = self.capture_directory(path, known)
            if directory is not None:
                return directory
        raise os_error(
            errno.EBUSY, path, f"Path keeps changing; gave up after {_MAX_ATTEMPTS} attempts"
        )

    def capture_directory(
        self, path: str, prior: Captured | None, scope: Scope | None = None
    ) -> CapturedDirectory | None:
        """Capture the directory at `path` with everything below; None if it is gone.

        With a `scope`, only what is in it is captured; the rest is as in `prior`.

        Raises:
            OSError: Something cannot be read.
        """
        frames: list[_Frame] = []
        pending = [_Frame.of(None, path, prior, scope)]
        while pending:
            check_time("Snapshot")
            frame = pending.pop()
            if self._list(frame):
                frames.append(frame)
                known, scopes = frame.prior_children(), frame.scope or {}
                pending += [
                    _Frame.of(frame, join(frame.path, name), known.get(name), scopes.get(name))
                    for name in frame.directories
                ]
        directory = None
        for frame in reversed(frames):  # children before their parents
            directory = self._complete(frame)
            if frame.parent is not None:
                frame.parent.add(frame.path.rpartition("/")[2], directory)
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
        with OpenDescriptor(descriptor):
            prior_children = frame.prior_children()
            for name, mode in self._find_changes(frame, descriptor):
                known = prior_children.get(name)
                frame.add(name, self._capture_entry(descriptor, name, frame.path, known, mode))
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
        with OpenDescriptor(parent), pin(parent, name) as pinned, suppress(PermissionError):
            self._opened_up[path] = make_accessible(pinned)

    def _capture_replacement(self, frame: _Frame) -> None:
        """Add what has replaced a directory to its parent."""
        if frame.parent is None:
            return
        found: Found = Uncaptured.GONE
        try:
            found = self.capture_path(frame.path, frame.prior)
        except OSError as error:
            if error.errno not in _NOT_A_DIRECTORY:  # otherwise the parent is gone too
                raise
        frame.parent.add(frame.path.rpartition("/")[2], found)

    def _find_changes(self, frame: _Frame, descriptor: int) -> list[tuple[str, int]]:
        """Return the names in a directory that may have changed, except directories.

        Each comes with its presumed kind as a mode, 0 if unknown.
        """
        if frame.prior is not None and frame.scope is not None:
            return frame.start_with(frame.prior, frame.scope)
        found = os.fstat(descriptor)
        identity = identity_of(found)
        frame.permissions = self._opened_up.get(frame.path, stat.S_IMODE(found.st_mode))
        if self._watcher is not None:
            self._watcher.watch_directory(frame.path, descriptor)
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
            else:
                frame.directories.append(name)
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
        children = frame.children if frame.is_sorted else sort_as_git(frame.children)
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
                blob = self._batch.add_file(before.st_size, partial(read_range, descriptor))
                after = os.fstat(descriptor)
            except ValueError:
                continue  # it was cut while it was read
            finally:
                os.close(descriptor)
            identity = identity_of(after)
            if identity_of(before) != identity:
                continue  # it changed while it was read
            if after.st_nlink > 1 and self._watcher is not None:
                self._watcher.watch_link(join(parent, name), directory, name)
            found = CapturedFile.of(name, blob, identity).reuse(known)
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

    def _capture_link(self, directory: int, name: str, known: Captured | None) -> CapturedFile:
        # if it is replaced in between, this is not the stat of the other one
        identity = identity_of(os.stat(name, dir_fd=directory, follow_symlinks=False))
        target = os.fsencode(os.readlink(name, dir_fd=directory))
        return CapturedFile.link(name, self._batch.add("blob", target), identity).reuse(known)


def _find_scope(prior: CapturedDirectory, touched: Collection[str]) -> Scope | None:
    """Return what to capture again so that the `touched` paths, and all below them, are."""
    scope: Scope = {}
    for path in touched:
        directory, names = prior, scope
        *above, last = path.split("/")
        for name in above:
            child, inner = directory.children.get(name), names.get(name, {})
            if inner is None or is_temporary(name) or not isinstance(child, CapturedDirectory):
                last = name  # the first parent that was not a directory, or one that is touched
                break
            directory, names[name] = child, inner
            names = inner
        if not is_temporary(last):
            names[last] = None
    return None if "" in touched else scope
