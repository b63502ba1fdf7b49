"""Tool executor: each call is one transaction and one event.

Parse the arguments, ask the policies, run the handler, then commit or roll back everything
that it did. Errors that a model can act on become failed results; any other error is a bug and
propagates after the rollback. `ToolInvoked` is always emitted last. `ToolCallRunner` runs the
calls of one message: in order, or in parallel if all tools are read-only.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import replace
from typing import Any, cast

from weakincentives.adapters.cancellation import CancellationToken
from weakincentives.adapters.messages import (
    CheckedCall,
    ToolCall,
    ToolMessage,
    ToolOutcome,
    find_paths,
)
from weakincentives.adapters.options import MAX_RESULT_CHARACTERS, RunLimits, RunOptions
from weakincentives.adapters.policies import Policy, diff_from_now
from weakincentives.errors import WinkError
from weakincentives.filesystem import Change, Diff, DirectoryCreated, EntryMoved, Filesystem
from weakincentives.filesystem.base import is_tool_output, readonly
from weakincentives.posix import check_cancelled, parents_of
from weakincentives.prompt import PromptError, Tool, ToolAccess, ToolContext, ToolResult
from weakincentives.runtime import (
    UNKNOWN_TOOL,
    DeadlineExceededError,
    MessageAdded,
    Span,
    ToolInvoked,
    ToolStarted,
    Transaction,
    record_result,
    tool_span,
    transaction,
)
from weakincentives.sandbox import SandboxUnavailableError
from weakincentives.serde import SerdeError, to_builtins

_log = logging.getLogger(__name__)


class ToolExecutor:
    """Runs tool calls of a model.

    Args:
        tools: The tools that a model may call.
        context: The context of every handler; the call's id is added, and the prompt's
            workspace if it has no filesystem.
        policies: Policies that may deny a call, asked in this order.
        max_result_characters: Where the text for the model is truncated.
        cancellation: Cancels the run; its listeners may close the sandbox of a call.
        clock: Returns seconds, for durations.
    """

    def __init__(
        self,
        tools: Iterable[Tool[Any, Any]],
        *,
        context: ToolContext,
        policies: Sequence[Policy] = (),
        max_result_characters: int = MAX_RESULT_CHARACTERS,
        cancellation: CancellationToken | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Create an executor for `tools`.

        Raises:
            PromptError: Two tools have the same name.
        """
        self._tools: dict[str, Tool[Any, Any]] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise PromptError(f"Two tools have the same name: {tool.name!r}")
            self._tools[tool.name] = tool
        self._names = tuple(sorted(self._tools))
        for tool in tuple(self._tools.values()):
            for name in tool.other_names:
                self._tools.setdefault(name, tool)
        reviews_changes = any(policy.reviews_changes for policy in policies)
        self._context = replace(context, reviews_changes=reviews_changes)
        self._policies = tuple(policies)
        self._recorders = [each for each in policies if type(each).record is not Policy.record]
        self._needs_diff = any(policy.needs_diff for policy in policies)
        self._max_characters = max_result_characters
        self._cancellation = cancellation
        self._clock = clock

    def execute(self, call: ToolCall) -> ToolOutcome:
        """Run a call; a failed one changes nothing, and only its event remains.

        Raises:
            DeadlineExceededError: The deadline has passed.
            BudgetExceededError: The budget is used up.
            RunCancelledError: The run was cancelled, and that ended the call.
            SnapshotError: Files could not be saved or restored.
        """
        with self._span(call) as span:
            record = _CallRecord(call, self._clock())
            try:
                record.result = self._run(record)
                record.text = self._truncate(record.result.render())
                record_result(span, record.text, success=record.result.success, error=record.error)
                return ToolOutcome(call, record.result, record.text)
            except BaseException as error:
                record.error = error
                raise
            finally:
                self._emit_event(record)

    def _span(self, call: ToolCall) -> AbstractContextManager[Span]:
        return tool_span(
            call.name if call.name in self._tools else UNKNOWN_TOOL,
            call_id=call.call_id,
            session_id=self._context.session.session_id,
            arguments=call.arguments,
        )

    def _run(self, record: "_CallRecord") -> ToolResult[Any]:
        call, context = record.call, self._context
        tool = self._tools.get(call.name)
        if context.deadline is not None:
            context.deadline.check(f"Tool call {call.name!r}")
        if context.budget_tracker is not None:
            context.budget_tracker.check(f"Tool call {call.name!r}")
            context.budget_tracker.count_tool_call()
        if tool is None:
            return ToolResult.error(self._unknown_tool_message(call.name))
        try:
            params = record.params = tool.parse(call.arguments)
            self._emit_start(record)
            check = self._access_check(call, tool, params) if self._policies else None
            call_context = context.for_call(call.call_id, _workspace(context), check)
            checked = CheckedCall(call, tool, params, call_context)
            with self._time_limit():
                return self._run_call(checked, record)
        except DeadlineExceededError:
            raise
        except (OSError, ValueError) as error:
            if context.deadline is not None and isinstance(error, TimeoutError):
                context.deadline.check(f"Tool call {call.name!r}")
            record.error = error
            return ToolResult.error(error_message(error))

    def _access_check(
        self, call: ToolCall, tool: Tool[Any, Any], params: Any
    ) -> Callable[[ToolContext, ToolAccess], str | None]:
        def check(context: ToolContext, access: ToolAccess) -> str | None:
            checked = CheckedCall(call, tool, params, context)
            reasons = (policy.allow_access(checked, access) for policy in self._policies)
            return next((reason for reason in reasons if reason is not None), None)

        return check

    def _time_limit(self) -> AbstractContextManager[object]:
        deadline = self._context.deadline
        return nullcontext() if deadline is None else deadline.enforce()

    def _run_call(self, call: CheckedCall, record: "_CallRecord") -> ToolResult[Any]:
        for policy in self._policies:
            reason = policy.allow(call)
            if reason is not None:
                return ToolResult.error(reason)
        try:
            result, changed = self._run_handler(call, record)
        except SandboxUnavailableError:
            if self._cancellation is not None:  # it has closed the sandbox
                self._cancellation.check(f"Tool call {call.call.name!r}")
            raise
        if result.success:
            for policy in self._recorders:
                policy.record(call, changed)
        return result

    def _run_handler(
        self, call: CheckedCall, record: "_CallRecord"
    ) -> tuple[ToolResult[Any], Sequence[str]]:
        """Run the handler in a transaction; return its result and the changed paths."""
        session, filesystem = call.context.session, call.context.filesystem
        if call.tool.read_only:
            return _run_read_only(call), ()
        if call.tool.atomic and not call.context.reviews_changes:  # else a denial rolls it back
            declared, result = call.paths, _call_handler(call)
            record.paths = declared if result.success else ()
            return result, record.paths
        bypasses = call.tool.bypasses_filesystem
        with transaction(session, bypasses_filesystem=bypasses) as step:
            if filesystem is not None:
                files = step.files(filesystem, bypasses_filesystem=bypasses)
                call = _with_files(call, files)
            diff = diff_from_now(filesystem) if self._needs_diff else None
            result = _call_handler(call)
            check_cancelled(f"Tool call {call.call.name!r}")  # a command may have ended early
            record.snapshot_ref = step.snapshot_ref
            changed: Sequence[str] = ()
            if result.success:
                changed = _list_changes(step)
                result = self._review(call, result, changed, diff)
            if result.success:
                record.paths = changed
            else:
                step.rollback()
        return result, record.paths

    def _review(
        self,
        call: CheckedCall,
        result: ToolResult[Any],
        changed: Sequence[str],
        diff: Callable[[], Diff | None] | None,
    ) -> ToolResult[Any]:
        if not call.context.reviews_changes:
            return result
        changes = diff() if diff is not None and changed else None
        changes = None if changes is None else changes.only(_is_project_change)
        for policy in self._policies:
            reason = policy.review(call, changed, changes)
            if reason is not None:
                return ToolResult.error(reason)
        return result

    def _unknown_tool_message(self, name: str) -> str:
        known = ", ".join(self._names) or "none"
        return f"Unknown tool: {name!r}; available tools: {known}"

    def _truncate(self, text: str) -> str:
        omitted = len(text) - self._max_characters
        if omitted <= 0:
            return text
        return (
            text[: self._max_characters]
            + f"\n[{omitted} more characters omitted; request a smaller part]"
        )

    def _emit_start(self, record: "_CallRecord") -> None:
        call, session = record.call, self._context.session
        session.dispatch(
            ToolStarted(
                tool=call.name,
                call_id=call.call_id,
                params=_to_json(record.params),
                session_id=session.session_id,
            )
        )

    def _emit_event(self, record: "_CallRecord") -> None:
        result, session = record.result, self._context.session
        prompt = self._context.prompt
        if result is not None:
            message = ToolMessage(
                record.call.call_id, record.call.name, record.text, result.success, result.media
            )
            session.dispatch(MessageAdded(message, session.session_id))
        session.dispatch(
            ToolInvoked(
                tool=record.call.name,
                call_id=record.call.call_id,
                params=_to_json(record.params),
                success=result is not None and result.success,
                result_message="" if result is None else result.message,
                result_size=None if result is None else len(record.text),
                error=None
                if record.error is None
                else f"{type(record.error).__name__}: {record.error}",
                duration_ms=(self._clock() - record.started) * 1000,
                paths=tuple(record.paths) or find_paths(record.params),
                mode=getattr(record.params, "mode", None),
                snapshot_ref=record.snapshot_ref,
                command=None if result is None else result.command,
                prompt_name=None if prompt is None else f"{prompt.ns}:{prompt.key}",
                session_id=session.session_id,
            )
        )


