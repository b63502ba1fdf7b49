"""Steps: what one record of a history says about files, sessions and conversation.

A step holds only what differs from the step before it, its parent. Steps with the same parent
are branches, so a history is a tree.

What changes beside the files, such as sessions and conversations, is kept as deltas of JSON
objects and arrays, without knowing what it means. Dataclasses count as objects, and tuples as
arrays.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias, cast
from uuid import UUID

import msgspec

from weakincentives.errors import WinkError
from weakincentives.history.change import Edit

StepKind: TypeAlias = Literal[
    "start", "prompt", "model", "tool", "context", "test", "end", "files", "lost"
]
"""What happened: the recording began, a prompt was sent, the model answered, a tool call ended,
the conversation was compacted, the user's tests ran, a prompt was finished, files changed outside
of all that, or its record is damaged, so nobody knows."""
Actor: TypeAlias = Literal["model", "tool", "command", "person", "client"]
"""Who did it: the model, a tool, a command, an MCP client, or a person."""
_MAX_DEPTH = 32  # below it, values are stored whole
_CLIENT = "mcp:"  # before the name of a client, where a model would have its prompt


class TimelineError(WinkError, ValueError):
    """A timeline cannot be read or continued."""


class DeltaError(WinkError, ValueError):
    """A delta changes what is not there."""


class Delta(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The difference of two values: the new one as a whole, or that of an object or array.

    Args:
        whole: The new value, alone.
        fields: The fields of an object that are new or differ.
        removed: The fields that are gone.
        start: How many items of an array stay at its beginning.
        inner: How the next one differs, if it stays.
        items: The items that follow.
        stop: How many stay at its end.
    """

    whole: tuple[Any, ...] = ()
    fields: dict[str, "Delta"] = {}
    removed: tuple[str, ...] = ()
    start: int = 0
    inner: "Delta | None" = None
    items: tuple[Any, ...] = ()
    stop: int = 0

    def apply(self, before: object, drafts: dict[int, list[Any]] | None = None) -> Any:
        """Return the value after the change; `before` stays as it is.

        Args:
            before: The value.
            drafts: The lists made so far by applying deltas one after the other, by identity.
                They are changed in place, so that a list that grows is not copied each time.

        Raises:
            DeltaError: It has no such fields or items.
        """
        if self.whole:
            return self.whole[0]
        if self.fields or self.removed:
            return self._apply_fields(before, drafts)
        if not isinstance(before, list | tuple):
            raise DeltaError("A step changes a list that is not there")
        known = cast("Sequence[Any]", before)
        inner = []
        if self.inner is not None:
            inner = [self.inner.apply(_item(known, self.start), drafts)]
        end = max(self.start + len(inner), len(known) - self.stop)
        made = None if drafts is None else drafts.get(id(known))
        if made is None:
            made = list(known)
            if drafts is not None:
                drafts[id(made)] = made
        made[self.start : end] = [*inner, *self.items]
        return made

    def _apply_fields(self, before: object, drafts: dict[int, list[Any]] | None) -> dict[str, Any]:
        if not isinstance(before, dict):
            raise DeltaError("A step changes an object that is not there")
        known = cast("dict[str, Any]", before)
        changed = {name: each.apply(known.get(name), drafts) for name, each in self.fields.items()}
        kept = {name: value for name, value in known.items() if name not in self.removed}
        return {**kept, **changed}


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


def find_delta(before: Any, after: Any, depth: int = 0) -> Delta | None:
    """Return how a value differs from the one before it; None if it is the same."""
    if before is after:
        return None
    old, new = _fields_of(before), _fields_of(after)
    if depth < _MAX_DEPTH:
        if old is not None and new is not None and type(before) is type(after):
            return _compare_fields(old, new, depth)
        if isinstance(before, list | tuple) and isinstance(after, list | tuple):
            sequences = cast("tuple[Sequence[Any], Sequence[Any]]", (before, after))
            return _compare_items(*sequences, depth)
    return None if before == after else Delta(whole=(after,))


def _compare_fields(old: Mapping[str, Any], new: Mapping[str, Any], depth: int) -> Delta | None:
    changed: dict[str, Delta] = {}
    for name, value in new.items():
        found = Delta(whole=(value,))
        if name in old:
            found = find_delta(old[name], value, depth + 1)
        if found is not None:
            changed[name] = found
    removed = tuple(name for name in old if name not in new)
    return Delta(fields=changed, removed=removed) if changed or removed else None


def _compare_items(old: Sequence[Any], new: Sequence[Any], depth: int) -> Delta | None:
    """Return the shortest middle part that differs."""
    shorter = min(len(old), len(new))
    start = _shared_length(old, new, shorter)
    stop = _shared_length(old[start:][::-1], new[start:][::-1], shorter - start)
    if start + stop == len(old) == len(new):
        return None
    items, inner = tuple(new[start : len(new) - stop]), None
    if len(items) == 1 and len(old) == len(new):
        inner = find_delta(old[start], items[0], depth + 1)
    if inner is None or inner.whole:
        return Delta(start=start, items=items, stop=stop)
    return Delta(start=start, inner=inner, stop=stop)


def _shared_length(first: Sequence[Any], second: Sequence[Any], most: int) -> int:
    """Return how many items both begin with; an item that is equal but another one counts too."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (old, new) in pairs if old is not new and old != new), most)


def _fields_of(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, dict):
        found = cast("dict[Any, Any]", value)
        return found if all(isinstance(name, str) for name in found) else None
    if not is_dataclass(value) or isinstance(value, type):
        return None
    names = (each.name for each in fields(value) if not each.name.startswith("_"))
    return {name: getattr(value, name) for name in names}


def _item(items: Sequence[Any], place: int) -> object:
    if not 0 <= place < len(items):
        raise DeltaError("A step changes an item that is not there")
    return items[place]
