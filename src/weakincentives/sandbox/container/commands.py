"""Running commands inside a container: pipes with windows, and two ways to stop everything.

One command at a time is a child of the runner, the container's first process: its orphans become
the runner's children. It starts as fast as `posix_spawn` does. A command that starts while
another one runs has a supervisor of its own, so that nobody's orphans are mixed up.
"""

import errno
import marshal
import os
import select
import signal
import socket
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weakincentives.sandbox import supervisor
from weakincentives.sandbox.container.frames import (
    ACCEPTED,
    COUNT,
    END,
    REPORT,
    STDERR,
    STDOUT,
    WINDOW,
    FrameLoop,
)

OOM_SCORE = "500"
"""If memory runs out, the kernel kills commands before the runner."""

_CHUNK = 64 * 1024
_MAX_DRAIN = 32  # chunks; more than the capacity of a pipe
_POLL_INTERVAL = 0.02
_NO_CONFINEMENT = {
    "limits": (),
    "drops_privileges": False,
    "ruleset": None,
    "seccomp": b"",
    "writable": (),
    "inherited": (),
    "is_wrapped": False,
    "forbidden_network": None,
}


class RemoteCommand:
    """A command with its pipes and windows; subclasses start and stop it."""

    def __init__(self, loop: FrameLoop, number: int, request: Mapping[str, Any]) -> None:
        """Open the pipes."""
        self._loop = loop
        self._number = number
        self._request = request
        self._out, out = os.pipe()
        self._err, err = os.pipe()
        has_stdin: bool = request["stdin"]
        stdin, self._stdin = os.pipe() if has_stdin else (os.open(os.devnull, os.O_RDONLY), -1)
        self._streams = [stdin, out, err]
        self._unconfirmed = 0
        self._is_paused = False
        self._input = bytearray()
        self._input_ends = False
        for each in (self._out, self._err, self._stdin):
            if each >= 0:
                os.set_blocking(each, False)

    def stop(self) -> None:
        """Stop every process of the command."""
        raise NotImplementedError

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

    def _close_streams(self) -> None:
        """Close the command's ends of the pipes, and begin to read ours."""
        for each in self._streams:
            os.close(each)
        self._resume()

    def _report(self, message: str) -> None:
        self._loop.send(self._number, REPORT, message.encode() + b"\n")

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
            data = os.read(descriptor, _CHUNK)
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
                count = os.write(self._stdin, self._input[:_CHUNK])
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


class DirectCommand(RemoteCommand):
    """A command that is a child of the runner; there is one at a time."""

    def __init__(
        self,
        loop: FrameLoop,
        number: int,
        request: Mapping[str, Any],
        find_processes: Callable[[], set[int]],
        on_end: Callable[[int], None],
    ) -> None:
        """Prepare it.

        Args:
            loop: The loop that serves its pipes.
            number: Its number.
            request: What to run.
            find_processes: Returns the processes that it has started.
            on_end: Called with its number when nothing of it is left.
        """
        super().__init__(loop, number, request)
        self.pid: int = 0
        self._find = find_processes
        self._on_end = on_end
        self._status: int | None = None
        self._left_running = 0
        self._is_stopping = False
        self._kill_until = 0.0

    def start(self, directory: int) -> None:
        """Start it in a directory; a program that cannot be executed is reported."""
        os.fchdir(directory)
        try:
            self.pid = _spawn(self._request["argv"], self._request["env"], self._streams)
        except OSError as error:
            self._report(f"fault {error.errno or errno.EINVAL}")
            self._close_streams()
            self._end()
            return
        _raise_oom_score(self.pid)
        self._report(f"started {self.pid}")
        self._close_streams()

    def reap(self, status: int | None) -> None:
        """Note that a child of the runner has exited: this command, or one of its orphans."""
        if status is not None:
            self._status = status
            self._report(f"exit {status}")
        if self._status is None:
            return
        if not self._find():
            self._end()
        elif status is not None and not self._is_stopping:
            self._loop.set_timer(supervisor.LINGER, self._stop_remaining)

    def stop(self) -> None:
        """Terminate all processes, then kill those that remain."""
        if self._is_stopping:
            return
        self._is_stopping = True
        found = self._find()
        supervisor.send(found, signal.SIGTERM)
        supervisor.send(found, signal.SIGCONT)  # a stopped process would not handle SIGTERM
        self._loop.set_timer(self._request["grace"], self._kill)

    def _stop_remaining(self) -> None:
        self._left_running = len(list(supervisor.live_processes(self._find())))
        self.stop()

    def _kill(self) -> None:
        self._kill_until = self._kill_until or time.monotonic() + supervisor.KILL_TIMEOUT
        supervisor.kill_all(self._find)
        if time.monotonic() < self._kill_until:
            self._loop.set_timer(_POLL_INTERVAL, self._kill)

    def _end(self) -> None:
        self._loop.clear_timer()
        if self.pid:
            self._report(f"done {self._left_running}")
        self._on_end(self._number)
        self._finish()


