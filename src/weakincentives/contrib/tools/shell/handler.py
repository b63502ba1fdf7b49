"""What a model is told about a command that has run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from weakincentives.contrib.tools.context import (
    DEFAULT_SETTINGS,
    Handler,
    HandlerContext,
    ToolSettings,
    handler_context,
)
from weakincentives.contrib.tools.dialects.shell import SHELL_TOOL_SPECS
from weakincentives.contrib.tools.requests import BashParams, ShellExecuteParams
from weakincentives.contrib.tools.spec import Dialect, ToolSpec
from weakincentives.errors import ToolValidationError
from weakincentives.prompt import PromptError, Tool, ToolContext, ToolResult
from weakincentives.sandbox import ExecResult, Output, Sandbox

_SHOWN_BINARY = 256  # bytes of what is no text
_UNSHOWABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def message(result: ExecResult, budget: int, *, captured: bool = True) -> str:
    """Return the exit code, both streams with their names, and what should be known.

    Args:
        result: How it ended.
        budget: How many characters the streams may take.
        captured: Whether its output was asked for.
    """
    parts = [_ending(result)]
    if not captured:
        parts.append("Its output was not asked for.")
    else:
        parts += _streams(*_fitting(result, budget))
    if result.stopped_processes:
        parts.append(_stopped(result.stopped_processes))
    return "\n".join(each.rstrip("\n") for each in parts)


def _streams(out: Output, err: Output) -> list[str]:
    named = (("stdout", out), ("stderr", err))
    shown = [f"{name}:\n{_text(each)}" for name, each in named if each.data or each.dropped]
    return [*shown, *_left_out(out, err)] if shown else ["No output."]


def _ending(result: ExecResult) -> str:
    seconds = f"{result.duration_ms / 1000:.1f} s"
    if result.timed_out:
        return (
            f"exit code {result.exit_code}: it ran out of time after {seconds} and was stopped,"
            " with everything that it had started. What it has written to files stays."
        )
    if result.signal:
        return f"exit code {result.exit_code}: {result.signal} ended it after {seconds}"
    return f"exit code {result.exit_code} after {seconds}"


def _fitting(result: ExecResult, budget: int) -> tuple[Output, Output]:
    """Return both streams, the longer one shortened first, so that both are within budget."""
    out, err = result.out, result.err
    half = budget // 2
    for_err = min(len(err.data), max(half, budget - len(out.data)))
    return out.shorten(budget - for_err), err.shorten(for_err)


def _text(output: Output) -> str:
    if b"\0" not in output.data:
        return _visible(output.text)
    size = len(output.data) + output.dropped
    shown = output.data[:_SHOWN_BINARY]
    rest = f"\n[... binary, {size:,} bytes in all ...]" if size > len(shown) else ""
    return _visible(Output(shown).text) + rest


def _visible(text: str) -> str:
    return _UNSHOWABLE.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _left_out(out: Output, err: Output) -> list[str]:
    names = [name for name, each in (("stdout", out), ("stderr", err)) if each.truncated]
    if not names:
        return []
    return [
        f"[{' and '.join(names)}: only the beginning and the end are shown; to see the rest,"
        " write the output to a file and read parts of it]"
    ]


def _stopped(count: int) -> str:
    stopped = "1 process that it left running was" if count == 1 else f"{count} processes were"
    return f"[{stopped} stopped: nothing that a command starts runs on after the call]"


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


def shell_handlers(
    sandbox: Sandbox, *, limits: ShellLimits = DEFAULT_SHELL_LIMITS
) -> Mapping[type[Any], Handler]:
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

    def execute(
        self, request: ShellExecuteParams, context: HandlerContext
    ) -> ToolResult[ExecResult]:
        """Run a program."""
        self._check_command(request.command)
        if not 1 <= request.timeout_seconds <= MAX_SHELL_SECONDS:
            raise ToolValidationError(
                f"timeout_seconds must be from 1 to {MAX_SHELL_SECONDS}:"
                f" {request.timeout_seconds!r}"
            )
        result = self._run(
            context,
            request.command,
            cwd=request.cwd,
            env=request.env,
            stdin=request.stdin,
            seconds=request.timeout_seconds,
            max_output=self.limits.max_output if request.capture_output else 0,
        )
        told = message(result, context.settings.budget, captured=request.capture_output)
        longer = replace(request, timeout_seconds=MAX_SHELL_SECONDS)
        advice = _advice(result, context, None if longer == request else longer, "timeout_seconds")
        return _answer(told + advice + _line_hint(result), result)

    def run_line(self, request: BashParams, context: HandlerContext) -> ToolResult[ExecResult]:
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
            context,
            ("sh", "-c", _FIND_SHELL, "sh", request.command),
            cwd=request.cwd,
            seconds=allowed / 1000,
            max_output=max(0, min(wanted, limits.max_output)),
        )
        longer = None if allowed == most else replace(request, timeout=most)
        told = message(result, context.settings.budget)
        return _answer(told + _advice(result, context, longer, "timeout"), result)

    def _run(
        self,
        context: HandlerContext,
        argv: tuple[str, ...],
        *,
        cwd: str | None,
        seconds: float,
        max_output: int,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> ExecResult:
        self._check_same(context)
        deadline = context.tool_context.deadline
        if deadline is not None:
            deadline.check("Command")
            seconds = min(seconds, deadline.remaining().total_seconds())
        return self.sandbox.exec(
            argv,
            cwd=context.path(cwd or "."),
            env=env,
            stdin=stdin,
            timeout=max(seconds, 0.001),
            max_output=max_output,
        )

    def _check_same(self, context: HandlerContext) -> None:
        """Refuse to run where what is changed could not be undone."""
        mine = self.sandbox.filesystem
        if mine is not context.filesystem and mine.root != context.filesystem.root:
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


def _advice(result: ExecResult, context: HandlerContext, longer: object, field: str) -> str:
    """Return what to do about a command that ran out of time; `longer` is None at the limit."""
    if not result.timed_out:
        return ""
    said = None if longer is None else context.dialect.call(longer, field)
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


def shell_tools(
    sandbox: Sandbox,
    dialect: str = "wink",
    *,
    settings: ToolSettings = DEFAULT_SETTINGS,
    limits: ShellLimits = DEFAULT_SHELL_LIMITS,
) -> tuple[Tool[Any, Any], ...]:
    """Return the tools that run commands, as a dialect names them, and no others.

    Args:
        sandbox: Where commands run; it must work on the filesystem of the calls.
        dialect: Whose names and parameters the tools have.
        settings: How much is shown.
        limits: What is allowed.

    Raises:
        PromptError: There is no such dialect.
    """
    if dialect not in SHELL_TOOL_SPECS:
        raise PromptError(f"Dialect must be one of {', '.join(SHELL_TOOL_SPECS)}: {dialect!r}")
    tools = Dialect(SHELL_TOOL_SPECS[dialect])
    handlers = shell_handlers(sandbox, limits=limits)
    return tuple(_tool(_Handler(each, settings, tools, handlers)) for each in tools.specs)


@dataclass(frozen=True, slots=True)
class _Handler:
    """Runs one tool: understands the call, and carries it out."""

    spec: ToolSpec[Any]
    settings: ToolSettings
    dialect: Dialect
    handlers: Mapping[type[Any], Handler] = field(repr=False)

    def __call__(self, params: Any, *, context: ToolContext) -> ToolResult[Any]:
        ours = handler_context(context, self.settings, self.dialect, self.handlers)
        return ours.handle(self.spec.decode(params, ours))


def _tool(handler: _Handler) -> Tool[Any, Any]:
    spec = handler.spec
    return Tool[Any, Any](
        spec.name,
        handler.dialect.fill(spec.description),
        handler,
        params_type=spec.params,
        bypasses_filesystem=spec.bypasses_filesystem,
        aliases=spec.aliases,
    )
