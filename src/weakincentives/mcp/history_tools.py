"""Tools on the history: checkpoint, list_checkpoints, diff, undo and review."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Literal

from weakincentives.contrib.tools import ToolSettings
from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Change, Diff, Filesystem, FilesystemSnapshot
from weakincentives.mcp.clients import McpClient
from weakincentives.mcp.history import START, History, join_paths
from weakincentives.mcp.history_results import (
    MAX_ITEMS,
    CallItem,
    CheckpointItem,
    CheckpointResult,
    CheckpointsResult,
    DiffResult,
    HistoryResult,
    ReviewResult,
    UndoResult,
    change_items,
)
from weakincentives.mcp.steps import UNDO, Checkpoint, Step
from weakincentives.prompt import Tool, ToolAccess, ToolContext, ToolResult

CHECKPOINT = "checkpoint"
"""The name of the tool that makes checkpoints."""
_MAX_PATCH = 20_000
_MAX_RESOURCE = 2_000_000  # characters of a diff that is read as a resource
_MAX_NOTE = 500
_MAX_PATHS = 5  # of a call in a list
_FIRST = "first"
_INTERRUPTED = " (interrupted when the server was killed; with all changes until the next start)"


@dataclass(frozen=True, slots=True)
class CheckpointParams:
    """Keep the present state.

    Args:
        name: A name to find it by; by default "checkpoint-1" and so on.
        note: What this state is, for `list_checkpoints`.
    """

    name: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class NoParams:
    """No parameters."""


@dataclass(frozen=True, slots=True)
class DiffParams:
    """Compare two states.

    Args:
        since: The earlier state: "start", the name of a checkpoint, or the number of a call, for
            the state before it. By default the start.
        to: The later state: the name of a checkpoint, or the number of a call, for the state after
            it. By default the present.
        call: Show what this call changed, instead of from and to.
        path: Show only this file, or what is below this directory.
        start: Leave out this many changes, to continue a diff that was cut.
        max_characters: The maximum length.
    """

    since: str | int | None = field(default=None, metadata={"name": "from"})
    to: str | int | None = None
    call: int | None = None
    path: str | None = None
    start: int = 0
    max_characters: int | None = None


@dataclass(frozen=True, slots=True)
class ReviewParams:
    """List all calls, and what is different now.

    Args:
        since: The state to compare with: "start", "first" for the state before the first call in
            the list, the name of a checkpoint, or the number of a call. By default the start.
    """

    since: str | int | None = field(default=None, metadata={"name": "from"})


@dataclass(frozen=True, slots=True)
class UndoParams:
    """Undo calls.

    Args:
        call: The number of the call; by default your last one that changed something.
        checkpoint: Undo all calls since this checkpoint instead; "start" for all.
        paths: Undo only what was changed at and below these paths.
    """

    call: int | None = None
    checkpoint: str | None = None
    paths: tuple[str, ...] = ()


RESULTS: Mapping[str, tuple[str, type[HistoryResult]]] = {
    CHECKPOINT: ("Make a checkpoint", CheckpointResult),
    "list_checkpoints": ("List checkpoints", CheckpointsResult),
    "diff": ("Show changes", DiffResult),
    UNDO: ("Undo calls", UndoResult),
    "review": ("Review all changes", ReviewResult),
}
"""The title and the type of the result of each tool."""
_DESCRIPTIONS = {
    CHECKPOINT: "Keep the present state of all files under a name, to compare with it or go back"
    " to it later. Cheap: do it before a risky change.",
    "list_checkpoints": "List the checkpoints, the oldest first.",
    "diff": "Show what was changed, as a unified diff: since the start, since a checkpoint or a"
    " call, between two of them, or by one call.",
    UNDO: "Undo your last call that changed files, another call, or all calls since a checkpoint."
    " Files are exactly as before: content, permissions, deleted and new ones. Changes that others"
    " made since are never lost: if one is in the way, nothing is undone and the answer names it."
    " An undo is a call too: undo it to redo.",
    "review": "List all calls that changed files since the start, by whom, and everything that is"
    " different now.",
}


class HistoryTools:
    """Tools on the history of a workspace."""

    def __init__(
        self,
        history: History,
        filesystem: Filesystem,
        *,
        settings: ToolSettings,
        advice: str,
        is_visible: Callable[[McpClient, str], bool],
    ) -> None:
        """Offer `history`.

        Args:
            history: The history.
            filesystem: The workspace.
            settings: How paths are written.
            advice: What the person can do with all changes, for `review`.
            is_visible: Returns whether a client may see and change a path.
        """
        self._history = history
        self._filesystem = filesystem
        self._settings = settings
        self._advice = advice
        self._is_visible = is_visible

    def create(self, *, read_only: bool = False) -> Sequence[Tool[Any, Any]]:
        """Return the tools; without `undo` if the workspace is read-only."""
        tools: list[Tool[Any, Any]] = [
            _tool(CHECKPOINT, self._checkpoint, CheckpointParams),
            _tool("list_checkpoints", self._list_checkpoints, NoParams),
            _tool("diff", self._diff, DiffParams),
            _tool("review", self._review, ReviewParams),
        ]
        if not read_only:
            undo = Tool[UndoParams, HistoryResult](
                UNDO,
                _DESCRIPTIONS[UNDO],
                self._undo,
                params_type=UndoParams,
                access=self._undo_access,
            )
            tools.insert(3, undo)
        return tools

    def diff_since(self, client: McpClient, name: str) -> str:
        """Return the whole diff since a state that a client names; bounded.

        Raises:
            ToolValidationError: There is no such state.
        """
        found = self._visible(self._history.diff(self._state(name, "before")), client)
        return found.patch(max_characters=_MAX_RESOURCE) if found else ""

    # --- handlers ---

    def _checkpoint(
        self, params: CheckpointParams, *, context: ToolContext
    ) -> ToolResult[HistoryResult]:
        note = (params.note or "")[:_MAX_NOTE]
        made = self._history.add_checkpoint(_client(context), params.name, note)
        back = f"To go back to it: undo with checkpoint={made.name!r}; to compare"
        how = "To compare" if self._filesystem.read_only else back
        return _text(
            f"Checkpoint {made.name!r} is the state after call {made.after}. {how}: diff with"
            f" from={made.name!r}.",
            CheckpointResult(CheckpointItem.describe(made)),
        )

    def _list_checkpoints(
        self, params: NoParams, *, context: ToolContext
    ) -> ToolResult[HistoryResult]:
        del params, context
        found = self._history.checkpoints
        return _text(
            "\n".join(map(_describe_checkpoint, found)),
            CheckpointsResult(tuple(map(CheckpointItem.describe, found))),
        )

    def _diff(self, params: DiffParams, *, context: ToolContext) -> ToolResult[HistoryResult]:
        if params.call is not None and (params.since is not None or params.to is not None):
            raise ToolValidationError("call cannot be combined with from and to")
        if params.call is not None:
            step = self._history.find_step(params.call)
            before, after = step.before, step.after
        else:
            before = self._state(params.since, "before")
            after = self._state(params.to, "after")
        found = self._visible(self._history.diff(before, after), _client(context))
        if params.path is not None:
            wanted = self._resolve(context, params.path)
            found = found.only(lambda each: _is_at(each, wanted))
        if not found:
            return _text(
                "Nothing is different.", DiffResult((), 0, truncated=False, nextStart=None)
            )
        room = min(params.max_characters or _MAX_PATCH, self._settings.budget)
        patch, following = found.patch_page(room, start=params.start)
        value = DiffResult(
            change_items(found, params.start),
            len(found.entries),
            truncated=following is not None,
            nextStart=following,
        )
        return _text(f"{found.statistics}\n\n{patch}", value)

    def _undo(self, params: UndoParams, *, context: ToolContext) -> ToolResult[HistoryResult]:
        steps = self._select(params, context)
        if not steps:
            return _text("There is nothing to undo.", UndoResult())
        paths = [self._resolve(context, each) for each in params.paths] or None
        restored = self._history.undo(steps, paths=paths)
        names = ", ".join(f"{step}" for step in steps[-MAX_ITEMS:])
        if not restored:
            return _text(f"Nothing is left to undo of {names}.", UndoResult())
        return _text(
            f"Undid {names}. Restored: {join_paths(restored)}",
            UndoResult(tuple(step.number for step in steps[-MAX_ITEMS:])),
        )

    def _review(self, params: ReviewParams, *, context: ToolContext) -> ToolResult[HistoryResult]:
        client = _client(context)
        steps = [each for each in self._history.steps if self._may_see(each, client)]
        if params.since == _FIRST:
            since = next((each.before for each in steps if each.before is not None), None)
            name = "the state before the first call"
        else:
            since = self._state(params.since, "before")
            name = "the start" if since is None else repr(params.since)
        found = self._visible(self._history.diff(since), client)
        calls = tuple(self._item(each, client) for each in steps[-MAX_ITEMS:])
        lines = list(map(_describe_call, calls))
        if len(steps) > len(lines):
            lines.insert(0, f"({len(steps) - len(lines):,} earlier calls)")
        parts = ["Calls:", *lines, ""] if lines else ["No call has changed anything.", ""]
        if found:
            parts += [f"Different from {name}:", str(found), "", self._advice]
        else:
            parts.append(f"Nothing is different from {name}.")
        return _text(
            "\n".join(parts),
            ReviewResult(calls, len(steps), change_items(found), len(found.entries)),
        )

    # --- helpers ---

    def _select(self, params: UndoParams, context: ToolContext) -> Sequence[Step]:
        """Return the calls to undo, the oldest first."""
        if params.call is not None and params.checkpoint is not None:
            raise ToolValidationError("call cannot be combined with checkpoint")
        if params.checkpoint is not None:
            return self._history.steps_since(self._history.find_checkpoint(params.checkpoint))
        if params.call is not None:
            return [self._history.find_step(params.call)]
        step = self._history.last_step_of(_client(context))
        return [] if step is None else [step]

    def _undo_access(self, params: UndoParams, context: ToolContext) -> ToolAccess:
        """Return the paths of an undo, for policies."""
        try:
            steps = self._select(params, context)
        except ToolValidationError:
            return ToolAccess()  # the tool reports it
        chosen = [self._resolve(context, each) for each in params.paths] or None
        return ToolAccess(others=tuple(sorted(self._history.changed_paths(steps, chosen))))

    def _state(
        self, name: str | int | None, side: Literal["before", "after"]
    ) -> FilesystemSnapshot | None:
        """Return the state that a client names; None for the default."""
        text = "" if name is None else str(name).strip()
        if not text or (side == "before" and text == START):
            return None
        number = text.removeprefix("#").removeprefix("call ")
        if number.isdecimal() and text not in {each.name for each in self._history.checkpoints}:
            step = self._history.find_step(int(number))
            return step.before if side == "before" else step.after
        return self._history.find_checkpoint(text).snapshot

    def _resolve(self, context: ToolContext, path: str) -> str:
        return HandlerContext(context, self._filesystem, self._settings).resolve_path(path)

    def _visible(self, found: Diff, client: McpClient) -> Diff:
        return found.only(
            lambda each: all(self._is_visible(client, side.path) for side in each.sides)
        )

    def _may_see(self, step: Step, client: McpClient) -> bool:
        return not step.paths or any(self._is_visible(client, path) for path in step.paths)

    def _item(self, step: Step, client: McpClient) -> CallItem:
        undone_by = self._history.undone_by(step)
        return CallItem.describe(step, undone_by, partial(self._is_visible, client))


def _tool(name: str, handler: Any, params: type[Any]) -> Tool[Any, Any]:
    return Tool[Any, Any](
        name, _DESCRIPTIONS[name], handler, params_type=params, read_only=True, access=_no_access
    )


def _no_access(params: Any, context: ToolContext) -> ToolAccess:
    del params, context
    return ToolAccess()


def _client(context: ToolContext) -> McpClient:
    client = context.prompt
    if not isinstance(client, McpClient):
        raise ToolValidationError("This tool needs an MCP client")
    return client


def _text(text: str, value: HistoryResult) -> ToolResult[HistoryResult]:
    return ToolResult(text, value, exclude_value_from_context=True)


def _is_at(change: Change, path: str) -> bool:
    return any(f"{side.path}/".startswith(f"{path}/") or not path for side in change.sides)


def _describe_call(call: CallItem) -> str:
    text = f"- call {call.number}: {call.tool} by {call.client}"
    if call.failed:
        return f"{text} failed and changed nothing"
    paths = ", ".join(call.paths[:_MAX_PATHS])
    more = call.totalPaths - _MAX_PATHS
    return "".join(
        [
            f"{text}: {paths}",
            f" and {more:,} more" if more > 0 else "",
            _INTERRUPTED if call.interrupted else "",
            "" if call.undoneBy is None else f" (undone by call {call.undoneBy})",
        ]
    )


def _describe_checkpoint(checkpoint: Checkpoint) -> str:
    who = "" if checkpoint.client is None else f" by {checkpoint.client}"
    note = f": {checkpoint.note}" if checkpoint.note else ""
    when = _format_time(checkpoint.created_at)
    return f"- {checkpoint.name}, after call {checkpoint.after}, {when}{who}{note}"


def _format_time(when: datetime) -> str:
    return when.strftime("%Y-%m-%d %H:%M:%S UTC")
