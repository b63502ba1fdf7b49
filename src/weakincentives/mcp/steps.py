"""Steps and checkpoints: what the history of a workspace keeps about a call and a state."""

from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

from weakincentives.filesystem import Change, FilesystemEvent, FilesystemSnapshot, StateReplaced
from weakincentives.filesystem.base import is_tool_output
from weakincentives.mcp.clients import McpClient
from weakincentives.posix import parents_of

MAX_PATHS = 200
"""Paths that are remembered of one call, for lists."""
UNDO = "undo"
"""The name of the tool that takes calls back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A call that changed something, or failed.

    Args:
        number: Its number, counted from 1.
        client: Who made it.
        tool: The tool.
        before: The state before it; None if it failed.
        after: The state after it; None if it failed.
        paths: What it changed: the first paths, sorted.
        count: The number of paths that it changed.
        undoes: The calls that it took back, if it is an undo.
        own: The paths that it changed itself; None if it is not known, as for a command. Other
            programs may have changed files at the same time.
        is_interrupted: Whether its server was killed before it ended. The state after it is then
            that of the next start, so it includes what was changed in between.
        created_at: When it ended.
    """

    number: int
    client: McpClient
    tool: str
    before: FilesystemSnapshot | None = None
    after: FilesystemSnapshot | None = None
    paths: tuple[str, ...] = ()
    count: int = 0
    undoes: tuple[int, ...] = ()
    own: frozenset[str] | None = None
    is_interrupted: bool = False
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def is_undo(self) -> bool:
        """Whether it took back other calls."""
        return self.tool == UNDO

    def reverse(self) -> "Step":
        """Return the next step, for a call that was taken back at once."""
        return replace(
            self,
            number=self.number + 1,
            tool=UNDO,
            before=self.after,
            after=self.before,
            undoes=(self.number,),
        )

    def __str__(self) -> str:
        """Return the call in a few words."""
        return f"call {self.number} ({self.tool} by {self.client})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A state with a name.

    Args:
        name: Its name.
        note: What the client wants to remember about it.
        client: Who made it; None for the start.
        after: The number of the last call before it.
        snapshot: The state.
        created_at: When it was made.
    """

    name: str
    note: str = ""
    client: McpClient | None = None
    after: int = 0
    snapshot: FilesystemSnapshot
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))


class Recording:
    """What is noted while a call runs: the state before it, and what it changes."""

    def __init__(self, *, bypasses_filesystem: bool) -> None:
        """Note the events of a call; one that bypasses the filesystem may change anything."""
        self.before: FilesystemSnapshot | None = None
        self.paths: set[str] = set()
        self.is_open_ended: bool = bypasses_filesystem
        self.undoes: tuple[int, ...] = ()
        self.rolled_back: FilesystemSnapshot | None = None
        self.end: Callable[[], None] = _do_nothing

    def add(self, event: FilesystemEvent) -> None:
        """Note the paths of an event."""
        if isinstance(event, StateReplaced):
            if event.reason != "rollback":
                self.is_open_ended = True
            return
        self.paths.update(
            path for name in ("path", "source") if (path := getattr(event, name, None)) is not None
        )


class StepLog(Protocol):
    """Keeps steps for later sessions."""

    def begin(self, step: Step) -> None:
        """Note a call that begins, in case that this session is killed before it ends."""
        ...

    def end(self) -> None:
        """Note that the call has ended."""
        ...

    def interrupted(self) -> Iterable[Step]:
        """Return the calls whose session was killed before they ended; each is returned once."""
        ...

    def load(self) -> Sequence[Step]:
        """Return the steps of earlier sessions, numbered from 1, the oldest first."""
        ...

    def append(self, step: Step) -> None:
        """Add a step of this session."""
        ...


def is_own(step: Step, change: Change) -> bool:
    """Return whether a call made a change itself; a move or deletion covers everything below."""
    if step.own is None or change.path in step.own:
        return True
    if not step.own.isdisjoint(parents_of(change.path)):
        return True
    # a directory that was created or emptied for one of its paths
    is_parent = any(each.startswith(f"{change.path}/") for each in step.own)
    return change.is_directory and change.kind in ("added", "removed") and is_parent


def with_paths(step: Step, changed: AbstractSet[str]) -> Step:
    """Return a step with the paths that it changed."""
    parents = {parent for path in changed for parent in parents_of(path)}
    paths = sorted(path for path in changed - parents if not is_tool_output(path))
    return replace(step, paths=tuple(paths[:MAX_PATHS]), count=len(paths))


def find_undone(steps: Collection[Step]) -> dict[int, int]:
    """Return which calls are undone, and by which; an undo that is undone itself does not count."""
    undone: dict[int, int] = {}
    for step in reversed(tuple(steps)):
        if step.number not in undone:
            undone.update({number: step.number for number in step.undoes if number not in undone})
    return undone


def _do_nothing() -> None:
    pass
