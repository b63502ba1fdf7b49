"""Moving and copying: an entry gets a new path, or a second one, in one step."""

import errno
from collections.abc import Callable, Sequence

from weakincentives.filesystem.base.primitives import ensure_plain_entry
from weakincentives.filesystem.base.writable import WritableFilesystem, ensure_overwritable
from weakincentives.filesystem.events import DirectoryCreated, EntryMoved, LinkCreated
from weakincentives.filesystem.paths import check_new, normalize_path
from weakincentives.filesystem.text import load
from weakincentives.filesystem.types import FileStat
from weakincentives.posix import os_error, shorten_path


class MovableFilesystem(WritableFilesystem):
    """Writing, and `move` and `copy`."""

    def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        """Give a file, link or directory a new path in one step; parents are made before.

        Raises:
            FileNotFoundError: Nothing is at `source`.
            FileExistsError: Something is at `destination` and `overwrite` is False.
            IsADirectoryError: A directory is at `destination`.
            ValueError: A directory would move into itself.
        """
        self._transfer(source, destination, overwrite, copying=False)

    def copy(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        """Copy a file, link or directory in one step; raises as `move` does."""
        self._transfer(source, destination, overwrite, copying=True)

    # --- shared steps that a backend may do better ---

    def _move(self, source: str, destination: str) -> None:
        """Move an entry to where nothing is, or a file or link over a file."""
        self._copy(source, destination)
        self._remove(source)

    def _copy(self, source: str, destination: str) -> None:
        """Copy an entry to where nothing is, or a file or link over a file."""
        found = None
        for found in self._tree(source):
            target = destination + found.path[len(source) :]
            if found.is_directory:
                self._make_directory(target)
            elif found.link_target is not None:
                self._make_link(target, found.link_target)
            elif found.is_file:
                self._copy_file(found, target)
        if found is None:
            self._refuse_missing(source)  # it has gone since it was looked at

    def _copy_file(self, found: FileStat, target: str) -> None:
        """Copy one file."""
        with self._open(found.path) as content:
            data = load(content, found.path, self._limits)
        self._store(target, data, permissions=found.permissions)

    def _copy_below(self, missing: Sequence[str], source: str, goal: str) -> None:
        """Copy an entry into a chain of `missing` directories, or do nothing."""
        self._act_below(missing, self._copy, source, goal)

    # --- shared steps ---

    def _act_below(
        self, missing: Sequence[str], act: Callable[[str, str], None], source: str, goal: str
    ) -> None:
        """Make the directories that `goal` lacks, then move or copy; take back if that fails."""
        try:
            self._make_directories(missing)
            act(source, goal)
        except BaseException:
            self._take_back(missing)
            raise

    def _transfer(self, source: str, destination: str, overwrite: bool, *, copying: bool) -> None:
        start, goal = normalize_path(source), self._writable(destination)
        if not start:
            raise os_error(errno.EPERM, "", "Cannot move or copy root")
        with self._lock:
            found = self._lookup(start) or self._refuse_missing(start)
            if found.is_directory and f"{goal}/".startswith(f"{start}/"):
                raise ValueError(f"Cannot put a directory into itself: {shorten_path(goal)!r}")
            if goal == start and overwrite:
                return
            missing = self._place(goal, found, overwrite)
            size = count = 0
            if copying:
                _refuse_special(found)
                if self._quota:
                    size, count = self._growth(start, goal)
            self._quota.admit(size, count + len(missing))
            self._relocate(found, goal, missing, copying)

    def _growth(self, source: str, goal: str) -> tuple[int, int]:
        """Return how many bytes and entries a copy adds to what it replaces."""
        size, count = self._weight(source)
        replaced = self._lookup(goal)
        return (size, count) if replaced is None else (size - replaced.size_bytes, count - 1)

    def _place(self, goal: str, found: FileStat, overwrite: bool) -> list[str]:
        """Return the parents that `goal` lacks, or refuse it."""
        before = self._lookup(goal)
        if before is None:
            missing = self._missing_parents(goal)
            check_new(goal, len(missing) + 1, self._limits)
            return missing
        ensure_overwritable(before, "overwrite" if overwrite else "create")
        if found.is_directory:
            raise os_error(errno.EEXIST, goal)
        return []

    def _relocate(self, found: FileStat, goal: str, missing: Sequence[str], copying: bool) -> None:
        before = self._lookup(goal)
        before = None if before is None else self._description(before)
        if copying and missing:
            self._copy_below(missing, found.path, goal)
        else:
            self._act_below(missing, self._copy if copying else self._move, found.path, goal)
        self._listeners.tell(*map(DirectoryCreated, missing))
        if copying:
            self._tell_copied(goal, before)
            return
        if before is not None:
            self._listeners.tell(self._deletion(before))
        self._listeners.tell(EntryMoved(found.path, goal, found.kind))

    def _tell_copied(self, goal: str, before: FileStat | None) -> None:
        for found in self._tree(goal) if self._listeners else ():
            if found.is_directory:
                self._listeners.tell(DirectoryCreated(found.path))
            elif found.link_target is not None:
                self._listeners.tell(LinkCreated(found.path, found.link_target))
            else:
                self._tell_written(found.path, found.size_bytes, "overwrite", before)


def _refuse_special(found: FileStat) -> None:
    if found.kind == "special":
        ensure_plain_entry(found)
