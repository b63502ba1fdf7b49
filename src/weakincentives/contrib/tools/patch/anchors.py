"""The parts of a text that a line after `@@` stands for: its block, its section, what follows.

A block goes on while lines are deeper than its first one. Lines that close it, branches,
labels, comments and the lines of a string that spans several do not end it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weakincentives.contrib.tools.edit.document import Document
from weakincentives.contrib.tools.edit.lookalikes import indent_of, plain
from weakincentives.contrib.tools.patch.strings import lines_in_strings

_GOES_ON = re.compile(
    r"[{})\]#]|</|//|/\*|\*/|\w+:$"
    r"|(?:else|elif|elsif|except|finally|catch|rescue|ensure|case|default|end)\b"
)
_HEADING = re.compile(r"[A-Za-z_$]")  # what git takes for the heading of a hunk
_TAB = 8
_MAX_HEADINGS = 100  # a line that is there more often is no heading
_MAX_VISITED = 200_000  # lines of the blocks of one anchor


@dataclass(frozen=True, slots=True)
class Scope:
    """A line and the block that it begins, if it begins one; otherwise the line alone."""

    start: int
    stop: int
    is_block: bool


def scopes_below(document: Document, anchors: Sequence[str]) -> list[Scope]:
    """Return what the last anchor stands for, below those before it; empty if not found.

    An anchor is looked for in the blocks that the anchors before it begin; if it is in none
    of them, anywhere below.
    """
    outermost, *inner = anchors
    size = len(document.lines)
    scopes = _scopes(document, _lines(document, outermost, range(size)))
    for anchor in inner:
        inside = [range(scope.start + 1, scope.stop) for scope in scopes]
        below = [range(scope.start + 1, size) for scope in scopes[:1]]
        found = _found(document, anchor, inside) or _found(document, anchor, below)
        scopes = _scopes(document, found)
    return scopes


def sections_of(document: Document, scopes: Sequence[Scope]) -> list[range]:
    """Return where hunks begin for which git gives the line of a scope as the heading."""
    if len(scopes) > _MAX_HEADINGS:
        return []
    return [range(each.start + 1, _next_heading(document, each.start) + 1) for each in scopes]


def _next_heading(document: Document, line: int) -> int:
    """Return the next line that could be a heading in place of a line, or the last one."""
    depth = _depth(document.lines[line])
    for number in range(line + 1, len(document.lines)):
        text = document.lines[number]
        if _HEADING.match(text.lstrip()) and _depth(text) <= depth:
            return number
    return len(document.lines) - 1


def _found(document: Document, anchor: str, ranges: Sequence[range]) -> list[int]:
    lines = (line for numbers in ranges for line in _lines(document, anchor, numbers))
    return list(dict.fromkeys(lines))


def _lines(document: Document, anchor: str, numbers: range) -> list[int]:
    """Return the lines that are the anchor, or else those that begin with it."""
    wanted = _words(anchor)
    lines = [(number, _words(document.lines[number])) for number in numbers]
    same = [number for number, line in lines if line == wanted]
    return same or [number for number, line in lines if line.startswith(wanted)]


def _scopes(document: Document, lines: Sequence[int]) -> list[Scope]:
    """Return the blocks of lines; none if the lines are so many that they tell nothing."""
    scopes: list[Scope] = []
    visited = 0
    for line in lines:
        stop, is_block = _block(document, line)
        visited += stop - line
        if visited > _MAX_VISITED:
            return []
        scopes.append(Scope(line, stop if is_block else line + 1, is_block))
    return scopes


def _block(document: Document, line: int) -> tuple[int, bool]:
    """Return the line that ends the block of a line, and whether there is such a block."""
    depth = _depth(document.lines[line])
    is_block = False
    for number, is_string in _visible(document, line):
        text = document.lines[number]
        if is_string or _depth(text) > depth:
            is_block = is_block or not is_string
        elif _depth(text) < depth or not _GOES_ON.match(text.strip()):
            return number, is_block
    return len(document.lines), is_block


def _visible(document: Document, line: int) -> Iterator[tuple[int, bool]]:
    """Yield the lines below a line that are not blank, and whether they begin in a string."""
    in_strings = lines_in_strings(document.lines, line)
    next(in_strings)
    for number, is_string in enumerate(in_strings, line + 1):
        if document.lines[number].strip():
            yield number, is_string


def _depth(line: str) -> int:
    return len(plain(indent_of(line)).expandtabs(_TAB))


def _words(line: str) -> str:
    return " ".join(plain(line).split())
