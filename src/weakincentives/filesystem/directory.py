"""The primitives of a workspace in a directory of the host.

Reads take no lock: a file is replaced by renaming a finished one over it, so a reader
sees the old bytes or the new ones. A directory is removed by renaming it out of sight
first. What a killed process leaves behind has a reserved name, is never shown, and is
removed by the next one that comes across it.
"""

import errno
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Lock

from weakincentives.filesystem import staging
from weakincentives.filesystem.base import BaseFilesystem
from weakincentives.filesystem.hostfile import HostFile, LineIndexes, identity_of
from weakincentives.filesystem.journals.journal import Journal
from weakincentives.filesystem.journals.undoing import Undo, set_mode
from weakincentives.filesystem.leftovers import is_hidden, is_temporary, temporary_name
from weakincentives.filesystem.limits import Limits, check_time
from weakincentives.filesystem.mounts.plan import MountedFile
from weakincentives.filesystem.paths import (
    RESERVED_PREFIX,
    join,
    normalize_path,
    os_error,
    parent_of,
)
from weakincentives.filesystem.primitives import is_passed_over
from weakincentives.filesystem.readable import hash_of
from weakincentives.filesystem.rooted import BackendUnavailableError, RootedDirectory
from weakincentives.filesystem.savepoints import Mark
from weakincentives.filesystem.text import Content
from weakincentives.filesystem.types import (
    Children,
    FileEntry,
    FileStat,
    Results,
)

_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_SWEEP_ENTRIES = 10_000  # how far a new instance looks for leftovers


