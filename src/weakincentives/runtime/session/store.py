"""The thread-safe store behind a session: slices by type, their reducers, and a lock.

A slice is one of three kinds: state, which a restore brings back; a log of what happened,
which a restore leaves alone; or a mirror of something outside the session, which is refreshed.
Code in a transaction changes the draft of that transaction, which is visible to others only
after the commit.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Condition, Lock, RLock
from types import FunctionType
from typing import Any, TypeVar

from weakincentives.runtime.session.draft import Draft, check_open, find_draft
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
    NO_ITEMS,
    Append,
    CapturedState,
    Changes,
    Define,
    Definition,
    Definitions,
    FoldEvent,
    Initial,
    Operation,
    Query,
    Refresh,
    ReplaceAll,
    Restore,
    State,
    Tag,
)

T = TypeVar("T")

_MAX_ATTEMPTS = 20  # to compute an item while others keep changing its slice


@dataclass(frozen=True, slots=True)
class SessionSavepoint:
    """A point to which the state of a session can be rolled back; it costs nothing to keep."""

    owner: object
    items: Mapping[type[Any], Items[Any]]
    draft: Draft | None = None
    operations: tuple[Operation, ...] = ()


class Store:
    """Typed slices for any number of threads."""

    def __init__(self) -> None:
        """Start without slices."""
        self.lock: RLock = RLock()
        self.turn: Draft | None = None
        self.is_awaited: bool = False
        self.turn_ended: Condition = Condition(self.lock)
        self.owner: object = object()
        self.state: State = State(Definitions({}), {}, {})
        self.outbox: deque[object] = deque()
        """Events of committed transactions, in the order of their commits."""
        self._folding = Lock()

    def draft(self, *, exclusive: bool = True) -> Draft:
        """Return a new draft, nested in the one to which this context is bound.

        Raises:
            TransactionEndedError: The enclosing transaction was rolled back.
        """
        with self.lock:
            parent = find_draft(self)
            if parent is not None:
                check_open(self)
            return Draft(self, parent, exclusive=exclusive)

    def check_open(self) -> None:
        """Check that this context does not belong to a transaction that was rolled back.

        Raises:
            TransactionEndedError: It does.
        """
        check_open(self)

    def read(self, kind: type[Any], query: Query) -> Any:
        """Return the result of `query` on the items of a slice, which may not exist yet."""
        draft = find_draft(self)
        if draft is None or draft.status == "dropped":
            return query(self.state.items.get(kind, NO_ITEMS))
        return draft.read(kind, query)

    def append(self, kind: type[T], item: T) -> None:
        """Add one item to a slice."""
        check_items((item,), kind, None)
        self._change(Append(kind, item))

    def replace_items(self, kind: type[T], items: Iterable[T]) -> None:
        """Replace all items of a slice."""
        self._change(ReplaceAll(kind, check_items(tuple(items), kind, self.owner)))

    def refresh(self, kind: type[Any], make: Refresh) -> None:
        """Replace the items of a slice by the result of `make` on the latest item.

        `make` is called again if the slice changes meanwhile: its result may be outdated.
        """
        for attempt in range(_MAX_ATTEMPTS):
            before = self.state.items.get(kind, NO_ITEMS)
            new_items = check_items((make(before.latest()),), kind, self.owner)
            with self.lock:
                now = self.state.items.get(kind, NO_ITEMS)
                if now is before or attempt == _MAX_ATTEMPTS - 1:
                    self._change_trunk(ReplaceAll(kind, new_items))
                    return

    def register(
        self,
        kind: type[T],
        event_type: type[Any],
        reducer: Reducer[T, Any] | Method[T, Any],
    ) -> None:
        """Fold events of a type into a slice; replace an earlier reducer for that type."""
        fold = _create_fold(kind, event_type, reducer)

        def add_reducer(known: Definition) -> Definition:
            return replace(known, reducers={**known.reducers, event_type: fold})

        self._change(Define(kind, add_reducer))

    def install(
        self,
        kind: type[T],
        initial: Initial | None = None,
        refresh: Refresh | None = None,
        *,
        log: bool = False,
    ) -> None:
        """Define a slice; if it is empty, `initial` creates its first item."""
        first = None if initial is None else check_items((initial(),), kind, self.owner)

        def set_definition(known: Definition) -> Definition:
            return Definition(initial, log, refresh, known.reducers)

        operation = Define(kind, set_definition, first)
        if log or refresh is not None:
            with self.lock:
                self._change_trunk(operation)
        else:
            self._change(operation)

    def fold(self, event: object) -> list[ReducerError]:
        """Fold an event into every slice that has a reducer for it; return the errors."""
        operation = FoldEvent(event)
        if find_draft(self) is not None:
            self._change(operation)
        elif self.state.definitions.find_routes(type(event)):
            self._fold_in_trunk(operation)
        return operation.failures

    def savepoint(self) -> SessionSavepoint:
        """Return a savepoint of all slices but logs."""
        with self.lock:
            definitions, items = self.read_slices()
            draft = self._draft()
            operations = () if draft is None else tuple(draft.operations)
        logs = {kind for kind, each in definitions.by_kind.items() if each.log}
        state = {kind: each for kind, each in items.items() if kind not in logs}
        return SessionSavepoint(self.owner, state, draft, operations)

    def restore_savepoint(self, savepoint: SessionSavepoint) -> None:
        """Restore the slices of a savepoint.

        Raises:
            ValueError: The savepoint belongs to another session.
        """
        if savepoint.owner is not self.owner:
            raise ValueError("Savepoint belongs to another session")
        with self.lock:
            if savepoint.draft is not None and savepoint.draft is self._draft():
                # its own changes are undone, and what others do meanwhile is not
                savepoint.draft.replace_operations(savepoint.operations)
                return
        self.restore(CapturedState(savepoint.items, frozenset()), preserve_logs=True)

    def capture(self) -> CapturedState:
        """Return the items of all slices, except empty logs."""
        with self.lock:
            definitions, items = self.read_slices()
        slices = {
            kind: items.get(kind, NO_ITEMS)
            for kind, each in definitions.by_kind.items()
            if items.get(kind) or not each.log
        }
        return CapturedState(
            slices, frozenset(kind for kind in slices if definitions.by_kind[kind].log)
        )

    def restore(
        self, captured: CapturedState, *, preserve_logs: bool, refresh: bool = True
    ) -> None:
        """Restore slices; a state slice that was not captured gets its initial item.

        Mirrors of something outside are refreshed or, without `refresh`, restored like the
        others.
        """
        for attempt in range(_MAX_ATTEMPTS):
            state = self.state
            fresh = self._initial_items(lambda kind: kind not in captured.items)
            mirrors = self._refresh_slices(captured) if refresh else {**fresh, **captured.items}
            if self._restore(Restore(captured, fresh, preserve_logs, mirrors), state, attempt):
                return

    def reset(self) -> None:
        """Give every slice its initial item, and clear those without one, logs included."""
        nothing = CapturedState({}, frozenset())
        for attempt in range(_MAX_ATTEMPTS):
            state = self.state
            fresh = self._initial_items(lambda _: True)
            operation = Restore(nothing, fresh, preserve_logs=False, refreshed=fresh)
            if self._restore(operation, state, attempt):
                return

    def _restore(self, operation: Restore, seen: State, attempt: int) -> bool:
        """Apply a restore, unless mirrors of something outside have changed since `seen`."""
        with self.lock:
            mirrors = [
                kind
                for kind, each in self.state.definitions.by_kind.items()
                if each.refresh is not None
            ]
            if self._draft() is not None:
                operation.refreshed = {}  # events of this transaction's files follow its commit
            elif attempt < _MAX_ATTEMPTS - 1 and any(
                self.state.items.get(kind) is not seen.items.get(kind) for kind in mirrors
            ):
                return False
            self._change(operation)
            return True

    def tag(self, name: str, snapshot: object) -> None:
        """Store a snapshot under a name."""
        self._change(Tag(name, snapshot))

    def tags(self) -> Mapping[str, Any]:
        """Return the snapshots by name."""
        with self.lock:
            draft = self._draft()
            return (self.state if draft is None else draft.state).tags

    def copy_from(self, other: "Store") -> None:
        """Copy the slices, reducers and tags of another store."""
        with other.lock:
            definitions, items = other.read_slices()
            state = State(definitions, items, other.tags())
        with self.lock:
            self.state = state

    # --- for drafts ---

    def run(self, operation: Operation, changes: Changes) -> None:
        """Apply an operation; reducers must not change the session meanwhile."""
        with self._folding:
            operation.apply(changes)

    def publish(self, changes: Changes) -> None:
        """Commit changes."""
        self.state = changes.apply_to(self.state)

    # --- steps ---

    def _draft(self) -> Draft | None:
        found = find_draft(self)
        return None if found is None or found.status == "dropped" else found

    def _change(self, operation: Operation) -> None:
        with self.lock:
            self._check_not_folding()
            draft = find_draft(self)
            if draft is None:
                self._change_trunk(operation)
            else:
                check_open(self)
                draft.change(operation)

    def _change_trunk(self, operation: Operation) -> None:
        self._check_not_folding()
        changes = Changes(self.state, self.owner)
        self.run(operation, changes)
        self.publish(changes)

    def read_slices(self) -> tuple[Definitions, Mapping[type[Any], Items[Any]]]:
        """Return the definitions and items of all slices, as seen in this context."""
        draft = self._draft()
        if draft is None:
            return self.state.definitions, self.state.items
        items = draft.read_everything()
        return draft.state.definitions, items

    def _fold_in_trunk(self, operation: FoldEvent) -> None:
        """Fold an event like `_change_trunk`, but without `Changes`: events are frequent."""
        with self.lock:
            self._check_not_folding()
            definitions, items, tags = self.state
            with self._folding:
                routes = definitions.find_routes(type(operation.event))
                new_items = operation.fold(routes, items.get, self.owner)
            self.state = State(definitions, {**items, **new_items}, tags)

    def _check_not_folding(self) -> None:
        if self._folding.locked():
            raise RuntimeError("A reducer must not change its session")

    def _definitions(self) -> Mapping[type[Any], Definition]:
        with self.lock:
            draft = self._draft()
            return (self.state if draft is None else draft.state).definitions.by_kind

    def _initial_items(self, wanted: Callable[[type[Any]], bool]) -> dict[type[Any], Items[Any]]:
        """Create initial items, before anything is changed."""
        return {
            kind: check_items((each.initial(),), kind, self.owner)
            for kind, each in self._definitions().items()
            if each.initial is not None and wanted(kind)
        }

    def _refresh_slices(self, captured: CapturedState) -> dict[type[Any], Items[Any]]:
        """Return refreshed items for mirrors of something outside, from the captured ones."""
        if self._draft() is not None:
            return {}
        return {
            kind: check_items(
                (each.refresh(captured.items.get(kind, NO_ITEMS).latest()),), kind, None
            )
            for kind, each in self._definitions().items()
            if each.refresh is not None
        }


@lru_cache(maxsize=1024)
def check_slice_type(kind: Any) -> None:
    """Check that a type can be the type of a slice.

    Raises:
        TypeError: It is not a frozen dataclass.
    """
    parameters = getattr(kind, "__dataclass_params__", None)
    if not (isinstance(kind, type) and parameters is not None and parameters.frozen):
        raise TypeError(f"Slice type is not a frozen dataclass: {kind!r}")


def _create_fold(kind: type[Any], event_type: type[Any], reducer: Any) -> Fold:
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
