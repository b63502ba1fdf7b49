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
from weakincentives.sandbox.cgroup import ControlGroups
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
_START_TIMEOUT = 60.0  # seconds for a process to be ready, which takes milliseconds
_RESPONSE_TIMEOUT = 5.0  # seconds for a supervisor to respond, in addition to its own work


class Launcher:
    """The fork server of a sandbox: started by the first command, closed with the sandbox.

    Supervisors that have done their work wait for the next command, each with a process that is
    ready to become it. Thread-safe. If the server was killed, the next command starts another one.
    """

    def __init__(self, *, isolates_network: bool = False) -> None:
        """Start nothing yet.

        With `isolates_network`, commands are in a network namespace that they share with each
        other, not with the host, if the host allows it.
        """
        self._isolates_network = isolates_network
        self._groups: ControlGroups | None = None
        self._lock = threading.RLock()  # a signal handler may close it
        self._requests: socket.socket | None = None
        self._end: Callable[[], object] = _do_nothing
        self._server = 0
        self._owner = os.getpid()
        self._active: set[SupervisorProcess] = set()
        self._idle: list[SupervisorProcess] = []

    @property
    def isolates_network(self) -> bool:
        """Whether commands are in a network namespace of their own; starts the server.

        Raises:
            OSError: No process could be created.
        """
        with self._lock:
            self._connect()
            return self._isolates_network

    def join(self, groups: ControlGroups) -> None:
        """Put all commands into these control groups; call it before the first one."""
        self._groups = groups

    def take(self) -> "SupervisorProcess":
        """Return a supervisor that waits for a command; pass it to `release` afterwards.

        Raises:
            OSError: No process could be created.
            SandboxUnavailableError: The server starts and exits at once.
        """
        for _ in range(_MAX_STARTS):
            with self._lock:
                self._forget_if_forked()
                is_used = bool(self._idle)
                taken = self._idle.pop(0) if is_used else self._launch_supervisor()
                if is_used and not self._idle:
                    # whoever runs a second command runs more: be ready before it has ended
                    self._idle.append(self._launch_supervisor())
                self._active.add(taken)
            if taken.wait_until_ready():
                return taken
            self.release(taken)
        raise SandboxUnavailableError(_NOT_STARTED)

    def release(self, taken: "SupervisorProcess") -> None:
        """Keep a supervisor for the next command if it can run one, else end it."""
        with self._lock:
            self._active.discard(taken)
            is_kept = taken.can_run_again and len(self._idle) < _MAX_IDLE and bool(self._server)
            if is_kept:
                self._idle.append(taken)
            elif not taken.report.is_done and self._server:
                others = {each.pid for each in (*self._active, *self._idle)}
                supervisor.kill_orphans(self._server, others - {0})
        if not is_kept:
            taken.end()

    def launch(self, descriptors: Sequence[int], request: bytes) -> None:
        """Fork a process that gets these descriptors; see `supervisor.serve`.

        Raises:
            OSError: No process could be created.
            SandboxUnavailableError: The server starts and exits at once.
        """
        with self._lock:
            if self._send(request, descriptors) or self._send(request, descriptors):
                return
        raise SandboxUnavailableError(_NOT_STARTED)

    def close(self) -> None:
        """End it; supervisors that still run are not affected. Idempotent."""
        with self._lock:
            self._forget_if_forked()
            self._disconnect()

    def _launch_supervisor(self) -> "SupervisorProcess":
        groups = () if self._groups is None else self._groups.open()
        try:
            made = SupervisorProcess()
            try:
                self.launch((*made.remote, *groups), supervisor.SUPERVISE)
            except BaseException:
                made.close()
                raise
        finally:
            for each in groups:
                os.close(each)
        made.close_remote()
        return made

    def _send(self, request: bytes, descriptors: Sequence[int]) -> bool:
        """Return whether the server got the request; if not, the next one starts another."""
        try:
            socket.send_fds(self._connect(), [request], descriptors)
        except ConnectionError:
            self._disconnect()
            return False
        return True

    def _connect(self) -> socket.socket:
        self._forget_if_forked()
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
        self._end = weakref.finalize(self, _end_server, local, process, self._idle, os.getpid())
        return local

    def _disconnect(self) -> None:
        # another server may have another network, so its supervisors end with it
        self._requests, self._server = None, 0
        self._end()

    def _forget_if_forked(self) -> None:
        """Leave the server to the process that has started it, if this is a fork of it.

        With a server of its own, a fork cannot take commands of the other process for orphans.
        """
        if self._owner != os.getpid():
            self._owner = os.getpid()
            for each in self._idle:
                each.close()
            self._idle.clear()
            self._active.clear()
            self._disconnect()


