"""The snapshot store of one host directory: take, view and restore snapshots.

A snapshot is a commit in a git repository outside the directory. Whatever replaces the files (a
restore of all or some paths, an import, a rollback to a commit) goes through the change engine:
all or nothing, and what somebody saves meanwhile is stored as another snapshot. The present state
becomes a commit first, so each of them can be undone. Only a restore works without room for that.
"""

import logging
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import NamedTuple

from weakincentives.errors import SnapshotError, SnapshotRestoreError
from weakincentives.filesystem.base import ReadableFilesystem
from weakincentives.filesystem.base.state import State, check_restorable
from weakincentives.filesystem.host.snapshots.commits import (
    PresentState,
    WorkspaceCommits,
    view_commit,
)
from weakincentives.filesystem.host.snapshots.edits import edits_between, entry_state, is_same
from weakincentives.filesystem.host.snapshots.restore import (
    check_recovered,
    drop_done,
    explain_store_error,
    has_interrupted,
    recover_restores,
    restore_edits,
    usage_change,
)
from weakincentives.filesystem.host.snapshots.tracker import ChangeTracker
from weakincentives.filesystem.host.snapshots.view import SnapshotFilesystem
from weakincentives.filesystem.host.snapshots.writer import TreeWriter
from weakincentives.filesystem.limits import LimitExceededError
from weakincentives.filesystem.paths import outermost
from weakincentives.filesystem.retention import check_snapshot
from weakincentives.filesystem.types import FilesystemSnapshot
from weakincentives.gitstore import ObjectError, Repository, default_git_dir, is_object_id
from weakincentives.history import Edit, EntryState, PathChange, Place, Policy
from weakincentives.posix import BackendUnavailableError, RootedDirectory, display_path

_MAX_ENTRIES = 10_000_000  # in a snapshot from another store, which may be crafted
_log = logging.getLogger(__name__)


class RestoreResult(NamedTuple):
    """The outcome of a restore."""

    written: list[str]
    """The files that were written."""
    reversible: bool
    """Whether the state before is stored, so that the restore can be undone."""
    changes: Sequence[PathChange] = ()
    """What was replaced; its content is in the store."""


class CallStates(NamedTuple):
    """The states around a call, as far as the history knows them: no tree is searched."""

    before: FilesystemSnapshot
    """The last known state with what the call replaced put in."""
    after: FilesystemSnapshot
    """The state before with what the call put there."""
    paths: tuple[str, ...]
    """What the call changed, sorted."""
    known: FilesystemSnapshot | None
    """The last known state, if somebody else had changed one of the paths since; else None."""
    later: FilesystemSnapshot | None
    """The state after with what somebody has saved at these paths since; None if nothing."""
    saved: tuple[FilesystemSnapshot, ...]
    """The present state with what somebody saved while the call ran, and the call replaced."""


class _UnavailableSnapshotError(BackendUnavailableError, SnapshotError):
    """No snapshot, because the workspace is gone."""


class _UnavailableRestoreError(BackendUnavailableError, SnapshotRestoreError):
    """Nothing restored, because the workspace is gone."""


