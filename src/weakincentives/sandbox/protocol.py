"""The `Sandbox` protocol and its result, `ExecResult`."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Protocol, Self, TypeAlias, runtime_checkable

from weakincentives.errors import WinkError
from weakincentives.filesystem import Filesystem
from weakincentives.sandbox.output import Output

WORKSPACE = "/workspace"
"""Where commands find the workspace, if the sandbox shows them a file system of their own."""
TIMED_OUT = 124
"""The exit code of a command that timed out, as in `timeout(1)`."""
NOT_EXECUTABLE = 126
"""The exit code if the program exists but cannot be executed."""
NOT_FOUND = 127
"""The exit code if the program does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConnection:
    """A connection that a command made, or tried to make, through the proxy of its sandbox.

    Args:
        host: The host that it asked for; empty if it sent no valid request.
        port: The port.
        address: The IP address that the proxy chose; empty if the connection was refused.
        allowed: Whether the allow-list permits it.
        reason: Why it was refused or has failed, in a sentence; empty if it worked.
        bytes_sent: Bytes from the command to the host.
        bytes_received: Bytes from the host to the command.
        duration_ms: How long it took.
    """

    host: str
    port: int
    address: str = ""
    allowed: bool = True
    reason: str = ""
    bytes_sent: int = 0
    bytes_received: int = 0
    duration_ms: float = 0.0


ConnectionListener: TypeAlias = Callable[[NetworkConnection], object]
"""Called with each connection of a command when it has ended, in a thread of the proxy."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The result of a finished command, whether it succeeded or failed.

    Args:
        argv: The command.
        exit_code: 0 means success, 124 a timeout, 126 not executable, 127 no such
            program, 128 + n that signal n killed it.
        out: Standard output.
        err: Standard error.
        duration_ms: How long the command ran.
        timed_out: Whether it was stopped because it timed out.
        signal: The name of the signal that killed it, if any.
        stopped_processes: How many processes it left running; they were stopped.
        connections: The connections it made or tried to make, in a sandbox with an allow-list.
    """

    argv: tuple[str, ...]
    exit_code: int
    out: Output = field(default_factory=Output)
    err: Output = field(default_factory=Output)
    duration_ms: float = 0.0
    timed_out: bool = False
    signal: str | None = None
    stopped_processes: int = 0
    connections: tuple[NetworkConnection, ...] = ()

    @property
    def success(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == 0

    @property
    def stdout(self) -> str:
        """Standard output as text."""
        return self.out.text

    @property
    def stderr(self) -> str:
        """Standard error as text."""
        return self.err.text

    @property
    def stdout_truncated(self) -> bool:
        """Whether bytes of standard output were dropped."""
        return self.out.truncated

    @property
    def stderr_truncated(self) -> bool:
        """Whether bytes of standard error were dropped."""
        return self.err.truncated

    @property
    def stdout_dropped(self) -> int:
        """How many bytes of standard output were dropped."""
        return self.out.dropped

    @property
    def stderr_dropped(self) -> int:
        """How many bytes of standard error were dropped."""
        return self.err.dropped

    def render(self) -> str:
        """Return the command, its exit code and its output as text."""
        status = "timed out" if self.timed_out else f"exit code {self.exit_code}"
        parts = [f"{shlex.join(self.argv)}: {status}", self.stdout]
        if self.stderr:
            parts.append(f"[standard error]\n{self.stderr}")
        return "\n".join(part for part in parts if part)


DEFAULT_TIMEOUT = 30.0
"""The default timeout of a command, in seconds."""
DEFAULT_MAX_OUTPUT = 1024 * 1024
"""The default limit for the captured output of each stream, in bytes."""


OutputListener: TypeAlias = Callable[[Literal["stdout", "stderr"], bytes], object]
"""Called with the name of a stream and a chunk of it, as a command prints."""


class SandboxUnavailableError(WinkError, RuntimeError):
    """The sandbox itself failed, so there is no result; the operator has to act."""


@runtime_checkable
class Sandbox(Protocol):
    """Runs commands on the files of a workspace."""

    @property
    def filesystem(self) -> Filesystem:
        """The workspace in which commands run."""
        ...

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
        """Run a command and wait for it to finish.

        Args:
            argv: The program and its arguments, passed verbatim. There is no shell unless
                you run one: `("sh", "-c", "...")`.
            cwd: The directory of the workspace to start in.
            env: Variables in addition to those that the sandbox sets.
            stdin: Standard input; empty by default.
            timeout: Seconds after which the command and everything it started is stopped.
            max_output: How many bytes of each stream to keep; of longer output, the head
                and the tail are kept.
            on_output: Called with all output as it is read, whatever the result keeps of it.

        Raises:
            ValueError: An argument is invalid, for example contains NUL.
            OSError: `cwd` is not a directory of the workspace.
            SandboxUnavailableError: The sandbox could not run the command to its end.
        """
        ...

    def close(self) -> None:
        """Stop all running commands and release resources; idempotent."""
        ...

    def __enter__(self) -> Self:
        """Return the sandbox."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """Close it."""
        ...
