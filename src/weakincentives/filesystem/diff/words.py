"""The words that differ between removed lines and the added lines that replace them."""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""Where a changed text begins and ends in its line."""
_TOKEN = re.compile(r"\w+|\s+|.")
_TRAILING_SPACE = re.compile(r"\s+\Z")
_MAX_LINES = 60  # removed or added in a row
_MAX_TOKENS = 200  # of a line
_MIN_LIKENESS = 0.5  # of a line to the one that it becomes


def changed_words(
    removed: Sequence[str | None], added: Sequence[str | None]
) -> tuple[list[list[Span]], list[list[Span]]]:
    """Return what changed inside of each removed and each added line of a hunk.

    In a line that replaces no other one it is the whitespace at the end. None stands for what is
    not a line of the file.
    """
    old: list[list[Span]] = [[] for _ in removed]
    new: list[list[Span]] = [[] for _ in added]
    at = 0
    is_small = max(len(removed), len(added)) <= _MAX_LINES
    for number, line in enumerate(removed if is_small else ()):
        for other in range(at, len(added)):
            found = _compare(line, added[other])
            if found is not None:
                old[number], new[other] = found
                at = other + 1
                break
    for spans, lines in ((old, removed), (new, added)):
        for number, line in enumerate(lines):
            if line and not spans[number]:
                spans[number] = [each.span() for each in _TRAILING_SPACE.finditer(line)]
    return old, new


def _compare(old: str | None, new: str | None) -> tuple[list[Span], list[Span]] | None:
    """Return what differs in two lines; None if one is not a version of the other."""
    if old is None or new is None:
        return None
    left, right = ([*_TOKEN.findall(each)] for each in (old, new))
    if max(len(left), len(right)) > _MAX_TOKENS:
        return None
    words = [[each for each in side if not each.isspace()] for side in (left, right)]
    likeness = SequenceMatcher(None, *words, autojunk=False)
    if likeness.quick_ratio() < _MIN_LIKENESS or likeness.ratio() < _MIN_LIKENESS:
        return None
    changes = SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
    changed = [each for each in changes if each[0] != "equal"]
    return (
        _spans(left, [(start, stop) for _, start, stop, _, _ in changed]),
        _spans(right, [(start, stop) for _, _, _, start, stop in changed]),
    )


def _spans(tokens: Sequence[str], ranges: Sequence[Span]) -> list[Span]:
    """Return where tokens stand in their line."""
    places = [0]
    for each in tokens:
        places.append(places[-1] + len(each))
    return [(places[start], places[stop]) for start, stop in ranges if start < stop]
