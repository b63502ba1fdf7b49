"""A command that runs: its supervisor, its streams, and one loop that serves them all.

There are no threads. The streams are read as long as anybody can write to them, so that no
command waits for ever for a reader, and what is read beyond the limit is counted and
forgotten.
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
_FAR = 1e6  # seconds that are as good as no limit
_ANSWERS = 5.0  # seconds for a supervisor to answer beyond those for its work


class CommandProcess:
    """A command on its way, from its start until nothing of it is left."""

    def __init__(self, command: Command, directory: int, max_output: int) -> None:
        """Start it in an open directory.

        Raises:
            OSError: No process could be made.
        """
        self._control = _Control()
        self.out: Reader = Reader(max_output)
        self.err: Reader = Reader(max_output)
        self._stdin = Writer(command.stdin) if command.stdin else None
        self._process: subprocess.Popen[bytes] | None = None
        self._grace = command.grace
        self._poll = select.poll()
        self._serving: dict[int, Stream] = {}
        try:
            self._start(directory)
            self._control.send(command.message())
        except BaseException:
            self.close()
            raise

    @property
    def told(self) -> "SupervisorReport":
        """What the supervisor has told so far."""
        return self._control.told

    def serve(self, until: float, clock: Callable[[], float] = time.monotonic) -> bool:
        """Read and write until nothing is left; return False if the time is up before."""
        while self._control.fileno() in self._serving:
            left = until - clock()
            if left <= 0:
                return False
            for descriptor, _ in self._poll.poll(None if left > _FAR else left * 1000 + 1):
                if not self._serving[descriptor].serve():
                    self._poll.unregister(descriptor)
                    del self._serving[descriptor]
        self.out.drain()
        self.err.drain()
        return True

    def stop(self) -> None:
        """Have everything ended; may be called from another thread, and twice."""
        self._control.end()

    def finish(self) -> None:
        """End what still runs, and let go of everything."""
        try:
            self.stop()
            self.serve(time.monotonic() + self._grace + supervisor.FORCE + _ANSWERS)
        finally:
            self.close()

    def close(self) -> None:
        """Let go of everything; what still runs is ended by force."""
        process = self._process
        if process is not None and not self.told.is_done:
            supervisor.kill_below(process.pid)
            process.kill()
            if self.told.leader:
                # it may be the supervisor that was killed, and they have another parent now
                supervisor.kill_session(self.told.leader)
        for each in (self._control, self.out, self.err, self._stdin):
            if each is not None:
                each.close()
        if process is not None:
            process.wait()

    def _start(self, directory: int) -> None:
        # the lowest numbers are those of streams: what has one would be lost on the way
        handed = [
            fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 3)
            for each in (self._control.theirs.fileno(), directory)
        ]
        stdin = subprocess.DEVNULL if self._stdin is None else self._stdin.theirs
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _SCRIPT, *map(str, handed)],
                stdin=stdin,
                stdout=self.out.theirs,
                stderr=self.err.theirs,
                pass_fds=handed,
                start_new_session=True,
                env={},
                cwd="/",
            )
        finally:
            for each in handed:
                os.close(each)
        for each in (self._control, self.out, self.err, self._stdin):
            if each is not None:
                each.hand_over()
                self._serving[each.fileno()] = each
                self._poll.register(each.fileno(), each.events)


class SupervisorReport:
    """What a supervisor has told: how far the command is."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.leader: int | None = None
        self.fault: int = 0
        self.status: int | None = None
        self.left_running: int = 0
        self.is_done: bool = False
        self.started: float = time.monotonic()
        self.ended: float = self.started

    def take(self, word: str, value: int) -> None:
        """Take in a message."""
        if word == "started":
            self.leader, self.started = value, time.monotonic()
        elif word == "fault":
            self.fault, self.is_done = value, True
        elif word == "exit":
            self.status, self.ended = value, time.monotonic()
        elif word == "done":
            self.left_running, self.is_done = value, True


class _Control:
    """The socket between here and a supervisor."""

    events = select.POLLIN

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        self.told = SupervisorReport()
        self._unread = b""

    def fileno(self) -> int:
        return self._ours.fileno()

    def send(self, message: bytes) -> None:
        with suppress(BrokenPipeError):  # it has ended, which `serve` will notice
            self._ours.sendall(message)

    def end(self) -> None:
        with suppress(OSError):  # it is closed
            self._ours.shutdown(socket.SHUT_WR)

    def serve(self) -> bool:
        try:
            data = self._ours.recv(4096)
        except ConnectionError:
            data = b""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            word, _, value = line.partition(b" ")
            self.told.take(word.decode(), int(value))
        return bool(data)

    def hand_over(self) -> None:
        self.theirs.close()

    def close(self) -> None:
        self._ours.close()
        self.theirs.close()
