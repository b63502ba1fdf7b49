"""Restores: the directory becomes what a snapshot says, in one step.

All new content is written out of sight first, verified, so that a full disk or a
damaged store changes nothing. Then an intent is recorded, and from there on the
restore happens: whoever opens the directory after a crash finishes it. Directories
that may not be written, but are ours, are opened up meanwhile and closed afterwards.
"""

import errno
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from weakincentives.filesystem import staging
from weakincentives.filesystem.faults import reached
from weakincentives.filesystem.paths import os_error, parent_of, parents_of
from weakincentives.filesystem.rooted import RootedDirectory
from weakincentives.filesystem.snapshots.closed import open_up, pinned, set_mode
from weakincentives.filesystem.snapshots.mountpoints import MountPoints
from weakincentives.filesystem.snapshots.planning import RestorePlan
from weakincentives.filesystem.snapshots.staged import Staged, named
from weakincentives.filesystem.snapshots.view import SnapshotFilesystem
from weakincentives.filesystem.store.objects import ObjectStore
from weakincentives.filesystem.store.trees import DIRECTORY
from weakincentives.filesystem.sync import SyncQueue

_OPEN = stat.S_IWUSR | stat.S_IXUSR
_TO_SYNC = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def apply_restore(
    directory: RootedDirectory,
    objects: ObjectStore,
    plan: RestorePlan,
    target: SnapshotFilesystem,
    decide: Callable[[], None],
) -> None:
    """Do what `plan` says, which leads to `target`.

    `decide` is called when everything is ready: it records that the restore happens.
    An error before leaves everything as it was.
    """
    _part_shared_files(directory, plan, target)
    points = MountPoints(directory)
    work = _Restore(directory, plan, target, points)
    work.check()
    root_mode = stat.S_IMODE(os.fstat(directory.descriptor).st_mode)
    try:
        with Staged(directory, points) as staged:
            staged.add_all(objects, plan)
            reached("restore.staged")
            decide()
            reached("restore.decided")
            with SyncQueue() as queue:
                work.apply(staged, queue)
                reached("restore.applied")
            reached("restore.synced")
    finally:
        if stat.S_IMODE(os.fstat(directory.descriptor).st_mode) != root_mode:
            os.fchmod(directory.descriptor, root_mode)


def _part_shared_files(
    directory: RootedDirectory, plan: RestorePlan, target: SnapshotFilesystem
) -> None:
    """Replace files that have other names too instead of changing their permissions.

    The other names may be outside.
    """
    kept: list[tuple[str, int]] = []
    for path, permissions in dict(plan.modes).items():
        entry = target.entry(path)
        with suppress(OSError):
            found, _ = directory.lstat(path)
            is_shared = stat.S_ISREG(found.st_mode) and found.st_nlink > 1
            if is_shared and entry is not None and entry.mode != DIRECTORY:
                plan.stored.append((path, entry, permissions))
                continue
        kept.append((path, permissions))
    plan.modes = kept


