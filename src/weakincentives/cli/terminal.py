"""Terminal output: colour where it is wanted, control characters never.

File names, file contents and model output are untrusted text; an escape sequence in them could
hide lines of a diff from the person who has to decide about it.
"""

import os
import re
import shutil
import sys
import textwrap
import unicodedata
from typing import IO, Any

import click

from weakincentives.characters import INVISIBLE

_EMOJI_STYLES = frozenset({"\ufe0e", "\ufe0f"})


def wants_colour(stream: IO[Any]) -> bool:
    """Return whether to write colour: on a terminal unless `NO_COLOR` is set, or `FORCE_COLOR`."""
    if os.environ.get("NO_COLOR"):
        return False
    return is_terminal(stream) or os.environ.get("FORCE_COLOR", "0") not in ("", "0")


def is_terminal(stream: IO[Any] | None) -> bool:
    """Return whether a stream is an interactive terminal."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def escape_controls(text: str) -> str:
    """Make control and invisible characters visible; newlines and tabs stay."""
    return INVISIBLE.sub(_escape, text)


def echo(text: str, *, err: bool = True, color: bool | None = None, newline: bool = True) -> None:
    """Print untrusted text, by default on standard error."""
    click.echo(escape_controls(text), err=err, color=color, nl=newline)


def shorten(text: str, width: int) -> str:
    """Return a text as one line of at most `width` cells of a terminal."""
    return cut(escape_controls(" ".join(text.split())), width)


def cut(line: str, width: int) -> str:
    """Return a line of at most `width` cells; an ellipsis shows that something is missing."""
    if sum(map(_cells, line)) <= width:
        return line
    room, end = width - 1, 0
    while end < len(line) and _cells(line[end]) <= room:
        room -= _cells(line[end])
        end += 1
    return f"{line[:end].rstrip()}…"


def wrap_words(text: str, *, room: int = 0) -> str:
    """Return a text as lines that end between words, on a terminal, with room after the last."""
    if not is_terminal(sys.stderr):
        return text
    width = max(20, shutil.get_terminal_size().columns - room)
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def _cells(character: str) -> int:
    """Return the width of a character; importing rich for it would slow down every command."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def describe_error(error: BaseException) -> str:
    """Return an error as one line without its errno."""
    if isinstance(error, OSError) and error.strerror:
        place = "" if error.filename is None else f": {os.fsdecode(error.filename)!r}"
        return f"{error.strerror}{place}"
    return " ".join((str(error) or type(error).__name__).split())


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    number = ord(character)
    if character in "\n\t" or (character in _EMOJI_STYLES and _follows_symbol(match)):
        return character
    if number < 0x20:
        return f"^{chr(number + 64)}"
    return f"<{number:02x}>" if number < 0x100 else f"<U+{number:04X}>"


def _follows_symbol(match: re.Match[str]) -> bool:
    """Return whether a variation selector follows a symbol, as in many emoji."""
    before = match.string[match.start() - 1 : match.start()]
    return bool(before) and unicodedata.category(before) == "So" and not INVISIBLE.match(before)
