"""Claude Code's own tools: they change the workspace past its methods, and are told of as ours are.

Each call that may change files is a transaction, with a snapshot before it: what it has
changed is found by comparing, and a policy can have it undone. Calls that run side by side
share one.
"""

import posixpath
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from weakincentives.adapters.loop.limits import RunLimits
from weakincentives.adapters.messages import CheckedCall, ToolCall, ToolOutcome
from weakincentives.adapters.options import RunOptions
from weakincentives.filesystem import Diff, Filesystem, Snapshotable, diff_since, normalize_path
from weakincentives.prompt import Tool, ToolAccess, ToolContext, ToolResult
from weakincentives.runtime import ToolInvoked, Transaction, take_snapshot, transaction

READING = ("Read", "Glob", "Grep")
"""Tools of Claude Code that change no files."""
WRITING = ("Write", "Edit", "NotebookEdit")
"""Tools of Claude Code that change a file which they name."""
_PATHS = ("file_path", "notebook_path", "path")
_SHOWN = 500
_DESCRIPTION = "A tool of Claude Code."


@dataclass(slots=True)
class _Call:
    """A call of one of these tools, on its way."""

    checked: CheckedCall
    started: float
    changed: tuple[str, ...] = ()
    snapshot_ref: str | None = None
    refusal: str | None = None


@dataclass(slots=True)
class _Batch:
    """Calls that run side by side, in one transaction."""

    block: AbstractContextManager[Transaction]
    step: Transaction
    before: Callable[[], Diff | None] | None
    calls: dict[str, _Call] = field(default_factory=dict[str, _Call])
    running: set[str] = field(default_factory=set[str])