class _Restore:
    """One restore: its steps, and the directories that were opened up for them."""

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
        """Raise OSError if something would have to change that is not ours, or is mounted."""
        for path in (*self._plan.removed, *(path for path, _, _ in self._plan.stored)):
            point = self._points.at_or_below(path)
            if point is not None:
                raise os_error(errno.EBUSY, point, "Another file system is mounted here")
        new = {path for path, _ in self._plan.directories}
        for parent in sorted({parent_of(path) for path in self._plan.entries} - new):
            # what cannot be reached is below something closed, and opened up with it
            try:
                found, _ = self._directory.lstat(parent)
            except (PermissionError, FileNotFoundError):
                continue
            if not _may_open_up(found):
                raise os_error(errno.EPERM, parent, "Directory belongs to somebody else")

    def apply(self, staged: Staged, queue: SyncQueue) -> None:
        """Change everything; it is on the disk when `queue` is, and the restore has happened."""
        for path in self._plan.removed:
            gone = suppress(FileNotFoundError, NotADirectoryError)
            with gone, named(path), self._parent(path) as (parent, name):
                staging.remove(parent, name)
            reached("restore.removed")
        for path, _ in self._plan.directories:
            there = suppress(FileExistsError)
            with named(path), self._parent(path) as (parent, name), there:
                os.mkdir(name, 0o700, dir_fd=parent)
            reached("restore.made")
        for number, (path, _, _) in enumerate(self._plan.stored):
            with named(path), self._parent(path) as (parent, name):
                staged.put(number, (parent, name))
            reached("restore.stored")
        self._opened_up |= staged.opened_up
        self._set_modes(queue)

    def _add_directories(self, queue: SyncQueue) -> None:
        """Let the names in every directory that was changed be brought to the disk."""
        for path in sorted({parent_of(path) for path in self._plan.entries}):
            gone = suppress(FileNotFoundError, NotADirectoryError)  # removed as a whole
            with gone, named(path), self._reached(f"{path}/." if path else ".") as (here, _):
                queue.add(_open_to_sync(here, stat.S_IMODE(os.fstat(here).st_mode)))

    def _set_modes(self, queue: SyncQueue) -> None:
        """Set permissions; a directory after what is in it, because it may close it."""
        modes = dict(self._plan.modes) | dict(self._plan.directories)
        for path in modes:
            with named(path), self._parent(path):
                pass  # open from here on, until its own turn comes
        self._add_directories(queue)  # before they are closed
        for path in self._opened_up:
            entry = self._target.entry(path)
            if path and entry is not None and entry.mode == DIRECTORY:
                modes[path] = self._target.permissions(path, DIRECTORY)
        for path in sorted(modes, key=lambda path: path.count("/"), reverse=True):
            with (
                named(path),
                self._reached(path) as (parent, name),
                pinned(parent, name) as descriptor,
            ):
                queue.add(_open_to_sync(descriptor, modes[path]))
            reached("restore.mode")

    @contextmanager
    def _parent(self, path: str) -> Generator[tuple[int, str], None, None]:
        """Open the directory that holds `path`, to change what is in it."""
        with self._reached(path) as (descriptor, name):
            if os.fstat(descriptor).st_mode & _OPEN != _OPEN:
                open_up(descriptor)
                self._opened_up.add(parent_of(path))
            yield descriptor, name

    @contextmanager
    def _reached(self, path: str) -> Generator[tuple[int, str], None, None]:
        """Open the directory that holds `path`, whatever is closed above it."""
        try:
            descriptor, name = self._directory.open_parent(path)
        except PermissionError:
            for parent in parents_of(path):
                self._open_up_directory(parent)
            descriptor, name = self._directory.open_parent(path)
        try:
            yield descriptor, name
        finally:
            os.close(descriptor)

    def _open_up_directory(self, path: str) -> None:
        above, name = self._directory.open_parent(path)
        try:
            with pinned(above, name) as descriptor:
                if os.fstat(descriptor).st_mode & stat.S_IRWXU != stat.S_IRWXU:
                    open_up(descriptor)
                    self._opened_up.add(path)
        finally:
            os.close(above)


def _open_to_sync(held: int, permissions: int) -> int:
    """Set the permissions of what is `held` on to; return it open, closed as it may be by then.

    Raises:
        PermissionError: It belongs to somebody else.
    """
    place = f"/proc/self/fd/{held}"
    try:
        opened = os.open(place, _TO_SYNC)
    except PermissionError:
        open_up(held)
        opened = os.open(place, _TO_SYNC)
    try:
        if stat.S_IMODE(os.fstat(opened).st_mode) != permissions:
            set_mode(held, permissions)
    except BaseException:
        os.close(opened)
        raise
    return opened


def _may_open_up(found: os.stat_result) -> bool:
    mine = os.geteuid()
    if not mine or found.st_uid == mine:
        return True
    shared = found.st_gid in {os.getegid(), *os.getgroups()}
    return bool(found.st_mode & (stat.S_IWOTH | (stat.S_IWGRP if shared else 0)))
