"""The history of one host directory: its snapshots, taken, looked into and restored.

A snapshot is a commit in a git repository outside the directory. Whatever replaces the
files, a restore of all or of some paths or an import, becomes a commit first, and then
the directory is rolled to it: so each can be finished after a crash, and undone. Only a
restore works without room for a commit of the present state: then it cannot be undone.
"""

import errno
import logging
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import RLock
from typing import NamedTuple
from uuid import uuid4

from weakincentives.errors import SnapshotError, SnapshotRestoreError, WinkError
from weakincentives.filesystem.base import ReadableFilesystem
from weakincentives.filesystem.host.snapshots.intent import Intent, IntentFile
from weakincentives.filesystem.host.snapshots.partial import mixed_tree
from weakincentives.filesystem.host.snapshots.restore import apply_restore, plan_restore
from weakincentives.filesystem.host.snapshots.tracker import ChangeTracker
from weakincentives.filesystem.host.snapshots.tree import CapturedDirectory, import_tree
from weakincentives.filesystem.host.snapshots.unstored import OverlaidObjects, UnstoredBatch
from weakincentives.filesystem.host.snapshots.view import SnapshotFilesystem
from weakincentives.filesystem.limits import LimitExceededError
from weakincentives.filesystem.paths import outermost
from weakincentives.filesystem.retention import check_snapshot
from weakincentives.filesystem.state import State
from weakincentives.filesystem.types import FilesystemSnapshot
from weakincentives.gitstore import (
    ObjectError,
    PackTransaction,
    Repository,
    default_git_dir,
    is_object_id,
)
from weakincentives.posix import (
    BackendUnavailableError,
    RootedDirectory,
    display_path,
    is_hidden,
    os_error,
)

_INTENT = "wink-intent"
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_MANY = 100  # new files after which it is worth while to tell the next process
_MAX_ENTRIES = 10_000_000  # in a snapshot that somebody else may have made up
_log = logging.getLogger(__name__)


class Restored(NamedTuple):
    """What a restore has done."""

    written: list[str]
    """The files that were written."""
    reversible: bool
    """Whether the state before is kept, so that the restore can be undone."""


class _UnavailableSnapshotError(BackendUnavailableError, SnapshotError):
    """No snapshot, because the workspace is gone."""


class _UnavailableRestoreError(BackendUnavailableError, SnapshotRestoreError):
    """Nothing restored, because the workspace is gone."""


@dataclass(frozen=True, slots=True)
class _Present:
    """The present state; `commit` is None if there was no room to keep it."""

    found: CapturedDirectory
    tree: str
    commit: str | None
    batch: UnstoredBatch | None = None
    failure: OSError | None = None


