"""Python processes that begin with the imports of `wink` already done.

Most of the processor time of a short `wink` process are its imports. A process that has done them
forks the processes that tests ask for: each has its own streams, session, directory and
environment, and ends by a signal as any other. Not its own are the `cmdline` and the `environ` that
`/proc` shows; tests that look there, or at imports, start `sys.executable` as usual.
"""

import atexit
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, CompletedProcess, Popen, TimeoutExpired
from typing import IO, Any, Self

_ROOT = Path(__file__).parents[1]
_MODULES = (
    "anyio._backends._asyncio",
    "weakincentives.cli.demo.command",
    "weakincentives.cli.main",
    "weakincentives.cli.mcp.command",
    "weakincentives.cli.mcp.service",
    "weakincentives.cli.review",
    "weakincentives.cli.run.command",
    "weakincentives.cli.timeline.commands",
)
_HEADER = 8
_STREAMS = ((0, "stdin", "strict"), (1, "stdout", "strict"), (2, "stderr", "backslashreplace"))


class PreloadedProcess:
    """What `subprocess.Popen` is for other processes, as far as tests need it."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        stdin: IO[Any] | int | None = None,
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        start_new_session: bool = False,
        text: bool = False,
    ) -> None:
        """Start `sys.executable` with `-c` or `-m`; the parameters are those of `Popen`."""
        assert command[0] == sys.executable
        request = [
            [os.fspath(each) for each in command[1:]],
            dict(os.environ if env is None else env),
            os.fspath(cwd or Path.cwd()),
            start_new_session,
        ]
        self.returncode: int | None = None
        with _closing() as theirs:
            self.stdin, reader = _stream(stdin, 0, theirs, text=text)
            self.stdout, writer = _stream(stdout, 1, theirs, text=text)
            self.stderr, errors = (
                (None, writer) if stderr == STDOUT else _stream(stderr, 2, theirs, text=text)
            )
            status, teller = os.pipe()
            theirs.append(teller)
            self._status = os.fdopen(status, "rb", buffering=0)
            _send(_parent(), json.dumps(request).encode(), [reader, writer, errors, teller])
        self.pid = self._number()

    def __enter__(self) -> Self:
        """Use the process in a block, and wait for it afterwards."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the streams, and wait."""
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                stream.close()
        self.wait()

    def poll(self) -> int | None:
        """Return how the process ended; None while it runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return how it ended."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise TimeoutExpired("a preloaded process", timeout or 0)
            self.returncode = self._number()
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)

    def _number(self) -> int:
        line = b""
        while not line.endswith(b"\n"):
            piece = self._status.read(1)
            assert piece, "the process with the imports has failed"
            line += piece
        return int(line)


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> CompletedProcess[str]:
    """Do what `subprocess.run` does, with no input and with text for output."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = PreloadedProcess(command, stdin=DEVNULL, stdout=out, stderr=err, env=env, cwd=cwd)
        code = process.wait()
        out.seek(0)
        err.seek(0)
        return CompletedProcess(command, code, out.read(), err.read())


@contextmanager
def _closing() -> Iterator[list[int]]:
    """Close descriptors that the other process has been given."""
    descriptors: list[int] = []
    try:
        yield descriptors
    finally:
        for each in descriptors:
            os.close(each)


def _stream(
    wanted: IO[Any] | int | None, number: int, theirs: list[int], *, text: bool
) -> tuple[IO[Any] | None, int]:
    """Return our end of a stream, if there is one, and the descriptor of the other process."""
    if wanted is None:
        return None, number
    if wanted == PIPE:
        ends = os.pipe()
        ours, other = reversed(ends) if number == 0 else ends
        theirs.append(other)
        return os.fdopen(ours, ("r" if number else "w") + ("" if text else "b")), other
    if wanted == DEVNULL:
        theirs.append(os.open(os.devnull, os.O_RDWR))
        return None, theirs[-1]
    return None, wanted if isinstance(wanted, int) else wanted.fileno()


@cache
def _parent() -> socket.socket:
    """Start the process with the imports; it ends when this one does."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "tests.preloaded", str(theirs.fileno())]
        process = Popen(
            command,
            pass_fds=[theirs.fileno()],
            cwd=_ROOT,
            stdin=DEVNULL,
            stdout=DEVNULL,
            start_new_session=True,
        )
    atexit.register(_end, process, ours)
    return ours


def _end(process: Popen[bytes], requests: socket.socket) -> None:
    requests.close()
    process.terminate()
    process.wait()


def _send(target: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    socket.send_fds(target, [len(data).to_bytes(_HEADER, "big")], descriptors)
    target.sendall(data)


# --- the process with the imports ---


def _serve(requests: socket.socket) -> list[str] | None:
    """Return None when no more comes, and in each process that was asked for, its arguments."""
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        header, descriptors, _, _ = socket.recv_fds(requests, _HEADER, 4)
        if not header:
            return None
        data = b""
        while len(data) < int.from_bytes(header, "big"):
            data += requests.recv(int.from_bytes(header, "big") - len(data))
        if os.fork() == 0:
            requests.close()
            return _keep(json.loads(data), descriptors)
        for each in descriptors:
            os.close(each)


def _keep(
    request: tuple[list[str], dict[str, str], str, bool], descriptors: list[int]
) -> list[str]:
    """Start a process, tell its number and how it ended; in the process, return its arguments."""
    arguments, environment, directory, new_session = request
    *streams, teller = descriptors
    go, ready = os.pipe()
    if (started := os.fork()) == 0:
        os.close(ready)
        os.read(go, 1)  # the starter knows the number before anything happens
        os.close(go)
        if new_session:
            os.setsid()
        for number, each in enumerate(streams):
            os.dup2(each, number)
        for each in descriptors:
            os.close(each)
        _become(environment, directory)
        return arguments
    for each in streams:
        os.close(each)
    os.write(teller, b"%d\n" % started)
    os.close(ready)
    _, status = os.waitpid(started, 0)
    with suppress(BrokenPipeError):
        os.write(teller, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become(environment: dict[str, str], directory: str) -> None:
    """Give this process what the interpreter gives to a new one."""
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    tempfile.tempdir = None
    os.chdir(directory)
    for number, name, errors in _STREAMS:
        raw = open(number, "wb" if number else "rb", closefd=False)  # noqa: SIM115  # as long as the process
        by_line = number == 2 or raw.isatty()
        made = io.TextIOWrapper(raw, errors=errors, line_buffering=by_line)
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)


def _main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    for each in _MODULES:
        __import__(each)
    gc.collect()
    gc.freeze()
    arguments = _serve(requests)
    match arguments:
        case None:
            pass
        case ["-c", program, *rest]:
            sys.argv = ["-c", *rest]
            sys.path[0] = ""
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
        case ["-m", module, *rest]:
            sys.argv = [module, *rest]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case _:
            raise AssertionError(arguments)


if __name__ == "__main__":
    _main()
