"""How the changes of one filesystem are taken back, and what they were.

A filesystem that has savepoints undoes what was done through it. What was done past
it, by a shell, takes a snapshot, and a comparison tells what it was. A filesystem that has
neither is put back by the methods of the protocol, from what was kept of it.
"""

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Protocol

from weakincentives.filesystem import (
    Change,
    Diff,
    DirectoryCreated,
    FileDeleted,
    Filesystem,
    FilesystemEvent,
    FilesystemSnapshot,
    FileWritten,
    HostBacked,
    LinkCreated,
    Lockable,
    Observable,
    ObservableFilesystem,
    Pinnable,
    ReadableFilesystem,
    Snapshotable,
    SnapshotableFilesystem,
    StateReplaced,
    diff_since,
)
from weakincentives.filesystem.protocol import open_savepoint
from weakincentives.filesystem.savepoints import WriteLock
from weakincentives.filesystem.text import SNIFFED, is_binary
from weakincentives.runtime.before_images import (
    RecordingFilesystem,
    UndoLog,
    capture_image,
    diff_images,
    restore_image,
    unwrap,
)
from weakincentives.runtime.telemetry.spans import (
    filesystem_span,
    record_changes,
    restore_snapshot,
    take_snapshot,
)


class RollbackHandle(Protocol):
    """One filesystem in a transaction."""

    @property
    def filesystem(self) -> Filesystem:
        """The filesystem."""
        ...

    @property
    def files(self) -> Filesystem:
        """What the filesystem is to be changed through."""
        ...

    @property
    def snapshot_ref(self) -> str | None:
        """The snapshot that was taken at the beginning, if one was."""
        ...

    @property
    def bypasses_filesystem(self) -> bool:
        """Whether changes past the filesystem are found and taken back too."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether what has changed can still be taken back."""
        ...

    def events(self) -> Sequence[FilesystemEvent]:
        """Return what has changed since the beginning."""
        ...

    def freeze(self) -> None:
        """Find out what has changed for the last time: `events` looks no more."""
        ...

    def release(self) -> None:
        """Keep what has changed."""
        ...

    def rollback(self) -> None:
        """Take back what has changed."""
        ...

    def position(self) -> int:
        """Return how much has been told so far."""
        ...

    def forget_since(self, position: int) -> None:
        """Forget what was told since; it has been taken back."""
        ...


def begin_rollback(
    filesystem: Filesystem, *, bypasses_filesystem: bool, recorded: bool = False
) -> RollbackHandle:
    """Begin to keep what is needed to take back changes.

    Args:
        filesystem: Where files will change.
        bypasses_filesystem: They are changed past its methods.
        recorded: They are changed through `files` of what is returned, so that of a filesystem
            that has nothing but the protocol only what is changed has to be kept.

    Raises:
        SnapshotError: No snapshot could be taken.
        OSError: The files cannot be kept, for they cannot be read.
    """
    if isinstance(filesystem, Observable) and not bypasses_filesystem:
        savepoint = open_savepoint(filesystem)
        if savepoint is not None:
            return _ObservedUndo(filesystem, savepoint)
        if isinstance(filesystem, Snapshotable):
            return _ObservedUndo(filesystem, _SnapshotPoint(filesystem))
    if isinstance(filesystem, Snapshotable):
        return _SnapshotUndo(filesystem)
    # one of ours goes without the recorder, behind which its capabilities could not be seen
    if bypasses_filesystem or not recorded or isinstance(filesystem, ReadableFilesystem):
        return _CopyUndo(filesystem)
    return _RecordedUndo(filesystem)


def begin_snapshot_rollback(undo: RollbackHandle) -> RollbackHandle:
    """Return an undo for changes that anybody makes, to the point where `undo` began.

    What has been changed since is taken back, kept as a snapshot is, and done again.

    Raises:
        SnapshotError: Something could not be kept; everything is as it was when it began.
        OSError: The same, where the files have to be read to be kept.
    """
    turn = _Turn(undo.filesystem)  # in between, too, nobody else changes anything
    try:
        return _begin_again(undo, turn)
    finally:
        turn.end()


