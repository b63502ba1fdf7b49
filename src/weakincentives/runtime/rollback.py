"""Rollback of one filesystem in a transaction, and the events of what changed.

What a handle goes back to depends on what the filesystem can do: a savepoint undoes changes made
through the filesystem; a snapshot also undoes changes behind its back, by a shell for example;
before-images need nothing but the filesystem protocol.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

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
    LineIndexed,
    LinkCreated,
    ObservableFilesystem,
    PermissionsChanged,
    Pinnable,
    Reversible,
    Savepoint,
    Snapshotable,
    SnapshotableFilesystem,
    StateReplaced,
    diff_since,
)
from weakincentives.filesystem.base import SNIFF_LENGTH, is_binary, open_savepoint
from weakincentives.posix import display_paths
from weakincentives.runtime.before_images import RecordingFilesystem, UndoLog, hold
from weakincentives.runtime.telemetry.tracing import (
    filesystem_span,
    record_changes,
    restore_snapshot,
    take_snapshot,
)


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
        return (
            "Rolled back with a command, whoever changed it meanwhile:"
            f" {display_paths(self.displaced)}. To get a path back, restore it from snapshot"
            f" {self.before and self.before.snapshot_id}"
        )


class RollbackHandle:
    """Rolls back, or keeps, the changes of one filesystem since the handle was created.

    While it is open, other threads cannot change the files.
    """

    def __init__(
        self, filesystem: Filesystem, point: "Savepoint | UndoLog | _SnapshotPoint"
    ) -> None:
        """Go back to `point`, which was just made."""
        self.filesystem: Filesystem = filesystem
        self.files: Filesystem = filesystem
        """What changes are made through."""
        self._point = point
        if isinstance(point, UndoLog) and not point.has_everything:
            self.files = RecordingFilesystem(point)
        self.emitted: list[FilesystemEvent] | None = None
        """The events that the filesystem has emitted; None if changes are found by comparison."""
        self._start = 0  # of those since this handle was created
        self._unsubscribe: Callable[[], object] = lambda: None

    def subscribe(
        self, filesystem: ObservableFilesystem, outer: "RollbackHandle | None" = None
    ) -> None:
        """Take the events of the filesystem, or of the handle of the enclosing transaction."""
        if outer is not None and outer.emitted is not None:
            self.emitted, self._start = outer.emitted, len(outer.emitted)
        else:
            self.emitted = []
            self._unsubscribe = filesystem.subscribe(self.emitted.append)

    @property
    def is_open(self) -> bool:
        """Whether the changes can still be rolled back."""
        return self._point.is_open

    @property
    def bypasses_filesystem(self) -> bool:
        """Whether changes behind the filesystem's back are detected and rolled back too."""
        return not isinstance(self._point, Savepoint) and self._point.has_everything

    @property
    def snapshot_ref(self) -> str | None:
        """The snapshot taken at the beginning, if there is one."""
        point = self._point
        return point.snapshot.commit_ref if isinstance(point, _SnapshotPoint) else None

    def events(self) -> Sequence[FilesystemEvent]:
        """Return the events of all changes so far."""
        return list(self._detect()) if self.emitted is None else self.emitted[self._start :]

    def _detect(self) -> Iterator[FilesystemEvent]:
        assert not isinstance(self._point, Savepoint)  # its filesystem emits events
        changes = self._point.detect()
        if changes is None:
            yield StateReplaced("restore", self.snapshot_ref or "")
        for each in changes or ():
            yield from _change_events(each, self.filesystem)

    def release(self) -> None:
        """Keep the changes."""
        with filesystem_span("commit", self.filesystem) as span:
            record_changes(span, self.emitted and self.events())
            self._point.release()
            self._unsubscribe()

    def rollback(self) -> RollbackResult:
        """Undo the changes, and drop their events."""
        with filesystem_span("rollback", self.filesystem) as span:
            record_changes(span, self.emitted and self.events())
            self._unsubscribe()
            found = self._point.rollback()
        if self.emitted is not None:
            del self.emitted[self._start :]
        return found if isinstance(found, RollbackResult) else RollbackResult(found)

    def freeze(self) -> None:
        """Detect changes for the last time: `events` returns the same from now on."""
        if self.emitted is None:
            self.emitted = list(self._detect())


