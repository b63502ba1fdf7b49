"""A workspace in a directory of the host: its files, and a history of them outside it."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem.diffs.diff import Diff, diff
from weakincentives.filesystem.directory import DirectoryFilesystem
from weakincentives.filesystem.journals.needs import needed_commits
from weakincentives.filesystem.journals.recovery import Recovery
from weakincentives.filesystem.limits import DEFAULT_LIMITS, Limits
from weakincentives.filesystem.paths import outermost
from weakincentives.filesystem.readable import ReadableFilesystem
from weakincentives.filesystem.savepoints import SavepointError
from weakincentives.filesystem.snapshots.history import History
from weakincentives.filesystem.snapshots.ledger import Pins, SnapshotHistory
from weakincentives.filesystem.snapshots.partial import check_paths, without_new_specials
from weakincentives.filesystem.states import State
from weakincentives.filesystem.store.objects import ObjectError
from weakincentives.filesystem.types import FilesystemSnapshot

_pins = Pins()  # of all instances: they may share a directory


class HostFilesystem(DirectoryFilesystem):
    """A filesystem over a directory, whose states can be kept and brought back."""

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        read_only: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        durable: bool = False,
        cross_mounts: bool = False,
        git_dir: str | os.PathLike[str] | None = None,
        exclusive: bool = False,
        _root: str | os.PathLike[str] | None = None,
        _read_only: bool = False,
        _git_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Open the directory.

        Args:
            root: The directory, which must exist; a link to it is resolved once, now.
            read_only: Refuse to write.
            limits: What is allowed; there is no quota unless one is set.
            durable: Write through to the disk: what `write` returned from survives power loss.
            cross_mounts: Enter other file systems that are mounted below the root.
            git_dir: Where snapshots are kept; by default a place derived from the root.
            exclusive: The caller's promise that nothing but this instance changes the
                directory, or that `changed_outside` is called when something has. A
                snapshot then looks only at what was changed here, and not at every file.
        """
        given = root if root is not None else _root
        if given is None:
            raise TypeError("HostFilesystem needs a root directory")
        if not os.fspath(given):
            raise ValueError("HostFilesystem needs a root directory, not an empty path")
        super().__init__(
            os.fspath(given),
            limits=limits,
            read_only=read_only or _read_only,
            durable=durable,
            cross_mounts=cross_mounts,
        )
        place = git_dir if git_dir is not None else _git_dir
        if place is not None and "\0" in os.fspath(place):
            raise ValueError(f"git_dir holds a NUL character: {os.fspath(place)!r}")
        self._history = History(
            self._directory,
            os.path.abspath(given),  # noqa: PTH100 # the spelling, links kept
            Path(os.path.realpath(given)),
            git_dir=None if place is None else Path(place).absolute(),
            exclusive=exclusive,
            may_recover=not self._read_only,
            keep=self._journal.keep_state,
            needed=lambda: bool(self._journal),
        )
        if not self._read_only:
            self._recover()  # first: it may take back a restore that is not finished
            self._history.finish()
            self._sweep()

    @property
    def git_dir(self) -> str | None:
        """The git repository that holds the snapshots; None before the first one."""
        found = self._history.git_dir
        return None if found is None else str(found)

    @property
    def history(self) -> SnapshotHistory:
        """The snapshots of this directory: to list, prune and verify."""
        root = os.path.abspath(self._given)  # noqa: PTH100 # the spelling
        return SnapshotHistory(self._history.existing, root, self._needed_commits)

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        """Keep the present state of everything below the root, whoever made it.

        Raises:
            SnapshotError: Something could not be read or stored; nothing was kept.
        """
        with self._lock:
            self._journal.settle()
            return self._history.take(tag)

    def pin(self, snapshot: FilesystemSnapshot) -> Callable[[], None]:
        """Keep a snapshot until the returned function is called, whatever is forgotten."""
        return _pins.add(snapshot.commit_ref)

    def restore(
        self,
        snapshot: FilesystemSnapshot,
        *,
        paths: Sequence[str] | None = None,
        force: bool = False,
    ) -> None:
        """Make everything as it was then, or only what is at and below `paths`.

        What was made since is gone; the state before is kept as a snapshot, so that a
        restore can be undone. If the store has no room for it, the restore is done all the
        same: that is logged as a warning, and listeners are told `reversible=False`. A
        snapshot of another directory is refused unless `force` says otherwise.

        Raises:
            SnapshotRestoreError: It cannot be done, and nothing has changed.
            LimitExceededError: The state would exceed the quota.
        """
        self._refuse_read_only("")
        with self._lock:
            self._journal.settle()
            done = self._history.restore(
                snapshot, paths=paths, force=force, check=self._check_restored
            )
            self._tell_replaced(
                "restore", snapshot.commit_ref, done.written, reversible=done.reversible
            )

    def preview(self, snapshot: FilesystemSnapshot, *, paths: Sequence[str] | None = None) -> Diff:
        """Return what `restore` with the same arguments would change."""
        then = self.view(snapshot)
        try:
            if paths is None:
                return without_new_specials(diff(self, then))
            wanted = outermost(paths)
            check_paths(State(self), State(then), wanted)
            return without_new_specials(diff(self, then, path=wanted))
        except ObjectError as error:
            raise SnapshotRestoreError(f"Failed to restore {snapshot}: {error}") from error

    def view(self, snapshot: FilesystemSnapshot) -> ReadableFilesystem:
        """Return the state that a snapshot keeps, to read and compare."""
        return self._history.view(snapshot)

    def changed_outside(self) -> None:
        """Say that something else may have changed files: the next snapshot looks at all."""
        self._history.changed_outside()

    def cleanup(self) -> None:
        """Remove the snapshots of this directory, unless another instance uses them."""
        with self._lock:
            if self._lock.open:
                raise SavepointError("Cannot remove snapshots while a savepoint is open")
            if self._lock.is_held:
                raise SavepointError("Cannot remove snapshots while a transaction is open")
            self._history.cleanup()

    def close(self) -> None:
        """Close the root directory; nothing works afterwards. Snapshots stay."""
        try:
            super().close()
        finally:
            self._history.close()

    def _replace_all(self, state: ReadableFilesystem, name: str) -> Sequence[str]:
        self._journal.settle()
        self._check_quota_for(State(state))
        return self._history.replace(state, name)

    def _check_restored(self, state: ReadableFilesystem) -> None:
        self._check_quota_for(State(state))

    def _will_change(self, path: str) -> None:
        self._history.touch(path)

    def _has_changed(self, path: str) -> None:
        self._history.note(path)

    def _needed_commits(self) -> set[str]:
        """Return the commits that something open, or an interrupted restore, goes back to."""
        decided = self._history.decided()
        needed = needed_commits(self._directory) | _pins.names()
        return needed | (set() if decided is None else {decided})

    def _return_to(self, commit: str) -> None:
        self._history.return_to(commit)

    def _recover(self) -> None:
        """Take back what processes that are gone have changed in their savepoints."""

        def keep() -> None:
            self._history.take("before the rollback of a savepoint whose process is gone")

        Recovery(self._directory, self._undo, keep).run()

    def _blob_id(self, path: str) -> str | None:
        return self._history.blob_id(path)
