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
from weakref import WeakValueDictionary

from weakincentives.filesystem import (
    Change,
    ChangeReporting,
    Diff,
    DirectoryCreated,
    FileDeleted,
    Filesystem,
    FilesystemEvent,
    FileWritten,
    HostBacked,
    LinkCreated,
    Observable,
    ObservableFilesystem,
    PermissionsChanged,
    Pinnable,
    ReadableFilesystem,
    Reversible,
    Savepoint,
    Snapshotable,
    SnapshotableFilesystem,
    StateReplaced,
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
        self._found: list[FilesystemEvent] | None = None

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether the changes can still be rolled back."""

    def events(self) -> Sequence[FilesystemEvent]:
        """Return the events of all changes so far."""
        return self._found or ()

    def release(self) -> None:
        """Keep the changes."""
        with filesystem_span("commit", self.filesystem) as span:
            record_changes(span, self._found)
            self._keep()

    def rollback(self) -> None:
        """Undo the changes."""
        with filesystem_span("rollback", self.filesystem) as span:
            record_changes(span, self._found)
            self._undo()

    def freeze(self) -> None:
        """Detect changes for the last time: `events` returns the same from now on."""
        return  # events that are recorded as they happen need no detection

    def position(self) -> int:
        """Return how many events there are so far."""
        return len(self._found or ())

    def forget_since(self, position: int) -> None:
        """Drop the events since `position`: their changes have been rolled back."""
        if self._found is not None:
            del self._found[position:]

    @abstractmethod
    def _keep(self) -> None: ...

    @abstractmethod
    def _undo(self) -> None: ...


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
            return _SavepointRollback(filesystem, _SnapshotHold(filesystem, "before a change"))
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
    filesystem = handle.filesystem
    release = _hold(filesystem)  # other threads must not write in between
    try:
        if not isinstance(filesystem, Snapshotable):
            now = capture_image(filesystem)
            handle.rollback()
            image_rollback = _ImageRollback(filesystem)
            restore_image(filesystem, now)
            return image_rollback
        here = _SnapshotHold(filesystem, "within a change")
        try:
            handle.rollback()
            snapshot_rollback = _SnapshotRollback(filesystem)
            here.rollback()
            return snapshot_rollback
        finally:
            here.release()
    finally:
        release()


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


class _SnapshotHold:
    """A snapshot with the interface of a savepoint: pinned, and others cannot write."""

    def __init__(self, filesystem: SnapshotableFilesystem, tag: str) -> None:
        self._filesystem = filesystem
        self._releases = [_hold(filesystem)]
        self.is_open = True
        try:
            self.snapshot = take_snapshot(filesystem, tag)
            if isinstance(filesystem, Pinnable):
                with suppress(NotImplementedError):
                    self._releases.append(filesystem.pin(self.snapshot))
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        self.is_open = False
        self.end()

    def rollback(self) -> None:
        try:
            self.restore()
        finally:
            self.end()

    def restore(self) -> None:
        """Restore the snapshot; `end` must follow."""
        restore_snapshot(self._filesystem, self.snapshot)
        self.is_open = False

    def end(self) -> None:
        """Let others write; the snapshot may be pruned."""
        while self._releases:
            self._releases.pop()()


class _SavepointRollback(RollbackHandle):
    """Covers changes made through the filesystem, which emits their events itself."""

    def __init__(
        self, filesystem: ObservableFilesystem, savepoint: Savepoint | _SnapshotHold
    ) -> None:
        super().__init__(filesystem)
        self._savepoint = savepoint
        if isinstance(savepoint, _SnapshotHold):
            self.snapshot_ref = savepoint.snapshot.commit_ref
        self._found = []
        try:
            self._unsubscribe = filesystem.subscribe(self._found.append)
        except BaseException:
            savepoint.rollback()
            raise

    @property
    def is_open(self) -> bool:
        return self._savepoint.is_open

    def _keep(self) -> None:
        self._savepoint.release()
        self._unsubscribe()

    def _undo(self) -> None:
        self._unsubscribe()
        self._savepoint.rollback()


class _SnapshotRollback(RollbackHandle):
    """Covers all changes, however they are made."""

    bypasses_filesystem = True

    def __init__(self, filesystem: SnapshotableFilesystem) -> None:
        super().__init__(filesystem)
        self._snapshotable = filesystem
        self._reported = _reported_programs(filesystem)
        self._hold = _SnapshotHold(filesystem, "before a change")
        self._frozen = False
        self.snapshot_ref = self._hold.snapshot.commit_ref

    @property
    def is_open(self) -> bool:
        return self._hold.is_open

    def freeze(self) -> None:
        self.events()
        self._frozen = True

    def events(self) -> Sequence[FilesystemEvent]:
        if self._frozen and self._found is not None:
            return self._found
        self._invalidate()
        snapshot = self._hold.snapshot
        changes = diff_since(self._snapshotable, snapshot, renames=False)
        if changes is None:
            self._found = [StateReplaced("restore", snapshot.commit_ref)]
        else:
            self._found = diff_events(changes, self._snapshotable)
        return self._found

    def position(self) -> int:
        return 0

    def forget_since(self, position: int) -> None:
        del position  # a comparison does not find what was rolled back

    def _keep(self) -> None:
        self._invalidate()
        self._hold.release()

    def _undo(self) -> None:
        try:
            self._invalidate()
            self._hold.restore()
            self._name_replaced()
        finally:
            self._hold.end()

    def _name_replaced(self) -> None:
        """Log what was rolled back: some of it may be what a person saved meanwhile."""
        files = self._snapshotable
        if not isinstance(files, Reversible) or files.replaced is None:
            return
        paths = files.compare(self._hold.snapshot, files.replaced)
        if paths:
            _log.warning(
                "Rolled back with a command, whoever changed it meanwhile: %s. To get a path"
                " back, restore it from snapshot %s",
                ", ".join(map(display_path, paths[:_MAX_NAMED])) + _count_more(paths),
                files.replaced.snapshot_id,
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


class _ProtocolRollback(RollbackHandle):
    """Covers a filesystem with only the protocol."""

    _release: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        return self._release is not None

    def _keep(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


class _UndoLogRollback(_ProtocolRollback):
    """Covers changes made through a recording proxy."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._log = UndoLog(filesystem)
        super().__init__(filesystem, RecordingFilesystem(self._log))
        self._release = _hold(filesystem)
        self._found = self._log.events

    def _undo(self) -> None:
        try:
            self._log.rollback()
        finally:
            self._keep()


class _ImageRollback(_ProtocolRollback):
    """Covers all changes, by an image of all files."""

    bypasses_filesystem = True

    def __init__(self, filesystem: Filesystem) -> None:
        super().__init__(filesystem)
        self._release = _hold(filesystem)
        try:
            self._before = capture_image(filesystem)
        except BaseException:
            self._keep()
            raise

    def events(self) -> Sequence[FilesystemEvent]:
        if self._found is not None:
            return self._found
        return list(diff_images(self._before, capture_image(self.filesystem)))

    def freeze(self) -> None:
        self._found = list(self.events())

    def position(self) -> int:
        return 0

    def forget_since(self, position: int) -> None:
        del position  # a comparison does not find what was rolled back

    def _undo(self) -> None:
        try:
            restore_image(self.filesystem, self._before)
        finally:
            self._keep()


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
