"""Handlers that start, poll and stop background processes."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from weakincentives.contrib.tools import requests
from weakincentives.contrib.tools.context import Handler, HandlerContext
from weakincentives.contrib.tools.handlers.render import hint
from weakincentives.contrib.tools.shell import render
from weakincentives.contrib.tools.shell.kept_output import OutputSpool
from weakincentives.contrib.tools.shell.limits import (
    MAX_SHELL_SECONDS,
    ShellLimits,
    check_workspace,
    display_command,
    limit_seconds,
)
from weakincentives.errors import ToolValidationError
from weakincentives.prompt import ToolResult
from weakincentives.sandbox import (
    BackgroundProcess,
    BackgroundSandbox,
    ExecResult,
    PollResult,
    Sandbox,
    SandboxUnavailableError,
)

_START_WAIT = 0.3  # seconds in which a process that cannot start has usually ended
_MAX_COMMAND = 200  # characters of a command in a message


class ShellSandbox(Sandbox, BackgroundSandbox, Protocol):
    """A sandbox that runs commands in the foreground and in the background."""


def background_handlers(sandbox: ShellSandbox, limits: ShellLimits) -> Mapping[type[Any], Handler]:
    """Return the handlers for requests about background processes."""
    runner = _BackgroundRunner(sandbox, limits)
    return {
        requests.ShellStartParams: runner.start_program,
        requests.BashStartParams: runner.start_script,
        requests.ShellPollParams: runner.poll,
        requests.ShellStopParams: runner.stop,
    }


def stop_processes(sandbox: BackgroundSandbox) -> tuple[str, ...]:
    """Stop all background processes; return the commands of those that were running."""
    running = [each for each in sandbox.processes() if each.is_running]
    for process in running:
        with suppress(SandboxUnavailableError):  # the sandbox was closed meanwhile
            process.stop()
    return tuple(display_command(each.argv) for each in running)


@dataclass(frozen=True, slots=True)
class _BackgroundRunner:
    """Runs commands in the background of a sandbox, within limits."""

    sandbox: ShellSandbox
    limits: ShellLimits

    def start_program(
        self, request: requests.ShellStartParams, context: HandlerContext
    ) -> ToolResult[PollResult | ExecResult]:
        command = self.limits.check_program(request.command)
        return self._start(command, request.cwd, request.env, _START_WAIT, context)

    def start_script(
        self, request: requests.BashStartParams, context: HandlerContext
    ) -> ToolResult[PollResult | ExecResult]:
        command = self.limits.check_script(request.command)
        wait = _START_WAIT if request.wait is None else request.wait / 1000
        return self._start(command, request.cwd, None, wait, context)

    def poll(
        self, request: requests.ShellPollParams, context: HandlerContext
    ) -> ToolResult[PollResult]:
        process = self._find(request.process_id)
        _wait(process, request.wait_seconds, context)
        found = process.poll()
        parts = [_render_state(process, found), *_render_output(found, context)]
        return render.command_result(render.join_parts(parts), found, context)

    def stop(
        self, request: requests.ShellStopParams, context: HandlerContext
    ) -> ToolResult[PollResult]:
        process = self._find(request.process_id)
        was_running = process.is_running
        found = process.stop()
        head = (
            f"Process {process.id} was stopped after {render.render_seconds(found)}."
            if was_running
            else _render_state(process, found)
        )
        text = render.join_parts([head, *_render_output(found, context)])
        if was_running:  # it was stopped on request, which is not a failure
            return ToolResult(text, found, exclude_value_from_context=True)
        return render.command_result(text, found, context)

    def _start(
        self,
        command: tuple[str, ...],
        cwd: str | None,
        env: Mapping[str, str] | None,
        wait: float,
        context: HandlerContext,
    ) -> ToolResult[PollResult | ExecResult]:
        """Start a command; one that ends while this waits is like one in the foreground."""
        check_workspace(self.sandbox, context)
        if context.tool_context.reviews_changes:
            raise ToolValidationError(
                "Commands cannot run in the background here: changes of files are reviewed with"
                " each call. Run it in the foreground"
            )
        with OutputSpool() as spool:
            process = self.sandbox.start(
                command,
                cwd=context.resolve_path(cwd or "."),
                env=env,
                max_output=self.limits.max_output,
                on_output=spool.feed,
            )
            try:
                _wait(process, wait, context)
            except BaseException:
                process.stop()  # the call fails, and what it did is rolled back
                raise
            found = process.poll()
            if found.is_running:
                return render.command_result(
                    render.join_parts(_render_started(process, found, context)), found, context
                )
            result = _to_result(command, found)
            return render.command_result(
                render.render_result(result, spool, context), result, context, spool
            )

    def _find(self, number: int) -> BackgroundProcess:
        processes = self.sandbox.processes()
        for process in processes:
            if process.id == number:
                return process
        running = [each for each in processes if each.is_running]
        listed = "; ".join(f"{each.id}: {_shorten(display_command(each.argv))}" for each in running)
        raise ToolValidationError(
            f"No background process {number};"
            f" {f'running: {listed}' if running else 'none is running'}"
        )


def _to_result(command: tuple[str, ...], found: PollResult) -> ExecResult:
    """Return the result of a process that has ended, as of a command in the foreground."""
    return ExecResult(
        command,
        found.exit_code or 0,
        found.out,
        found.err,
        duration_ms=found.duration_ms,
        signal=found.signal,
        stopped_processes=found.stopped_processes,
        connections=found.connections,
    )


def _wait(process: BackgroundProcess, seconds: float, context: HandlerContext) -> None:
    """Wait for a process to end, within the deadline of the run."""
    if not 0 <= seconds <= MAX_SHELL_SECONDS:
        raise ToolValidationError(
            f"A call can wait from 0 to {MAX_SHELL_SECONDS} seconds: {seconds:g}"
        )
    process.wait(limit_seconds(seconds, context))


def _render_started(
    process: BackgroundProcess, found: PollResult, context: HandlerContext
) -> list[str]:
    poll = context.dialect.format_call(requests.ShellPollParams(process.id))
    stop = context.dialect.format_call(requests.ShellStopParams(process.id))
    head = f"Process {process.id} is running in the background"
    head += f"{hint('; to see its output:', poll)}{hint('; to stop it:', stop)}."
    if not process.is_reachable:
        head += (
            "\nOther commands cannot connect to it: to test a server, start it and its client in"
            " one command."
        )
    return [head, *(_render_output(found, context) if found.out.data or found.err.data else ())]


def _render_state(process: BackgroundProcess, found: PollResult) -> str:
    if found.is_running:
        return f"Process {process.id} has been running for {render.render_seconds(found)}."
    return f"Process {process.id} has ended: {render.render_exit(found)}"


def _render_output(found: PollResult, context: HandlerContext) -> list[str]:
    streams = render.fit_streams(found.out, found.err, context.settings.budget)
    has_output = any(each.data or each.dropped for each in streams.values())
    shown = render.render_streams(streams, {}, context) if has_output else ["No new output."]
    return [*shown, *render.network_notes(found)]


def _shorten(command: str) -> str:
    return command if len(command) <= _MAX_COMMAND else f"{command[:_MAX_COMMAND]}..."
