"""Restore of a host directory: plan the difference, stage new content, apply it.

Only entries that differ change. All new content is staged and synced in a hidden directory
before the first change, so that applying is renames. `recovery` makes it crash-safe.
"""

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Self

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem.host.snapshots.tree import (
    Captured,
    CapturedDirectory,
    find_differences,
    git_mode,
)
from weakincentives.filesystem.host.snapshots.view import SnapshotFilesystem
from weakincentives.gitstore import DIRECTORY, LINK, ObjectError, ObjectStore, TreeEntry
from weakincentives.posix import (
    MountPoints,
    RootedDirectory,
    SyncQueue,
    TimeLimitError,
    check_time,
    display_path,
    explain_error,
    fault_point,
    join,
    make_accessible,
    os_error,
    parent_of,
    parents_of,
    pin,
    remove,
    rename,
    set_mode,
    shorten_path,
    temporary_name,
    write_all,
)

_MAX_REPEATED = 1_000_000  # entries of trees that occur more than once


class RestorePlan:
    """The steps of a restore, in the order in which they are applied."""

    __slots__ = ("directories", "modes", "removed", "stored")

    def __init__(self) -> None:
        """Start empty."""
        self.removed: list[str] = []
        self.directories: list[tuple[str, int]] = []
        self.stored: list[tuple[str, TreeEntry, int]] = []
        self.modes: list[tuple[str, int]] = []

    @property
    def entries(self) -> list[str]:
        """The paths that are created, removed or replaced."""
        made = [path for path, _ in self.directories]
        return [*self.removed, *made, *(path for path, _, _ in self.stored)]

    @property
    def paths(self) -> list[str]:
        """All paths that change."""
        return [*self.entries, *(path for path, _ in self.modes)]

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.removed or self.directories or self.stored or self.modes)


def plan_restore(current: CapturedDirectory, target: SnapshotFilesystem) -> RestorePlan:
    """Return the steps from `current` to `target`; equal subtrees are skipped.

    Raises:
        SnapshotRestoreError: The snapshot repeats its trees without end.
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
        children: dict[str, Captured] = {}
        if here is None:
            wanted = target.tree(tree)
        else:
            children, wanted = find_differences(here, target.tree_content(tree))
        if tree in seen:
            repeated += len(wanted)
            if repeated > _MAX_REPEATED:
                raise SnapshotRestoreError(
                    f"Failed to restore: the snapshot repeats more than {_MAX_REPEATED} entries"
                )
        seen.add(tree)
        plan.removed += [
            join(path, name)
            for name, child in children.items()
            if name not in wanted or not _is_same_kind(child, wanted[name])
        ]
        for name, entry in wanted.items():
            pending += _plan_entry(plan, target, join(path, name), children.get(name), entry)
    _plan_specials(plan, current, target)
    _plan_modes(plan, current, target)
    plan.directories.sort()
    return plan


def changed_paths(current: CapturedDirectory, target: SnapshotFilesystem) -> list[str]:
    """Return what differs between `current` and `target`, without entering equal subtrees.

    Of a directory that only one of them has, everything below differs too.
    """
    specials = set(current.specials) ^ set(target.manifest.specials)
    return [*plan_restore(current, target).paths, *specials]


def _plan_entry(
    plan: RestorePlan,
    target: SnapshotFilesystem,
    path: str,
    child: Captured | None,
    entry: TreeEntry,
) -> Iterator[tuple[str, CapturedDirectory | None, str]]:
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


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@contextmanager
def error_context(path: str) -> Generator[None, None, None]:
    """Make errors name `path` instead of a hidden file."""
    try:
        yield
    except OSError as error:
        if isinstance(error, TimeLimitError):
            raise
        raise explain_error(error, path) from error
    except ObjectError as error:
        raise ObjectError(
            f"{display_path(shorten_path(path))!r} cannot be restored: {error}"
        ) from error


class StagingArea:
    """New content, staged under numbers until it is renamed into place.

    There is one hidden directory per file system that gets new content. What is left in
    them is removed at the end.
    """

    def __init__(self, directory: RootedDirectory, points: MountPoints) -> None:
        """Stage content for `directory`."""
        self._directory = directory
        self._points = points
        self._cleanup = ExitStack()
        self._areas: dict[str, int] = {}
        self._staged: list[int] = []
        self.opened_up: set[str] = set()
        """Directories that were made accessible for staging, except the root."""

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove what is left; after a failure restore the permissions of `opened_up`."""
        self._cleanup.__exit__(kind, error, trace)

    def stage(self, objects: ObjectStore, plan: RestorePlan) -> None:
        """Write all new content, verified and synced."""
        with SyncQueue() as queue:
            for number, (path, entry, permissions) in enumerate(plan.stored):
                with error_context(path):
                    area = self._area_on(self._points.filesystem_root(path))
                    _write_entry(area, str(number), objects, entry, permissions, queue)
                self._staged.append(area)
            if any(entry.mode == LINK for _, entry, _ in plan.stored):
                for area in self._areas.values():  # a link is synced with its directory
                    queue.add(os.dup(area))

    def publish(self, number: int, place: tuple[int, str]) -> None:
        """Rename the content with this number into place."""
        rename((self._staged[number], str(number)), place)

    def _area_on(self, home: str) -> int:
        area = self._areas.get(home)
        if area is None:
            above = self._open_home(home)
            name = temporary_name()
            self._make_area(home, above, name)
            self._cleanup.callback(remove, above, name)
            area = self._areas[home] = os.open(name, _DIRECTORY, dir_fd=above)
            self._cleanup.callback(os.close, area)
        return area

    def _open_home(self, home: str) -> int:
        if not home:
            return self._directory.descriptor
        above, _ = self._directory.open_parent(join(home, "."))
        self._cleanup.callback(os.close, above)
        return above

    def _make_area(self, home: str, above: int, name: str) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=above)
        except PermissionError:
            before = make_accessible(above)
            if home:  # the permissions of the root are not part of a snapshot
                self.opened_up.add(home)
                self._cleanup.push(_reset_after_failure(above, before))
            os.mkdir(name, 0o700, dir_fd=above)


