"""Snapshot retention: pins, and which snapshots `prune` forgets."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from threading import Lock
from uuid import UUID

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem.types import FilesystemSnapshot
from weakincentives.posix import shorten_path


class Pins:
    """Reference counts of snapshots that open transactions need; thread-safe."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str) -> Callable[[], None]:
        """Pin a snapshot by its id or commit; return an idempotent function to unpin it."""
        with self._lock:
            self._counts[name] += 1
        pinned = [name]

        def unpin() -> None:
            with self._lock:
                if pinned:
                    self._counts.subtract(pinned)
                    self._counts += Counter()  # drops zero counts
                    pinned.clear()

        return unpin

    def __contains__(self, name: object) -> bool:
        """Whether a snapshot is pinned."""
        return name in self._counts

    def names(self) -> set[str]:
        """Return everything that is pinned."""
        with self._lock:
            return set(self._counts)


def select_old(
    snapshots: Sequence[FilesystemSnapshot], *, keep: int | None, before: datetime | None
) -> Sequence[FilesystemSnapshot]:
    """Return the snapshots that `prune` forgets, of `snapshots` ordered oldest first.

    Raises:
        ValueError: Neither was given, `keep` is negative, or `before` has no time zone.
    """
    if keep is None and before is None:
        raise ValueError("prune needs keep= or before=; nothing was forgotten")
    if keep is not None and keep < 0:
        raise ValueError(f"keep must not be negative: {keep}")
    if before is not None and before.tzinfo is None:
        raise ValueError(f"before must have a time zone: {before!r}")
    old = snapshots[: max(0, len(snapshots) - (keep or 0))]
    return [each for each in old if before is None or each.created_at < before]


def snapshot_id_of(snapshot: FilesystemSnapshot | UUID | str) -> str:
    """Return the id of a snapshot as text; `snapshot` may be the id itself."""
    return str(snapshot.snapshot_id if isinstance(snapshot, FilesystemSnapshot) else snapshot)


def check_snapshot(snapshot: object) -> None:
    """Check that `snapshot` is a snapshot value, and not an id or a tag.

    Raises:
        SnapshotRestoreError: It is not.
    """
    if not isinstance(snapshot, FilesystemSnapshot):
        given = shorten_path(repr(snapshot))
        raise SnapshotRestoreError(f"Not a snapshot; pass what snapshot() returned: {given}")
