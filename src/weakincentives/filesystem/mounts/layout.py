"""Where everything of some mounts goes: what is there already, and what is to appear.

New things are built out of sight, in a hidden directory beside the place where they
will be seen. A directory that is new as a whole then appears in one step.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from weakincentives.filesystem.leftovers import temporary_name
from weakincentives.filesystem.mounts.plan import MountedFile, MountPlan
from weakincentives.filesystem.paths import join, os_error, parent_of, parents_of, shown
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
class Single:
    """A file that appears in a step of its own, in a directory that is there already."""

    hidden: str
    before: FileStat | None
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
        self.made: list[str] = []
        self.directories: list[Step] = []
        self._tops: list[Step] = []
        self.files: dict[str, MountedFile] = {}
        self.places: dict[str, str] = {}
        self.singles: dict[str, Single] = {}

    def add(self, plan: MountPlan) -> None:
        """Place everything that `plan` brings; what was placed before is replaced."""
        for path in plan.directories:
            self._home(path)
        for file in plan.files:
            self._place(file)

    @property
    def total_bytes(self) -> int:
        """How many bytes will be copied."""
        return sum(file.size for file in self.files.values())

    def growth(self) -> tuple[int, int]:
        """Return how many bytes and entries the workspace will grow by."""
        replaced = [each.before for each in self.singles.values() if each.before is not None]
        count = len(self.files) + len(self.directories) - len(replaced)
        return self.total_bytes - sum(found.size_bytes for found in replaced), count

    def steps(self) -> list[Step]:
        """Return the steps that make visible what has been built."""
        return self._tops + [
            Step(single.hidden, path, single.saved)
            for path, single in self.singles.items()
            if single.stored
        ]

    def explained(self, error: OSError) -> OSError:
        """Return the error with the path that people know, where it names a hidden one."""
        named = error.filename
        for parent, hidden in self.hidden.items():
            prefix = shown(hidden)
            if isinstance(named, str) and named.startswith(prefix):
                path = join(shown(parent) if parent else "", named[len(prefix) + 1 :])
                return OSError(error.errno, error.strerror, path)
        return error

    def _place(self, file: MountedFile) -> None:
        path = file.path
        if path in self._homes:
            raise os_error(errno.EISDIR, path)
        earlier = self.files.get(path)
        self.files[path] = file
        if earlier is not None:
            earlier.plan.skip(earlier.below, "replaced by a later mount")
            return
        parent, _, name = path.rpartition("/")
        home = self._home(parent)
        self.places[path] = self._single(path).hidden if home is None else f"{home}/{name}"

    def _single(self, path: str) -> Single:
        before = self._lookup(path)
        if before is not None:
            refuse_overwrite(before, "overwrite")
        single = self.singles[path] = Single(self._hidden(path), before)
        return single

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