class SupervisedCommand(RemoteCommand):
    """A command with a supervisor, which the fork server starts."""

    def __init__(
        self,
        loop: FrameLoop,
        number: int,
        request: Mapping[str, Any],
        on_end: Callable[[int], None],
    ) -> None:
        """Prepare it; `on_end` is called with its number when its supervisor is gone."""
        super().__init__(loop, number, request)
        self.supervisor: int | None = None
        self.is_done: bool = False
        self._on_end = on_end
        self._control, self._remote_control = socket.socketpair()
        self._source, self._remote_source = socket.socketpair()

    def start(self, directory: int, launch: Callable[[list[int]], None]) -> None:
        """Start it in a directory."""
        launch([self._remote_control.fileno(), self._remote_source.fileno()])
        self._remote_control.close()
        self._remote_source.close()
        argv, env = tuple(self._request["argv"]), self._request["env"]
        data = marshal.dumps((argv, env, self._request["grace"], _NO_CONFINEMENT))
        data = b"%010d" % len(data) + data
        try:
            sent = socket.send_fds(self._source, [data], [directory, *self._streams])
            self._source.sendall(data[sent:])
        except ConnectionError:
            pass  # a command has killed it, as the reports will say
        self._loop.register(self._control.fileno(), select.POLLIN, self._read_report)
        self._close_streams()

    def stop(self) -> None:
        """Ask the supervisor to stop everything."""
        try:  # noqa: SIM105 # contextlib takes long to import
            self._control.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has ended

    def _read_report(self) -> None:
        try:
            data = self._control.recv(4096)
        except ConnectionError:
            data = b""
        for line in data.splitlines():
            word, _, value = line.partition(b" ")
            if word == b"supervisor":
                self.supervisor = int(value)
            elif not self.is_done:
                self._report(line.decode())
            self.is_done = self.is_done or word in {b"done", b"fault", b"unconfined"}
        if self.is_done or not data:
            self._loop.unregister(self._control.fileno())
            self._control.close()  # the supervisor could run another command, and exits
            self._source.close()
            self._on_end(self._number)
            self._finish()


def _spawn(argv: Sequence[str], env: Mapping[str, str], streams: Sequence[int]) -> int:
    """Start a program in a new session; return its process."""
    program, refused = argv[0], None
    if "/" in program:
        return _spawn_file(program, argv, env, streams)
    for directory in env.get("PATH", os.defpath).split(os.pathsep):
        path = f"{directory}/{program}"
        try:
            os.stat(path)  # noqa: PTH116 # a failed spawn takes much longer
            return _spawn_file(path, argv, env, streams)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            refused = refused or error
    raise refused or FileNotFoundError(errno.ENOENT, program)


def _spawn_file(
    path: str, argv: Sequence[str], env: Mapping[str, str], streams: Sequence[int]
) -> int:
    actions = [(os.POSIX_SPAWN_DUP2, each, number) for number, each in enumerate(streams)]
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 # pathlib takes long to import
        raise PermissionError(errno.EACCES, path)
    return os.posix_spawn(
        path,
        list(argv),
        dict(env),
        file_actions=actions,
        setsid=True,
        setsigmask=(),
        setsigdef=_DEFAULT_SIGNALS,
    )


_DEFAULT_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


def _raise_oom_score(pid: int) -> None:
    try:
        descriptor = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        os.write(descriptor, OOM_SCORE.encode())
        os.close(descriptor)
    except OSError:
        pass  # it has exited
