"""What one savepoint has kept: which paths may change without being kept again."""

from typing import Protocol

from weakincentives.filesystem.leftovers import is_hidden
from weakincentives.filesystem.paths import RESERVED_PREFIX, parent_of


class Levels(Protocol):
    """What ends levels: the journal."""

    def has_changed_since(self, level: "Level") -> bool:
        """Return whether anything was kept since `level` began."""
        ...

    def release(self, level: "Level") -> None:
        """End a level and those above it, and keep what was changed."""
        ...

    def roll_back(self, level: "Level") -> None:
        """End a level and those above it, and undo what was changed."""
        ...

    def has(self, level: "Level") -> bool:
        """Return whether a level has not ended yet."""
        ...


class Level:
    """A savepoint in a journal, which has `start` records from before it.

    A path is *covered* if undoing the records since brings back its whole former self,
    whatever is done to it and below it. What was moved there from elsewhere is not: it
    is still needed, to be moved back.
    """

    __slots__ = ("_journal", "_marks", "start")

    def __init__(self, journal: Levels, start: int) -> None:
        """Begin with nothing covered."""
        self._journal = journal
        self._marks: dict[str, bool] = {}  # False: brought in, and so not covered
        self.start = start

    @property
    def changed(self) -> bool:
        """Whether anything was kept since."""
        return self._journal.has_changed_since(self)

    @property
    def is_open(self) -> bool:
        """Whether it has not ended yet."""
        return self._journal.has(self)

    def release(self) -> None:
        """Keep what was changed."""
        self._journal.release(self)

    def roll_back(self) -> None:
        """Undo what was changed."""
        self._journal.roll_back(self)

    def covers(self, path: str) -> bool:
        """Return whether the file or link at `path` may change without being kept."""
        if RESERVED_PREFIX in path and is_hidden(path):
            return True  # nobody sees it, and whoever made it is not done yet
        while True:
            mark = self._marks.get(path)
            if mark is not None:
                return mark
            if not path:
                return False
            path = parent_of(path)

    def covers_all(self, path: str) -> bool:
        """Return whether everything at and below `path` may go without being kept."""
        if not self.covers(path):
            return False
        prefix = f"{path}/" if path else ""
        return all(mark or not each.startswith(prefix) for each, mark in self._marks.items())

    def cover(self, path: str) -> None:
        """Take note that the file, link or nothing at `path` is kept."""
        self._marks[path] = True

    def cover_all(self, path: str) -> None:
        """Take note that everything at and below `path` is kept."""
        self._forget_below(path)
        self._marks[path] = True

    def uncover(self, path: str) -> None:
        """Take back that `path` is covered."""
        self._marks.pop(path, None)

    def bring_in(self, path: str) -> None:
        """Take note that something from elsewhere is at `path` now."""
        self._forget_below(path)
        self._marks[path] = False

    def absorb(self, inner: "Level") -> None:
        """Take over what a level above this one has kept."""
        for path, mark in inner._marks.items():
            if mark:
                self.cover(path)
            else:
                self.bring_in(path)

    def _forget_below(self, path: str) -> None:
        prefix = f"{path}/" if path else ""
        for each in [each for each in self._marks if each.startswith(prefix)]:
            del self._marks[each]
