"""The engine that all sandboxes share: check, start, time out, clean up, report.

What confines a command, and the process or the container that it runs in, is up to the subclass.
"""

import errno
import math
import os
import signal
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Condition, get_ident
from typing import Generic, TypedDict, TypeVar

from weakincentives.posix import CloseOnExit, check_time, on_cancel, os_error, remaining_time
from weakincentives.sandbox.background import BackgroundProcess, BackgroundProcesses, OnStart
from weakincentives.sandbox.command import (
    PreparedCommand,
    check_limits,
    encode_stdin,
    validate_argv,
    validate_env,
)
from weakincentives.sandbox.launcher import SupervisorReport
from weakincentives.sandbox.output import Output
from weakincentives.sandbox.process import CommandProcess, RunningCommand
from weakincentives.sandbox.protocol import (
    DEFAULT_MAX_OUTPUT,
    DEFAULT_TIMEOUT,
    NOT_EXECUTABLE,
    NOT_FOUND,
    TIMED_OUT,
    ExecResult,
    NetworkConnection,
    OutputListener,
    SandboxUnavailableError,
)
from weakincentives.sandbox.proxy import ProxyPort

_MAX_EXCERPT = 2_000  # characters of a failed supervisor's output in the error


_Process = TypeVar("_Process", bound=RunningCommand)


class CommandOptions(TypedDict, total=False):
    """The options of all sandboxes; see `CommandSandbox`."""

    env: Mapping[str, str] | None
    readable: Iterable[str | os.PathLike[str]]
    original: str | os.PathLike[str] | None
    grace: float
    clock: Callable[[], float]


