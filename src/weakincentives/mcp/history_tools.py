"""Tools on the history: checkpoint, list_checkpoints, diff, undo and review.

Their results become structured content and output schemas as they are, so the fields are named in
the style of the protocol.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Literal, NamedTuple

from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Diff, FilesystemSnapshot
from weakincentives.mcp.clients import McpClient
from weakincentives.mcp.history import MAX_LISTED, START, History
from weakincentives.mcp.steps import UNDO, Checkpoint, Step, find_undone
from weakincentives.posix import display_path, display_paths, is_within
from weakincentives.prompt import Tool, ToolAccess, ToolContext, ToolResult

CHECKPOINT = "checkpoint"
"""The name of the tool that makes checkpoints."""
_MAX_PATCH = 20_000
_MAX_RESOURCE = 2_000_000  # characters of a diff that is read as a resource
_MAX_NOTE = 500
_MAX_SHOWN = 5  # of a call in a list
_FIRST = "first"
_START_NAME = "the state when this server started"
_INTERRUPTED = " (interrupted when the server was killed; with all changes until the next start)"
MAX_ITEMS = 100
"""Calls and changes in one result."""
MAX_PATHS = 20
"""Paths of one call in a list."""


@dataclass(frozen=True, slots=True)
class ChangeItem:
    """A file, link or directory that is different.

    Args:
        path: Its path.
        kind: What happened to it: added, removed, modified, renamed or mode-changed.
        source: Its old path if it was renamed, else null.
        insertions: The number of new lines.
        deletions: The number of removed lines.
        binary: Whether its content is not text, so that lines are not counted.
        directory: Whether it is a directory.
    """

    path: str
    kind: str
    source: str | None
    insertions: int
    deletions: int
    binary: bool
    directory: bool


@dataclass(frozen=True, slots=True)
class CallItem:
    """A call that changed files, or failed.

    Args:
        number: Its number.
        tool: The tool.
        client: Who made it.
        time: When it began; a change outside of all calls, when it was found.
        failed: Whether it failed, so that it changed nothing.
        interrupted: Whether an earlier server was killed during it, or the disk was full. `paths`
            are then the paths that had changed at the next start; an undo was rolled back.
        paths: What it changed; the first 20 paths.
        totalPaths: How many paths it changed.
        undoes: The calls that it undid; the last 100.
        undoneBy: The call that undid it, or null.
    """

    number: int
    tool: str
    client: str
    failed: bool
    interrupted: bool
    paths: tuple[str, ...]
    totalPaths: int
    undoes: tuple[int, ...]
    undoneBy: int | None
    time: datetime

    @classmethod
    def describe(
        cls, step: Step, undone_by: int | None, is_visible: Callable[[str], bool]
    ) -> "CallItem":
        """Return a call as an item, with the paths that its reader may see."""
        paths = tuple(display_path(path) for path in step.paths if is_visible(path))
        return cls(
            number=step.number,
            tool=step.tool,
            client=step.client,
            failed=step.after is None,
            interrupted=step.is_interrupted,
            paths=paths[:MAX_PATHS],
            totalPaths=step.count - len(step.paths) + len(paths),
            undoes=step.undoes[-MAX_ITEMS:],
            undoneBy=undone_by,
            time=step.created_at,
        )


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """The result of `checkpoint`.

    Args:
        checkpoint: The new checkpoint.
    """

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class CheckpointsResult:
    """The result of `list_checkpoints`.

    Args:
        checkpoints: The checkpoints, the oldest first.
    """

    checkpoints: tuple[Checkpoint, ...]


@dataclass(frozen=True, slots=True)
class DiffResult:
    """The result of `diff`.

    Args:
        changes: The changes, sorted by path; at most 100, beginning at `start`.
        totalChanges: How many there are.
        truncated: Whether the diff in `content` was cut.
        nextStart: The `start` that continues it; null if it is complete.
    """

    changes: tuple[ChangeItem, ...]
    totalChanges: int
    truncated: bool
    nextStart: int | None


@dataclass(frozen=True, slots=True)
class UndoResult:
    """The result of `undo`.

    Args:
        undone: The numbers of the calls that were undone, the oldest first; the last 100.
    """

    undone: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReviewResult:
    """The result of `review`.

    Args:
        calls: The calls, the oldest first; the last 100.
        totalCalls: How many calls there are.
        changes: The changes since the start, or since the state in `from`, sorted by path; the
            first 100.
        totalChanges: How many there are.
    """

    calls: tuple[CallItem, ...]
    totalCalls: int
    changes: tuple[ChangeItem, ...]
    totalChanges: int


HistoryResult = CheckpointResult | CheckpointsResult | DiffResult | UndoResult | ReviewResult
"""The result of a tool on the history."""


def change_items(found: Diff, start: int = 0) -> tuple[ChangeItem, ...]:
    """Return what is different as items, from an index on; bounded."""
    changes = zip(found.entries[start:], found.line_counts[start : start + MAX_ITEMS], strict=False)
    return tuple(
        ChangeItem(
            path=display_path(change.path),
            kind=change.kind,
            source=None if change.source is None else display_path(change.source),
            insertions=count.insertions,
            deletions=count.deletions,
            binary=count.is_binary,
            directory=change.is_directory,
        )
        for change, count in changes
    )


@dataclass(frozen=True, slots=True)
class CheckpointParams:
    """Save the current state.

    Args:
        name: Its name (default: "checkpoint-1" and so on).
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
        since: The earlier state: "start" (the default), the name of a checkpoint, or the number of
            a call, for the state before it.
        to: The later state: the name of a checkpoint, or the number of a call, for the state after
            it (default: the current state).
        call: Show what this call changed, instead of from and to.
        path: Show only this file, or only files below this directory.
        start: Skip this many changes, to continue a diff that was cut.
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
    """List all calls and all changes.

    Args:
        since: The state to compare with: "start" (the default), "first" for the state before the
            first call in the list, the name of a checkpoint, or the number of a call.
    """

    since: str | int | None = field(default=None, metadata={"name": "from"})


