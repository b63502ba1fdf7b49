"""The local sandbox: runs commands on the host, without isolation.

Each sandbox has a temporary home directory and a minimal environment without secrets.
"""

import errno
import os
import signal
import tempfile
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition, get_ident
from types import TracebackType
from typing import Self

from weakincentives.filesystem import HostFilesystem
from weakincentives.posix import check_time, os_error, remaining_time, remove_tree
from weakincentives.sandbox.command import (
    Command,
    check_limits,
    encode_stdin,
    validate_argv,
    validate_env,
)
from weakincentives.sandbox.output import Output
from weakincentives.sandbox.process import CommandProcess, SupervisorReport
from weakincentives.sandbox.protocol import (
    DEFAULT_MAX_OUTPUT,
    DEFAULT_TIMEOUT,
    NOT_EXECUTABLE,
    NOT_FOUND,
    TIMED_OUT,
    ExecResult,
    SandboxUnavailableError,
)


class CommandEnvironment:
    """Temporary directories for `HOME` and `TMPDIR`, and the variables every command gets."""

    def __init__(self) -> None:
        """Create the directories; `remove` or garbage collection deletes them."""
        self._path = Path(tempfile.mkdtemp(prefix="wink-sandbox-"))
        self.remove: Callable[[], object] = weakref.finalize(self, _remove, self._path, os.getpid())
        for name in ("home", "tmp"):
            (self._path / name).mkdir(mode=0o700)

    def variables(self) -> dict[str, str]:
        """Return the environment variables."""
        return {
            "PATH": os.pathsep.join(os.get_exec_path()),
            "HOME": str(self._path / "home"),
            "TMPDIR": str(self._path / "tmp"),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }


def _remove(path: Path, owner: int) -> None:
    if os.getpid() != owner:
        return  # this process is a fork of the owner
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            with os.scandir(descriptor) as entries:
                names = [entry.name for entry in entries]
            for name in names:
                _remove_entry(descriptor, name)
        finally:
            os.close(descriptor)
        path.rmdir()


def _remove_entry(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except (IsADirectoryError, PermissionError):
        remove_tree(directory, name)


_MAX_EXCERPT = 2_000  # characters of a failed supervisor's output in the error


class LocalSandbox:
    """Runs commands on the host as the current user. It isolates nothing.

    A command can read and change whatever this user can, inside the workspace and outside,
    and reach the network. Use it for code that you would run yourself. What it does provide:
    a timeout, bounded output, an environment without secrets, and cleanup of every
    process that a command started.
    """

    def __init__(
        self,
        filesystem: HostFilesystem | str | os.PathLike[str],
        *,
        env: Mapping[str, str] | None = None,
        grace: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Run commands on the files of `filesystem`.

        Args:
            filesystem: The workspace, or the path of its directory.
            env: Variables for every command, in addition to `PATH` (copied from this process),
                `HOME` and `TMPDIR` (in a directory that `close` removes), `LANG` and `TERM`.
            grace: Seconds between `SIGTERM` and `SIGKILL` when processes are stopped.
            clock: Returns the current time in seconds; timeouts are measured with it.

        Raises:
            SandboxUnavailableError: The filesystem is read-only, which commands would ignore.
        """
        variables = validate_env(env)
        self._owns_filesystem = isinstance(filesystem, str | os.PathLike)
        self._filesystem = _open_workspace(filesystem)
        self._grace = grace
        self._clock = clock
        self._environment = CommandEnvironment()
        self._env = {**self._environment.variables(), **variables}
        self._idle = Condition()
        self._processes: dict[CommandProcess, int] = {}
        self._is_closed = False

    @property
    def filesystem(self) -> HostFilesystem:
        """The workspace in which commands run."""
        return self._filesystem

    def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        max_output: int = DEFAULT_MAX_OUTPUT,
    ) -> ExecResult:
        """Run a command and wait for it and every process it starts; see `Sandbox.exec`.

        If an enclosing `time_limit` leaves less time than `timeout`, that is the limit.
        """
        check_limits(timeout, max_output)
        check_time("Command")
        variables = {**self._env, **validate_env(env)}
        command = Command(validate_argv(argv), variables, encode_stdin(stdin), self._grace)
        left = remaining_time()
        until = self._clock() + (timeout if left is None else min(timeout, left))
        with self._start(command, cwd, max_output) as process:
            timed_out = not process.serve(until, self._clock) and process.report.status is None
        if self._is_closed:
            raise SandboxUnavailableError(f"Sandbox was closed while a command ran: {argv!r}")
        if process.report.error_number < 0:
            raise os_error(-process.report.error_number, cwd)
        return _create_result(command, process, timed_out=timed_out)

    def close(self) -> None:
        """Stop all running commands and remove their temporary home; idempotent."""
        me = get_ident()
        with self._idle:
            self._is_closed = True
            for process in self._processes:
                process.stop()
            # a signal handler may call this on the thread that runs a command: don't wait for that
            self._idle.wait_for(lambda: all(thread == me for thread in self._processes.values()))
        self._environment.remove()
        if self._owns_filesystem:
            self._filesystem.close()

    def __enter__(self) -> Self:
        """Return the sandbox."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    @contextmanager
    def _start(
        self, command: Command, cwd: str, max_output: int
    ) -> Generator[CommandProcess, None, None]:
        """Start a command; on exit, stop it and everything it started."""
        self._check_open()
        directory = self._filesystem.open_directory(cwd)
        try:
            process = CommandProcess(command, directory, max_output)
        except OSError as error:
            raise SandboxUnavailableError(f"Cannot start a process: {error}") from error
        finally:
            os.close(directory)
        try:
            self._add(process)
            yield process
        finally:
            try:
                process.finish()
            finally:
                self._filesystem.invalidate()
                self._remove(process)

    def _check_open(self) -> None:
        if self._is_closed:
            raise SandboxUnavailableError("Sandbox is closed")

    def _add(self, process: CommandProcess) -> None:
        with self._idle:
            self._check_open()
            self._processes[process] = get_ident()

    def _remove(self, process: CommandProcess) -> None:
        with self._idle:
            self._processes.pop(process, None)
            self._idle.notify_all()


def _open_workspace(filesystem: HostFilesystem | str | os.PathLike[str]) -> HostFilesystem:
    if isinstance(filesystem, str | os.PathLike):
        return HostFilesystem(filesystem)
    if not isinstance(filesystem, HostFilesystem):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may be untyped
        raise TypeError(f"LocalSandbox needs a HostFilesystem or a path, not {filesystem!r}")
    if filesystem.read_only:
        raise SandboxUnavailableError(
            "LocalSandbox cannot stop commands from changing a read-only filesystem:"
            f" {filesystem.root!r}"
        )
    return filesystem


def _create_result(command: Command, process: CommandProcess, *, timed_out: bool) -> ExecResult:
    report = process.report
    if report.error_number:
        code, message = _describe_exec_error(report.error_number, command.argv[0])
        return ExecResult(command.argv, code, err=Output(message.encode() + b"\n"))
    if not report.is_done or report.status is None:
        raise SandboxUnavailableError(_describe_failure(report, process.err.output()))
    code = os.waitstatus_to_exitcode(report.status)
    return ExecResult(
        command.argv,
        TIMED_OUT if timed_out else code if code >= 0 else 128 - code,
        process.out.output(),
        process.err.output(),
        duration_ms=(report.ended - report.started) * 1000,
        timed_out=timed_out,
        signal=_signal_name(-code) if code < 0 else None,
        stopped_processes=report.left_running,
    )


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
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
