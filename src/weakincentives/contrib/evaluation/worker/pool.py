"""Worker processes of an engine: started ahead of time, replaced when they die, never shared.

A pool starts one fork server (see `server`) and gets workers from it. A worker serves one
evaluation at a time. Those of a program that keeps no state between evaluations are used
again; all others serve one evaluation, and a spare is forked meanwhile.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import msgspec

from weakincentives import posix
from weakincentives.contrib.evaluation.driver import MAX_MESSAGE, MAX_REPLY, encode
from weakincentives.contrib.evaluation.engine import EngineUnavailableError, EvalError
from weakincentives.sandbox import (
    Grant,
    create_ruleset,
    kill_descendants,
    kill_session,
    landlock_abi,
)

MAX_IDLE = 2
"""Workers that wait for the next evaluation."""

MAX_BUSY_SECONDS = 60.0
"""Seconds that one worker is busy, at most; its processor time is limited too."""

_START_TIMEOUT = 30.0  # seconds until a new worker is ready, on a loaded machine
_EXIT_TIMEOUT = 5.0  # seconds for a killed process to be gone
_SERVER = "weakincentives.contrib.evaluation.worker.server"


@dataclass(frozen=True, slots=True)
class WorkerOutcome:
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
    outcome: WorkerOutcome | None = None


@dataclass(frozen=True, slots=True)
class WorkerProgram:
    """What the workers of a pool run.

    Args:
        module: The module with the program; see `server`.
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

    def __init__(self, connection: socket.socket, server: int, *, starts_processes: bool) -> None:
        """Use the connection; a process that `server` forks reports itself when it is ready."""
        self.server: int = server
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
        return self._process >= 0 and not posix.is_readable(self._process)

    def send(self, message: Mapping[str, object], until: float) -> None:
        """Send a message.

        Raises:
            FrameError: It is too long.
            OSError: The worker is gone, or does not read until then.
        """
        self.connection.settimeout(max(until - time.monotonic(), 0.001))
        posix.send_frame(self.connection, encode(message), MAX_REPLY)

    def receive(self, until: float) -> Frame | None:
        """Return the next message; None if the worker is gone.

        Raises:
            TimeoutError: There is none until then.
            FrameError: It breaks the protocol.
        """
        self.connection.settimeout(max(until - time.monotonic(), 0.001))
        try:
            data = posix.receive_frame(self.connection, MAX_MESSAGE)
        except ConnectionError:
            return None
        try:
            return _decoder.decode(data) if data else None
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise posix.FrameError(f"Not a message of a worker: {error}") from None

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
                kill_session(self._pid)
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            if waits:
                posix.is_readable(self._process, _EXIT_TIMEOUT)
        self.forget()


class WorkerPool(posix.ForkServer):
    """The workers of one engine; thread-safe."""

    def __init__(self, program: WorkerProgram) -> None:
        """Start nothing yet."""
        self._program = program
        self._idle: list[Worker] = []
        super().__init__(partial(_end_workers, self._idle))

    def acquire(self) -> Worker:
        """Return a worker that nobody else uses; release or kill it.

        Raises:
            EngineUnavailableError: None can be started.
        """
        with self._lock:
            self.forget_if_forked()
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
            is_kept = self._program.is_reusable and not worn_out and self.pid
            if is_kept and len(self._idle) < MAX_IDLE:
                self._idle.append(worker)
                return
        worker.kill(waits=False)  # it has reported all, and is about to exit

    def has_server(self, worker: Worker) -> bool:
        """Return whether the server that forked a worker runs."""
        return worker.server == self.pid and self.is_running

    def _start(self, requests: int) -> posix.ServerProcess:
        program = self._program
        arguments = (str(requests), str(os.getpid()), program.module, *program.directories)
        return posix.start_worker(posix.worker_command(_SERVER, *arguments), passed=(requests,))

    def _take_idle(self) -> Worker | None:
        while self._idle:
            worker = self._idle.pop()
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
        self.close()
        return None

    def _add_spare(self) -> None:
        """Fork the worker for the next evaluation; nobody waits for it."""
        if not self._program.is_reusable and not self._idle:
            spare = self._launch()
            if spare is not None:
                self._idle.append(spare)

    def _launch(self) -> Worker | None:
        """Return a worker that is starting; None if the server is gone."""
        program = self._program
        ruleset = (create_ruleset(program.grants),) if landlock_abi() else ()
        local, remote = socket.socketpair()
        try:
            with remote:
                self.launch((remote.fileno(), *ruleset))
            options = {**program.options, "is_reusable": program.is_reusable}
            posix.send_frame(local, encode(options), MAX_REPLY)
        except OSError:
            local.close()
            return None
        finally:
            for each in ruleset:
                os.close(each)
        return Worker(local, self.pid, starts_processes=program.starts_processes)


def _end_workers(idle: list[Worker], server: posix.ServerProcess | None) -> None:
    """Kill all workers; in a fork of this process, forget those that wait."""
    for worker in idle:
        worker.forget() if server is None else worker.kill()
    idle.clear()
    if server is not None:
        kill_descendants(server.pid)


def unconfined(reason: str) -> str:
    """Return why no code is evaluated on a machine that cannot confine it, and what to do."""
    return (
        "Python code is evaluated only in a process that is confined, and this machine cannot"
        f" confine one: {reason}; use Linux with seccomp on x86_64 or aarch64, or install podman"
        " and use PodmanSandboxSection"
    )


def _is_usable(worker: Worker) -> bool:
    try:
        return worker.wait_until_ready(_START_TIMEOUT)
    except (posix.FrameError, TimeoutError):
        return False


_decoder = msgspec.json.Decoder(Frame)
