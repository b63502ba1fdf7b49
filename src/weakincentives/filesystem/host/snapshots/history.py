"""Snapshot history of a host directory: list, prune, verify and garbage-collect."""

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from uuid import UUID

from weakincentives.errors import SnapshotError, WinkError
from weakincentives.filesystem.base.state import select_old, snapshot_id_of
from weakincentives.filesystem.types import FilesystemSnapshot
from weakincentives.gitstore import Repository, SnapshotProblem, StoreSize


class SnapshotHistory:
    """The snapshots of one directory, whichever process took them."""

    def __init__(
        self,
        open_repository: Callable[[], Repository | None],
        root: str,
        pinned_commits: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """Read the snapshots of `root`.

        Args:
            open_repository: Returns the repository, None if there is none yet.
            root: The workspace, as snapshots name it.
            pinned_commits: Returns the commits that a rollback or a recovery needs.
        """
        self._open_repository = open_repository
        self._root = root
        self._pinned_commits = pinned_commits

    def list(self) -> Sequence[FilesystemSnapshot]:
        """Return all snapshots, oldest first."""
        with self._use_repository() as repository:
            return [] if repository is None else list(self._iterate(repository))

    def prune(
        self, *, keep: int | None = None, before: datetime | None = None
    ) -> Sequence[FilesystemSnapshot]:
        """Forget old snapshots and return them; `gc` then frees the space.

        Snapshots that a savepoint, a transaction or an interrupted restore needs are kept.

        Args:
            keep: Keep this many of the latest.
            before: Forget snapshots taken earlier than this. With `keep`, the latest
                are kept even if they are earlier.

        Raises:
            ValueError: Neither was given, `keep` is negative, or `before` has no time zone.
        """
        select_old((), keep=keep, before=before)  # check the arguments even without a repository
        with self._use_repository() as repository:
            if repository is None:
                return []
            with repository.lock():
                pinned = self._pinned_commits()
                old = select_old(list(self._iterate(repository)), keep=keep, before=before)
                pruned = [each for each in old if each.commit_ref not in pinned]
                if pruned:
                    repository.prune([str(each.snapshot_id) for each in pruned])
            return pruned

    def forget(self, *snapshots: FilesystemSnapshot | UUID | str) -> None:
        """Forget these snapshots; unknown ones are ignored.

        Args:
            snapshots: Each is a snapshot or its id, as a `SnapshotProblem` has it.

        Raises:
            SnapshotError: A savepoint, a transaction or an interrupted restore needs one of
                them; nothing was forgotten.
        """
        ids = {snapshot_id_of(each) for each in snapshots}
        with self._use_repository() as repository:
            if repository is None or not ids:
                return
            with repository.lock():
                self._check_pins(repository, ids)
                repository.prune(ids)

    def gc(self) -> None:
        """Free the space of forgotten snapshots.

        Raises:
            SnapshotError: The store is damaged; nothing was removed. The message names the
                snapshots to forget first.
        """
        with self._use_repository() as repository:
            if repository is not None:
                repository.gc()

    def verify(self) -> Sequence[SnapshotProblem]:
        """Read everything that is stored; return what is missing or damaged."""
        with self._use_repository() as repository:
            return [] if repository is None else repository.verify()

    def size(self) -> StoreSize:
        """Return how much is stored."""
        with self._use_repository() as repository:
            return StoreSize(0, 0, 0, 0) if repository is None else repository.size()

    @contextmanager
    def _use_repository(self) -> Generator[Repository | None, None, None]:
        """Open the repository; its errors differ from those of the workspace."""
        try:
            yield self._open_repository()
        except OSError as error:
            if isinstance(error, WinkError):
                raise
            raise SnapshotError(f"Snapshot store cannot be used: {error}") from error

    def _check_pins(self, repository: Repository, ids: Collection[str]) -> None:
        pinned = self._pinned_commits()
        for each in self._iterate(repository) if pinned else ():
            if str(each.snapshot_id) in ids and each.commit_ref in pinned:
                raise SnapshotError(
                    f"Cannot delete snapshot {str(each.snapshot_id)!r}: an open savepoint or an"
                    " unfinished restore needs it"
                )

    def _iterate(self, repository: Repository) -> Iterator[FilesystemSnapshot]:
        for commit in repository.commits():
            with suppress(ValueError):  # an id that is not ours
                yield FilesystemSnapshot(
                    UUID(commit.snapshot_id),
                    commit.created_at,
                    commit.ref,
                    self._root,
                    str(repository.git_dir),
                    commit.tag,
                )