_MAX_STARTS = 3  # attempts to get a supervisor
_MAX_IDLE = 2  # supervisors that wait for a command: one gets ready while the other's runs
_NOT_STARTED = f"The command's supervisor did not start; check that {sys.executable} runs"


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


def _end_server(
    requests: socket.socket,
    process: subprocess.Popen[bytes],
    idle: "list[SupervisorProcess]",
    owner: int,
) -> None:
    is_owner = os.getpid() == owner  # in a fork it is not a child, and still serves the owner
    if is_owner:
        for each in idle:
            each.stop()
        for each in idle:
            each.end()
        idle.clear()
    requests.close()
    if is_owner:
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
        self.out: Reader = Reader(max_output, on_output and partial(on_output, "stdout"))
        self.err: Reader = Reader(max_output, on_output and partial(on_output, "stderr"))
        self._stdin = Writer(command.stdin) if command.stdin else None
        self._grace = command.grace
        self._poll = select.poll()
        self._streams: dict[int, Stream] = {}
        self._lock = threading.RLock()  # a signal handler may stop it
        self._supervisor: SupervisorProcess | None = None
        self.report: SupervisorReport = SupervisorReport()
        """What the supervisor has reported so far."""
        self.is_stopped: bool = False
        """Whether somebody has stopped it, which can also be before it ran."""
        try:
            self._supervisor = launcher.take()
            self._start(self._supervisor, command, directory)
            self.report = self._supervisor.report
        except BaseException:
            self.close()
            raise

    def serve(self, until: float, clock: Callable[[], float] = time.monotonic) -> bool:
        """Serve all streams until no process is left; return False on timeout."""
        served = self._supervisor
        while served is not None and not served.has_ended:
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
        with self._lock:
            self.is_stopped = True
            if self._supervisor is not None:
                self._supervisor.stop()

    def finish(self) -> None:
        """Stop what still runs, then close."""
        try:
            if not self.report.is_done:
                self.stop()
            limit = self._grace + supervisor.KILL_TIMEOUT + _RESPONSE_TIMEOUT
            self.serve(time.monotonic() + limit)
        finally:
            self.close()

    def close(self) -> None:
        """Release all resources; kill what still runs."""
        with self._lock:
            taken, self._supervisor = self._supervisor, None
        if taken is not None:
            if not self.report.is_done:
                taken.kill()
            self._launcher.release(taken)
        for each in (self.out, self.err, self._stdin):
            if each is not None:
                each.close()

    def _start(self, taken: "SupervisorProcess", command: Command, directory: int) -> None:
        null = os.open(os.devnull, os.O_RDONLY) if self._stdin is None else -1
        stdin = null if self._stdin is None else self._stdin.remote
        streams = (stdin, self.out.remote, self.err.remote)
        try:
            taken.start(command, (directory, *streams, *command.confinement.descriptors))
        finally:
            if null >= 0:
                os.close(null)
        for each in (self.out, self.err, self._stdin):
            if each is not None:
                each.close_remote()
                self._add(each)
        self._add(taken)

    def _add(self, stream: Stream) -> None:
        self._streams[stream.fileno()] = stream
        self._poll.register(stream.fileno(), stream.events)


