"""Restoring: the fewest changes that make a directory what a snapshot says, in one step.

All new content is written out of sight first, verified, so that a full disk or a
damaged store changes nothing. Then an intent is recorded, and from there on the
restore happens: whoever opens the directory after a crash finishes it.
"""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from weakincentives.filesystem import staging
from weakincentives.filesystem.faults import reached
from weakincentives.filesystem.leftovers import temporary_name
from weakincentives.filesystem.paths import join
from weakincentives.filesystem.rooted import RootedDirectory
from weakincentives.filesystem.snapshots.capture import Captured, CapturedDirectory, git_mode
from weakincentives.filesystem.snapshots.view import SnapshotFilesystem
from weakincentives.filesystem.store.objects import ObjectStore
from weakincentives.filesystem.store.trees import DIRECTORY, LINK, TreeEntry


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
    def paths(self) -> list[str]:
        """Everything that changes."""
        changed = (self.directories, self.stored, self.modes)
        return [*self.removed, *(each[0] for group in changed for each in group)]

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.removed or self.directories or self.stored or self.modes)


def plan_restore(current: CapturedDirectory, target: SnapshotFilesystem) -> RestorePlan:
    """Return what makes `current` the state of `target`; subtrees that agree are not looked at."""
    plan = RestorePlan()
    pending: list[tuple[str, CapturedDirectory | None, str]] = [("", current, target.files)]
    while pending:
        path, here, tree = pending.pop()
        if here is not None and here.id == tree:
            continue
        wanted = target.tree(tree)
        children: dict[str, Captured] = {} if here is None else here.children
        plan.removed += [
            join(path, name)
            for name, child in children.items()
            if name not in wanted or not _is_same_kind(child, wanted[name])
        ]
        for name, entry in wanted.items():
            pending += _compare(plan, target, join(path, name), children.get(name), entry)
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
    kept = set(target.manifest.specials)
    plan.removed += [path for path in current.specials if path not in kept]


def _plan_modes(plan: RestorePlan, current: CapturedDirectory, target: SnapshotFilesystem) -> None:
    wanted = target.manifest.modes
    for path in current.modes.keys() | wanted.keys():
        if current.modes.get(path) != wanted.get(path):
            entry = target.entry(path)
            if entry is not None and entry.mode != LINK:
                plan.modes.append((path, target.permissions(path, entry.mode)))


def apply_restore(
    directory: RootedDirectory,
    objects: ObjectStore,
    plan: RestorePlan,
    decide: Callable[[], None],
) -> None:
    """Do what `plan` says.

    `decide` is called when everything is ready: it records that the restore happens.
    An error before leaves everything as it was.
    """
    name = temporary_name()
    os.mkdir(name, 0o700, dir_fd=directory.descriptor)
    try:
        hidden = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory.descriptor)
        try:
            for number, (_, entry, permissions) in enumerate(plan.stored):
                _stage(hidden, str(number), objects, entry, permissions)
            if plan.stored:
                staging.sync_filesystem(hidden)
            reached("restore.staged")
            decide()
            reached("restore.decided")
            _apply(directory, hidden, plan)
            reached("restore.applied")
        finally:
            os.close(hidden)
    finally:
        staging.remove(directory.descriptor, name)


def _stage(
    hidden: int, name: str, objects: ObjectStore, entry: TreeEntry, permissions: int
) -> None:
    if entry.mode == LINK:
        os.symlink(b"".join(objects.chunks(entry.id)), name.encode(), dir_fd=hidden)
        return
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=hidden)
    try:
        for chunk in objects.chunks(entry.id):
            staging.write_all(descriptor, chunk)
        os.fchmod(descriptor, permissions)
    finally:
        os.close(descriptor)


def _apply(directory: RootedDirectory, hidden: int, plan: RestorePlan) -> None:
    for path in plan.removed:
        with _parent(directory, path) as (parent, name), suppress(FileNotFoundError):
            staging.remove(parent, name)
        reached("restore.removed")
    for path, permissions in plan.directories:
        with _parent(directory, path) as (parent, name):
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
            _set_permissions(parent, name, permissions)
        reached("restore.made")
    for number, (path, _, _) in enumerate(plan.stored):
        with _parent(directory, path) as (parent, name):
            staging.rename((hidden, str(number)), (parent, name))
        reached("restore.stored")
    for path, permissions in plan.modes:
        with _parent(directory, path) as (parent, name):
            _set_permissions(parent, name, permissions)


def _set_permissions(directory: int, name: str, permissions: int) -> None:
    pinned = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        Path(f"/proc/self/fd/{pinned}").chmod(permissions)
    finally:
        os.close(pinned)


@contextmanager
def _parent(directory: RootedDirectory, path: str) -> Generator[tuple[int, str], None, None]:
    descriptor, name = directory.open_parent(path)
    try:
        yield descriptor, name
    finally:
        os.close(descriptor)
