"""Shell tools: handlers that run commands in a sandbox, and their output for the model."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from weakincentives.contrib.tools.context import (
    DEFAULT_SETTINGS,
    Handler,
    HandlerContext,
    ToolSettings,
)
from weakincentives.contrib.tools.dialects.shell import SHELL_TOOL_SPECS
from weakincentives.contrib.tools.handlers.render import hint
from weakincentives.contrib.tools.kept_output import KeptFile, OutputSpool
from weakincentives.contrib.tools.requests import BashParams, ReadFileParams, ShellExecuteParams
from weakincentives.contrib.tools.spec import Dialect
from weakincentives.contrib.tools.suite import SpecHandler
from weakincentives.errors import ToolValidationError
from weakincentives.prompt import PromptError, Tool, ToolResult
from weakincentives.sandbox import ExecResult, Output, Sandbox

__all__ = [
    "DEFAULT_SHELL_LIMITS",
    "MAX_SHELL_SECONDS",
    "SHELL_TOOL_SPECS",
    "BashParams",
    "ShellExecuteParams",
    "ShellLimits",
    "shell_handlers",
    "shell_tools",
]

MAX_SHELL_SECONDS = 120
"""Longest timeout that a model can ask for."""
_MAX_NETWORK_NOTES = 5
_MAX_BINARY = 256  # bytes shown of binary output
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_RUN_IN_BASH = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; fi; exec sh -c "$1"'


@dataclass(frozen=True, slots=True)
class ShellLimits:
    """Limits of the commands that a model can run.

    Args:
        max_command_length: Characters in the arguments of a program, together.
        ascii_commands: Whether the arguments must be ASCII.
        max_script_length: Characters in a command line for a shell.
        max_output: Bytes returned of each stream.
    """

    max_command_length: int = 4_096
    ascii_commands: bool = True
    max_script_length: int = 32_768
    max_output: int = 32 * 1024


DEFAULT_SHELL_LIMITS = ShellLimits()


def shell_handlers(
    sandbox: Sandbox, *, limits: ShellLimits = DEFAULT_SHELL_LIMITS
) -> Mapping[type[Any], Handler]:
    """Return the handlers for requests that run commands.

    Pass them as `extra_handlers=` to a section or to `filesystem_tools` to add the shell
    tools of the dialect.

    Args:
        sandbox: Where commands run; it must work on the filesystem of the tools.
        limits: Limits of the commands.
    """
    runner = _CommandRunner(sandbox, limits)
    return {ShellExecuteParams: runner.run_program, BashParams: runner.run_script}


def shell_tools(
    sandbox: Sandbox,
    dialect: str = "wink",
    *,
    settings: ToolSettings = DEFAULT_SETTINGS,
    limits: ShellLimits = DEFAULT_SHELL_LIMITS,
) -> tuple[Tool[Any, Any], ...]:
    """Return only the shell tools of a dialect.

    Args:
        sandbox: Where commands run; it must work on the filesystem of the calls.
        dialect: The dialect.
        settings: How much output is shown.
        limits: Limits of the commands.

    Raises:
        PromptError: The dialect is unknown.
    """
    if dialect not in SHELL_TOOL_SPECS:
        raise PromptError(f"Dialect must be one of {', '.join(SHELL_TOOL_SPECS)}: {dialect!r}")
    offered = Dialect(SHELL_TOOL_SPECS[dialect])
    handlers = shell_handlers(sandbox, limits=limits)
    return tuple(
        SpecHandler(each, settings, offered, handlers).build_tool() for each in offered.specs
    )


@dataclass(frozen=True, slots=True)
class _CommandRunner:
    """Runs commands in a sandbox, within limits."""

    sandbox: Sandbox
    limits: ShellLimits

    def run_program(
        self, request: ShellExecuteParams, context: HandlerContext
    ) -> ToolResult[ExecResult]:
        """Run a program without a shell."""
        self._check_command(request.command)
        if not 1 <= request.timeout_seconds <= MAX_SHELL_SECONDS:
            raise ToolValidationError(
                f"timeout_seconds must be from 1 to {MAX_SHELL_SECONDS}:"
                f" {request.timeout_seconds!r}"
            )
        result, text = self._run(
            context,
            request.command,
            cwd=request.cwd,
            env=request.env,
            stdin=request.stdin,
            seconds=request.timeout_seconds,
            max_output=self.limits.max_output if request.capture_output else None,
        )
        longer = replace(request, timeout_seconds=MAX_SHELL_SECONDS)
        hint = _timeout_hint(
            result, context, None if longer == request else longer, "timeout_seconds"
        )
        return _result(text + hint + _shell_hint(result), result)

    def run_script(self, request: BashParams, context: HandlerContext) -> ToolResult[ExecResult]:
        """Run a command line in bash, or in sh if there is no bash."""
        limits = self.limits
        if len(request.command) > limits.max_script_length:
            raise ToolValidationError(
                f"Command has {len(request.command)} characters, {limits.max_script_length} are"
                " allowed; write it to a file and run the file"
            )
        longest = MAX_SHELL_SECONDS * 1000
        timeout = longest if request.timeout is None else min(request.timeout, longest)
        if timeout < 1:
            raise ToolValidationError(f"timeout must be positive: {request.timeout!r}")
        max_output = limits.max_output if request.max_output is None else request.max_output
        result, text = self._run(
            context,
            ("sh", "-c", _RUN_IN_BASH, "sh", request.command),
            cwd=request.cwd,
            seconds=timeout / 1000,
            max_output=max(0, min(max_output, limits.max_output)),
        )
        longer = None if timeout == longest else replace(request, timeout=longest)
        return _result(text + _timeout_hint(result, context, longer, "timeout"), result)

    def _run(
        self,
        context: HandlerContext,
        argv: tuple[str, ...],
        *,
        cwd: str | None,
        seconds: float,
        max_output: int | None,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> tuple[ExecResult, str]:
        """Run a command; return the result and its text. No `max_output`: without output."""
        self._check_workspace(context)
        deadline = context.tool_context.deadline
        if deadline is not None:
            deadline.check("Command")
            seconds = min(seconds, deadline.remaining().total_seconds())
        with OutputSpool() as spool:
            result = self.sandbox.exec(
                argv,
                cwd=context.resolve_path(cwd or "."),
                env=env,
                stdin=stdin,
                timeout=max(seconds, 0.001),
                max_output=max_output or 0,
                on_output=None if max_output is None else spool.feed,
            )
            if max_output is None:
                return result, render_command(result, ["Output was not captured."])
            streams = fit_streams(result.out, result.err, context.settings.budget)
            cut = [name for name, each in streams.items() if each.truncated]
            kept = spool.store(context.filesystem, *cut)
        return result, render_command(result, render_streams(streams, kept, context))

    def _check_workspace(self, context: HandlerContext) -> None:
        """Raise if the sandbox has another workspace: its changes could not be undone."""
        filesystem = self.sandbox.filesystem
        if filesystem is not context.filesystem and filesystem.root != context.filesystem.root:
            raise ToolValidationError(
                f"The sandbox runs in {filesystem.root!r}, the tools work in"
                f" {context.filesystem.root!r}; give both the same filesystem"
            )

    def _check_command(self, command: tuple[str, ...]) -> None:
        length = sum(map(len, command))
        if length > self.limits.max_command_length:
            raise ToolValidationError(
                f"Command has {length} characters, {self.limits.max_command_length} are allowed;"
                " write a script to a file and run the file"
            )
        if self.limits.ascii_commands and not all(map(str.isascii, command)):
            raise ToolValidationError(
                f"Command must be ASCII: {list(command)!r}; write other text to a file,"
                " or pass it as stdin"
            )


Streams: TypeAlias = Mapping[str, Output]
"""What is shown of each stream."""


def render_command(result: ExecResult, output: Sequence[str]) -> str:
    """Return the exit code, the rendered output, and notes on the network and what was stopped."""
    parts = [_render_exit(result), *output, *_network_notes(result)]
    if result.stopped_processes:
        parts.append(_stopped_note(result.stopped_processes))
    return "\n".join(each.rstrip("\n") for each in parts)


def _network_notes(result: ExecResult) -> list[str]:
    """Return why connections were refused or have failed, which many programs do not print."""
    reasons = [each.reason for each in result.connections if each.reason.startswith("wink: ")]
    notes = [f"[network: {each[6:]}]" for each in dict.fromkeys(reasons)]
    more = len(notes) - _MAX_NETWORK_NOTES
    return [*notes[:_MAX_NETWORK_NOTES], *([f"[network: {more} more]"] if more > 0 else [])]


def render_streams(
    streams: Streams, kept: Mapping[str, KeptFile], context: HandlerContext
) -> list[str]:
    """Return both streams, and where the rest of those that were cut is."""
    texts = [
        f"{name}:\n{_render_output(each)}"
        for name, each in streams.items()
        if each.data or each.dropped
    ]
    notes = [
        _truncation_note(name, each, kept.get(name), context)
        for name, each in streams.items()
        if each.truncated
    ]
    return [*texts, *notes] if texts else ["No output."]


def _render_exit(result: ExecResult) -> str:
    seconds = f"{result.duration_ms / 1000:.1f} s"
    if result.timed_out:
        return (
            f"exit code {result.exit_code}: timed out after {seconds}; the command and all"
            " processes it started were stopped. Files it wrote are kept."
        )
    if result.signal:
        return f"exit code {result.exit_code}: ended by {result.signal} after {seconds}"
    return f"exit code {result.exit_code} after {seconds}"


def fit_streams(out: Output, err: Output, budget: int) -> Streams:
    """Return both streams within a number of characters; the longer one is shortened first."""
    half = budget // 2
    for_err = min(len(err.data), max(half, budget - len(out.data)))
    return {"stdout": out.shorten(budget - for_err), "stderr": err.shorten(for_err)}


def _render_output(output: Output) -> str:
    if b"\0" not in output.data:
        return _escape_controls(output.text)
    size = len(output.data) + output.dropped
    head = output.data[:_MAX_BINARY]
    rest = f"\n[... binary, {size:,} bytes in all ...]" if size > len(head) else ""
    return _escape_controls(Output(head).text) + rest


def _escape_controls(text: str) -> str:
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def _truncation_note(
    name: str, shown: Output, kept: KeptFile | None, context: HandlerContext
) -> str:
    text = f"[truncated: only the beginning and end of {name} are shown; "
    if kept is None or not kept.path:
        reason = f" (it could not be kept: {kept.problem})" if kept is not None else ""
        return f"{text}to see all of it{reason}, redirect it to a file and read that in parts]"
    amount = "all" if kept.kept == kept.size else f"the first {kept.kept:,} of"
    text += f"{amount} {kept.size:,} bytes are in {kept.path!r}"
    gap = ReadFileParams(kept.path, offset=shown.head.count(b"\n"))
    return text + hint("; to read on:", context.dialect.format_call(gap)) + "]"


def _stopped_note(count: int) -> str:
    stopped = "1 background process was" if count == 1 else f"{count} background processes were"
    return f"[{stopped} stopped: processes do not outlive the call that started them]"


def _result(text: str, result: ExecResult) -> ToolResult[ExecResult]:
    return ToolResult(text, result, exclude_value_from_context=True)


def _timeout_hint(result: ExecResult, context: HandlerContext, longer: object, field: str) -> str:
    """Return what to do about a timeout; `longer` is None if it was the longest allowed."""
    if not result.timed_out:
        return ""
    call = None if longer is None else context.dialect.format_call(longer, field)
    if call is None or "=" not in call:
        return "\nSplit it into commands that take less time."
    return f"\nUse {call}, or split it into several commands."


def _shell_hint(result: ExecResult) -> str:
    if result.exit_code != 127 or " " not in result.argv[0]:
        return ""
    return (
        "\nPass each argument as its own item; there is no shell. To run a command line, use"
        f" {['sh', '-c', result.argv[0]]}"
    )
