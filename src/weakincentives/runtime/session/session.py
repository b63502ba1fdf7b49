"""Sessions: the state and history of an agent, as typed slices fed by an event bus."""

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from functools import partial
from threading import Lock, RLock
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar, overload
from uuid import UUID, uuid4

from weakincentives.errors import WinkError
from weakincentives.runtime.deadlines import SYSTEM_CLOCK, Clock
from weakincentives.runtime.events import (
    EventBus,
    InProcessEventBus,
    PromptExecuted,
    PromptRendered,
    PublishResult,
    SessionReset,
    ToolInvoked,
)
from weakincentives.runtime.session.reducers import (
    DEFAULT_DEFINITION,
    Definition,
    ItemsByType,
    Method,
    Reducer,
    SessionState,
    SliceOperation,
    append_all,
    check_items,
    check_slice_type,
    create_fold,
)
from weakincentives.runtime.session.snapshots import Slices, Snapshot
from weakincentives.runtime.session.store import Draft, SessionSavepoint, Store

T = TypeVar("T")
E = TypeVar("E")
LOG_TYPES: tuple[type[Any], ...] = (ToolInvoked, PromptRendered, PromptExecuted)
_PUBLISH_TIMEOUT = 30.0  # seconds; bounds a deadlock with a subscriber that waits for this thread
_log = logging.getLogger(__name__)
_publisher: ContextVar[UUID | None] = ContextVar("publisher", default=None)


def current_publisher() -> UUID | None:
    """Return the ID of the session that is dispatching the current event, if any.

    Several sessions may share a bus: a reducer can use this to ignore events of others.
    """
    return _publisher.get()


class UnknownTagError(WinkError, KeyError):
    """No snapshot of the session has this tag."""

    def __init__(self, tag: str) -> None:
        """Name the tag."""
        super().__init__(tag)
        self.tag = tag

    def __str__(self) -> str:
        """Return the message; `KeyError` would quote it."""
        return f"No snapshot has the tag: {self.tag!r}"


class Slice(Generic[T]):
    """The items of one type in a session.

    Results are values: later changes of the slice do not affect them.
    """

    __slots__ = ("_kind", "_publish", "_store")

    def __init__(
        self, store: Store, kind: type[T], publish: Callable[[object], PublishResult]
    ) -> None:
        """Use `session[kind]` instead.

        Raises:
            TypeError: `kind` is not a frozen dataclass.
        """
        check_slice_type(kind)
        self._store = store
        self._kind = kind
        self._publish = publish

    def __repr__(self) -> str:
        """Return its type and the number of items."""
        return f"Slice({self._kind.__qualname__}, {len(self.all())} items)"

    def all(self) -> tuple[T, ...]:
        """Return the items."""
        return self._store.read(self._kind).as_tuple()

    def latest(self) -> T | None:
        """Return the last item; None if there is none."""
        return self._store.read(self._kind).latest()

    def where(self, predicate: Callable[[T], bool]) -> tuple[T, ...]:
        """Return the items for which `predicate` is true."""
        return tuple(filter(predicate, self._store.read(self._kind)))

    def append(self, item: T) -> None:
        """Add an item; no event is published.

        Raises:
            TypeError: The item has another type.
        """
        check_items((item,), self._kind, None)
        kind, owner = self._kind, self._store.owner

        def add(state: SessionState) -> SessionState:
            return state.with_items({kind: state.get(kind).with_item(item, owner)})

        self._store.change(SliceOperation(kind, add))

    def seed(self, items: Iterable[T] | T) -> None:
        """Replace all items by `items`: several, or a single one.

        Raises:
            TypeError: An item has another type.
        """
        several: Any = (items,) if isinstance(items, self._kind) else items
        new: ItemsByType = {self._kind: check_items(tuple(several), self._kind, self._store.owner)}
        operation = SliceOperation(self._kind, partial(SessionState.with_items, items=new))
        self._store.change(operation, removes=True)

    def clear(self) -> None:
        """Remove all items."""
        self.seed(())

    @overload
    def register(self, event_type: type[E], reducer: Reducer[T, E]) -> None: ...

    @overload
    def register(self, event_type: type[E], reducer: Method[T, E]) -> None: ...

    def register(self, event_type: type[E], reducer: Reducer[T, E] | Method[T, E]) -> None:
        """Fold events of a type and its subclasses into the slice.

        A slice has one reducer per event type: registering another replaces it. A method of
        the slice's own class is called on the latest item, and its result replaces the items.

        Raises:
            TypeError: The reducer stores events whose type is not that of the slice.
        """
        kind, fold = self._kind, create_fold(self._kind, event_type, reducer)

        def add_reducer(state: SessionState) -> SessionState:
            known = state.definitions.by_kind.get(kind, DEFAULT_DEFINITION)
            reducers = {**known.reducers, event_type: fold}
            return state.with_definition(kind, replace(known, reducers=reducers))

        self._store.change(SliceOperation(kind, add_reducer))

    def dispatch(self, event: object) -> PublishResult:
        """Publish an event on the session's bus, for every slice and subscriber."""
        return self._publish(event)


