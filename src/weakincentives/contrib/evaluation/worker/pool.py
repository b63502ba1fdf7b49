"""Worker processes of an engine: started ahead of time, replaced when they die, never shared.

A pool starts one fork server (see `server`) and gets workers from it. A worker serves one
evaluation at a time. Those of a program that keeps no state between evaluations are used
again; all others serve one evaluation, and a spare is forked meanwhile.
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from weakincentives.contrib.evaluation.engine import EngineUnavailableError
from weakincentives.contrib.evaluation.params import EvalError
from weakincentives.contrib.evaluation.worker import server
from weakincentives.contrib.evaluation.worker.protocol import (
    MAX_MESSAGE,
    MAX_REPLY,
    FrameError,
    receive_frame,
    send_frame,
)
from weakincentives.sandbox import supervisor
from weakincentives.sandbox.landlock import Grant, create_ruleset, landlock_abi

MAX_IDLE = 2
"""Workers that wait for the next evaluation."""

MAX_BUSY_SECONDS = 60.0
"""Seconds that one worker is busy, at most; its processor time is limited too."""

_START_TIMEOUT = 30.0  # seconds until a new worker is ready, on a loaded machine
_EXIT_TIMEOUT = 5.0  # seconds for a killed process to be gone
_SCRIPT = str(Path(server.__file__))
_ROOT = str(Path(server.__file__).parents[4])


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an evaluation, as a worker reports it."""

    value: str | None = None
    value_dropped: int = 0
    globals: dict[str, str] = field(default_factory=dict[str, str])
    error: EvalError | None = None
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    is_spoiled: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """One message of a worker."""

    kind: Literal["ready", "refused", "print", "call", "done"]
    pid: int = 0
    stream: Literal["stdout", "stderr"] = "stdout"
    text: str = ""
    function: str = ""
    arguments: tuple[str, ...] = ()
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class WorkerProgram:
    """What the workers of a pool run.

    Args:
        module: The module with the program; see `session`.
        directories: Where its third-party packages are.
        is_reusable: Whether a worker serves more than one evaluation.
        starts_processes: Whether a worker starts other processes before it runs code.
        options: Settings for the program's `start`.
        grants: Paths that a worker can use, where the kernel has Landlock.
    """

    module: str
    directories: tuple[str, ...] = ()
    is_reusable: bool = False
    starts_processes: bool = False
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    grants: tuple[Grant, ...] = ()


class Worker:
    """A worker process, with the connection to it."""

    def __init__(self, connection: socket.socket, *, starts_processes: bool) -> None:
        """Use the connection; the process reports itself when it is ready."""
        self.connection: socket.socket = connection
        self._starts_processes = starts_processes
        self.busy_seconds: float = 0.0
        self._pid = 0
        self._process = -1

    def wait_until_ready(self, seconds: float) -> bool:
        """Return whether the process is ready to serve, and alive.

        Raises:
            EngineUnavailableError: The process cannot be confined, so it runs no code.
        """
        if self._process < 0:
            frame = self.receive(time.monotonic() + seconds)
            if frame is not None and frame.kind == "refused":
                self.forget()
                raise EngineUnavailableError(unconfined(frame.text))
            if frame is None or frame.kind != "ready":
                return False
            # it waits for us, so the number is still its own
            with suppress(OSError):
                self._pid, self._process = frame.pid, os.pidfd_open(frame.pid)
        return self._process >= 0 and not _is_readable(self._process, 0)

    def send(self, message: Mapping[str, object], until: float) -> None:
        """Send a message.

        Raises:
            FrameError: It is too long.
            OSError: The worker is gone, or does not read until then.
        """
        self.connection.settimeout(max(until - time.monotonic(), 0.001))
        send_frame(self.connection, message, MAX_REPLY)

    def receive(self, until: float) -> Frame | None:
        """Return the next message; None if the worker is gone.

        Raises:
            TimeoutError: There is none until then.
            FrameError: It breaks the protocol.
        """
        self.connection.settimeout(max(until - time.monotonic(), 0.001))
        try:
            data = receive_frame(self.connection, MAX_MESSAGE)
        except ConnectionError:
            return None
        try:
            return _decoder.decode(data) if data else None
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise FrameError(f"Not a message of a worker: {error}") from None

    def forget(self) -> None:
        """Close the connection, and leave the process to its owner."""
        self.connection.close()
        if self._process >= 0:
            os.close(self._process)
            self._process = -1

    def kill(self, *, waits: bool = True) -> None:
        """Kill the process and all that it started, and wait until it is gone if `waits`."""
        if self._process >= 0:
            if self._starts_processes:
                supervisor.kill_session(self._pid)
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            if waits:
                _is_readable(self._process, _EXIT_TIMEOUT)
        self.forget()


