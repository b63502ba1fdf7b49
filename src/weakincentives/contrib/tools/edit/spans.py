"""A text that is replaced in parts, and a record of which characters of the first text are left."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from weakincentives.contrib.tools.edit.edits import Span

Change = tuple[int, int, str]


class _Run(NamedTuple):
    """Characters that are left: where they were, where they are, how many; none is a border."""

    origin: int
    position: int
    length: int


class Patchwork:
    """A text, and for every part that was replaced where it was and where it is."""

    def __init__(self, text: str) -> None:
        """Begin with a text of which nothing is replaced."""
        self.content: str = text
        self._size = len(text)
        self._runs = [_Run(0, 0, len(text))]

    @property
    def spans(self) -> tuple[Span, ...]:
        """The ranges of the first text that were replaced, in order."""
        return tuple(was for was, _ in self._gaps())

    @property
    def new_spans(self) -> tuple[Span, ...]:
        """The ranges of the text as it is now that are in their place."""
        return tuple(now for _, now in self._gaps())

    def replace(self, changes: Sequence[Change]) -> None:
        """Replace ranges of the text as it is now; they are in order and do not overlap."""
        pieces: list[str] = []
        at = 0
        for start, end, new in changes:
            pieces += (self.content[at:start], new)
            at = end
        pieces.append(self.content[at:])
        self._runs = list(_cut(self._runs, changes))
        self.content = "".join(pieces)

    def _gaps(self) -> Iterator[tuple[Span, Span]]:
        edges = [_Run(0, 0, 0), *self._runs, _Run(self._size, len(self.content), 0)]
        for left, right in pairwise(edges):
            was = left.origin + left.length, right.origin
            now = left.position + left.length, right.position
            if was[0] < was[1] or now[0] < now[1]:
                yield was, now


def _cut(runs: Sequence[_Run], changes: Sequence[Change]) -> Iterator[_Run]:
    """Yield what the changes leave of the runs, moved to where it is then."""
    shift = number = 0
    for origin, position, length in runs:
        at, stop = position, position + length
        while number < len(changes) and changes[number][0] <= stop:
            start, end, new = changes[number]
            if start >= at:
                yield _Run(origin + at - position, at + shift, start - at)
            if end > stop:
                at = stop + 1  # nothing is left of this run, and the change goes on
                break
            at = max(at, end)
            shift += len(new) - (end - start)
            number += 1
        if at <= stop:
            yield _Run(origin + at - position, at + shift, stop - at)
