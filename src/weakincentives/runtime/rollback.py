"""Rollback of one filesystem in a transaction, and the events of what changed.

There are four strategies, by what the filesystem can do: a savepoint undoes changes made
through the filesystem; a snapshot also undoes changes behind its back, by a shell for example;
an undo log or a full before-image needs nothing but the filesystem protocol.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Lock
from typing import Protocol
from weakref import WeakValueDictionary

from weakincentives.filesystem import (
    Change,
    ChangeReporting,
    Diff,
    DirectoryCreated,
    FileDeleted,
    Filesystem,
    FilesystemEvent,
    FilesystemSnapshot,
    FileWritten,
    HostBacked,
    LinkCreated,
    Observable,
    ObservableFilesystem,
    PermissionsChanged,
    Pinnable,
    ReadableFilesystem,
    Reversible,
    Snapshotable,
    SnapshotableFilesystem,
    StateReplaced,
    Viewable,
    diff,
    diff_since,
)
from weakincentives.filesystem.base import (
    SNIFF_LENGTH,
    WriteLock,
    hold_lock,
    is_binary,
    open_savepoint,
)
from weakincentives.posix import display_path
from weakincentives.runtime.before_images import (
    RecordingFilesystem,
    UndoLog,
    capture_image,
    diff_images,
    restore_image,
    unwrap,
)
from weakincentives.runtime.telemetry.tracing import (
    filesystem_span,
    record_changes,
    restore_snapshot,
    take_snapshot,
)

_MAX_NAMED = 20  # paths in a message
_log = logging.getLogger(__name__)


class RollbackHandle(ABC):
    """Rolls back, or keeps, the changes of one filesystem since the handle was created."""

    bypasses_filesystem: bool = False
    """Whether changes behind the filesystem's back are detected and rolled back too."""
    snapshot_ref: str | None = None
    """The snapshot taken at the beginning, if there is one."""

    def __init__(self, filesystem: Filesystem, files: Filesystem | None = None) -> None:
        """Cover `filesystem`; changes are made through `files`, by default the same."""
        self.filesystem: Filesystem = filesystem
        self.files: Filesystem = filesystem if files is None else files
        self.outer: RollbackHandle | None = None
        """The handle of the enclosing transaction, if there is one."""
        self.outer_position: int = 0
        """The `position` of the outer handle when this one was created."""
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether the changes can still be rolled back."""
        return self._is_open

    @abstractmethod
    def events(self) -> Sequence[FilesystemEvent]:
        """Return the events of all changes so far."""

    @abstractmethod
    def release(self) -> None:
        """Keep the changes."""

    @abstractmethod
    def rollback(self) -> None:
        """Undo the changes."""

    def freeze(self) -> None:
        """Detect changes for the last time: `events` returns the same from now on."""
        return  # events that are recorded as they happen need no detection

    def position(self) -> int:
        """Return how many events there are so far."""
        return 0

    def forget_since(self, position: int) -> None:
        """Drop the events since `position`: their changes have been rolled back."""
        del position  # strategies that compare states do not find what was rolled back


def begin_rollback(
    filesystem: Filesystem, *, bypasses_filesystem: bool, recorded: bool = False
) -> RollbackHandle:
    """Return a handle to roll back changes made from now on.

    Args:
        filesystem: Where files will change.
        bypasses_filesystem: Whether files change behind the filesystem's back.
        recorded: Whether changes are made through the handle's `files`. Then a filesystem with
            nothing but the protocol needs before-images only of what changes.

    Raises:
        SnapshotError: No snapshot could be taken.
        OSError: The files cannot be read to be recorded.
    """
    if isinstance(filesystem, Observable) and not bypasses_filesystem:
        savepoint = open_savepoint(filesystem)
        if savepoint is not None:
            return _SavepointRollback(filesystem, savepoint)
        if isinstance(filesystem, Snapshotable):
            return _SavepointRollback(filesystem, _SnapshotSavepoint(filesystem))
    if isinstance(filesystem, Snapshotable):
        return _SnapshotRollback(filesystem)
    # one of ours is not wrapped in a proxy, which would hide its capabilities
    if bypasses_filesystem or not recorded or isinstance(filesystem, ReadableFilesystem):
        return _ImageRollback(filesystem)
    return _UndoLogRollback(filesystem)


def begin_snapshot_rollback(handle: RollbackHandle) -> RollbackHandle:
    """Return a handle that also covers changes behind the filesystem's back.

    It rolls back to the point where `handle` began: the changes since are rolled back, the
    state is recorded, and then the changes are restored.

    Raises:
        SnapshotError: Something could not be recorded; all changes are rolled back.
        OSError: The same, if the files have to be read to be recorded.
    """
    hold = _WriteHold(handle.filesystem)  # other threads must not write in between
    try:
        return _begin_again(handle, hold)
    finally:
        hold.end()


def _begin_again(handle: RollbackHandle, hold: "_WriteHold") -> RollbackHandle:
    filesystem = handle.filesystem
    if not isinstance(filesystem, Snapshotable):
        now = capture_image(filesystem)
        handle.rollback()
        image_rollback = _ImageRollback(filesystem)
        restore_image(filesystem, now)
        return image_rollback
    here = hold.take_snapshot(filesystem, "within a change")
    handle.rollback()
    snapshot_rollback = _SnapshotRollback(filesystem)
    restore_snapshot(filesystem, here)
    return snapshot_rollback


class _SavepointLike(Protocol):
    """What a rollback needs of a savepoint."""

    @property
    def is_open(self) -> bool: ...

    def release(self) -> None: ...

    def rollback(self) -> None: ...


class _SnapshotSavepoint:
    """A snapshot with the interface of a savepoint."""

    def __init__(self, filesystem: SnapshotableFilesystem) -> None:
        self._filesystem = filesystem
        self._hold = _WriteHold(filesystem)
        self._snapshot = self._hold.take_snapshot(filesystem, "before a change")
        self.ref = self._snapshot.commit_ref
        self.is_open = True

    def release(self) -> None:
        self.is_open = False
        self._hold.end()

    def rollback(self) -> None:
        try:
            restore_snapshot(self._filesystem, self._snapshot)
            self.is_open = False
        finally:
            self._hold.end()


class _SavepointRollback(RollbackHandle):
    """Covers changes made through the filesystem, which emits their events itself."""

    def __init__(self, filesystem: ObservableFilesystem, savepoint: _SavepointLike) -> None:
        super().__init__(filesystem)
        self.snapshot_ref = savepoint.ref if isinstance(savepoint, _SnapshotSavepoint) else None
        self._savepoint = savepoint
        self._events: list[FilesystemEvent] = []
        try:
            self._unsubscribe = filesystem.subscribe(self._events.append)
        except BaseException:
            savepoint.rollback()
            raise

    @property
    def is_open(self) -> bool:
        return self._savepoint.is_open

    def events(self) -> Sequence[FilesystemEvent]:
        return self._events

    def release(self) -> None:
        with filesystem_span("commit", self.filesystem) as span:
            record_changes(span, self._events)
            self._savepoint.release()
            self._unsubscribe()

    def rollback(self) -> None:
        with filesystem_span("rollback", self.filesystem) as span:
            record_changes(span, self._events)
            self._unsubscribe()
            self._savepoint.rollback()

    def position(self) -> int:
        return len(self._events)

    def forget_since(self, position: int) -> None:
        del self._events[position:]


class _SnapshotRollback(RollbackHandle):
    """Covers all changes, however they are made."""

    bypasses_filesystem = True

    def __init__(self, filesystem: SnapshotableFilesystem) -> None:
        super().__init__(filesystem)
        self._snapshotable = filesystem
        self._reported = _reported_programs(filesystem)
        self._hold = _WriteHold(filesystem)
        self._snapshot = self._hold.take_snapshot(filesystem, "before a change")
        self._found: Sequence[FilesystemEvent] | None = None
        self._frozen = False
        self.snapshot_ref = self._snapshot.commit_ref

    def freeze(self) -> None:
        self.events()
        self._frozen = True

    def events(self) -> Sequence[FilesystemEvent]:
        if self._frozen and self._found is not None:
            return self._found
        self._invalidate()
        changes = diff_since(self._snapshotable, self._snapshot, renames=False)
        if changes is None:
            self._found = [StateReplaced("restore", self._snapshot.commit_ref)]
        else:
            self._found = diff_events(changes, self._snapshotable)
        return self._found

    def release(self) -> None:
        with filesystem_span("commit", self.filesystem) as span:
            record_changes(span, self._found)
            self._invalidate()
            self._is_open = False
            self._hold.end()

    def rollback(self) -> None:
        with filesystem_span("rollback", self.filesystem):
            try:
                self._invalidate()
                restore_snapshot(self._snapshotable, self._snapshot)
                self._name_replaced()
            finally:
                self._hold.end()

    def _name_replaced(self) -> None:
        """Log what was rolled back: some of it may be what a person saved meanwhile."""
        files = self._snapshotable
        replaced = files.replaced if isinstance(files, Reversible) else None
        if replaced is None or not isinstance(files, Viewable):
            return
        then, now = files.view(replaced), files.view(self._snapshot)
        if isinstance(then, ReadableFilesystem) and isinstance(now, ReadableFilesystem):
            paths = [each.path for each in diff(now, then, renames=False).entries]
            if paths:
                _log.warning(
                    "Rolled back with a command, whoever changed it meanwhile: %s. To get a path"
                    " back, restore it from snapshot %s",
                    ", ".join(map(display_path, paths[:_MAX_NAMED])) + _count_more(paths),
                    replaced.snapshot_id,
                )

    def _invalidate(self) -> None:
        if _reported_programs(self._snapshotable) != self._reported:
            return  # files were changed by a sandbox, and the filesystem knows where to look
        if isinstance(self._snapshotable, HostBacked):
            self._snapshotable.invalidate()


def _count_more(paths: Sequence[str]) -> str:
    more = len(paths) - _MAX_NAMED
    return f" and {more:,} more" if more > 0 else ""


def _reported_programs(filesystem: SnapshotableFilesystem) -> int:
    return filesystem.reported_programs if isinstance(filesystem, ChangeReporting) else 0


_locks: WeakValueDictionary[int, WriteLock] = WeakValueDictionary()
_locks_mutex = Lock()


def _hold(filesystem: Filesystem) -> Callable[[], None]:
    """Keep other threads from changes; return the function that ends it."""
    release = hold_lock(filesystem)
    if release is not None:
        return release
    with _locks_mutex:  # it has no lock of its own; ours lives as long as a hold
        lock = _locks.setdefault(id(unwrap(filesystem)), WriteLock())
    return lock.hold()


class _WriteHold:
    """The write lock of a filesystem, held until `end`, with a pinned snapshot."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._unpin: Callable[[], None] | None = None
        self._release: Callable[[], None] | None = _hold(filesystem)

    def take_snapshot(self, filesystem: SnapshotableFilesystem, tag: str) -> FilesystemSnapshot:
        """Return a snapshot that is not pruned before `end`; if it fails, end the hold."""
        try:
            snapshot = take_snapshot(filesystem, tag)
            if isinstance(filesystem, Pinnable):
                with suppress(NotImplementedError):
                    self._unpin = filesystem.pin(snapshot)
            return snapshot
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Release the lock; idempotent."""
        release, self._release = self._release, None
        unpin, self._unpin = self._unpin, None
        if unpin is not None:
            unpin()
        if release is not None:
            release()


class _UndoLogRollback(RollbackHandle):
    """Covers changes made through a recording proxy of a filesystem with only the protocol."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._hold = _hold(filesystem)
        self._log = UndoLog(filesystem)
        super().__init__(filesystem, RecordingFilesystem(self._log))

    def events(self) -> Sequence[FilesystemEvent]:
        return self._log.events

    def release(self) -> None:
        with filesystem_span("commit", self.filesystem) as span:
            record_changes(span, self._log.events)
            self._end()

    def rollback(self) -> None:
        with filesystem_span("rollback", self.filesystem) as span:
            record_changes(span, self._log.events)
            try:
                self._log.rollback()
            finally:
                self._end()

    def position(self) -> int:
        return len(self._log.events)

    def forget_since(self, position: int) -> None:
        del self._log.events[position:]

    def _end(self) -> None:
        if self._is_open:
            self._is_open = False
            self._hold()


