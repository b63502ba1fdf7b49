"""A workspace in a directory of the host.

Reads take no lock: a file is replaced by exchanging it with a complete one, so a reader sees
the old bytes or the new ones. A directory is hidden by a rename before it is removed. Files
left by a killed process have reserved names; they are never listed, and removed when a
listing finds them.
"""

import errno
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import TypeVar

from weakincentives import posix
from weakincentives.errors import SnapshotRestoreError, StaleRestoreError
from weakincentives.filesystem.backend import TransactionalFilesystem
from weakincentives.filesystem.base import (
    ReadableFilesystem,
    StaleContentError,
    content_hash,
    is_skippable,
)
from weakincentives.filesystem.base.state import Pins, State, check_restorable
from weakincentives.filesystem.diff import Diff, diff
from weakincentives.filesystem.host.files import HostFile, LineIndexes, identity_of
from weakincentives.filesystem.host.journal.completion import ChangeListener, SavepointCompletion
from weakincentives.filesystem.host.journal.journal import Journal
from weakincentives.filesystem.host.journal.records import pinned_commits
from weakincentives.filesystem.host.snapshots.edits import without_new_specials
from weakincentives.filesystem.host.snapshots.history import SnapshotHistory
from weakincentives.filesystem.host.snapshots.store import CallStates, SnapshotStore
from weakincentives.filesystem.host.snapshots.view import SnapshotFilesystem
from weakincentives.filesystem.host.snapshots.writer import TreeWriter
from weakincentives.filesystem.limits import DEFAULT_LIMITS, Limits
from weakincentives.filesystem.mounts import MountedFile
from weakincentives.filesystem.paths import normalize_path, outermost
from weakincentives.filesystem.savepoints import SavepointError, SavepointStorage
from weakincentives.filesystem.text import Content
from weakincentives.filesystem.types import (
    Children,
    FileEntry,
    FileStat,
    FilesystemSnapshot,
    Results,
)
from weakincentives.gitstore import ObjectError
from weakincentives.history import Kept, PathChange, hash_content, hash_file

T = TypeVar("T")

_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_HAS_BIRTH_TIME = hasattr(os.stat_result, "st_birthtime")
_MAX_APPENDS = 3  # attempts to append to a file that another program saves at the same time
_MAX_SWEPT_ENTRIES = 10_000  # that a new instance searches for leftovers


_pins = Pins()  # shared by all instances, which may share a directory


