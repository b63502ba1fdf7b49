"""What a person types: unseen while a run works, and no answer to a question not yet asked."""

import os
import sys
import termios
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import IO, Any

_LOCAL_FLAGS = 3  # where the flags such as ECHO are in what termios gives


def discard_typed(stream: IO[Any] | None = None) -> None:
    """Throw away what was typed so far: whoever answers has seen the question."""
    descriptor = _terminal(stream)
    if descriptor is not None:
        with suppress(OSError, termios.error):
            termios.tcflush(descriptor, termios.TCIFLUSH)


@contextmanager
def without_echo(stream: IO[Any] | None = None) -> Generator[None, None, None]:
    """Show nothing of what is typed; keys such as Ctrl-C do what they always do."""
    descriptor = _terminal(stream)
    if descriptor is None or not _set_echo(descriptor, on=False):
        yield
        return
    try:
        yield
    finally:
        if _is_ours(descriptor):  # else a person has put the run into the background
            _set_echo(descriptor, on=True)


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


def _terminal(stream: IO[Any] | None) -> int | None:
    """Return the descriptor of a terminal that we may change, or None."""
    source = sys.stdin if stream is None else stream
    try:
        descriptor = source.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or not a file at all
        return None
    return descriptor if os.isatty(descriptor) and _is_ours(descriptor) else None


def _is_ours(descriptor: int) -> bool:
    """Return whether we are in the foreground: else a change would stop the process."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return True  # it controls no process of ours, and so it stops none
