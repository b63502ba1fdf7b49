"""Strings that span lines, in any of the languages that have them.

Nobody says which language a text is in, so only what looks alike in all of them is read:
triple quotes, backticks, here documents and block comments. A string that nothing ends is none.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import count

_TOKEN = re.compile(
    r"""
    (?P<quotes>\"{3}|'{3}|`)
    | (?<!\S)(?P<comment>/\*)
    | <<[-~]?(?P<mark>["']?)(?P<word>[A-Za-z_][\w.-]*)(?P=mark)(?=\W|$)
    | "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*'  # strings that end in their line
    | (?<!\S)(?:\#|//).*  # comments
    """,
    re.VERBOSE,
)


def lines_in_strings(lines: Sequence[str], start: int) -> Iterator[bool]:
    """Yield for each line from `start` on whether it begins inside a string that spans lines."""
    ends = _Ends(lines)
    number, column = start, 0
    yield False
    while number < len(lines):
        opened = _opened(lines[number], column)
        end = None if opened is None else ends.find(number, opened)
        if opened is not None and end is None:
            column = opened.end()
            continue
        stop, column = end or (number + 1, 0)
        yield from (end is not None for _ in range(number + 1, min(stop + 1, len(lines))))
        number = stop


class _Ends:
    """Where strings end; what ends nowhere is looked for only once."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._unended: set[str] = set()

    def find(self, number: int, opened: re.Match[str]) -> tuple[int, int] | None:
        """Return the line and the column where a string ends; None if it does not."""
        if opened["word"]:
            last = self._closing_line(number, opened["word"])
            return None if last is None else (last, len(self._lines[last]))
        mark = opened["quotes"] or "*/"
        return None if mark in self._unended else self._after(mark, number, opened.end())

    def _after(self, mark: str, number: int, column: int) -> tuple[int, int] | None:
        for at in range(number, len(self._lines)):
            found = self._lines[at].find(mark, column)
            if found >= 0:
                return at, found + len(mark)
            column = 0
        self._unended.add(mark)
        return None

    def _closing_line(self, number: int, word: str) -> int | None:
        if self._last_lines.get(word, -1) <= number:
            return None
        return next(at for at in count(number + 1) if self._lines[at].strip() == word)

    @cached_property
    def _last_lines(self) -> dict[str, int]:
        return {line.strip(): number for number, line in enumerate(self._lines)}


def _opened(line: str, column: int) -> re.Match[str] | None:
    """Return what begins a string in a line that may go on in the next one."""
    for token in _TOKEN.finditer(line, column):
        if token["quotes"] or token["comment"] or token["word"]:
            return token
    return None