class SnapshotStore:
    """Snapshots of one directory, kept in a git repository outside it."""

    def __init__(
        self,
        directory: RootedDirectory,
        root: str,
        real_root: Path,
        *,
        git_dir: Path | None = None,
        exclusive: bool = False,
        may_recover: bool = True,
        keep: Callable[[str], None] | None = None,
        needed: Callable[[], bool] = lambda: False,
    ) -> None:
        """Keep snapshots in `git_dir`, or in the place that is derived from the root.

        `keep` is told the commit of the present state before everything is replaced; `needed`
        says whether somebody relies on it, so that nothing is replaced without one.
        """
        self._directory = directory
        self._root = root
        self._real_root = real_root
        self._place = git_dir or default_git_dir(real_root)
        self._intents = IntentFile(self._place / _INTENT)
        self._using = ExitStack()
        self._repository: Repository | None = None
        self._watch = ChangeTracker(directory, exclusive=exclusive)
        self._lock = RLock()
        self._unfinished = False
        self._closed = False
        self._may_recover = may_recover
        self._keep = keep
        self._needed = needed

    def invalidate(self) -> None:
        """Note that anything in the directory may have changed."""
        self._watch.invalidate()

    def blob_id(self, path: str) -> str | None:
        """Return git's id of a file's content, if the file is surely as it was captured."""
        return self._watch.blob_id(path)

    @property
    def git_dir(self) -> Path | None:
        """Where the snapshots are, once there are any."""
        return None if self._repository is None else self._place

    def touch(self, path: str) -> None:
        """Take note that what is at `path` is about to change.

        Raises:
            SnapshotRestoreError: A restore has failed half-way, and would take the
                change away when it is finished.
        """
        if self._unfinished:
            raise SnapshotRestoreError(
                f"Failed to restore {self._root!r}, and to go back: take a snapshot to try again"
                " before you go on"
            )
        self._watch.touch(path)

    def note(self, path: str) -> None:
        """Take note that what is at `path` changes back."""
        self._watch.touch(path)

    def existing(self) -> Repository | None:
        """Return the store if there is one, whoever made it.

        Raises:
            SnapshotError: The filesystem is closed, or what is there is not ours.
        """
        with self._lock:
            self._refuse_closed()
            return self._opened() if self._repository or self._place.exists() else None

    def decided(self) -> str | None:
        """Return the commit that a restore was about to go to when it was interrupted."""
        intent = self._intents.read()
        return None if intent is None else intent.commit

    def take(self, tag: str | None) -> FilesystemSnapshot:
        """Keep the present state."""
        try:
            with self._settled() as repository:
                return self._taken(repository, tag)
        except BackendUnavailableError as error:
            raise _UnavailableSnapshotError(f"Failed to create snapshot: {error}") from error
        except (OSError, ObjectError, SnapshotError) as error:
            raise SnapshotError(f"Failed to create snapshot: {self._told(error)}") from error

    def restore(
        self,
        snapshot: FilesystemSnapshot,
        *,
        paths: Sequence[str] | None = None,
        force: bool = False,
        check: Callable[[ReadableFilesystem], None] = lambda _: None,
    ) -> Restored:
        """Make everything, or what is at `paths`, as it was in `snapshot`.

        `check` is called with the state that this leads to, and may raise. Without room in the
        store to keep the present state, the restore is done all the same.
        """
        wanted = None if paths is None else outermost(paths)
        try:
            self._directory.check()
            check_snapshot(snapshot)
            self._refuse_foreign(snapshot, force)
            with self._lock:
                then = self.view(snapshot)
                with self._settled() as repository:
                    name = f"restore of {snapshot.snapshot_id}"
                    present = self._present(repository, f"before {name}")
                    ref = self._here(repository, then, snapshot)
                    target = then if ref == snapshot.commit_ref else self._view(repository, ref)
                    intent = Intent(ref, self._identity())
                    if wanted is not None and wanted != [""]:
                        intent, target = self._part(
                            repository, present, intent, wanted, target, name
                        )
                    check(target)
                    written = self._roll_to(repository, intent, present, target)
                    self._warn_unless_kept(present)
                    return Restored(written, present.commit is not None)
        except (SnapshotRestoreError, LimitExceededError):
            raise
        except BackendUnavailableError as error:
            raise _UnavailableRestoreError(f"Failed to restore {snapshot}: {error}") from error
        except (OSError, ObjectError, SnapshotError) as error:
            raise SnapshotRestoreError(
                f"Failed to restore {snapshot}: {self._told(error)}"
            ) from error

    def replace(self, state: ReadableFilesystem, name: str) -> list[str]:
        """Make everything as it is in `state`, which is called `name`; return what was written."""
        try:
            with self._settled() as repository:
                taken = self._taken(repository, f"before import of {name}")
                before = _Present(self._watch.known, "", taken.commit_ref)
                ref = self._stored(repository, state, f"import of {name}")
                intent = Intent(ref, self._identity())
                return self._roll_to(repository, intent, before, self._view(repository, ref))
        except OSError as error:
            raise self._told(error) from error
        except ObjectError as error:
            raise SnapshotError(f"Failed to import {display_path(name)!r}: {error}") from error

    def return_to(self, commit: str) -> None:
        """Make everything as a commit of ours says, because a savepoint is rolled back."""
        try:
            with self._settled() as repository:
                self._watch.invalidate()
                present = self._present(repository, f"before rollback to {commit}")
                intent = Intent(commit, self._identity())
                self._apply(repository, intent, self._view(repository, commit), present.found)
                self._warn_unless_kept(present)
        except (OSError, ObjectError) as error:
            raise SnapshotRestoreError(
                f"Failed to return to {commit}: {self._told(error)}"
            ) from error

    def view(self, snapshot: FilesystemSnapshot) -> SnapshotFilesystem:
        """Return the state that `snapshot` keeps, to read and compare."""
        with self._lock:
            try:
                return self._view(self._opened_for(snapshot), snapshot.commit_ref)
            except (OSError, ObjectError) as error:
                raise SnapshotRestoreError(
                    f"Failed to restore {snapshot}: {self._told(error)}"
                ) from error

    def finish(self) -> None:
        """Finish a restore or an import that was decided and then interrupted."""
        if self._intents.read() is not None and not self._is_inside(self._place):
            with self._settled():
                pass

    def close(self) -> None:
        """Let go of the store; it stays."""
        with self._lock:
            self._closed = True
            if self._repository is not None:
                with suppress(OSError):  # somebody has removed it
                    self._watch.save(self._repository)
                self._using.close()
                self._repository.close()
                self._repository = None

    def cleanup(self) -> None:
        """Remove the store if it is ours and nobody else uses it.

        Raises:
            SnapshotError: It is ours, and cannot be removed.
        """
        with self._lock:
            repository = self._repository
            try:
                if repository is None:
                    repository = self._unused()
                self._using.close()
                self._repository = None
                self._watch.forget()
                if repository is not None:
                    repository.remove()
            except OSError as error:
                raise SnapshotError(f"Failed to remove snapshots: {self._told(error)}") from error

    def _unused(self) -> Repository | None:
        """Return the store that is there, without using it; None if what is there is not ours."""
        if self._place.exists() and not self._is_inside(self._place):
            with suppress(SnapshotError):
                return Repository.create(self._place, root=self._real_root)
        return None

    def _told(self, error: Exception) -> Exception:
        """Return the error with a place, if it names none or a name that nobody sees."""
        if not isinstance(error, OSError) or isinstance(error, WinkError):
            return error
        name = "" if error.filename is None else os.fsdecode(error.filename)
        if name and not name.startswith("/proc/") and not is_hidden(name):
            return error
        text = f"{error.strerror or 'Failed'} in the workspace, or in its store {self._place}"
        return os_error(error.errno or errno.EIO, self._root, text)

    @contextmanager
    def _settled(self) -> Generator[Repository, None, None]:
        """Hold the store, with nothing left to finish."""
        with self._lock:
            repository = self._opened()
            with repository.lock():
                self._recover(repository)
                yield repository

    def _recover(self, repository: Repository) -> None:
        """Finish what somebody has decided and not done; the present state is kept."""
        intent = self._intents.read()
        if intent is None:
            return
        if intent.root != self._identity():
            _log.warning("A restore was interrupted in a directory that is gone: %r", self._root)
            self._intents.clear()
            return
        if not self._may_recover:
            raise SnapshotError(
                f"An interrupted restore must be finished first: open for writing {self._root!r}"
            )
        _log.warning("A restore was interrupted, and is finished now: %r", self._root)
        try:
            self._watch.invalidate()
            before = self._taken(repository, f"before recovery of {intent.commit}")
            target = self._view(repository, intent.commit)
            if intent.paths is not None:
                here = self._view(repository, before.commit_ref)
                intent, target = self._rest(repository, here, intent, target)
            self._apply(repository, intent, target, self._watch.known)
            self._unfinished = False
        except (OSError, ObjectError, SnapshotError) as error:
            raise SnapshotRestoreError(
                f"Failed to restore: an interrupted restore of {str(self._real_root)!r} cannot be"
                f" finished ({self._told(error)}); mend that, or open the directory with"
                " read_only=True"
            ) from error

    def _opened(self) -> Repository:
        self._refuse_closed()
        if self._repository is None:
            self._refuse_inside(self._place)
            repository = Repository.create(self._place, root=self._real_root)
            self._using.enter_context(repository.prevent_removal())
            self._intents.prepare()
            self._repository = repository
        return self._repository

    def _opened_for(self, snapshot: FilesystemSnapshot) -> Repository:
        check_snapshot(snapshot)
        if not is_object_id(snapshot.commit_ref):
            raise SnapshotRestoreError(f"Unknown snapshot: {str(snapshot)!r} is not of a directory")
        if snapshot.git_dir is None or self._is_place(snapshot.git_dir):
            repository = self._opened()
            repository.objects.refresh()  # somebody else may have forgotten it
            return repository
        try:
            place = Path(snapshot.git_dir)
            self._refuse_inside(place)
            return Repository.open(place)
        except (SnapshotError, OSError, ValueError) as error:
            raise SnapshotRestoreError(f"Unknown snapshot: {error}") from error

    def _refuse_closed(self) -> None:
        if self._closed:
            raise SnapshotError(f"Filesystem is closed: {self._root!r}")

    def _refuse_inside(self, place: Path) -> None:
        if self._is_inside(place):
            raise SnapshotError(
                f"Snapshot store must not be in the workspace, nor the workspace in it:"
                f" {str(place)!r}; give git_dir another place"
            )

    def _is_place(self, git_dir: str) -> bool:
        """Return whether a spelling means our own store."""
        try:
            return os.path.realpath(git_dir) == os.path.realpath(self._place)
        except ValueError:
            return False

    def _is_inside(self, place: Path) -> bool:
        """Return whether a store is in the workspace, where an agent can write, or the reverse."""
        real = Path(os.path.realpath(place))
        return real.is_relative_to(self._real_root) or self._real_root.is_relative_to(real)

    def _refuse_foreign(self, snapshot: FilesystemSnapshot, force: bool) -> None:
        try:
            is_ours = Path(snapshot.root_path).resolve() == self._real_root
        except (OSError, ValueError):
            is_ours = False
        if is_object_id(snapshot.commit_ref) and not force and not is_ours:
            raise SnapshotRestoreError(
                f"Failed to restore {snapshot}: it is of another workspace; force=True does it"
            )

    def _taken(self, repository: Repository, tag: str | None) -> FilesystemSnapshot:
        self._directory.check()
        with repository.objects.begin_pack() as batch:
            capture = self._watch.look(repository, batch)
            snapshot = self._committed(repository, capture.tree, tag, batch)
        repository.objects.refresh()  # what has been seen there is missed when it is gone
        capture.remember()  # not before its objects are stored
        self._watch.save(repository, least=_MANY)
        return snapshot

    def _committed(
        self, repository: Repository, tree: str, tag: str | None, batch: PackTransaction
    ) -> FilesystemSnapshot:
        snapshot_id, now = uuid4(), datetime.now(UTC)
        ref = repository.commit(
            tree, snapshot_id=str(snapshot_id), created_at=now, tag=tag, batch=batch
        )
        return FilesystemSnapshot(snapshot_id, now, ref, self._root, str(self._place), tag)

    def _stored(self, repository: Repository, state: ReadableFilesystem, tag: str) -> str:
        with repository.objects.begin_pack() as batch:
            tree = import_tree(State(state), repository.objects, batch)
            return self._committed(repository, tree, tag, batch).commit_ref

    def _here(
        self, repository: Repository, then: SnapshotFilesystem, snapshot: FilesystemSnapshot
    ) -> str:
        """Return the commit of a snapshot in our own store, copied there if need be."""
        if snapshot.git_dir is None or self._is_place(snapshot.git_dir):
            return snapshot.commit_ref
        if then.entry_count() > _MAX_ENTRIES:
            raise SnapshotRestoreError(
                f"Failed to restore {snapshot}: it has more than {_MAX_ENTRIES} entries"
            )
        return self._stored(repository, then, f"copy of {snapshot.snapshot_id}")

    def _mixed(
        self,
        repository: Repository,
        here: SnapshotFilesystem,
        then: SnapshotFilesystem,
        paths: Sequence[str],
        name: str,
    ) -> str:
        with repository.objects.begin_pack() as batch:
            tree = mixed_tree(here, then, paths, batch)
            return self._committed(repository, tree, f"partial {name}", batch).commit_ref

    def _identity(self) -> tuple[int, int]:
        """Return what tells this directory from another that is made in its place."""
        found, _ = self._directory.lstat("")
        return found.st_dev, found.st_ino

    def _view(self, repository: Repository, ref: str) -> SnapshotFilesystem:
        try:
            tree = repository.read_commit(ref).tree
        except SnapshotError as error:
            raise SnapshotRestoreError(str(error)) from error
        return SnapshotFilesystem(repository.objects, tree, self._root)

    def _present(self, repository: Repository, tag: str) -> _Present:
        """Keep the present state, or only find out what it is if there is no room to keep it."""
        try:
            taken = self._taken(repository, tag)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            failure = error
        else:
            tree = repository.read_commit(taken.commit_ref).tree
            return _Present(self._watch.known, tree, taken.commit_ref)
        batch = UnstoredBatch(repository.objects)
        look = self._watch.look(repository, batch)
        commit = repository.find_commit(look.tree)  # an earlier snapshot may be of the same state
        return _Present(look.found, look.tree, commit, batch, failure)

    def _warn_unless_kept(self, present: _Present) -> None:
        if present.commit is None:
            _log.warning(
                "There was no room to keep the state before, so this restore cannot be undone:"
                " %r (%s)",
                self._root,
                present.failure,
            )

    def _part(
        self,
        repository: Repository,
        present: _Present,
        intent: Intent,
        paths: Sequence[str],
        then: SnapshotFilesystem,
        name: str,
    ) -> tuple[Intent, SnapshotFilesystem]:
        """Return what makes `paths` as they were `then`, and what this leads to."""
        if present.commit is not None:
            here = self._view(repository, present.commit)
            try:
                ref = self._mixed(repository, here, then, paths, name)
                return Intent(ref, intent.root), self._view(repository, ref)
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
        batch = present.batch or UnstoredBatch(repository.objects)
        objects = OverlaidObjects(repository.git_dir / "objects", batch)
        here = SnapshotFilesystem(objects, present.tree, self._root)
        tree = mixed_tree(here, then, paths, batch)
        target = SnapshotFilesystem(objects, tree, self._root)
        return Intent(intent.commit, intent.root, tuple(paths)), target

    def _rest(
        self,
        repository: Repository,
        here: SnapshotFilesystem,
        intent: Intent,
        then: SnapshotFilesystem,
    ) -> tuple[Intent, SnapshotFilesystem]:
        """Return what is left to do of an interrupted restore of some paths."""
        states = State(here), State(then)
        # what is in neither was removed before the interruption
        paths = [path for path in intent.paths or () if any(each.lookup(path) for each in states)]
        ref = self._mixed(repository, here, then, paths, f"restore of {intent.commit}")
        return Intent(ref, intent.root), self._view(repository, ref)

    def _roll_to(
        self,
        repository: Repository,
        intent: Intent,
        before: _Present,
        target: SnapshotFilesystem,
    ) -> list[str]:
        """Do what is intended, or leave the directory as it was just found."""
        if before.commit is None and self._needed() and before.failure is not None:
            raise before.failure
        if self._keep is not None and before.commit is not None:
            self._keep(before.commit)
        try:
            return self._apply(repository, intent, target, before.found)
        except (Exception, KeyboardInterrupt) as error:
            if self._intents.read() is None:  # it was not decided, and not begun
                raise
            if before.commit is not None:
                self._go_back(repository, before.commit)
                raise
            written = self._go_on(repository, intent, target)
            if isinstance(error, KeyboardInterrupt):
                raise
            return written

    def _go_back(self, repository: Repository, commit: str) -> None:
        try:
            self._watch.invalidate()
            present = self._present(repository, f"halfway from {commit}")
            intent = Intent(commit, self._identity())
            self._apply(repository, intent, self._view(repository, commit), present.found)
        except (OSError, ObjectError, SnapshotError) as error:
            self._unfinished = True
            raise SnapshotRestoreError(
                f"Failed to restore, and to go back: {self._told(error)};"
                " the next snapshot or restore goes on with it"
            ) from error

    def _go_on(
        self, repository: Repository, intent: Intent, target: SnapshotFilesystem
    ) -> list[str]:
        """Finish what has failed half-way, because the state before is kept nowhere."""
        try:
            self._watch.invalidate()
            here = self._watch.look(repository, UnstoredBatch(repository.objects)).found
            return self._apply(repository, intent, target, here)
        except (OSError, ObjectError, SnapshotError) as error:
            self._unfinished = True
            raise SnapshotRestoreError(
                f"Failed to restore half-way, with no room to keep the state before:"
                f" {self._told(error)}; the next snapshot or restore goes on with it"
            ) from error

    def _apply(
        self,
        repository: Repository,
        intent: Intent,
        target: SnapshotFilesystem,
        here: CapturedDirectory,
    ) -> list[str]:
        """Make the directory `target`, which is intended; at present it is as `here`."""
        plan = plan_restore(here, target)
        if plan:
            self._watch.touch(*plan.paths)
            decide = partial(self._intents.write, intent)
            apply_restore(self._directory, repository.objects, plan, target, decide)
        if plan or self._intents.read() is not None:
            self._intents.clear()
        return [path for path, _, _ in plan.stored]
