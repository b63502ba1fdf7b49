"""Fuzzy matching: find a text in a document at the strictest `MatchLevel` at which it occurs.

The levels are tried in order: exact, line endings, trailing whitespace, indentation,
confusables. The first level with a match wins; its matches are all reported.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, compress, islice
from math import gcd

from weakincentives.contrib.tools.editing.confusables import (
    fold_confusables,
    indent_of,
    unfold_column,
)
from weakincentives.contrib.tools.editing.errors import EditError, excerpt
from weakincentives.contrib.tools.editing.indent import IndentStyle, Reindent, infer_reindent
from weakincentives.contrib.tools.editing.model import (
    WHITESPACE,
    Document,
    MatchLevel,
    block_steps,
    unify_line_ends,
)

MAX_MATCHES = 100
"""Matches to list; beyond it the exact number does not matter."""
_MAX_COMPARED = 500_000  # lines whose indentation is compared in one search
_WORD = re.compile(r"\w")


@dataclass(frozen=True, slots=True)
class Match:
    """A range of characters that matched; `reindent` applies to the text that replaces it."""

    start: int
    end: int
    reindent: Reindent | None = None


@dataclass(frozen=True, slots=True)
class Matches:
    """All matches at the strictest level that has any; with `more`, the list is incomplete."""

    level: MatchLevel
    matches: Sequence[Match]
    more: bool = False


@dataclass(frozen=True)
class Query:
    """A text to find, what replaces it, and where it may match.

    Args:
        old: The text to find.
        new: The text that replaces it.
        whole_lines: Match only whole lines.
        literal: After an exact match, write `new` unchanged, line endings included.
        starts_line: Match only at the start of a line.
        line: Match only in this line, counted from 1.
    """

    old: str
    new: str
    whole_lines: bool = False
    literal: bool = False
    starts_line: bool = False
    line: int | None = None

    @cached_property
    def text(self) -> str:
        r"""The text to find, with `\n` line endings."""
        return unify_line_ends(self.old)

    @cached_property
    def lines(self) -> list[str]:
        """The lines to find."""
        lines = self.text.split("\n")
        return lines[:-1] if self.ends_line else lines

    @property
    def ends_line(self) -> bool:
        """Whether the text includes the ending of its last line."""
        return self.text.endswith("\n")

    @property
    def is_blank(self) -> bool:
        """Whether the text is only whitespace."""
        return not fold_confusables(self.text).strip(WHITESPACE + "\n")

    @cached_property
    def needs_indentation(self) -> bool:
        """Whether indentation must match.

        True if indentation is all that changes, or if the only visible text is punctuation
        such as a bracket, which could match anywhere.
        """
        if not _WORD.search(self.text) and sum(map(bool, map(str.strip, self.lines))) == 1:
            return True
        new = unify_line_ends(self.new).split("\n")
        return [line.strip() for line in self.text.split("\n")] == [line.strip() for line in new]


def find_matches(
    document: Document, query: Query, *, disjoint: bool = False, limit: int = MAX_MATCHES
) -> Matches | None:
    """Return the matches at the strictest level that has any; None if there are none.

    Args:
        document: Where to search.
        query: What to search for.
        disjoint: Skip matches that overlap an earlier one, instead of counting all.
        limit: The maximum number of matches to list.
    """
    for level, search in _searches(document, query):
        candidates = (each for each in search() if _is_allowed(document, query, each))
        if disjoint:
            candidates = _skip_overlaps(candidates)
        matches = list(islice(candidates, limit + 1))
        if matches:
            return Matches(level, matches[:limit], len(matches) > limit)
    return None


@dataclass(frozen=True, slots=True)
class _Folding:
    """How texts are folded before they are compared, and how to map a column back."""

    fold: Callable[[str], str]
    lines: Callable[[Document], list[str]]
    unfold_column: Callable[[str, int], int | None]


_Search = Callable[[], Iterator[Match]]
_NO_FOLDING = _Folding(str, lambda document: document.lines, lambda _, column: column)
_CONFUSABLES = _Folding(fold_confusables, lambda document: document.folded_lines, unfold_column)


def _searches(document: Document, query: Query) -> Iterator[tuple[MatchLevel, _Search]]:
    """Yield the searches to try, strictest first."""
    yield MatchLevel.EXACT, lambda: _find_exact(document, query.old)
    if not document.lines:
        return
    yield MatchLevel.LINE_ENDINGS, lambda: _find_text(document, query, _NO_FOLDING)
    if query.is_blank:
        return
    yield MatchLevel.TRAILING_SPACE, lambda: _find_lines(document, query, _NO_FOLDING)
    if not query.needs_indentation:
        yield MatchLevel.INDENTATION, lambda: _find_reindented(document, query, _NO_FOLDING)
    if document.text.isascii() and query.old.isascii():
        return
    yield MatchLevel.UNICODE, lambda: _find_text(document, query, _CONFUSABLES)
    yield MatchLevel.UNICODE, lambda: _find_lines(document, query, _CONFUSABLES)
    if not query.needs_indentation:
        yield MatchLevel.UNICODE, lambda: _find_reindented(document, query, _CONFUSABLES)


def _is_allowed(document: Document, query: Query, match: Match) -> bool:
    if (query.whole_lines or query.starts_line) and not document.is_line_start(match.start):
        return False
    if query.line is not None and document.line_at(match.start) + 1 != query.line:
        return False
    return not query.whole_lines or document.is_line_end(match.end)


def _skip_overlaps(matches: Iterator[Match]) -> Iterator[Match]:
    """Yield matches from left to right, without those that start inside another."""
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


def _find_exact(document: Document, old: str) -> Iterator[Match]:
    for at in _positions(document.text, old, document.start):
        yield Match(at, at + len(old))


class _FoldedText:
    """The folded lines of a document as one text, with the position of each line."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.text = "\n".join(keys) + "\n"
        self.starts = list(accumulate((len(key) + 1 for key in keys), initial=0))

    def locate(self, position: int) -> tuple[int, int]:
        """Return the line and column of a position."""
        line = bisect_right(self.starts, position) - 1
        return line, position - self.starts[line]

    def find_runs(self, keys: Sequence[str]) -> Iterator[int]:
        """Yield every line at which the consecutive lines `keys` start."""
        part = "\n".join(keys) + "\n"
        if self.text.startswith(part):
            yield 0
        for at in _positions(self.text, "\n" + part):
            yield self.locate(at + 1)[0]


