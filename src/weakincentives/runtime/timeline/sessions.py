"""Sessions of a timeline: from stored data to sessions with typed slices."""

from collections.abc import Sequence
from uuid import uuid4

from weakincentives.runtime.events import EventBus
from weakincentives.runtime.session import Session, Snapshot
from weakincentives.runtime.session.dump import rebuild_session
from weakincentives.runtime.session.dump_format import DumpedSession
from weakincentives.runtime.session.snapshots import (
    Types,
    Unknown,
    find_imported_type,
    load_slices,
)
from weakincentives.runtime.timeline.steps import StoredSession


def rebuild(
    stored: Sequence[StoredSession], types: Types, unknown: Unknown, bus: EventBus | None
) -> Session:
    """Return the root of stored sessions, parents first, with its descendants.

    Raises:
        SnapshotFormatError: A type is unknown, or an item does not match it.
    """
    places = {each.session_id: place for place, each in enumerate(stored)}
    entries: list[DumpedSession] = []
    snapshots: list[Snapshot] = []
    for each in stored:
        slices, logs = load_slices(
            [(name, found.log, found.items) for name, found in each.slices.items()],
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
        entries.append(
            DumpedSession(each.session_id, snapshot.snapshot_id, parent, each.created_at, each.tags)
        )
        snapshots.append(snapshot)
    return rebuild_session(entries, snapshots, bus)
