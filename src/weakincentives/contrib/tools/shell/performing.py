"""How a sandbox carries out what a model asks for.

That a command fails is no failure of the call: what it has written to files stays, as it
does where somebody runs tests that fail. The call fails, and is undone, if the request
is wrong or the sandbox itself has failed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from weakincentives.contrib.tools.shell.requests import BashParams, ShellExecuteParams
from weakincentives.contrib.tools.shell.wording import message
from weakincentives.contrib.tools.workbench import Performer, Workbench
from weakincentives.errors import ToolValidationError
from weakincentives.prompt import ToolResult
from weakincentives.sandbox import ExecResult, Sandbox

MAX_SHELL_SECONDS = 120
"""How long a command of a model may run."""

_FIND_SHELL = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; fi; exec sh -c "$1"'


@dataclass(frozen=True, slots=True)
class ShellLimits:
    """What may be run by a model.

    Args:
        max_command_length: Characters in the arguments of a program, together.
        ascii_commands: Whether they must be ASCII.
        max_script_length: Characters in a line for a shell.
        max_output: How many bytes of each stream are returned.
    """

    max_command_length: int = 4_096
    ascii_commands: bool = True
    max_script_length: int = 32_768
    max_output: int = 32 * 1024


DEFAULT_SHELL_LIMITS = ShellLimits()


def shell_performers(
    sandbox: Sandbox, *, limits: ShellLimits = DEFAULT_SHELL_LIMITS
) -> Mapping[type[Any], Performer]:
    """Return who carries out requests to run something.

    Give it as `more=` to a section or to `filesystem_tools`, and the tools of the dialect
    that run commands are there.

    Args:
        sandbox: Where commands run; it must work on the filesystem of the tools.
        limits: What is allowed.
    """
    shell = Shell(sandbox, limits)
    return {ShellExecuteParams: shell.execute, BashParams: shell.run_line}


@dataclass(frozen=True, slots=True)
class Shell:
    """A sandbox, and what may be run there."""

    sandbox: Sandbox
    limits: ShellLimits

    def execute(self, request: ShellExecuteParams, bench: Workbench) -> ToolResult[ExecResult]:
        """Run a program."""
        self._check_command(request.command)
        if not 1 <= request.timeout_seconds <= MAX_SHELL_SECONDS:
            raise ToolValidationError(
                f"timeout_seconds must be from 1 to {MAX_SHELL_SECONDS}:"
                f" {request.timeout_seconds!r}"
            )
        result = self._run(
            bench,
            request.command,
            cwd=request.cwd,
            env=request.env,
            stdin=request.stdin,
            seconds=request.timeout_seconds,
            max_output=self.limits.max_output if request.capture_output else 0,
        )
        told = message(result, bench.settings.budget, captured=request.capture_output)
        longer = replace(request, timeout_seconds=MAX_SHELL_SECONDS)
        advice = _advice(result, bench, None if longer == request else longer, "timeout_seconds")
        return _answer(told + advice + _line_hint(result), result)

    def run_line(self, request: BashParams, bench: Workbench) -> ToolResult[ExecResult]:
        """Run a line in a shell."""
        limits = self.limits
        if len(request.command) > limits.max_script_length:
            raise ToolValidationError(
                f"Command has more than {limits.max_script_length} characters:"
                f" {len(request.command)}; write it to a file and run that"
            )
        most = MAX_SHELL_SECONDS * 1000
        allowed = most if request.timeout is None else min(request.timeout, most)
        if allowed < 1:
            raise ToolValidationError(f"timeout must be positive: {request.timeout!r}")
        wanted = limits.max_output if request.max_output is None else request.max_output
        result = self._run(
            bench,
            ("sh", "-c", _FIND_SHELL, "sh", request.command),
            cwd=request.cwd,
            seconds=allowed / 1000,
            max_output=max(0, min(wanted, limits.max_output)),
        )
        longer = None if allowed == most else replace(request, timeout=most)
        told = message(result, bench.settings.budget)
        return _answer(told + _advice(result, bench, longer, "timeout"), result)

    def _run(
        self,
        bench: Workbench,
        argv: tuple[str, ...],
        *,
        cwd: str | None,
        seconds: float,
        max_output: int,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> ExecResult:
        self._check_same(bench)
        deadline = bench.context.deadline
        if deadline is not None:
            deadline.check("Command")
            seconds = min(seconds, deadline.remaining().total_seconds())
        return self.sandbox.exec(
            argv,
            cwd=bench.path(cwd or "."),
            env=env,
            stdin=stdin,
            timeout=max(seconds, 0.001),
            max_output=max_output,
        )

    def _check_same(self, bench: Workbench) -> None:
        """Refuse to run where what is changed could not be undone."""
        mine = self.sandbox.filesystem
        if mine is not bench.filesystem and mine.root != bench.filesystem.root:
            raise ToolValidationError(
                f"The sandbox works on other files than the other tools: {mine.root!r}"
            )

    def _check_command(self, command: tuple[str, ...]) -> None:
        length = sum(map(len, command))
        if length > self.limits.max_command_length:
            raise ToolValidationError(
                f"Command has more than {self.limits.max_command_length} characters: {length};"
                " write a script to a file and run that"
            )
        if self.limits.ascii_commands and not all(map(str.isascii, command)):
            raise ToolValidationError(
                f"Command must be ASCII: {list(command)!r}; write other text to a file,"
                " or give it as stdin"
            )


def _answer(told: str, result: ExecResult) -> ToolResult[ExecResult]:
    return ToolResult(told, result, exclude_value_from_context=True)


def _advice(result: ExecResult, bench: Workbench, longer: object, field: str) -> str:
    """Return what to do about a command that ran out of time; `longer` is None at the limit."""
    if not result.timed_out:
        return ""
    said = None if longer is None else bench.speech.call(longer, field)
    if said is None or "=" not in said:
        return "\nRun it in parts that take less time."
    return f"\nUse {said}, or run it in parts."


def _line_hint(result: ExecResult) -> str:
    if result.exit_code != 127 or " " not in result.argv[0]:
        return ""
    return (
        "\nEach argument is an item of its own, and no shell reads them; for a line, run"
        f" {['sh', '-c', result.argv[0]]}"
    )