def _find_text(document: Document, query: Query, folding: _Folding) -> Iterator[Match]:
    """Yield matches anywhere within lines; a missing final newline is ignored."""
    folded = _FoldedText(folding.lines(document))
    part = folding.fold(query.text)
    for at in _positions(folded.text, part):
        stop = at + len(part)
        is_last = stop == len(folded.text)
        if is_last and query.is_blank and not document.ends_with_newline:
            continue
        start = _original_position(document, folding, folded.locate(at))
        end = len(document.text)
        if not is_last:
            end = _original_position(document, folding, folded.locate(stop))
        if start is not None and end is not None:
            yield Match(start, end)


def _original_position(
    document: Document, folding: _Folding, folded: tuple[int, int]
) -> int | None:
    """Return the position in the document of a line and column of the folded text."""
    number, column = folded
    position = folding.unfold_column(document.lines[number], column)
    return None if position is None else document.starts[number] + position


def _find_lines(document: Document, query: Query, folding: _Folding) -> Iterator[Match]:
    """Yield matches of whole lines, ignoring trailing whitespace."""
    folded = _FoldedText([line.rstrip(WHITESPACE) for line in folding.lines(document)])
    keys = [line.rstrip(WHITESPACE) for line in map(folding.fold, query.lines)]
    for first in folded.find_runs(keys):
        yield Match(document.starts[first], _match_end(document, query, first))


def _find_reindented(document: Document, query: Query, folding: _Folding) -> Iterator[Match]:
    """Yield matches of whole lines whose indentation differs by one consistent rule."""
    folded = _FoldedText(
        [line.lstrip(" \t").rstrip(WHITESPACE) for line in folding.lines(document)]
    )
    keys = [line.lstrip(" \t").rstrip(WHITESPACE) for line in map(folding.fold, query.lines)]
    indents = [indent_of(line) for line in query.lines]
    new_lines = unify_line_ends(query.new).split("\n")
    new_indents = [indent_of(line) for line in new_lines if line.strip(WHITESPACE)]
    style = _indent_style(document, query)
    for count, first in enumerate(folded.find_runs(keys)):
        if count * len(keys) > _MAX_COMPARED:
            raise EditError(
                f"Text to replace matches more than {count} places except for its indentation: "
                f"{excerpt(query.old)}\nUse the exact indentation of the file"
            )
        found = document.indents[first : first + len(keys)]
        pairs = list(compress(zip(indents, found, strict=True), keys))
        reindent = infer_reindent(pairs, new_indents, style)
        if reindent is not None:
            yield Match(document.starts[first], _match_end(document, query, first), reindent)


def _indent_style(document: Document, query: Query) -> IndentStyle:
    steps = [*block_steps(query.lines), *block_steps(unify_line_ends(query.new).split("\n"))]
    return IndentStyle(
        document.indents_with_tabs,
        document.indent_unit,
        document.level_widths,
        gcd(*steps) if gcd(*steps) in steps else None,
    )


def _match_end(document: Document, query: Query, first: int) -> int:
    """Return the end of a whole-line match; trailing whitespace not in the query is left out."""
    last = first + len(query.lines) - 1
    if query.ends_line:
        return document.line_stop(last)
    line = document.lines[last]
    query_line = query.lines[-1]
    kept = line if query_line != query_line.rstrip(WHITESPACE) else line.rstrip(WHITESPACE)
    return document.starts[last] + len(kept)
