"""Running tool calls: one call is one transaction and one event.

The arguments are parsed, policies are asked, the handler runs, and what it did is kept
or undone as a whole. Errors that a model can act on become failed results; anything
else is a bug, and is raised after everything is as it was. `ToolInvoked` is told last,
whatever happened.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

from weakincentives.adapters.messages import CheckedCall, ToolCall, ToolOutcome, paths_of
from weakincentives.adapters.options import MAX_RESULT_CHARACTERS
from weakincentives.adapters.policies import Policy
from weakincentives.filesystem import (
    Diff,
    DirectoryCreated,
    EntryMoved,
    Filesystem,
    FilesystemSnapshot,
    Snapshotable,
    Viewable,
    diff_since,
)
from weakincentives.filesystem.base import readonly
from weakincentives.posix import parents_of
from weakincentives.prompt import PromptError, Tool, ToolContext, ToolResult
from weakincentives.runtime import (
    UNKNOWN_TOOL,
    DeadlineExceededError,
    Span,
    ToolInvoked,
    Transaction,
    record_result,
    take_snapshot,
    tool_span,
    transaction,
)
from weakincentives.runtime.session import TransactionConflictError
from weakincentives.serde import SerdeError, to_builtins

_MAX_ATTEMPTS = 5  # if other calls change what a call has read in the session meanwhile


class ToolExecutor:
    """Runs the calls of a model with the tools of a prompt."""

    def __init__(
        self,
        tools: Iterable[Tool[Any, Any]],
        *,
        context: ToolContext,
        policies: Sequence[Policy] = (),
        max_result_characters: int = MAX_RESULT_CHARACTERS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Offer `tools`.

        Args:
            tools: What a model may call.
            context: What every handler is given; the call's id is added, and the workspace of
                the prompt if it has no filesystem.
            policies: Who may forbid a call, asked in this order.
            max_result_characters: Where the text for the model is cut off.
            clock: Gives seconds, for durations.

        Raises:
            PromptError: Two tools have one name.
        """
        self._tools: dict[str, Tool[Any, Any]] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise PromptError(f"Two tools have one name: {tool.name!r}")
            self._tools[tool.name] = tool
        self._names = tuple(sorted(self._tools))
        for tool in tuple(self._tools.values()):
            for name in tool.other_names:
                self._tools.setdefault(name, tool)
        self._context = context
        self._policies = tuple(policies)
        self._needs_diff = any(policy.needs_diff for policy in policies)
        self._max_characters = max_result_characters
        self._clock = clock

    def execute(self, call: ToolCall) -> ToolOutcome:
        """Run a call to its end; a failed one leaves no trace but its event.

        Raises:
            DeadlineExceededError: There is no time left.
            BudgetExceededError: There is nothing left to spend.
            SnapshotError: Files could not be kept or restored.
        """
        with self._traced(call) as span:
            run = _Run(call, self._clock())
            try:
                run.result = self._result(run)
                run.text = self._bounded(run.result.render())
                record_result(span, run.text, success=run.result.success, error=run.error)
                return ToolOutcome(call, run.result, run.text)
            except BaseException as error:
                run.error = error
                raise
            finally:
                self._tell(run)

    def _traced(self, call: ToolCall) -> AbstractContextManager[Span]:
        return tool_span(
            call.name if call.name in self._tools else UNKNOWN_TOOL,
            call_id=call.call_id,
            session_id=self._context.session.session_id,
            arguments=call.arguments,
        )

    def _result(self, run: "_Run") -> ToolResult[Any]:
        call, context = run.call, self._context
        tool = self._tools.get(call.name)
        if context.deadline is not None:
            context.deadline.check(f"Tool call {call.name!r}")
        if context.budget_tracker is not None:
            context.budget_tracker.check(f"Tool call {call.name!r}")
            context.budget_tracker.count_tool_call()
        if tool is None:
            return ToolResult.error(self._unknown(call.name))
        try:
            params = run.params = tool.parse(call.arguments)
            mine = context.for_call(call.call_id, _workspace(context))
            checked = CheckedCall(call, tool, params, mine)
            with self._limited():
                return self._permitted(checked, run)
        except DeadlineExceededError:
            raise
        except (OSError, ValueError) as error:
            if context.deadline is not None and isinstance(error, TimeoutError):
                context.deadline.check(f"Tool call {call.name!r}")
            run.error = error
            return ToolResult.error(_sentence(error))

    def _limited(self) -> AbstractContextManager[object]:
        deadline = self._context.deadline
        return nullcontext() if deadline is None else deadline.applied()

    def _permitted(self, call: CheckedCall, run: "_Run") -> ToolResult[Any]:
        for policy in self._policies:
            reason = policy.allow(call)
            if reason is not None:
                return ToolResult.error(reason)
        result, changed = self._performed_in_turn(call, run)
        if result.success:
            for policy in self._policies:
                policy.done(call, changed)
        return result

    def _performed_in_turn(
        self, call: CheckedCall, run: "_Run"
    ) -> tuple[ToolResult[Any], Sequence[str]]:
        """Run the call, and again if others change what it has read in the session."""
        # what acts outside of files and session is done, and must not be done twice
        attempts = 1 if call.tool.bypasses_filesystem else _MAX_ATTEMPTS
        attempt = 0
        while True:
            try:
                return self._performed(call, run, again=attempt > 0)
            except TransactionConflictError as error:
                attempt += 1
                run.paths = ()
                if attempt == attempts:
                    run.error = error
                    return ToolResult.error(str(error)), ()

    def _performed(
        self, call: CheckedCall, run: "_Run", *, again: bool
    ) -> tuple[ToolResult[Any], Sequence[str]]:
        """Run the handler in a transaction; return what it said and what it changed."""
        session, filesystem = call.context.session, call.context.filesystem
        if call.tool.read_only:
            return _only_reading(call, again=again), ()
        with transaction(session) as step:
            if filesystem is not None:
                files = step.files(filesystem, bypasses_filesystem=call.tool.bypasses_filesystem)
                call = _on_files(call, files)
            if again:
                step.prioritize()
            before = self._state_before(filesystem)
            result = _handled(call)
            run.snapshot_ref = step.snapshot_ref
            changed: Sequence[str] = ()
            if result.success:
                changed = _changed(step)
                result = self._reviewed(call, result, changed, before)
            if result.success:
                run.paths = changed
            else:
                step.rollback()
        return result, run.paths

    def _state_before(self, filesystem: Filesystem | None) -> "_Before | None":
        if not self._needs_diff or not isinstance(filesystem, Viewable):
            return None
        if isinstance(filesystem, Snapshotable):
            return _Before(filesystem, take_snapshot(filesystem, "before approval"))
        return None

    def _reviewed(
        self,
        call: CheckedCall,
        result: ToolResult[Any],
        changed: Sequence[str],
        before: "_Before | None",
    ) -> ToolResult[Any]:
        changes = before.diff() if before is not None and changed else None
        for policy in self._policies:
            reason = policy.review(call, changed, changes)
            if reason is not None:
                return ToolResult.error(reason)
        return result

    def _unknown(self, name: str) -> str:
        known = ", ".join(self._names) or "none"
        return f"There is no tool {name!r}; available are: {known}"

    def _bounded(self, text: str) -> str:
        left = len(text) - self._max_characters
        if left <= 0:
            return text
        return (
            text[: self._max_characters]
            + f"\n[{left} more characters were left out; ask for a smaller part]"
        )

    def _tell(self, run: "_Run") -> None:
        result, session = run.result, self._context.session
        prompt = self._context.prompt
        session.dispatch(
            ToolInvoked(
                tool=run.call.name,
                call_id=run.call.call_id,
                params=_as_json(run.params),
                success=result is not None and result.success,
                result_message="" if result is None else result.message,
                result_size=None if result is None else len(run.text),
                error=None if run.error is None else f"{type(run.error).__name__}: {run.error}",
                duration_ms=(self._clock() - run.started) * 1000,
                paths=tuple(run.paths) or paths_of(run.params),
                mode=getattr(run.params, "mode", None),
                snapshot_ref=run.snapshot_ref,
                prompt_name=None if prompt is None else f"{prompt.ns}:{prompt.key}",
                session_id=session.session_id,
            )
        )


