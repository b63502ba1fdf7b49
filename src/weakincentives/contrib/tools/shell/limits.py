"""Limits of the commands that a model can run, and the checks of a request against them."""

import shlex
from dataclasses import dataclass

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.errors import ToolValidationError
from weakincentives.sandbox import Sandbox

MAX_SHELL_SECONDS = 120
"""Seconds that a command may take, unless the limits say otherwise, and that a call may wait."""
_RUN_IN_BASH = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; fi; exec sh -c "$1"'


@dataclass(frozen=True, slots=True)
class ShellLimits:
    """Limits of the commands that a model can run.

    Args:
        max_command_length: Characters in the arguments of a program, together.
        ascii_commands: Whether the arguments must be ASCII.
        max_script_length: Characters in a command line for a shell.
        max_output: Bytes returned of each stream.
        max_seconds: Longest time that one command may take.
        default_seconds: Time for a program whose call names none; at most `max_seconds`.
    """

    max_command_length: int = 4_096
    ascii_commands: bool = True
    max_script_length: int = 32_768
    max_output: int = 32 * 1024
    max_seconds: float = MAX_SHELL_SECONDS
    default_seconds: float = 30

    def check_program(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """Return a program with its arguments, if it is within the limits."""
        length = sum(map(len, command))
        if length > self.max_command_length:
            raise ToolValidationError(
                f"Command has {length} characters; the limit is {self.max_command_length}."
                " Write a script to a file and run the file"
            )
        if self.ascii_commands and not all(map(str.isascii, command)):
            raise ToolValidationError(
                f"Command must be ASCII: {list(command)!r}; write other text to a file,"
                " or pass it as stdin"
            )
        return command

    def check_seconds(self, seconds: float | None) -> float:
        """Return the time limit of a program, if it is within the limits."""
        if seconds is None:
            return min(self.default_seconds, self.max_seconds)
        # a short limit of the user's must not make every value invalid
        if not min(1, self.max_seconds) <= seconds <= self.max_seconds:
            raise ToolValidationError(
                f"timeout_seconds must be from 1 to {self.max_seconds:g}: {seconds!r}"
            )
        return seconds

    def check_script(self, script: str) -> tuple[str, ...]:
        """Return the program that runs a command line in bash, or in sh if there is no bash."""
        if len(script) > self.max_script_length:
            raise ToolValidationError(
                f"Command has {len(script)} characters; the limit is {self.max_script_length}."
                " Write it to a file and run the file"
            )
        return ("sh", "-c", _RUN_IN_BASH, "sh", script)


DEFAULT_SHELL_LIMITS = ShellLimits()


def display_command(argv: tuple[str, ...]) -> str:
    """Return a command as the model wrote it."""
    return argv[-1] if argv[2:3] == (_RUN_IN_BASH,) else shlex.join(argv)


def check_workspace(sandbox: Sandbox, context: HandlerContext) -> None:
    """Check that a sandbox has the workspace of a call: other changes could not be undone.

    Raises:
        ToolValidationError: It has another one.
    """
    filesystem = sandbox.filesystem
    if filesystem is not context.filesystem and filesystem.root != context.filesystem.root:
        raise ToolValidationError(
            f"The sandbox runs in {filesystem.root!r}, the tools work in"
            f" {context.filesystem.root!r}; give both the same filesystem"
        )


def limit_seconds(seconds: float, context: HandlerContext) -> float:
    """Return how long a call may take: `seconds`, or less if the deadline of the run is near.

    Raises:
        DeadlineExceededError: The deadline has passed.
    """
    deadline = context.tool_context.deadline
    if deadline is None:
        return seconds
    deadline.check("Command")
    return min(seconds, deadline.remaining().total_seconds())
