"""The list of the snapshots that are kept of a directory, and what becomes of it."""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from threading import Lock
from uuid import UUID

from weakincentives.errors import SnapshotError, SnapshotRestoreError, WinkError
from weakincentives.filesystem.paths import brief
from weakincentives.filesystem.store.repository import Repository, StoreSize
from weakincentives.filesystem.store.verifying import SnapshotProblem
from weakincentives.filesystem.types import FilesystemSnapshot


class Pins:
    """The snapshots that open transactions go back to, counted because several may need one."""

    def __init__(self) -> None:
        """Start with none."""
        self._lock = Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str) -> Callable[[], None]:
        """Pin a snapshot by its id or commit; return what ends that, once or more often."""
        with self._lock:
            self._counts[name] += 1
        pinned = [name]

        def unpin() -> None:
            with self._lock:
                if pinned:
                    self._counts.subtract(pinned)
                    self._counts += Counter()  # without those that nobody needs any more
                    pinned.clear()

        return unpin

    def __contains__(self, name: object) -> bool:
        """Whether somebody may have to go back to it."""
        return name in self._counts

    def names(self) -> set[str]:
        """Return all that are pinned."""
        with self._lock:
            return set(self._counts)


class SnapshotHistory:
    """The snapshots of one directory, whoever took them."""

    def __init__(
        self,
        store: Callable[[], Repository | None],
        root: str,
        needed: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """Look into `store`, if there is one; the snapshots are of `root`.

        `needed` returns the commits that somebody may have to go back to.
        """
        self._store = store
        self._root = root
        self._needed = needed

    def list(self) -> Sequence[FilesystemSnapshot]:
        """Return all snapshots, the oldest first."""
        with self._opened() as store:
            return [] if store is None else list(self._found(store))

    def prune(
        self, *, keep: int | None = None, before: datetime | None = None
    ) -> Sequence[FilesystemSnapshot]:
        """Forget old snapshots, and return them; `gc` then frees the space.

        One that a savepoint, a transaction or an interrupted restore has to go back to stays.

        Args:
            keep: Keep as many of the latest.
            before: Forget those taken earlier than this; with `keep` too, only those of
                them that are not among the latest.

        Raises:
            ValueError: Neither was given, `keep` is negative, or `before` has no time zone.
        """
        select_old((), keep=keep, before=before)  # bad arguments are refused without a store too
        with self._opened() as store:
            if store is None:
                return []
            with store.locked():
                needed = self._needed()
                old = select_old(list(self._found(store)), keep=keep, before=before)
                gone = [each for each in old if each.commit_ref not in needed]
                if gone:
                    store.prune([str(each.snapshot_id) for each in gone])
            return gone

    def forget(self, *snapshots: FilesystemSnapshot | UUID | str) -> None:
        """Forget these snapshots; those that are not there are none the less forgotten.

        Args:
            snapshots: Each is a snapshot or its id, as a `SnapshotProblem` has it.

        Raises:
            SnapshotError: A savepoint, a transaction or an interrupted restore has to go back
                to one of them; nothing was forgotten.
        """
        ids = {id_of(each) for each in snapshots}
        with self._opened() as store:
            if store is None or not ids:
                return
            with store.locked():
                self._refuse_needed(store, ids)
                store.prune(ids)

    def gc(self) -> None:
        """Free the space of what was forgotten.

        Raises:
            SnapshotError: The store is damaged; nothing has been removed. The message says
                which snapshots to forget, and then it works.
        """
        with self._opened() as store:
            if store is not None:
                store.gc()

    def verify(self) -> Sequence[SnapshotProblem]:
        """Read everything that is kept; return what is missing or damaged."""
        with self._opened() as store:
            return [] if store is None else store.verify()

    def size(self) -> StoreSize:
        """Return how much is kept."""
        with self._opened() as store:
            return StoreSize(0, 0, 0, 0) if store is None else store.size()

    @contextmanager
    def _opened(self) -> Generator[Repository | None, None, None]:
        """Use the store; one that fails is told from a workspace that does."""
        try:
            yield self._store()
        except OSError as error:
            if isinstance(error, WinkError):
                raise
            raise SnapshotError(f"Snapshot store cannot be used: {error}") from error

    def _refuse_needed(self, store: Repository, ids: Collection[str]) -> None:
        needed = self._needed()
        for each in self._found(store) if needed else ():
            if str(each.snapshot_id) in ids and each.commit_ref in needed:
                raise SnapshotError(
                    "Snapshot is needed to roll back a savepoint, or to finish a restore:"
                    f" {str(each.snapshot_id)!r}"
                )

    def _found(self, store: Repository) -> Iterator[FilesystemSnapshot]:
        for commit in store.commits():
            with suppress(ValueError):  # an id that is none of ours
                yield FilesystemSnapshot(
                    UUID(commit.snapshot_id),
                    commit.created_at,
                    commit.ref,
                    self._root,
                    str(store.git_dir),
                    commit.tag,
                )


def select_old(
    snapshots: Sequence[FilesystemSnapshot], *, keep: int | None, before: datetime | None
) -> Sequence[FilesystemSnapshot]:
    """Return the snapshots that `prune` forgets; they are ordered, the oldest first.

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


def id_of(snapshot: FilesystemSnapshot | UUID | str) -> str:
    """Return the id of a snapshot, which may be given as such, as text."""
    return str(snapshot.snapshot_id if isinstance(snapshot, FilesystemSnapshot) else snapshot)


def check_snapshot(snapshot: object) -> None:
    """Return if this is a snapshot, and not its name or number.

    Raises:
        SnapshotRestoreError: It is something else.
    """
    if not isinstance(snapshot, FilesystemSnapshot):
        given = brief(repr(snapshot))
        raise SnapshotRestoreError(f"Not a snapshot, give what snapshot() has returned: {given}")