class DirectoryFilesystem(BaseFilesystem):
    """A filesystem over a directory; see `rooted` for what keeps it inside."""

    def __init__(
        self, root: str, *, limits: Limits, read_only: bool, durable: bool, cross_mounts: bool
    ) -> None:
        """Open the directory."""
        super().__init__(limits=limits, read_only=read_only)
        self._given = root
        self._directory = RootedDirectory(Path(root), cross_mounts=cross_mounts)
        self._durable = durable
        self._line_indexes = LineIndexes()
        self._sight = Lock()
        self._undo = Undo(
            self._directory,
            self._sight,
            durable=durable,
            changed=self._has_changed,
            return_to=self._return_to,
        )
        self._journal = Journal(self._directory, self._sight, self._undo, durable=durable)

    @property
    def root(self) -> str:
        """The directory, as it was given."""
        return self._given

    def open_directory(self, path: str) -> int:
        """Open a directory for a program to start in; the caller closes the descriptor.

        Raises:
            PathEscapeError: The path leads out of the workspace.
            OSError: No directory is there, or a link is on the way.
        """
        key = normalize_path(path)
        try:
            return self._open_listing(key)
        except OSError:
            self._refuse_unless_directory(key)
            raise

    def close(self) -> None:
        """Close the root directory; nothing works afterwards."""
        try:
            with suppress(BackendUnavailableError):  # there is nothing left to roll back
                super().close()
        finally:
            self._directory.close()

    # --- reading ---

    def _lookup(self, path: str) -> FileStat | None:
        if is_hidden(path):
            return None
        try:
            found, target = self._directory.lstat(path)
        except OSError as error:
            if error.errno in _MISSING:
                if error.errno == errno.ENOENT:
                    self._directory.check()
                return None
            raise self._directory.failure(error, path) from None
        is_file = stat.S_ISREG(found.st_mode)
        return FileStat(
            path,
            is_file=is_file,
            is_directory=stat.S_ISDIR(found.st_mode),
            size_bytes=found.st_size if is_file else 0,
            created_at=_birth(found),
            modified_at=datetime.fromtimestamp(found.st_mtime, UTC),
            permissions=stat.S_IMODE(found.st_mode),
            link_target=target,
            hasher=(lambda: self._hash_if_same(path, found)) if is_file else None,
        )

    def _children(self, path: str) -> Children:
        with self._sight:
            descriptor = self._open_listing(path)
            try:
                with os.scandir(descriptor) as entries:
                    children, hidden = _by_kind(entries)
                if hidden:
                    self._remove_leftovers(descriptor, hidden)
            finally:
                os.close(descriptor)
        return children

    def _entries(self, path: str, limit: int) -> Results[FileEntry]:
        prefix = path + "/" if path else ""
        with self._sight:
            descriptor = self._open_listing(path)
            try:
                with os.scandir(descriptor) as entries:
                    found = sorted([(entry.name, entry) for entry in entries], key=itemgetter(0))
                hidden = [name for name, _ in found if name.startswith(RESERVED_PREFIX)]
                if hidden:
                    found = [pair for pair in found if not is_temporary(pair[0])]
                    self._remove_leftovers(descriptor, hidden)
                check_time("List")
                listed = [_listed(entry, name, prefix + name) for name, entry in found[:limit]]
            finally:
                os.close(descriptor)
        return Results(filter(None, listed), reason="entry limit" if len(found) > limit else None)

    def _open(self, path: str) -> HostFile:
        if is_hidden(path):
            raise os_error(errno.ENOENT, path)
        try:
            return HostFile(*self._directory.open_file(path), self._line_indexes)
        except OSError as error:
            raise self._directory.failure(error, path) from None

    def _contents(self, paths: Iterable[str]) -> Generator[tuple[str, Content], None, None]:
        for folder, files in groupby(paths, key=parent_of):
            try:
                directory = self._directory.open_directory(folder)
            except OSError as error:
                if is_passed_over(error):
                    continue
                raise
            try:
                for path in files:
                    content = self._listed_file(directory, path)
                    if content is not None:
                        with content:
                            yield path, content
            finally:
                os.close(directory)

    def _listed_file(self, directory: int, path: str) -> HostFile | None:
        try:
            opened = self._directory.open_listed(directory, path.rpartition("/")[2])
        except OSError as error:
            if is_passed_over(error):
                return None
            raise self._directory.failure(error, path) from None
        return HostFile(*opened, self._line_indexes)

    # --- writing ---

    def _store(
        self, path: str, data: bytes, *, permissions: int | None = None, exclusive: bool = False
    ) -> None:
        with self._changing(path) as (parent, name):
            staging.store_file(
                parent,
                name,
                lambda target: staging.write_all(target, data),
                permissions=permissions,
                exclusive=exclusive,
                durable=self._durable,
            )

    def _check_mounted(self, files: Iterable[MountedFile]) -> None:
        """Take every file: it is written as it is read."""

    def _store_pieces(self, path: str, pieces: Iterator[bytes], *, permissions: int) -> None:
        def fill(target: int) -> None:
            for piece in pieces:
                staging.write_all(target, piece)

        with self._changing(path) as (parent, name):
            staging.store_file(parent, name, fill, permissions=permissions, durable=self._durable)

    def _append(self, path: str, data: bytes) -> None:
        self._store_copy(path, path, None, data)

    def _copy_file(self, found: FileStat, target: str) -> None:
        self._store_copy(found.path, target, found.permissions)

    def _store_copy(
        self, source: str, path: str, permissions: int | None, more: bytes = b""
    ) -> None:
        """Create or replace a file by a copy of another and `more`, whatever its size."""

        def fill(target: int) -> None:
            staging.copy_all(opened, target)
            staging.write_all(target, more)

        with self._changing(path) as (parent, name):
            opened, _ = self._directory.open_file(source)
            try:
                staging.store_file(
                    parent, name, fill, permissions=permissions, durable=self._durable
                )
            finally:
                os.close(opened)

    def _make_directory(self, path: str) -> None:
        with self._changing(path) as (parent, name):
            os.mkdir(name, dir_fd=parent)

    def _make_link(self, path: str, target: str) -> None:
        with self._changing(path) as (parent, name):
            staging.make_link(parent, name, target)

    def _set_permissions(self, path: str, permissions: int) -> None:
        """Set all permission bits of a file or directory; a savepoint takes that back."""
        with self._changing(path, keep=False) as place:
            self._journal.keep_mode(path, place)
            set_mode(place, permissions)

    def _remove(self, path: str) -> None:
        with self._changing(path, keep=False) as (parent, name):
            if not (self._journal and self._journal.take(path, (parent, name))):
                staging.remove(parent, name, self._sight)

    def _move(self, source: str, destination: str) -> None:
        with (
            self._changing(source, keep=False) as start,
            self._changing(destination, keep=False) as goal,
        ):
            if self._journal:
                self._journal.move(source, start, destination, goal)
            else:
                staging.rename(start, goal)

    def _copy(self, source: str, destination: str) -> None:
        hidden = join(parent_of(destination), temporary_name())
        try:
            super()._copy(source, hidden)
            self._move(hidden, destination)
        except BaseException:
            with suppress(OSError):
                self._remove(hidden)
            raise

    def _has_directory(self, path: str) -> bool:
        return not is_hidden(path) and self._directory.is_directory(path)

    def _remove_if_empty(self, path: str) -> bool:
        with self._changing(path, keep=False) as (parent, name):
            return self._journal.covers(path) and staging.remove_if_empty(parent, name)

    def _make_directories(self, paths: Sequence[str]) -> None:
        if paths:
            self._build(paths, paths[-1], lambda hidden: None)

    def _store_below(
        self, missing: Sequence[str], path: str, data: bytes, *, exclusive: bool
    ) -> None:
        if not self._build(missing, path, lambda hidden: self._store(hidden, data)):
            self._store(path, data, exclusive=exclusive)

    def _copy_below(self, missing: Sequence[str], source: str, goal: str) -> None:
        def fill(hidden: str) -> None:
            BaseFilesystem._copy(self, source, hidden)

        if not self._build(missing, goal, fill):
            self._copy(source, goal)

    def _build(self, missing: Sequence[str], goal: str, fill: Callable[[str], None]) -> bool:
        """Make the directories above `goal` out of sight, fill them, show them in one step.

        `fill` gets the hidden path of `goal`. Returns False, having done nothing, if
        somebody else has made the directories meanwhile.
        """
        while missing:
            first = missing[0]
            hidden = join(parent_of(first), temporary_name())
            try:
                for path in missing:
                    self._make_directory(hidden + path[len(first) :])
                fill(hidden + goal[len(first) :])
                with (
                    self._changing(hidden, keep=False) as source,
                    self._changing(first) as target,
                ):
                    staging.rename(source, target, exclusive=True)
            except BaseException as error:
                with suppress(FileNotFoundError):
                    self._remove(hidden)
                if not isinstance(error, FileExistsError):
                    raise
            else:
                return True
            missing = [path for path in missing if self._lookup(path) is None]
        return False

    def _usage(self) -> tuple[int, int]:
        size = count = 0
        pending = [""]
        while pending:
            try:
                entries = self._entries(pending.pop(), sys.maxsize)
            except OSError as error:
                if is_passed_over(error):
                    continue
                raise
            count += len(entries)
            size += sum(entry.size_bytes or 0 for entry in entries)
            pending += [entry.path for entry in entries if entry.is_directory]
        return size, count

    # --- steps ---

    def _open_listing(self, path: str) -> int:
        """Open a directory that may be seen; nothing is emptied while `_sight` is held."""
        if is_hidden(path):
            raise os_error(errno.ENOENT, path)
        try:
            return self._directory.open_directory(path)
        except OSError as error:
            raise self._directory.failure(error, path) from None

    @contextmanager
    def _changing(self, path: str, *, keep: bool = True) -> Generator[tuple[int, str], None, None]:
        """Open the directory that holds `path`; afterwards bring its names to the disk.

        A savepoint keeps what is there, unless it does not `keep` because more is to be done.
        """
        self._will_change(path)
        try:
            parent, name = self._directory.open_parent(path)
            try:
                if keep and self._journal:
                    self._journal.keep(path, (parent, name))
                yield parent, name
                if self._durable:
                    staging.sync_directory(parent)
            finally:
                os.close(parent)
        except OSError as error:
            if error.errno == errno.EEXIST:
                self._journal.retract(path)
            raise self._directory.failure(error, path) from None

    def _mark(self) -> Mark:
        self._directory.check()
        return self._journal.mark()

    def _will_change(self, path: str) -> None:
        """Take note that what is at `path` is about to change; nobody does here."""

    def _has_changed(self, path: str) -> None:
        """Take note that a rollback changes what is at `path`; nobody does here."""

    def _return_to(self, commit: str) -> None:
        """Make everything as a commit says; there are none here."""
        raise NotImplementedError(f"No such state: {commit!r}")

    def _sweep(self) -> None:
        """Remove leftovers near the root; listing a directory removes those in it."""
        remaining = _SWEEP_ENTRIES
        pending = deque([""])
        while pending and remaining > 0:
            directory = pending.popleft()
            with suppress(OSError):
                children = self._children(directory)
                remaining -= 1 + sum(map(len, children))
                pending.extend(join(directory, name) for name in children.directories)

    def _remove_leftovers(self, descriptor: int, names: Sequence[str]) -> None:
        if not self._read_only:
            staging.remove_leftovers(descriptor, names)

    def _hash_if_same(self, path: str, found: os.stat_result) -> str | None:
        try:
            with self._open(path) as content:
                if content.identity != identity_of(found):
                    return None
                digest = hash_of(content)
            return (
                digest
                if identity_of(self._directory.lstat(path)[0]) == identity_of(found)
                else None
            )
        except OSError:
            return None