def _begin_again(undo: RollbackHandle, turn: "_Turn") -> RollbackHandle:
    filesystem = undo.filesystem
    if not isinstance(filesystem, Snapshotable):
        now = capture_image(filesystem)
        undo.rollback()
        begun = _CopyUndo(filesystem)
        restore_image(filesystem, now)
        return begun
    here = turn.begin_with(filesystem, "within a change")
    undo.rollback()
    begun = _SnapshotUndo(filesystem)
    restore_snapshot(filesystem, here)
    return begun


class _Point(Protocol):
    """A state to go back to."""

    @property
    def is_open(self) -> bool: ...

    def release(self) -> None: ...

    def rollback(self) -> None: ...


class _SnapshotPoint:
    """A snapshot in the place of a savepoint."""

    def __init__(self, filesystem: SnapshotableFilesystem) -> None:
        self._filesystem = filesystem
        self._turn = _Turn(_as_filesystem(filesystem))
        self._snapshot = self._turn.begin_with(filesystem, "before a change")
        self.ref = self._snapshot.commit_ref
        self.is_open = True

    def release(self) -> None:
        self.is_open = False
        self._turn.end()

    def rollback(self) -> None:
        try:
            restore_snapshot(self._filesystem, self._snapshot)
            self.is_open = False
        finally:
            self._turn.end()


class _ObservedUndo:
    """Changes through the filesystem's own methods, which tells them itself."""

    bypasses_filesystem = False

    def __init__(self, filesystem: ObservableFilesystem, point: _Point) -> None:
        self.filesystem = self.files = _as_filesystem(filesystem)
        self.snapshot_ref = point.ref if isinstance(point, _SnapshotPoint) else None
        self._point = point
        self._events: list[FilesystemEvent] = []
        try:
            self._stop = filesystem.subscribe(self._events.append)
        except BaseException:
            point.rollback()
            raise

    @property
    def is_open(self) -> bool:
        return self._point.is_open

    def events(self) -> Sequence[FilesystemEvent]:
        return self._events

    def freeze(self) -> None:
        pass  # they are told as they happen

    def release(self) -> None:
        with filesystem_span("commit", self.filesystem) as span:
            record_changes(span, self._events)
            self._point.release()
            self._stop()

    def rollback(self) -> None:
        with filesystem_span("rollback", self.filesystem) as span:
            record_changes(span, self._events)
            self._stop()
            self._point.rollback()

    def position(self) -> int:
        return len(self._events)

    def forget_since(self, position: int) -> None:
        del self._events[position:]


class _SnapshotUndo:
    """Changes that anybody makes, in whatever way."""

    bypasses_filesystem = True

    def __init__(self, filesystem: SnapshotableFilesystem) -> None:
        self.filesystem = self.files = _as_filesystem(filesystem)
        self._snapshotable = filesystem
        self._turn = _Turn(self.filesystem)
        self._snapshot = self._turn.begin_with(filesystem, "before a change")
        self._found: Sequence[FilesystemEvent] | None = None
        self._frozen = False
        self.snapshot_ref: str | None = self._snapshot.commit_ref
        self.is_open = True

    def freeze(self) -> None:
        self.events()
        self._frozen = True

    def events(self) -> Sequence[FilesystemEvent]:
        if self._frozen and self._found is not None:
            return self._found
        self._look_at_everything()
        changes = diff_since(self._snapshotable, self._snapshot, renames=False)
        if changes is None:
            self._found = [StateReplaced("restore", self._snapshot.commit_ref)]
        else:
            self._found = diff_events(changes, self._snapshotable)
        return self._found

    def release(self) -> None:
        with filesystem_span("commit", self.filesystem) as span:
            record_changes(span, self._found)
            self._look_at_everything()
            self.is_open = False
            self._turn.end()

    def rollback(self) -> None:
        with filesystem_span("rollback", self.filesystem):
            try:
                self._look_at_everything()
                restore_snapshot(self._snapshotable, self._snapshot)
            finally:
                self._turn.end()

    def position(self) -> int:
        return 0

    def forget_since(self, position: int) -> None:
        pass  # what was taken back is not found

    def _look_at_everything(self) -> None:
        if isinstance(self._snapshotable, HostBacked):
            self._snapshotable.invalidate()


