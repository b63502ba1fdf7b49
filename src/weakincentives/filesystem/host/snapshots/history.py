"""The list of the snapshots that are kept of a directory, and what becomes of it."""

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from uuid import UUID

from weakincentives.errors import SnapshotError, WinkError
from weakincentives.filesystem.retention import select_old, snapshot_id_of
from weakincentives.filesystem.types import FilesystemSnapshot
from weakincentives.gitstore import Repository, SnapshotProblem, StoreSize


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
            with store.lock():
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
        ids = {snapshot_id_of(each) for each in snapshots}
        with self._opened() as store:
            if store is None or not ids:
                return
            with store.lock():
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
