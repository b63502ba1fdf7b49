"""Claude Code's own tools: transactions, policies and events around their calls.

These tools bypass our filesystem. Each call that may change files is a transaction with a
snapshot before it: the changes are found by comparison, and a policy can have them rolled back.
Parallel calls share one transaction.
"""

import posixpath
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from weakincentives.adapters.messages import CheckedCall, ToolCall, ToolOutcome
from weakincentives.adapters.options import RunLimits, RunOptions
from weakincentives.adapters.policies import diff_from_now
from weakincentives.filesystem import Diff, Filesystem, normalize_path
from weakincentives.prompt import Tool, ToolAccess, ToolContext, ToolResult
from weakincentives.runtime import ToolInvoked, ToolStarted, Transaction, transaction

READ_TOOLS = ("Read", "Glob", "Grep")
"""Tools of Claude Code that change no files."""
WRITE_TOOLS = ("Write", "Edit", "NotebookEdit")
"""Tools of Claude Code that change the file that they name."""
_PATH_ARGUMENTS = ("file_path", "notebook_path", "path")
_MAX_EXCERPT = 500
_DESCRIPTION = "A tool of Claude Code."


@dataclass(slots=True)
class _NativeCall:
    """A call of one of these tools that has started."""

    checked: CheckedCall
    started: float
    changed: tuple[str, ...] = ()
    snapshot_ref: str | None = None
    denial: str | None = None


@dataclass(slots=True)
class _Batch:
    """Parallel calls in one transaction."""

    manager: AbstractContextManager[Transaction]
    step: Transaction
    diff: Callable[[], Diff | None] | None
    calls: dict[str, _NativeCall] = field(default_factory=dict[str, _NativeCall])
    running: set[str] = field(default_factory=set[str])


