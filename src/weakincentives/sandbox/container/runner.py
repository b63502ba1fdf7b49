"""The runner: the first process of a container, which runs commands for the host.

It runs as a script inside the container, so it imports only the standard library and the
modules that are sent with it. Requests arrive on standard input and responses leave on standard
output, as frames. When standard input is closed, the runner exits, and the kernel kills
everything in the container.
"""

import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from weakincentives.sandbox import supervisor
from weakincentives.sandbox.container.commands import (
    OOM_SCORE,
    DirectCommand,
    RemoteCommand,
    SupervisedCommand,
)
from weakincentives.sandbox.container.entries import open_directory
from weakincentives.sandbox.container.file_server import FileServer
from weakincentives.sandbox.container.frames import (
    CALL,
    CONFIRM,
    COUNT,
    END,
    HEADER,
    INPUT,
    PROTOCOL,
    READY,
    REPLY,
    REPORT,
    START,
    STOP,
    FrameLoop,
)

_CHUNK = 256 * 1024
_PR_SET_DUMPABLE, _PR_SET_NAME = 4, 15
_NAME = b"wink-runner"
# control groups of version 2 and of version 1
_LIMITS = {
    "memory": ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    "pids": ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"),
}
_RESOURCES = {"memory": resource.RLIMIT_DATA, "pids": resource.RLIMIT_NPROC}
_UNLIMITED = 2**60
_CHILDREN = f"/proc/self/task/{os.getpid()}/children"


class Runner:
    """Serves the requests of the host until standard input ends."""

    def __init__(self, workspace: str, limited: Sequence[str]) -> None:
        """Run commands in `workspace`; control groups limit what is in `limited`."""
        self._workspace = workspace
        self._limited = limited
        self._files = FileServer(workspace)
        self._fork_server = ForkServer()
        self._commands: dict[int, RemoteCommand] = {}
        self._direct: DirectCommand | None = None
        self._unread = bytearray()
        self._loop = FrameLoop()
        self._loop.register(0, select.POLLIN, self._receive)
        self._wakeup = _wake_on_child()
        self._loop.register(self._wakeup, select.POLLIN, self._reap)

    def run(self) -> None:
        """Serve until the host closes standard input."""
        facts = {
            "protocol": PROTOCOL,
            "path": os.environ.get("PATH", ""),
            "user": os.getuid(),
            "limited": self._limited,
            "is_writable": os.access(self._workspace, os.W_OK | os.X_OK),
        }
        self._loop.send(0, READY, json.dumps(facts).encode())
        self._loop.run()

    def _receive(self) -> None:
        data = os.read(0, _CHUNK)
        if not data:
            os._exit(0)
        self._unread += data
        while len(self._unread) >= HEADER.size:
            number, kind, size = HEADER.unpack_from(self._unread)
            end = HEADER.size + size
            if len(self._unread) < end:
                return
            payload = bytes(self._unread[HEADER.size : end])
            del self._unread[:end]
            self._handle(number, kind, payload)

    def _handle(self, number: int, kind: int, payload: bytes) -> None:
        if kind == START:
            self._start(number, json.loads(payload))
        elif kind == CALL:
            self._loop.send(number, REPLY, self._files.handle(payload))
        elif number in self._commands:  # otherwise it has just ended
            command = self._commands[number]
            if kind == INPUT:
                command.feed(payload)
            elif kind == CONFIRM:
                command.confirm(COUNT.unpack(payload)[0])
            elif kind == STOP:
                command.stop()

    def _start(self, number: int, request: Mapping[str, Any]) -> None:
        try:
            directory = open_directory(self._workspace, request["cwd"])
        except OSError as error:
            self._loop.send(number, REPORT, b"fault %d\n" % -(error.errno or errno.EIO))
            self._loop.send(number, END)
            return
        try:
            if self._direct is None:
                self._start_direct(number, request, directory)
            else:
                command = SupervisedCommand(self._loop, number, request, self._end)
                self._commands[number] = command
                command.start(directory, self._fork_server.launch)
        finally:
            os.close(directory)

    def _start_direct(self, number: int, request: Mapping[str, Any], directory: int) -> None:
        command = DirectCommand(self._loop, number, request, self._direct_processes, self._end)
        self._commands[number] = self._direct = command
        command.start(directory)

    def _end(self, number: int) -> None:
        """Forget a command that has ended; if its supervisor was killed, kill its processes."""
        command = self._commands.pop(number, None)
        if command is self._direct:
            self._direct = None
        if isinstance(command, SupervisedCommand) and not command.is_done:
            self._fork_server.kill_orphans(self._supervisors())

    def _supervisors(self) -> set[int]:
        found = [each for each in self._commands.values() if isinstance(each, SupervisedCommand)]
        return {each.supervisor for each in found if each.supervisor}

    def _direct_processes(self) -> set[int]:
        """Return the processes of the direct command: all that the fork server has not started."""
        server = self._fork_server.pid
        if _children() <= {server}:
            return set()
        return supervisor.descendants(os.getpid()) - supervisor.descendants(server) - {server}

    def _reap(self) -> None:
        os.read(self._wakeup, 4096)
        found: dict[int, int] = {}
        try:
            while (exited := os.waitpid(-1, os.WNOHANG))[0]:
                found[exited[0]] = exited[1]
        except ChildProcessError:
            pass
        if self._fork_server.pid in found:  # a command has killed it, and the supervisors
            self._fork_server.restart()
        if self._direct is not None:
            self._direct.reap(found.get(self._direct.pid))