def _by_kind(entries: "Iterable[os.DirEntry[str]]") -> tuple[Children, list[str]]:
    """Return the names in a directory by kind, and the temporary ones."""
    files: list[str] = []
    directories: list[str] = []
    symlinks: list[str] = []
    specials: list[str] = []
    hidden: list[str] = []
    for entry in entries:
        name = entry.name
        if name.startswith(RESERVED_PREFIX):
            hidden.append(name)
        elif entry.is_file(follow_symlinks=False):
            files.append(name)
        elif entry.is_dir(follow_symlinks=False):
            directories.append(name)
        elif entry.is_symlink():
            symlinks.append(name)
        else:
            specials.append(name)
    return Children(files, directories, symlinks, specials), hidden


def _listed(entry: "os.DirEntry[str]", name: str, path: str) -> FileEntry | None:
    if entry.is_file(follow_symlinks=False):
        try:
            size = entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            return None
        return FileEntry(name, path, True, False, size)
    is_directory = entry.is_dir(follow_symlinks=False)
    return FileEntry(name, path, False, is_directory, None, entry.is_symlink())


def _birth(found: os.stat_result) -> datetime | None:
    born: float | None = getattr(found, "st_birthtime", None)
    return None if born is None else datetime.fromtimestamp(born, UTC)