def _is_observable(filesystem: Filesystem) -> TypeGuard[ObservableFilesystem]:
    """Return whether it emits events; `isinstance` costs a twelfth of a call here."""
    return callable(getattr(filesystem, "subscribe", None))


def begin_rollback(
    filesystem: Filesystem,
    *,
    bypasses_filesystem: bool,
    recorded: bool = False,
    outer: RollbackHandle | None = None,
) -> RollbackHandle:
    """Return a handle to roll back changes made from now on.

    Args:
        filesystem: Where files will change.
        bypasses_filesystem: Whether files change behind the filesystem's back.
        recorded: Whether changes are made through the handle's `files`. Then a filesystem with
            nothing but the protocol needs before-images only of what changes.
        outer: The handle of the enclosing transaction, if there is one.

    Raises:
        SnapshotError: No snapshot could be taken.
        OSError: The files cannot be read to be recorded.
    """
    observed = None
    if not bypasses_filesystem and _is_observable(filesystem):
        observed = filesystem
    point = None if observed is None else open_savepoint(observed)
    if point is None and isinstance(filesystem, Snapshotable):
        point = _SnapshotPoint(filesystem, everything=observed is None)
    if point is None:
        everything = bypasses_filesystem or not recorded
        # one with more than the protocol is not wrapped in a proxy, which would hide that
        everything = everything or isinstance(filesystem, LineIndexed)
        return RollbackHandle(filesystem, UndoLog(filesystem, everything=everything))
    handle = RollbackHandle(filesystem, point)
    if observed is not None:
        handle.subscribe(observed, outer)
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
    release = hold(filesystem)  # other threads must not write in between
    try:
        here = (
            _SnapshotPoint(filesystem, everything=False)
            if isinstance(filesystem, Snapshotable)
            else UndoLog(filesystem, everything=True)
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


class _SnapshotPoint:
    """A pinned snapshot to go back to."""

    def __init__(self, filesystem: SnapshotableFilesystem, *, everything: bool) -> None:
        """Take it; `everything` includes what changes behind the filesystem's back."""
        self._filesystem = filesystem
        self.has_everything: bool = everything
        self._reported = _reported_programs(filesystem)
        self._releases = [hold(filesystem)]
        self.is_open: bool = True
        try:
            self.snapshot: FilesystemSnapshot = take_snapshot(filesystem, "before a change")
            if isinstance(filesystem, Pinnable):
                self._releases.append(filesystem.pin(self.snapshot))
        except BaseException:
            self._end()
            raise

    def release(self) -> None:
        """Keep the changes."""
        self._invalidate()
        self.is_open = False
        self._end()

    def rollback(self) -> RollbackResult:
        """Undo the changes; return those of a command: a person may have saved some of them."""
        files, paths = self._filesystem, ()
        try:
            self._invalidate()
            restore_snapshot(files, self.snapshot)
            self.is_open = False
            before = files.replaced if isinstance(files, Reversible) else None
            if self.has_everything and isinstance(files, Reversible) and before is not None:
                paths = tuple(files.compare(self.snapshot, before))
            return RollbackResult((), paths, before, self.snapshot) if paths else RollbackResult()
        finally:
            self._end()

    def detect(self) -> Sequence[Change] | None:
        """Return the changes so far; None if the states cannot be compared."""
        self._invalidate()
        found = diff_since(self._filesystem, self.snapshot, renames=False)
        return None if found is None else found.entries

    def _end(self) -> None:
        """Let others write; the snapshot may be pruned."""
        while self._releases:
            self._releases.pop()()

    def _invalidate(self) -> None:
        if not self.has_everything or _reported_programs(self._filesystem) != self._reported:
            return  # files were changed by a sandbox, and the filesystem knows where to look
        if isinstance(self._filesystem, HostBacked):
            self._filesystem.invalidate()


def _reported_programs(filesystem: Filesystem) -> int:
    return filesystem.reported_programs if isinstance(filesystem, ChangeReporting) else 0


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