class ForkServer:
    """The process that forks supervisors; it has none of the runner's descriptors."""

    def __init__(self) -> None:
        """Start it."""
        self.pid: int
        self._requests: socket.socket
        self.pid, self._requests = _fork_server()

    def launch(self, descriptors: list[int]) -> None:
        """Fork a supervisor that gets these descriptors."""
        try:
            socket.send_fds(self._requests, [b"!"], descriptors)
        except OSError:  # a command has killed it
            self.restart()
            socket.send_fds(self._requests, [b"!"], descriptors)

    def kill_orphans(self, supervisors: set[int]) -> None:
        """Kill what supervisors have left that were killed, except for these supervisors."""
        supervisor.kill_orphans(self.pid, supervisors)

    def restart(self) -> None:
        """Start another one; what the former has started is killed with everything else."""
        self._requests.close()
        supervisor.kill_descendants(os.getpid())
        self.pid, self._requests = _fork_server()


def _fork_server() -> tuple[int, socket.socket]:
    """Fork the fork server; return its process and the socket for requests."""
    local, remote = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        requests = remote.detach()
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        os.closerange(3, requests)
        os.closerange(requests + 1, limit)
        _raise_own_oom_score()
        supervisor.serve(requests)
        os._exit(0)
    remote.close()
    return pid, local


def _raise_own_oom_score() -> None:
    _set_dumpable(1)  # otherwise the file belongs to root
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 # pathlib takes long to import
            file.write(OOM_SCORE)
    except OSError:
        pass  # the kernel chooses by size then
    _set_dumpable(0)


def _children() -> set[int]:
    """Return the children of this process; a superset if the kernel has no list of them."""
    try:
        with open(_CHILDREN, "rb") as file:  # noqa: PTH123 # pathlib takes long to import
            return set(map(int, file.read().split()))
    except OSError:
        return supervisor.descendants(os.getpid())


def _is_limit(path: str) -> bool:
    """Return whether the file of a control group has a limit in it."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 # pathlib takes long to import
            value = file.read().strip()
    except OSError:
        return False
    return value.isdigit() and int(value) < _UNLIMITED


def _set_dumpable(value: int) -> None:
    """Set whether commands may open this process's descriptors and memory through /proc."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, value, 0, 0, 0)


def _wake_on_child() -> int:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore)
    return reader


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing: the byte written to the wakeup descriptor is enough."""


def main(workspace: str, seccomp: str, limits: Mapping[str, int]) -> None:
    """Run commands in `workspace` until the host ends.

    Args:
        workspace: The directory in which commands run.
        seccomp: A BPF program that filters system calls, in hexadecimal.
        limits: Bytes of `memory` and number of `pids`.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o022)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, _NAME, 0, 0, 0)
    if seccomp:
        supervisor.install_filter(bytes.fromhex(seccomp))
    limited = [name for name, files in _LIMITS.items() if any(map(_is_limit, files))]
    for name in limits.keys() - limited:  # the engine could not: the second best
        resource.setrlimit(_RESOURCES[name], (limits[name], limits[name]))
    runner = Runner(workspace, limited)
    _set_dumpable(0)
    runner.run()