@dataclass(frozen=True, slots=True)
class UndoParams:
    """Undo calls.

    Args:
        call: The number of the call (default: your last one that changed something).
        checkpoint: Undo all calls since this checkpoint instead; "start" for all.
        paths: Undo only what was changed at and below these paths.
    """

    call: int | None = None
    checkpoint: str | None = None
    paths: tuple[str, ...] = ()


class HistoryTool(NamedTuple):
    """A tool on the history, for people, models and programs."""

    title: str
    description: str
    params: type[Any]
    result: type[HistoryResult]


TOOLS: Mapping[str, HistoryTool] = {
    CHECKPOINT: HistoryTool(
        "Make a checkpoint",
        "Save the current state of all files under a name, to compare with it or return to it"
        " later. Cheap: use it before a risky change.",
        CheckpointParams,
        CheckpointResult,
    ),
    "list_checkpoints": HistoryTool(
        "List checkpoints",
        "List the checkpoints, the oldest first.",
        NoParams,
        CheckpointsResult,
    ),
    "diff": HistoryTool(
        "Show changes",
        "Show what was changed, as a unified diff: since the start, since a checkpoint or a call,"
        " between two of them, or by one call.",
        DiffParams,
        DiffResult,
    ),
    UNDO: HistoryTool(
        "Undo calls",
        "Undo your last call that changed files, another call, or all calls since a checkpoint."
        " Restores files exactly: content, permissions, deleted and new files. Never loses later"
        " changes by others: if one is in the way, nothing is undone and the answer names it. An"
        " undo is a call too: undo it to redo.",
        UndoParams,
        UndoResult,
    ),
    "review": HistoryTool(
        "Review all changes",
        "List all calls that changed files since the start, with the client of each, and all"
        " changes that are there now.",
        ReviewParams,
        ReviewResult,
    ),
}
"""The tools on the history, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryTools:
    """Tools on the history of a workspace; without `undo` if it is read-only."""

    history: History
    read_only: bool
    resolve: Callable[[str], str]
    """Returns the workspace path for a path of a client."""
    is_visible: Callable[[McpClient, str], bool]
    """Returns whether a client may see and change a path."""
    advice: str
    """What the person can do with all changes, for `review`."""
    max_characters: int
    """The length of a diff."""

    def create(self) -> Sequence[Tool[Any, Any]]:
        """Return the tools."""
        handlers: Mapping[str, Any] = {
            CHECKPOINT: self._checkpoint,
            "list_checkpoints": self._list_checkpoints,
            "diff": self._diff,
            UNDO: self._undo,
            "review": self._review,
        }
        return [
            Tool[Any, HistoryResult](
                name,
                tool.description,
                handlers[name],
                params_type=tool.params,
                access=self._access,
                read_only=name != UNDO,
                atomic=name == UNDO,
            )
            for name, tool in TOOLS.items()
            if name != UNDO or not self.read_only
        ]

    def diff_since(self, client: McpClient, name: str) -> str:
        """Return the whole diff since a state that a client names; bounded.

        Raises:
            ToolValidationError: There is no such state.
        """
        found = self._visible(self.history.diff(self._state(name, "before")), client)
        return found.patch(max_characters=_MAX_RESOURCE) if found else ""

    # --- handlers ---

    def _checkpoint(
        self, params: CheckpointParams, *, context: ToolContext
    ) -> ToolResult[HistoryResult]:
        note = (params.note or "")[:_MAX_NOTE]
        made = self.history.add_checkpoint(str(_client(context)), params.name, note)
        back = f"To go back to it: undo with checkpoint={made.name!r}; to compare"
        how = "To compare" if self.read_only else back
        return _text(
            f"Checkpoint {made.name!r} is the state after call {made.call}. {how}: diff with"
            f" from={made.name!r}.",
            CheckpointResult(made),
        )

    def _list_checkpoints(
        self, params: NoParams, *, context: ToolContext
    ) -> ToolResult[HistoryResult]:
        del params, context
        found = tuple(each.checkpoint for each in self.history.checkpoints)
        return _text("\n".join(f"- {each}" for each in found), CheckpointsResult(found))

    def _diff(self, params: DiffParams, *, context: ToolContext) -> ToolResult[HistoryResult]:
        if params.call is not None and (params.since is not None or params.to is not None):
            raise ToolValidationError("call cannot be combined with from and to")
        if params.call is not None:
            step = self.history.find_step(params.call)
            before, after = step.before, step.after
        else:
            before = self._state(params.since, "before")
            after = self._state(params.to, "after")
        found = self._visible(self.history.diff(before, after), _client(context))
        if params.path is not None:
            wanted = self.resolve(params.path)
            found = found.only(
                lambda each: any(is_within(side.path, [wanted]) for side in each.sides)
            )
        if not found:
            return _text("No changes.", DiffResult((), 0, truncated=False, nextStart=None))
        room = min(params.max_characters or _MAX_PATCH, self.max_characters)
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
        paths = [*map(self.resolve, params.paths)] or None
        restored = self.history.undo(steps, context, paths=paths)
        names = ", ".join(f"{step}" for step in steps[-MAX_ITEMS:])
        if not restored:
            return _text(f"Nothing is left to undo of {names}.", UndoResult())
        return _text(
            f"Undid {names}. Restored: {display_paths(restored, MAX_LISTED)}",
            UndoResult(tuple(step.number for step in steps[-MAX_ITEMS:])),
        )

    def _review(self, params: ReviewParams, *, context: ToolContext) -> ToolResult[HistoryResult]:
        client = _client(context)
        self.history.start()  # adds what an earlier server has left unfinished
        sees = partial(self.is_visible, client)
        recorded = self.history.log.steps
        steps = [step for step in recorded if not step.paths or any(map(sees, step.paths))]
        since, name = self._find_base(params.since, steps)
        found = self._visible(self.history.diff(since), client)
        undone = find_undone(recorded)
        calls = tuple(
            CallItem.describe(each, undone.get(each.number), sees) for each in steps[-MAX_ITEMS:]
        )
        lines = list(map(_describe_call, calls))
        if len(steps) > len(lines):
            lines.insert(0, f"({len(steps) - len(lines):,} earlier calls)")
        parts = ["Calls:", *lines, ""] if lines else ["No call has changed anything.", ""]
        if found:
            parts += [f"Changes since {name}:", str(found), "", self.advice]
        else:
            parts.append(f"No changes since {name}.")
        if since is None and self._has_earlier(steps, undone):
            how = f"review with from={_FIRST!r} shows that."
            if params.since == _FIRST:
                how = "the state before them was pruned."
            parts.append(f"Earlier changes by calls are not included; {how}")
        return _text(
            "\n".join(parts),
            ReviewResult(calls, len(steps), change_items(found), len(found.entries)),
        )

    # --- helpers ---

    def _find_base(
        self, given: str | int | None, steps: Sequence[Step]
    ) -> tuple[FilesystemSnapshot | None, str]:
        """Return the state to compare with, None for the start, and its name."""
        if given != _FIRST:
            since = self._state(given, "before")
            return since, _START_NAME if since is None else repr(given)
        first = next((each for each in steps if self.history.has_states(each)), None)
        if first is None:  # all are pruned
            return None, _START_NAME
        is_first = first.number == steps[0].number
        return first.before, f"the state before {'the first call' if is_first else first}"

    def _has_earlier(self, steps: Sequence[Step], undone: Mapping[int, int]) -> bool:
        """Return whether the start has changes of calls before it that are not undone."""
        start = self.history.checkpoints[0].checkpoint.call
        earlier = (each for each in steps if each.number <= start and each.after is not None)
        return any(not each.is_undo and each.number not in undone for each in earlier)

    def _select(self, params: UndoParams, context: ToolContext) -> Sequence[Step]:
        """Return the calls to undo, the oldest first."""
        if params.call is not None and params.checkpoint is not None:
            raise ToolValidationError("call cannot be combined with checkpoint")
        if params.checkpoint is not None:
            return self.history.steps_since(self.history.find_checkpoint(params.checkpoint))
        if params.call is not None:
            return [self.history.find_step(params.call)]
        step = self.history.last_step_of(str(_client(context)))
        return [] if step is None else [step]

    def _access(self, params: object, context: ToolContext) -> ToolAccess:
        """Return the paths of an undo, for policies; other tools are not bound to paths."""
        if not isinstance(params, UndoParams):
            return ToolAccess()
        try:
            steps = self._select(params, context)
        except ToolValidationError:
            return ToolAccess()  # the tool reports it
        chosen = [*map(self.resolve, params.paths)] or None
        return ToolAccess(others=tuple(sorted(self.history.changed_paths(steps, chosen))))

    def _state(
        self, name: str | int | None, side: Literal["before", "after"]
    ) -> FilesystemSnapshot | None:
        """Return the state that a client names; None for the default."""
        text = "" if name is None else str(name).strip()
        if not text or (side == "before" and text == START):
            return None
        number = text.removeprefix("#").removeprefix("call ")
        if number.isdecimal() and not any(
            text == each.checkpoint.name for each in self.history.checkpoints
        ):
            step = self.history.find_step(int(number))
            return step.before if side == "before" else step.after
        return self.history.find_checkpoint(text).snapshot

    def _visible(self, found: Diff, client: McpClient) -> Diff:
        return found.only(
            lambda each: all(self.is_visible(client, side.path) for side in each.sides)
        )


def _client(context: ToolContext) -> McpClient:
    client = context.prompt
    if not isinstance(client, McpClient):
        raise ToolValidationError("This tool needs an MCP client")
    return client


def _text(text: str, value: HistoryResult) -> ToolResult[HistoryResult]:
    return ToolResult(text, value, exclude_value_from_context=True)


def _describe_call(call: CallItem) -> str:
    text = f"- call {call.number}: {call.tool} by {call.client}"
    if call.failed:
        how = "was interrupted and rolled back" if call.interrupted else "failed"
        return f"{text} {how}; it changed nothing"
    paths = ", ".join(call.paths[:_MAX_SHOWN])
    more = call.totalPaths - _MAX_SHOWN
    return "".join(
        [
            f"{text}: {paths}",
            f" and {more:,} more" if more > 0 else "",
            _INTERRUPTED if call.interrupted else "",
            "" if call.undoneBy is None else f" (undone by call {call.undoneBy})",
        ]
    )
