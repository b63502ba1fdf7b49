"""The launcher of a sandbox: gets a supervisor for each command from a fork server.

Supervisors that have done their work wait for the next command, each with a process that is ready
to become it.

It also runs inside containers, so it imports only the standard library and what is sent with it.
"""

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from weakincentives.posix import workers
from weakincentives.posix.frames import send_frame
from weakincentives.sandbox import process_tree, supervisor
from weakincentives.sandbox.command import PreparedCommand

RESPONSE_TIMEOUT = 5.0
"""Seconds for a supervisor to respond, in addition to its own work."""
_START_TIMEOUT = 60.0  # seconds for a process to be ready, which takes milliseconds
_MAX_STARTS = 3  # attempts to get a supervisor
_MAX_IDLE = 2  # supervisors that wait for a command: one gets ready while the other's runs


class Launcher(workers.ForkServer):
    """The supervisors of a sandbox: started by its first command, closed with it."""

    _adopts_orphans = False  # whether this process gets those of a server that was killed

    def __init__(self, *, isolates_network: bool = False) -> None:
        """Start nothing yet.

        With `isolates_network`, commands are in a network namespace that they share with each
        other, not with the host, if the host allows it.
        """
        self._isolates_network = isolates_network
        self._open_groups: Callable[[], Sequence[int]] = tuple
        self._active: set[SupervisorProcess] = set()
        self._idle: list[SupervisorProcess] = []
        super().__init__(partial(_end_supervisors, self._idle, self._active))

    @property
    def isolates_network(self) -> bool:
        """Whether commands are in a network namespace of their own; starts the server.

        Raises:
            OSError: No process could be created.
        """
        with self._lock:
            self.connect()
            return self._isolates_network

    def join(self, open_groups: Callable[[], Sequence[int]]) -> None:
        """Put all commands into the control groups that are opened; call it before the first."""
        self._open_groups = open_groups

    def take(self) -> "SupervisorProcess":
        """Return a supervisor that waits for a command; pass it to `release` afterwards.

        Raises:
            OSError: No process could be created.
        """
        for _ in range(_MAX_STARTS):
            with self._lock:
                self.forget_if_forked()
                is_used = bool(self._idle)
                taken = self._idle.pop(0) if is_used else self._launch_supervisor()
                if is_used and not self._idle:
                    # whoever runs a second command runs more: be ready before it has ended
                    self._idle.append(self._launch_supervisor())
                self._active.add(taken)
            if taken.wait_until_ready():
                return taken
            self.release(taken)
        raise OSError("the supervisor of the command did not start")

    def release(self, taken: "SupervisorProcess") -> None:
        """Keep a supervisor for the next command if it can run one, else end it."""
        with self._lock:
            self._active.discard(taken)
            server = self.pid
            is_kept = taken.can_run_again and len(self._idle) < _MAX_IDLE and bool(server)
            if is_kept:
                self._idle.append(taken)
            elif not taken.report.is_done and server:
                kept = {each.pid for each in (*self._active, *self._idle)} - {0}
                ancestor = os.getpid() if self._adopts_orphans else server
                process_tree.kill_orphans(ancestor, server, kept)
        if not is_kept:
            taken.end()

    def _start(self, requests: int) -> workers.ServerProcess:
        module, arguments = supervisor.__name__, (str(requests), str(os.getpid()))
        if self._isolates_network:
            reader, writer = os.pipe()
            try:
                command = workers.worker_command(module, *arguments, str(writer))
                process = workers.start_worker(command, passed=(requests, writer))
            finally:
                os.close(writer)
            with open(reader, "rb") as answer:  # noqa: PTH123 # a descriptor has no path
                if answer.read() == supervisor.ISOLATED:
                    return process
            process.wait()
            self._isolates_network = False
        return workers.start_worker(workers.worker_command(module, *arguments), passed=(requests,))

    def _launch_supervisor(self) -> "SupervisorProcess":
        groups = self._open_groups()
        try:
            made = SupervisorProcess()
            try:
                self.launch((*made.remote, *groups))
            except BaseException:
                made.close()
                raise
        finally:
            for each in groups:
                os.close(each)
        made.close_remote()
        return made


def _end_supervisors(
    idle: "list[SupervisorProcess]",
    active: "set[SupervisorProcess]",
    server: workers.ServerProcess | None,
) -> None:
    """End the supervisors that wait; in a fork of this process, forget all."""
    if server is None:
        active.clear()
    for each in idle:
        each.close() if server is None else each.stop()
    for each in idle if server is not None else ():
        each.end()
    idle.clear()


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

    def update(self, word: str, value: int) -> None:
        """Apply one message of the supervisor."""
        if word == "ready":
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
            if not workers.is_readable(self._control, _START_TIMEOUT):
                return False
            self.serve()
        # one of them may have been killed meanwhile
        while not self._is_at_end and workers.is_readable(self._control):
            self.serve()
        if workers.has_exited(self.pid) or workers.has_exited(self._next):
            # other processes may hold its end for a while: a child that was just forked, the server
            self._is_at_end = True
        return not self._is_at_end

    def start(
        self,
        command: PreparedCommand,
        descriptors: Sequence[int],
        report: SupervisorReport | None = None,
    ) -> None:
        """Start a command.

        Args:
            command: What to run.
            descriptors: Those of its directory, its streams and its confinement.
            report: Gets what is reported about it.
        """
        self.report = report or SupervisorReport()
        self.report.update("ready", self._next)
        self._next = 0
        data = command.encode()
        with suppress(ConnectionError):  # the process is gone, which `serve` will notice
            send_frame(self._commands, data, supervisor.MAX_COMMAND, descriptors)

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
            process_tree.kill_descendants(self.pid)
            process_tree.send([self.pid], signal.SIGKILL)
        if self.report.leader:
            # if the supervisor itself was killed, its descendants have another parent by now
            process_tree.kill_session(self.report.leader)

    def end(self) -> None:
        """Stop it, and wait until it has exited."""
        self.stop()
        if self.pid:
            workers.has_exited(self.pid, RESPONSE_TIMEOUT)  # it has nothing left to do
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