class _Run:
    """What has become of a call so far."""

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


@dataclass(frozen=True, slots=True)
class _Before:
    """The state before a call, to compare with."""

    filesystem: Filesystem
    snapshot: FilesystemSnapshot

    def diff(self) -> Diff | None:
        return diff_since(self.filesystem, self.snapshot)


def _workspace(context: ToolContext) -> Filesystem | None:
    """Return the files of a call: a workspace that is made late is there before the handler."""
    if context.filesystem is not None or context.prompt is None:
        return context.filesystem
    return context.prompt.filesystem()


def _only_reading(call: CheckedCall, *, again: bool) -> ToolResult[Any]:
    """Run a handler that says it changes nothing; calls of this kind run side by side."""
    filesystem = call.context.filesystem
    with transaction(call.context.session) as step:
        if again:
            step.prioritize()
        if filesystem is None:
            result = _handled(call)
        else:
            with readonly(filesystem) as files:
                result = _handled(_on_files(call, files))
        if not result.success:
            step.rollback()
    return result


def _on_files(call: CheckedCall, files: Filesystem) -> CheckedCall:
    """Return the call with another view of its files."""
    if files is call.context.filesystem:
        return call
    mine = call.context.for_call(call.call.call_id, files)
    return CheckedCall(call.call, call.tool, call.params, mine)


def _handled(call: CheckedCall) -> ToolResult[Any]:
    handler = call.tool.handler
    if handler is None:
        return ToolResult.error(f"Tool {call.tool.name!r} does not run here")
    result = handler(call.params, context=call.context)
    if ToolResult not in type(result).__mro__:  # promised, but not everybody checks types
        raise TypeError(f"Handler of tool {call.tool.name!r} must return a ToolResult: {result!r}")
    return result


def _changed(step: Transaction) -> tuple[str, ...]:
    """Return the paths that were changed, without directories made on the way to them."""
    events = step.settle()
    if not events:
        return ()
    paths: dict[str, bool] = {}
    for event in events:
        if isinstance(event, EntryMoved):
            paths[event.source] = False
        paths[getattr(event, "path", ".")] = isinstance(event, DirectoryCreated)
    on_the_way = {parent for path in paths for parent in parents_of(path)}
    return tuple(path for path, is_new in paths.items() if not (is_new and path in on_the_way))


def _as_json(params: object) -> dict[str, Any]:
    if params is None:
        return {}
    try:
        return cast("dict[str, Any]", to_builtins(params))  # what a dataclass becomes
    except SerdeError:
        return {}


def _sentence(error: Exception) -> str:
    """Return what a model is told about an error: the fact and the path, no numbers."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.strerror}: {error.filename}"
    return str(error) or type(error).__name__
