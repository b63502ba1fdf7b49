"""The store behind a session: slices by type, their reducers, and a lock.

A slice is either state, which a restore brings back, or a log of what happened,
which stays.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from threading import RLock, get_ident
from types import FunctionType
from typing import Any, TypeAlias, TypeVar

from weakincentives.runtime.session.items import Items, items_of
from weakincentives.runtime.session.reducers import (
    EventReducer,
    Fold,
    FunctionFold,
    Method,
    MethodFold,
    Reducer,
    ReducerError,
    checked,
)

T = TypeVar("T")

Initial: TypeAlias = Callable[[], Any]

_NOTHING: Items[Any] = items_of(())


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment that the state of a session can go back to; it costs nothing to keep."""

    owner: object
    items: Mapping[type[Any], Items[Any]]


@dataclass(frozen=True, slots=True)
class Captured:
    """All slices at one moment."""

    items: Mapping[type[Any], Items[Any]]
    logs: frozenset[type[Any]]


class _Slot:
    __slots__ = ("initial", "items", "log", "reducers", "thread")

    def __init__(self) -> None:
        self.items: Items[Any] = _NOTHING
        self.thread = 0
        """Who has changed the items last."""
        self.initial: Initial | None = None
        self.log = False
        self.reducers: dict[type[Any], Fold] = {}

    def put(self, items: Items[Any]) -> None:
        self.items, self.thread = items, get_ident()

    def copy(self) -> "_Slot":
        made = _Slot()
        made.items, made.initial, made.log = self.items, self.initial, self.log
        made.reducers = dict(self.reducers)
        return made


_Route: TypeAlias = tuple[type[Any], _Slot, Fold]


