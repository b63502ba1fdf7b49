"""Handlers that run commands in a sandbox, and the tools for them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from weakincentives.contrib.tools.context import (
    DEFAULT_SETTINGS,
    Handler,
    HandlerContext,
    ToolSettings,
    build_tools,
    select_specs,
)
from weakincentives.contrib.tools.dialects.shell import SHELL_TOOL_SPECS
from weakincentives.contrib.tools.requests import BashParams, ShellExecuteParams
from weakincentives.contrib.tools.shell.background import background_handlers
from weakincentives.contrib.tools.shell.kept_output import OutputSpool
from weakincentives.contrib.tools.shell.limits import (
    DEFAULT_SHELL_LIMITS,
    ShellLimits,
    check_workspace,
    limit_seconds,
)
from weakincentives.contrib.tools.shell.render import command_result, render_result
from weakincentives.errors import ToolValidationError
from weakincentives.prompt import Tool, ToolResult
from weakincentives.sandbox import BackgroundSandbox, ExecResult, OutputListener, Sandbox


def shell_handlers(
    sandbox: Sandbox,
    *,
    limits: ShellLimits = DEFAULT_SHELL_LIMITS,
    on_output: OutputListener | None = None,
) -> Mapping[type[Any], Handler]:
    """Return the handlers for requests that run commands.

    Those for background processes are among them if the sandbox can run any.

    Pass them as `extra_handlers=` to a section or to `filesystem_tools` to add the shell
    tools of the dialect.

    Args:
        sandbox: Where commands run; it must work on the filesystem of the tools.
        limits: Limits of the commands.
        on_output: Called with what a command in the foreground prints, as it prints.
    """
    runner = _CommandRunner(sandbox, limits, on_output)
    handlers: dict[type[Any], Handler] = {
        ShellExecuteParams: _ProgramHandler(runner),
        BashParams: _ScriptHandler(runner),
    }
    if isinstance(sandbox, BackgroundSandbox):
        return {**handlers, **background_handlers(sandbox, limits)}
    return handlers


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
    handlers = shell_handlers(sandbox, limits=limits)
    return build_tools(select_specs(SHELL_TOOL_SPECS, dialect, handlers), handlers, settings)


@dataclass(frozen=True, slots=True)
class _CommandRunner:
    """Runs commands in a sandbox, within limits."""

    sandbox: Sandbox
    limits: ShellLimits
    on_output: OutputListener | None = None

    def run(
        self, request: ShellExecuteParams, context: HandlerContext, seconds: float, max_output: int
    ) -> ToolResult[ExecResult]:
        check_workspace(self.sandbox, context)
        seconds = limit_seconds(seconds, context)
        captures = request.capture_output
        with OutputSpool() as spool:
            result = self.sandbox.exec(
                request.command,
                cwd=context.resolve_path(request.cwd or "."),
                env=request.env,
                stdin=request.stdin,
                timeout=max(seconds, 0.001),
                max_output=max_output if captures else 0,
                on_output=self._listener(spool) if captures else None,
            )
            text = render_result(result, spool if captures else None, context)
            return command_result(text, result, context, spool)

    def _listener(self, spool: OutputSpool) -> OutputListener:
        on_output = self.on_output
        if on_output is None:
            return spool.feed

        def listen(stream: Literal["stdout", "stderr"], data: bytes) -> None:
            spool.feed(stream, data)
            on_output(stream, data)

        return listen


@dataclass(frozen=True, slots=True)
class _ProgramHandler:
    """Runs programs without a shell."""

    runner: _CommandRunner
    bypasses_filesystem: bool = True

    @property
    def description(self) -> str:
        """The time limit, for the model."""
        limits = self.runner.limits
        return (
            f"The program is stopped after timeout_seconds, by default"
            f" {limits.check_seconds(None):g} and at most {limits.max_seconds:g}."
        )

    def __call__(
        self, request: ShellExecuteParams, context: HandlerContext
    ) -> ToolResult[ExecResult]:
        limits = self.runner.limits
        program = replace(request, command=limits.check_program(request.command))
        seconds = limits.check_seconds(request.timeout_seconds)
        found = self.runner.run(program, context, seconds, limits.max_output)
        longer = None
        if seconds < limits.max_seconds:
            longer = replace(request, timeout_seconds=limits.max_seconds)
        found = _add_timeout_hint(found, context, longer, "timeout_seconds")
        if found.value is None or found.value.exit_code != 127 or " " not in found.value.argv[0]:
            return found
        hint = "Pass each argument as its own item; there is no shell. To run a command line, use"
        line = ["sh", "-c", found.value.argv[0]]
        return replace(found, message=f"{found.message}\n{hint} {line}")


@dataclass(frozen=True, slots=True)
class _ScriptHandler:
    """Runs command lines in bash, or in sh if there is no bash."""

    runner: _CommandRunner
    bypasses_filesystem: bool = True

    @property
    def description(self) -> str:
        return (
            f"A command that takes longer than {self.runner.limits.max_seconds:g} seconds is"
            " stopped."
        )

    def __call__(self, request: BashParams, context: HandlerContext) -> ToolResult[ExecResult]:
        limits = self.runner.limits
        command = limits.check_script(request.command)
        longest = int(limits.max_seconds * 1000)
        timeout = longest if request.timeout is None else min(request.timeout, longest)
        if timeout < 1:
            raise ToolValidationError(f"timeout must be positive: {request.timeout!r}")
        allowed = limits.max_output
        max_output = allowed if request.max_output is None else request.max_output
        program = ShellExecuteParams(command, request.cwd)
        found = self.runner.run(program, context, timeout / 1000, max(0, min(max_output, allowed)))
        longer = None if timeout == longest else replace(request, timeout=longest)
        return _add_timeout_hint(found, context, longer, "timeout")


def _add_timeout_hint(
    found: ToolResult[ExecResult], context: HandlerContext, longer: object, field: str
) -> ToolResult[ExecResult]:
    """Return the result with advice on a timeout; without a `longer` one it was the longest."""
    if found.value is None or not found.value.timed_out:
        return found
    call = None if longer is None else context.dialect.format_call(longer, field)
    hint = "Split it into commands that take less time."
    if call is not None and "=" in call:
        hint = f"Use {call}, or split it into several commands."
    return replace(found, message=f"{found.message}\n{hint}")
