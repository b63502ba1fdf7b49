"""The history of one host directory: its snapshots, taken, looked into and restored.

A snapshot is a commit in a git repository outside the directory. A restore first keeps
the present state as a snapshot of its own, so that it can be undone.
"""

from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from threading import RLock
from uuid import uuid4

from weakincentives.errors import SnapshotError, SnapshotRestoreError
from weakincentives.filesystem.rooted import RootedDirectory
from weakincentives.filesystem.snapshots.capture import CapturedDirectory, capture
from weakincentives.filesystem.snapshots.intents import Intent, IntentFile
from weakincentives.filesystem.snapshots.restoring import apply_restore, plan_restore
from weakincentives.filesystem.snapshots.view import FILES, MANIFEST, Manifest, SnapshotFilesystem
from weakincentives.filesystem.store.batches import Batch
from weakincentives.filesystem.store.objects import ObjectError
from weakincentives.filesystem.store.repository import Repository, default_git_dir
from weakincentives.filesystem.store.trees import DIRECTORY, FILE, TreeEntry, encode_tree
from weakincentives.filesystem.types import FilesystemSnapshot

_INTENT = "wink-intent"


class History:
    """Snapshots of one directory, kept in a git repository outside it."""

    def __init__(
        self, directory: RootedDirectory, root: str, real_root: Path, git_dir: Path | None
    ) -> None:
        """Keep snapshots in `git_dir`, or in the place that is derived from the root."""
        self._directory = directory
        self._root = root
        self._real_root = real_root
        self._place = git_dir or default_git_dir(real_root)
        self._using = ExitStack()
        self._repository: Repository | None = None
        self._known: CapturedDirectory | None = None
        self._epoch = ""
        self._lock = RLock()

    @property
    def git_dir(self) -> Path | None:
        """Where the snapshots are, once there are any."""
        return None if self._repository is None else self._place

    def take(self, tag: str | None) -> FilesystemSnapshot:
        """Keep the present state."""
        with self._lock:
            try:
                repository = self._opened()
                with repository.locked():
                    return self._taken(repository, tag)
            except (OSError, ObjectError) as error:
                raise SnapshotError(f"Failed to create snapshot: {error}") from error

    def restore(self, snapshot: FilesystemSnapshot, *, force: bool = False) -> None:
        """Make everything as it was in `snapshot`; the state before is kept as well."""
        with self._lock:
            self._refuse_foreign(snapshot, force)
            try:
                source = self._opened_for(snapshot)
                source.read_commit(snapshot.commit_ref)
                self.take(f"before restore of {snapshot.snapshot_id}")
                with source.locked():
                    self._roll_to(source, snapshot.commit_ref)
            except SnapshotRestoreError:
                raise
            except (OSError, ObjectError, SnapshotError) as error:
                raise SnapshotRestoreError(f"Failed to restore {snapshot}: {error}") from error

    def view(self, snapshot: FilesystemSnapshot) -> SnapshotFilesystem:
        """Return the state that `snapshot` keeps, to read and compare."""
        with self._lock:
            return self._view(self._opened_for(snapshot), snapshot.commit_ref)

    def finish(self) -> None:
        """Finish a restore that was decided and then interrupted."""
        intents = IntentFile(self._place / _INTENT)
        if intents.read() is None:
            return
        with self._lock:
            repository = self._opened()
            with repository.locked():
                intent = intents.read()  # another process may have finished it meanwhile
                if intent is not None:
                    with repository.objects.batch() as batch:
                        known, _ = self._capture(repository, batch)
                        batch.finish()
                    self._known = known
                    ours = Path(intent.git_dir) == self._place
                    source = repository if ours else Repository.open(Path(intent.git_dir))
                    self._roll_to(source, intent.commit)

    def close(self) -> None:
        """Let go of the store; it stays."""
        with self._lock:
            self._using.close()
            if self._repository is not None:
                self._repository.close()
                self._repository = None

    def cleanup(self) -> None:
        """Remove the store if it is ours and nobody else uses it."""
        with self._lock:
            repository = self._repository
            self._using.close()
            self._repository = None
            self._known = None
            if repository is not None:
                repository.remove()

    def _opened(self) -> Repository:
        if self._repository is None:
            repository = Repository.create(self._place, root=self._real_root)
            self._using.enter_context(repository.in_use())
            IntentFile(self._place / _INTENT).prepare()
            self._repository = repository
        return self._repository

    def _opened_for(self, snapshot: FilesystemSnapshot) -> Repository:
        if snapshot.git_dir is None:
            raise SnapshotRestoreError(f"Unknown snapshot: {str(snapshot)!r} is not of a directory")
        if Path(snapshot.git_dir) == self._place:
            return self._opened()
        try:
            return Repository.open(Path(snapshot.git_dir))
        except SnapshotError as error:
            raise SnapshotRestoreError(f"Unknown snapshot: {error}") from error

    def _refuse_foreign(self, snapshot: FilesystemSnapshot, force: bool) -> None:
        if not force and Path(snapshot.root_path).resolve() != self._real_root:
            raise SnapshotRestoreError(
                f"Failed to restore {snapshot}: it is of another workspace; force=True does it"
            )

    def _taken(self, repository: Repository, tag: str | None) -> FilesystemSnapshot:
        snapshot_id, now = uuid4(), datetime.now(UTC)
        with repository.objects.batch() as batch:
            known, tree = self._capture(repository, batch)
            ref = repository.commit(
                tree, snapshot_id=str(snapshot_id), created_at=now, tag=tag, batch=batch
            )
        self._known = known  # not before its objects are stored
        return FilesystemSnapshot(snapshot_id, now, ref, self._root, str(self._place), tag)

    def _capture(self, repository: Repository, batch: Batch) -> tuple[CapturedDirectory, str]:
        """Capture the directory; return it with the id of the commit's tree."""
        if repository.epoch() != self._epoch:
            self._known = None  # what was stored may have been removed since
            self._epoch = repository.epoch()
        known = capture(self._directory, batch, self._known)
        data = Manifest(known.modes, tuple(sorted(known.specials))).encode()
        entries = (
            TreeEntry(MANIFEST, FILE, batch.add("blob", data)),
            TreeEntry(FILES, DIRECTORY, known.id),
        )
        return known, batch.add("tree", encode_tree(entries))

    def _view(self, repository: Repository, ref: str) -> SnapshotFilesystem:
        try:
            tree = repository.read_commit(ref).tree
        except SnapshotError as error:
            raise SnapshotRestoreError(str(error)) from error
        return SnapshotFilesystem(repository.objects, tree, self._root)

    def _roll_to(self, repository: Repository, ref: str) -> None:
        """Make the directory what the commit says; the present state has been captured."""
        known = self._known
        if known is None:
            raise SnapshotRestoreError("Failed to restore: the present state is not known")
        plan = plan_restore(known, self._view(repository, ref))
        intents = IntentFile(self._place / _INTENT)  # ours, whose ever the snapshot is
        if plan:
            apply_restore(
                self._directory,
                repository.objects,
                plan,
                lambda: intents.write(Intent(ref, str(repository.git_dir))),
            )
        intents.clear()