class _Turns:
    """Whose turn it is to change filesystems that have no lock of their own."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: dict[int, tuple[WriteLock, list[object]]] = {}

    def take(self, filesystem: Filesystem) -> None:
        key = id(unwrap(filesystem))
        with self._lock:
            lock, users = self._waiting.setdefault(key, (WriteLock(), []))
            users.append(filesystem)
        try:
            lock.acquire()
        except BaseException:
            self._leave(key)
            raise

    def end(self, filesystem: Filesystem) -> None:
        key = id(unwrap(filesystem))
        self._waiting[key][0].release()
        self._leave(key)

    def _leave(self, key: int) -> None:
        with self._lock:
            users = self._waiting[key][1]
            users.pop()
            if not users:
                del self._waiting[key]


_turns = _Turns()


class _Turn:
    """One's turn to change a filesystem: other threads wait until it ends."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._end: Callable[[], None] | None = None
        self._unpin: Callable[[], None] | None = None
        if isinstance(filesystem, Lockable):
            self._end = filesystem.hold()
        else:
            _turns.take(filesystem)
            self._end = lambda: _turns.end(filesystem)

    def begin_with(self, filesystem: SnapshotableFilesystem, tag: str) -> FilesystemSnapshot:
        """Return a snapshot that is not forgotten before the end; if it fails, the turn ends."""
        try:
            snapshot = take_snapshot(filesystem, tag)
            if isinstance(filesystem, Pinnable):
                self._unpin = filesystem.pin(snapshot)
            return snapshot
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Let others have it; it ends only once."""
        end, self._end = self._end, None
        unpin, self._unpin = self._unpin, None
        if unpin is not None:
            unpin()
        if end is not None:
            end()


class _RecordedUndo:
    """Changes through a recorder, of a filesystem that has nothing but the protocol."""

    bypasses_filesystem = False
    snapshot_ref = None

    def __init__(self, filesystem: Filesystem) -> None:
        _turns.take(filesystem)
        self.filesystem = filesystem
        self.is_open = True
        self._recorder = UndoLog(filesystem)
        self.files: Filesystem = RecordingFilesystem(self._recorder)

    def events(self) -> Sequence[FilesystemEvent]:
        return self._recorder.events

    def freeze(self) -> None:
        pass  # they are told as they happen

    def release(self) -> None:
        with filesystem_span("commit", self.filesystem) as span:
            record_changes(span, self._recorder.events)
            self._end()

    def rollback(self) -> None:
        with filesystem_span("rollback", self.filesystem) as span:
            record_changes(span, self._recorder.events)
            try:
                self._recorder.rollback()
            finally:
                self._end()

    def position(self) -> int:
        return len(self._recorder.events)

    def forget_since(self, position: int) -> None:
        del self._recorder.events[position:]

    def _end(self) -> None:
        if self.is_open:
            self.is_open = False
            _turns.end(self.filesystem)


class _CopyUndo:
    """Changes that anybody makes to a filesystem that has nothing but the protocol."""

    bypasses_filesystem = True
    snapshot_ref = None

    def __init__(self, filesystem: Filesystem) -> None:
        _turns.take(filesystem)
        try:
            self._before = capture_image(filesystem)
        except BaseException:
            _turns.end(filesystem)
            raise
        self.filesystem = self.files = filesystem
        self.is_open = True
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

    def position(self) -> int:
        return 0

    def forget_since(self, position: int) -> None:
        pass  # what was taken back is not found

    def _end(self) -> None:
        if self.is_open:
            self.is_open = False
            _turns.end(self.filesystem)


def _as_filesystem(filesystem: Filesystem) -> Filesystem:
    return filesystem


def diff_events(changes: Diff, filesystem: Filesystem | None = None) -> list[FilesystemEvent]:
    """Return what would have been told if the changes had been made through the filesystem.

    Where the files are can be given, to tell which of them are text.
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
            encoding=None if filesystem is None else _encoding(filesystem, after.path),
        )


def _encoding(filesystem: Filesystem, path: str) -> str | None:
    try:
        head = filesystem.read_bytes(path, limit=SNIFFED).content
    except (OSError, ValueError):
        return None  # a hint, which must not make anything fail
    return "binary" if is_binary(head) else "utf-8"
