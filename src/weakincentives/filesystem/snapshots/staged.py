"""Where the new content of a restore waits: out of sight, on the file system that it is for."""

import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from weakincentives.filesystem import staging
from weakincentives.filesystem.leftovers import temporary_name
from weakincentives.filesystem.limits import TimeLimitError
from weakincentives.filesystem.paths import brief, join, shown
from weakincentives.filesystem.rooted import RootedDirectory, explained
from weakincentives.filesystem.snapshots.closed import open_up, set_mode
from weakincentives.filesystem.snapshots.mountpoints import MountPoints
from weakincentives.filesystem.snapshots.planning import RestorePlan
from weakincentives.filesystem.store.objects import ObjectError, ObjectStore
from weakincentives.filesystem.store.trees import LINK, TreeEntry
from weakincentives.filesystem.sync import SyncQueue

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@contextmanager
def named(path: str) -> Generator[None, None, None]:
    """Let errors name the path that they are about, and nothing that is hidden."""
    try:
        yield
    except OSError as error:
        if isinstance(error, TimeLimitError):
            raise
        raise explained(error, path) from error
    except ObjectError as error:
        raise ObjectError(f"{shown(brief(path))!r} cannot be brought back: {error}") from error


class Staged:
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
                with named(path):
                    area = self._area(self._points.home(path))
                    _write(area, str(number), objects, entry, permissions, queue)
                self._waiting.append(area)
            for area in self._areas.values():  # for the links in them
                queue.add(os.dup(area))

    def put(self, number: int, place: tuple[int, str]) -> None:
        """Put the content with this number into its place."""
        staging.rename((self._waiting[number], str(number)), place)

    def _area(self, home: str) -> int:
        area = self._areas.get(home)
        if area is None:
            above = self._opened(home)
            name = temporary_name()
            self._make(home, above, name)
            self._closing.callback(staging.remove, above, name)
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
            before = open_up(above)
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
            staging.write_all(descriptor, chunk)
        os.fchmod(descriptor, permissions)
    except BaseException:
        os.close(descriptor)
        raise
    queue.add(descriptor)
