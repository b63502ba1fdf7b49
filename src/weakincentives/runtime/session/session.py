"""Sessions: what an agent knows and has done, as typed slices behind an event bus."""

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from datetime import datetime
from threading import Lock, RLock
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID, uuid4

from weakincentives.errors import WinkError
from weakincentives.runtime.clock import SYSTEM_CLOCK, Clock
from weakincentives.runtime.events import (
    EventBus,
    InProcessEventBus,
    PromptExecuted,
    PromptRendered,
    PublishResult,
    SessionReset,
    ToolInvoked,
)
from weakincentives.runtime.session.branch import Branch
from weakincentives.runtime.session.reducers import Reducer, append_all
from weakincentives.runtime.session.slices import Slice, SliceReader, SliceWriter
from weakincentives.runtime.session.snapshots import Slices, Snapshot
from weakincentives.runtime.session.store import SessionSavepoint, Store

T = TypeVar("T")
LOG_TYPES: tuple[type[Any], ...] = (ToolInvoked, PromptRendered, PromptExecuted)
_PATIENCE = 30.0  # seconds; who waits for a thread that waits for him must not wait for ever
_PRIORITY = 5.0  # seconds that a commit waits for one with priority, which may wait for it in turn
_log = logging.getLogger(__name__)
_publisher: ContextVar[UUID | None] = ContextVar("publisher", default=None)


def current_publisher() -> UUID | None:
    """Return the session that dispatches what is being published now, if one does.

    Several sessions may share a bus: a reducer that must not fold what happened to
    another session asks here.
    """
    return _publisher.get()


class UnknownTagError(WinkError, KeyError):
    """No snapshot of the session has this tag."""

    def __init__(self, tag: str) -> None:
        """Name the tag."""
        super().__init__(tag)
        self.tag = tag

    def __str__(self) -> str:
        """Return the sentence; a KeyError would show its quoted form."""
        return f"No snapshot has the tag: {self.tag!r}"