class Store:
    """Typed slices that several threads may read and change."""

    def __init__(self) -> None:
        """Start with no slice."""
        self._lock = RLock()
        self._slots: dict[type[Any], _Slot] = {}
        self._routes: dict[type[Any], tuple[_Route, ...]] = {}
        self._owner = object()
        self._folding = False

    def items(self, kind: type[T]) -> Items[T]:
        """Return the items of a slice; none if nobody ever changed it."""
        slot = self._slots.get(kind)
        return _NOTHING if slot is None else slot.items

    def append(self, kind: type[T], item: T) -> None:
        """Add one item to a slice."""
        checked((item,), kind, None)
        with self._lock:
            slot = self._changing(kind)
            slot.put(slot.items.appended(item, self._owner))

    def put(self, kind: type[T], items: Iterable[T]) -> None:
        """Make `items` all that a slice has."""
        made = checked(tuple(items), kind, self._owner)
        with self._lock:
            self._changing(kind).put(made)

    def register(
        self,
        kind: type[T],
        event_type: type[Any],
        reducer: Reducer[T, Any] | Method[T, Any],
    ) -> None:
        """Fold events of a type into a slice; it replaces an earlier reducer for that type."""
        fold = _fold(kind, event_type, reducer)
        with self._lock:
            self._changing(kind).reducers[event_type] = fold
            self._routes = {}

    def install(self, kind: type[T], initial: Initial | None, log: bool) -> None:
        """Declare a slice; if it is empty, `initial` makes its first item."""
        first = None if initial is None else checked((initial(),), kind, self._owner)
        with self._lock:
            slot = self._changing(kind)
            slot.initial, slot.log = initial, log
            if first is not None and not slot.items:
                slot.put(first)

    def fold(self, event: object) -> list[ReducerError]:
        """Fold an event into every slice that has a reducer for it; return what failed."""
        routes = self._routes.get(type(event))
        if routes is None:
            routes = self._route(type(event))
        if not routes:
            return []
        with self._lock:
            self._refuse_while_folding()
            self._folding = True
            try:
                made, failed = self._folded(routes, event)
            finally:
                self._folding = False
            # all at once, so that an interrupt in a reducer leaves every slice as it was
            for slot, items in made:
                slot.put(items)
        return failed

    def mark(self) -> Mark:
        """Return this moment of the state slices."""
        with self._lock:
            state = {kind: slot.items for kind, slot in self._slots.items() if not slot.log}
        return Mark(self._owner, state)

    def restore_mark(self, mark: Mark, *, own: bool = False) -> None:
        """Bring the state slices back to a moment; with `own` those that this thread changed.

        Raises:
            ValueError: The moment is another session's.
        """
        if mark.owner is not self._owner:
            raise ValueError("Mark belongs to another session")
        self.restore(Captured(mark.items, frozenset()), preserve_logs=True, own=own)

    def capture(self) -> Captured:
        """Return all slices as they are; a log that is empty is left out."""
        with self._lock:
            items = {
                kind: slot.items for kind, slot in self._slots.items() if slot.items or not slot.log
            }
            logs = frozenset(kind for kind in items if self._slots[kind].log)
        return Captured(items, logs)

    def restore(self, captured: Captured, *, preserve_logs: bool, own: bool = False) -> None:
        """Bring slices back; a state slice that was not captured gets its initial item.

        With `own`, those stay that another thread has changed last.
        """
        fresh = self._initial_items(lambda kind: kind not in captured.items)
        with self._lock:
            self._refuse_while_folding()
            for kind in captured.items:
                if kind not in self._slots and not (preserve_logs and kind in captured.logs):
                    self._changing(kind).log = kind in captured.logs
            for kind, slot in self._slots.items():
                if (slot.log and preserve_logs) or (own and slot.thread != get_ident()):
                    continue
                slot.put(captured.items.get(kind) or fresh.get(kind) or _NOTHING)

    def reset(self) -> None:
        """Give every slice its initial item, and clear those without one, logs included."""
        fresh = self._initial_items(lambda _: True)
        with self._lock:
            self._refuse_while_folding()
            for kind, slot in self._slots.items():
                slot.put(fresh.get(kind, _NOTHING))

    def copy_from(self, other: "Store") -> None:
        """Take over the slices and reducers of another store, which changes on its own."""
        with other._lock:
            slots = {kind: slot.copy() for kind, slot in other._slots.items()}
        with self._lock:
            self._slots, self._routes = slots, {}

    def _folded(
        self, routes: tuple[_Route, ...], event: object
    ) -> tuple[list[tuple[_Slot, Items[Any]]], list[ReducerError]]:
        """Return the new items of slices, and what failed."""
        made: list[tuple[_Slot, Items[Any]]] = []
        failed: list[ReducerError] = []
        for kind, slot, fold in routes:
            try:
                made.append((slot, fold.fold(slot.items, event, self._owner)))
            except Exception as error:  # noqa: BLE001 # the other slices go on
                failure = ReducerError(fold, kind, event, error)
                failure.__cause__ = error
                failed.append(failure)
        return made, failed

    def _changing(self, kind: type[Any]) -> _Slot:
        """Return the slot of a slice, about to be changed; made if it is not there."""
        self._refuse_while_folding()
        slot = self._slots.get(kind)
        if slot is None:
            # a new table, so that those who read without the lock never see it grow
            slot = _Slot()
            self._slots = {**self._slots, kind: slot}
        return slot

    def _refuse_while_folding(self) -> None:
        if self._folding:
            raise RuntimeError("A reducer must not change its session")

    def _initial_items(self, wanted: Callable[[type[Any]], bool]) -> dict[type[Any], Items[Any]]:
        """Call what makes initial items, before anything is changed."""
        makers = [(kind, slot.initial) for kind, slot in self._slots.items() if wanted(kind)]
        return {
            kind: checked((initial(),), kind, self._owner)
            for kind, initial in makers
            if initial is not None
        }

    def _route(self, event_type: type[Any]) -> tuple[_Route, ...]:
        """Return each slice with its reducer for the nearest base of an event's type."""
        with self._lock:
            found: list[_Route] = []
            for kind, slot in self._slots.items():
                base = next((each for each in event_type.__mro__ if each in slot.reducers), None)
                if base is not None:
                    found.append((kind, slot, slot.reducers[base]))
            self._routes[event_type] = tuple(found)
            return self._routes[event_type]


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
