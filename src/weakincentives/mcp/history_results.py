"""The results of the tools on the history, with fields for programs.

They become structured content and output schemas as they are, so their fields are named in the
style of the protocol.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from weakincentives.filesystem import Change, Diff, LineCount
from weakincentives.mcp.steps import Checkpoint, Step
from weakincentives.posix import display_path

MAX_ITEMS = 100
"""Calls and changes in one result."""
MAX_PATHS = 20
"""Paths of one call in a list."""


@dataclass(frozen=True, slots=True)
class CheckpointItem:
    """A checkpoint.

    Args:
        name: Its name.
        note: What its client wrote about it.
        call: The number of the last call before it; 0 if there is none.
        client: Who made it; null for the start.
        time: When it was made.
    """

    name: str
    note: str
    call: int
    client: str | None
    time: datetime

    @classmethod
    def describe(cls, checkpoint: Checkpoint) -> "CheckpointItem":
        """Return a checkpoint as an item."""
        client = None if checkpoint.client is None else str(checkpoint.client)
        return cls(
            checkpoint.name, checkpoint.note, checkpoint.after, client, checkpoint.created_at
        )


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

    @classmethod
    def describe(cls, change: Change, count: LineCount) -> "ChangeItem":
        """Return a change as an item."""
        return cls(
            path=display_path(change.path),
            kind=change.kind,
            source=None if change.source is None else display_path(change.source),
            insertions=count.insertions,
            deletions=count.deletions,
            binary=count.is_binary,
            directory=change.is_directory,
        )


@dataclass(frozen=True, slots=True)
class CallItem:
    """A call that changed files, or failed.

    Args:
        number: Its number.
        tool: The tool.
        client: Who made it.
        time: When it ended.
        failed: Whether it failed; it has then changed nothing.
        interrupted: Whether an earlier server was killed during it; the paths are then those that
            were different when the next one started.
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
            client=str(step.client),
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

    checkpoint: CheckpointItem


@dataclass(frozen=True, slots=True)
class CheckpointsResult:
    """The result of `list_checkpoints`.

    Args:
        checkpoints: The checkpoints, the oldest first.
    """

    checkpoints: tuple[CheckpointItem, ...]


@dataclass(frozen=True, slots=True)
class DiffResult:
    """The result of `diff`.

    Args:
        changes: What is different, sorted by path; at most 100 from `start` on.
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
        changes: What is different from the start, or from the state that `from` names, sorted by
            path; the first 100.
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
    changes: Sequence[Change] = found.entries[start : start + MAX_ITEMS]
    counts = found.line_counts[start : start + MAX_ITEMS]
    return tuple(map(ChangeItem.describe, changes, counts))
