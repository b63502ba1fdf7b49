"""Answers of a person: questions, and what is typed after each was shown.

Echo is off during a run, what was typed before a question is discarded, and a signal interrupts
a read.
"""

import os
import select
import signal
import sys
import termios
from collections.abc import Generator
from contextlib import contextmanager, suppress

import click

from weakincentives.cli.signals import TerminatedError
from weakincentives.cli.terminal import echo, is_terminal

_PASTE_SECONDS = 0.05  # a terminal sends the next pasted line sooner
_LOCAL_FLAGS = 3  # index of the flags such as ECHO in the list that termios returns


def can_ask() -> bool:
    """Return whether a person can answer a question."""
    return all(map(is_terminal, (sys.stdin, sys.stdout, sys.stderr)))


def prompt(question: str, *, default: str = "") -> str:
    """Return an answer typed after the question was shown; Abort if there is none."""
    hint = f" [{default}]" if default else ""
    while True:
        if answer := read_text(f"{question}{hint}: ") or default:
            return answer


def read_text(question: str) -> str:
    """Return what is typed after the question was shown, and what was pasted with its words.

    Raises:
        Abort: The input has ended, or Ctrl-C was pressed.
    """
    _discard_typeahead()
    try:
        echo(question, newline=False)  # here: somebody may press Ctrl-C as soon as it is shown
        text = _read_line()
        if len(text.split()) > 1:
            text += _read_pasted_lines()
    except TerminatedError:
        raise
    except KeyboardInterrupt:
        raise click.Abort from None
    if not text:
        raise click.Abort
    return text.strip()


def _discard_typeahead() -> None:
    """Discard what was typed so far, so that nobody answers a question before seeing it."""
    descriptor = _controllable_terminal()
    if descriptor is not None:
        with suppress(OSError, termios.error):
            termios.tcflush(descriptor, termios.TCIFLUSH)


def _read_line() -> str:
    """Return the next typed line with its newline; empty at end of input.

    `input()` can miss a signal that arrives just before it starts to wait, and then waits
    until a key is pressed. The wakeup descriptor becomes readable as soon as a signal
    arrives, so the handler runs at once.
    """
    with _signal_wakeup() as wakeup:
        descriptor = sys.stdin.fileno()
        while descriptor not in select.select([descriptor, wakeup], [], [])[0]:
            os.read(wakeup, 1024)  # a signal whose handler did not raise
    return sys.stdin.readline()


def confirm(question: str) -> bool:
    """Ask a question that only yes answers."""
    _discard_typeahead()
    echo(f"{question} [y/N]: ", newline=False)
    return _read_line().strip().lower() in {"y", "yes"}


def _read_pasted_lines() -> str:
    """Return the lines that were pasted together with the line that was just read."""
    lines: list[str] = []
    while select.select([sys.stdin], [], [], _PASTE_SECONDS)[0] and (line := sys.stdin.readline()):
        lines.append(line)
    return "".join(lines)


@contextmanager
def disable_echo() -> Generator[None, None, None]:
    """Do not show what is typed; keys such as Ctrl-C still work."""
    descriptor = _controllable_terminal()
    if descriptor is None or not _set_echo(descriptor, on=False):
        yield
        return
    try:
        yield
    finally:
        if _is_foreground(descriptor):  # else the run was moved to the background
            _set_echo(descriptor, on=True)


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


def _controllable_terminal() -> int | None:
    """Return the descriptor of a terminal that we may change, or None."""
    try:
        descriptor = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or not a file
        return None
    return descriptor if os.isatty(descriptor) and _is_foreground(descriptor) else None


def _is_foreground(descriptor: int) -> bool:
    """Return whether we are in the foreground; in the background a change would stop us."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return True  # not our controlling terminal, so it cannot stop us