def _reset_after_failure(descriptor: int, permissions: int) -> Callable[..., None]:
    def reset(kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            set_mode(descriptor, permissions)

    return reset


def _write_entry(
    area: int,
    name: str,
    objects: ObjectStore,
    entry: TreeEntry,
    permissions: int,
    queue: SyncQueue,
) -> None:
    if entry.mode == LINK:
        os.symlink(b"".join(objects.chunks(entry.id)), name.encode(), dir_fd=area)
        return
    descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=area)
    try:
        for chunk in objects.chunks(entry.id):
            write_all(descriptor, chunk)
        os.fchmod(descriptor, permissions)
    except BaseException:
        os.close(descriptor)
        raise
    queue.add(descriptor)


_WRITABLE = stat.S_IWUSR | stat.S_IXUSR
_SYNC_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def apply_restore(
    directory: RootedDirectory,
    objects: ObjectStore,
    plan: RestorePlan,
    target: SnapshotFilesystem,
    write_intent: Callable[[], None],
) -> None:
    """Apply `plan`, which leads to `target`.

    `write_intent` is called once all content is staged, before the first change. An error
    up to then leaves everything unchanged.
    """
    _replace_shared_files(directory, plan, target)
    points = MountPoints(directory)
    runner = _PlanRunner(directory, plan, target, points)
    runner.check()
    root_mode = stat.S_IMODE(os.fstat(directory.descriptor).st_mode)
    try:
        with StagingArea(directory, points) as staging:
            staging.stage(objects, plan)
            fault_point("restore.staged")
            write_intent()
            fault_point("restore.decided")
            with SyncQueue() as queue:
                runner.apply(staging, queue)
                fault_point("restore.applied")
            fault_point("restore.synced")
    finally:
        if stat.S_IMODE(os.fstat(directory.descriptor).st_mode) != root_mode:
            os.fchmod(directory.descriptor, root_mode)


def _replace_shared_files(
    directory: RootedDirectory, plan: RestorePlan, target: SnapshotFilesystem
) -> None:
    """Plan to replace files with several hard links instead of changing their permissions.

    The other links may be outside of the workspace.
    """
    modes: list[tuple[str, int]] = []
    for path, permissions in dict(plan.modes).items():
        entry = target.entry(path)
        with suppress(OSError):
            found, _ = directory.lstat(path)
            is_shared = stat.S_ISREG(found.st_mode) and found.st_nlink > 1
            if is_shared and entry is not None and entry.mode != DIRECTORY:
                plan.stored.append((path, entry, permissions))
                continue
        modes.append((path, permissions))
    plan.modes = modes


