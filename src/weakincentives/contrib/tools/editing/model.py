"""Edits and their outcome, match levels, and the document that edits are applied to."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import accumulate, pairwise

from weakincentives.contrib.tools.editing.confusables import fold_confusables, indent_of

Span = tuple[int, int]


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


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement.

    Args:
        old: The text to find; it must occur exactly once.
        new: The text to replace it with.
        replace_all: Replace every occurrence instead.
        expected: The number of occurrences required for `replace_all`; any number if omitted.
    """

    old: str
    new: str
    replace_all: bool = False
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class EditOutcome:
    """The result of applying edits.

    Args:
        content: The whole new text.
        match_level: The most tolerant level that was needed.
        replacements: How many occurrences were replaced.
        spans: The character ranges of the old text that were replaced.
        new_spans: For each of them, the range of the new text that replaced it.
        notes: Remarks for the caller, such as line numbers that were removed.
    """

    content: str
    match_level: MatchLevel
    replacements: int
    spans: tuple[Span, ...]
    new_spans: tuple[Span, ...] = ()
    notes: tuple[str, ...] = ()


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
