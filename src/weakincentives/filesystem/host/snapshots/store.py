"""The snapshot store of one host directory: take, view and restore snapshots.

A snapshot is a commit in a git repository outside the directory. Whatever replaces the files (a
restore of all or some paths, an import, a rollback to a commit) goes through the change engine:
all or nothing, and what somebody saves meanwhile is stored as another snapshot. The present state
becomes a commit first, so each of them can be undone. Only a restore works without room for that.
"""

import errno
import logging
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import RLock
from typing import NamedTuple

from weakincentives.errors import (
    SnapshotError,
    SnapshotRestoreError,
    UnfinishedRestoreError,
    WinkError,
)
from weakincentives.filesystem.base import ReadableFilesystem
from weakincentives.filesystem.base.state import State, check_restorable, check_snapshot
from weakincentives.filesystem.host.snapshots.commits import WorkspaceCommits, view_commit
from weakincentives.filesystem.host.snapshots.edits import (
    differing_paths,
    drop_done,
    edits_between,
    entry_state,
    has_interrupted,
    is_same,
    recover_restores,
    restore_edits,
    usage_change,
)
from weakincentives.filesystem.host.snapshots.tracker import ChangeTracker
from weakincentives.filesystem.host.snapshots.view import SnapshotFilesystem
from weakincentives.filesystem.host.snapshots.writer import TreeWriter
from weakincentives.filesystem.limits import LimitExceededError
from weakincentives.filesystem.paths import outermost
from weakincentives.filesystem.types import FilesystemSnapshot
from weakincentives.gitstore import ObjectError, Repository, default_git_dir, is_object_id
from weakincentives.history import Edit, EntryState, Openers, PathChange, Policy
from weakincentives.posix import (
    BackendUnavailableError,
    RootedDirectory,
    display_path,
    is_hidden,
    os_error,
)

_MAX_ENTRIES = 10_000_000  # in a snapshot from another store, which may be crafted
_log = logging.getLogger(__name__)


