"""Where a text is found, with as little as possible overlooked."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, compress, islice
from math import gcd

from weakincentives.contrib.tools.editing.confusables import indent_of, plain, position_in
from weakincentives.contrib.tools.editing.format import excerpt
from weakincentives.contrib.tools.editing.indent import Reindent, Style, reindent_between
from weakincentives.contrib.tools.editing.model import (
    BLANKS,
    Document,
    EditError,
    MatchLevel,
    block_steps,
    unify_line_ends,
)

MAX_COUNTED = 100  # places beyond which nobody needs the exact number
_WORD = re.compile(r"\w")
_MAX_COMPARED = 500_000  # lines whose indentation is compared in one search


@dataclass(frozen=True, slots=True)
class Match:
    """A range of characters that is the text; `reindent` is for what replaces it."""

    start: int
    end: int
    reindent: Reindent | None = None


@dataclass(frozen=True, slots=True)
class Matches:
    """Every place at the best grade that has one; `more` tells that some are not listed."""

    grade: MatchLevel
    matches: Sequence[Match]
    more: bool = False


@dataclass(frozen=True)
class Wanted:
    """A text to find and what is to replace it.

    Args:
        old: The text to find.
        new: What is to replace it.
        whole_lines: Accept it only where it begins and ends with lines.
        literal: If it is there exactly, replace it by exactly the new text, line ends included.
        starts_line: Accept it only where a line begins.
        line: Accept it only in this line, counted from 1.
    """

    old: str
    new: str
    whole_lines: bool = False
    literal: bool = False
    starts_line: bool = False
    line: int | None = None

    @cached_property
    def text(self) -> str:
        r"""The text to find with `\n` at the end of lines."""
        return unify_line_ends(self.old)

    @cached_property
    def lines(self) -> list[str]:
        """The lines to find."""
        lines = self.text.split("\n")
        return lines[:-1] if self.ends_line else lines

    @property
    def ends_line(self) -> bool:
        """Whether the end of the last line is a part of the text."""
        return self.text.endswith("\n")

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing to see in it."""
        return not plain(self.text).strip(BLANKS + "\n")

    @cached_property
    def needs_indentation(self) -> bool:
        """Whether indentation cannot be overlooked.

        It is all that is to change, or all there is to see is a bracket, which may be any.
        """
        if not _WORD.search(self.text) and sum(map(bool, map(str.strip, self.lines))) == 1:
            return True
        new = unify_line_ends(self.new).split("\n")
        return [line.strip() for line in self.text.split("\n")] == [line.strip() for line in new]


def find(
    document: Document, wanted: Wanted, *, every: bool = False, most: int = MAX_COUNTED
) -> Matches | None:
    """Return where the text is at the best grade at which it is anywhere.

    Args:
        document: Where to look.
        wanted: What to look for.
        every: Find places that do not overlap, instead of counting all.
        most: How many of them.
    """
    for grade, search in _searches(document, wanted):
        places = (each for each in search() if _fits(document, wanted, each))
        if every:
            places = _apart(places)
        matches = list(islice(places, most + 1))
        if matches:
            return Matches(grade, matches[:most], len(matches) > most)
    return None


@dataclass(frozen=True, slots=True)
class _Reduction:
    """What is compared of a text, and where a column of a reduced line is in the line."""

    of: Callable[[str], str]
    lines: Callable[[Document], list[str]]
    position: Callable[[str, int], int | None]


_Search = Callable[[], Iterator[Match]]
_AS_IT_IS = _Reduction(str, lambda document: document.lines, lambda _, column: column)
_CONFUSABLES = _Reduction(plain, lambda document: document.plain_lines, position_in)


def _searches(document: Document, wanted: Wanted) -> Iterator[tuple[MatchLevel, _Search]]:
    """Yield the ways to look for a text, strict ones first."""
    yield MatchLevel.EXACT, lambda: _exact(document, wanted.old)
    if not document.lines:
        return
    yield MatchLevel.LINE_ENDINGS, lambda: _inside(document, wanted, _AS_IT_IS)
    if wanted.is_blank:
        return
    yield MatchLevel.TRAILING_SPACE, lambda: _by_lines(document, wanted, _AS_IT_IS)
    if not wanted.needs_indentation:
        yield MatchLevel.INDENTATION, lambda: _by_content(document, wanted, _AS_IT_IS)
    if document.text.isascii() and wanted.old.isascii():
        return
    yield MatchLevel.UNICODE, lambda: _inside(document, wanted, _CONFUSABLES)
    yield MatchLevel.UNICODE, lambda: _by_lines(document, wanted, _CONFUSABLES)
    if not wanted.needs_indentation:
        yield MatchLevel.UNICODE, lambda: _by_content(document, wanted, _CONFUSABLES)


