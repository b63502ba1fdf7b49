"""What one savepoint has kept: which paths may change without being kept again."""

from collections.abc import Iterable, Iterator
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

    __slots__ = ("_brought", "_covered", "_journal", "start")

    def __init__(self, journal: Levels, start: int) -> None:
        """Begin with nothing covered."""
        self._journal = journal
        self._covered: set[str] = set()
        self._brought: set[str] = set()  # what was moved there from elsewhere; there are few
        self.start: int = start

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
        while path not in self._covered:
            if path in self._brought or not path:
                return False
            path = parent_of(path)
        return True

    def covers_all(self, path: str) -> bool:
        """Return whether everything at and below `path` may go without being kept."""
        return self.covers(path) and not any(_below(path, self._brought))

    def cover(self, path: str) -> None:
        """Take note that the file, link or nothing at `path` is kept."""
        self._covered.add(path)
        self._brought.discard(path)

    def cover_all(self, path: str) -> None:
        """Take note that everything at and below `path` is kept."""
        self._brought.difference_update(list(_below(path, self._brought)))
        self.cover(path)

    def uncover(self, path: str) -> None:
        """Take back that `path` is covered."""
        self._covered.discard(path)

    def bring_in(self, path: str) -> None:
        """Take note that something from elsewhere is at `path` now."""
        for known in (self._covered, self._brought):
            known.difference_update(list(_below(path, known)))
        self._covered.discard(path)
        self._brought.add(path)

    def absorb(self, inner: "Level") -> None:
        """Take over what a level above this one has kept."""
        for path in sorted(inner._brought):  # from the outside in: it makes forget what is below
            self.bring_in(path)
        for path in inner._covered:
            self.cover(path)


def _below(path: str, known: Iterable[str]) -> Iterator[str]:
    prefix = f"{path}/" if path else ""
    return (each for each in known if each.startswith(prefix) and each != path)
