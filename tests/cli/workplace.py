"""What the tests of commands share: a project with a fault, steps of scripts, how a run ended."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def on_terminal(
    *arguments: str | Path, answers: str = "", size: tuple[int, int] = (30, 100), **env: str
) -> Done:
    """Run a command on a terminal of its own, with the answers typed ahead."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    # those who run tests may say how wide theirs is
    inherited = {name: os.environ[name] for name in os.environ.keys() - {"COLUMNS", "LINES"}}
    process = subprocess.Popen(
        [sys.executable, "-m", "weakincentives", *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**inherited, "TERM": "xterm-256color", "NO_COLOR": "", **env},
        start_new_session=True,
    )
    os.close(theirs)
    os.write(ours, answers.encode())
    seen = b"".join(iter(lambda: _piece(ours), b""))
    os.close(ours)
    return Done(process.wait(), seen.decode().replace("\r\n", "\n"), "")


def _piece(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""
