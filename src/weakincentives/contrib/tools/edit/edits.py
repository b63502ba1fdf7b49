"""What an edit is, and what applying one gives."""

from dataclasses import dataclass
from enum import StrEnum

from weakincentives.errors import WinkError

Span = tuple[int, int]


class EditError(WinkError, ValueError):
    """An edit cannot be applied; the message tells a model why, and what to do next."""


class Grade(StrEnum):
    """What had to be overlooked to find the text; a later grade overlooks the earlier ones too."""

    EXACT = "exact"
    LINE_ENDINGS = "line endings"
    TRAILING_SPACE = "trailing space"
    INDENTATION = "indentation"
    UNICODE = "unicode"

    @property
    def rank(self) -> int:
        """How much was overlooked: 0 is nothing."""
        return list(Grade).index(self)


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
    grade: Grade
    replacements: int
    spans: tuple[Span, ...]
    new_spans: tuple[Span, ...] = ()
    notes: tuple[str, ...] = ()
