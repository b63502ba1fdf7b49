"""The runner: the first process of a container, which runs commands for the host.

It runs as a script inside the container, so it imports only the standard library and the
modules that are sent with it. Requests arrive on standard input and responses leave on standard
output, as frames. When standard input is closed, the runner exits, and the kernel kills
everything in the container.
"""

import errno
import json
import os
import resource
import select
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from weakincentives.posix import child_process
from weakincentives.posix.descriptors import write_all
from weakincentives.posix.frames import FrameError, encode_frame, split_frame
from weakincentives.posix.workers import ServerProcess
from weakincentives.sandbox import process_tree, supervisor
from weakincentives.sandbox.command import PreparedCommand
from weakincentives.sandbox.container.file_server import FileServer, open_directory
from weakincentives.sandbox.launcher import Launcher, SupervisorReport

MAX_FRAME = 64 * 1024 * 1024
"""Bytes of a frame from the runner, which the host does not trust."""

WINDOW = 1024 * 1024
"""Bytes of a command's output or input that may be on their way, until the other side confirms."""

START, INPUT, STOP, CONFIRM, CALL = range(1, 6)
"""Kinds of frames to the runner."""

READY, STDOUT, STDERR, REPORT, ACCEPTED, REPLY, END = range(1, 8)
"""Kinds of frames from the runner."""

COUNT = struct.Struct(">Q")
"""The payload of `CONFIRM` and `ACCEPTED`: a number of bytes."""

_HEADER = struct.Struct(">IB")  # of a message: number of the command or call, kind
_CHUNK = 256 * 1024
_PIECE = 64 * 1024  # of a command's input or output
_MAX_DRAIN = 32  # pieces; more than the capacity of a pipe
_PR_SET_DUMPABLE = 4
_NAME = b"wink-runner"
_OOM_SCORE = "500"  # if memory runs out, the kernel kills commands before the runner
# control groups of version 2 and of version 1
_LIMITS = {
    "memory": ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    "pids": ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"),
}
_RESOURCES = {"memory": resource.RLIMIT_DATA, "pids": resource.RLIMIT_NPROC}
_UNLIMITED = 2**60


def encode_message(number: int, kind: int, payload: bytes = b"") -> bytes:
    """Return a message as a frame."""
    return encode_frame(_HEADER.pack(number, kind) + payload)


def take_messages(received: bytearray, limit: int) -> Iterator[tuple[int, int, bytes]]:
    """Remove the complete messages from what has been received; yield number, kind, payload.

    Raises:
        ValueError: One is malformed, or longer than the limit.
    """
    while (found := split_frame(received, limit)) is not None:
        frame, end = found
        if len(frame) < _HEADER.size:
            raise FrameError("A message is too short")
        del received[:end]
        yield *_HEADER.unpack_from(frame), frame[_HEADER.size :]


class FrameLoop:
    """A poll loop with handlers; it sends frames to the host."""

    def __init__(self) -> None:
        """Start without handlers."""
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}

    def run(self) -> None:
        """Call handlers for good; one of them ends the process."""
        while True:
            for descriptor, _ in self._poll.poll():
                handler = self._handlers.get(descriptor)
                if handler is not None:  # an earlier one may have unregistered it
                    handler()

    def register(self, descriptor: int, events: int, handler: Callable[[], None]) -> None:
        """Call `handler` when a descriptor is ready."""
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, events)

    def unregister(self, descriptor: int) -> None:
        """Stop polling a descriptor; idempotent."""
        if self._handlers.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def send(self, number: int, kind: int, payload: bytes = b"") -> None:
        """Send a frame; blocks while the host is slow, which the window bounds."""
        write_all(1, encode_message(number, kind, payload))