class SupervisorReport:
    """The state of a command, as reported by its supervisor.

    `leader` is the command's process ID; `error_number` is positive if the program could not
    be executed, negative if its directory could not be entered; `confinement_error` is the number
    of the error for which it was not started at all.
    """

    def __init__(self) -> None:
        """Start without any report."""
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
        if word in {"started", "ready"}:
            self.leader, self.started = value, time.monotonic()
        elif word == "fault":
            self.error_number, self.is_done = value, True
        elif word == "unconfined":
            self.confinement_error, self.is_done = value, True
        elif word == "exit":
            self.status, self.ended = value, time.monotonic()
        elif word == "done":
            self.left_running, self.is_done = value, True


class SupervisorProcess:
    """A supervisor: runs commands one after the other; see `supervisor.supervise`."""

    events: int = select.POLLIN

    def __init__(self) -> None:
        """Create its sockets; `remote` are the ends that it gets."""
        self._control, self._remote_control = socket.socketpair()
        self._commands, self._remote_commands = socket.socketpair()
        self.pid: int = 0
        self.report: SupervisorReport = SupervisorReport()
        self._next = 0  # the process that is ready to become a command
        self._unread = b""
        self._is_at_end = False
        self._is_stopped = False

    @property
    def remote(self) -> tuple[int, int]:
        """The descriptors that it gets."""
        return self._remote_control.fileno(), self._remote_commands.fileno()

    @property
    def has_ended(self) -> bool:
        """Whether no process of the command is left, or nobody is there to tell."""
        return self.report.is_done or self._is_at_end

    @property
    def can_run_again(self) -> bool:
        """Whether it waits for another command, or is about to."""
        return self.report.is_done and not self._is_at_end and not self._is_stopped

    def wait_until_ready(self) -> bool:
        """Wait until it can start a command; return False if it never will."""
        while not self._is_at_end and not self._next:
            if not select.select([self._control], [], [], _START_TIMEOUT)[0]:
                return False
            self.serve()
        # its process may have been killed meanwhile
        while not self._is_at_end and select.select([self._control], [], [], 0)[0]:
            self.serve()
        return not self._is_at_end

    def start(self, command: Command, descriptors: Sequence[int]) -> None:
        """Start a command with these descriptors: its directory, its streams, its confinement."""
        self.report = SupervisorReport()
        self.report.leader, self._next = self._next, 0
        data = command.encode()
        with suppress(ConnectionError):  # the process is gone, which `serve` will notice
            sent = socket.send_fds(self._commands, [data], descriptors)
            self._commands.sendall(data[sent:])

    def fileno(self) -> int:
        """Return the descriptor to poll for reports."""
        return self._control.fileno()

    def serve(self) -> bool:
        """Read reports; return False if there will be no more."""
        try:
            data = self._control.recv(4096)
        except ConnectionError:
            data = b""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            word, _, value = line.partition(b" ")
            if word == b"supervisor":
                self.pid = int(value)
            elif word == b"ready":
                self._next = int(value)
            else:
                self.report.update(word.decode(), int(value))
        self._is_at_end = not data
        return bool(data)

    def stop(self) -> None:
        """Ask it to stop everything and exit; idempotent."""
        self._is_stopped = True
        with suppress(OSError):  # already closed
            self._control.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Kill it, and the command that it has not ended."""
        if self.pid and not self._is_at_end:
            supervisor.kill_descendants(self.pid)
            supervisor.send([self.pid], signal.SIGKILL)
        if self.report.leader:
            # if the supervisor itself was killed, its descendants have another parent by now
            supervisor.kill_session(self.report.leader)

    def end(self) -> None:
        """Stop it, and wait until it has exited."""
        self.stop()
        if self.pid:
            _wait_for_exit(self.pid)
        self.close()

    def close_remote(self) -> None:
        """Close our copies of its ends, once it has its own."""
        self._remote_control.close()
        self._remote_commands.close()

    def close(self) -> None:
        """Close the sockets; idempotent."""
        self.close_remote()
        self._control.close()
        self._commands.close()


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
