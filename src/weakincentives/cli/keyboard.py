"""Keyboard input: hidden while a run works, flushed before a question, read interruptibly."""

import os
import select
import signal
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


def read_line() -> str:
    """Return the next line that is typed, with its end; empty at the end of the input.

    `input()` can miss a signal that arrives just before it starts to wait, and then waits
    until a key is pressed. The wakeup descriptor is readable as soon as a signal has arrived,
    so the handler runs at once.
    """
    with _wakeup() as signalled:
        while not _is_readable(sys.stdin.fileno(), signalled):
            os.read(signalled, 1024)  # a signal whose handler raises nothing
    return sys.stdin.readline()


def _is_readable(descriptor: int, signalled: int) -> bool:
    return descriptor in select.select([descriptor, signalled], [], [])[0]


@contextmanager
def _wakeup() -> Generator[int, None, None]:
    """Yield a descriptor that becomes readable when a signal arrives."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(before)
    finally:
        os.close(reader)
        os.close(writer)


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
