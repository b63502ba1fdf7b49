"""Where everything of some mounts goes: what is there already, and what is to appear.

New things are built out of sight, in a hidden directory beside the place where they
will be seen. A directory that is new as a whole then appears in one step.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from weakincentives.filesystem.leftovers import temporary_name
from weakincentives.filesystem.mounts.copying import MountCopy
from weakincentives.filesystem.mounts.plan import MountedFile
from weakincentives.filesystem.paths import join, os_error, parent_of, parents_of
from weakincentives.filesystem.primitives import link_error
from weakincentives.filesystem.types import FileStat
from weakincentives.filesystem.writable import refuse_overwrite


class Step(NamedTuple):
    """Something that is built at `hidden` and will be seen at `path`.

    `saved` is a copy of what it replaces.
    """

    hidden: str
    path: str
    saved: str | None = None


@dataclass(slots=True)
class PlacedFile:
    """A file of a mount: where it is built, and what it replaces.

    If it is `alone` it appears in a step of its own, and not with a new directory.
    """

    file: MountedFile
    owner: MountCopy
    hidden: str
    alone: bool = False
    before: FileStat | None = None
    saved: str | None = None
    stored: bool = False


class Layout:
    """What is built where, and the steps in which it appears.

    Raises:
        NotADirectoryError: A directory would have to be where a file is.
        IsADirectoryError: A file would have to be where a directory is.
        PermissionError: A symbolic link of the workspace is in the way.
    """

    def __init__(self, lookup: Callable[[str], FileStat | None]) -> None:
        """Ask `lookup` what is in the workspace."""
        self._lookup = lookup
        # where each directory is built; None: it is there already
        self._homes: dict[str, str | None] = {"": None}
        self.hidden: dict[str, str] = {}
        self.directories: list[Step] = []
        self._tops: list[Step] = []
        self.files: dict[str, PlacedFile] = {}

    def add(self, copy: MountCopy) -> None:
        """Place everything that `copy` brings; what was placed before is replaced."""
        for path in copy.plan.directories:
            self._home(path)
        for file in copy.plan.files:
            self._place(file, copy)

    def growth(self) -> tuple[int, int]:
        """Return how many bytes and entries the workspace will grow by."""
        replaced = [placed.before for placed in self.files.values() if placed.before is not None]
        size = sum(placed.file.size for placed in self.files.values())
        count = len(self.files) + len(self.directories) - len(replaced)
        return size - sum(found.size_bytes for found in replaced), count

    def steps(self) -> list[Step]:
        """Return the steps that make visible what has been built."""
        return self._tops + [
            Step(placed.hidden, path, placed.saved)
            for path, placed in self.files.items()
            if placed.alone and placed.stored
        ]

    def _place(self, file: MountedFile, owner: MountCopy) -> None:
        path = file.path
        if path in self._homes:
            raise os_error(errno.EISDIR, path)
        earlier = self.files.get(path)
        if earlier is not None:
            earlier.owner.plan.skip(earlier.file.below, "replaced by a later mount")
            earlier.file, earlier.owner = file, owner
            return
        home = self._home(parent_of(path))
        if home is not None:
            hidden = f"{home}/{path.rpartition('/')[2]}"
            self.files[path] = PlacedFile(file, owner, hidden)
            return
        before = self._lookup(path)
        if before is not None:
            refuse_overwrite(before, "overwrite")
        self.files[path] = PlacedFile(file, owner, self._hidden(path), True, before)

    def _home(self, path: str) -> str | None:
        """Return where the directory at `path` is built, or None if it is there already."""
        if path not in self._homes:
            for each in (*parents_of(path), path):
                if each not in self._homes:
                    self._homes[each] = self._new_home(each)
        return self._homes[path]

    def _new_home(self, path: str) -> str | None:
        if path in self.files:
            raise os_error(errno.ENOTDIR, path)
        above = self._homes[parent_of(path)]
        if above is not None:
            hidden = f"{above}/{path.rpartition('/')[2]}"
        elif self._is_there(path):
            return None
        else:
            hidden = self._hidden(path)
            self._tops.append(Step(hidden, path))
        self.directories.append(Step(hidden, path))
        return hidden

    def _is_there(self, path: str) -> bool:
        found = self._lookup(path)
        if found is None:
            return False
        if found.is_symlink:
            raise link_error(found)
        if not found.is_directory:
            raise os_error(errno.ENOTDIR, path)
        return True

    def _hidden(self, path: str) -> str:
        """Return where something is built that will appear in a directory that is there."""
        parent = parent_of(path)
        if parent not in self.hidden:
            self.hidden[parent] = join(parent, temporary_name())
        return join(self.hidden[parent], path.rpartition("/")[2])
