"""Fuzzy matching: find a text in a document at the strictest `MatchLevel` at which it occurs.

A `Document` has the lines that are searched. The levels are tried in order: exact, line endings,
trailing whitespace, indentation, confusables. The first level with a match wins; its matches are
all reported.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import accumulate, compress, islice, pairwise
from math import gcd

from weakincentives.contrib.tools.editing.confusables import (
    fold_confusables,
    indent_of,
    unfold_column,
)
from weakincentives.contrib.tools.editing.indent import IndentStyle, Reindent, infer_reindent
from weakincentives.errors import WinkError

_MAX_EXCERPT = 160
_MAX_LINE_NUMBERS = 10
BOM = "\ufeff"
WHITESPACE = " \t\r\f\v"
_SAMPLE_LINES = 2_000  # lines from which the indentation style is inferred
_DEFAULT_INDENT = 4
_COMMON_RATIO = 8  # an indent width is usual if at least one block in so many has it
_BLOCK_OPENER = re.compile(
    r"(?:[:{]|=>|->|\b(?:then|do|begin))\s*(?:(?:#|//).*)?$"
    r"|^\s*(?:def|class|module|if|unless|else|elsif|while|until|for|case|when|begin|rescue|ensure)"
    r"\b(?!.*(?:[;,(\[]|\bend)\s*$)"
    r"|^\s*<\w[^<>]*(?<!/)>\s*$"
)
MAX_MATCHES = 100
"""Matches to list; beyond it the exact number does not matter."""
_MAX_COMPARED = 500_000  # lines whose indentation is compared in one search
_WORD = re.compile(r"\w")


class EditError(WinkError, ValueError):
    """An edit cannot be applied; the message is for the model: why, and what to do next."""


def excerpt(text: str, limit: int = _MAX_EXCERPT) -> str:
    """Return a text as a Python literal; a long one without its middle."""
    if len(text) <= limit:
        return repr(text)
    half = limit // 2
    return f"{text[:half]!r}...{text[-half:]!r} ({len(text)} characters)"


def clip(line: str, limit: int = _MAX_EXCERPT, around: int = 0) -> str:
    """Return a line, cut to `limit` characters around a position if it is longer.

    Bytes that are not text are escaped, so that the message can be encoded anywhere.
    """
    if len(line) <= limit:
        return line.encode("utf-8", "backslashreplace").decode("utf-8")
    start = max(0, min(around - limit // 2, len(line) - limit))
    before = "..." if start else ""
    after = "..." if start + limit < len(line) else ""
    return f"{before}{clip(line[start : start + limit])}{after}"


def format_line_numbers(numbers: Sequence[int], *, more: bool = False) -> str:
    """Return line numbers as words: `lines 3, 8 and 20`; `more` adds "and others"."""
    words = [str(number) for number in dict.fromkeys(numbers)]
    if more or len(words) > _MAX_LINE_NUMBERS:
        return f"lines {', '.join(words[:_MAX_LINE_NUMBERS])} and others"
    if len(words) == 1:
        return f"line {words[0]}"
    return f"lines {', '.join(words[:-1])} and {words[-1]}"


class MatchLevel(StrEnum):
    """Which differences were ignored to find a text; each level includes the ones before it."""

    EXACT = "exact"
    LINE_ENDINGS = "line endings"
    TRAILING_SPACE = "trailing space"
    INDENTATION = "indentation"
    UNICODE = "unicode"

    @property
    def rank(self) -> int:
        """The position from strict to tolerant; 0 is an exact match."""
        return list(MatchLevel).index(self)


class Document:
    """A text with its lines, counted from 0, and derived facts computed on demand."""

    def __init__(self, text: str) -> None:
        """Wrap `text`."""
        self.text = text
        self.start = 1 if text.startswith(BOM) else 0

    @cached_property
    def raw_lines(self) -> list[str]:
        r"""The lines without their `\n`; text after the last `\n` is a line unless it is empty."""
        lines = self.text[self.start :].split("\n")
        if not lines[-1]:
            lines.pop()
        return lines

    @cached_property
    def lines(self) -> list[str]:
        """The lines without their line endings."""
        if not self.has_returns or not self.raw_lines:
            return self.raw_lines
        stripped = [line.removesuffix("\r") for line in self.raw_lines]
        if not self.ends_with_newline:
            stripped[-1] = self.raw_lines[-1]
        return stripped

    @cached_property
    def folded_lines(self) -> list[str]:
        """The lines without their line endings, with confusables folded."""
        return fold_confusables("\n".join(self.lines)).split("\n")

    @cached_property
    def indents(self) -> list[str]:
        """The indentation of each line."""
        return [indent_of(line) for line in self.lines]

    @cached_property
    def has_returns(self) -> bool:
        """Whether the text has a carriage return."""
        return "\r" in self.text

    @cached_property
    def starts(self) -> list[int]:
        """The position of each line in the text."""
        lengths = (len(line) + 1 for line in self.raw_lines[:-1])
        return list(accumulate(lengths, initial=self.start))

    @property
    def ends_with_newline(self) -> bool:
        """Whether the last line has a line ending."""
        return self.text.endswith("\n")

    def line_at(self, position: int) -> int:
        """Return the line at a position, counted from 0."""
        return max(bisect_right(self.starts, position) - 1, 0)

    def line_stop(self, line: int) -> int:
        """Return the position after a line and its ending."""
        return self.starts[line + 1] if line + 1 < len(self.starts) else len(self.text)

    def line_number_at(self, position: int) -> int:
        """Return the number of the line at a position, counted from 1."""
        return self.text.count("\n", 0, position) + 1

    def ending_at(self, position: int) -> str:
        r"""Return the line ending nearest to a position: `\n`, `\r\n`, or "" if there is none."""
        at = self.text.find("\n", position)
        if at < 0:
            at = self.text.rfind("\n", 0, position)
        if at < 0:
            return ""
        return "\r\n" if at and self.text[at - 1] == "\r" else "\n"

    def is_line_start(self, position: int) -> bool:
        """Return whether a line starts at a position."""
        return position == self.start or self.text[position - 1 : position] == "\n"

    def is_line_end(self, position: int) -> bool:
        """Return whether a position is at the end of a line's content, or just after its ending."""
        rest = self.text[position : position + 2]
        return not rest or rest[0] == "\n" or rest == "\r\n" or self.is_line_start(position)

    @cached_property
    def indents_with_tabs(self) -> bool:
        """Whether more lines are indented with tabs than with spaces."""
        first = Counter(line[:1] for line in self.lines)
        return first["\t"] > first[" "]

    @cached_property
    def indent_unit(self) -> int:
        """The number of spaces per indentation level, inferred from the first lines."""
        widths = [
            _leading_spaces(line) for line in self.lines[:_SAMPLE_LINES] if line.strip(WHITESPACE)
        ]
        steps = Counter(later - earlier for earlier, later in pairwise(widths) if later > earlier)
        return steps.most_common(1)[0][0] if steps else _DEFAULT_INDENT

    @cached_property
    def level_widths(self) -> frozenset[int]:
        """The indent widths, in spaces, that are usual for blocks of this document."""
        steps = Counter(block_steps(self.lines[:_SAMPLE_LINES]))
        return frozenset(
            step for step, times in steps.items() if times * _COMMON_RATIO >= steps.total()
        )


def block_steps(lines: Iterable[str]) -> Iterator[int]:
    """Yield the extra indentation, in spaces, of each line that follows a block opener."""
    for before, line in pairwise(line for line in lines if line.strip(WHITESPACE)):
        step = _leading_spaces(line) - _leading_spaces(before)
        if step > 0 and _BLOCK_OPENER.search(before):
            yield step


def _leading_spaces(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def split_lines(text: str) -> list[str]:
    r"""Return the lines of a text with their `\n`; the last one may have none."""
    *ended, last = text.split("\n")
    return [line + "\n" for line in ended] + ([last] if last else [])


def unify_line_ends(text: str) -> str:
    r"""Return `text` with `\r\n` replaced by `\n`."""
    return text.replace("\r\n", "\n")


def encode_lines(lines: Iterable[str]) -> list[bytes]:
    """Return lines as bytes, to be compared; works for any text, lone surrogates included."""
    return [line.encode("utf-8", "surrogatepass") for line in lines]


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

    If `disjoint`, those that overlap an earlier one are skipped; at most `limit` are listed.
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
    starts = _positions(document.text, query.old, document.start)
    yield MatchLevel.EXACT, lambda: (Match(at, at + len(query.old)) for at in starts)
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