class WorkerPool:
    """The workers of one engine; thread-safe."""

    def __init__(self, program: WorkerProgram) -> None:
        """Start nothing yet."""
        self._program = program
        self._lock = threading.Lock()
        self._processes = _Processes()
        weakref.finalize(self, self._processes.stop)

    def acquire(self) -> Worker:
        """Return a worker that nobody else uses; release or kill it.

        Raises:
            EngineUnavailableError: None can be started.
        """
        with self._lock:
            self._processes.forget_after_fork()
            worker = self._take_idle() or self._start_worker() or self._start_worker()
            if worker is not None:
                self._add_spare()
                return worker
        raise EngineUnavailableError(
            f"The process that evaluates code did not start; check that {sys.executable} runs"
        )

    def release(self, worker: Worker) -> None:
        """Take back a worker after an evaluation."""
        worn_out = worker.busy_seconds >= MAX_BUSY_SECONDS
        with self._lock:
            processes = self._processes
            kept = self._program.is_reusable and not worn_out and processes.server is not None
            if kept and len(processes.idle) < MAX_IDLE:
                processes.idle.append(worker)
                return
        worker.kill(waits=False)  # it has reported all, and is about to exit

    def has_server(self) -> bool:
        """Return whether the fork server runs."""
        with self._lock:
            server = self._processes.server
            return server is not None and server.is_running

    def close(self) -> None:
        """Kill all workers and the server; idempotent, and the pool can be used again."""
        with self._lock:
            self._processes.stop()

    def _take_idle(self) -> Worker | None:
        while self._processes.idle:
            worker = self._processes.idle.pop()
            if _is_usable(worker):
                return worker
            worker.kill()
        return None

    def _start_worker(self) -> Worker | None:
        """Return a new worker; None, with the server stopped, if there is none."""
        worker = self._launch()
        if worker is not None:
            if _is_usable(worker):
                return worker
            worker.kill()
        self._processes.stop()
        return None

    def _add_spare(self) -> None:
        """Fork the worker for the next evaluation; nobody waits for it."""
        if not self._program.is_reusable and not self._processes.idle:
            spare = self._launch()
            if spare is not None:
                self._processes.idle.append(spare)

    def _launch(self) -> Worker | None:
        """Return a worker that is starting; None if the server is gone."""
        processes = self._processes
        if processes.server is None:
            processes.server = _Server(self._program)
        return processes.server.launch()


class _Processes:
    """The processes of a pool; they end with the pool, or with this process."""

    def __init__(self) -> None:
        self.server: _Server | None = None
        self.idle: list[Worker] = []
        self._owner = os.getpid()

    def stop(self) -> None:
        self.forget_after_fork()
        for worker in self.idle:
            worker.kill()
        self.idle.clear()
        if self.server is not None:
            self.server.close()
            self.server = None

    def forget_after_fork(self) -> None:
        """Close what belongs to the parent, if this process is a fork of it; kill nothing."""
        if self._owner != os.getpid():
            for worker in self.idle:
                worker.forget()
            if self.server is not None:
                self.server.forget()
            self._owner, self.server = os.getpid(), None
            self.idle.clear()


class _Server:
    """The fork server of a pool."""

    def __init__(self, program: WorkerProgram) -> None:
        self._starts_processes = program.starts_processes
        self._options = {**program.options, "is_reusable": program.is_reusable}
        self._requests, remote = socket.socketpair()
        self._ruleset = create_ruleset(program.grants) if landlock_abi() else None
        with remote:
            self._process = subprocess.Popen(
                _command(program, remote.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[remote.fileno()],
                start_new_session=True,
                env={},
                cwd="/",
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def launch(self) -> Worker | None:
        local, remote = socket.socketpair()
        with remote:
            descriptors = [remote.fileno()]
            if self._ruleset is not None:
                descriptors.append(self._ruleset)
            try:
                socket.send_fds(self._requests, [b"!"], descriptors)
                send_frame(local, self._options, MAX_REPLY)
            except ConnectionError:
                local.close()
                return None
        return Worker(local, starts_processes=self._starts_processes)

    def close(self) -> None:
        self.forget()
        try:
            self._process.wait(_EXIT_TIMEOUT)  # it kills its workers first
        except subprocess.TimeoutExpired:
            supervisor.kill_descendants(self._process.pid)
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        self._requests.close()
        if self._ruleset is not None:
            os.close(self._ruleset)
            self._ruleset = None


def unconfined(reason: str) -> str:
    """Return why no code is evaluated on a machine that cannot confine it, and what to do."""
    return (
        "Python code is evaluated only in a process that is confined, and this machine cannot"
        f" confine one: {reason}; use Linux with seccomp on x86_64 or aarch64, or install podman"
        " and use PodmanSandboxSection"
    )


def _command(program: WorkerProgram, requests: int) -> Sequence[str]:
    arguments = (str(requests), str(os.getpid()), _ROOT, program.module, *program.directories)
    return (sys.executable, "-I", "-S", _SCRIPT, *arguments)


def _is_usable(worker: Worker) -> bool:
    try:
        return worker.wait_until_ready(_START_TIMEOUT)
    except (FrameError, TimeoutError):
        return False


def _is_readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


_decoder = msgspec.json.Decoder(Frame)