class _PlanRunner:
    """Applies one plan, and remembers which directories it made accessible."""

    def __init__(
        self,
        directory: RootedDirectory,
        plan: RestorePlan,
        target: SnapshotFilesystem,
        points: MountPoints,
    ) -> None:
        self._directory = directory
        self._plan = plan
        self._target = target
        self._points = points
        self._opened_up: set[str] = set()

    def check(self) -> None:
        """Check that no mount point and no directory of another user has to change.

        Raises:
            OSError: One has.
        """
        for path in (*self._plan.removed, *(path for path, _, _ in self._plan.stored)):
            point = self._points.find_below(path)
            if point is not None:
                raise os_error(errno.EBUSY, point, "Another file system is mounted here")
        new = {path for path, _ in self._plan.directories}
        for parent in sorted({parent_of(path) for path in self._plan.entries} - new):
            # one that cannot be reached is made accessible together with its parents
            try:
                found, _ = self._directory.lstat(parent)
            except (PermissionError, FileNotFoundError):
                continue
            if not _may_change(found):
                raise os_error(errno.EPERM, parent, "Directory belongs to another user")

    def apply(self, staging: StagingArea, queue: SyncQueue) -> None:
        """Make all changes; the restore is durable once `queue` is synced."""
        for path in self._plan.removed:
            gone = suppress(FileNotFoundError, NotADirectoryError)
            with gone, error_context(path), self._writable_parent(path) as (parent, name):
                remove(parent, name)
            fault_point("restore.removed")
        for path, _ in self._plan.directories:
            there = suppress(FileExistsError)
            with error_context(path), self._writable_parent(path) as (parent, name), there:
                os.mkdir(name, 0o700, dir_fd=parent)
            fault_point("restore.made")
        for number, (path, _, _) in enumerate(self._plan.stored):
            with error_context(path), self._writable_parent(path) as (parent, name):
                staging.publish(number, (parent, name))
            fault_point("restore.stored")
        self._opened_up |= staging.opened_up
        self._set_modes(queue)

    def _sync_directories(self, queue: SyncQueue) -> None:
        """Queue every directory whose names have changed."""
        for path in sorted({parent_of(path) for path in self._plan.entries}):
            gone = suppress(FileNotFoundError, NotADirectoryError)  # removed with its parent
            with (
                gone,
                error_context(path),
                self._open_parent(f"{path}/." if path else ".") as (here, _),
            ):
                queue.add(_open_to_sync(here, stat.S_IMODE(os.fstat(here).st_mode)))

    def _set_modes(self, queue: SyncQueue) -> None:
        """Set permissions, children first: a directory may become inaccessible."""
        modes = dict(self._plan.modes) | dict(self._plan.directories)
        for path in modes:
            with error_context(path), self._writable_parent(path):
                pass  # accessible from here on, until its own mode is set
        self._sync_directories(queue)  # while they are accessible
        for path in self._opened_up:
            entry = self._target.entry(path)
            if path and entry is not None and entry.mode == DIRECTORY:
                modes[path] = self._target.permissions(path, DIRECTORY)
        for path in sorted(modes, key=lambda path: path.count("/"), reverse=True):
            with (
                error_context(path),
                self._open_parent(path) as (parent, name),
                pin(parent, name) as descriptor,
            ):
                queue.add(_open_to_sync(descriptor, modes[path]))
            fault_point("restore.mode")

    @contextmanager
    def _writable_parent(self, path: str) -> Generator[tuple[int, str], None, None]:
        """Open the directory that holds `path`, and make it writable."""
        with self._open_parent(path) as (descriptor, name):
            if os.fstat(descriptor).st_mode & _WRITABLE != _WRITABLE:
                make_accessible(descriptor)
                self._opened_up.add(parent_of(path))
            yield descriptor, name

    @contextmanager
    def _open_parent(self, path: str) -> Generator[tuple[int, str], None, None]:
        """Open the directory that holds `path`; make its parents accessible if needed."""
        try:
            descriptor, name = self._directory.open_parent(path)
        except PermissionError:
            for parent in parents_of(path):
                self._make_accessible(parent)
            descriptor, name = self._directory.open_parent(path)
        try:
            yield descriptor, name
        finally:
            os.close(descriptor)

    def _make_accessible(self, path: str) -> None:
        above, name = self._directory.open_parent(path)
        try:
            with pin(above, name) as descriptor:
                if os.fstat(descriptor).st_mode & stat.S_IRWXU != stat.S_IRWXU:
                    make_accessible(descriptor)
                    self._opened_up.add(path)
        finally:
            os.close(above)


def _open_to_sync(held: int, permissions: int) -> int:
    """Set the permissions of the pinned entry `held`; return it opened for a sync.

    It is opened first, because the permissions may deny that.

    Raises:
        PermissionError: It belongs to another user.
    """
    place = f"/proc/self/fd/{held}"
    try:
        opened = os.open(place, _SYNC_FLAGS)
    except PermissionError:
        make_accessible(held)
        opened = os.open(place, _SYNC_FLAGS)
    try:
        if stat.S_IMODE(os.fstat(opened).st_mode) != permissions:
            set_mode(held, permissions)
    except BaseException:
        os.close(opened)
        raise
    return opened


def _may_change(found: os.stat_result) -> bool:
    user = os.geteuid()
    if not user or found.st_uid == user:
        return True
    in_group = found.st_gid in {os.getegid(), *os.getgroups()}
    return bool(found.st_mode & (stat.S_IWOTH | (stat.S_IWGRP if in_group else 0)))
