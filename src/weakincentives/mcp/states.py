"""The states of a workspace: snapshots that are taken, compared, restored and let go."""

from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

from weakincentives.errors import SnapshotError
from weakincentives.filesystem import (
    Diff,
    Filesystem,
    FilesystemSnapshot,
    Pinnable,
    ReadableFilesystem,
    diff,
    diff_since,
)
from weakincentives.filesystem.base import State


@runtime_checkable
class _StateStore(Protocol):
    """Keeps states, shows them, and restores some of their paths."""

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot: ...

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Sequence[str] | None = None
    ) -> None: ...

    def view(self, snapshot: FilesystemSnapshot) -> Filesystem: ...


def has_history(filesystem: Filesystem) -> bool:
    """Return whether the states of a filesystem can be kept, compared and restored."""
    return isinstance(filesystem, ReadableFilesystem) and isinstance(filesystem, _StateStore)


class States:
    """The states of one filesystem; each is kept until it is released."""

    def __init__(self, filesystem: Filesystem) -> None:
        """Keep states of `filesystem`.

        Raises:
            TypeError: It has no snapshots to compare and restore.
        """
        if not isinstance(filesystem, ReadableFilesystem) or not isinstance(
            filesystem, _StateStore
        ):
            raise TypeError(f"{type(filesystem).__name__} does not support undo")
        self._filesystem: Filesystem = filesystem
        self._store: _StateStore = filesystem
        self.last: FilesystemSnapshot | None = None
        """The state that the present one is compared with before another one is taken."""
        self._unpin: dict[str, Callable[[], None]] = {}
        self.live: ReadableFilesystem = filesystem

    def take(self, tag: str) -> FilesystemSnapshot:
        """Return a new snapshot of the present state.

        Raises:
            SnapshotError: It could not be kept.
        """
        taken = self._store.snapshot(tag=tag)
        if isinstance(self._filesystem, Pinnable):
            with suppress(NotImplementedError):
                self._unpin[taken.commit_ref] = self._filesystem.pin(taken)
        self.last = taken
        return taken

    def present(self, tag: str) -> FilesystemSnapshot:
        """Return a snapshot of the present state; the last one if nothing has changed.

        Raises:
            SnapshotError: It could not be kept.
        """
        last = self.last
        if last is not None:
            with suppress(SnapshotError, OSError):
                if not diff_since(self._filesystem, last, renames=False):
                    return last
        return self.take(tag)

    def take_if_changed(self, before: FilesystemSnapshot, tag: str) -> FilesystemSnapshot | None:
        """Return a snapshot of the present state; None if it is the same as `before`.

        Raises:
            SnapshotError: It could not be kept.
        """
        taken = self.take(tag)
        if not State(self.view(before)).has_same_tree("", State(self.view(taken))):
            return taken
        self._release(taken.commit_ref)
        self.last = before
        return None

    def restore(self, snapshot: FilesystemSnapshot, paths: Sequence[str] | None = None) -> None:
        """Make the workspace as it was, or only what is at and below `paths`.

        Raises:
            SnapshotError: The state could not be restored.
        """
        self._store.restore(snapshot, paths=paths)

    def view(self, snapshot: FilesystemSnapshot) -> ReadableFilesystem:
        """Return the files of a state."""
        view = self._store.view(snapshot)
        assert isinstance(view, ReadableFilesystem)
        return view

    def diff(self, before: FilesystemSnapshot, after: FilesystemSnapshot | None) -> Diff:
        """Return the changes between two states; None is the present one."""
        if after is not None:
            return diff(self.view(before), self.view(after))
        found = diff_since(self._filesystem, before)
        assert found is not None  # it has snapshots
        return found

    def differences(self, snapshot: FilesystemSnapshot, paths: Sequence[str]) -> set[str]:
        """Return what is different now from a state, at and below `paths`."""
        then = self.view(snapshot)
        existing = [path for path in paths if has_entry(then, path) or has_entry(self.live, path)]
        if not existing:
            return set()
        return {each.path for each in diff(then, self.live, path=existing, renames=False).entries}

    def release_others(self, needed: Container[str]) -> None:
        """Let the states go whose commits are not `needed`; the last one stays."""
        last = None if self.last is None else self.last.commit_ref
        for reference in tuple(self._unpin):
            if reference not in needed and reference != last:
                self._release(reference)

    def close(self) -> None:
        """Let all states go."""
        for reference in tuple(self._unpin):
            self._release(reference)

    def _release(self, reference: str) -> None:
        unpin = self._unpin.pop(reference, None)
        if unpin is not None:
            unpin()


def has_entry(filesystem: Filesystem, path: str) -> bool:
    """Return whether there is anything at a path."""
    try:
        filesystem.stat(path)
    except OSError:
        return False
    return True