class Session:
    """Typed slices of frozen dataclasses, folded from events by pure reducers.

    `session[T]` is the slice of the type `T`. Events published on the bus, by anyone, are
    folded into the slices that have a reducer for them. All methods are thread-safe.
    """

    bus: Final[EventBus]
    """The event bus."""
    dispatcher: Final[EventBus]
    """An alias of `bus`."""
    session_id: Final[UUID]
    """The ID."""
    created_at: Final[datetime]
    """When the session began."""
    tags: Final[Mapping[str, str]]
    """The labels."""
    parent: "Final[Session | None]"
    """The parent session."""
    children: "tuple[Session, ...]"
    """The child sessions, oldest first."""

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
        """Start empty, on a new bus unless one is given.

        Args:
            bus: The event bus; several sessions on one bus fold the same events.
            dispatcher: An alias of `bus`.
            parent: The parent session.
            session_id: The ID; by default random.
            created_at: When the session began; by default now.
            tags: Labels of your choice.
            clock: The source of dates.

        Raises:
            ValueError: `bus` and `dispatcher` differ, or `created_at` has no time zone.
        """
        self.bus = self.dispatcher = _choose_bus(bus, dispatcher)
        self.session_id = session_id or uuid4()
        self._clock = clock
        self.created_at = _check_date(created_at) or clock.now()
        self.tags = MappingProxyType(dict(tags or {}))
        self._lock = Lock()
        self._publish_lock = RLock()
        self.children = ()
        self._store = Store()
        for kind in LOG_TYPES:
            self.install(kind, reducers={kind: append_all}, log=True)
        _Feed(self._store, self.bus, self.session_id)
        self.parent = parent
        if parent is not None:
            parent.add_child(self)

    def __repr__(self) -> str:
        """Return the ID."""
        return f"Session({str(self.session_id)!r})"

    @property
    def snapshots(self) -> Mapping[str, Snapshot]:
        """The latest snapshot of each tag."""
        return MappingProxyType(dict(self._store.view().tags))

    def __getitem__(self, kind: type[T]) -> Slice[T]:
        """Return the slice of a type.

        Raises:
            TypeError: It is not a frozen dataclass.
        """
        return Slice(self._store, kind, self.dispatch)

    query = __getitem__
    mutate = __getitem__

    def install(
        self,
        kind: type[T],
        *,
        initial: Callable[[], T] | T | None = None,
        reducers: Mapping[type[Any], Reducer[T, Any]] | None = None,
        log: bool = False,
        refresh: Callable[[T | None], T] | None = None,
    ) -> Slice[T]:
        """Define a slice and return it.

        Args:
            kind: The type of its items.
            initial: The first item, or a factory: used now if the slice is empty, and after
                every reset.
            reducers: Reducers by event type.
            log: Whether it is a log of what happened, which a restore leaves alone.
            refresh: Makes the slice a mirror of something outside the session: takes the latest
                item that a restore would bring back, and returns the current one. Such a slice
                is not part of transactions.

        Raises:
            TypeError: The type is not a frozen dataclass, or `initial` has another type.
        """
        new_slice = self[kind]
        make = _initial_factory(kind, initial)
        first = None if make is None else check_items((make(),), kind, self._store.owner)

        def define(state: SessionState) -> SessionState:
            reducers = state.definitions.by_kind.get(kind, DEFAULT_DEFINITION).reducers
            state = state.with_definition(kind, Definition(make, log, refresh, reducers))
            return state if first is None or state.get(kind) else state.with_items({kind: first})

        if log or refresh is not None:
            self._store.change_trunk(define)
        else:
            self._store.change(SliceOperation(kind, define))
        for event_type, reducer in (reducers or {}).items():
            new_slice.register(event_type, reducer)
        return new_slice

    def dispatch(self, event: object) -> PublishResult:
        """Publish an event on the bus, to the reducers and all subscribers.

        If a reducer fails, its slice is unchanged, the others still run, and the error is in
        the result.

        Raises:
            TransactionEndedError: The current transaction was rolled back.
        """
        self._store.open_draft()  # raises if it was rolled back
        token = _publisher.set(self.session_id)
        try:
            return self.bus.publish(event)
        finally:
            _publisher.reset(token)

    def snapshot(self, tag: str | None = None, *, snapshot_id: UUID | None = None) -> Snapshot:
        """Return a snapshot of all slices; with a tag, `rollback` can restore it."""
        items, logs = self._store.capture()
        snapshot = Snapshot(
            snapshot_id=snapshot_id or uuid4(),
            session_id=self.session_id,
            created_at=self._clock.now(),
            tag=tag,
            slices=Slices(items),
            logs=logs,
        )
        if tag is not None:

            def set_tag(state: SessionState) -> SessionState:
                return state._replace(tags={**state.tags, tag: snapshot})

            self._store.change(SliceOperation(str, set_tag))  # no slice has this type
        return snapshot

    def restore(
        self, snapshot: Snapshot, *, preserve_logs: bool = True, refresh: bool = True
    ) -> None:
        """Restore the slices of a snapshot, of this session or another.

        Logs stay as they are, unless `preserve_logs` is False. A slice that is not in the
        snapshot gets its initial item. A mirror of something outside, like the files of a
        workspace, is refreshed; without `refresh` it is restored like the others, which is
        right only if what it mirrors is restored too.
        """
        self._store.restore(
            snapshot.items, snapshot.logs, preserve_logs=preserve_logs, refresh=refresh
        )

    def rollback(self, tag: str) -> Snapshot:
        """Restore the latest snapshot with a tag, and return it.

        Raises:
            UnknownTagError: No snapshot has it.
        """
        found = self._store.view().tags.get(tag)
        if found is None:
            raise UnknownTagError(tag)
        self.restore(found)
        return found

    def reset(self) -> None:
        """Reset every slice, including logs, to its initial item or to empty.

        Reducers, tagged snapshots and children stay. Then `SessionReset` is published.
        """
        self._store.restore({}, frozenset(), preserve_logs=False, refresh=False)
        self.dispatch(SessionReset(self.session_id))

    def clone(
        self,
        *,
        bus: EventBus | None = None,
        parent: "Session | None" = None,
        session_id: UUID | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> "Session":
        """Return a session with the same slices, reducers, snapshots and tags, on its own bus.

        The two are independent of each other.
        """
        clone = Session(
            bus=bus,
            parent=parent,
            session_id=session_id,
            tags=self.tags if tags is None else tags,
            clock=self._clock,
        )
        clone._store.state = self._store.view()
        return clone

    def savepoint(self) -> SessionSavepoint:
        """Return a savepoint of the state slices, for `restore_savepoint`."""
        return self._store.savepoint()

    def restore_savepoint(self, savepoint: SessionSavepoint) -> None:
        """Restore the state slices of a savepoint of this session.

        Raises:
            ValueError: The savepoint belongs to another session.
        """
        self._store.restore_savepoint(savepoint)

    def refresh(self, kind: type[T], make: Callable[[T | None], T]) -> None:
        """Replace the items of a mirror of something outside by `make(latest item)`.

        `make` is called again if the slice changes meanwhile: its result may be outdated.
        """
        self._store.refresh(kind, make)

    def draft(self, *, exclusive: bool = True) -> Draft:
        """Return a new draft for a transaction, isolated from the session until the commit.

        Exclusive drafts take turns, from the first use of the session to their end. Others,
        for calls that take long, do not wait: their changes are applied to the state that
        others have left.

        Raises:
            TransactionEndedError: The enclosing transaction was rolled back.
        """
        self._store.open_draft()  # raises if it was rolled back
        return Draft(self._store, exclusive=exclusive)

    def commit(
        self, draft: Draft, release: Callable[[], object], events: Iterable[object] = ()
    ) -> None:
        """Publish a draft atomically with `release`, then publish `events`.

        Events are published in the order of the commits, by any of the committing threads.

        Raises:
            TransactionEndedError: The draft has ended.
        """
        pending = tuple(events)

        def finish() -> None:
            release()
            self._store.outbox.extend(pending)

        draft.commit(finish)
        if pending:
            self._publish_outbox()

    def _publish_outbox(self) -> None:
        """Publish all events in the outbox, including those of other threads."""
        outbox = self._store.outbox
        # one thread at a time, or events of one file could be published in the wrong order
        if not self._publish_lock.acquire(timeout=_PUBLISH_TIMEOUT):
            return  # a subscriber waits for this call: the publishing thread empties the outbox
        try:
            while outbox:
                event = outbox.popleft()
                for failure in self.dispatch(event).errors:
                    _log.warning("Failed to fold %s into the session: %s", event, failure)
        finally:
            self._publish_lock.release()

    def add_child(self, child: "Session") -> None:
        """Append a session to `children`; `Session(parent=...)` calls it."""
        with self._lock:
            self.children = (*self.children, child)


class _Feed:
    """Folds the events of a bus into a store, for as long as the store is in use."""

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


def _choose_bus(bus: EventBus | None, dispatcher: EventBus | None) -> EventBus:
    """Return the bus that is given under one of its names, or else a new one."""
    if bus is not None and dispatcher is not None and bus is not dispatcher:
        raise ValueError("Pass bus or dispatcher, not both")
    chosen = bus if bus is not None else dispatcher
    return InProcessEventBus() if chosen is None else chosen


def _check_date(created_at: datetime | None) -> datetime | None:
    if created_at is not None and created_at.tzinfo is None:
        raise ValueError(f"created_at has no time zone: {created_at!r}")
    return created_at


def _initial_factory(
    kind: type[T], initial: Callable[[], T] | T | None
) -> Callable[[], Any] | None:
    """Return a factory for the initial item."""
    if isinstance(initial, kind):
        return lambda: initial
    if initial is None or callable(initial):
        return initial
    raise TypeError(f"initial must be a {kind.__qualname__} or a factory: {initial!r}")


def select_all(session: Session, kind: type[T]) -> tuple[T, ...]:
    """Return all items of a type."""
    return session[kind].all()


def select_latest(session: Session, kind: type[T]) -> T | None:
    """Return the last item of a type; None if there is none."""
    return session[kind].latest()


def select_where(session: Session, kind: type[T], predicate: Callable[[T], bool]) -> tuple[T, ...]:
    """Return the items of a type for which `predicate` is true."""
    return session[kind].where(predicate)