class _ImageRollback(RollbackHandle):
    """Covers all changes of a filesystem with only the protocol, by an image of all its files."""

    bypasses_filesystem = True

    def __init__(self, filesystem: Filesystem) -> None:
        super().__init__(filesystem)
        self._hold = _hold(filesystem)
        try:
            self._before = capture_image(filesystem)
        except BaseException:
            self._hold()
            raise
        self._found: Sequence[FilesystemEvent] | None = None

    def events(self) -> Sequence[FilesystemEvent]:
        if self._found is not None:
            return self._found
        return list(diff_images(self._before, capture_image(self.filesystem)))

    def freeze(self) -> None:
        self._found = self.events()

    def release(self) -> None:
        with filesystem_span("commit", self.filesystem) as span:
            record_changes(span, self._found)
            self._end()

    def rollback(self) -> None:
        with filesystem_span("rollback", self.filesystem):
            try:
                restore_image(self.filesystem, self._before)
            finally:
                self._end()

    def _end(self) -> None:
        if self._is_open:
            self._is_open = False
            self._hold()


def diff_events(changes: Diff, filesystem: Filesystem | None = None) -> list[FilesystemEvent]:
    """Return the events that the same changes would emit if made through the filesystem.

    If `filesystem` is given, files are read to tell text from binary.
    """
    return [event for change in changes.entries for event in _change_events(change, filesystem)]


