"""A running command: its supervisor process, its pipes, and one poll loop that serves them.

There are no threads. Output is read for as long as any process can write it, so that no
command blocks on a full pipe; bytes beyond the limit are counted and discarded.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from weakincentives.sandbox import supervisor
from weakincentives.sandbox.command import Command
from weakincentives.sandbox.output import Reader, Stream, Writer
from weakincentives.sandbox.protocol import OutputListener, SandboxUnavailableError

_MODULES = str(Path(supervisor.__file__).parent)
# imports the supervisor without the rest of its packages, which takes long
_BOOTSTRAP = """
import sys
for name in ("weakincentives", "weakincentives.sandbox"):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [sys.argv[1]]
from weakincentives.sandbox import supervisor
supervisor.run(sys.argv[2:])
"""
_MAX_POLL = 1e6  # seconds; beyond it, poll without a timeout
_RESPONSE_TIMEOUT = 5.0  # seconds for a supervisor to respond, in addition to its own work


class Launcher:
    """The fork server of a sandbox: started by the first command, closed with the sandbox.

    Thread-safe. If it was killed, the next command starts another one.
    """

    def __init__(self, *, isolates_network: bool = False) -> None:
        """Start nothing yet.

        With `isolates_network`, commands are in a network namespace that they share with each
        other, not with the host, if the host allows it.
        """
        self._isolates_network = isolates_network
        self._lock = threading.Lock()
        self._requests: socket.socket | None = None
        self._end: Callable[[], object] = _do_nothing
        self._server = 0
        self._active: set[CommandProcess] = set()

    @property
    def isolates_network(self) -> bool:
        """Whether commands are in a network namespace of their own; starts the server.

        Raises:
            OSError: No process could be created.
        """
        with self._lock:
            self._connect()
            return self._isolates_network

    def add(self, process: "CommandProcess") -> None:
        """Note a process that this server starts."""
        with self._lock:
            self._active.add(process)

    def remove(self, process: "CommandProcess") -> None:
        """Forget a process that has ended; if its supervisor was killed, kill its orphans."""
        with self._lock:
            self._active.discard(process)
            if not process.report.is_done and self._server:
                others = {each.report.supervisor for each in self._active}
                supervisor.kill_orphans(self._server, {each for each in others if each})

    def launch(self, descriptors: Sequence[int], request: bytes = supervisor.RUN) -> None:
        """Fork a process that gets these descriptors; see `supervisor.serve`.

        Raises:
            OSError: No process could be created.
            SandboxUnavailableError: The server starts and exits at once.
        """
        with self._lock:
            if self._send(request, descriptors) or self._send(request, descriptors):
                return
        raise SandboxUnavailableError(
            f"The command's supervisor did not start; check that {sys.executable} runs"
        )

    def close(self) -> None:
        """End it; supervisors that still run are not affected. Idempotent."""
        with self._lock:
            self._disconnect()

    def _send(self, request: bytes, descriptors: Sequence[int]) -> bool:
        """Return whether the server got the request; if not, the next one starts another."""
        try:
            socket.send_fds(self._connect(), [request], descriptors)
        except ConnectionError:
            self._disconnect()
            return False
        return True

    def _connect(self) -> socket.socket:
        if self._requests is None:
            self._requests = self._start()
            if self._isolates_network and self._requests.recv(1) != b"+":
                self._disconnect()
                self._isolates_network = False
                self._requests = self._start()
        return self._requests

    def _start(self) -> socket.socket:
        local, remote = socket.socketpair()
        with remote:
            try:
                process = _start_server(remote.fileno(), isolates_network=self._isolates_network)
            except BaseException:
                local.close()
                raise
        self._server = process.pid
        self._end = weakref.finalize(self, _end_server, local, process, os.getpid())
        return local

    def _disconnect(self) -> None:
        self._requests, self._server = None, 0
        self._end()


def _start_server(requests: int, *, isolates_network: bool) -> subprocess.Popen[bytes]:
    options = [supervisor.ISOLATE_NETWORK] if isolates_network else []
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, _MODULES, str(requests), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[requests],
        start_new_session=True,
        env={},
        cwd="/",
    )


def _end_server(requests: socket.socket, process: subprocess.Popen[bytes], owner: int) -> None:
    requests.close()
    if os.getpid() == owner:  # in a fork it is not a child, and still serves the owner
        process.kill()  # forks hold the socket too, so it may not see the end of it
        process.wait()


def _do_nothing() -> None: ...


class CommandProcess:
    """A command with its supervisor, from start until every process is gone."""

    def __init__(
        self,
        launcher: Launcher,
        command: Command,
        directory: int,
        max_output: int,
        on_output: OutputListener | None = None,
    ) -> None:
        """Start it in the directory with this open descriptor.

        Args:
            launcher: The fork server to start it with.
            command: What to run.
            directory: The descriptor of its working directory.
            max_output: Bytes of each stream to keep.
            on_output: Called with the stream's name and every chunk as it arrives.

        Raises:
            OSError: The supervisor process could not be created.
        """
        self._launcher = launcher
        self._control = _Control()
        self.out: Reader = Reader(max_output, on_output and partial(on_output, "stdout"))
        self.err: Reader = Reader(max_output, on_output and partial(on_output, "stderr"))
        self._stdin = Writer(command.stdin) if command.stdin else None
        self._grace = command.grace
        self._poll = select.poll()
        self._streams: dict[int, Stream] = {}
        try:
            self._start(launcher, directory, command.confinement.descriptors)
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
        report = self.report
        if not report.is_done:
            if report.supervisor and not self._control.is_at_end:
                supervisor.kill_descendants(report.supervisor)
                supervisor.send([report.supervisor], signal.SIGKILL)
            if report.leader:
                # if the supervisor itself was killed, its descendants have another parent by now
                supervisor.kill_session(report.leader)
        if report.supervisor:
            _wait_for_exit(report.supervisor)
        self._launcher.remove(self)
        for each in (self._control, self.out, self.err, self._stdin):
            if each is not None:
                each.close()

    def _start(self, launcher: Launcher, directory: int, confinement: Sequence[int]) -> None:
        null = os.open(os.devnull, os.O_RDONLY) if self._stdin is None else -1
        stdin = null if self._stdin is None else self._stdin.remote
        streams = (stdin, self.out.remote, self.err.remote)
        launcher.add(self)
        try:
            launcher.launch([self._control.remote.fileno(), directory, *streams, *confinement])
        finally:
            if null >= 0:
                os.close(null)
        for each in (self._control, self.out, self.err, self._stdin):
            if each is not None:
                each.close_remote()
                self._streams[each.fileno()] = each
                self._poll.register(each.fileno(), each.events)


def _wait_for_exit(pid: int) -> None:
    """Wait for a supervisor that has nothing left to do; it is not a child of this process."""
    if sys.platform != "linux":
        return
    with suppress(OSError):  # it is gone
        descriptor = os.pidfd_open(pid)
        try:
            select.select([descriptor], [], [], _RESPONSE_TIMEOUT)
        finally:
            os.close(descriptor)


class SupervisorReport:
    """The state of a command, as reported by its supervisor.

    `leader` is the command's process ID; `error_number` is positive if the program could not
    be executed, negative if its directory could not be entered; `confinement_error` is the number
    of the error for which it was not started at all.
    """

    def __init__(self) -> None:
        """Start without any report."""
        self.supervisor: int | None = None
        self.leader: int | None = None
        self.error_number: int = 0
        self.confinement_error: int = 0
        self.status: int | None = None
        self.left_running: int = 0
        self.is_done: bool = False
        self.started: float = time.monotonic()
        self.ended: float = self.started

    def check_confined(self, advice: str = "") -> None:
        """Make sure that the command did not fail to confine itself.

        Args:
            advice: What to do if it did; it is added to the message.

        Raises:
            SandboxUnavailableError: It did, so it was not started.
        """
        if self.confinement_error:
            problem = os.strerror(self.confinement_error)
            raise SandboxUnavailableError(
                f"The command was not started, because it cannot be confined: {problem}{advice}"
            )

    def update(self, word: str, value: int) -> None:
        """Apply one message of the supervisor."""
        if word == "supervisor":
            self.supervisor = value
        elif word == "started":
            self.leader, self.started = value, time.monotonic()
        elif word == "fault":
            self.error_number, self.is_done = value, True
        elif word == "unconfined":
            self.confinement_error, self.is_done = value, True
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
        self.is_at_end = False

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
        self.is_at_end = not data
        return bool(data)

    def close_remote(self) -> None:
        self.remote.close()

    def close(self) -> None:
        self._local.close()
        self.remote.close()
