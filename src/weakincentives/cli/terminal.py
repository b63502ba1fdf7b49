"""What may be written to a terminal: colour where it is wanted, control characters never.

File names, files and what a model says are strangers' text. An escape sequence in them
could hide lines of a diff from the person who is to decide about it.
"""

import os
import re
import unicodedata
from typing import IO, Any

import click

from weakincentives.characters import INVISIBLE

_EMOJI_STYLES = frozenset({"\ufe0e", "\ufe0f"})


def wants_colour(stream: IO[Any]) -> bool:
    """Say whether a stream is to have colour: a terminal, unless `NO_COLOR` is set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def is_terminal(stream: IO[Any] | None) -> bool:
    """Say whether a person reads or writes there."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def plain(text: str) -> str:
    """Return a text without what a terminal would obey or hide; line ends and tabs stay."""
    return INVISIBLE.sub(_visible, text)


def say(text: str, *, err: bool = True, color: bool | None = None, newline: bool = True) -> None:
    """Print a line that may hold strangers' text: on standard error, unless told otherwise."""
    click.echo(plain(text), err=err, color=color, nl=newline)


def one_line(text: str, width: int) -> str:
    """Return the first words of a text, so many characters at most."""
    joined = plain(" ".join(text.split()))
    return joined if len(joined) <= width else f"{joined[: max(0, width - 3)]}..."


def sentence(error: BaseException) -> str:
    """Return what a person is told about an error: a fact, and no number, in one line."""
    if isinstance(error, OSError) and error.strerror:
        place = "" if error.filename is None else f": {os.fsdecode(error.filename)!r}"
        return f"{error.strerror}{place}"
    return " ".join((str(error) or type(error).__name__).split())


def _visible(found: re.Match[str]) -> str:
    character = found[0]
    number = ord(character)
    if character in "\n\t" or (character in _EMOJI_STYLES and _follows_symbol(found)):
        return character
    if number < 0x20:
        return f"^{chr(number + 64)}"
    return f"<{number:02x}>" if number < 0x100 else f"<U+{number:04X}>"


def _follows_symbol(found: re.Match[str]) -> bool:
    """Return whether it says how the symbol before it is drawn, as in many emoji."""
    before = found.string[found.start() - 1 : found.start()]
    return bool(before) and unicodedata.category(before) == "So" and not INVISIBLE.match(before)