def _fits(document: Document, wanted: Wanted, match: Match) -> bool:
    if (wanted.whole_lines or wanted.starts_line) and not document.is_line_start(match.start):
        return False
    if wanted.line is not None and document.line_at(match.start) + 1 != wanted.line:
        return False
    return not wanted.whole_lines or document.is_line_end(match.end)


def _apart(matches: Iterator[Match]) -> Iterator[Match]:
    """Yield matches from left to right, without those that begin inside another."""
    reached = 0
    for match in matches:
        if match.start >= reached:
            yield match
            reached = match.end


def _positions(text: str, part: str, start: int = 0) -> Iterator[int]:
    """Yield every position of `part`, overlapping ones included."""
    at = text.find(part, start)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _exact(document: Document, old: str) -> Iterator[Match]:
    for at in _positions(document.text, old, document.start):
        yield Match(at, at + len(old))


class _View:
    """The lines of a document, each reduced to what is compared, as one text."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.text = "\n".join(keys) + "\n"
        self.starts = list(accumulate((len(key) + 1 for key in keys), initial=0))

    def point(self, position: int) -> tuple[int, int]:
        """Return the line that holds a position, and the column in it."""
        line = bisect_right(self.starts, position) - 1
        return line, position - self.starts[line]

    def runs(self, keys: Sequence[str]) -> Iterator[int]:
        """Yield the lines from which on the keys are all of `keys`."""
        part = "\n".join(keys) + "\n"
        if self.text.startswith(part):
            yield 0
        for at in _positions(self.text, "\n" + part):
            yield self.point(at + 1)[0]


def _inside(document: Document, wanted: Wanted, reduction: _Reduction) -> Iterator[Match]:
    """Yield where the reduced text is, anywhere in lines; a missing last line end is overlooked."""
    view = _View(reduction.lines(document))
    part = reduction.of(wanted.text)
    for at in _positions(view.text, part):
        stop = at + len(part)
        is_last = stop == len(view.text)
        if is_last and wanted.is_blank and not document.ends_with_newline:
            continue
        start = _original(document, reduction, view.point(at))
        end = len(document.text) if is_last else _original(document, reduction, view.point(stop))
        if start is not None and end is not None:
            yield Match(start, end)


def _original(document: Document, reduction: _Reduction, point: tuple[int, int]) -> int | None:
    """Return the position in a document of a column of a reduced line."""
    number, column = point
    position = reduction.position(document.lines[number], column)
    return None if position is None else document.starts[number] + position


def _by_lines(document: Document, wanted: Wanted, reduction: _Reduction) -> Iterator[Match]:
    """Yield where the lines are, blanks at their ends overlooked."""
    view = _View([line.rstrip(BLANKS) for line in reduction.lines(document)])
    keys = [line.rstrip(BLANKS) for line in map(reduction.of, wanted.lines)]
    for first in view.runs(keys):
        yield Match(document.starts[first], _end(document, wanted, first))


def _by_content(document: Document, wanted: Wanted, reduction: _Reduction) -> Iterator[Match]:
    """Yield where the lines are, if one rule explains how their indentation differs."""
    view = _View([line.lstrip(" \t").rstrip(BLANKS) for line in reduction.lines(document)])
    keys = [line.lstrip(" \t").rstrip(BLANKS) for line in map(reduction.of, wanted.lines)]
    indents = [indent_of(line) for line in wanted.lines]
    new = [
        indent_of(line) for line in unify_line_ends(wanted.new).split("\n") if line.strip(BLANKS)
    ]
    style = _style(document, wanted)
    for count, first in enumerate(view.runs(keys)):
        if count * len(keys) > _MAX_COMPARED:
            raise EditError(
                f"Text to replace is like more than {count} places but for its indentation: "
                f"{excerpt(wanted.old)}\nQuote it with the indentation that the file has"
            )
        there = document.indents[first : first + len(keys)]
        pairs = list(compress(zip(indents, there, strict=True), keys))
        reindent = reindent_between(pairs, new, style)
        if reindent is not None:
            yield Match(document.starts[first], _end(document, wanted, first), reindent)


def _style(document: Document, wanted: Wanted) -> Style:
    steps = [*block_steps(wanted.lines), *block_steps(unify_line_ends(wanted.new).split("\n"))]
    return Style(
        document.indents_with_tabs,
        document.indent_unit,
        document.level_widths,
        gcd(*steps) if gcd(*steps) in steps else None,
    )


def _end(document: Document, wanted: Wanted, first: int) -> int:
    """Return where a match of whole lines ends; blanks that nobody asked for stay outside."""
    last = first + len(wanted.lines) - 1
    if wanted.ends_line:
        return document.after(last)
    line = document.lines[last]
    asked = wanted.lines[-1]
    kept = line if asked != asked.rstrip(BLANKS) else line.rstrip(BLANKS)
    return document.starts[last] + len(kept)