class Runner:
    """Serves the requests of the host until standard input ends."""

    def __init__(self, workspace: str, limited: Sequence[str]) -> None:
        """Run commands in `workspace`; control groups limit what is in `limited`."""
        self._workspace = workspace
        self._limited = limited
        self._files = FileServer(workspace)
        self._launcher = RunnerLauncher()
        self._launcher.connect()
        self._commands: dict[int, RemoteCommand] = {}
        self._unread = bytearray()
        self._loop = FrameLoop()
        self._loop.register(0, select.POLLIN, self._receive)

    def run(self) -> None:
        """Serve until the host closes standard input."""
        facts = {
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
        for number, kind, payload in take_messages(self._unread, sys.maxsize):
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
            command = RemoteCommand(self._loop, number, self._launcher, self._commands.pop)
            self._commands[number] = command
            command.start(request, directory)
        except OSError as error:  # there are as many processes as there may be
            self._loop.send(number, REPORT, b"fault %d\n" % (error.errno or errno.EAGAIN))
            self._loop.send(number, END)
        finally:
            os.close(directory)


class _KeptReport(SupervisorReport):
    """A report that keeps its lines for the host."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = ""

    def update(self, word: str, value: int) -> None:
        """Apply one message of the supervisor, and keep it."""
        super().update(word, value)
        self.lines += f"{word} {int(value)}\n"


class RemoteCommand:
    """A command with its pipes and windows."""

    def __init__(
        self,
        loop: FrameLoop,
        number: int,
        launcher: Launcher,
        on_end: Callable[[int], object],
    ) -> None:
        """Run nothing yet.

        Args:
            loop: The loop that serves its pipes.
            number: Its number.
            launcher: Gets a supervisor for it.
            on_end: Called with its number when nothing of it is left.
        """
        self._loop = loop
        self._number = number
        self._launcher = launcher
        self._on_end = on_end
        self._supervisor = launcher.take()
        self._report = _KeptReport()

    def start(self, request: Mapping[str, Any], directory: int) -> None:
        """Start what the host asks for in a directory."""
        self._out, out = os.pipe()
        self._err, err = os.pipe()
        has_stdin: bool = request["stdin"]
        stdin, self._stdin = os.pipe() if has_stdin else (os.open(os.devnull, os.O_RDONLY), -1)
        self._unconfirmed = 0
        self._is_paused = False
        self._input = bytearray()
        self._input_ends = False
        for each in (self._out, self._err, self._stdin):
            if each >= 0:
                os.set_blocking(each, False)
        command = PreparedCommand(tuple(request["argv"]), request["env"], b"", request["grace"])
        taken = self._supervisor
        taken.start(command, (directory, stdin, out, err), self._report)
        for each in (stdin, out, err):
            os.close(each)
        self._loop.register(taken.fileno(), select.POLLIN, self._read_report)
        self._resume()

    def stop(self) -> None:
        """Stop every process of the command."""
        self._supervisor.stop()

    def feed(self, data: bytes) -> None:
        """Pass standard input on; no data means its end."""
        self._input += data
        self._input_ends = not data
        if self._stdin < 0:
            self._accept(len(data))  # the command has closed it
        else:
            self._write_input()

    def confirm(self, count: int) -> None:
        """Note that the host has read `count` bytes of output."""
        self._unconfirmed -= count
        if self._is_paused and self._unconfirmed < WINDOW:
            self._resume()

    def _read_report(self) -> None:
        self._supervisor.serve()
        if not self._supervisor.has_ended:
            self._send_report()
            return
        self._loop.unregister(self._supervisor.fileno())
        self._on_end(self._number)
        self._launcher.release(self._supervisor)
        if not self._report.is_done:  # it was killed, and now all that it started
            self._report.update("exit", signal.SIGKILL)
            self._report.update("done", 0)
        self._send_report()
        self._finish()

    def _send_report(self) -> None:
        text, self._report.lines = self._report.lines, ""
        if text:
            self._loop.send(self._number, REPORT, text.encode())

    def _finish(self) -> None:
        """Send the rest of the output, then the end."""
        for descriptor, kind in ((self._out, STDOUT), (self._err, STDERR)):
            for _ in range(_MAX_DRAIN):
                if not self._read(descriptor, kind):
                    break
        for descriptor in (self._out, self._err, self._stdin):
            self._loop.unregister(descriptor)
            if descriptor >= 0:
                os.close(descriptor)
        self._loop.send(self._number, END)

    def _resume(self) -> None:
        self._is_paused = False
        for descriptor, kind in ((self._out, STDOUT), (self._err, STDERR)):
            self._loop.register(descriptor, select.POLLIN, self._reader(descriptor, kind))

    def _reader(self, descriptor: int, kind: int) -> Callable[[], None]:
        def read() -> None:
            if not self._read(descriptor, kind):
                self._loop.unregister(descriptor)
            elif self._unconfirmed >= WINDOW:
                self._is_paused = True
                self._loop.unregister(self._out)
                self._loop.unregister(self._err)

        return read

    def _read(self, descriptor: int, kind: int) -> bool:
        try:
            data = os.read(descriptor, _PIECE)
        except BlockingIOError:
            return False
        if data:
            self._unconfirmed += len(data)
            self._loop.send(self._number, kind, data)
        return bool(data)

    def _write_input(self) -> None:
        """Write what fits; poll for the rest."""
        try:
            while self._input:
                count = os.write(self._stdin, self._input[:_PIECE])
                del self._input[:count]
                self._accept(count)
        except BlockingIOError:
            self._loop.register(self._stdin, select.POLLOUT, self._write_input)
            return
        except OSError:  # the command has closed it
            self._accept(len(self._input))
            self._input.clear()
            self._input_ends = True
        self._loop.unregister(self._stdin)
        if self._input_ends:
            os.close(self._stdin)
            self._stdin = -1

    def _accept(self, count: int) -> None:
        self._loop.send(self._number, ACCEPTED, COUNT.pack(count))


class _ForkedServer:
    """A fork server that is a fork of this process, whose children the kernel reaps."""

    def __init__(self, requests: int) -> None:
        self.pid: int = os.fork()
        if self.pid == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(null, number)
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            os.closerange(3, requests)
            os.closerange(requests + 1, limit)
            _raise_own_oom_score()
            supervisor.serve_commands(requests)
            os._exit(0)

    def poll(self) -> int | None:
        """Return None while it runs."""
        return None if any(process_tree.live_processes([self.pid])) else 0

    def kill(self) -> None:
        """Kill it."""
        process_tree.send([self.pid], signal.SIGKILL)

    def wait(self) -> int:
        """Wait until it is gone."""
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        return 0


class RunnerLauncher(Launcher):
    """The launcher of a runner, the first process of its container, which gets all orphans."""

    _adopts_orphans = True

    def _start(self, requests: int) -> ServerProcess:
        return _ForkedServer(requests)


def _raise_own_oom_score() -> None:
    _set_dumpable(1)  # otherwise the file belongs to root
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 # pathlib takes long to import
            file.write(_OOM_SCORE)
    except OSError:
        pass  # the kernel chooses by size then
    _set_dumpable(0)


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
    child_process.libc.prctl(_PR_SET_DUMPABLE, value, 0, 0, 0)


def main(workspace: str, seccomp: str, limits: Mapping[str, int]) -> None:
    """Run commands in `workspace` until the host ends.

    Args:
        workspace: The directory in which commands run.
        seccomp: A BPF program that filters system calls, in hexadecimal.
        limits: Bytes of `memory` and number of `pids`.
    """
    for number in ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE", "SIGCHLD"):  # the kernel reaps orphans
        signal.signal(getattr(signal, number), signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o022)
    child_process.set_name(_NAME)
    if seccomp:
        child_process.install_filter(bytes.fromhex(seccomp))
    limited = [name for name, files in _LIMITS.items() if any(map(_is_limit, files))]
    for name in limits.keys() - limited:  # the engine could not: the second best
        resource.setrlimit(_RESOURCES[name], (limits[name], limits[name]))
    runner = Runner(workspace, limited)
    _set_dumpable(0)
    runner.run()
