"""The store behind a session: slices by type, their reducers, and a lock.

A slice is state, which a restore brings back; or a log of what happened, which stays; or a
description of something outside, which follows that. Code that runs in a transaction
changes the branch of that transaction, and nobody sees it before the transaction is over.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import RLock
from types import FunctionType
from typing import Any, TypeVar

from weakincentives.runtime.session.branch import Branch, branch_of, check_open
from weakincentives.runtime.session.items import Items
from weakincentives.runtime.session.reducers import (
    EventReducer,
    Fold,
    FunctionFold,
    Method,
    MethodFold,
    Reducer,
    ReducerError,
    check_items,
)
from weakincentives.runtime.session.state import (
    NOTHING,
    Append,
    Define,
    Definition,
    Definitions,
    Draft,
    FoldEvent,
    Initial,
    Operation,
    Put,
    Query,
    Refresh,
    Restore,
    SessionState,
    State,
    Tag,
)

T = TypeVar("T")

_MAX_LOOKS = 20  # at something that is changed each time while it is looked at


@dataclass(frozen=True, slots=True)
class SessionSavepoint:
    """A moment that the state of a session can go back to; it costs nothing to keep."""

    owner: object
    items: Mapping[type[Any], Items[Any]]


class Store:
    """Typed slices that several threads may read and change."""

    def __init__(self) -> None:
        """Start with no slice."""
        self.lock: RLock = RLock()
        self.owner: object = object()
        self.state: State = State(Definitions({}), {}, {})
        self.outbox: deque[object] = deque()
        """Events of transactions that are committed, in the order of their commits."""
        self.is_folding: bool = False

    def branch(self) -> Branch:
        """Return a branch, of the one that this context is bound to.

        Raises:
            TransactionEndedError: That one was taken back.
        """
        with self.lock:
            around = branch_of(self)
            if around is not None:
                check_open(self)
            return Branch(self, around)

    def check_open(self) -> None:
        """Return if a change in this context can come to something.

        Raises:
            TransactionEndedError: It belongs to a transaction that was taken back.
        """
        check_open(self)

    def read(self, kind: type[Any], query: Query) -> Any:
        """Return what `query` makes of the items of a slice; of none if nobody ever changed it."""
        branch = branch_of(self)
        if branch is None or branch.status == "dropped":
            return query(self.state.items.get(kind, NOTHING))
        return branch.read(kind, query)

    def append(self, kind: type[T], item: T) -> None:
        """Add one item to a slice."""
        check_items((item,), kind, None)
        self._change(Append(kind, item))

    def put(self, kind: type[T], items: Iterable[T]) -> None:
        """Make `items` all that a slice has."""
        self._change(Put(kind, check_items(tuple(items), kind, self.owner)))

    def refresh(self, kind: type[Any], make: Refresh) -> None:
        """Put what `make` makes of the latest item in its place, for everybody.

        It is called again if the slice changes meanwhile, since it may have looked too early.
        """
        for look in range(_MAX_LOOKS):
            before = self.state.items.get(kind, NOTHING)
            made = check_items((make(before.latest()),), kind, self.owner)
            with self.lock:
                now = self.state.items.get(kind, NOTHING)
                if now is before or look == _MAX_LOOKS - 1:
                    self._change_everywhere(Put(kind, made))
                    return

    def register(
        self,
        kind: type[T],
        event_type: type[Any],
        reducer: Reducer[T, Any] | Method[T, Any],
    ) -> None:
        """Fold events of a type into a slice; it replaces an earlier reducer for that type."""
        fold = _fold(kind, event_type, reducer)

        def registered(known: Definition) -> Definition:
            return replace(known, reducers={**known.reducers, event_type: fold})

        self._change(Define(kind, registered))

    def install(
        self, kind: type[T], initial: Initial | None, log: bool, refresh: Refresh | None = None
    ) -> None:
        """Declare a slice; if it is empty, `initial` makes its first item."""
        first = None if initial is None else check_items((initial(),), kind, self.owner)

        def installed(known: Definition) -> Definition:
            return Definition(initial, log, refresh, known.reducers)

        operation = Define(kind, installed, first)
        if log or refresh is not None:
            with self.lock:
                self._change_everywhere(operation)
        else:
            self._change(operation)

    def fold(self, event: object) -> list[ReducerError]:
        """Fold an event into every slice that has a reducer for it; return what failed."""
        operation = FoldEvent(event)
        if branch_of(self) is not None:
            self._change(operation)
        elif self.state.definitions.routes_of(type(event)):
            self._fold_everywhere(operation)
        return operation.failures

    def savepoint(self) -> SessionSavepoint:
        """Return this moment of the state slices."""
        with self.lock:
            definitions, items = self._everything()
            logs = {kind for kind, each in definitions.by_kind.items() if each.log}
        return SessionSavepoint(
            self.owner, {kind: each for kind, each in items.items() if kind not in logs}
        )

    def restore_savepoint(self, savepoint: SessionSavepoint) -> None:
        """Bring the state slices back to a moment.

        Raises:
            ValueError: The moment is another session's.
        """
        if savepoint.owner is not self.owner:
            raise ValueError("Savepoint belongs to another session")
        self.restore(SessionState(savepoint.items, frozenset()), preserve_logs=True)

    def capture(self) -> SessionState:
        """Return all slices as they are; a log that is empty is left out."""
        with self.lock:
            definitions, items = self._everything()
        kept = {
            kind: items.get(kind, NOTHING)
            for kind, each in definitions.by_kind.items()
            if items.get(kind) or not each.log
        }
        return SessionState(kept, frozenset(kind for kind in kept if definitions.by_kind[kind].log))

    def restore(self, captured: SessionState, *, preserve_logs: bool, refresh: bool = True) -> None:
        """Bring slices back; a state slice that was not captured gets its initial item.

        Slices that describe something outside are made to agree with that, or, without
        `refresh`, brought back like the others.
        """
        for look in range(_MAX_LOOKS):
            state = self.state
            fresh = self._initial_items(lambda kind: kind not in captured.items)
            following = self._refreshed(captured) if refresh else {**fresh, **captured.items}
            if self._restore(Restore(captured, fresh, preserve_logs, following), state, look):
                return

    def reset(self) -> None:
        """Give every slice its initial item, and clear those without one, logs included."""
        nothing = SessionState({}, frozenset())
        for look in range(_MAX_LOOKS):
            state = self.state
            fresh = self._initial_items(lambda _: True)
            if self._restore(Restore(nothing, fresh, False, fresh), state, look):
                return

    def _restore(self, operation: Restore, seen: State, look: int) -> bool:
        """Do it, unless slices that describe something outside have changed since `seen`."""
        with self.lock:
            following = [
                kind
                for kind, each in self.state.definitions.by_kind.items()
                if each.refresh is not None
            ]
            if self._branch() is not None:
                operation.refreshed = {}  # files of this transaction are told of when it is over
            elif look < _MAX_LOOKS - 1 and any(
                self.state.items.get(kind) is not seen.items.get(kind) for kind in following
            ):
                return False
            self._change(operation)
            return True

    def tag(self, name: str, snapshot: object) -> None:
        """Keep a snapshot under a name."""
        self._change(Tag(name, snapshot))

    def tags(self) -> Mapping[str, Any]:
        """Return the snapshots by name."""
        with self.lock:
            branch = self._branch()
            return (self.state if branch is None else branch.state).tags

    def copy_from(self, other: "Store") -> None:
        """Take over the slices, reducers and tags of another store, which changes on its own."""
        with other.lock:
            definitions, items = other._everything()
            state = State(definitions, items, other.tags())
        with self.lock:
            self.state = state

    # --- what branches need ---

    def run(self, operation: Operation, draft: Draft) -> bool:
        """Apply an operation to a draft; a reducer that it calls must not change the session."""
        self.is_folding = True
        try:
            return operation.apply(draft)
        finally:
            self.is_folding = False

    def publish(self, draft: Draft) -> None:
        """Make the changes of a draft part of the state."""
        self.state = draft.on(self.state)

    # --- steps ---

    def _branch(self) -> Branch | None:
        found = branch_of(self)
        return None if found is None or found.status == "dropped" else found

    def _change(self, operation: Operation) -> None:
        with self.lock:
            self._refuse_while_folding()
            branch = branch_of(self)
            if branch is None:
                self._change_everywhere(operation)
            else:
                check_open(self)
                branch.change(operation)

    def _change_everywhere(self, operation: Operation) -> None:
        self._refuse_while_folding()
        draft = Draft(self.state, self.owner)
        self.run(operation, draft)
        self.publish(draft)

    def _everything(self) -> tuple[Definitions, Mapping[type[Any], Items[Any]]]:
        """Return what the slices are, and what is in them, as it is seen in this context."""
        branch = self._branch()
        if branch is None:
            return self.state.definitions, self.state.items
        items = branch.read_everything()
        return branch.state.definitions, items

    def _fold_everywhere(self, operation: FoldEvent) -> None:
        """Do what `_change_everywhere` does; it has a draft less, and there are many events."""
        with self.lock:
            self._refuse_while_folding()
            definitions, items, tags = self.state
            self.is_folding = True
            try:
                routes = definitions.routes_of(type(operation.event))
                made = operation.fold(routes, items.get, self.owner)
            finally:
                self.is_folding = False
            self.state = State(definitions, {**items, **made}, tags)

    def _refuse_while_folding(self) -> None:
        if self.is_folding:
            raise RuntimeError("A reducer must not change its session")

    def _definitions(self) -> Mapping[type[Any], Definition]:
        with self.lock:
            branch = self._branch()
            return (self.state if branch is None else branch.state).definitions.by_kind

    def _initial_items(self, wanted: Callable[[type[Any]], bool]) -> dict[type[Any], Items[Any]]:
        """Call what makes initial items, before anything is changed."""
        return {
            kind: check_items((each.initial(),), kind, self.owner)
            for kind, each in self._definitions().items()
            if each.initial is not None and wanted(kind)
        }

    def _refreshed(self, captured: SessionState) -> dict[type[Any], Items[Any]]:
        """Bring what is known of something outside up to date, from what was known then."""
        if self._branch() is not None:
            return {}
        return {
            kind: check_items(
                (each.refresh(captured.items.get(kind, NOTHING).latest()),), kind, None
            )
            for kind, each in self._definitions().items()
            if each.refresh is not None
        }


@lru_cache(maxsize=1024)
def check_kind(kind: Any) -> None:
    """Return if values of a type can be kept in a slice.

    Raises:
        TypeError: It is not a frozen dataclass.
    """
    parameters = getattr(kind, "__dataclass_params__", None)
    if not (isinstance(kind, type) and parameters is not None and parameters.frozen):
        raise TypeError(f"Slice type is not a frozen dataclass: {kind!r}")


def _fold(kind: type[Any], event_type: type[Any], reducer: Any) -> Fold:
    if isinstance(reducer, EventReducer):
        if not issubclass(event_type, kind):
            raise TypeError(
                f"{reducer!r} stores events, so a slice of {kind.__qualname__} cannot take: "
                f"{event_type.__qualname__!r}"
            )
        return reducer
    if _is_method(kind, reducer):
        return MethodFold(reducer, kind)
    return FunctionFold(reducer, kind)


def _is_method(kind: type[Any], reducer: object) -> bool:
    return isinstance(reducer, FunctionType) and any(
        vars(base).get(reducer.__name__) is reducer for base in kind.__mro__
    )
