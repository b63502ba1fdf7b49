"""What became of a command: how it ended, and what was kept of what it printed."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from weakincentives.errors import WinkError
from weakincentives.filesystem import Filesystem

TIMED_OUT = 124
"""The exit code of a command that ran out of time, as `timeout(1)` has it."""
NOT_EXECUTABLE = 126
"""The exit code where the program is there and cannot be run."""
NOT_FOUND = 127
"""The exit code where there is no such program."""


@dataclass(frozen=True, slots=True)
class Output:
    """What was kept of a stream: all of it, or its beginning and its end.

    Args:
        head: The bytes from the beginning.
        tail: The bytes from the end; empty if nothing was left out.
        dropped: How many bytes between them were left out.
    """

    head: bytes = b""
    tail: bytes = b""
    dropped: int = 0

    @property
    def truncated(self) -> bool:
        """Whether bytes were left out."""
        return self.dropped > 0

    @property
    def data(self) -> bytes:
        """The bytes that were kept."""
        return self.head + self.tail

    @property
    def text(self) -> str:
        r"""What was kept as text, with a line that says how much was left out.

        Bytes that are not UTF-8 are shown as `\xff`.
        """
        head = self.head.decode(errors="backslashreplace")
        if not self.dropped:
            return head + self.tail.decode(errors="backslashreplace")
        start = "" if not head or head.endswith("\n") else "\n"
        note = f"{start}[... {self.dropped:,} bytes left out ...]\n"
        return head + note + self.tail.decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class ExecResult:
    """A command that is over; that it failed is a result like any other.

    Args:
        argv: The command.
        exit_code: How it ended: 0 is success; 124 it ran out of time; 126 it cannot be
            run; 127 there is no such program; 128 and a number, a signal ended it.
        out: What it printed.
        err: What it printed to standard error.
        duration_ms: How long it ran.
        timed_out: Whether it was stopped because its time was up.
        signal: The name of the signal that ended it, if one did.
        stopped_processes: How many processes it left running, which were then stopped.
    """

    argv: tuple[str, ...]
    exit_code: int
    out: Output = Output()
    err: Output = Output()
    duration_ms: float = 0.0
    timed_out: bool = False
    signal: str | None = None
    stopped_processes: int = 0

    @property
    def success(self) -> bool:
        """Whether it ended with 0, in time."""
        return self.exit_code == 0

    @property
    def stdout(self) -> str:
        """What it printed, as text."""
        return self.out.text

    @property
    def stderr(self) -> str:
        """What it printed to standard error, as text."""
        return self.err.text

    @property
    def stdout_truncated(self) -> bool:
        """Whether some of what it printed was left out."""
        return self.out.truncated

    @property
    def stderr_truncated(self) -> bool:
        """Whether some of what it printed to standard error was left out."""
        return self.err.truncated

    @property
    def stdout_dropped(self) -> int:
        """How many bytes of what it printed were left out."""
        return self.out.dropped

    @property
    def stderr_dropped(self) -> int:
        """How many bytes of what it printed to standard error were left out."""
        return self.err.dropped

    def render(self) -> str:
        """Return how it ended, and what it printed."""
        ended = "timed out" if self.timed_out else f"exit code {self.exit_code}"
        parts = [f"{shlex.join(self.argv)}: {ended}", self.stdout]
        if self.stderr:
            parts.append(f"[standard error]\n{self.stderr}")
        return "\n".join(part for part in parts if part)


DEFAULT_TIMEOUT = 30.0
"""How many seconds a command has if nothing is said."""
DEFAULT_MAX_OUTPUT = 1024 * 1024
"""How many bytes of each stream are kept if nothing is said."""


class SandboxUnavailableError(WinkError, RuntimeError):
    """The sandbox itself has failed, so there is no result; the operator has to act."""


@runtime_checkable
class Sandbox(Protocol):
    """A place where commands run on the files of a workspace."""

    @property
    def filesystem(self) -> Filesystem:
        """The workspace that commands work on."""
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
    ) -> ExecResult:
        """Run a command to its end.

        Args:
            argv: The program and its arguments, passed on as they are. There is no shell,
                unless the program is one: `("sh", "-c", "...")`.
            cwd: The directory of the workspace that it starts in.
            env: Variables to set beside those that the sandbox sets.
            stdin: What it can read; nothing if left out.
            timeout: After how many seconds it is stopped, with everything it has started.
            max_output: How many bytes of each stream are kept; of more, the beginning and
                the end.

        Raises:
            ValueError: An argument cannot be passed on.
            OSError: `cwd` is no directory of the workspace.
            SandboxUnavailableError: The sandbox could not run it, or not see it through.
        """
        ...

    def close(self) -> None:
        """Stop what is running and give back what the sandbox holds; twice is harmless."""
        ...

    def __enter__(self) -> Self:
        """Return the sandbox."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        ...
