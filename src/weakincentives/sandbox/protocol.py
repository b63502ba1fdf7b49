"""The one seam for running commands: what every sandbox offers, whatever is behind it.

A command works on the files of one workspace and starts in a directory of it. That it
fails is a result. That the sandbox itself fails is an error, and no result: the two
are never mixed.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from weakincentives.errors import WinkError
from weakincentives.filesystem import Filesystem
from weakincentives.sandbox.results import ExecResult

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