class RestoreResult(NamedTuple):
    """The outcome of a restore."""

    rewritten: list[str]
    """What differed, even where somebody had put it back already."""
    reversible: bool
    """Whether the state before is stored, so that the restore can be undone."""
    changes: Sequence[PathChange] = ()
    """What was replaced; its content is in the store."""
    is_whole: bool = False
    """Whether everything that differed was replaced, and was as expected."""


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
        self.tracker: ChangeTracker = ChangeTracker(directory, exclusive=exclusive)
        self._read_only = read_only
        self._lock = RLock()
        self._use = ExitStack()
        self._exclusive = exclusive
        self._commits: WorkspaceCommits | None = None  # None until the repository is open
        self._known: FilesystemSnapshot | None = None  # the last state that was stored
        # what a restore has just changed, if that led from the last known state to this one
        self._reverted: tuple[Sequence[PathChange], FilesystemSnapshot] | None = None
        self.is_unfinished: bool = False
        """Whether a restore failed half-way: to finish it would undo a change made now."""
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

    def blob_id(self, path: str) -> str | None:
        """Return the git blob id of a file, if its stat is still that of the last capture."""
        with self._lock:
            if not self._has_ids:
                self._has_ids = True
                if not self._overlaps_workspace(self._git_dir):
                    self.tracker.load_ids(self._git_dir, root=os.fspath(self._real_root))
        return self.tracker.blob_id(path)

    # --- snapshots ---

    def take(self, tag: str | None) -> FilesystemSnapshot:
        """Take a snapshot of the present state.

        Raises:
            SnapshotError: It could not be taken.
        """
        with self._translate("create snapshot", SnapshotError), self._lock_repository() as commits:
            self._known = commits.take(tag)
            return self._known

    def record(self, changes: Sequence[PathChange]) -> CallStates:
        """Store the states before and after a call that changed these paths.

        Raises:
            SnapshotError: They could not be stored.
        """
        with self._translate("store a change", SnapshotError), self._lock_repository() as commits:
            return self._record(commits, changes)

    def _record(self, commits: WorkspaceCommits, changes: Sequence[PathChange]) -> CallStates:
        known = self._known or commits.take("before a call")
        if self._reverted is not None and self._reverted[0] is changes:
            self._known = self._reverted[1]
            paths = tuple(sorted(each.path for each in changes))
            return CallStates(known, self._known, paths, None, None, ())
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
        with self._lock, self._translate("restore", of=snapshot):
            return self._view(snapshot)[0]

    def compare(self, before: FilesystemSnapshot, after: FilesystemSnapshot) -> list[str]:
        """Return the paths that differ between two snapshots.

        Raises:
            SnapshotRestoreError: A snapshot is unknown or damaged.
        """
        one, other = self.view(before), self.view(after)
        with self._translate("compare", of=before):
            return differing_paths(one, other)

    def changed_since(self, snapshot: FilesystemSnapshot) -> list[str] | None:
        """Return the paths that differ from `snapshot` now; None if that is not known."""
        try:
            with self._lock:
                then = self.view(snapshot)
                with self._lock_repository() as commits:
                    return differing_paths(commits.capture_only(), then)
        except (OSError, ObjectError, SnapshotError):
            return None

    def restore(
        self,
        snapshot: FilesystemSnapshot | SnapshotFilesystem,
        *,
        paths: Sequence[str] | None = None,
        force: bool = False,
        expect: FilesystemSnapshot | SnapshotFilesystem | None = None,
        check: Callable[[tuple[int, int]], None] | None = None,
        before_replace: Callable[[str], None] | None = None,
    ) -> RestoreResult:
        """Restore everything, or only `paths`, to a state, as `HostFilesystem.restore` does.

        Before anything changes, `check` is called with the bytes and entries that are added, and
        `before_replace` with the commits to go back to. If they cannot be stored because there is
        no room, nothing is restored; without `before_replace` the restore still happens.
        """
        wanted = None if paths is None else outermost(paths)
        is_kept = before_replace is not None  # then this store needs all of it
        with self._translate("restore", of=snapshot):
            self._directory.check()
            if not isinstance(snapshot, SnapshotFilesystem):
                check_snapshot(snapshot)
                self._check_origin(snapshot, force=force)
            with self._lock_repository() as commits:
                here = None
                if expect is not None:  # compared with what is there, so it has all bits
                    here = self._adopt(commits, expect, is_kept=is_kept, with_rights=True)
                states = here, self._adopt(commits, snapshot, is_kept=is_kept)
                title = f"restore of {name_state(snapshot)}"
                result = self._restore(commits, title, states, wanted, check, before_replace)
                self._note_reverted(result, here, snapshot)
                return result

    def _restore(
        self,
        commits: WorkspaceCommits,
        title: str,
        states: tuple[SnapshotFilesystem | None, SnapshotFilesystem],
        paths: Sequence[str] | None,
        check: Callable[[tuple[int, int]], None] | None,
        before_replace: Callable[[str], None] | None,
    ) -> RestoreResult:
        """Restore the second of the `states`; the first is what to expect, if that is known."""
        (expected, target), present = states, None
        here = expected
        if here is None:
            # only what others may have saved has to be on the disk before it is replaced
            wait = not self._exclusive
            present = commits.take_present(f"before {title}", wait=wait)
            here, self.replaced = present.state, present.snapshot
        if paths is not None:
            check_restorable(State(here), State(target), paths)
        edits = planned = edits_between(here, target, paths)
        if present is None:
            edits = drop_done(self._directory, planned, paths)
        if check is not None:
            check(usage_change(edits, here, target))
        if before_replace is not None:
            if present is not None and present.failure is not None and not here.commit:
                raise present.failure
            before = here.commit if present is not None and paths is None else ""
            before = before or _store_before(commits, edits, target, title)
            before_replace(f"{before}:{target.commit}")
        policy = "take" if present else "refuse"
        displaced = self._change(commits, edits, (here, target), title, policy)
        is_reversible = present is None or bool(here.commit)
        if not is_reversible:
            text = "No room to keep the state before, so this restore cannot be undone: %r (%s)"
            _log.warning(text, self._root, present and present.failure)
        changes = _list_changes(edits, displaced)
        is_whole = paths is None and len(edits) == len(planned) and not displaced
        rewritten = [each.path for each in planned]
        return RestoreResult(rewritten, is_reversible, changes, is_whole)

    def _note_reverted(
        self,
        result: RestoreResult,
        expected: SnapshotFilesystem | None,
        target: FilesystemSnapshot | SnapshotFilesystem,
    ) -> None:
        """Note whether a restore led from the last known state to a stored one, as an undo does."""
        known = "" if self._known is None else self._known.commit_ref
        is_exact = expected is not None and expected.commit == known and result.is_whole
        if is_exact and isinstance(target, FilesystemSnapshot) and self._has_own_store(target):
            self._reverted = result.changes, target

    def replace(
        self,
        state: ReadableFilesystem,
        name: str,
        *,
        before_replace: Callable[[str], None] | None = None,
    ) -> list[str]:
        """Replace everything with `state`, imported from `name`; return what differed.

        `before_replace` is called with the commit of the present state.

        Raises:
            SnapshotError: The store is damaged.
            OSError: Something cannot be read or written.
        """
        try:
            with self._lock_repository() as commits:
                title = f"import of {name}"
                states = None, commits.view(commits.import_state(state, title))
                keep: Callable[[str], None] = before_replace or (lambda _: None)  # always needed
                return self._restore(commits, title, states, None, None, keep).rewritten
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
        with self._translate("return to", of=first), self._lock_repository() as store:
            states = store.view(second), store.view(first)
            edits = drop_done(self._directory, edits_between(*states))
            self._change(store, edits, states, f"rollback to {first}", "skip")

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
        self.displaced = None
        if not edits:
            return {}
        if self._exclusive:  # otherwise every capture looks at every path
            self.tracker.touch(*(each.path for each in edits))
        try:
            result = restore_edits(
                self._directory,
                edits,
                states[1],
                on_conflict=policy,
                durable=not self._exclusive,
                keep=partial(self._keep_displaced, commits, states[0], f"saved during a {title}"),
            )
        except BaseException as error:
            self.is_unfinished = has_interrupted(self._directory)
            if self.is_unfinished:
                with suppress(SnapshotRestoreError):  # an interrupt may have ended the rollback
                    self.recover()
            if self.is_unfinished and isinstance(error, OSError):
                raise UnfinishedRestoreError(
                    f"Failed to restore, and to roll back: {self._explain(error)};"
                    " the next snapshot or restore tries again"
                ) from error
            raise
        for each in result.kept:
            _log.warning("%s", each)
        return result.displaced

    def _keep_displaced(
        self,
        commits: WorkspaceCommits,
        state: SnapshotFilesystem,
        fact: str,
        entries: Mapping[str, EntryState],
        contents: Openers,
    ) -> None:
        """Store what came out of a change; if that fails, the engine keeps it beside its path."""
        names = ", ".join(map(display_path, entries))
        try:
            for path, entry in entries.items():
                if entry.kind not in {"file", "symlink"}:
                    raise os_error(errno.EINVAL, path, "Only files and links can be stored")
            kept = self.displaced = commits.store_entries(state, entries, contents, fact)
        except (OSError, WinkError) as error:
            _log.warning("Cannot store what somebody %s: %s: %s", fact, names, error)
            raise
        _log.warning("Kept in snapshot %s what somebody %s: %s", kept.snapshot_id, fact, names)

    # --- the repository ---

    def recover(self) -> None:
        """Roll back a restore or an import that was interrupted by a crash."""
        recover_restores(self._directory, self._root)
        self.is_unfinished = False

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
            self.tracker.close()
            if self._commits is not None:
                repository = self._commits.repository
                with suppress(OSError):  # the repository was removed
                    self.tracker.save_index(repository)
                self._use.close()
                repository.close()
                self._commits = None

    def cleanup(self) -> None:
        """Remove the repository if it is ours and nobody else uses it.

        Raises:
            SnapshotError: It is ours, and cannot be removed.
        """
        with self._lock, self._translate("remove snapshots", SnapshotError):
            if self._commits is None:
                repository = self._unused_repository()
            else:
                repository = self._commits.repository
            self._use.close()
            self._commits = None
            self.tracker.forget()
            if repository is not None:
                repository.remove()

    # --- steps ---

    @contextmanager
    def _lock_repository(self) -> Generator[WorkspaceCommits, None, None]:
        """Hold the repository's lock, with no interrupted restore pending."""
        with self._lock:
            commits = self._open()
            with commits.repository.lock():
                if self._read_only and has_interrupted(self._directory):
                    raise SnapshotError(
                        "An interrupted restore must be finished first:"
                        f" open for writing {self._root!r}"
                    )
                if self.is_unfinished:
                    self.recover()
                yield commits

    def _open(self) -> WorkspaceCommits:
        self._check_open()
        if self._commits is None:
            self._check_outside(self._git_dir)
            repository = Repository.create(self._git_dir, root=self._real_root)
            self._use.enter_context(repository.prevent_removal())
            self._commits = WorkspaceCommits(repository, self._directory, self.tracker, self._root)
        return self._commits

    def _view(self, snapshot: FilesystemSnapshot) -> tuple[SnapshotFilesystem, Repository]:
        """Return the state of a snapshot, and the repository that has it."""
        check_snapshot(snapshot)
        if not is_object_id(snapshot.commit_ref):
            raise SnapshotRestoreError(f"Unknown snapshot: {str(snapshot)!r} is not from the host")
        if self._has_own_store(snapshot):
            commits = self._open()
            return commits.view(snapshot.commit_ref), commits.repository
        try:
            git_dir = Path(snapshot.git_dir or "")
            self._check_outside(git_dir)
            repository = Repository.open(git_dir)
        except (SnapshotError, OSError, ValueError) as error:
            raise SnapshotRestoreError(f"Unknown snapshot: {error}") from error
        return view_commit(repository, snapshot.commit_ref, self._root), repository

    def _unused_repository(self) -> Repository | None:
        """Return the repository without using it; None if it is missing or not ours."""
        if self._git_dir.exists() and not self._overlaps_workspace(self._git_dir):
            with suppress(SnapshotError):
                return Repository.create(self._git_dir, root=self._real_root)
        return None

    def _adopt(
        self,
        commits: WorkspaceCommits,
        snapshot: FilesystemSnapshot | SnapshotFilesystem,
        *,
        is_kept: bool,
        with_rights: bool = False,
    ) -> SnapshotFilesystem:
        """Return a state in this store; copy one of another store, and a view that is kept.

        Unless `with_rights`, set-user-ID bits and the like are only those of a store that belongs
        to this root.
        """
        if isinstance(snapshot, SnapshotFilesystem):
            then, is_stored = snapshot, not is_kept
        else:
            then, repository = self._view(snapshot)
            is_stored = repository is commits.repository
            with_rights = with_rights or repository.root == str(self._real_root)
        then = then if with_rights else then.without_rights()
        if is_stored:
            return then
        if then.entry_count() > _MAX_ENTRIES:
            raise SnapshotRestoreError(
                f"Failed to restore {snapshot}: it has more than {_MAX_ENTRIES} entries"
            )
        return commits.view(commits.import_state(then, f"copy of {name_state(snapshot)}"))

    @contextmanager
    def _translate(
        self, action: str, kind: type[SnapshotError] = SnapshotRestoreError, of: object = ""
    ) -> Generator[None, None, None]:
        """Raise what a store or a disk raises as an error of the `kind`, with what failed."""
        try:
            yield
        except (SnapshotRestoreError, LimitExceededError):
            raise
        except BackendUnavailableError as error:
            is_restore = kind is SnapshotRestoreError
            kind = _UnavailableRestoreError if is_restore else _UnavailableSnapshotError
            raise kind(f"Failed to {f'{action} {of}'.rstrip()}: {error}") from error
        except (OSError, ObjectError, SnapshotError) as error:
            raise kind(f"Failed to {f'{action} {of}'.rstrip()}: {self._explain(error)}") from error

    def _explain(self, error: Exception) -> Exception:
        """Return an error that names a place, unless `error` names a visible one."""
        if not isinstance(error, OSError) or isinstance(error, WinkError):
            return error
        name = "" if error.filename is None else os.fsdecode(error.filename)
        if name and not name.startswith("/proc/") and not is_hidden(name):
            return error
        text = f"{error.strerror or 'Failed'} in the workspace, or in its store {self._git_dir}"
        return os_error(error.errno or errno.EIO, self._root, text)

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
        if force or snapshot.root_path == self._root:
            return
        try:
            is_ours = Path(snapshot.root_path).resolve() == self._real_root
        except (OSError, ValueError):
            is_ours = False
        if is_object_id(snapshot.commit_ref) and not is_ours:
            raise SnapshotRestoreError(
                f"Failed to restore {snapshot}: it belongs to another workspace;"
                " pass force=True to restore it here"
            )

    def _has_own_store(self, snapshot: FilesystemSnapshot) -> bool:
        """Return whether a snapshot names this store, in whatever spelling, or none."""
        if snapshot.git_dir is None or snapshot.git_dir == str(self._git_dir):
            return True
        try:
            return os.path.realpath(snapshot.git_dir) == os.path.realpath(self._git_dir)
        except ValueError:
            return False

    def _overlaps_workspace(self, git_dir: Path) -> bool:
        """Return whether a store is in the workspace, where an agent can write, or vice versa."""
        real = Path(os.path.realpath(git_dir))
        return real.is_relative_to(self._real_root) or self._real_root.is_relative_to(real)


def name_state(state: FilesystemSnapshot | SnapshotFilesystem) -> str:
    """Return the id of a snapshot, or that of the tree of a view."""
    return state.tree_id if isinstance(state, SnapshotFilesystem) else str(state.snapshot_id)


def _list_changes(edits: Sequence[Edit], displaced: Mapping[str, EntryState]) -> list[PathChange]:
    """Return what was changed, with what was displaced as the state before."""
    return [
        PathChange(each.path, displaced.get(each.path, each.before), each.after) for each in edits
    ]


def _store_before(
    commits: WorkspaceCommits, edits: Sequence[Edit], target: SnapshotFilesystem, title: str
) -> str:
    """Return a commit that differs from `target` in what edits change, to go back to."""
    before = {each.path: each.before for each in edits}
    return commits.store_entries(target, before, {}, f"before {title}").commit_ref