class ToolCallRunner:
    """Runs the calls of one message; every call gets a result, in the order of the calls."""

    def __init__(
        self,
        tools: Iterable[Tool[Any, Any]],
        *,
        context: ToolContext,
        limits: RunLimits,
        options: RunOptions,
    ) -> None:
        """Create a runner for `tools`."""
        tools = tuple(tools)
        self._read_only = frozenset(tool.name for tool in tools if tool.read_only)
        self._limits = limits
        self._max_parallel = options.max_parallel
        self._executor = ToolExecutor(
            tools,
            context=context,
            policies=options.policies,
            max_result_characters=options.max_result_characters,
            cancellation=limits.cancellation,
            clock=options.clock.monotonic,
        )

    def run(self, calls: Sequence[ToolCall]) -> Iterator[ToolOutcome]:
        """Yield the outcome of each call, in order.

        Raises:
            RunCancelledError: The run was cancelled; the remaining calls do not run.
            DeadlineExceededError: The deadline has passed.
            BudgetExceededError: The budget is used up.
            WinkError: An error that only the operator can fix.
        """
        threads = min(len(calls), self._max_parallel)
        if threads > 1 and all(call.name in self._read_only for call in calls):
            return self._run_parallel(calls, threads)
        return map(self._run_one, calls)

    def _run_one(self, call: ToolCall) -> ToolOutcome:
        self._limits.check(f"Tool call {call.name!r}")
        try:
            return self._executor.execute(call)
        except WinkError:
            raise
        except Exception as error:  # noqa: BLE001 # a bug in one tool does not end the run
            _log.exception("Tool %r crashed", call.name)
            text = (
                f"Tool {call.name!r} crashed ({type(error).__name__}: {error}) and changed"
                " nothing; try another approach"
            )
            return ToolOutcome(call, ToolResult.error(text), text)

    def _run_parallel(self, calls: Sequence[ToolCall], threads: int) -> Iterator[ToolOutcome]:
        with ThreadPoolExecutor(threads, thread_name_prefix="wink-tool") as pool:
            try:
                # each in a copy of this context, with its span and time limit
                futures = [pool.submit(copy_context().run, self._run_one, call) for call in calls]
                for each in futures:
                    yield each.result()
            finally:
                pool.shutdown(cancel_futures=True)


