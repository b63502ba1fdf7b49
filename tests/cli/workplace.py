"""Shared by the tests of commands: a project with a bug, script steps, and the result of a run."""

import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.preloaded import PreloadedProcess

CALC = "def mean(numbers):\n    return sum(numbers) / (len(numbers) + 1)\n"
FIXED = "def mean(numbers):\n    return sum(numbers) / len(numbers)\n"


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: object
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def call(self) -> dict[str, Any]:
        """The first tool call."""
        return next(each for each in self.events if each["event"] == "tool")

    @property
    def last(self) -> dict[str, Any]:
        return self.events[-1]


Wink = Callable[..., Done]
Script = Callable[..., str]


def edit(old: str = "(len(numbers) + 1)", new: str = "len(numbers)", path: str = "calc.py") -> dict:
    """Return the call that changes a file, as a script has it."""
    return {
        "name": "edit_file",
        "arguments": {"file_path": path, "old_string": old, "new_string": new},
    }


def write(path: str, content: str = "new\n") -> dict:
    """Return the call that makes a file."""
    return {"name": "write_file", "arguments": {"file_path": path, "content": content}}


def shell(*command: str) -> dict:
    """Return the call that runs something."""
    return {"name": "shell_execute", "arguments": {"command": list(command)}}


class Terminal:
    """A command on a terminal of its own, and what a person sees and types there."""

    def __init__(
        self, *arguments: str | Path, size: tuple[int, int] = (30, 100), **env: str
    ) -> None:
        self.descriptor, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        # those who run tests may say how wide theirs is
        inherited = {name: os.environ[name] for name in os.environ.keys() - {"COLUMNS", "LINES"}}
        self.process = PreloadedProcess(
            [sys.executable, "-c", _ON_TERMINAL, *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**inherited, "TERM": "xterm-256color", "NO_COLOR": "", **env},
            start_new_session=True,
        )
        self.theirs = theirs
        self.seen = b""
        self._waited_for = 0

    def type(self, text: str) -> None:
        """Type something."""
        os.write(self.descriptor, text.encode())

    def wait_for(self, pattern: str) -> None:
        """Read until a pattern comes after the last one that was waited for; it must come."""
        while (found := re.compile(pattern.encode()).search(self.seen, self._waited_for)) is None:
            piece = _piece(self.descriptor)
            assert piece, self.seen.decode()
            self.seen += piece
        self._waited_for = found.end()

    def echoes(self) -> bool:
        """Return whether the terminal shows what is typed."""
        return bool(termios.tcgetattr(self.theirs)[3] & termios.ECHO)

    def end(self) -> Done:
        """Read all that is left; return how the command ended."""
        os.close(self.theirs)
        self.seen += b"".join(iter(lambda: _piece(self.descriptor), b""))
        os.close(self.descriptor)
        return Done(self.process.wait(), self.seen.decode().replace("\r\n", "\n"), "")


# a session of its own gets its terminal, so that keys such as Ctrl-C reach it
_ON_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from weakincentives.cli.main import main
main()
"""
QUESTION = r"(iscard|\]): \Z"


def on_terminal(
    *arguments: str | Path, answers: str = "", size: tuple[int, int] = (30, 100), **env: str
) -> Done:
    """Run a command on a terminal of its own, and answer each question when it is asked."""
    terminal = Terminal(*arguments, size=size, **env)
    for answer in re.findall("[^\n\x04]*[\n\x04]", answers):
        terminal.wait_for(QUESTION)
        terminal.type(answer)
    return terminal.end()


def _piece(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""
