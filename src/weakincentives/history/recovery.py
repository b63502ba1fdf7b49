"""Recovery of changes that were interrupted: found by their records, rolled back or finished.

A recovery does what a rollback does, and is decided by the disk alone: a path that somebody
has saved since is left alone and reported.
"""

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass

from weakincentives.history.change import accessible_root, end_change
from weakincentives.history.entries import LiveTree
from weakincentives.history.records import (
    ChangeRecord,
    Ending,
    RecordError,
    Staging,
    find_staging,
    is_abandoned,
)
from weakincentives.history.rollback import Kept, hold_directories
from weakincentives.posix import RootedDirectory


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A change that has a record in a directory: it is going on, or was interrupted."""

    name: str
    record: ChangeRecord
    is_done: bool
    """Whether it happened, so that only what it displaced is left to remove."""

    @property
    def is_running(self) -> bool:
        """Whether a process may still make it."""
        return not is_abandoned(self.name)

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths that it was going to change, sorted."""
        changed = {path for each in self.record.operations for path in each.paths}
        return tuple(sorted(changed | {each.path for each in self.record.modes}))


@dataclass(frozen=True, slots=True)
class Recovery:
    """The recovery of one interrupted change."""

    record: ChangeRecord
    is_done: bool
    """Whether it had happened and stays; otherwise it was rolled back."""
    paths: tuple[str, ...]
    """The paths that were changed or changed back, sorted."""
    kept: tuple[Kept, ...]
    """Concurrent changes that were left alone, and where the other versions are."""

    @property
    def kind(self) -> str:
        """What it was: an apply, an undo, a restore."""
        return self.record.kind


def find_changes(root: RootedDirectory) -> list[PendingChange]:
    """Return the changes that have a record in a directory, of any process; read-only.

    Raises:
        RecordError: A record is damaged.
    """
    found: list[PendingChange] = []
    with closing(LiveTree(root)) as tree:
        for name in find_staging(tree):
            staging, record = Staging.open(tree, name)
            if record is not None:
                found.append(PendingChange(name, record, staging.phase == "done"))
    return found


def remove_abandoned(root: RootedDirectory) -> None:
    """Remove what was staged by processes that were killed before they changed anything."""
    with closing(LiveTree(root)) as tree:
        tree.remove_leftovers("")
        for name in filter(is_abandoned, find_staging(tree)):
            with suppress(OSError, RecordError):  # one that is damaged is reported elsewhere
                staging, record = Staging.open(tree, name)
                if record is None:
                    staging.remove()


def recover_change(
    root: RootedDirectory,
    pending: PendingChange,
    on_end: Callable[[ChangeRecord, Ending], None] = lambda _, __: None,
) -> Recovery:
    """Roll back an interrupted change, or finish one that had happened.

    A path is rolled back only if it still has exactly what the change put there.

    Raises:
        RecordError: The record is damaged.
        OSError: Something could not be rolled back; the next recovery tries again.
    """
    with closing(LiveTree(root)) as tree, accessible_root(root, pending.record.root_mode):
        staging, record = Staging.open(tree, pending.name)
        if record is None:  # another process was faster
            return Recovery(pending.record, pending.is_done, (), ())
        return _recover(tree, staging, record, on_end)


def _recover(
    tree: LiveTree,
    staging: Staging,
    record: ChangeRecord,
    on_end: Callable[[ChangeRecord, Ending], None],
) -> Recovery:
    hold_directories(tree, record.directories)
    was_done = staging.phase == "done"
    is_done = was_done or (record.rolls_forward and staging.phase != "reverting")
    ending: Ending = "committed" if is_done else "rolled back"
    rollback = end_change(tree, staging, record, ending, on_end)
    if rollback.failures and not was_done:
        error = rollback.failures[0]
        for each in rollback.kept:
            error.add_note(str(each))
        raise error
    done = (path for each in record.operations for path in each.paths)
    paths = done if is_done else rollback.undone
    return Recovery(record, is_done, tuple(sorted(set(paths))), tuple(rollback.kept))