class _CallRecord:
    """What is known about a call so far, for its event."""

    __slots__ = ("call", "error", "params", "paths", "result", "snapshot_ref", "started", "text")

    def __init__(self, call: ToolCall, started: float) -> None:
        self.call = call
        self.started = started
        self.params: object = None
        self.result: ToolResult[Any] | None = None
        self.text = ""
        self.error: BaseException | None = None
        self.paths: Sequence[str] = ()
        self.snapshot_ref: str | None = None


def _is_project_change(change: Change) -> bool:
    return not is_tool_output(change.path) or not is_tool_output(change.source or change.path)


def _workspace(context: ToolContext) -> Filesystem | None:
    """Return the files of a call; a workspace that is created lazily is created here."""
    if context.filesystem is not None or context.prompt is None:
        return context.filesystem
    return context.prompt.filesystem()


def _run_read_only(call: CheckedCall) -> ToolResult[Any]:
    """Run the handler of a read-only tool without a file transaction, so calls can overlap."""
    filesystem = call.context.filesystem
    with transaction(call.context.session) as step:
        if filesystem is None:
            result = _call_handler(call)
        else:
            with readonly(filesystem) as files:
                result = _call_handler(_with_files(call, files))
        if not result.success:
            step.rollback()
    return result


def _with_files(call: CheckedCall, files: Filesystem) -> CheckedCall:
    """Return the call with another view of its files."""
    if files is call.context.filesystem:
        return call
    context = call.context.for_call(call.call.call_id, files)
    return CheckedCall(call.call, call.tool, call.params, context)


def _call_handler(call: CheckedCall) -> ToolResult[Any]:
    handler = call.tool.handler
    if handler is None:
        return ToolResult.error(f"Tool {call.tool.name!r} cannot run here: it has no handler")
    result = handler(call.params, context=call.context)
    if ToolResult not in type(result).__mro__:  # not every author runs a type checker
        raise TypeError(f"Handler of tool {call.tool.name!r} must return a ToolResult: {result!r}")
    return result


def _list_changes(step: Transaction) -> tuple[str, ...]:
    """Return the changed paths of the project, without the parent directories created for them."""
    events = step.freeze()
    if not events:
        return ()
    paths: dict[str, bool] = {}
    for event in events:
        if isinstance(event, EntryMoved):
            paths[event.source] = False
        paths[getattr(event, "path", ".")] = isinstance(event, DirectoryCreated)
    parents = {parent for path in paths for parent in parents_of(path)}
    return tuple(
        path
        for path, is_new in paths.items()
        if not (is_new and path in parents) and not is_tool_output(path)
    )


def _to_json(params: object) -> dict[str, Any]:
    if params is None:
        return {}
    try:
        return cast("dict[str, Any]", to_builtins(params))  # a dataclass becomes a dict
    except SerdeError:
        return {}


def error_message(error: Exception) -> str:
    """Return an error as the model sees it: the fact and the path, no error numbers."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.strerror}: {error.filename}"
    return str(error) or type(error).__name__
