"""Steps: what one record of a history says about files, sessions and conversation.

A step holds only what differs from the step before it, its parent. Steps with the same parent
are branches, so a history is a tree.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

from weakincentives.errors import WinkError
from weakincentives.history.change import Edit
from weakincentives.history.deltas import Delta

StepKind: TypeAlias = Literal[
    "start", "prompt", "model", "tool", "context", "test", "end", "files", "lost"
]
"""What happened: the recording began, a prompt was sent, the model answered, a tool call ended,
the conversation was compacted, the user's tests ran, a prompt was finished, files changed outside
of all that, or its record is damaged, so nobody knows."""
Actor: TypeAlias = Literal["model", "tool", "command", "person", "client"]
"""Who did it: the model, a tool, a command, an MCP client, or a person."""
_CLIENT = "mcp:"  # before the name of a client, where a model would have its prompt


class TimelineError(WinkError, ValueError):
    """A timeline cannot be read or continued."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as it is stored.

    Args:
        number: Its number in the timeline, from 1.
        parent: The number of the step before it; None for the first.
        kind: What happened.
        created_at: When.
        title: What happened, in a line.
        actor: Who did it.
        branch: The name of the branch that begins here, if it has one.
        details: The event as JSON values.
        files: What changed in the workspace, path by path; a directory that is gone is listed
            with everything that was in it.
        sessions: What changed in the sessions, by their IDs; a new one comes after its parent.
        messages: What changed in the conversation.
        tree: The id of the tree of all files; None if there is no workspace.
        is_stored: Whether this tree is stored. Otherwise it is that of the parent with `files`
            put in.
        undoes: The step that this one undoes, if it does.
    """

    number: int
    parent: int | None
    kind: StepKind
    created_at: datetime
    title: str
    actor: Actor = "person"
    branch: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    files: tuple[Edit, ...] = ()
    sessions: Delta | None = None
    messages: Delta | None = None
    tree: str | None = None
    is_stored: bool = False
    undoes: int | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that changed."""
        return tuple(sorted(each.path for each in self.files))

    @property
    def success(self) -> bool:
        """Whether it succeeded; a failed tool call was rolled back."""
        return bool(self.details.get("success", True))

    @property
    def duration_ms(self) -> float | None:
        """How long it took, if known."""
        found = self.details.get("duration_ms")
        return float(found) if isinstance(found, int | float) else None

    @property
    def client(self) -> str | None:
        """The MCP client that made a call, if it was one."""
        name = str(self.details.get("prompt_name", ""))
        return name.removeprefix(_CLIENT) if name.startswith(_CLIENT) else None

    def changed_slices(self) -> Iterator[tuple[UUID, str, int]]:
        """Yield each slice that changed: session, type, and how many items at its start stay."""
        sessions = {} if self.sessions is None else self.sessions.fields
        for session_id, found in sessions.items():
            if found.whole:  # it is new
                yield from ((UUID(session_id), name, 0) for name in found.whole[0]["slices"])
                continue
            slices = found.fields.get("slices", Delta())
            for name, each in slices.fields.items():
                items = each.fields.get("items")
                yield UUID(session_id), name, 0 if items is None else items.start


@dataclass(frozen=True, slots=True)
class TimelineHeader:
    """The first record: what was recorded, and when it began."""

    session_id: UUID
    created_at: datetime
    root: str
    """The directory of the workspace; `/` if it is not on disk."""
    generator: str
    """The program that wrote it."""
