"""What an edit is, and what applying one gives."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import accumulate, pairwise

from weakincentives.contrib.tools.editing.confusables import indent_of, plain
from weakincentives.errors import WinkError

Span = tuple[int, int]


class EditError(WinkError, ValueError):
    """An edit cannot be applied; the message tells a model why, and what to do next."""


class MatchLevel(StrEnum):
    """What had to be overlooked to find the text; a later grade overlooks the earlier ones too."""

    EXACT = "exact"
    LINE_ENDINGS = "line endings"
    TRAILING_SPACE = "trailing space"
    INDENTATION = "indentation"
    UNICODE = "unicode"

    @property
    def rank(self) -> int:
        """How much was overlooked: 0 is nothing."""
        return list(MatchLevel).index(self)


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement.

    Args:
        old: The text to find; it must be in one place only.
        new: What to put there.
        replace_all: Replace every place instead.
        expected: How many places there must be for that; any number if omitted.
    """

    old: str
    new: str
    replace_all: bool = False
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class EditOutcome:
    """What applying edits gave.

    Args:
        content: The whole new text.
        grade: The worst grade that was needed.
        replacements: How many places were replaced.
        spans: The ranges of characters of the old text that were replaced.
        new_spans: For each of them, the range of the new text that is in its place.
        notes: What whoever asked for the edits should know.
    """

    content: str
    grade: MatchLevel
    replacements: int
    spans: tuple[Span, ...]
    new_spans: tuple[Span, ...] = ()
    notes: tuple[str, ...] = ()


BOM = "\ufeff"
BLANKS = " \t\r\f\v"
_SAMPLE = 2_000  # lines that tell how a text is indented
_DEFAULT_UNIT = 4
_COMMON = 8  # a width of one level in so many is usual
_OPENS = re.compile(
    r"(?:[:{]|=>|->|\b(?:then|do|begin))\s*(?:(?:#|//).*)?$"
    r"|^\s*(?:def|class|module|if|unless|else|elsif|while|until|for|case|when|begin|rescue|ensure)"
    r"\b(?!.*(?:[;,(\[]|\bend)\s*$)"
    r"|^\s*<\w[^<>]*(?<!/)>\s*$"
)


class Document:
    """A text and its lines, counted from 0."""

    def __init__(self, text: str) -> None:
        """Look at `text`; nothing is done before it is needed."""
        self.text = text
        self.start = 1 if text.startswith(BOM) else 0

    @cached_property
    def raw_lines(self) -> list[str]:
        r"""The lines without their `\n`; what follows the last one is a line if not empty."""
        lines = self.text[self.start :].split("\n")
        if not lines[-1]:
            lines.pop()
        return lines

    @cached_property
    def lines(self) -> list[str]:
        """The lines without their ends."""
        if not self.has_returns or not self.raw_lines:
            return self.raw_lines
        stripped = [line.removesuffix("\r") for line in self.raw_lines]
        if not self.ends_with_newline:
            stripped[-1] = self.raw_lines[-1]
        return stripped

    @cached_property
    def plain_lines(self) -> list[str]:
        """The lines without their ends, look-alike characters replaced."""
        return plain("\n".join(self.lines)).split("\n")

    @cached_property
    def indents(self) -> list[str]:
        """The blanks with which each line begins."""
        return [indent_of(line) for line in self.lines]

    @cached_property
    def has_returns(self) -> bool:
        """Whether there is any carriage return."""
        return "\r" in self.text

    @cached_property
    def starts(self) -> list[int]:
        """Where each line begins in the text."""
        lengths = (len(line) + 1 for line in self.raw_lines[:-1])
        return list(accumulate(lengths, initial=self.start))

    @property
    def ends_with_newline(self) -> bool:
        """Whether the last line has an end."""
        return self.text.endswith("\n")

    def line_at(self, position: int) -> int:
        """Return the line that holds a position."""
        return max(bisect_right(self.starts, position) - 1, 0)

    def after(self, line: int) -> int:
        """Return where the line after a line begins, or the end of the text."""
        return self.starts[line + 1] if line + 1 < len(self.starts) else len(self.text)

    def number_at(self, position: int) -> int:
        """Return the number of the line that holds a position, counted from 1."""
        return self.text.count("\n", 0, position) + 1

    def ending_at(self, position: int) -> str:
        r"""Return how lines end around a position: `\n`, `\r\n`, or nothing if none does."""
        at = self.text.find("\n", position)
        if at < 0:
            at = self.text.rfind("\n", 0, position)
        if at < 0:
            return ""
        return "\r\n" if at and self.text[at - 1] == "\r" else "\n"

    def is_line_start(self, position: int) -> bool:
        """Return whether a line begins at a position."""
        return position == self.start or self.text[position - 1 : position] == "\n"

    def is_line_end(self, position: int) -> bool:
        """Return whether the content of a line ends at a position, or the line before it did."""
        rest = self.text[position : position + 2]
        return not rest or rest[0] == "\n" or rest == "\r\n" or self.is_line_start(position)

    @cached_property
    def indents_with_tabs(self) -> bool:
        """Whether more lines are indented with tabs than with spaces."""
        first = Counter(line[:1] for line in self.lines)
        return first["\t"] > first[" "]

    @cached_property
    def indent_unit(self) -> int:
        """How many spaces a level of indentation has, judged by the first lines."""
        widths = [_spaces(line) for line in self.lines[:_SAMPLE] if line.strip(BLANKS)]
        steps = Counter(later - earlier for earlier, later in pairwise(widths) if later > earlier)
        return steps.most_common(1)[0][0] if steps else _DEFAULT_UNIT

    @cached_property
    def level_widths(self) -> frozenset[int]:
        """How many spaces the lines of a block are deeper than what opens it, as is usual here."""
        steps = Counter(block_steps(self.lines[:_SAMPLE]))
        return frozenset(step for step, times in steps.items() if times * _COMMON >= steps.total())


def block_steps(lines: Iterable[str]) -> Iterator[int]:
    """Yield how many spaces lines are deeper than a line before them that opens a block."""
    for before, line in pairwise(line for line in lines if line.strip(BLANKS)):
        step = _spaces(line) - _spaces(before)
        if step > 0 and _OPENS.search(before):
            yield step


def _spaces(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def ended_lines(text: str) -> list[str]:
    """Return the lines of a text with their ends; the last one may have none."""
    *ended, last = text.split("\n")
    return [line + "\n" for line in ended] + ([last] if last else [])


def unify_line_ends(text: str) -> str:
    r"""Return `text` with every line end as `\n`."""
    return text.replace("\r\n", "\n")


def encoded_lines(lines: Iterable[str]) -> list[bytes]:
    """Return lines as bytes, to be compared; any text has some."""
    return [line.encode("utf-8", "surrogatepass") for line in lines]
