"""The part of a text that a line after `@@` stands for: the block that it begins, or what follows.

A block goes on while lines are deeper than its first one. Lines that close it, branches,
labels and comments at the margin do not end it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from weakincentives.contrib.tools.edit.document import Document
from weakincentives.contrib.tools.edit.lookalikes import indent_of, plain

_GOES_ON = re.compile(
    r"[{})\]#]|</|\w+:$|(?:else|elif|elsif|except|finally|catch|rescue|ensure|case|default|end)\b"
)
_TAB = 8


@dataclass(frozen=True, slots=True)
class Scope:
    """The lines from an anchor to where it no longer counts; `is_block` if that is a block."""

    start: int
    stop: int
    is_block: bool = False


def scopes_below(document: Document, anchors: Sequence[str]) -> list[Scope]:
    """Return what the last anchor stands for, each one inside those before; empty if not found."""
    scopes = [Scope(0, len(document.lines))]
    for depth, anchor in enumerate(anchors):
        scopes = [
            _scope(document, line, scope.stop)
            for scope in scopes
            for line in _lines(document, anchor, scope.start + (depth > 0), scope.stop)
        ]
    return scopes


def _lines(document: Document, anchor: str, start: int, stop: int) -> list[int]:
    """Return the lines that are the anchor, or else those that begin with it."""
    wanted = _words(anchor)
    lines = [(number, _words(document.lines[number])) for number in range(start, stop)]
    same = [number for number, line in lines if line == wanted]
    return same or [number for number, line in lines if line.startswith(wanted)]


def _scope(document: Document, line: int, stop: int) -> Scope:
    depth = _depth(document.lines[line])
    is_block = False
    for number in range(line + 1, stop):
        text = document.lines[number]
        if not text.strip():
            continue
        if _depth(text) > depth:
            is_block = True
        elif _depth(text) < depth or not _GOES_ON.match(text.strip()):
            return Scope(line, number if is_block else stop, is_block)
    return Scope(line, stop, is_block)


def _depth(line: str) -> int:
    return len(plain(indent_of(line)).expandtabs(_TAB))


def _words(line: str) -> str:
    return " ".join(plain(line).split())