class SnapshotStore:
    """Snapshots of one directory, in a git repository outside it."""

    def __init__(
        self,
        directory: RootedDirectory,
        root: str,
        real_root: Path,
        *,
        git_dir: Path | None = None,
        exclusive: bool = False,
        read_only: bool = False,
    ) -> None:
        """Store snapshots in `git_dir`, by default a path derived from the root."""
        self._directory = directory
        self._root = root
        self._real_root = real_root
        self._git_dir = git_dir or default_git_dir(real_root)
        self._tracker = ChangeTracker(directory, exclusive=exclusive)
        self._read_only = read_only
        self._lock = RLock()
        self._use = ExitStack()
        self._exclusive = exclusive
        self._commits: WorkspaceCommits | None = None  # None until the repository is open
        self._known: FilesystemSnapshot | None = None  # the last state that was stored
        self._is_unfinished = False  # whether a restore failed and could not be rolled back
        self.replaced: FilesystemSnapshot | None = None
        """The state before the last restore, if it was stored."""
        self.displaced: FilesystemSnapshot | None = None
        """What somebody saved while the last restore replaced it, as a snapshot."""
        self._closed = False
        self._has_ids = False  # whether the index was loaded, if there is one

    @property
    def git_dir(self) -> Path | None:
        """The repository, once it exists."""
        return None if self._commits is None else self._git_dir

    # --- change tracking ---

    def invalidate(self) -> None:
        """Note that anything in the directory may have changed."""
        self._tracker.invalidate()

    @property
    def reported_programs(self) -> int:
        """How many confined programs have changed the directory, or may have."""
        return self._tracker.reported_programs

    def changed_by_others(self, *, confined: bool) -> AbstractContextManager[None]:
        """Trust nothing during the block: another program changes the directory."""
        return self._tracker.changed_by_others(confined=confined)

    def touch(self, path: str) -> None:
        """Note that `path` is about to change.

        Raises:
            SnapshotRestoreError: A restore failed half-way; finishing it would undo the change.
        """
        if self._is_unfinished:
            raise SnapshotRestoreError(
                f"A restore of {self._root!r} failed half-way and could not be rolled back:"
                " take a snapshot to try again before you continue"
            )
        self._tracker.touch(path)

    def touch_undone(self, path: str) -> None:
        """Note that a rollback is about to change `path`."""
        self._tracker.touch(path)

    def blob_id(self, path: str) -> str | None:
        """Return the git blob id of a file, if its stat is still that of the last capture."""
        with self._lock:
            if not self._has_ids:
                self._has_ids = True
                if not self._overlaps_workspace(self._git_dir):
                    self._tracker.load_ids(self._git_dir, root=os.fspath(self._real_root))
        return self._tracker.blob_id(path)

    # --- snapshots ---

    def take(self, tag: str | None) -> FilesystemSnapshot:
        """Take a snapshot of the present state.

        Raises:
            SnapshotError: It could not be taken.
        """
        try:
            with self._lock_repository() as commits:
                self._known = commits.take(tag)
                return self._known
        except BackendUnavailableError as error:
            raise _UnavailableSnapshotError(f"Failed to create snapshot: {error}") from error
        except (OSError, ObjectError, SnapshotError) as error:
            raise SnapshotError(f"Failed to create snapshot: {self._explain(error)}") from error

    def record(self, changes: Sequence[PathChange]) -> CallStates:
        """Store the states before and after a call that changed these paths.

        Raises:
            SnapshotError: They could not be stored.
        """
        try:
            with self._lock_repository() as commits:
                return self._record(commits, changes)
        except (OSError, ObjectError) as error:
            raise SnapshotError(f"Failed to store a change: {self._explain(error)}") from error

    def _record(self, commits: WorkspaceCommits, changes: Sequence[PathChange]) -> CallStates:
        known = self._known or commits.take("before a call")
        by_call = [each for each in changes if each.by_call]
        state, before = commits.view(known.commit_ref), known
        found = {each.path: each.before for each in by_call}
        others = {
            path: entry
            for path, entry in found.items()
            if not is_same(entry_state(state, path), entry)
        }
        if others:
            opened = {each.path: each.open_before for each in by_call}
            before = commits.store_entries(state, others, opened, "changed before a call")
            state = commits.view(before.commit_ref)
        left = {each.path: each.after for each in by_call}
        after, later = commits.store_call(state, left, "after a call")
        self._known = later or after
        state = commits.view(self._known.commit_ref)
        saved = tuple(
            commits.store_entries(
                state, {each.path: each.after}, {each.path: each.open_after}, "saved during a call"
            )
            for each in changes
            if not each.by_call
        )
        return CallStates(
            before, after, tuple(sorted(found)), known if others else None, later, saved
        )

    def fill(self, fill: Callable[[TreeWriter], None], tag: str | None) -> FilesystemSnapshot:
        """Let `fill` write to the directory, which must be empty, and take a snapshot of it.

        Raises:
            SnapshotError: The store is damaged.
            OSError: Something cannot be written.
        """
        try:
            with self._lock_repository() as commits:
                return commits.take(tag, fill)
        except ObjectError as error:
            raise SnapshotError(f"Failed to create snapshot: {self._explain(error)}") from error

    def view(self, snapshot: FilesystemSnapshot) -> SnapshotFilesystem:
        """Return the state of `snapshot`, to read and compare.

        Raises:
            SnapshotRestoreError: The snapshot is unknown or damaged.
        """
        with self._lock:
            try:
                repository = self._repository_of(snapshot)
                if self._commits is not None and repository is self._commits.repository:
                    return self._commits.view(snapshot.commit_ref)
                return view_commit(repository, snapshot.commit_ref, self._root)
            except (OSError, ObjectError) as error:
                raise SnapshotRestoreError(
                    f"Failed to restore {snapshot}: {self._explain(error)}"
                ) from error

    def compare(self, before: FilesystemSnapshot, after: FilesystemSnapshot) -> list[str]:
        """Return the paths that differ between two snapshots.

        Raises:
            SnapshotRestoreError: A snapshot is unknown or damaged.
        """
        one, other = self.view(before), self.view(after)
        try:
            specials = set(one.manifest.specials) ^ set(other.manifest.specials)
            return sorted({*specials, *(each.path for each in edits_between(one, other))})
        except (OSError, ObjectError) as error:
            raise SnapshotRestoreError(f"Failed to compare {before}: {error}") from error

    def changed_since(self, snapshot: FilesystemSnapshot) -> list[str] | None:
        """Return the paths that differ from `snapshot` now; None if that is not known."""
        try:
            with self._lock:
                then = self.view(snapshot)
                with self._lock_repository() as commits:
                    here = commits.capture_only()
                    specials = set(then.manifest.specials) - set(here.manifest.specials)
                    return [*(each.path for each in edits_between(here, then)), *specials]
        except (OSError, ObjectError, SnapshotError):
            return None

    def restore(
        self,
        snapshot: FilesystemSnapshot,
        *,
        paths: Sequence[str] | None = None,
        force: bool = False,
        expect: FilesystemSnapshot | None = None,
        check: Callable[[tuple[int, int]], None] = lambda _: None,
        before_replace: Callable[[str], None] | None = None,
    ) -> RestoreResult:
        """Restore everything, or only `paths`, to the state of `snapshot`.

        Without room to store the present state, the restore still happens, unless
        `before_replace` needs that state.

        Args:
            snapshot: The state to restore.
            paths: Restore only these, and what is below them.
            force: Restore a snapshot of another directory too.
            expect: Change only what differs between this state and `snapshot`, and only if all of
                it is still as in this state. The directory is not searched for other changes.
            check: Called with the bytes and entries that are added, before anything changes.
            before_replace: Called with the commit of the present state.

        Raises:
            StaleRestoreError: Something is not as expected any more; nothing was restored.
            SnapshotRestoreError: It could not be restored.
            LimitExceededError: `check` raised it.
        """
        wanted = None if paths is None else outermost(paths)
        try:
            self._directory.check()
            check_snapshot(snapshot)
            self._check_origin(snapshot, force=force)
            with self._lock:
                then = self.view(snapshot)
                here = None if expect is None else self.view(expect)
                with self._lock_repository() as commits:
                    states = here, self._adopt(commits, snapshot, then)
                    title = f"restore of {snapshot.snapshot_id}"
                    return self._restore(commits, title, states, wanted, check, before_replace)
        except (SnapshotRestoreError, LimitExceededError):
            raise
        except BackendUnavailableError as error:
            raise _UnavailableRestoreError(f"Failed to restore {snapshot}: {error}") from error
        except (OSError, ObjectError, SnapshotError) as error:
            raise SnapshotRestoreError(
                f"Failed to restore {snapshot}: {self._explain(error)}"
            ) from error

    def _restore(
        self,
        commits: WorkspaceCommits,
        title: str,
        states: tuple[SnapshotFilesystem | None, SnapshotFilesystem],
        paths: Sequence[str] | None,
        check: Callable[[tuple[int, int]], None],
        before_replace: Callable[[str], None] | None,
    ) -> RestoreResult:
        """Restore the second of the `states`; the first is what to expect, if that is known."""
        (expected, target), present = states, None
        here = expected
        if here is None:
            present = commits.take_present(f"before {title}")
            here = commits.view_present(present)
            self.replaced = present.snapshot
        if paths is not None:
            check_restorable(State(here), State(target), paths)
        edits = edits_between(here, target, paths)
        if present is None:
            edits = drop_done(self._directory, edits, paths)
        check(usage_change(edits, _sizes_of(edits, here, target)))
        if before_replace is not None:
            if present is not None and present.failure is not None and present.commit is None:
                raise present.failure
            before_replace(_store_inverse(commits, edits, target, title))
        policy = "take" if present else "refuse"
        displaced = self._change(commits, edits, (here, target), title, policy)
        if present is not None:
            self._warn_if_irreversible(present)
        written = [each.path for each in edits if each.after.kind in ("file", "symlink")]
        changes = [
            PathChange(each.path, displaced.get(each.path, each.before), each.after)
            for each in edits
        ]
        return RestoreResult(written, present is None or present.commit is not None, changes)

    def replace(
        self,
        state: ReadableFilesystem,
        name: str,
        *,
        before_replace: Callable[[str], None] | None = None,
    ) -> list[str]:
        """Replace everything with `state`, imported from `name`; return the written files.

        `before_replace` is called with the commit of the present state.

        Raises:
            SnapshotError: The store is damaged.
            OSError: Something cannot be read or written.
        """
        try:
            with self._lock_repository() as commits:
                here = commits.view(commits.take(f"before import of {name}").commit_ref)
                target = commits.view(commits.import_state(state, f"import of {name}"))
                edits = edits_between(here, target)
                title = f"import of {name}"
                if before_replace is not None:
                    before_replace(_store_inverse(commits, edits, target, title))
                self._change(commits, edits, (here, target), title, "take")
                return [each.path for each in edits if each.after.kind in ("file", "symlink")]
        except OSError as error:
            raise self._explain(error) from error
        except ObjectError as error:
            raise SnapshotError(f"Failed to import {display_path(name)!r}: {error}") from error

    def return_to(self, commits: str) -> None:
        """Undo a restore inside a savepoint that is rolled back.

        Of two commits, `A:B`, what differs between them goes back from B to A, wherever it still
        is as in B: somebody may have saved since.

        Raises:
            SnapshotRestoreError: It could not be restored.
        """
        first, _, second = commits.partition(":")
        try:
            with self._lock_repository() as store:
                states = store.view(second), store.view(first)
                edits = drop_done(self._directory, edits_between(*states))
                self._change(store, edits, states, f"rollback to {first}", "skip")
        except (OSError, ObjectError) as error:
            raise SnapshotRestoreError(
                f"Failed to return to {first}: {self._explain(error)}"
            ) from error

    def list_edits(self, commits: str) -> Sequence[Edit]:
        """Return what differs between two commits, `A:B`, as edits that lead from A to B."""
        first, _, second = commits.partition(":")
        with self._lock_repository() as store:
            return edits_between(store.view(first), store.view(second))

    def _change(
        self,
        commits: WorkspaceCommits,
        edits: Sequence[Edit],
        states: tuple[SnapshotFilesystem, SnapshotFilesystem],
        title: str,
        policy: Policy,
    ) -> Mapping[str, EntryState]:
        """Carry out edits; store and return what somebody saved at one of the paths meanwhile."""

        def keep(files: Mapping[str, Place]) -> None:
            self.displaced = commits.store_displaced(states[0], files, f"saved during a {title}")
            _log.warning(
                "Saved by somebody during a %s, and kept in snapshot %s: %s",
                title,
                self.displaced.snapshot_id,
                ", ".join(map(display_path, files)),
            )

        self.displaced = None
        if not edits:
            return {}
        self._tracker.touch(*(each.path for each in edits))
        try:
            result = restore_edits(
                self._directory,
                edits,
                states[1],
                on_conflict=policy,
                durable=not self._exclusive,
                keep=keep,
            )
        except BaseException as error:
            self._is_unfinished = has_interrupted(self._directory)
            if self._is_unfinished:
                with suppress(SnapshotRestoreError):  # an interrupt may have ended the rollback
                    self.recover()
            if self._is_unfinished and isinstance(error, OSError):
                raise SnapshotRestoreError(
                    f"Failed to restore, and to roll back: {self._explain(error)};"
                    " the next snapshot or restore tries again"
                ) from error
            raise
        for each in result.kept:
            _log.warning("%s", each)
        return result.displaced

    # --- the repository ---

    def recover(self) -> None:
        """Roll back a restore or an import that was interrupted by a crash."""
        recover_restores(self._directory, self._root)
        self._is_unfinished = False

    def existing_repository(self) -> Repository | None:
        """Return the repository if there is one, even of another process.

        Raises:
            SnapshotError: The filesystem is closed, or the repository is not ours.
        """
        with self._lock:
            self._check_open()
            if self._commits is None and not self._git_dir.exists():
                return None
            return self._open().repository

    def close(self) -> None:
        """Close the repository; the snapshots stay."""
        with self._lock:
            self._closed = True
            self._tracker.close()
            if self._commits is not None:
                repository = self._commits.repository
                with suppress(OSError):  # the repository was removed
                    self._tracker.save_index(repository)
                self._use.close()
                repository.close()
                self._commits = None

    def cleanup(self) -> None:
        """Remove the repository if it is ours and nobody else uses it.

        Raises:
            SnapshotError: It is ours, and cannot be removed.
        """
        with self._lock:
            try:
                if self._commits is None:
                    repository = self._unused_repository()
                else:
                    repository = self._commits.repository
                self._use.close()
                self._commits = None
                self._tracker.forget()
                if repository is not None:
                    repository.remove()
            except OSError as error:
                raise SnapshotError(
                    f"Failed to remove snapshots: {self._explain(error)}"
                ) from error

    # --- steps ---

    @contextmanager
    def _lock_repository(self) -> Generator[WorkspaceCommits, None, None]:
        """Hold the repository's lock, with no interrupted restore pending."""
        with self._lock:
            commits = self._open()
            with commits.repository.lock():
                if self._read_only:
                    check_recovered(self._directory, self._root)
                elif self._is_unfinished:
                    self.recover()
                yield commits

    def _open(self) -> WorkspaceCommits:
        self._check_open()
        if self._commits is None:
            self._check_outside(self._git_dir)
            repository = Repository.create(self._git_dir, root=self._real_root)
            self._use.enter_context(repository.prevent_removal())
            self._commits = WorkspaceCommits(repository, self._directory, self._tracker, self._root)
        return self._commits

    def _repository_of(self, snapshot: FilesystemSnapshot) -> Repository:
        check_snapshot(snapshot)
        if not is_object_id(snapshot.commit_ref):
            raise SnapshotRestoreError(f"Unknown snapshot: {str(snapshot)!r} is not from the host")
        if self._has_own_store(snapshot):
            repository = self._open().repository
            repository.objects.refresh()  # another process may have removed it
            return repository
        try:
            git_dir = Path(snapshot.git_dir or "")
            self._check_outside(git_dir)
            return Repository.open(git_dir)
        except (SnapshotError, OSError, ValueError) as error:
            raise SnapshotRestoreError(f"Unknown snapshot: {error}") from error

    def _unused_repository(self) -> Repository | None:
        """Return the repository without using it; None if it is missing or not ours."""
        if self._git_dir.exists() and not self._overlaps_workspace(self._git_dir):
            with suppress(SnapshotError):
                return Repository.create(self._git_dir, root=self._real_root)
        return None

    def _adopt(
        self, commits: WorkspaceCommits, snapshot: FilesystemSnapshot, then: SnapshotFilesystem
    ) -> SnapshotFilesystem:
        """Return the state of a snapshot in this store; copy a foreign one."""
        if self._has_own_store(snapshot):
            return then
        if then.entry_count() > _MAX_ENTRIES:
            raise SnapshotRestoreError(
                f"Failed to restore {snapshot}: it has more than {_MAX_ENTRIES} entries"
            )
        return commits.view(commits.import_state(then, f"copy of {snapshot.snapshot_id}"))

    def _warn_if_irreversible(self, present: PresentState) -> None:
        if present.commit is None:
            _log.warning(
                "No room to keep the state before, so this restore cannot be undone: %r (%s)",
                self._root,
                present.failure,
            )

    def _explain(self, error: Exception) -> Exception:
        return explain_store_error(error, self._root, self._git_dir)

    # --- checks ---

    def _check_open(self) -> None:
        if self._closed:
            raise SnapshotError(f"Filesystem is closed: {self._root!r}")

    def _check_outside(self, git_dir: Path) -> None:
        if self._overlaps_workspace(git_dir):
            raise SnapshotError(
                "Snapshot store must not be in the workspace, nor the workspace in it:"
                f" {str(git_dir)!r}; choose another git_dir"
            )

    def _check_origin(self, snapshot: FilesystemSnapshot, *, force: bool) -> None:
        try:
            is_ours = Path(snapshot.root_path).resolve() == self._real_root
        except (OSError, ValueError):
            is_ours = False
        if is_object_id(snapshot.commit_ref) and not force and not is_ours:
            raise SnapshotRestoreError(
                f"Failed to restore {snapshot}: it belongs to another workspace;"
                " pass force=True to restore it here"
            )

    def _has_own_store(self, snapshot: FilesystemSnapshot) -> bool:
        """Return whether a snapshot names this store, in whatever spelling, or none."""
        if snapshot.git_dir is None:
            return True
        try:
            return os.path.realpath(snapshot.git_dir) == os.path.realpath(self._git_dir)
        except ValueError:
            return False

    def _overlaps_workspace(self, git_dir: Path) -> bool:
        """Return whether a store is in the workspace, where an agent can write, or vice versa."""
        real = Path(os.path.realpath(git_dir))
        return real.is_relative_to(self._real_root) or self._real_root.is_relative_to(real)


def _store_inverse(
    commits: WorkspaceCommits, edits: Sequence[Edit], target: SnapshotFilesystem, title: str
) -> str:
    """Return two commits that differ in what edits change, to go back from the second."""
    before = {each.path: each.before for each in edits}
    first = commits.store_entries(target, before, {}, f"before {title}")
    second = commits.store_entries(target, {}, {}, f"after {title}")
    return f"{first.commit_ref}:{second.commit_ref}"


def _sizes_of(
    edits: Sequence[Edit], here: SnapshotFilesystem, target: SnapshotFilesystem
) -> dict[str, int]:
    """Return the sizes of all blobs in edits."""
    sizes = {
        each.before.blob: here.objects.size_of(each.before.blob)
        for each in edits
        if each.before.blob
    }
    return sizes | {
        each.after.blob: target.objects.size_of(each.after.blob)
        for each in edits
        if each.after.blob
    }
