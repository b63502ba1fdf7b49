"""The home of commands: a directory of their own, and an environment without secrets."""

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
    checked_argv,
    checked_env,
    checked_stdin,
)
from weakincentives.sandbox.process import CommandProcess, SupervisorReport
from weakincentives.sandbox.protocol import (
    DEFAULT_MAX_OUTPUT,
    DEFAULT_TIMEOUT,
    NOT_EXECUTABLE,
    NOT_FOUND,
    TIMED_OUT,
    ExecResult,
    Output,
    SandboxUnavailableError,
)


class CommandEnvironment:
    """A temporary directory with a home and a place for temporary files in it."""

    def __init__(self) -> None:
        """Make it; it is removed by `remove`, or when nobody uses it any more."""
        self._place = Path(tempfile.mkdtemp(prefix="wink-sandbox-"))
        self.remove: Callable[[], object] = weakref.finalize(
            self, _remove, self._place, os.getpid()
        )
        for name in ("home", "tmp"):
            (self._place / name).mkdir(mode=0o700)

    def environment(self) -> dict[str, str]:
        """Return the variables that every command has."""
        return {
            "PATH": os.pathsep.join(os.get_exec_path()),
            "HOME": str(self._place / "home"),
            "TMPDIR": str(self._place / "tmp"),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }


def _remove(place: Path, maker: int) -> None:
    if os.getpid() != maker:
        return  # a fork of the process that it belongs to
    with suppress(OSError):
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            with os.scandir(descriptor) as entries:
                names = [entry.name for entry in entries]
            for name in names:
                _remove_entry(descriptor, name)
        finally:
            os.close(descriptor)
        place.rmdir()


def _remove_entry(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except (IsADirectoryError, PermissionError):
        remove_tree(directory, name)


_MAX_TOLD = 2_000  # characters of what a failed supervisor has printed


class LocalSandbox:
    """Runs commands on the host, as the user that this process is. It isolates nothing.

    A command can read and change whatever this user can, inside the workspace and out, and
    reach the network. Use it for code that you would run yourself. What it does give:
    a time limit, bounded output, an environment without secrets, and the end of
    everything that a command has started when the command ends.
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
            filesystem: The workspace, or the directory that is to be one.
            env: Variables for every command, beside `PATH` (that of this process), `HOME` and
                `TMPDIR` (in a directory that `close` removes), `LANG` and `TERM`.
            grace: How many seconds processes have between the request to end and the end.
            clock: Gives the seconds that time limits are measured in.

        Raises:
            SandboxUnavailableError: The filesystem is read-only, which commands would not be.
        """
        given = checked_env(env)
        self._is_owner = not isinstance(filesystem, HostFilesystem)
        self._filesystem = _workspace(filesystem)
        self._grace = grace
        self._clock = clock
        self._home = CommandEnvironment()
        self._env = {**self._home.environment(), **given}
        self._changed = Condition()
        self._running: dict[CommandProcess, int] = {}
        self._is_closed = False

    @property
    def filesystem(self) -> HostFilesystem:
        """The workspace that commands work on."""
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
        """Run a command to its end, and everything that it starts; see `Sandbox.exec`.

        The time limit is `timeout`, or what is left of the `time_limit` around the call.
        """
        check_limits(timeout, max_output)
        check_time("Command")
        given = {**self._env, **checked_env(env)}
        command = Command(checked_argv(argv), given, checked_stdin(stdin), self._grace)
        left = remaining_time()
        until = self._clock() + (timeout if left is None else min(timeout, left))
        with self._started(command, cwd, max_output) as running:
            is_late = not running.serve(until, self._clock) and running.told.status is None
        if self._is_closed:
            raise SandboxUnavailableError(f"Sandbox was closed while a command ran: {argv!r}")
        if running.told.fault < 0:
            raise os_error(-running.told.fault, cwd)
        return _result(command, running, timed_out=is_late)

    def close(self) -> None:
        """Stop what is running, and remove the home of the commands; twice is harmless."""
        me = get_ident()
        with self._changed:
            self._is_closed = True
            for running in self._running:
                running.stop()
            # a handler of signals may be what calls, and then its own thread waits for it
            self._changed.wait_for(lambda: all(each == me for each in self._running.values()))
        self._home.remove()
        if self._is_owner:
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
    def _started(
        self, command: Command, cwd: str, max_output: int
    ) -> Generator[CommandProcess, None, None]:
        """Start a command; whatever happens, nothing of it is left at the end."""
        self._check_open()
        directory = self._filesystem.open_directory(cwd)
        try:
            running = CommandProcess(command, directory, max_output)
        except OSError as error:
            raise SandboxUnavailableError(f"No process could be started: {error}") from error
        finally:
            os.close(directory)
        try:
            self._enter(running)
            yield running
        finally:
            try:
                running.finish()
            finally:
                self._filesystem.invalidate()
                self._leave(running)

    def _check_open(self) -> None:
        if self._is_closed:
            raise SandboxUnavailableError("Sandbox is closed")

    def _enter(self, running: CommandProcess) -> None:
        with self._changed:
            self._check_open()
            self._running[running] = get_ident()

    def _leave(self, running: CommandProcess) -> None:
        with self._changed:
            self._running.pop(running, None)
            self._changed.notify_all()


def _workspace(filesystem: HostFilesystem | str | os.PathLike[str]) -> HostFilesystem:
    if isinstance(filesystem, str | os.PathLike):
        return HostFilesystem(filesystem)
    if not isinstance(filesystem, HostFilesystem):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may be untyped
        raise TypeError(f"Commands on the host need a HostFilesystem, not {filesystem!r}")
    if filesystem.read_only:
        raise SandboxUnavailableError(
            "Commands on the host cannot be kept from changing a read-only filesystem:"
            f" {filesystem.root!r}"
        )
    return filesystem


def _result(command: Command, running: CommandProcess, *, timed_out: bool) -> ExecResult:
    told = running.told
    if told.fault:
        code, sentence = _fault(told.fault, command.argv[0])
        return ExecResult(command.argv, code, err=Output(sentence.encode() + b"\n"))
    if not told.is_done or told.status is None:
        raise SandboxUnavailableError(_failure(told, running.err.output()))
    code = os.waitstatus_to_exitcode(told.status)
    return ExecResult(
        command.argv,
        TIMED_OUT if timed_out else code if code >= 0 else 128 - code,
        running.out.output(),
        running.err.output(),
        duration_ms=(told.ended - told.started) * 1000,
        timed_out=timed_out,
        signal=_signal_name(-code) if code < 0 else None,
        stopped_processes=told.left_running,
    )


def _fault(code: int, program: str) -> tuple[int, str]:
    """Return the exit code and the sentence for a program that did not start."""
    if code in {errno.ENOENT, errno.ENOTDIR}:
        if "/" in program:
            return NOT_FOUND, f"No such program, or no interpreter for it: {program!r}"
        return NOT_FOUND, f"No such program on PATH: {program!r}"
    if code == errno.EACCES:
        return NOT_EXECUTABLE, f"Not an executable file: {program!r}"
    if code == errno.ENOEXEC:
        return NOT_EXECUTABLE, f"Not a program, and its first line names no other: {program!r}"
    return NOT_EXECUTABLE, f"{os.strerror(code)}: {program!r}"


def _failure(told: SupervisorReport, err: Output) -> str:
    if told.leader is None:
        return f"Supervisor of the command did not start: {err.text[-_MAX_TOLD:]!r}"
    if told.status is None:
        return "Supervisor of the command was killed, or did not answer"
    return "Processes that the command had started could not be stopped"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
