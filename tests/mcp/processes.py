"""Real processes of `wink mcp`, and what they leave behind."""

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from scripts.mcp_process import ServerProcess
from scripts.node_packages import explain_missing, find_node_program
from tests.preloaded import PreloadedProcess

COMMAND = (sys.executable, "-m", "weakincentives", "mcp")


class Place:
    """A directory to serve, and directories of its own for everything else that is written."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "root"
        self.root.mkdir()
        self._own = {"HOME": base / "home", "TMPDIR": base / "tmp"}
        self._own |= {f"XDG_{name}_HOME": base / name.lower() for name in _XDG}
        for path in self._own.values():
            path.mkdir()
        self._sessions: set[int] = set()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that keep a server in this place."""
        return {name: str(path) for name, path in self._own.items()}

    def command(self, *options: str, sandbox: str = "none") -> list[str]:
        """Return the words that start a server on the directory itself, without commands."""
        return [*COMMAND, str(self.root), "--in-place", "--sandbox", sandbox, *options]

    def start(self, *options: str, sandbox: str = "none") -> ServerProcess:
        """Start a server."""
        command = self.command(*options, sandbox=sandbox)
        server = ServerProcess(command, environment=self.environment, start=PreloadedProcess)
        self._sessions.add(server.process.pid)
        return server

    @contextmanager
    def serve(self, *options: str) -> Iterator[ServerProcess]:
        """Start a server, and see that it leaves nothing behind when it ends."""
        with self.start(*options) as server:
            server.initialize()
            yield server
        self.check_nothing_left()

    def check_nothing_left(self) -> None:
        """Check that there is no process, no temporary file and no journal of a server."""
        assert list(self._own["TMPDIR"].iterdir()) == []
        assert [each.name for each in self.root.iterdir() if each.name.startswith(".wink")] == []
        assert self.processes() == {}

    def wait_until_gone(self) -> None:
        """Wait until no process of this place is left."""
        while found := self.processes():
            for pid in found:
                with suppress(ProcessLookupError):
                    descriptor = os.pidfd_open(pid)
                    try:
                        assert select.select([descriptor], [], [], 60)[0], found
                    finally:
                        os.close(descriptor)

    def processes(self) -> dict[int, str]:
        """Return the commands of the processes of servers, and of those with our variables."""
        found: dict[int, str] = {}
        mark = f"HOME={self._own['HOME']}".encode()
        for each in Path("/proc").iterdir():
            if each.name.isdigit() and int(each.name) != os.getpid():
                try:
                    variables = (each / "environ").read_bytes().split(b"\0")
                    command = (each / "cmdline").read_bytes()
                    is_ours = mark in variables or os.getsid(int(each.name)) in self._sessions
                except OSError:
                    continue  # it has ended, or is somebody else's
                if is_ours and command:
                    shown = command.replace(b"\0", b" ").decode(errors="replace")
                    found[int(each.name)] = shown
        return found


_XDG = ("STATE", "CACHE", "CONFIG", "DATA")


def find_processes(word: bytes) -> list[int]:
    """Return the processes that have a word in their command line."""
    found: list[int] = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with suppress(OSError):
                if word in (each / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(each.name))
    return found


def node_program(name: str) -> list[str]:
    """Return the words that start a program from npm; skip without it, or fail where CI is set."""
    found = find_node_program(name)
    if found is None:
        message = explain_missing(name)
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return found