class CommandSandbox(CloseOnExit, Generic[_Process]):
    """Runs commands to their end, or in the background."""

    def __init__(
        self,
        *,
        env: Mapping[str, str] | None = None,
        readable: Iterable[str | os.PathLike[str]] = (),
        original: str | os.PathLike[str] | None = None,
        grace: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Run nothing yet.

        Args:
            env: Variables for every command, in addition to `PATH`, `HOME`, `TMPDIR`, `LANG`
                and `TERM`.
            readable: Paths of the host that commands may read, besides programs and libraries,
                where the sandbox isolates.
            original: The directory that the workspace is a copy of.
            grace: Seconds between `SIGTERM` and `SIGKILL` when processes are stopped.
            clock: Returns the current time in seconds; timeouts are measured with it.
        """
        self._env = validate_env(env)
        self._granted = tuple(str(Path(each).absolute()) for each in readable)
        self._original = None if original is None else str(Path(original).absolute())
        self._grace = grace
        self._clock = clock
        self._background = BackgroundProcesses()
        self._idle = Condition()
        self._running: dict[_Process, int] = {}
        self._is_closed = False

    def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        max_output: int = DEFAULT_MAX_OUTPUT,
        on_output: OutputListener | None = None,
    ) -> ExecResult:
        """Run a command and wait for it and every process it starts; see `Sandbox.exec`.

        `on_output` gets all output as it is read, whatever the result keeps of it. If an enclosing
        `time_limit` leaves less time than `timeout`, that is the limit. The time to start a
        container does not count.
        """
        check_limits(timeout, max_output)
        check_time("Command")
        command = self._create_command(argv, env, stdin)
        left = remaining_time()
        seconds = timeout if left is None else min(timeout, left)
        with ExitStack() as stack:

            def stop_on_cancel(process: RunningCommand) -> None:
                stack.callback(on_cancel(process.stop))

            return self._run(
                command, cwd, seconds, max_output, on_output=on_output, on_start=stop_on_cancel
            )

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        max_output: int = DEFAULT_MAX_OUTPUT,
        on_output: OutputListener | None = None,
    ) -> BackgroundProcess:
        """Start a command in the background; see `BackgroundSandbox.start`."""
        check_limits(DEFAULT_TIMEOUT, max_output)
        command = self._create_command(argv, env, None)

        def run(on_start: OnStart) -> ExecResult:
            return self._run(
                command, cwd, math.inf, max_output, on_output=on_output, on_start=on_start
            )

        return self._background.start(command.argv, run, is_reachable=self._shares_network())

    def processes(self) -> Sequence[BackgroundProcess]:
        """Return the background processes; see `BackgroundSandbox.processes`."""
        return self._background.list()

    def close(self) -> None:
        """Stop all running commands and remove what the sandbox created; idempotent."""
        me = get_ident()
        with self._idle:
            self._is_closed = True
            for process in self._running:
                process.stop()
            # a signal handler may call this on the thread that runs a command: don't wait for that
            self._idle.wait_for(lambda: all(thread == me for thread in self._running.values()))

    # --- what a subclass does differently ---

    @abstractmethod
    def _confine(self, command: PreparedCommand, cwd: str) -> "ConfinedCommand":
        """Return the command to start instead of `command`, which is to run in `cwd`."""

    @abstractmethod
    def _launch(self, confined: "ConfinedCommand") -> _Process:
        """Start a command."""

    @abstractmethod
    def _watch_files(self) -> AbstractContextManager[None]:
        """Return a context in which commands change files."""

    @abstractmethod
    def _handle_leftovers(self) -> None:
        """Note that a process of a command may be left."""

    def _shares_network(self) -> bool:
        """Return whether a command can connect to what another one serves on localhost."""
        return True

    def _check(self, confined: "ConfinedCommand", process: _Process, *, timed_out: bool) -> None:
        """Raise if there is no result."""
        del timed_out
        if process.report.confinement_error:
            problem = os.strerror(process.report.confinement_error)
            raise SandboxUnavailableError(
                "The command was not started, because it cannot be confined:"
                f" {problem}{confined.advice}"
            )
        if process.report.error_number < 0:
            raise os_error(-process.report.error_number, confined.cwd)

    def _exit_code(self, status: int) -> int:
        """Return the exit code, negative for the number of a signal."""
        return os.waitstatus_to_exitcode(status)

    # --- shared steps ---

    def _create_command(
        self, argv: Sequence[str], env: Mapping[str, str] | None, stdin: str | bytes | None
    ) -> PreparedCommand:
        variables = {**self._env, **validate_env(env)}
        return PreparedCommand(validate_argv(argv), variables, encode_stdin(stdin), self._grace)

    def _run(
        self,
        command: PreparedCommand,
        cwd: str,
        seconds: float,
        max_output: int,
        *,
        on_output: OutputListener | None = None,
        on_start: OnStart,
    ) -> ExecResult:
        """Run a command to its end."""
        self._check_open()
        with closing(self._confine(command, cwd)) as confined:
            confined.cwd, confined.max_output = cwd, max_output
            confined.listener = None if on_output is None else confined.listen(on_output)
            until = self._clock() + seconds
            with self._start(confined) as process:
                on_start(process)
                timed_out = not process.serve(until, self._clock) and process.report.status is None
            if self._is_closed:
                argv = command.argv
                raise SandboxUnavailableError(f"Sandbox was closed while a command ran: {argv!r}")
            self._check(confined, process, timed_out=timed_out)
        result = self._create_result(command.argv, process, timed_out=timed_out)
        return replace(result, connections=confined.connections)

    @contextmanager
    def _start(self, confined: "ConfinedCommand") -> Generator[_Process, None, None]:
        """Start a command; on exit, stop it and everything it started."""
        with self._watch_files():
            process = self._launch(confined)
            try:
                with self._idle:
                    self._running[process] = get_ident()
                    self._check_open()
                yield process
            finally:
                try:
                    process.finish()
                    if not process.has_ended:
                        self._handle_leftovers()
                finally:
                    with self._idle:
                        self._running.pop(process, None)
                        self._idle.notify_all()

    def _check_open(self) -> None:
        if self._is_closed:
            raise SandboxUnavailableError("Sandbox is closed")

    def _create_result(
        self, argv: tuple[str, ...], process: _Process, *, timed_out: bool
    ) -> ExecResult:
        report = process.report
        if report.error_number:
            code, message = _describe_exec_error(report.error_number, argv[0])
            return ExecResult(argv, code, err=Output(message.encode() + b"\n"))
        if not report.is_done or report.status is None:
            raise SandboxUnavailableError(_describe_failure(report, process.err.output()))
        code = self._exit_code(report.status)
        return ExecResult(
            argv,
            TIMED_OUT if timed_out else code if code >= 0 else 128 - code,
            process.out.take(is_end=True),
            process.err.take(is_end=True),
            duration_ms=(report.ended - report.started) * 1000,
            timed_out=timed_out,
            signal=_signal_name(-code) if code < 0 else None,
            stopped_processes=report.left_running,
        )


class ConfinedCommand:
    """A command with everything that confines it, until it has ended."""

    def __init__(self, command: PreparedCommand, port: ProxyPort | None = None) -> None:
        """Start `command` as it is; `port` is the port of its proxy."""
        self.command: PreparedCommand = command
        self.cwd: str = "."
        self.max_output: int = DEFAULT_MAX_OUTPUT
        self.listener: OutputListener | None = None
        self._port = port

    @property
    def advice(self) -> str:
        """What to do if the kernel refuses to confine it; it follows the error."""
        return ""

    @property
    def connections(self) -> tuple[NetworkConnection, ...]:
        """The connections of the command through a proxy; complete once this is closed."""
        return () if self._port is None else self._port.server.connections

    def listen(self, listener: OutputListener) -> OutputListener:
        """Return what to call with all output, so that `listener` gets that of the command."""
        return listener

    def check(self, process: CommandProcess) -> None:
        """Make sure that the command has run.

        Raises:
            SandboxUnavailableError: The sandbox failed before the command could start.
        """

    def close(self) -> None:
        """Release what was opened for this command."""
        if self._port is not None:
            self._port.server.close()


def _describe_exec_error(code: int, program: str) -> tuple[int, str]:
    """Return the exit code and the message for a program that could not be started."""
    if code in {errno.ENOENT, errno.ENOTDIR}:
        if "/" in program:
            return NOT_FOUND, f"No such program, or its interpreter is missing: {program!r}"
        return NOT_FOUND, f"No such program on PATH: {program!r}"
    if code == errno.EACCES:
        return NOT_EXECUTABLE, f"Not an executable file: {program!r}"
    if code == errno.ENOEXEC:
        return NOT_EXECUTABLE, f"Not a program, and its first line is not a #! line: {program!r}"
    return NOT_EXECUTABLE, f"{os.strerror(code)}: {program!r}"


def _describe_failure(report: SupervisorReport, err: Output) -> str:
    if report.leader is None:
        return f"The command's supervisor did not start: {err.text[-_MAX_EXCERPT:]!r}"
    if report.status is None:
        return "The command's supervisor was killed or did not respond"
    return "Some processes that the command started could not be stopped"


def _signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
