"""The engine that sandboxes on this machine share: start, time out, clean up, report.

Each sandbox has a temporary home directory and a minimal environment without secrets. What
confines a command is up to the subclass: `_confine` turns a command into the one to start.
"""

import errno
import math
import os
import platform
import signal
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Condition, get_ident
from types import TracebackType
from typing import Self

from weakincentives.filesystem import HostFilesystem
from weakincentives.posix import (
    check_time,
    is_owner_gone,
    on_cancel,
    os_error,
    owner_name,
    remaining_time,
    remove_tree,
)
from weakincentives.sandbox.background import (
    BackgroundProcess,
    BackgroundProcesses,
    OnStart,
    RunningCommand,
)
from weakincentives.sandbox.cgroup import ControlGroups
from weakincentives.sandbox.command import (
    Command,
    Confinement,
    check_limits,
    encode_stdin,
    validate_argv,
    validate_env,
)
from weakincentives.sandbox.import_hook import write_import_hook
from weakincentives.sandbox.limits import DEFAULT_SANDBOX_LIMITS, SandboxLimits
from weakincentives.sandbox.output import Output
from weakincentives.sandbox.process import CommandProcess, Launcher, SupervisorReport
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
from weakincentives.sandbox.seccomp import is_supported
from weakincentives.sandbox.system_paths import check_workspace, readable_paths

_PREFIX = "wink-sandbox-"


class CommandEnvironment:
    """Temporary directories for `HOME` and `TMPDIR`, and the variables every command gets."""

    def __init__(self) -> None:
        """Create the directories; `remove` or garbage collection deletes them.

        Those of processes that were killed are deleted by the next one.
        """
        _remove_abandoned()
        self._path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{owner_name()}."))
        self.remove: Callable[[], object] = weakref.finalize(self, _remove, self._path, os.getpid())
        for name in ("home", "tmp"):
            self.create_directory(name)

    def create_directory(self, name: str) -> Path:
        """Create one more directory, which is removed with the others."""
        path = self._path / name
        path.mkdir(mode=0o700)
        return path

    @property
    def home(self) -> str:
        """The home directory."""
        return str(self._path / "home")

    @property
    def temporary(self) -> str:
        """The directory for temporary files."""
        return str(self._path / "tmp")

    def variables(
        self, *, path: Sequence[str] | None = None, home: str = "", temporary: str = ""
    ) -> dict[str, str]:
        """Return the environment variables; home and temporary files may appear elsewhere."""
        return {
            "PATH": os.pathsep.join(os.get_exec_path() if path is None else path),
            "HOME": home or self.home,
            "TMPDIR": temporary or self.temporary,
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }


