"""Rollback of one filesystem in a transaction, and the events of what changed.

What a handle goes back to depends on what the filesystem can do: a savepoint undoes changes made
through the filesystem; a snapshot also undoes changes behind its back, by a shell for example;
before-images need nothing but the filesystem protocol.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from weakref import WeakValueDictionary

from weakincentives.filesystem import (
    Change,
    ChangeReporting,
    DirectoryCreated,
    FileDeleted,
    Filesystem,
    FilesystemEvent,
    FilesystemSnapshot,
    FileWritten,
    HostBacked,
    Kept,
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
from weakincentives.runtime.before_images import RecordingFilesystem, UndoLog
from weakincentives.runtime.telemetry.tracing import (
    filesystem_span,
    record_changes,
    restore_snapshot,
    take_snapshot,
)

_MAX_NAMED = 20  # paths in a message


@dataclass(slots=True)
class RollbackResult:
    """What a rollback met of others, who may have saved meanwhile."""

    kept: tuple[Kept, ...] = ()
    """What it left alone, and where the other versions are."""
    displaced: tuple[str, ...] = ()
    """The paths that it restored with a command, whoever changed them meanwhile; sorted."""
    before: FilesystemSnapshot | None = None
    """The state before the rollback, to get one of `displaced` back; None without any."""
    after: FilesystemSnapshot | None = None
    """The state that it restored; None without `displaced`."""
    is_reported: bool = False
    """Whether a subscriber names what was displaced to the user; otherwise it is logged."""

    def __str__(self) -> str:
        """Return which paths were displaced, and how to get one back."""
        more = len(self.displaced) - _MAX_NAMED
        names = ", ".join(map(display_path, self.displaced[:_MAX_NAMED]))
        return (
            "Rolled back with a command, whoever changed it meanwhile:"
            f" {names}{f' and {more:,} more' if more > 0 else ''}. To get a path back, restore it"
            f" from snapshot {self.before and self.before.snapshot_id}"
        )


class RollbackHandle(ABC):
    """Rolls back, or keeps, the changes of one filesystem since the handle was created.

    While it is open, other threads cannot change the files.
    """

    bypasses_filesystem: bool = False
    """Whether changes behind the filesystem's back are detected and rolled back too."""
    snapshot_ref: str | None = None
    """The snapshot taken at the beginning, if there is one."""
    outer: "RollbackHandle | None" = None
    """The handle of the enclosing transaction, if there is one."""
    outer_position: int = 0
    """The `position` of the outer handle when this one was created."""

    def __init__(self, filesystem: Filesystem) -> None:
        """Cover `filesystem` from now on."""
        self.filesystem: Filesystem = filesystem
        self.files: Filesystem = filesystem
        """What changes are made through."""
        self._found: list[FilesystemEvent] | None = None  # not known yet
        self._must_detect = True
        self._unsubscribe: Callable[[], object] = lambda: None

    def subscribe(self, filesystem: ObservableFilesystem) -> None:
        """Take the events of the filesystem, instead of detecting changes by comparison."""
        self._found, self._must_detect = [], False
        self._unsubscribe = filesystem.subscribe(self._found.append)

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether the changes can still be rolled back."""

    @abstractmethod
    def _keep(self) -> None: ...

    @abstractmethod
    def _undo(self) -> RollbackResult: ...

    def _detect(self) -> list[FilesystemEvent]:
        return self._found or []

    def events(self) -> Sequence[FilesystemEvent]:
        """Return the events of all changes so far."""
        if self._must_detect:
            self._found = self._detect()
        return self._found or ()

    def release(self) -> None:
        """Keep the changes."""
        with filesystem_span("commit", self.filesystem) as span:
            record_changes(span, self._found)
            self._keep()
            self._unsubscribe()

    def rollback(self) -> RollbackResult:
        """Undo the changes."""
        with filesystem_span("rollback", self.filesystem) as span:
            record_changes(span, self._found)
            self._unsubscribe()
            return self._undo()

    def freeze(self) -> None:
        """Detect changes for the last time: `events` returns the same from now on."""
        self.events()
        self._must_detect = False

    def position(self) -> int:
        """Return how many events there are so far."""
        return len(self._found or ())

    def forget_since(self, position: int) -> None:
        """Drop the events since `position`: their changes have been rolled back."""
        if self._found is not None and not self._must_detect:
            del self._found[position:]


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
    observed = None
    if not bypasses_filesystem and isinstance(filesystem, Observable):
        observed = filesystem
    savepoint = None if observed is None else open_savepoint(observed)
    if savepoint is not None:
        handle = _SavepointHandle(filesystem, savepoint)
    elif isinstance(filesystem, Snapshotable):
        bypasses_filesystem = observed is None
        handle = _SnapshotHandle(
            filesystem, "before a change", bypasses_filesystem=bypasses_filesystem
        )
    else:
        return _ImageHandle(filesystem, everything=bypasses_filesystem or not recorded)
    if observed is not None:
        handle.subscribe(observed)
    return handle


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
        here = (
            _SnapshotHandle(filesystem, "within a change", bypasses_filesystem=False)
            if isinstance(filesystem, Snapshotable)
            else _ImageHandle(filesystem, everything=True)
        )
        try:
            handle.rollback()
            wider = begin_rollback(filesystem, bypasses_filesystem=True)
            here.rollback()
            return wider
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


class _SavepointHandle(RollbackHandle):
    """A savepoint."""

    def __init__(self, filesystem: Filesystem, savepoint: Savepoint) -> None:
        super().__init__(filesystem)
        self._savepoint = savepoint

    @property
    def is_open(self) -> bool:
        return self._savepoint.is_open

    def _keep(self) -> None:
        self._savepoint.release()

    def _undo(self) -> RollbackResult:
        return RollbackResult(self._savepoint.rollback())


class _ImageHandle(RollbackHandle):
    """Before-images, for a filesystem with only the protocol: of what changes, or of everything."""

    def __init__(self, filesystem: Filesystem, *, everything: bool) -> None:
        super().__init__(filesystem)
        self._log = UndoLog(filesystem)
        # one of ours is not wrapped in a proxy, which would hide its capabilities
        self.bypasses_filesystem = everything or isinstance(filesystem, ReadableFilesystem)
        self._release: Callable[[], None] | None = _hold(filesystem)
        try:
            if self.bypasses_filesystem:
                self._log.record_everything()
            else:
                self.files = RecordingFilesystem(self._log)
        except BaseException:
            self._keep()
            raise

    @property
    def is_open(self) -> bool:
        return self._release is not None

    def _keep(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()

    def _undo(self) -> RollbackResult:
        try:
            self._log.rollback()
        finally:
            self._keep()
        return RollbackResult()

    def _detect(self) -> list[FilesystemEvent]:
        return _list_events(self._log.detect(), self.filesystem)


class _SnapshotHandle(RollbackHandle):
    """A snapshot, pinned."""

    def __init__(
        self, filesystem: SnapshotableFilesystem, tag: str, *, bypasses_filesystem: bool
    ) -> None:
        super().__init__(filesystem)
        self._snapshots = filesystem
        self.bypasses_filesystem = bypasses_filesystem
        self._reported = _reported_programs(filesystem)
        self._releases = [_hold(filesystem)]
        self._is_open = True
        try:
            self._snapshot = take_snapshot(filesystem, tag)
            self.snapshot_ref = self._snapshot.commit_ref
            if isinstance(filesystem, Pinnable):
                with suppress(NotImplementedError):
                    self._releases.append(filesystem.pin(self._snapshot))
        except BaseException:
            self._end()
            raise

    @property
    def is_open(self) -> bool:
        return self._is_open

    def _keep(self) -> None:
        self._invalidate()
        self._is_open = False
        self._end()

    def _undo(self) -> RollbackResult:
        try:
            self._invalidate()
            restore_snapshot(self._snapshots, self._snapshot)
            self._is_open = False
            return self._find_displaced()
        finally:
            self._end()

    def _detect(self) -> list[FilesystemEvent]:
        self._invalidate()
        changes = diff_since(self.filesystem, self._snapshot, renames=False)
        if changes is None:
            return [StateReplaced("restore", self._snapshot.commit_ref)]
        return _list_events(changes.entries, self.filesystem)

    def _end(self) -> None:
        """Let others write; the snapshot may be pruned."""
        while self._releases:
            self._releases.pop()()

    def _find_displaced(self) -> RollbackResult:
        """Return what was rolled back with a command: a person may have saved some of it."""
        files, paths = self.filesystem, ()
        before = files.replaced if isinstance(files, Reversible) else None
        if self.bypasses_filesystem and isinstance(files, Reversible) and before is not None:
            paths = tuple(files.compare(self._snapshot, before))
        return RollbackResult((), paths, before, self._snapshot) if paths else RollbackResult()

    def _invalidate(self) -> None:
        if not self.bypasses_filesystem or _reported_programs(self.filesystem) != self._reported:
            return  # files were changed by a sandbox, and the filesystem knows where to look
        if isinstance(self.filesystem, HostBacked):
            self.filesystem.invalidate()


def _reported_programs(filesystem: Filesystem) -> int:
    return filesystem.reported_programs if isinstance(filesystem, ChangeReporting) else 0


def _list_events(changes: Sequence[Change], filesystem: Filesystem) -> list[FilesystemEvent]:
    return [event for change in changes for event in _change_events(change, filesystem)]


def unwrap(filesystem: Filesystem) -> Filesystem:
    """Return the filesystem inside a recording proxy; any other filesystem as it is given."""
    return filesystem.original if isinstance(filesystem, RecordingFilesystem) else filesystem


def _change_events(change: Change, filesystem: Filesystem) -> Iterator[FilesystemEvent]:
    """Yield the events that the same change would emit if made through the filesystem."""
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
            encoding=_detect_encoding(filesystem, after.path),
        )


def _detect_encoding(filesystem: Filesystem, path: str) -> str | None:
    try:
        head = filesystem.read_bytes(path, limit=SNIFF_LENGTH).content
    except (OSError, ValueError):
        return None  # only a hint: it must not fail the call
    return "binary" if is_binary(head) else "utf-8"