class NativeToolCalls:
    """The calls of one run."""

    def __init__(
        self,
        workspace: Filesystem | None,
        *,
        context: ToolContext,
        bounds: RunLimits,
        options: RunOptions,
    ) -> None:
        """Watch over what is done in `workspace`."""
        self._workspace = workspace
        self._context = context
        self._bounds = bounds
        self._options = options
        self._calls: dict[str, _Call] = {}
        self._batch: _Batch | None = None
        self._untold: list[object] = []

    def tell(self, event: object) -> None:
        """Tell the session, as soon as nothing is under way that may be undone."""
        self._untold.append(event)
        if self._batch is None:
            self._flush()

    def before(self, call: ToolCall) -> dict[str, Any]:
        """Answer whether a call may run.

        Raises:
            RunCancelledError: The run was cancelled.
            DeadlineExceededError: There is no time left.
            BudgetExceededError: There is nothing left to spend.
        """
        self._bounds.check(f"Tool call {call.name!r}")
        if self._bounds.tracker is not None:
            self._bounds.tracker.count_tool_call()
        checked = CheckedCall(call, self._tool(call), call.arguments, self._context)
        begun = self._calls[call.call_id] = _Call(checked, self._options.clock.monotonic())
        for policy in self._options.policies:
            begun.refusal = policy.allow(checked)
            if begun.refusal is not None:
                return _denied(begun.refusal)
        if self._workspace is not None and not checked.tool.read_only:
            self._join(self._workspace, begun)
        return {}

    def after(self, call_id: str) -> dict[str, Any]:
        """Keep what a call has done, or have it undone; answer what the model is told."""
        batch = self._batch
        if batch is None or call_id not in batch.running:
            return {}
        batch.running.discard(call_id)
        if not batch.running:
            self._close(batch)
        refusal = batch.calls[call_id].refusal
        return {} if refusal is None else {"decision": "block", "reason": refusal}

    def end(self, call: ToolCall, text: str, *, success: bool) -> ToolOutcome:
        """Tell of a call that is over, and return what it came to."""
        self.after(call.call_id)
        begun = self._calls.get(call.call_id)
        refusal = None if begun is None else begun.refusal
        if begun is not None and success and refusal is None:
            for policy in self._options.policies:
                policy.done(begun.checked, begun.changed)
        said = text if refusal is None else refusal
        success = success and refusal is None
        result: ToolResult[Any] = ToolResult(said, success=success)
        self._tell_call(call, begun, said, success=success)
        return ToolOutcome(call, result, said)

    def close(self) -> None:
        """End whatever is under way: nothing runs any more."""
        if self._batch is not None:
            self._close(self._batch)
        self._flush()

    def paths(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the paths in the workspace that a call names, in normal form."""
        root = "" if self._workspace is None else str(self._workspace.root)
        found: list[str] = []
        for name in _PATHS:
            given = arguments.get(name)
            if isinstance(given, str) and given:
                inside = posixpath.relpath(posixpath.join(root, given), root) if root else given
                try:
                    found.append(normalize_path(inside) or ".")
                except (ValueError, OSError):
                    found.append(given)  # it is refused, by whoever is asked
        return tuple(dict.fromkeys(found))

    def _tool(self, call: ToolCall) -> Tool[Any, Any]:
        reads = call.name in READING

        def access(params: Any, _: ToolContext) -> ToolAccess:
            paths = self.paths(params)
            if call.name in WRITING:
                return ToolAccess(writes=paths)
            if call.name == "Read":
                return ToolAccess(reads=paths)
            return ToolAccess(searches=paths or (".",)) if reads else ToolAccess(others=paths)

        return Tool(
            call.name, _DESCRIPTION, None, read_only=reads, bypasses_filesystem=True, access=access
        )

    def _join(self, workspace: Filesystem, call: _Call) -> None:
        batch = self._batch
        if batch is None:
            block = transaction(self._context.session, workspace, bypasses_filesystem=True)
            step = block.__enter__()
            batch = self._batch = _Batch(block, step, self._state(workspace))
        call_id = call.checked.call.call_id
        batch.calls[call_id] = call
        batch.running.add(call_id)
        call.snapshot_ref = batch.step.snapshot_ref

    def _state(self, workspace: Filesystem) -> Callable[[], Diff | None] | None:
        needs_diff = any(policy.needs_diff for policy in self._options.policies)
        if not needs_diff or not isinstance(workspace, Snapshotable):
            return None
        snapshot = take_snapshot(workspace, "before approval")
        return lambda: diff_since(workspace, snapshot)

    def _close(self, batch: _Batch) -> None:
        """End a transaction: keep it, unless a policy refuses what was changed."""
        self._batch = None
        try:
            events = batch.step.settle()
            changed = tuple(dict.fromkeys(getattr(event, "path", ".") for event in events))
            refusal = self._reviewed(batch, changed)
            if refusal is not None:
                batch.step.rollback()
            for call in batch.calls.values():
                named = self.paths(call.checked.params)
                alone = len(batch.calls) == 1
                call.changed = changed if alone else tuple(p for p in changed if p in named)
                call.refusal = refusal
        except BaseException as error:
            batch.block.__exit__(type(error), error, None)
            raise
        batch.block.__exit__(None, None, None)
        self._flush()

    def _reviewed(self, batch: _Batch, changed: Sequence[str]) -> str | None:
        changes = batch.before() if batch.before is not None and changed else None
        for call in batch.calls.values():
            for policy in self._options.policies:
                reason = policy.review(call.checked, changed, changes)
                if reason is not None:
                    return reason
        return None

    def _tell_call(self, call: ToolCall, begun: _Call | None, text: str, *, success: bool) -> None:
        session, prompt = self._context.session, self._context.prompt
        arguments: Mapping[str, object] = {} if isinstance(call.arguments, str) else call.arguments
        now = self._options.clock.monotonic()
        self.tell(
            ToolInvoked(
                tool=call.name,
                call_id=call.call_id,
                params=dict(arguments),
                success=success,
                result_message=text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...",
                result_size=len(text),
                error=None,
                duration_ms=0.0 if begun is None else (now - begun.started) * 1000,
                paths=(() if begun is None else begun.changed) or self.paths(arguments),
                snapshot_ref=None if begun is None else begun.snapshot_ref,
                prompt_name=None if prompt is None else f"{prompt.ns}:{prompt.key}",
                session_id=session.session_id,
            )
        )

    def _flush(self) -> None:
        untold, self._untold = self._untold, []
        for event in untold:
            self._context.session.dispatch(event)


def _denied(reason: str) -> dict[str, Any]:
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": reason,
        }
    }