class Session:
    """Typed slices of frozen dataclasses, folded from events by pure reducers.

    `session[T]` is the slice of the type `T`. Events that are published on the bus, by
    whom ever, are folded into the slices that have a reducer for them. Every method may be
    called from any thread.
    """

    def __init__(
        self,
        *,
        bus: EventBus | None = None,
        dispatcher: EventBus | None = None,
        parent: "Session | None" = None,
        session_id: UUID | None = None,
        created_at: datetime | None = None,
        tags: Mapping[str, str] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Start empty, on a bus of its own unless one is given.

        Args:
            bus: Where its events are published; several sessions on one bus fold the same events.
            dispatcher: Another word for `bus`.
            parent: The session that this one works for.
            session_id: Its name; a random one if omitted.
            created_at: When it began; now if omitted.
            tags: Labels of yours.
            clock: Where its dates come from.

        Raises:
            ValueError: `bus` and `dispatcher` differ, or `created_at` has no time zone.
        """
        if bus is not None and dispatcher is not None and bus is not dispatcher:
            raise ValueError("bus and dispatcher are two words for one thing: give one")
        if created_at is not None and created_at.tzinfo is None:
            raise ValueError(f"created_at has no time zone: {created_at!r}")
        chosen = bus if bus is not None else dispatcher
        self._bus: EventBus = InProcessEventBus() if chosen is None else chosen
        self._session_id = session_id or uuid4()
        self._clock = clock
        self._created_at = created_at or clock.now()
        self._tags = MappingProxyType(dict(tags or {}))
        self._lock = Lock()
        self._telling = RLock()
        self._priority = Lock()
        self._prioritized: Branch | None = None
        self._children: tuple[Session, ...] = ()
        self._store = Store()
        for kind in LOG_TYPES:
            self._store.install(kind, None, log=True)
            self._store.register(kind, kind, append_all)
        _Feed(self._store, self._bus, self._session_id)
        self._parent = parent
        if parent is not None:
            parent._adopt(self)

    def __repr__(self) -> str:
        """Return its name."""
        return f"Session({str(self._session_id)!r})"

    @property
    def bus(self) -> EventBus:
        """Where its events are published."""
        return self._bus

    @property
    def dispatcher(self) -> EventBus:
        """Another word for `bus`."""
        return self._bus

    @property
    def session_id(self) -> UUID:
        """Its name."""
        return self._session_id

    @property
    def created_at(self) -> datetime:
        """When it began."""
        return self._created_at

    @property
    def tags(self) -> Mapping[str, str]:
        """The labels that it was given."""
        return self._tags

    @property
    def parent(self) -> "Session | None":
        """The session that this one works for."""
        return self._parent

    @property
    def children(self) -> "tuple[Session, ...]":
        """The sessions that work for this one, oldest first."""
        return self._children

    @property
    def snapshots(self) -> Mapping[str, Snapshot]:
        """The latest snapshot of each tag."""
        return MappingProxyType(dict(self._store.tags()))

    def __getitem__(self, kind: type[T]) -> Slice[T]:
        """Return the slice of a type.

        Raises:
            TypeError: It is not a frozen dataclass.
        """
        return Slice(self._store, kind, self.dispatch)

    def query(self, kind: type[T]) -> SliceReader[T]:
        """Return the slice of a type, to be read."""
        return self[kind]

    def mutate(self, kind: type[T]) -> SliceWriter[T]:
        """Return the slice of a type, to be changed."""
        return self[kind]

    def install(
        self,
        kind: type[T],
        *,
        initial: Callable[[], T] | T | None = None,
        reducers: Mapping[type[Any], Reducer[T, Any]] | None = None,
        log: bool = False,
        refresh: Callable[[T | None], T] | None = None,
    ) -> Slice[T]:
        """Declare a slice and return it.

        Args:
            kind: The type of its items.
            initial: Its first item, or what makes it: now if it is empty, and at every reset.
            reducers: Reducers by the type of their events.
            log: Whether it tells what happened, and so stays when state is restored.
            refresh: Given if it describes something outside the session: takes the latest item
                that a restore would bring back, and returns what is true now. A slice of this
                kind is no part of transactions.

        Raises:
            TypeError: The type is not a frozen dataclass, or `initial` is of another type.
        """
        made = self[kind]
        self._store.install(kind, _maker(kind, initial), log, refresh)
        for event_type, reducer in (reducers or {}).items():
            made.register(event_type, reducer)
        return made

    def dispatch(self, event: object) -> PublishResult:
        """Publish an event on the bus, which brings it to the reducers and to all subscribers.

        A reducer that fails leaves its slice unchanged, stops nobody, and is in the result.

        Raises:
            TransactionEndedError: This belongs to a transaction that was taken back.
        """
        self._store.check_open()
        token = _publisher.set(self._session_id)
        try:
            return self._bus.publish(event)
        finally:
            _publisher.reset(token)

    def snapshot(self, tag: str | None = None, *, snapshot_id: UUID | None = None) -> Snapshot:
        """Return all slices as they are now; with a tag, `rollback` finds it again."""
        captured = self._store.capture()
        made = Snapshot(
            snapshot_id=snapshot_id or uuid4(),
            session_id=self._session_id,
            created_at=self._clock.now(),
            tag=tag,
            slices=Slices(captured.items),
            logs=captured.logs,
        )
        if tag is not None:
            self._store.tag(tag, made)
        return made

    def restore(
        self, snapshot: Snapshot, *, preserve_logs: bool = True, refresh: bool = True
    ) -> None:
        """Bring the slices back to a snapshot, of this session or another.

        Logs stay as they are, unless `preserve_logs` is False. A slice that the snapshot does
        not have gets its initial item. One that describes something outside, like the files of
        a workspace, is made to agree with that; without `refresh` it is brought back like the
        others, which is right only if what it describes has gone back too.
        """
        self._store.restore(snapshot.captured, preserve_logs=preserve_logs, refresh=refresh)

    def rollback(self, tag: str) -> Snapshot:
        """Restore the latest snapshot with a tag, and return it.

        Raises:
            UnknownTagError: No snapshot has it.
        """
        found = self._store.tags().get(tag)
        if found is None:
            raise UnknownTagError(tag)
        self.restore(found)
        return found

    def reset(self) -> None:
        """Start over: every slice gets its initial item or is emptied, logs too.

        Reducers, tagged snapshots and children stay. Then `SessionReset` is published.
        """
        self._store.reset()
        self.dispatch(SessionReset(self._session_id))

    def clone(
        self,
        *,
        bus: EventBus | None = None,
        parent: "Session | None" = None,
        session_id: UUID | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> "Session":
        """Return a session with the same slices, reducers, snapshots and tags, on its own bus.

        Nothing that happens to one of the two is seen by the other.
        """
        made = Session(
            bus=bus,
            parent=parent,
            session_id=session_id,
            tags=self._tags if tags is None else tags,
            clock=self._clock,
        )
        made._store.copy_from(self._store)
        return made

    def savepoint(self) -> SessionSavepoint:
        """Return this moment of the state slices, for `restore_savepoint`."""
        return self._store.savepoint()

    def restore_savepoint(self, savepoint: SessionSavepoint) -> None:
        """Bring the state slices back to a moment of this session.

        Raises:
            ValueError: The moment is another session's.
        """
        self._store.restore_savepoint(savepoint)

    def refresh(self, kind: type[T], make: Callable[[T | None], T]) -> None:
        """Make a slice that describes something outside what `make` makes of its latest item.

        It is called again if the slice changes meanwhile, since it may have looked too early.
        """
        self._store.refresh(kind, make)

    def branch(self) -> Branch:
        """Return what a transaction changes, apart from the session until it is committed.

        Raises:
            TransactionEndedError: The transaction around it was taken back.
        """
        return self._store.branch()

    def prioritize(self, branch: Branch) -> Callable[[], None]:
        """Let the commits of other transactions wait for that of `branch`; return what ends it.

        So one that has conflicted does not conflict again. They wait for a few seconds only,
        and so does this for another branch that has priority.
        """
        if not self._priority.acquire(timeout=_PRIORITY):
            return lambda: None
        self._prioritized = branch

        def end() -> None:
            self._prioritized = None
            self._priority.release()

        return end

    def _await_priority(self, branch: Branch) -> None:
        """Wait until no other branch has priority, unless `branch` ends inside of another one."""
        first = self._prioritized
        is_before_others = first is None or first is branch or branch.parent is not None
        if is_before_others or not branch.has_changed:
            return
        if self._priority.acquire(timeout=_PRIORITY):
            self._priority.release()

    def commit(
        self, branch: Branch, release: Callable[[], object], events: Iterable[object] = ()
    ) -> None:
        """Make a branch part of the session in one step with `release`, then publish `events`.

        Events are published in the order of the commits, whatever thread does it.

        Raises:
            TransactionConflictError: Others have changed what was read; `release` was not called.
            TransactionEndedError: The branch has ended.
        """
        told = tuple(events)

        def finish() -> None:
            release()
            self._store.outbox.extend(told)

        self._await_priority(branch)
        branch.commit(finish)
        if told:
            self._tell_all()

    def _tell_all(self) -> None:
        """Publish what is in the outbox, with that of others who are about to do so."""
        outbox = self._store.outbox
        # one thread at a time, or an old state of a file could be told after a newer one
        if not self._telling.acquire(timeout=_PATIENCE):
            return  # a subscriber waits for this very call: who tells it goes on with the outbox
        try:
            while outbox:
                event = outbox.popleft()
                for failure in self.dispatch(event).errors:
                    _log.warning("The session did not take in %s: %s", event, failure)
        finally:
            self._telling.release()

    def _adopt(self, child: "Session") -> None:
        with self._lock:
            self._children = (*self._children, child)


class _Feed:
    """Brings the events of a bus to a store, for as long as anybody uses the store."""

    def __init__(self, store: Store, bus: EventBus, session_id: UUID) -> None:
        self._store = weakref.ref(store)
        self._session_id = session_id
        self._stop = bus.subscribe(object, self)

    def __repr__(self) -> str:
        return f"Session({str(self._session_id)!r})"

    def __call__(self, event: object) -> None:
        store = self._store()
        if store is None:
            self._stop()
            return
        failed = store.fold(event)
        if len(failed) == 1:
            raise failed[0]
        if failed:
            raise ExceptionGroup(f"{len(failed)} reducers failed", failed)


def _maker(kind: type[T], initial: Callable[[], T] | T | None) -> Callable[[], Any] | None:
    """Return what makes the initial item."""
    if isinstance(initial, kind):
        return lambda: initial
    if initial is None or callable(initial):
        return initial
    raise TypeError(f"Not a {kind.__qualname__}, nor what makes one: {initial!r}")


def select_all(session: Session, kind: type[T]) -> tuple[T, ...]:
    """Return all items of a type."""
    return session[kind].all()


def select_latest(session: Session, kind: type[T]) -> T | None:
    """Return the last item of a type; None where there is none."""
    return session[kind].latest()


def select_where(session: Session, kind: type[T], predicate: Callable[[T], bool]) -> tuple[T, ...]:
    """Return the items of a type for which `predicate` is true."""
    return session[kind].where(predicate)
