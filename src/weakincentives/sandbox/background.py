"""Background processes: commands that run while the caller does something else.

A thread for each reads its output, so that it never blocks on a full pipe. What nobody has polled
yet is kept in constant memory: the head and the tail.
"""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event, Lock, Thread
from typing import Protocol, TypeAlias, runtime_checkable

from weakincentives.filesystem import LimitExceededError
from weakincentives.sandbox.output import Output
from weakincentives.sandbox.process import RunningCommand
from weakincentives.sandbox.protocol import (
    DEFAULT_MAX_OUTPUT,
    ExecResult,
    NetworkConnection,
    OutputListener,
)

MAX_BACKGROUND = 8
"""How many background processes of a sandbox can run at a time."""
_MAX_ENDED = 32  # that are remembered, to be polled


@dataclass(frozen=True, slots=True)
class PollResult:
    """What a background process has printed since the last poll, and whether it has ended.

    Args:
        exit_code: As in `ExecResult`; None while it runs.
        out: Standard output since the last poll.
        err: Standard error since the last poll.
        duration_ms: How long it has run.
        signal: The name of the signal that killed it, if any.
        stopped_processes: How many processes it left running; they were stopped.
        connections: Its connections through a proxy; empty while it runs.
    """

    exit_code: int | None = None
    out: Output = field(default_factory=Output)
    err: Output = field(default_factory=Output)
    duration_ms: float = 0.0
    signal: str | None = None
    stopped_processes: int = 0
    connections: tuple[NetworkConnection, ...] = ()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.exit_code is None


@runtime_checkable
class BackgroundSandbox(Protocol):
    """A sandbox that can run commands in the background, with the isolation of all others."""

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        max_output: int = DEFAULT_MAX_OUTPUT,
        on_output: OutputListener | None = None,
    ) -> "BackgroundProcess":
        """Start a command and return at once; it runs until it ends, or the sandbox is closed.

        Args:
            argv: The program and its arguments, passed verbatim.
            cwd: The directory of the workspace to start in.
            env: Variables in addition to those that the sandbox sets.
            max_output: How many bytes of each stream to keep between two polls.
            on_output: Called with all output as it is read, in another thread.

        Raises:
            ValueError: An argument is invalid.
            OSError: `cwd` is not a directory of the workspace.
            LimitExceededError: `MAX_BACKGROUND` processes run already.
            SandboxUnavailableError: The sandbox could not start it.
        """
        ...

    def processes(self) -> Sequence["BackgroundProcess"]:
        """Return the processes that run, and those that have ended lately, oldest first."""
        ...


OnStart: TypeAlias = Callable[[RunningCommand], None]
"""Called when a command has been started."""
Run: TypeAlias = Callable[[OnStart], ExecResult]
"""Runs a command to its end."""


class BackgroundProcess:
    """A command that runs in the background. Thread-safe."""

    def __init__(self, number: int, argv: tuple[str, ...], *, is_reachable: bool) -> None:
        """Describe a process that is about to be started."""
        self.id: int = number
        """Its number in the sandbox, counted from 1."""
        self.argv: tuple[str, ...] = argv
        self.is_reachable: bool = is_reachable
        """Whether later commands can connect to its ports on localhost."""
        self._lock = Lock()
        self._has_started = Event()
        self._has_ended = Event()
        self._started = time.monotonic()
        self._running: RunningCommand | None = None
        self._result: ExecResult | None = None
        self._error: BaseException | None = None

    @property
    def command(self) -> str:
        """The command as a line for a shell."""
        return shlex.join(self.argv)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return not self._has_ended.is_set()

    def poll(self) -> PollResult:
        """Return what it has printed since the last call, and how it ended if it did.

        Raises:
            SandboxUnavailableError: The sandbox failed, or was closed; there is no result.
        """
        with self._lock:
            if self._has_ended.is_set():
                return self._take_result()
            elapsed = (time.monotonic() - self._started) * 1000
            running = self._running
            if running is None:
                return PollResult(duration_ms=elapsed)
            return PollResult(None, running.out.take(), running.err.take(), elapsed)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, for at most `timeout` seconds; return whether it has."""
        return self._has_ended.wait(timeout)

    def stop(self) -> PollResult:
        """Stop it and everything it started; return its last output.

        Raises:
            SandboxUnavailableError: It could not be stopped, or the sandbox failed.
        """
        running = self._running
        if running is not None:
            running.stop()
            self._has_ended.wait()  # bounded: the sandbox kills what does not stop
        return self.poll()

    def launch(self, run: Run) -> None:
        """Run it in a thread; return when it has started.

        Raises:
            OSError: `cwd` is not a directory of the workspace.
            SandboxUnavailableError: The sandbox could not start it.
        """
        name = f"wink-background-{self.id}"
        Thread(target=self._run, args=(run,), name=name, daemon=True).start()
        self._has_started.wait()
        if self._running is None and self._error is not None:
            raise self._error

    def _run(self, run: Run) -> None:
        try:
            self._result = run(self._on_start)
        except BaseException as error:  # noqa: BLE001 # it is raised where the process is polled
            self._error = error
        finally:
            self._has_ended.set()
            self._has_started.set()

    def _on_start(self, running: RunningCommand) -> None:
        self._running = running
        self._has_started.set()

    def _take_result(self) -> PollResult:
        result = self._result
        if result is None:
            assert self._error is not None
            raise self._error
        self._result = replace(result, out=Output(), err=Output(), connections=())
        return PollResult(
            result.exit_code,
            result.out,
            result.err,
            result.duration_ms,
            result.signal,
            result.stopped_processes,
            result.connections,
        )


class BackgroundProcesses:
    """The background processes of one sandbox. Thread-safe."""

    def __init__(self) -> None:
        """Start without any."""
        self._lock = Lock()
        self._all: list[BackgroundProcess] = []
        self._count = 0

    def start(self, argv: tuple[str, ...], run: Run, *, is_reachable: bool) -> BackgroundProcess:
        """Run a command in the background; see `BackgroundSandbox.start`."""
        process = self._add(argv, is_reachable=is_reachable)
        try:
            process.launch(run)
        except BaseException:
            with self._lock:
                self._all.remove(process)
            raise
        return process

    def list(self) -> Sequence[BackgroundProcess]:
        """Return those that run, and those that have ended lately, oldest first."""
        with self._lock:
            return tuple(self._all)

    def _add(self, argv: tuple[str, ...], *, is_reachable: bool) -> BackgroundProcess:
        with self._lock:
            running = [each for each in self._all if each.is_running]
            if len(running) >= MAX_BACKGROUND:
                numbers = ", ".join(str(each.id) for each in running)
                raise LimitExceededError(
                    f"{MAX_BACKGROUND} background processes are already running, the maximum;"
                    f" stop one of them: {numbers}"
                )
            ended = [each for each in self._all if not each.is_running]
            for each in ended[:-_MAX_ENDED]:
                self._all.remove(each)
            self._count += 1
            process = BackgroundProcess(self._count, argv, is_reachable=is_reachable)
            self._all.append(process)
            return process