class HostFilesystem(TransactionalFilesystem):
    """A filesystem over a host directory, with snapshots and savepoints.

    `weakincentives.posix.rooted` confines it to the directory.
    """

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
            read_only: Whether every change raises ReadOnlyError.
            limits: Size and count limits; there is no quota unless one is set.
            durable: Sync every write: once `write` returns, it survives power loss.
            cross_mounts: Enter other file systems that are mounted below the root.
            git_dir: Where snapshots are stored; by default a path derived from the root.
            exclusive: The caller's promise that only this instance and its sandbox change the
                directory, or that `invalidate` is called when something else has. A snapshot
                then checks only what was changed, and not every file.
        """
        given = root if root is not None else _root
        if given is None:
            raise TypeError("HostFilesystem needs a root directory")
        if not os.fspath(given):
            raise ValueError("HostFilesystem needs a root directory, not an empty path")
        store = git_dir if git_dir is not None else _git_dir
        if store is not None and "\0" in os.fspath(store):
            raise ValueError(f"git_dir contains a NUL character: {os.fspath(store)!r}")
        super().__init__(limits=limits, read_only=read_only or _read_only)
        self._given = os.fspath(given)
        self._directory = posix.RootedDirectory(Path(given), cross_mounts=cross_mounts)
        self._durable = durable
        self._line_indexes = LineIndexes()
        self._listing_lock = Lock()
        self._snapshots = SnapshotStore(
            self._directory,
            os.path.abspath(given),  # noqa: PTH100 # the spelling, links kept
            Path(os.path.realpath(given)),
            git_dir=None if store is None else Path(store).absolute(),
            exclusive=exclusive,
            read_only=self._read_only,
        )
        self._completion = SavepointCompletion(
            self._directory, self._listing_lock, self._snapshots, durable=durable
        )
        self._journal = Journal(self._completion)
        if not self._read_only:
            # restores first: the rollback of a savepoint may go back from one
            self._snapshots.recover()
            self._completion.recover()
            self._sweep()

    @property
    def root(self) -> str:
        """The directory, as it was given."""
        return self._given

    @property
    def git_dir(self) -> str | None:
        """The git repository that holds the snapshots; None before the first one."""
        found = self._snapshots.git_dir
        return None if found is None else str(found)

    @property
    def kept_changes(self) -> Sequence[Kept]:
        """Changes of other programs that a rollback left alone, and where both versions are."""
        return tuple(self._completion.kept)

    def subscribe_changes(self, listener: ChangeListener) -> Callable[[], None]:
        """Call `listener` with the paths that each outermost savepoint changed.

        That happens when it is released, or after a single change outside of one. The entries
        before are what the changes replaced, whoever put it there. If the listener raises
        OSError or SnapshotError, that is logged, and it is called again at the next change.
        Returns a function that unsubscribes it.
        """
        with self._lock.mutex:
            self._lock.await_turn()
            return self._journal.subscribe(listener)

    def record_changes(self, changes: Sequence[PathChange]) -> CallStates:
        """Store the states before and after a call, from what `subscribe_changes` reports.

        Only these paths are looked at, so this costs the same in any directory.

        Raises:
            SnapshotError: They could not be stored.
        """
        return self._snapshots.record(changes)

    @property
    def history(self) -> SnapshotHistory:
        """The snapshots of this directory: to list, prune and verify."""
        root = os.path.abspath(self._given)  # noqa: PTH100 # the spelling
        return SnapshotHistory(self._snapshots.existing_repository, root, self._pinned_commits)

    def open_directory(self, path: str) -> int:
        """Open a directory for a program to start in; the caller closes the descriptor.

        Raises:
            PathEscapeError: The path leads out of the workspace.
            OSError: It is not a directory, or a link is on the way.
        """
        key = normalize_path(path)
        try:
            return self._open_visible(key)
        except OSError:
            self._ensure_directory(key)
            raise

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        """Take a snapshot of everything below the root, whichever program made it.

        Raises:
            SnapshotError: Something could not be read or stored; there is no snapshot.
        """
        with self._lock.mutex:
            self._lock.await_turn()
            self._journal.finish_rollback()
            return self._snapshots.take(tag)

    def pin(self, snapshot: FilesystemSnapshot) -> Callable[[], None]:
        """Keep a snapshot from being pruned until the returned function is called."""
        return _pins.add(snapshot.commit_ref)

    def restore(
        self,
        snapshot: FilesystemSnapshot | SnapshotFilesystem,
        *,
        paths: Sequence[str] | None = None,
        force: bool = False,
        expect: FilesystemSnapshot | SnapshotFilesystem | None = None,
    ) -> None:
        """Restore everything, or only what is at and below `paths`, to a snapshot.

        Anything created since is removed. The present state is stored as a snapshot first,
        so that a restore can be undone. If the store has no room for it, the restore still
        happens: that is logged as a warning, and listeners get `reversible=False`.
        What somebody saves at a path while it is replaced is stored too: see `displaced`.

        Args:
            snapshot: The state to restore: a snapshot, or a view such as a step of a timeline.
            paths: Restore only these, and what is below them.
            force: Restore a snapshot of another directory too.
            expect: Undo only what changed from `snapshot` to this later state: each such path
                must still be exactly as in it. Everything else stays, and is not looked at.

        Raises:
            StaleRestoreError: A path is not as in `expect`; nothing has changed.
            SnapshotRestoreError: It could not be restored; nothing has changed.
            LimitExceededError: The state would exceed the quota.
        """
        self._ensure_writable("")
        with self._lock.mutex:
            self._lock.await_turn()
            self._journal.finish_rollback()
            self._restore(snapshot, paths, expect, force=force)

    def _restore(
        self,
        snapshot: FilesystemSnapshot | SnapshotFilesystem,
        paths: Sequence[str] | None,
        expect: FilesystemSnapshot | SnapshotFilesystem | None,
        *,
        force: bool,
    ) -> None:
        """Restore with the lock held, and tell the listeners."""
        try:
            result = self._snapshots.restore(
                snapshot,
                paths=paths,
                force=force,
                expect=expect,
                check=self._check_growth if self._quota else None,
                before_replace=self._journal.save_state if self._journal else None,
            )
        except StaleRestoreError:
            self._journal.drop_state()
            raise
        if not self._journal:
            self._completion.report(result.changes)
        is_view = isinstance(snapshot, SnapshotFilesystem)
        self._emit_replaced(
            "restore",
            snapshot.tree_id if is_view else snapshot.commit_ref,
            result.rewritten,
            reversible=result.reversible,
            partial=expect is not None,
        )

    def fill(self, fill: Callable[[TreeWriter], None], *, tag: str) -> FilesystemSnapshot:
        """Let `fill` write to the empty directory, and return a snapshot of what it wrote."""
        with self._lock.mutex:
            self._lock.await_turn()
            return self._snapshots.fill(fill, tag)

    @property
    def replaced(self) -> FilesystemSnapshot | None:
        """The state before the last restore; None if the store had no room for it."""
        return self._snapshots.replaced

    @property
    def displaced(self) -> FilesystemSnapshot | None:
        """What somebody saved while the last restore replaced it: a snapshot with these files."""
        return self._snapshots.displaced

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

    def compare(self, before: FilesystemSnapshot, after: FilesystemSnapshot) -> Sequence[str]:
        """Return the paths that differ between two snapshots, without searching equal directories.

        Raises:
            SnapshotRestoreError: A snapshot is unknown or damaged.
        """
        return self._snapshots.compare(before, after)

    def view(self, snapshot: FilesystemSnapshot) -> SnapshotFilesystem:
        """Return the state of a snapshot, to read and compare."""
        return self._snapshots.view(snapshot)

    def invalidate(self) -> None:
        """Note that something else may have changed files: the next snapshot checks all."""
        self._snapshots.tracker.invalidate()

    @property
    def reported_programs(self) -> int:
        """How many confined programs have run; see `changed_by_others`."""
        return self._snapshots.tracker.reported_programs

    def changed_by_others(self, *, confined: bool = False) -> AbstractContextManager[None]:
        """Note that another program changes files during the block: every snapshot checks all.

        So does the first snapshot after it, unless the program was `confined`: that promises
        that it reached the files only by paths below the root, not through hard links elsewhere,
        and that no process of it is left when the block ends without an error. With `exclusive`,
        the kernel then reports what it changed, and a snapshot checks only that. Where
        the report may be incomplete, it checks all.
        """
        return self._snapshots.tracker.changed_by_others(confined=confined)

    def cleanup(self) -> None:
        """Remove the snapshots of this directory, unless another instance uses them."""
        with self._lock.mutex:
            self._lock.await_turn()
            if self._lock.savepoints:
                raise SavepointError("Cannot remove snapshots while a savepoint is open")
            if self._lock.is_held:
                raise SavepointError("Cannot remove snapshots while a transaction is open")
            self._snapshots.cleanup()

    def close(self) -> None:
        """Close the root directory; nothing works afterwards. Snapshots stay."""
        try:
            with suppress(posix.BackendUnavailableError):  # nothing is left to roll back
                super().close()
            self._completion.close()
        finally:
            self._directory.close()
            self._snapshots.close()

    # --- reading ---

    def _lookup(self, path: str) -> FileStat | None:
        if posix.is_hidden(path):
            return None
        try:
            found, target = self._directory.lstat(path)
        except OSError as error:
            if error.errno in _MISSING:
                if error.errno == errno.ENOENT:
                    self._directory.check()
                return None
            raise self._directory.explain_error(error, path) from None
        return self._describe(path, found, target)

    def _describe(self, path: str, found: os.stat_result, target: str | None) -> FileStat:
        kind = stat.S_IFMT(found.st_mode)
        is_file = kind == stat.S_IFREG
        return FileStat(
            path,
            is_file,
            kind == stat.S_IFDIR,
            found.st_size if is_file else 0,
            _birth_time(found) if _HAS_BIRTH_TIME else None,
            datetime.fromtimestamp(found.st_mtime, UTC),
            stat.S_IMODE(found.st_mode),
            target,
            (lambda: self._hash_if_unchanged(path, found)) if is_file else None,
        )

    def _scan(self, path: str, read: Callable[[int, "list[os.DirEntry[str]]"], T]) -> T:
        """Return what `read` makes of an open directory and of the visible entries in it.

        Temporary files of dead processes are removed.
        """
        with self._listing_lock, posix.OpenDescriptor(self._open_visible(path)) as descriptor:
            with os.scandir(descriptor) as entries:
                listed = list(entries)
            hidden = [each.name for each in listed if each.name.startswith(posix.RESERVED_PREFIX)]
            if hidden:
                listed = [each for each in listed if not posix.is_temporary(each.name)]
                self._remove_leftovers(descriptor, hidden)
            return read(descriptor, listed)

    def _children(self, path: str) -> Children:
        return self._scan(path, _group_by_kind)

    def _stats(self, path: str) -> dict[str, FileStat]:
        prefix = path + "/" if path else ""

        def read(descriptor: int, entries: "list[os.DirEntry[str]]") -> dict[str, FileStat]:
            stats: dict[str, FileStat] = {}
            for entry in entries:
                name = entry.name
                try:
                    found = entry.stat(follow_symlinks=False), None
                    if stat.S_ISLNK(found[0].st_mode):
                        found = posix.stat_entry(descriptor, name)
                except FileNotFoundError:
                    continue  # removed since it was listed
                except OSError as error:
                    raise self._directory.explain_error(error, prefix + name) from None
                stats[name] = self._describe(prefix + name, *found)
            return stats

        return self._scan(path, read)

    def _entries(self, path: str, limit: int) -> Results[FileEntry]:
        prefix = path + "/" if path else ""

        def read(_: int, entries: "list[os.DirEntry[str]]") -> Results[FileEntry]:
            found = sorted([(entry.name, entry) for entry in entries], key=itemgetter(0))
            posix.check_time("List")
            listed = [_file_entry(entry, name, prefix + name) for name, entry in found[:limit]]
            reason = "entry limit" if len(found) > limit else None
            return Results(filter(None, listed), reason=reason)

        return self._scan(path, read)

    def _open(self, path: str) -> HostFile:
        if posix.is_hidden(path):
            raise posix.os_error(errno.ENOENT, path)
        try:
            return HostFile(*self._directory.open_file(path), self._line_indexes)
        except OSError as error:
            raise self._directory.explain_error(error, path) from None

    def _contents(self, paths: Iterable[str]) -> Generator[tuple[str, Content], None, None]:
        for folder, files in groupby(paths, key=posix.parent_of):
            try:
                directory = self._directory.open_directory(folder)
            except OSError as error:
                if is_skippable(error):
                    continue
                raise
            with posix.OpenDescriptor(directory):
                for path in files:
                    content = self._open_listed_file(directory, path)
                    if content is not None:
                        with content:
                            yield path, content

    def _open_listed_file(self, directory: int, path: str) -> HostFile | None:
        try:
            opened = self._directory.open_listed(directory, path.rpartition("/")[2])
        except OSError as error:
            if is_skippable(error):
                return None
            raise self._directory.explain_error(error, path) from None
        return HostFile(*opened, self._line_indexes)

    # --- writing ---

    def _store(
        self, path: str, data: bytes, *, permissions: int | None = None, exclusive: bool = False
    ) -> None:
        with self._open_for_change(path) as place:
            self._journal.store(path, place, data, permissions=permissions, exclusive=exclusive)

    def _replace(self, path: str, data: bytes, expected: bytes) -> None:
        with self._open_for_change(path) as place:
            self._journal.store(path, place, data, expected=hash_content(len(expected), [expected]))

    def _check_mount_sizes(self, files: Iterable[MountedFile]) -> None:
        """Accept every file: it is streamed, never loaded."""

    def _store_pieces(self, path: str, pieces: Iterator[bytes], *, permissions: int) -> None:
        def fill(target: int) -> None:
            for piece in pieces:
                posix.write_all(target, piece)

        with self._open_for_change(path) as target:
            self._journal.store(path, target, fill, permissions=permissions)

    def _append(self, path: str, data: bytes) -> None:
        for _ in range(_MAX_APPENDS - 1):
            with suppress(StaleContentError):  # saved meanwhile: append to that
                self._store_copy(path, path, None, data)
                return
        self._store_copy(path, path, None, data)

    def _copy_file(self, found: FileStat, target: str) -> None:
        self._store_copy(found.path, target, found.permissions)

    def _store_copy(
        self, source: str, path: str, permissions: int | None, more: bytes = b""
    ) -> None:
        """Create or replace a file by a copy of `source` followed by `more`, streamed."""

        def fill(target: int) -> None:
            posix.copy_all(opened, target)
            posix.write_all(target, more)

        with self._open_for_change(path) as place:
            opened, _ = self._directory.open_file(source)
            with posix.OpenDescriptor(opened):
                expected = hash_file(opened) if source == path else None
                os.lseek(opened, 0, os.SEEK_SET)
                self._journal.store(path, place, fill, permissions=permissions, expected=expected)

    def _make_directory(self, path: str) -> None:
        with self._open_for_change(path) as place:
            self._journal.make_directory(path, place)

    def _make_link(self, path: str, target: str) -> None:
        with self._open_for_change(path) as place:
            self._journal.make_link(path, place, target)

    def _remove(self, path: str) -> None:
        with self._open_for_change(path) as place:
            self._journal.remove(path, place)

    def _move(self, source: str, destination: str) -> None:
        if posix.is_hidden(source):
            self._place_tree(source, destination)
            return
        with self._open_for_change(source) as start, self._open_for_change(destination) as goal:
            self._journal.move(source, start, destination, goal)

    def _place_tree(self, hidden: str, path: str) -> None:
        """Rename a new entry, with all below it, into place."""
        with self._open_for_change(hidden) as start, self._open_for_change(path) as goal:
            self._journal.place_tree(hidden, start, path, goal)

    def _copy(self, source: str, destination: str) -> None:
        hidden = posix.join(posix.parent_of(destination), posix.temporary_name())
        try:
            super()._copy(source, hidden)
            self._place_tree(hidden, destination)
        except BaseException:
            with suppress(OSError):
                self._remove(hidden)
            raise

    def _has_directory(self, path: str) -> bool:
        return not posix.is_hidden(path) and self._directory.is_directory(path)

    def _remove_if_empty(self, path: str) -> bool:
        with self._open_for_change(path) as place:
            return posix.remove_if_empty(*place)

    def _make_directories(self, paths: Sequence[str]) -> None:
        if paths:
            self._build_tree(paths, paths[-1], lambda _: None)

    def _store_below(
        self, missing: Sequence[str], path: str, data: bytes, *, exclusive: bool
    ) -> None:
        if not self._build_tree(missing, path, lambda hidden: self._store(hidden, data)):
            self._store(path, data, exclusive=exclusive)

    def _copy_below(self, missing: Sequence[str], source: str, goal: str) -> None:
        copy = super()._copy

        def fill(hidden: str) -> None:
            copy(source, hidden)

        if not self._build_tree(missing, goal, fill):
            self._copy(source, goal)

    def _build_tree(self, missing: Sequence[str], goal: str, fill: Callable[[str], None]) -> bool:
        """Create the `missing` directories under a hidden name, then rename them into place.

        `fill` gets the hidden path of `goal`. Return False, with nothing done, if the
        directories exist by now.
        """
        while missing:
            first = missing[0]
            hidden = posix.join(posix.parent_of(first), posix.temporary_name())
            try:
                for path in missing:
                    self._make_directory(hidden + path[len(first) :])
                fill(hidden + goal[len(first) :])
                self._place_tree(hidden, first)
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

    def _open_visible(self, path: str) -> int:
        """Open a visible directory; hold `_listing_lock` so that it is not emptied."""
        if posix.is_hidden(path):
            raise posix.os_error(errno.ENOENT, path)
        try:
            return self._directory.open_directory(path)
        except OSError as error:
            raise self._directory.explain_error(error, path) from None

    @contextmanager
    def _open_for_change(self, path: str) -> Generator[tuple[int, str], None, None]:
        """Open the directory that holds `path`; with `durable`, sync its names afterwards."""
        if self._snapshots.is_unfinished:
            raise SnapshotRestoreError(
                f"A restore of {self._given!r} failed half-way and could not be rolled back:"
                " take a snapshot to try again before you continue"
            )
        self._snapshots.tracker.touch(path)
        try:
            parent, name = self._directory.open_parent(path)
            with posix.OpenDescriptor(parent):
                yield parent, name
                if self._durable:
                    posix.sync_directory(parent)
        except StaleContentError:
            raise
        except OSError as error:
            raise self._directory.explain_error(error, path) from None

    def _savepoint_storage(self) -> SavepointStorage:
        return self._journal

    def _replace_all(self, state: ReadableFilesystem, name: str) -> Sequence[str]:
        self._journal.finish_rollback()
        self._check_quota_for(State(state))
        before_replace = self._journal.save_state if self._journal else None
        return self._snapshots.replace(state, name, before_replace=before_replace)

    def _blob_id(self, path: str) -> str | None:
        return self._snapshots.blob_id(path)

    def _changed_since(self, snapshot: FilesystemSnapshot) -> list[str] | None:
        return self._snapshots.changed_since(snapshot)

    def _check_growth(self, change: tuple[int, int]) -> None:
        """Check the quota for so many more bytes and entries."""
        used = self._usage()
        self._quota.check(used[0] + change[0], used[1] + change[1])

    def _pinned_commits(self) -> set[str]:
        """Return the commits that a savepoint or a transaction needs."""
        return pinned_commits(self._directory) | _pins.names()

    def _sweep(self) -> None:
        """Remove leftovers near the root: listing a directory removes those in it."""
        remaining = _MAX_SWEPT_ENTRIES
        pending = deque([""])
        while pending and remaining > 0:
            directory = pending.popleft()
            with suppress(OSError):
                children = self._children(directory)
                remaining -= 1 + sum(map(len, children))
                pending.extend(posix.join(directory, name) for name in children.directories)

    def _remove_leftovers(self, descriptor: int, names: Sequence[str]) -> None:
        if not self._read_only:
            posix.remove_leftovers(descriptor, names)

    def _hash_if_unchanged(self, path: str, found: os.stat_result) -> str | None:
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


def _group_by_kind(_: int, entries: "list[os.DirEntry[str]]") -> Children:
    """Return the names in a directory by kind."""
    files: list[str] = []
    directories: list[str] = []
    symlinks: list[str] = []
    specials: list[str] = []
    for entry in entries:
        if entry.is_file(follow_symlinks=False):
            files.append(entry.name)
        elif entry.is_dir(follow_symlinks=False):
            directories.append(entry.name)
        elif entry.is_symlink():
            symlinks.append(entry.name)
        else:
            specials.append(entry.name)
    return Children(files, directories, symlinks, specials)


def _file_entry(entry: "os.DirEntry[str]", name: str, path: str) -> FileEntry | None:
    if entry.is_file(follow_symlinks=False):
        try:
            size = entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            return None
        return FileEntry(name, path, is_file=True, is_directory=False, size_bytes=size)
    is_directory = entry.is_dir(follow_symlinks=False)
    return FileEntry(
        name,
        path,
        is_file=False,
        is_directory=is_directory,
        size_bytes=None,
        is_symlink=entry.is_symlink(),
    )


def _birth_time(found: os.stat_result) -> datetime | None:
    born: float | None = getattr(found, "st_birthtime", None)
    return None if born is None else datetime.fromtimestamp(born, UTC)
