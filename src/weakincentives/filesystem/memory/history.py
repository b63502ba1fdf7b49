"""The snapshots of a filesystem in memory: each state under the id of its snapshot."""

from collections.abc import Callable, Sequence
from datetime import datetime
from threading import Lock
from uuid import UUID

from weakincentives.errors import SnapshotError, SnapshotRestoreError
from weakincentives.filesystem.memory.nodes import DirectoryNode
from weakincentives.filesystem.retention import Pins, check_snapshot, select_old, snapshot_id_of
from weakincentives.filesystem.types import FilesystemSnapshot

_MAX_REMEMBERED = 10_000  # ids of forgotten snapshots, for the message only


class MemoryHistory:
    """The latest snapshots of one filesystem in memory, to list and to forget.

    A state is found by the id of its snapshot, so any copy of the value restores it.
    """

    def __init__(self, max_snapshots: int | None) -> None:
        """Keep the latest `max_snapshots`, or all of them if it is None.

        Raises:
            TypeError: `max_snapshots` is no whole number.
            ValueError: `max_snapshots` is less than 1.
        """
        if max_snapshots is not None and type(max_snapshots) is not int:
            raise TypeError(f"max_snapshots must be a whole number, or None: {max_snapshots!r}")
        if max_snapshots is not None and max_snapshots < 1:
            raise ValueError(f"max_snapshots must be at least 1, or None: {max_snapshots}")
        self._max_snapshots = max_snapshots
        self._lock = Lock()
        self._pins = Pins()
        self._kept: dict[UUID, tuple[DirectoryNode, FilesystemSnapshot]] = {}
        self._forgotten: dict[UUID, None] = {}

    def list(self) -> Sequence[FilesystemSnapshot]:
        """Return the snapshots that can be restored, the oldest first."""
        with self._lock:
            return [snapshot for _, snapshot in self._kept.values()]

    def prune(
        self, *, keep: int | None = None, before: datetime | None = None
    ) -> Sequence[FilesystemSnapshot]:
        """Forget old snapshots, and return them; one that a transaction goes back to stays.

        Args:
            keep: Keep as many of the latest.
            before: Forget those taken earlier than this; with `keep` too, only those of
                them that are not among the latest.

        Raises:
            ValueError: Neither was given, `keep` is negative, or `before` has no time zone.
        """
        with self._lock:
            kept = [snapshot for _, snapshot in self._kept.values()]
            old = select_old(kept, keep=keep, before=before)
            gone = [each for each in old if not self._is_pinned(each.snapshot_id)]
            for each in gone:
                self._forget(each.snapshot_id)
        return gone

    def forget(self, *snapshots: FilesystemSnapshot | UUID | str) -> None:
        """Forget these snapshots, and free what only they hold.

        Args:
            snapshots: Each is a snapshot or its id; those that are not there are ignored.

        Raises:
            SnapshotError: An open transaction goes back to one of them; nothing was forgotten.
        """
        ids = {snapshot_id_of(each) for each in snapshots}
        with self._lock:
            keys = [key for key in self._kept if str(key) in ids]
            for key in keys:
                if self._is_pinned(key):
                    raise SnapshotError(
                        f"Snapshot is needed to roll back a transaction: {str(key)!r}"
                    )
            for key in keys:
                self._forget(key)

    def add(self, snapshot: FilesystemSnapshot, root: DirectoryNode) -> None:
        """Keep a state; the oldest is forgotten when there are too many."""
        with self._lock:
            self._kept[snapshot.snapshot_id] = root, snapshot
            self._forget_surplus()

    def pin(self, snapshot: FilesystemSnapshot) -> Callable[[], None]:
        """Keep a state, however many there are, until the returned function is called."""
        unpin = self._pins.add(str(snapshot.snapshot_id))

        def end() -> None:
            unpin()
            with self._lock:
                self._forget_surplus()

        return end

    def root_of(self, snapshot: FilesystemSnapshot) -> DirectoryNode:
        """Return the state that a snapshot names.

        Raises:
            SnapshotRestoreError: It was forgotten, or is of another filesystem.
        """
        check_snapshot(snapshot)
        found = self._kept.get(snapshot.snapshot_id)
        if found is not None and found[1].commit_ref == snapshot.commit_ref:
            return found[0]
        if snapshot.snapshot_id in self._forgotten:
            kept = "" if self._max_snapshots is None else f" (max_snapshots={self._max_snapshots})"
            raise SnapshotRestoreError(f"Unknown snapshot: {str(snapshot)!r} was forgotten{kept}")
        raise SnapshotRestoreError(
            f"Unknown snapshot: {str(snapshot)!r} is of another filesystem,"
            " or was forgotten long ago"
        )

    def _forget_surplus(self) -> None:
        """Forget the oldest of too many, but none that is pinned, and never the latest."""
        limit = self._max_snapshots
        while limit is not None and len(self._kept) > limit:
            latest = next(reversed(self._kept))
            oldest = next(key for key in self._kept if key == latest or not self._is_pinned(key))
            if oldest == latest:
                return
            self._forget(oldest)

    def _is_pinned(self, key: UUID) -> bool:
        return str(key) in self._pins

    def _forget(self, key: UUID) -> None:
        del self._kept[key]
        self._forgotten[key] = None
        if len(self._forgotten) > _MAX_REMEMBERED:
            del self._forgotten[next(iter(self._forgotten))]
