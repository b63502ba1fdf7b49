"""A tree of sessions as snapshots in the order of a dump, and back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import uuid5

from weakincentives.runtime.events import EventBus
from weakincentives.runtime.session.dumpformat import (
    FORMAT,
    VERSION,
    DumpedArchive,
    DumpedSession,
    DumpHeader,
)
from weakincentives.runtime.session.session import Session
from weakincentives.runtime.session.snapshots import Snapshot


@dataclass(frozen=True, slots=True)
class SessionTree:
    """A session and all below it at one moment, each after its parent."""

    date: datetime
    sessions: Sequence[Session]
    parents: Sequence[int | None]
    """Where the parent of each session is."""
    snapshots: Sequence[Snapshot]

    @property
    def has_items(self) -> bool:
        """Whether there is anything in a slice."""
        return any(items for each in self.snapshots for items in each.slices.values())

    def header(self, archive: DumpedArchive | None) -> DumpHeader:
        """Return the first line of the dump."""
        entries = [
            DumpedSession(
                each.session_id, snapshot.snapshot_id, parent, each.created_at, dict(each.tags)
            )
            for each, parent, snapshot in zip(
                self.sessions, self.parents, self.snapshots, strict=True
            )
        ]
        return DumpHeader(FORMAT, VERSION, self.date, archive, entries)


def taken(session: Session, date: datetime) -> SessionTree:
    """Return a session and all below it as they are; each session is of one moment."""
    sessions: list[Session] = []
    parents: list[int | None] = []
    waiting: list[tuple[Session, int | None]] = [(session, None)]
    while waiting:
        current, parent = waiting.pop()
        waiting += [(child, len(sessions)) for child in reversed(current.children)]
        sessions.append(current)
        parents.append(parent)
    return SessionTree(date, sessions, parents, [_snapshot(each, date) for each in sessions])


def rebuilt(header: DumpHeader, snapshots: Sequence[Snapshot], bus: EventBus | None) -> Session:
    """Return the root of a tree that was dumped; `bus` is for the root alone."""
    made: list[Session] = []
    for entry, snapshot in zip(header.sessions, snapshots, strict=True):
        session = Session(
            bus=bus if entry.parent is None else None,
            parent=None if entry.parent is None else made[entry.parent],
            session_id=entry.session_id,
            created_at=entry.created_at,
            tags=entry.tags,
        )
        for kind in snapshot.slices:
            session.install(kind, log=kind in snapshot.logs)
        session.restore(snapshot, preserve_logs=False)
        made.append(session)
    return made[0]


def _snapshot(session: Session, date: datetime) -> Snapshot:
    # an id that follows from the date: the same state gives the same bytes
    identity = uuid5(session.session_id, date.isoformat())
    return replace(session.snapshot(snapshot_id=identity), created_at=date)
