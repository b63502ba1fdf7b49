"""A workspace with a container: files on the host, commands in a Podman sandbox."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from weakincentives.contrib.evaluation import DEFAULT_EVAL_LIMITS, EvalLimits, PythonEngine
from weakincentives.contrib.tools.context import Handler, HandlerContext
from weakincentives.contrib.tools.evaluation import evaluation_handlers
from weakincentives.contrib.tools.requests import PROGRAM, ShellExecuteParams
from weakincentives.contrib.tools.sections.base import FilesystemSection
from weakincentives.contrib.tools.shell import DEFAULT_SHELL_LIMITS, ShellLimits, shell_handlers
from weakincentives.filesystem import DEFAULT_LIMITS, Filesystem, HostBacked, HostFilesystem, Limits
from weakincentives.prompt import ToolResult, check_argument
from weakincentives.runtime import EventBus
from weakincentives.runtime.session import Session, register_type
from weakincentives.sandbox import BackgroundProcess, ExecResult, PodmanSandbox, PodmanSandboxConfig
from weakincentives.sandbox.container import WORKSPACE, Overlay, configure

_GUIDANCE = f"""\
Commands and Python code run in a Linux container of their own. The workspace is its directory \
`{WORKSPACE}`; what they write elsewhere is lost."""
_NO_NETWORK = "There is no network: nothing can be downloaded or installed from outside."


class IsolationLevel(Enum):
    """What a clone of a section shares with the original."""

    NO_ISOLATION = "no isolation"
    """Files and container are shared."""
    FULL_ISOLATION = "full isolation"
    """The clone has files and a container of its own."""


@register_type
@dataclass(frozen=True, slots=True)
class PodmanWorkspace:
    """The container of a session.

    Args:
        image: The image.
        overlay_path: The directory on the host that is mounted; empty with a remote engine.
        container_name: The name of the container; None unless it runs.
    """

    image: str
    overlay_path: str = ""
    container_name: str | None = None

    @property
    def is_running(self) -> bool:
        """Whether the container runs."""
        return self.container_name is not None


@dataclass(frozen=True, slots=True)
class PodmanShellParams:
    """A command to run in the container.

    Args:
        commands: The program and its arguments, one item each; it runs without a shell.
        cwd: The working directory; by default the workspace root.
        env: Environment variables to set.
        stdin: Text for standard input; empty by default.
        timeout: Timeout in seconds.
        capture_output: Return the output.
    """

    commands: tuple[str, ...] = field(metadata=PROGRAM)
    cwd: str | None = None
    env: dict[str, str] | None = None
    stdin: str | None = None
    timeout: int = 30
    capture_output: bool = True


class PodmanSandboxSection(FilesystemSection):
    """A workspace whose commands run in a container.

    The files are in a directory of the host, which the container mounts: file tools work
    before it starts and after it has died. The first command starts it, `close` removes both.
    With a remote engine the files are in the container.

    Args:
        config: The engine, the image and the limits; by default from the environment.
        limits: The limits of the filesystem.
        shell_limits: The limits of commands.
        eval_limits: The limits of Python code that is evaluated in the container.
        sandbox: A sandbox to share, which this section does not close.
    """

    _overlay: Overlay | None = None

    def __init__(
        self,
        *,
        config: PodmanSandboxConfig | None = None,
        title: str = "Podman Sandbox",
        key: str | None = "podman",
        limits: Limits = DEFAULT_LIMITS,
        shell_limits: ShellLimits = DEFAULT_SHELL_LIMITS,
        eval_limits: EvalLimits = DEFAULT_EVAL_LIMITS,
        sandbox: PodmanSandbox | None = None,
        extra_handlers: Mapping[type[Any], Handler] | None = None,
        **options: Any,
    ) -> None:
        """Bring a workspace with a container; `options` are those of `FilesystemSection`."""
        owner = type(self).__name__
        check_argument(owner, "config", config, PodmanSandboxConfig, or_none=True)
        check_argument(owner, "limits", limits, Limits)
        check_argument(owner, "shell_limits", shell_limits, ShellLimits)
        check_argument(owner, "eval_limits", eval_limits, EvalLimits)
        check_argument(owner, "sandbox", sandbox, PodmanSandbox, or_none=True)
        self._shared = sandbox
        self._sandbox: PodmanSandbox | None = sandbox
        self._config = sandbox.config if sandbox else configure(config)
        self._limits, self._shell_limits = limits, shell_limits
        within = _SectionSandbox(self)
        handlers = {
            **shell_handlers(within, limits=shell_limits),
            PodmanShellParams: _run_params,
            **evaluation_handlers(PythonEngine(within), limits=eval_limits),
            **(extra_handlers or {}),
        }
        if sandbox is not None:
            options["filesystem"] = sandbox.filesystem
        super().__init__(title=title, key=key, extra_handlers=handlers, **options)
        if self._session is not None:
            self._session.install(
                PodmanWorkspace, initial=lambda: self.workspace, refresh=lambda _: self.workspace
            )

    @property
    def config(self) -> PodmanSandboxConfig:
        """The engine, the image and the limits."""
        return self._config

    @property
    def sandbox(self) -> PodmanSandbox:
        """The sandbox; its container starts with the first command."""
        if self._sandbox is None:
            _ = self.filesystem  # with a remote engine this makes the sandbox
        if self._sandbox is None:
            self._sandbox = PodmanSandbox(self._host, config=self._config)
        return self._sandbox

    @property
    def workspace(self) -> PodmanWorkspace:
        """The state of the container."""
        backend = self._backend
        path = backend.root if isinstance(backend, HostBacked) else ""
        sandbox = self._sandbox
        if sandbox is None:
            return PodmanWorkspace(self._config.image, path)
        return PodmanWorkspace(sandbox.image, path, sandbox.container_name)

    def run(self, params: PodmanShellParams) -> ExecResult:
        """Run a command in the container, outside of any tool call.

        Raises:
            SandboxUnavailableError: There is no container.
        """
        return _SectionSandbox(self).exec(
            params.commands,
            cwd=params.cwd or ".",
            env=params.env,
            stdin=params.stdin,
            timeout=params.timeout,
            max_output=self._shell_limits.max_output if params.capture_output else 0,
        )

    def clone(
        self,
        *,
        session: Session | None = None,
        bus: EventBus | None = None,
        isolation: IsolationLevel = IsolationLevel.FULL_ISOLATION,
    ) -> Self:
        """Return a section for another session, with its own container or with this one.

        Raises:
            ValueError: `bus` is not the bus of `session`.
        """
        if isolation is IsolationLevel.FULL_ISOLATION:
            return self._recreate(session, bus, config=self._config, sandbox=None)
        return self._recreate(session, bus, sandbox=self.sandbox, mounts=())

    def close(self) -> None:
        """Remove the container and the workspace, unless they are shared."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None and self._shared is None:
            sandbox.close()
        super().close()
        self.refresh_workspace()

    def refresh_workspace(self) -> None:
        """Update the `PodmanWorkspace` of the session."""
        session = self._session
        if session is not None and session[PodmanWorkspace].latest() is not None:
            session.refresh(PodmanWorkspace, lambda _: self.workspace)

    @property
    def _is_temporary(self) -> bool:
        return self._shared is None

    def _is_missing(self, backend: Filesystem) -> bool:
        return isinstance(backend, HostBacked) and not Path(backend.root).is_dir()

    def _create_backend(self) -> Filesystem:
        if self._shared is not None:
            self._sandbox = self._shared
            return self._shared.filesystem
        if self._config.is_remote:
            self._sandbox = PodmanSandbox(config=self._config)
            return self._sandbox.filesystem
        self._overlay = overlay = Overlay(self._config.cache_directory)
        self._host = HostFilesystem(
            overlay.workspace, limits=self._limits, git_dir=overlay.snapshots
        )
        return self._host

    def _discard(self, backend: Filesystem) -> None:
        super()._discard(backend)
        if self._overlay is not None:
            self._overlay.remove()

    def _render_guidance(self) -> str:
        hosts = self._shared.allowed_hosts if self._shared else ()
        network = f"Only these hosts can be reached: {', '.join(hosts)}." if hosts else _NO_NETWORK
        return f"{super()._render_guidance()}\n\n{_GUIDANCE} {network}"


def _run_params(params: PodmanShellParams, context: HandlerContext) -> ToolResult[Any]:
    """Carry out the parameters of the specification, which a program may pass to the tool."""
    given = (params.commands, params.cwd, params.env, params.stdin, params.timeout)
    return context.handle(ShellExecuteParams(*given, params.capture_output))


class _SectionSandbox:
    """The sandbox of a section, which the tools use before it is made."""

    def __init__(self, section: PodmanSandboxSection) -> None:
        self._section = section

    @property
    def filesystem(self) -> Filesystem:
        return self._section.filesystem

    def exec(self, argv: Sequence[str], **options: Any) -> ExecResult:
        try:
            return self._section.sandbox.exec(argv, **options)
        finally:
            self._section.refresh_workspace()

    def start(self, argv: Sequence[str], **options: Any) -> BackgroundProcess:
        try:
            return self._section.sandbox.start(argv, **options)
        finally:
            self._section.refresh_workspace()

    def processes(self) -> Sequence[BackgroundProcess]:
        return self._section.sandbox.processes()

    def close(self) -> None:
        """Do nothing: the section closes it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