def _remove_abandoned() -> None:
    """Remove the directories of this user whose process has ended."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            owner = entry.name.removeprefix(_PREFIX).partition(".")[0]
            if not entry.name.startswith(_PREFIX) or not is_owner_gone(owner):
                continue
            with suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    _remove(Path(entry.path), os.getpid())


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


class HostSandbox:
    """Runs commands on this machine; the base of the sandboxes that need no container."""

    _confines_changes = False  # whether commands reach files only by paths below the workspace

    def __init__(
        self,
        filesystem: HostFilesystem | str | os.PathLike[str],
        *,
        env: Mapping[str, str] | None = None,
        original: str | os.PathLike[str] | None = None,
        grace: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Run commands on the files of `filesystem`.

        Args:
            filesystem: The workspace, or the path of its directory.
            env: Variables for every command, in addition to `PATH`, `HOME`, `TMPDIR`, `LANG`
                and `TERM`; home and temporary files are in a directory that `close` removes.
            original: The directory that the workspace is a copy of: Python imports the copy where
                an editable install names the original.
            grace: Seconds between `SIGTERM` and `SIGKILL` when processes are stopped.
            clock: Returns the current time in seconds; timeouts are measured with it.

        Raises:
            SandboxUnavailableError: The filesystem is read-only, which commands would ignore.
        """
        variables = validate_env(env)
        self._owns_filesystem = isinstance(filesystem, str | os.PathLike)
        self._filesystem = open_workspace(filesystem)
        # commands start elsewhere, where a relative path would be another directory
        self._root = str(Path(self._filesystem.root).absolute())
        self._original = None if original is None else str(Path(original).absolute())
        self._grace = grace
        self._clock = clock
        self._environment = CommandEnvironment()
        self._hook = self._create_import_hook()
        self._env = {**self._variables(), **self._add_import_hook(variables)}
        self._launcher = self._create_launcher()
        self._background = BackgroundProcesses()
        self._idle = Condition()
        self._processes: dict[CommandProcess, int] = {}
        self._is_closed = False

    @property
    def python(self) -> str:
        """The Python that commands can run."""
        return sys.executable

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
        on_output: OutputListener | None = None,
    ) -> ExecResult:
        """Run a command and wait for it and every process it starts; see `Sandbox.exec`.

        `on_output` gets all output as it is read, whatever the result keeps of it. If an enclosing
        `time_limit` leaves less time than `timeout`, that is the limit.
        """
        check_limits(timeout, max_output)
        check_time("Command")
        command = self._create_command(argv, env, stdin)
        left = remaining_time()
        until = self._clock() + (timeout if left is None else min(timeout, left))
        self._check_open()
        with ExitStack() as stack:

            def stop_on_cancel(process: RunningCommand) -> None:
                stack.callback(on_cancel(process.stop))

            return self._run(
                command, cwd, until, max_output, on_output=on_output, on_start=stop_on_cancel
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
        self._check_open()

        def run(on_start: OnStart) -> ExecResult:
            return self._run(
                command, cwd, math.inf, max_output, on_output=on_output, on_start=on_start
            )

        return self._background.start(command.argv, run, is_reachable=self._shares_network())

    def processes(self) -> Sequence[BackgroundProcess]:
        """Return the background processes; see `BackgroundSandbox.processes`."""
        return self._background.list()

    def _create_command(
        self, argv: Sequence[str], env: Mapping[str, str] | None, stdin: str | bytes | None
    ) -> Command:
        variables = {**self._env, **validate_env(env)}
        return Command(validate_argv(argv), variables, encode_stdin(stdin), self._grace)

    def _run(
        self,
        command: Command,
        cwd: str,
        until: float,
        max_output: int,
        *,
        on_output: OutputListener | None = None,
        on_start: OnStart | None = None,
    ) -> ExecResult:
        """Run a command to its end."""
        argv = command.argv
        with closing(self._confine(command, cwd)) as confined:
            listener = None if on_output is None else confined.listen(on_output)
            with self._start(confined.command, cwd, max_output, listener) as process:
                if on_start is not None:
                    on_start(process)
                timed_out = not process.serve(until, self._clock) and process.report.status is None
            if self._is_closed:
                raise SandboxUnavailableError(f"Sandbox was closed while a command ran: {argv!r}")
            process.report.check_confined(confined.advice)
            if process.report.error_number < 0:
                raise os_error(-process.report.error_number, cwd)
            if not timed_out and not process.is_stopped:
                confined.check(process)
        result = self._create_result(command, process, timed_out=timed_out)
        return replace(result, connections=confined.connections)

    def close(self) -> None:
        """Stop all running commands and remove their temporary home; idempotent."""
        me = get_ident()
        with self._idle:
            self._is_closed = True
            for process in self._processes:
                process.stop()
            # a signal handler may call this on the thread that runs a command: don't wait for that
            self._idle.wait_for(lambda: all(thread == me for thread in self._processes.values()))
        self._launcher.close()
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

    # --- what a subclass does differently ---

    def _create_launcher(self) -> Launcher:
        """Return the fork server for commands."""
        return Launcher()

    def _shares_network(self) -> bool:
        """Return whether a command can connect to what another one serves on localhost."""
        return True

    def _variables(self) -> dict[str, str]:
        """Return the variables that every command gets."""
        return self._environment.variables()

    def _create_import_hook(self) -> Path | None:
        """Write what makes Python import the copy; return its directory, or None without one."""
        return None if self._original is None else self._write_import_hook(self._root)

    def _hook_path(self, directory: Path) -> str:
        """Return where commands find the directory of the import hook."""
        return str(directory)

    def _confine(self, command: Command, cwd: str) -> "ConfinedCommand":
        """Return the command to start instead of `command`, which is to run in `cwd`."""
        del cwd  # the process starts there anyway
        return ConfinedCommand(command)

    # --- shared steps ---

    def _write_import_hook(self, seen_at: str) -> Path | None:
        if self._original is None:
            return None
        directory = self._environment.create_directory("python")
        write_import_hook(directory, original=self._original, copy=seen_at)
        return directory

    def _add_import_hook(self, variables: Mapping[str, str]) -> dict[str, str]:
        if self._hook is None:
            return dict(variables)
        given = variables.get("PYTHONPATH")
        found = (self._hook_path(self._hook), *(() if given is None else (given,)))
        return {**variables, "PYTHONPATH": os.pathsep.join(found)}

    @contextmanager
    def _start(
        self, command: Command, cwd: str, max_output: int, on_output: OutputListener | None
    ) -> Generator[CommandProcess, None, None]:
        """Start a command; on exit, stop it and everything it started."""
        with self._filesystem.changed_by_others(confined=self._confines_changes):
            directory = self._filesystem.open_directory(cwd)
            try:
                process = CommandProcess(self._launcher, command, directory, max_output, on_output)
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
                    self._remove(process)
            if not process.report.is_done:
                self._filesystem.invalidate()  # a process of it may be left

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

    def _create_result(
        self, command: Command, process: CommandProcess, *, timed_out: bool
    ) -> ExecResult:
        report = process.report
        if report.error_number:
            code, message = describe_exec_error(report.error_number, command.argv[0])
            return ExecResult(command.argv, code, err=Output(message.encode() + b"\n"))
        if not report.is_done or report.status is None:
            raise SandboxUnavailableError(_describe_failure(report, process.err.output()))
        code = self._exit_code(report.status)
        return ExecResult(
            command.argv,
            TIMED_OUT if timed_out else code if code >= 0 else 128 - code,
            process.out.take(is_end=True),
            process.err.take(is_end=True),
            duration_ms=(report.ended - report.started) * 1000,
            timed_out=timed_out,
            signal=signal_name(-code) if code < 0 else None,
            stopped_processes=report.left_running,
        )

    def _exit_code(self, status: int) -> int:
        """Return the exit code, negative for the number of a signal."""
        return os.waitstatus_to_exitcode(status)


class IsolatedSandbox(HostSandbox):
    """Runs commands that cannot leave the workspace; the base of the sandboxes that isolate."""

    def __init__(
        self,
        filesystem: HostFilesystem | str | os.PathLike[str],
        *,
        env: Mapping[str, str] | None = None,
        readable: Iterable[str | os.PathLike[str]] = (),
        original: str | os.PathLike[str] | None = None,
        limits: SandboxLimits = DEFAULT_SANDBOX_LIMITS,
        grace: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Run commands on the files of `filesystem`.

        Args:
            filesystem: The workspace, or the path of its directory.
            env: Variables for every command, in addition to `PATH`, `HOME`, `TMPDIR`, `LANG`
                and `TERM`.
            readable: Paths of the host that commands may read, besides programs and libraries.
            original: The directory that the workspace is a copy of. Where the sandbox can do that,
                commands find the workspace at this path too, because virtual environments and
                caches refer to it; elsewhere Python imports the copy instead.
            limits: Memory, processes and file size.
            grace: Seconds between `SIGTERM` and `SIGKILL` when processes are stopped.
            clock: Returns the current time in seconds; timeouts are measured with it.

        Raises:
            SandboxUnavailableError: The host cannot isolate commands in this way, or the
                filesystem is read-only.
        """
        if not is_supported():
            raise SandboxUnavailableError(
                f"There is no seccomp filter for this machine: {platform.machine()}"
            )
        root = filesystem.root if isinstance(filesystem, HostFilesystem) else os.fspath(filesystem)
        check_workspace(root)
        self._readable = readable_paths(readable, workspace=os.path.realpath(root))
        self._limits = limits
        self._groups: ControlGroups | None = None
        super().__init__(filesystem, env=env, original=original, grace=grace, clock=clock)

    @property
    def limited(self) -> frozenset[str]:
        """What a control group limits for all commands together: `memory`, `pids`, or both."""
        return self._join_groups().controllers

    def close(self) -> None:
        """Stop all running commands and remove what the sandbox created; idempotent."""
        super().close()
        if self._groups is not None:
            self._groups.remove()

    def _limit(self) -> Confinement:
        """Return the resource limits of a command, where control groups do not limit it."""
        groups = self._join_groups()
        return Confinement(limits=self._limits.resources(without=groups.controllers))

    def _join_groups(self) -> ControlGroups:
        if self._groups is None:
            self._groups = ControlGroups(self._limits.groups())
            self._launcher.join(self._groups)
        return self._groups


class ConfinedCommand:
    """A command with everything that confines it, until it has ended."""

    def __init__(self, command: Command) -> None:
        """Start `command` as it is."""
        self.command: Command = command

    @property
    def advice(self) -> str:
        """What to do if the kernel refuses to confine it; it follows the error."""
        return ""

    @property
    def connections(self) -> tuple[NetworkConnection, ...]:
        """The connections of the command through a proxy; complete once this is closed."""
        return ()

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


def open_workspace(filesystem: HostFilesystem | str | os.PathLike[str]) -> HostFilesystem:
    """Return the filesystem of a sandbox; a path is opened.

    Raises:
        SandboxUnavailableError: It is read-only, which commands would ignore.
    """
    if isinstance(filesystem, str | os.PathLike):
        return HostFilesystem(filesystem)
    if not isinstance(filesystem, HostFilesystem):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may be untyped
        raise TypeError(
            f"A sandbox on this machine needs a HostFilesystem or a path, not {filesystem!r}"
        )
    if filesystem.read_only:
        raise SandboxUnavailableError(
            f"Commands would change a read-only filesystem: {filesystem.root!r}"
        )
    return filesystem


def describe_exec_error(code: int, program: str) -> tuple[int, str]:
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


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
