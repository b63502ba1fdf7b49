"""The three searches of W6 and W6m, and the right answers, found without any contender's help."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.harness import WrongAnswerError
from benchmarks.loops import grep_lines

Hits = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Question:
    """A pattern, and whether it is plain text."""

    name: str
    pattern: str
    literal: bool


# Each finds fewer lines than the default limit of 1,000, so that nobody's answer is cut.
QUESTIONS = (
    Question("literal", "DeprecationWarning", literal=True),
    Question("regex", r"def \w*(?:encode|decode)\w*\(self", literal=False),
    Question("no match, no literal", r"[a-z]{9}[0-9]{4}[A-Z]{3}[0-9]{2}", literal=False),
)


def text_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files that everybody takes for text: UTF-8 without NUL."""
    return {path: content for path, content in files.items() if _is_text(content)}


def answer_to(question: Question, texts: Mapping[str, bytes]) -> Hits:
    """The right answer, by Python's `re` on every line that can match."""
    pattern = re.escape(question.pattern) if question.literal else question.pattern
    return sorted(grep_lines(texts.items(), pattern))


def expect_hits(hits: Hits, expected: Hits, texts: Mapping[str, bytes]) -> None:
    """Compare what was found in text files; opinions differ on what is binary.

    Raises:
        WrongAnswerError: A line is missing, or one too many.
    """
    found = [hit for hit in hits if hit[0] in texts]
    if found != expected:
        odd = sorted(set(found) ^ set(expected))
        raise WrongAnswerError(f"{len(found)} hits instead of {len(expected)}: {odd[:3]!r}")


def _is_text(content: bytes) -> bool:
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False
