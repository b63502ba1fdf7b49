"""The sessions of a timeline: what changed in them, and sessions with typed slices again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from weakincentives.history import Delta, find_delta
from weakincentives.runtime.events import EventBus
from weakincentives.runtime.session import Session, Snapshot
from weakincentives.runtime.session.dump import CapturedSession, rebuild_session
from weakincentives.runtime.session.dump_format import DumpedSession
from weakincentives.runtime.session.snapshots import (
    NamedSlice,
    Types,
    Unknown,
    find_imported_type,
    list_slices,
    load_slices,
)
from weakincentives.serde import SerdeError, encode


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


class SessionTracker:
    """Collects what changed in a session and its descendants."""

    def __init__(self) -> None:
        """Begin with nothing; everything in a session is new."""
        self._known: Mapping[str, Any] = {}
        self._latest: Mapping[str, Any] = {}
        self._described: dict[int, tuple[Any, Any]] = {}  # items that cannot be stored, by identity

    def compare(
        self, captured: Sequence[CapturedSession], max_item: int | None = None
    ) -> Delta | None:
        """Return what changed since the last time; call `accept` once it is stored.

        An item that JSON cannot represent, or that takes more than `max_item` bytes, becomes a
        description of it.
        """
        self._latest = self._values(captured)
        delta = find_delta(self._known, self._latest)
        try:
            if max_item is None:
                encode(delta)
                return delta
        except SerdeError:
            pass
        for _, snapshot in captured:
            for slice_items in snapshot.slices.values():
                for item in slice_items:
                    stored = describe(item, max_item)
                    if stored is not item:
                        self._described[id(item)] = item, stored
        self._latest = self._values(captured)
        return find_delta(self._known, self._latest)

    def accept(self) -> None:
        """Compare with the sessions of the last `compare` from now on."""
        self._known = self._latest

    def _values(self, captured: Sequence[CapturedSession]) -> dict[str, Any]:
        return {
            str(entry.session_id): {
                "session_id": entry.session_id,
                "parent_id": None if entry.parent is None else captured[entry.parent][0].session_id,
                "created_at": entry.created_at,
                "tags": entry.tags,
                "slices": {
                    each.type: {"log": each.log, "items": self._stored(each.items)}
                    for each in list_slices(snapshot.slices, snapshot.logs)
                },
            }
            for entry, snapshot in captured
        }

    def _stored(self, items: Sequence[Any]) -> Sequence[Any]:
        if not self._described:
            return items
        return tuple(self._described.get(id(each), (each, each))[1] for each in items)


def describe(value: Any, max_size: int | None = None) -> Any:
    """Return a value, or a description if JSON cannot represent it in `max_size` bytes."""
    try:
        size = len(encode(value))
    except SerdeError as error:
        return {"not_serializable": _shorten(value), "reason": str(error)}
    if max_size is None or size <= max_size:
        return value
    return {"too_large": f"This took {size:,} bytes, more than a step can store"}


def _shorten(item: Any) -> str:
    """Return a description of an item; one that is nested too deeply has only its type."""
    try:
        return repr(item)
    except RecursionError:
        return type(item).__name__


def rebuild(
    stored: Sequence[StoredSession], types: Types, unknown: Unknown, bus: EventBus | None
) -> Session:
    """Return the root of stored sessions, parents first, with its descendants.

    Raises:
        SnapshotFormatError: A type is unknown, or an item does not match it.
    """
    places = {each.session_id: place for place, each in enumerate(stored)}
    found: list[CapturedSession] = []
    for each in stored:
        slices, logs = load_slices(
            [NamedSlice(name, item.log, item.items) for name, item in each.slices.items()],
            types,
            find=find_imported_type,
            unknown=unknown,
        )
        snapshot = Snapshot(
            snapshot_id=uuid4(),
            session_id=each.session_id,
            created_at=each.created_at,
            slices=slices,
            logs=logs,
        )
        parent = None if each.parent_id is None else places[each.parent_id]
        entry = DumpedSession(
            each.session_id, snapshot.snapshot_id, parent, each.created_at, each.tags
        )
        found.append((entry, snapshot))
    return rebuild_session(found, bus)
