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

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem.backend import BaseFilesystem
from weakincentives.filesystem.base import ReadableFilesystem, content_hash, is_skippable
from weakincentives.filesystem.diff import Diff, diff
from weakincentives.filesystem.host.files import HostFile, LineIndexes, identity_of
from weakincentives.filesystem.host.journal.journal import Journal
from weakincentives.filesystem.host.journal.recovery import Recovery, pinned_commits
from weakincentives.filesystem.host.journal.rollback import Rollback, set_mode
from weakincentives.filesystem.host.snapshots.history import SnapshotHistory
from weakincentives.filesystem.host.snapshots.partial import without_new_specials
from weakincentives.filesystem.host.snapshots.store import SnapshotStore
from weakincentives.filesystem.limits import DEFAULT_LIMITS, Limits
from weakincentives.filesystem.mounts import MountedFile
from weakincentives.filesystem.paths import normalize_path, outermost
from weakincentives.filesystem.retention import Pins
from weakincentives.filesystem.savepoints import SavepointError, SavepointStorage
from weakincentives.filesystem.state import State, check_restorable
from weakincentives.filesystem.text import Content
from weakincentives.filesystem.types import (
    Children,
    FileEntry,
    FileStat,
    FilesystemSnapshot,
    Results,
)
from weakincentives.gitstore import ObjectError
from weakincentives.posix import (
    RESERVED_PREFIX,
    BackendUnavailableError,
    RootedDirectory,
    check_time,
    copy_all,
    is_hidden,
    is_temporary,
    join,
    make_link,
    os_error,
    parent_of,
    remove,
    remove_if_empty,
    remove_leftovers,
    rename,
    store_file,
    sync_directory,
    temporary_name,
    write_all,
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
        self._undo = Rollback(
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
            self._ensure_directory(key)
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
            raise self._directory.explain_error(error, path) from None
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
            raise self._directory.explain_error(error, path) from None

    def _contents(self, paths: Iterable[str]) -> Generator[tuple[str, Content], None, None]:
        for folder, files in groupby(paths, key=parent_of):
            try:
                directory = self._directory.open_directory(folder)
            except OSError as error:
                if is_skippable(error):
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
            opened = self._directory.open_entry(directory, path.rpartition("/")[2])
        except OSError as error:
            if is_skippable(error):
                return None
            raise self._directory.explain_error(error, path) from None
        return HostFile(*opened, self._line_indexes)

    # --- writing ---

    def _store(
        self, path: str, data: bytes, *, permissions: int | None = None, exclusive: bool = False
    ) -> None:
        with self._changing(path) as (parent, name):
            store_file(
                parent,
                name,
                lambda target: write_all(target, data),
                permissions=permissions,
                exclusive=exclusive,
                durable=self._durable,
            )

    def _check_mount_sizes(self, files: Iterable[MountedFile]) -> None:
        """Take every file: it is written as it is read."""

    def _store_pieces(self, path: str, pieces: Iterator[bytes], *, permissions: int) -> None:
        def fill(target: int) -> None:
            for piece in pieces:
                write_all(target, piece)

        with self._changing(path) as (parent, name):
            store_file(parent, name, fill, permissions=permissions, durable=self._durable)

    def _append(self, path: str, data: bytes) -> None:
        self._store_copy(path, path, None, data)

    def _copy_file(self, found: FileStat, target: str) -> None:
        self._store_copy(found.path, target, found.permissions)

    def _store_copy(
        self, source: str, path: str, permissions: int | None, more: bytes = b""
    ) -> None:
        """Create or replace a file by a copy of another and `more`, whatever its size."""

        def fill(target: int) -> None:
            copy_all(opened, target)
            write_all(target, more)

        with self._changing(path) as (parent, name):
            opened, _ = self._directory.open_file(source)
            try:
                store_file(parent, name, fill, permissions=permissions, durable=self._durable)
            finally:
                os.close(opened)

    def _make_directory(self, path: str) -> None:
        with self._changing(path) as (parent, name):
            os.mkdir(name, dir_fd=parent)

    def _make_link(self, path: str, target: str) -> None:
        with self._changing(path) as (parent, name):
            make_link(parent, name, target)

    def _set_permissions(self, path: str, permissions: int) -> None:
        """Set all permission bits of a file or directory; a savepoint takes that back."""
        with self._changing(path, keep=False) as place:
            self._journal.keep_mode(path, place)
            set_mode(place, permissions)

    def _remove(self, path: str) -> None:
        with self._changing(path, keep=False) as (parent, name):
            if not (self._journal and self._journal.take(path, (parent, name))):
                remove(parent, name, self._sight)

    def _move(self, source: str, destination: str) -> None:
        with (
            self._changing(source, keep=False) as start,
            self._changing(destination, keep=False) as goal,
        ):
            if self._journal:
                self._journal.move(source, start, destination, goal)
            else:
                rename(start, goal)

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
            return self._journal.covers(path) and remove_if_empty(parent, name)

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
                    rename(source, target, exclusive=True)
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
                if is_skippable(error):
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
            raise self._directory.explain_error(error, path) from None

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
                    sync_directory(parent)
            finally:
                os.close(parent)
        except OSError as error:
            if error.errno == errno.EEXIST:
                self._journal.retract(path)
            raise self._directory.explain_error(error, path) from None

    def _savepoint_storage(self) -> SavepointStorage:
        return self._journal

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
            remove_leftovers(descriptor, names)

    def _hash_if_same(self, path: str, found: os.stat_result) -> str | None:
        try:
            with self._open(path) as content:
                if content.identity != identity_of(found):
                    return None
                digest = content_hash(content)
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


_pins = Pins()  # of all instances: they may share a directory


class HostFilesystem(DirectoryFilesystem):
    """A filesystem over a directory, whose states can be kept and brought back."""

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        read_only: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        durable: bool = False,
        cross_mounts: bool = False,
        git_dir: str | os.PathLike[str] | None = None,
        exclusive: bool = False,
        _root: str | os.PathLike[str] | None = None,
        _read_only: bool = False,
        _git_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Open the directory.

        Args:
            root: The directory, which must exist; a link to it is resolved once, now.
            read_only: Refuse to write.
            limits: What is allowed; there is no quota unless one is set.
            durable: Write through to the disk: what `write` returned from survives power loss.
            cross_mounts: Enter other file systems that are mounted below the root.
            git_dir: Where snapshots are kept; by default a place derived from the root.
            exclusive: The caller's promise that nothing but this instance changes the
                directory, or that `invalidate` is called when something has. A
                snapshot then looks only at what was changed here, and not at every file.
        """
        given = root if root is not None else _root
        if given is None:
            raise TypeError("HostFilesystem needs a root directory")
        if not os.fspath(given):
            raise ValueError("HostFilesystem needs a root directory, not an empty path")
        super().__init__(
            os.fspath(given),
            limits=limits,
            read_only=read_only or _read_only,
            durable=durable,
            cross_mounts=cross_mounts,
        )
        place = git_dir if git_dir is not None else _git_dir
        if place is not None and "\0" in os.fspath(place):
            raise ValueError(f"git_dir holds a NUL character: {os.fspath(place)!r}")
        self._history = SnapshotStore(
            self._directory,
            os.path.abspath(given),  # noqa: PTH100 # the spelling, links kept
            Path(os.path.realpath(given)),
            git_dir=None if place is None else Path(place).absolute(),
            exclusive=exclusive,
            may_recover=not self._read_only,
            keep=self._journal.keep_state,
            needed=lambda: bool(self._journal),
        )
        if not self._read_only:
            self._recover()  # first: it may take back a restore that is not finished
            self._history.finish()
            self._sweep()

    @property
    def git_dir(self) -> str | None:
        """The git repository that holds the snapshots; None before the first one."""
        found = self._history.git_dir
        return None if found is None else str(found)

    @property
    def history(self) -> SnapshotHistory:
        """The snapshots of this directory: to list, prune and verify."""
        root = os.path.abspath(self._given)  # noqa: PTH100 # the spelling
        return SnapshotHistory(self._history.existing, root, self._needed_commits)

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        """Keep the present state of everything below the root, whoever made it.

        Raises:
            SnapshotError: Something could not be read or stored; nothing was kept.
        """
        with self._lock:
            self._journal.finish_rollback()
            return self._history.take(tag)

    def pin(self, snapshot: FilesystemSnapshot) -> Callable[[], None]:
        """Keep a snapshot until the returned function is called, whatever is forgotten."""
        return _pins.add(snapshot.commit_ref)

    def restore(
        self,
        snapshot: FilesystemSnapshot,
        *,
        paths: Sequence[str] | None = None,
        force: bool = False,
    ) -> None:
        """Make everything as it was then, or only what is at and below `paths`.

        What was made since is gone; the state before is kept as a snapshot, so that a
        restore can be undone. If the store has no room for it, the restore is done all the
        same: that is logged as a warning, and listeners are told `reversible=False`. A
        snapshot of another directory is refused unless `force` says otherwise.

        Raises:
            SnapshotRestoreError: It cannot be done, and nothing has changed.
            LimitExceededError: The state would exceed the quota.
        """
        self._ensure_writable("")
        with self._lock:
            self._journal.finish_rollback()
            done = self._history.restore(
                snapshot, paths=paths, force=force, check=self._check_restored
            )
            self._emit_replaced(
                "restore", snapshot.commit_ref, done.written, reversible=done.reversible
            )

    def preview(self, snapshot: FilesystemSnapshot, *, paths: Sequence[str] | None = None) -> Diff:
        """Return what `restore` with the same arguments would change."""
        then = self.view(snapshot)
        try:
            if paths is None:
                return without_new_specials(diff(self, then))
            wanted = outermost(paths)
            check_restorable(State(self), State(then), wanted)
            return without_new_specials(diff(self, then, path=wanted))
        except ObjectError as error:
            raise SnapshotRestoreError(f"Failed to restore {snapshot}: {error}") from error

    def view(self, snapshot: FilesystemSnapshot) -> ReadableFilesystem:
        """Return the state that a snapshot keeps, to read and compare."""
        return self._history.view(snapshot)

    def invalidate(self) -> None:
        """Say that something else may have changed files: the next snapshot looks at all."""
        self._history.invalidate()

    def cleanup(self) -> None:
        """Remove the snapshots of this directory, unless another instance uses them."""
        with self._lock:
            if self._lock.savepoints:
                raise SavepointError("Cannot remove snapshots while a savepoint is open")
            if self._lock.is_held:
                raise SavepointError("Cannot remove snapshots while a transaction is open")
            self._history.cleanup()

    def close(self) -> None:
        """Close the root directory; nothing works afterwards. Snapshots stay."""
        try:
            super().close()
        finally:
            self._history.close()

    def _replace_all(self, state: ReadableFilesystem, name: str) -> Sequence[str]:
        self._journal.finish_rollback()
        self._check_quota_for(State(state))
        return self._history.replace(state, name)

    def _check_restored(self, state: ReadableFilesystem) -> None:
        self._check_quota_for(State(state))

    def _will_change(self, path: str) -> None:
        self._history.touch(path)

    def _has_changed(self, path: str) -> None:
        self._history.note(path)

    def _needed_commits(self) -> set[str]:
        """Return the commits that something open, or an interrupted restore, goes back to."""
        decided = self._history.decided()
        needed = pinned_commits(self._directory) | _pins.names()
        return needed | (set() if decided is None else {decided})

    def _return_to(self, commit: str) -> None:
        self._history.return_to(commit)

    def _recover(self) -> None:
        """Take back what processes that are gone have changed in their savepoints."""

        def keep() -> None:
            self._history.take("before the rollback of a savepoint whose process is gone")

        Recovery(self._directory, self._undo, keep).run()

    def _blob_id(self, path: str) -> str | None:
        return self._history.blob_id(path)
