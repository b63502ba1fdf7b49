"""Steps: what one record of a timeline says about files, sessions and conversation.

A step holds only what differs from the step before it, its parent. Steps with the same parent
are branches, so a timeline is a tree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias, cast
from uuid import UUID

from weakincentives.errors import WinkError
from weakincentives.runtime.events import CommandOutcome
from weakincentives.serde import SerdeError, convert

EntryKind: TypeAlias = Literal["file", "directory", "link", "special"]
StepKind: TypeAlias = Literal["start", "prompt", "model", "tool", "context", "end", "files"]
"""What happened: the recording began, a prompt was sent, the model answered, a tool call ended,
a prompt was finished, or files changed outside of all that."""
_CLIENT = "mcp:"  # before the name of a client, where a model would have its prompt


class TimelineError(WinkError, ValueError):
    """A timeline cannot be read or continued."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, directory or link at one step.

    `id` is git's: that of a file's content, or of a link's target. Special files have none, nor
    have files that cannot be read.
    """

    path: str
    kind: EntryKind
    permissions: int
    size: int = 0
    id: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class FileChanges:
    """Paths that are gone, with everything below them; then entries that are new or differ.

    `before` are the entries that these paths had, without those below a directory that is gone.
    """

    removed: tuple[str, ...] = ()
    entries: tuple[Entry, ...] = ()
    before: tuple[Entry, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return bool(self.removed or self.entries)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that changed."""
        return tuple(sorted({*self.removed, *(each.path for each in self.entries)}))


@dataclass(frozen=True, slots=True)
class Splice:
    """A list that keeps items at its beginning and its end, and gets others in between."""

    start: int
    stop: int
    items: tuple[Any, ...] = ()

    def apply(self, before: Sequence[Any]) -> list[Any]:
        """Return the list after the change."""
        end = max(self.start, len(before) - self.stop)
        return [*before[: self.start], *self.items, *before[end:]]


@dataclass(frozen=True, slots=True)
class ItemChange:
    """An item of which some fields differ: those that are new, and lists that differ in part."""

    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    lists: dict[str, Splice] = field(default_factory=dict[str, Splice])

    def apply(self, before: object) -> dict[str, Any]:
        """Return the item after the change, as JSON values.

        Raises:
            TimelineError: The item does not have such fields.
        """
        item = cast("dict[str, Any]", before) if isinstance(before, dict) else {}
        after = {**item, **self.fields}
        for name, each in self.lists.items():
            known = item.get(name)
            if not isinstance(known, list | tuple):
                raise TimelineError(f"A step changes a list that is not there: {name!r}")
            after[name] = each.apply(cast("Sequence[Any]", known))
        return after


@dataclass(frozen=True, slots=True)
class ListChange:
    """A list that keeps its first items, perhaps changes the next one, and gets others."""

    keep: int
    items: tuple[Any, ...] = ()
    changed: ItemChange | None = None

    def apply(self, before: Sequence[Any]) -> list[Any]:
        """Return the list after the change."""
        kept = list(before[: self.keep])
        if self.changed is not None:
            if self.keep >= len(before):
                raise TimelineError("A step changes an item that is not there")
            kept.append(self.changed.apply(before[self.keep]))
        return [*kept, *self.items]


@dataclass(frozen=True, slots=True)
class SliceChange:
    """The change of one slice; its items are JSON values."""

    type: str
    log: bool
    change: ListChange


@dataclass(frozen=True, slots=True)
class SessionChange:
    """The change of one session: the slices that differ, and the types of those that are gone."""

    session_id: UUID
    parent_id: UUID | None
    created_at: datetime
    tags: dict[str, str] = field(default_factory=dict[str, str])
    slices: tuple[SliceChange, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as it is stored.

    Args:
        number: Its number in the timeline, from 1.
        parent: The number of the step before it; None for the first.
        kind: What happened.
        created_at: When.
        title: What happened, in a line.
        branch: The name of the branch that begins here, if it has one.
        details: The event as JSON values.
        files: What changed in the workspace.
        sessions: What changed in the sessions, parents first.
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
    branch: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    files: FileChanges = field(default_factory=FileChanges)
    sessions: tuple[SessionChange, ...] = ()
    messages: ListChange | None = None
    tree: str | None = None
    is_stored: bool = False
    undoes: int | None = None

    @property
    def actor(self) -> str:
        """Who did it: `model`, `tool`, `command`, `client` or `person`."""
        if self.kind == "files":
            return "person"
        if self.client is not None:
            return "client"
        if self.kind != "tool":
            return "model" if self.kind == "model" else "person"
        return "tool" if self.command is None else "command"

    @property
    def success(self) -> bool:
        """Whether it succeeded; a failed tool call was rolled back."""
        return bool(self.details.get("success", True))

    @property
    def command(self) -> CommandOutcome | None:
        """How the command of a tool call ended, if it had one; the call itself may succeed."""
        found: object = self.details.get("command")
        if found is None:
            return None
        try:
            return convert(found, CommandOutcome)
        except SerdeError:  # another version, or nonsense
            return None

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


@dataclass(frozen=True, slots=True)
class TimelineHeader:
    """The first record: what was recorded, and when it began."""

    session_id: UUID
    created_at: datetime
    root: str
    """The directory of the workspace; `/` if it is not on disk."""
    generator: str
    """The program that wrote it."""


@dataclass(slots=True)
class StoredSlice:
    """A slice at one step, as JSON values."""

    log: bool
    items: list[Any]


@dataclass(slots=True)
class StoredSession:
    """A session at one step, with its slices by the names of their types."""

    session_id: UUID
    parent_id: UUID | None
    created_at: datetime
    tags: dict[str, str]
    slices: dict[str, StoredSlice]

    def copy(self) -> "StoredSession":
        """Return a copy whose slices can be replaced."""
        return StoredSession(
            self.session_id, self.parent_id, self.created_at, self.tags, dict(self.slices)
        )


def apply_sessions(
    sessions: Mapping[UUID, StoredSession], changes: Iterable[SessionChange]
) -> dict[UUID, StoredSession]:
    """Return the sessions after the changes of a step."""
    result = dict(sessions)
    for change in changes:
        known = result.get(change.session_id)
        if known is None:
            session = StoredSession(
                change.session_id, change.parent_id, change.created_at, change.tags, {}
            )
        else:
            session = known.copy()
        for name in change.removed:
            session.slices.pop(name, None)
        for each in change.slices:
            before = session.slices.get(each.type)
            items = each.change.apply([] if before is None else before.items)
            session.slices[each.type] = StoredSlice(each.log, items)
        result[change.session_id] = session
    return result
