"""Terminal output and keyboard input.

Output: colour where it is wanted, control characters never. File names, file contents and
model output are untrusted text; an escape sequence in them could hide lines of a diff
from the person who has to decide about it.

Input: echo is off during a run, typeahead is discarded before a question, and a signal
interrupts a read.
"""

import os
import re
import select
import shutil
import signal
import sys
import termios
import textwrap
import unicodedata
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import IO, Any

import click

from weakincentives.characters import INVISIBLE

_EMOJI_STYLES = frozenset({"\ufe0e", "\ufe0f"})
_PASTE_SECONDS = 0.05  # a terminal sends the next pasted line sooner
_LOCAL_FLAGS = 3  # index of the flags such as ECHO in the list that termios returns


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


# --- keyboard ---


def discard_typeahead(stream: IO[Any] | None = None) -> None:
    """Discard what was typed so far, so that nobody answers a question before seeing it."""
    descriptor = _controllable_terminal(stream)
    if descriptor is not None:
        with suppress(OSError, termios.error):
            termios.tcflush(descriptor, termios.TCIFLUSH)


def read_line() -> str:
    """Return the next typed line with its newline; empty at end of input.

    `input()` can miss a signal that arrives just before it starts to wait, and then waits
    until a key is pressed. The wakeup descriptor becomes readable as soon as a signal
    arrives, so the handler runs at once.
    """
    with _signal_wakeup() as wakeup:
        while not _is_readable(sys.stdin.fileno(), wakeup):
            os.read(wakeup, 1024)  # a signal whose handler did not raise
    return sys.stdin.readline()


def confirm(question: str) -> bool:
    """Ask a question that only yes answers."""
    discard_typeahead()
    echo(f"{question} [y/N]: ", newline=False)
    return read_line().strip().lower() in {"y", "yes"}


def read_pasted_lines() -> str:
    """Return the lines that were pasted together with the line that was just read."""
    lines: list[str] = []
    while select.select([sys.stdin], [], [], _PASTE_SECONDS)[0] and (line := sys.stdin.readline()):
        lines.append(line)
    return "".join(lines)


@contextmanager
def disable_echo(stream: IO[Any] | None = None) -> Generator[None, None, None]:
    """Do not show what is typed; keys such as Ctrl-C still work."""
    descriptor = _controllable_terminal(stream)
    if descriptor is None or not _set_echo(descriptor, on=False):
        yield
        return
    try:
        yield
    finally:
        if _is_foreground(descriptor):  # else the run was moved to the background
            _set_echo(descriptor, on=True)


def _is_readable(descriptor: int, wakeup: int) -> bool:
    return descriptor in select.select([descriptor, wakeup], [], [])[0]


@contextmanager
def _signal_wakeup() -> Generator[int, None, None]:
    """Yield a descriptor that becomes readable when a signal arrives."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(previous)
    finally:
        os.close(reader)
        os.close(writer)


def _set_echo(descriptor: int, *, on: bool) -> bool:
    """Turn the echo on or off; return whether that changed anything."""
    try:
        flags = termios.tcgetattr(descriptor)
        before = flags[_LOCAL_FLAGS]
        flags[_LOCAL_FLAGS] = before | termios.ECHO if on else before & ~termios.ECHO
        if flags[_LOCAL_FLAGS] != before:
            termios.tcsetattr(descriptor, termios.TCSANOW, flags)
    except (OSError, termios.error):
        return False
    return flags[_LOCAL_FLAGS] != before


def _controllable_terminal(stream: IO[Any] | None) -> int | None:
    """Return the descriptor of a terminal that we may change, or None."""
    source = sys.stdin if stream is None else stream
    try:
        descriptor = source.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or not a file
        return None
    return descriptor if os.isatty(descriptor) and _is_foreground(descriptor) else None


def _is_foreground(descriptor: int) -> bool:
    """Return whether we are in the foreground; in the background a change would stop us."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return True  # not our controlling terminal, so it cannot stop us
