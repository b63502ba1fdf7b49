"""What a restore has to do: the difference between what is there and what is wanted."""

from collections.abc import Iterator

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem.limits import check_time
from weakincentives.filesystem.paths import join, parents_of
from weakincentives.filesystem.snapshots.captured import Captured, CapturedDirectory, git_mode
from weakincentives.filesystem.snapshots.view import SnapshotFilesystem
from weakincentives.filesystem.store.trees import DIRECTORY, LINK, TreeEntry

_MAX_REPEATED = 1_000_000  # entries of directories that are there more than once


class RestorePlan:
    """What has to be done, in this order."""

    __slots__ = ("directories", "modes", "removed", "stored")

    def __init__(self) -> None:
        """Start with nothing to do."""
        self.removed: list[str] = []
        self.directories: list[tuple[str, int]] = []
        self.stored: list[tuple[str, TreeEntry, int]] = []
        self.modes: list[tuple[str, int]] = []

    @property
    def entries(self) -> list[str]:
        """Everything that appears, disappears or is replaced."""
        made = [path for path, _ in self.directories]
        return [*self.removed, *made, *(path for path, _, _ in self.stored)]

    @property
    def paths(self) -> list[str]:
        """Everything that changes."""
        return [*self.entries, *(path for path, _ in self.modes)]

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.removed or self.directories or self.stored or self.modes)


def plan_restore(current: CapturedDirectory, target: SnapshotFilesystem) -> RestorePlan:
    """Return what makes `current` the state of `target`; subtrees that agree are not looked at.

    Raises:
        SnapshotRestoreError: The snapshot is made to be endless.
    """
    plan = RestorePlan()
    pending: list[tuple[str, CapturedDirectory | None, str]] = [("", current, target.files)]
    seen: set[str] = set()
    repeated = 0
    while pending:
        path, here, tree = pending.pop()
        if here is not None and here.id == tree:
            continue
        check_time("Restore")
        wanted = target.tree(tree)
        if tree in seen:
            repeated += len(wanted)
            if repeated > _MAX_REPEATED:
                raise SnapshotRestoreError(
                    f"Failed to restore: the snapshot repeats more than {_MAX_REPEATED} entries"
                )
        seen.add(tree)
        children: dict[str, Captured] = {} if here is None else here.children
        plan.removed += [
            join(path, name)
            for name, child in children.items()
            if name not in wanted or not _is_same_kind(child, wanted[name])
        ]
        for name, entry in wanted.items():
            child = children.get(name)
            if child is None or child.id != entry.id or git_mode(child) != entry.mode:
                pending += _compare(plan, target, join(path, name), child, entry)
    _plan_specials(plan, current, target)
    _plan_modes(plan, current, target)
    plan.directories.sort()
    return plan


def _compare(
    plan: RestorePlan,
    target: SnapshotFilesystem,
    path: str,
    child: Captured | None,
    entry: TreeEntry,
) -> "Iterator[tuple[str, CapturedDirectory | None, str]]":
    permissions = target.permissions(path, entry.mode)
    if entry.mode == DIRECTORY:
        here = child if isinstance(child, CapturedDirectory) else None
        if here is None:
            plan.directories.append((path, permissions))
        yield path, here, entry.id
    elif child is None or child.id != entry.id or not _is_same_kind(child, entry):
        plan.stored.append((path, entry, permissions))
    elif git_mode(child) != entry.mode:
        plan.modes.append((path, permissions))


def _is_same_kind(child: Captured, entry: TreeEntry) -> bool:
    mode = git_mode(child)
    return mode == entry.mode or not {mode, entry.mode} & {DIRECTORY, LINK}


def _plan_specials(
    plan: RestorePlan, current: CapturedDirectory, target: SnapshotFilesystem
) -> None:
    kept, removed = set(target.manifest.specials), set(plan.removed)
    plan.removed += [
        path
        for path in current.specials
        if path not in kept and not any(parent in removed for parent in parents_of(path))
    ]


def _plan_modes(plan: RestorePlan, current: CapturedDirectory, target: SnapshotFilesystem) -> None:
    wanted = target.manifest.modes
    for path in current.modes.keys() | wanted.keys():
        if current.modes.get(path) != wanted.get(path):
            entry = target.entry(path)
            if entry is not None and entry.mode != LINK:
                plan.modes.append((path, target.permissions(path, entry.mode)))
