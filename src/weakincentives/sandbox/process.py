"""A running command: its supervisor process, its pipes, and one poll loop that serves them.

There are no threads. Output is read for as long as any process can write it, so that no
command blocks on a full pipe; bytes beyond the limit are counted and discarded.
"""

import fcntl
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from weakincentives.sandbox import supervisor
from weakincentives.sandbox.command import Command
from weakincentives.sandbox.output import Reader, Stream, Writer

_SCRIPT = str(Path(supervisor.__file__))
_MAX_POLL = 1e6  # seconds; beyond it, poll without a timeout
_RESPONSE_TIMEOUT = 5.0  # seconds for a supervisor to respond, in addition to its own work


class CommandProcess:
    """A command with its supervisor, from start until every process is gone."""

    def __init__(self, command: Command, directory: int, max_output: int) -> None:
        """Start it in the directory with this open descriptor.

        Raises:
            OSError: The supervisor process could not be created.
        """
        self._control = _Control()
        self.out: Reader = Reader(max_output)
        self.err: Reader = Reader(max_output)
        self._stdin = Writer(command.stdin) if command.stdin else None
        self._process: subprocess.Popen[bytes] | None = None
        self._grace = command.grace
        self._poll = select.poll()
        self._streams: dict[int, Stream] = {}
        try:
            self._start(directory)
            self._control.send(command.encode())
        except BaseException:
            self.close()
            raise

    @property
    def report(self) -> "SupervisorReport":
        """What the supervisor has reported so far."""
        return self._control.report

    def serve(self, until: float, clock: Callable[[], float] = time.monotonic) -> bool:
        """Serve all streams until the supervisor exits; return False on timeout."""
        while self._control.fileno() in self._streams:
            left = until - clock()
            if left <= 0:
                return False
            for descriptor, _ in self._poll.poll(None if left > _MAX_POLL else left * 1000 + 1):
                if not self._streams[descriptor].serve():
                    self._poll.unregister(descriptor)
                    del self._streams[descriptor]
        self.out.drain()
        self.err.drain()
        return True

    def stop(self) -> None:
        """Ask the supervisor to stop everything; thread-safe and idempotent."""
        self._control.shutdown()

    def finish(self) -> None:
        """Stop what still runs, then close."""
        try:
            self.stop()
            limit = self._grace + supervisor.KILL_TIMEOUT + _RESPONSE_TIMEOUT
            self.serve(time.monotonic() + limit)
        finally:
            self.close()

    def close(self) -> None:
        """Release all resources; kill what still runs."""
        process = self._process
        if process is not None and not self.report.is_done:
            supervisor.kill_descendants(process.pid)
            process.kill()
            if self.report.leader:
                # if the supervisor itself was killed, its descendants have another parent by now
                supervisor.kill_session(self.report.leader)
        for each in (self._control, self.out, self.err, self._stdin):
            if each is not None:
                each.close()
        if process is not None:
            process.wait()

    def _start(self, directory: int) -> None:
        # descriptors 0 to 2 become the standard streams: move ours above them
        inherited = [
            fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 3)
            for each in (self._control.remote.fileno(), directory)
        ]
        stdin = subprocess.DEVNULL if self._stdin is None else self._stdin.remote
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _SCRIPT, *map(str, inherited)],
                stdin=stdin,
                stdout=self.out.remote,
                stderr=self.err.remote,
                pass_fds=inherited,
                start_new_session=True,
                env={},
                cwd="/",
            )
        finally:
            for each in inherited:
                os.close(each)
        for each in (self._control, self.out, self.err, self._stdin):
            if each is not None:
                each.close_remote()
                self._streams[each.fileno()] = each
                self._poll.register(each.fileno(), each.events)


class SupervisorReport:
    """The state of a command, as reported by its supervisor.

    `leader` is the command's process ID; `error_number` is positive if the program could not
    be executed, negative if its directory could not be entered.
    """

    def __init__(self) -> None:
        """Start without any report."""
        self.leader: int | None = None
        self.error_number: int = 0
        self.status: int | None = None
        self.left_running: int = 0
        self.is_done: bool = False
        self.started: float = time.monotonic()
        self.ended: float = self.started

    def update(self, word: str, value: int) -> None:
        """Apply one message of the supervisor."""
        if word == "started":
            self.leader, self.started = value, time.monotonic()
        elif word == "fault":
            self.error_number, self.is_done = value, True
        elif word == "exit":
            self.status, self.ended = value, time.monotonic()
        elif word == "done":
            self.left_running, self.is_done = value, True


class _Control:
    """The control socket between this process and a supervisor."""

    events = select.POLLIN

    def __init__(self) -> None:
        self._local, self.remote = socket.socketpair()
        self.report = SupervisorReport()
        self._unread = b""

    def fileno(self) -> int:
        return self._local.fileno()

    def send(self, message: bytes) -> None:
        with suppress(BrokenPipeError):  # the supervisor is gone, which `serve` will notice
            self._local.sendall(message)

    def shutdown(self) -> None:
        with suppress(OSError):  # already closed
            self._local.shutdown(socket.SHUT_WR)

    def serve(self) -> bool:
        try:
            data = self._local.recv(4096)
        except ConnectionError:
            data = b""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            word, _, value = line.partition(b" ")
            self.report.update(word.decode(), int(value))
        return bool(data)

    def close_remote(self) -> None:
        self.remote.close()

    def close(self) -> None:
        self._local.close()
        self.remote.close()
