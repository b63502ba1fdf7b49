"""What a restore has to do: the difference between what is there and what is wanted."""

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Self

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem.host.snapshots.tree import Captured, CapturedDirectory, git_mode
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


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@contextmanager
def error_context(path: str) -> Generator[None, None, None]:
    """Let errors name the path that they are about, and nothing that is hidden."""
    try:
        yield
    except OSError as error:
        if isinstance(error, TimeLimitError):
            raise
        raise explain_error(error, path) from error
    except ObjectError as error:
        raise ObjectError(
            f"{display_path(shorten_path(path))!r} cannot be brought back: {error}"
        ) from error


class StagingArea:
    """Everything that a restore puts into place, under its number; what is left goes at the end.

    There is one hidden directory for each file system that something new is for.
    """

    def __init__(self, directory: RootedDirectory, points: MountPoints) -> None:
        """Stage for what is below `directory`."""
        self._directory = directory
        self._points = points
        self._closing = ExitStack()
        self._areas: dict[str, int] = {}
        self._waiting: list[int] = []
        self.opened_up: set[str] = set()
        """What had to be opened up for that; the root is not in it."""

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove what has not been put into place; after a failure close what was opened up."""
        self._closing.__exit__(kind, error, trace)

    def add_all(self, objects: ObjectStore, plan: RestorePlan) -> None:
        """Write all content, verified, and bring it to the disk."""
        with SyncQueue() as queue:
            for number, (path, entry, permissions) in enumerate(plan.stored):
                with error_context(path):
                    area = self._area(self._points.filesystem_root(path))
                    _write(area, str(number), objects, entry, permissions, queue)
                self._waiting.append(area)
            for area in self._areas.values():  # for the links in them
                queue.add(os.dup(area))

    def put(self, number: int, place: tuple[int, str]) -> None:
        """Put the content with this number into its place."""
        rename((self._waiting[number], str(number)), place)

    def _area(self, home: str) -> int:
        area = self._areas.get(home)
        if area is None:
            above = self._opened(home)
            name = temporary_name()
            self._make(home, above, name)
            self._closing.callback(remove, above, name)
            area = self._areas[home] = os.open(name, _DIRECTORY, dir_fd=above)
            self._closing.callback(os.close, area)
        return area

    def _opened(self, home: str) -> int:
        if not home:
            return self._directory.descriptor
        above, _ = self._directory.open_parent(join(home, "."))
        self._closing.callback(os.close, above)
        return above

    def _make(self, home: str, above: int, name: str) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=above)
        except PermissionError:
            before = make_accessible(above)
            if home:  # the root's own permissions are no part of a snapshot
                self.opened_up.add(home)
                self._closing.push(_closing_after_failure(above, before))
            os.mkdir(name, 0o700, dir_fd=above)


def _closing_after_failure(descriptor: int, permissions: int) -> Callable[..., None]:
    def close(kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            set_mode(descriptor, permissions)

    return close


def _write(
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
        with StagingArea(directory, points) as staged:
            staged.add_all(objects, plan)
            fault_point("restore.staged")
            decide()
            fault_point("restore.decided")
            with SyncQueue() as queue:
                work.apply(staged, queue)
                fault_point("restore.applied")
            fault_point("restore.synced")
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
            point = self._points.find_below(path)
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

    def apply(self, staged: StagingArea, queue: SyncQueue) -> None:
        """Change everything; it is on the disk when `queue` is, and the restore has happened."""
        for path in self._plan.removed:
            gone = suppress(FileNotFoundError, NotADirectoryError)
            with gone, error_context(path), self._parent(path) as (parent, name):
                remove(parent, name)
            fault_point("restore.removed")
        for path, _ in self._plan.directories:
            there = suppress(FileExistsError)
            with error_context(path), self._parent(path) as (parent, name), there:
                os.mkdir(name, 0o700, dir_fd=parent)
            fault_point("restore.made")
        for number, (path, _, _) in enumerate(self._plan.stored):
            with error_context(path), self._parent(path) as (parent, name):
                staged.put(number, (parent, name))
            fault_point("restore.stored")
        self._opened_up |= staged.opened_up
        self._set_modes(queue)

    def _add_directories(self, queue: SyncQueue) -> None:
        """Let the names in every directory that was changed be brought to the disk."""
        for path in sorted({parent_of(path) for path in self._plan.entries}):
            gone = suppress(FileNotFoundError, NotADirectoryError)  # removed as a whole
            with (
                gone,
                error_context(path),
                self._reached(f"{path}/." if path else ".") as (here, _),
            ):
                queue.add(_open_to_sync(here, stat.S_IMODE(os.fstat(here).st_mode)))

    def _set_modes(self, queue: SyncQueue) -> None:
        """Set permissions; a directory after what is in it, because it may close it."""
        modes = dict(self._plan.modes) | dict(self._plan.directories)
        for path in modes:
            with error_context(path), self._parent(path):
                pass  # open from here on, until its own turn comes
        self._add_directories(queue)  # before they are closed
        for path in self._opened_up:
            entry = self._target.entry(path)
            if path and entry is not None and entry.mode == DIRECTORY:
                modes[path] = self._target.permissions(path, DIRECTORY)
        for path in sorted(modes, key=lambda path: path.count("/"), reverse=True):
            with (
                error_context(path),
                self._reached(path) as (parent, name),
                pin(parent, name) as descriptor,
            ):
                queue.add(_open_to_sync(descriptor, modes[path]))
            fault_point("restore.mode")

    @contextmanager
    def _parent(self, path: str) -> Generator[tuple[int, str], None, None]:
        """Open the directory that holds `path`, to change what is in it."""
        with self._reached(path) as (descriptor, name):
            if os.fstat(descriptor).st_mode & _OPEN != _OPEN:
                make_accessible(descriptor)
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
            with pin(above, name) as descriptor:
                if os.fstat(descriptor).st_mode & stat.S_IRWXU != stat.S_IRWXU:
                    make_accessible(descriptor)
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
        make_accessible(held)
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
