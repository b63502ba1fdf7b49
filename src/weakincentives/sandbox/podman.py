"""The Podman sandbox: commands in a container, through a runner that stays inside.

The first command starts the container; later ones reuse it. A container has no network, no
capabilities, a read-only root, and limits for CPU, memory and processes. It is removed by
`close`, at the exit of this process, and also if this process is killed.

With an allow-list, a proxy on this machine connects commands to the hosts of the list: each
command has a port of that proxy on the loopback interface of the container.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Condition, get_ident
from types import TracebackType
from typing import Self

from weakincentives.filesystem import HostFilesystem, normalize_path
from weakincentives.posix import check_time, on_cancel, os_error, remaining_time
from weakincentives.sandbox.allowlist import AllowList
from weakincentives.sandbox.background import (
    BackgroundProcess,
    BackgroundProcesses,
    OnStart,
    RunningCommand,
)
from weakincentives.sandbox.command import (
    Command,
    check_limits,
    encode_stdin,
    validate_argv,
    validate_env,
)
from weakincentives.sandbox.container import (
    HOME,
    Container,
    ContainerCommand,
    ContainerFilesystem,
    PodmanSandboxConfig,
    RunnerClient,
)
from weakincentives.sandbox.host import describe_exec_error, open_workspace, signal_name
from weakincentives.sandbox.output import Output
from weakincentives.sandbox.process import Launcher
from weakincentives.sandbox.protocol import (
    DEFAULT_MAX_OUTPUT,
    DEFAULT_TIMEOUT,
    TIMED_OUT,
    ConnectionListener,
    ExecResult,
    NetworkConnection,
    OutputListener,
    SandboxUnavailableError,
)
from weakincentives.sandbox.proxy import ProxySettings
from weakincentives.sandbox.proxy_port import ProxyPort
from weakincentives.sandbox.system_paths import check_workspace


class PodmanSandbox:
    """Runs commands in a container of podman."""

    def __init__(
        self,
        filesystem: HostFilesystem | str | os.PathLike[str] | None = None,
        *,
        config: PodmanSandboxConfig | None = None,
        env: Mapping[str, str] | None = None,
        readable: Iterable[str | os.PathLike[str]] = (),
        original: str | os.PathLike[str] | None = None,
        allow_hosts: Iterable[str] = (),
        on_connection: ConnectionListener | None = None,
        untrusted: Iterable[str | os.PathLike[str]] = (),
        grace: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Run commands on the files of `filesystem`; podman is not called yet.

        Args:
            filesystem: The workspace, or the path of its directory; None for a workspace inside
                the container, which is the only way with a remote engine.
            config: The engine, the image and the limits; by default from the environment.
            env: Variables for every command, in addition to `PATH`, `HOME`, `TMPDIR`, `LANG`
                and `TERM`.
            readable: Paths of the host that commands may read, besides the image.
            original: The directory that the workspace is a copy of: podman is not looked for in
                it. Programs come from the image, and do not know this directory.
            allow_hosts: Hosts that commands may connect to by HTTP and HTTPS, such as
                `example.com`, `*.example.com` or `example.com:8443`; by default none.
            on_connection: Called with each connection when it has ended, in another thread.
            untrusted: Directories in which podman is not looked for, besides the workspace and
                the original.
            grace: Seconds between `SIGTERM` and `SIGKILL` when processes are stopped.
            clock: Returns the current time in seconds; timeouts are measured with it.

        Raises:
            SandboxUnavailableError: The filesystem is read-only, which commands would ignore, or
                the engine is remote and cannot use it, or the hosts.
            ValueError: A host is invalid.
        """
        allowed = AllowList(allow_hosts)
        self._proxy = ProxySettings(allowed, on_connection) if allowed.rules else None
        self._launcher = Launcher()
        untrusted = (*untrusted, *(() if original is None else (original,)))
        self._env = validate_env(env)
        self._config = config or PodmanSandboxConfig.from_environment()
        self._owns_filesystem = not isinstance(filesystem, HostFilesystem)
        self._filesystem: HostFilesystem | ContainerFilesystem
        if filesystem is None:
            self._container = Container(self._config, None, untrusted=untrusted)
            self._filesystem = ContainerFilesystem(self._container)
        elif self._config.is_remote:
            raise SandboxUnavailableError(
                "A remote engine shares no directory with this machine: unset PODMAN_BASE_URL and"
                " PODMAN_CONNECTION to use the engine of this machine, or leave `filesystem` out"
                " and copy files with `sandbox.filesystem.hydrate_from_host`"
            )
        else:
            self._filesystem = open_workspace(filesystem)
            check_workspace(self._filesystem.root)
            paths = [str(Path(each).absolute()) for each in readable]
            root = str(Path(self._filesystem.root).absolute())  # podman runs elsewhere
            self._container = Container(
                self._config, root, readable=paths, untrusted=(root, *untrusted)
            )
        if self._proxy is not None and self._config.is_remote:
            raise SandboxUnavailableError(
                f"A remote engine cannot allow {', '.join(map(str, allowed.rules))}: the proxy is"
                " on this machine; use the engine of this machine, or do not name hosts"
            )
        self._grace = grace
        self._clock = clock
        self._idle = Condition()
        self._commands: dict[ContainerCommand, int] = {}
        self._background = BackgroundProcesses()
        self._is_closed = False

    @property
    def config(self) -> PodmanSandboxConfig:
        """The engine, the image and the limits."""
        return self._config

    @property
    def container_name(self) -> str | None:
        """The name of the container; None if it does not run."""
        return self._container.name

    @property
    def image(self) -> str:
        """The image of the container; until it has started, the one that is configured."""
        return self._container.image

    @property
    def limited(self) -> frozenset[str]:
        """What a control group limits for all commands together: `memory`, `pids`, or both.

        Asking starts the container.
        """
        self._container.connect()
        return self._container.limited

    @property
    def python(self) -> str:
        """The Python that commands can run."""
        return "python3"

    @property
    def filesystem(self) -> HostFilesystem | ContainerFilesystem:
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

        The timeout does not include the start of the container. `on_output` gets all output as
        it is read, whatever the result keeps of it.
        """
        check_limits(timeout, max_output)
        check_time("Command")
        prepared = self._prepare(argv, cwd, env, stdin)
        left = remaining_time()
        until = self._clock() + (timeout if left is None else min(timeout, left))
        with ExitStack() as stack:

            def stop_on_cancel(process: RunningCommand) -> None:
                stack.callback(on_cancel(process.stop))

            return self._run(
                prepared, cwd, until, max_output, on_output=on_output, on_start=stop_on_cancel
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
        prepared = self._prepare(argv, cwd, env, None)

        def run(on_start: OnStart) -> ExecResult:
            files = self._filesystem
            is_host = isinstance(files, HostFilesystem)  # one in the container trusts nothing
            with files.changed_by_others() if is_host else nullcontext():
                return self._run(
                    prepared, cwd, math.inf, max_output, on_output=on_output, on_start=on_start
                )

        return self._background.start(prepared.command.argv, run, is_reachable=True)

    def processes(self) -> Sequence[BackgroundProcess]:
        """Return the background processes; see `BackgroundSandbox.processes`."""
        return self._background.list()

    def close(self) -> None:
        """Stop all running commands and remove the container; idempotent."""
        me = get_ident()
        with self._idle:
            self._is_closed = True
            for command in self._commands:
                command.stop()
            # a signal handler may call this on the thread that runs a command: don't wait for that
            self._idle.wait_for(lambda: all(thread == me for thread in self._commands.values()))
        if self._owns_filesystem:
            with suppress(SandboxUnavailableError):  # the container is gone
                self._filesystem.close()
        self._container.close()
        self._launcher.close()

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

    def _prepare(
        self,
        argv: Sequence[str],
        cwd: str,
        env: Mapping[str, str] | None,
        stdin: str | bytes | None,
    ) -> "_Prepared":
        """Check a command and make sure that the container runs."""
        args, data = validate_argv(argv), encode_stdin(stdin)
        own = validate_env(env)
        directory = self._check_directory(cwd)
        client = self._container.connect()
        port = self._open_port()
        proxy = {} if port is None else port.variables
        command = Command(args, {**proxy, **self._variables(), **own}, data, self._grace)
        return _Prepared(client, command, directory, port)

    def _open_port(self) -> ProxyPort | None:
        if self._proxy is None:
            return None
        network = self._container.open_network()
        try:
            return ProxyPort(self._launcher, self._proxy, (network,))
        finally:
            os.close(network)

    def _run(
        self,
        prepared: "_Prepared",
        cwd: str,
        until: float,
        max_output: int,
        *,
        on_output: OutputListener | None = None,
        on_start: OnStart | None = None,
    ) -> ExecResult:
        """Run a command to its end."""
        client, command = prepared.client, prepared.command
        with closing(prepared):
            running = ContainerCommand(client, command, prepared.directory, max_output, on_output)
            try:
                self._add(running)
                if on_start is not None:
                    on_start(running)
                timed_out = not running.serve(until, self._clock) and running.report.status is None
            finally:
                self._finish(running)
        self._check(running, client, cwd)
        result = _create_result(command.argv, running, timed_out=timed_out)
        return replace(result, connections=prepared.connections)

    def _variables(self) -> dict[str, str]:
        defaults = {"PATH": self._container.path, "HOME": HOME, "TMPDIR": "/tmp"}
        return {**defaults, "LANG": "C.UTF-8", "TERM": "dumb", **self._env}

    def _check_directory(self, cwd: str) -> str:
        """Return the normalized path of a directory of the workspace."""
        if self._is_closed:
            raise SandboxUnavailableError("Sandbox is closed")
        if isinstance(self._filesystem, HostFilesystem):
            os.close(self._filesystem.open_directory(cwd))
        return normalize_path(cwd)

    def _add(self, command: ContainerCommand) -> None:
        with self._idle:
            self._commands[command] = get_ident()
            if self._is_closed:
                raise SandboxUnavailableError("Sandbox is closed")

    def _finish(self, command: ContainerCommand) -> None:
        try:
            if not command.finish():
                self._container.kill()
        finally:
            if isinstance(self._filesystem, HostFilesystem):
                self._filesystem.invalidate()
            with self._idle:
                self._commands.pop(command, None)
                self._idle.notify_all()

    def _check(self, command: ContainerCommand, client: RunnerClient, cwd: str) -> None:
        """Raise if there is no result."""
        if self._is_closed:
            raise SandboxUnavailableError("Sandbox was closed while a command ran")
        if command.is_lost:
            raise client.lost_error()
        command.report.check_confined()
        if command.report.error_number < 0:
            self._filesystem.list(cwd)  # raises the reason
            raise os_error(-command.report.error_number, cwd)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A checked command, and the runner that is to start it."""

    client: RunnerClient
    command: Command
    directory: str
    port: ProxyPort | None = None

    @property
    def connections(self) -> tuple[NetworkConnection, ...]:
        """The connections of the command; complete once this is closed."""
        return () if self.port is None else self.port.server.connections

    def close(self) -> None:
        """Close the port of the command."""
        if self.port is not None:
            self.port.server.close()


def _create_result(
    argv: tuple[str, ...], command: ContainerCommand, *, timed_out: bool
) -> ExecResult:
    report = command.report
    if report.error_number:
        code, message = describe_exec_error(report.error_number, argv[0])
        return ExecResult(argv, code, err=Output(message.encode() + b"\n"))
    if not report.is_done or report.status is None:
        raise SandboxUnavailableError(
            "The command's supervisor was killed, or a process could not be stopped"
        )
    code = os.waitstatus_to_exitcode(report.status)
    return ExecResult(
        argv,
        TIMED_OUT if timed_out else code if code >= 0 else 128 - code,
        command.out.take(is_end=True),
        command.err.take(is_end=True),
        duration_ms=(report.ended - report.started) * 1000,
        timed_out=timed_out,
        signal=signal_name(-code) if code < 0 else None,
        stopped_processes=report.left_running,
    )