def _change_events(change: Change, filesystem: Filesystem | None) -> Iterator[FilesystemEvent]:
    before, after = change.before, change.after
    if before is not None and (after is None or before.kind != after.kind):
        size = before.size_bytes if before.is_file else None
        yield FileDeleted(before.path, before.kind, before.content_hash, size)
        before = None
    if after is None:
        return
    if after.is_directory:
        if before is None:
            yield DirectoryCreated(after.path)
        elif before.permissions != after.permissions:
            yield PermissionsChanged(after.path, before.permissions, after.permissions)
    elif after.link_target is not None:
        yield LinkCreated(after.path, after.link_target)
    elif after.is_file:
        yield FileWritten(
            after.path,
            after.size_bytes,
            created=before is None,
            before_hash=None if before is None else before.content_hash,
            after_hash=after.content_hash,
            before_size=None if before is None else before.size_bytes,
            after_size=after.size_bytes,
            encoding=None if filesystem is None else _detect_encoding(filesystem, after.path),
        )


def _detect_encoding(filesystem: Filesystem, path: str) -> str | None:
    try:
        head = filesystem.read_bytes(path, limit=SNIFF_LENGTH).content
    except (OSError, ValueError):
        return None  # only a hint: it must not fail the call
    return "binary" if is_binary(head) else "utf-8"