class NativeToolCalls:
    """The native tool calls of one run."""

    def __init__(
        self,
        workspace: Filesystem | None,
        *,
        context: ToolContext,
        limits: RunLimits,
        options: RunOptions,
    ) -> None:
        """Track the calls that work in `workspace`."""
        self._workspace = workspace
        self._context = context
        self._limits = limits
        self._options = options
        self._calls: dict[str, _NativeCall] = {}
        self._batch: _Batch | None = None
        self._pending_events: list[object] = []

    def emit(self, event: object) -> None:
        """Emit an event, after the current transaction if there is one."""
        self._pending_events.append(event)
        if self._batch is None:
            self._flush()

    def before_call(self, call: ToolCall) -> dict[str, Any]:
        """Start a call; return the hook's output, which allows or denies it.

        Raises:
            RunCancelledError: The run was cancelled.
            DeadlineExceededError: The deadline has passed.
            BudgetExceededError: The budget is used up.
        """
        self._limits.check(f"Tool call {call.name!r}")
        if self._limits.tracker is not None:
            self._limits.tracker.count_tool_call()
        checked = CheckedCall(call, self._tool(call), call.arguments, self._context)
        started = _NativeCall(checked, self._options.clock.monotonic())
        self._calls[call.call_id] = started
        for policy in self._options.policies:
            started.denial = policy.allow(checked)
            if started.denial is not None:
                return _deny(started.denial)
        session_id = self._context.session.session_id
        self.emit(
            ToolStarted(
                tool=call.name, call_id=call.call_id, params=_arguments(call), session_id=session_id
            )
        )
        if self._workspace is not None and not checked.tool.read_only:
            self._join_batch(self._workspace, started)
        return {}

    def after_call(self, call_id: str) -> dict[str, Any]:
        """Commit or roll back the changes of a call; return the hook's output for the model."""
        batch = self._batch
        if batch is None or call_id not in batch.running:
            return {}
        batch.running.discard(call_id)
        if not batch.running:
            self._close_batch(batch)
        denial = batch.calls[call_id].denial
        return {} if denial is None else {"decision": "block", "reason": denial}

    def finish_call(self, call: ToolCall, text: str, *, success: bool) -> ToolOutcome:
        """Emit the event of a finished call, and return its outcome."""
        self.after_call(call.call_id)
        started = self._calls.get(call.call_id)
        denial = None if started is None else started.denial
        if started is not None and success and denial is None:
            for policy in self._options.policies:
                policy.record(started.checked, started.changed)
        message = text if denial is None else denial
        success = success and denial is None
        result: ToolResult[Any] = ToolResult(message, success=success)
        self._emit_event(call, started, message, success=success)
        return ToolOutcome(call, result, message)

    def close(self) -> None:
        """Close the open transaction; no call runs any more."""
        if self._batch is not None:
            self._close_batch(self._batch)
        self._flush()

    def find_paths(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the paths that a call names, normalized and relative to the workspace."""
        root = "" if self._workspace is None else str(self._workspace.root)
        found: list[str] = []
        for name in _PATH_ARGUMENTS:
            path = arguments.get(name)
            if isinstance(path, str) and path:
                relative = posixpath.relpath(posixpath.join(root, path), root) if root else path
                try:
                    found.append(normalize_path(relative) or ".")
                except (ValueError, OSError):
                    found.append(path)  # policies and Claude Code reject it
        return tuple(dict.fromkeys(found))

    def _tool(self, call: ToolCall) -> Tool[Any, Any]:
        reads = call.name in READ_TOOLS

        def access(params: Any, _: ToolContext) -> ToolAccess:
            paths = self.find_paths(params)
            if call.name in WRITE_TOOLS:
                return ToolAccess(writes=paths)
            if call.name == "Read":
                return ToolAccess(reads=paths)
            return ToolAccess(searches=paths or (".",)) if reads else ToolAccess(others=paths)

        return Tool(
            call.name, _DESCRIPTION, None, read_only=reads, bypasses_filesystem=True, access=access
        )

    def _join_batch(self, workspace: Filesystem, call: _NativeCall) -> None:
        batch = self._batch
        if batch is None:
            manager = transaction(self._context.session, workspace, bypasses_filesystem=True)
            step = manager.__enter__()
            needs_diff = any(policy.needs_diff for policy in self._options.policies)
            diff = diff_from_now(workspace) if needs_diff else None
            batch = self._batch = _Batch(manager, step, diff)
        call_id = call.checked.call.call_id
        batch.calls[call_id] = call
        batch.running.add(call_id)
        call.snapshot_ref = batch.step.snapshot_ref

    def _close_batch(self, batch: _Batch) -> None:
        """Commit a transaction, or roll it back if a policy denies the changes."""
        self._batch = None
        try:
            events = batch.step.freeze()
            changed = tuple(dict.fromkeys(getattr(event, "path", ".") for event in events))
            denial = self._review(batch, changed)
            if denial is not None:
                batch.step.rollback()
            for call in batch.calls.values():
                named = self.find_paths(call.checked.params)
                is_alone = len(batch.calls) == 1
                call.changed = changed if is_alone else tuple(p for p in changed if p in named)
                call.denial = denial
        except BaseException as error:
            batch.manager.__exit__(type(error), error, None)
            raise
        batch.manager.__exit__(None, None, None)
        self._flush()

    def _review(self, batch: _Batch, changed: Sequence[str]) -> str | None:
        changes = batch.diff() if batch.diff is not None and changed else None
        for call in batch.calls.values():
            for policy in self._options.policies:
                reason = policy.review(call.checked, changed, changes)
                if reason is not None:
                    return reason
        return None

    def _emit_event(
        self, call: ToolCall, started: _NativeCall | None, text: str, *, success: bool
    ) -> None:
        session, prompt = self._context.session, self._context.prompt
        arguments = _arguments(call)
        now = self._options.clock.monotonic()
        self.emit(
            ToolInvoked(
                tool=call.name,
                call_id=call.call_id,
                params=arguments,
                success=success,
                result_message=text if len(text) <= _MAX_EXCERPT else f"{text[:_MAX_EXCERPT]}...",
                result_size=len(text),
                error=None,
                duration_ms=0.0 if started is None else (now - started.started) * 1000,
                paths=(() if started is None else started.changed) or self.find_paths(arguments),
                snapshot_ref=None if started is None else started.snapshot_ref,
                prompt_name=None if prompt is None else f"{prompt.ns}:{prompt.key}",
                session_id=session.session_id,
            )
        )

    def _flush(self) -> None:
        pending, self._pending_events = self._pending_events, []
        for event in pending:
            self._context.session.dispatch(event)


def _arguments(call: ToolCall) -> dict[str, object]:
    return {} if isinstance(call.arguments, str) else dict(call.arguments)


def _deny(reason: str) -> dict[str, Any]:
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": reason,
        }
    }
