"""The immutable state of a session, and reducers: pure functions that fold an event into it.

`Items` is a persistent (immutable) sequence with structural sharing and O(1) append: a shared
list and a length. The owner of the newest value appends to the list and gets a value that is one
longer; every earlier value still sees only its own length. Anyone else, or the owner of an earlier
value, appends to a copy.

A custom reducer takes the items as a tuple and the event, and returns the new items. The
built-in reducers store the event itself, and do not copy the slice.

Operations lead from one state to the next. A transaction records its own, so that they can be
replayed on a state that others have changed.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from types import FunctionType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from weakincentives.errors import WinkError

T = TypeVar("T")
E = TypeVar("E")

KeyOf: TypeAlias = Callable[[Any], Hashable]
Reducer: TypeAlias = Callable[[tuple[T, ...], E], Iterable[T]]
"""A function of the items of a slice and an event that returns the new items."""
Method: TypeAlias = Callable[[T, E], T | Iterable[T]]
"""A method of the slice's own class: its result replaces the items."""


class _KeyIndex:
    """The position of the last item with each key, in the indexed part of a list."""

    __slots__ = ("positions", "size")

    def __init__(self) -> None:
        self.positions: dict[Hashable, int] = {}
        self.size = 0

    def copy(self) -> "_KeyIndex":
        copy = _KeyIndex()
        copy.positions, copy.size = self.positions.copy(), self.size
        return copy


class Items(Generic[T]):
    """An immutable sequence; the `owner` of a value may append in place.

    An owner must append from one thread at a time.
    """

    __slots__ = ("_indexes", "_length", "_list", "_owner", "_tuple")

    def __init__(
        self, shared: list[T], length: int, owner: object, indexes: dict[KeyOf, _KeyIndex]
    ) -> None:
        """Wrap the first `length` items of a list to which its owner may append."""
        self._list = shared
        self._length = length
        self._owner = owner
        self._indexes = indexes
        self._tuple: tuple[T, ...] | None = None

    def __len__(self) -> int:
        """Return the number of items."""
        return self._length

    def __iter__(self) -> Iterator[T]:
        """Iterate over the items."""
        return iter(self.as_tuple())

    def latest(self) -> T | None:
        """Return the last item; None if there is none."""
        return self._list[self._length - 1] if self._length else None

    def as_tuple(self) -> tuple[T, ...]:
        """Return the items as a tuple, which is cached."""
        if self._tuple is None:
            self._tuple = tuple(self._list[: self._length])
        return self._tuple

    def with_item(self, item: T, owner: object) -> "Items[T]":
        """Return a sequence with `item` appended."""
        if not self._can_append_in_place(owner):
            return create_items([*self._list[: self._length], item], owner)
        self._list.append(item)
        return Items(self._list, self._length + 1, owner, self._indexes)

    def with_item_at(self, position: int, item: T, key_of: KeyOf, owner: object) -> "Items[T]":
        """Return a sequence with `item` at `position`, in place of one with the same key."""
        copy = self._list[: self._length]
        copy[position] = item
        has_index = self._can_append_in_place(owner) and key_of in self._indexes
        indexes = {key_of: self._indexes[key_of].copy()} if has_index else {}
        return Items(copy, len(copy), owner, indexes)

    def without(self, position: int, owner: object) -> "Items[T]":
        """Return a sequence without the item at `position`."""
        copy = self._list[: self._length]
        del copy[position]
        return Items(copy, len(copy), owner, {})

    def position(self, key_of: KeyOf, key: Hashable, owner: object) -> int | None:
        """Return the position of the last item with a key; None if there is none."""
        if self._can_append_in_place(owner):
            return self._index_by(key_of).get(key)
        for position in range(self._length - 1, -1, -1):
            if key_of(self._list[position]) == key:
                return position
        return None

    def _can_append_in_place(self, owner: object) -> bool:
        return self._owner is owner and len(self._list) == self._length

    def _index_by(self, key_of: KeyOf) -> dict[Hashable, int]:
        index = self._indexes.setdefault(key_of, _KeyIndex())
        for position in range(index.size, self._length):
            index.positions[key_of(self._list[position])] = position
            index.size = position + 1
        return index.positions


def create_items(items: Iterable[T], owner: object = None) -> Items[T]:
    """Return a new sequence of `items`; `owner` may append to it in place."""
    copy = list(items)
    return Items(copy, len(copy), owner, {})


FoldFunction: TypeAlias = Callable[[Items[Any], Any, object], Items[Any]]
"""A function of the items, an event and the owner that may append in place."""


class ReducerError(WinkError, RuntimeError):
    """A reducer failed; its slice is as it was before the event."""

    def __init__(self, reducer: object, kind: type[Any], event: object, error: Exception) -> None:
        """Name the reducer, the slice, the event and the error."""
        super().__init__(
            f"Reducer {_name(reducer)} of slice {kind.__qualname__} failed on "
            f"{type(event).__qualname__}: {type(error).__name__}: {error}"
        )
        self.reducer = reducer
        self.slice_type = kind
        self.event = event


class Fold:
    """A reducer that works on `Items`, without tuples."""

    def __init__(self, name: str, fold: FoldFunction) -> None:
        """Use `name` in messages."""
        self._name = name
        self.fold: FoldFunction = fold

    def __repr__(self) -> str:
        """Return its name."""
        return self._name


class EventReducer(Fold):
    """A reducer whose items are the events themselves."""

    def __call__(self, items: tuple[T, ...], event: T) -> tuple[T, ...]:
        """Return the new items: a built-in reducer can be called like any other."""
        return self.fold(create_items(items), event, None).as_tuple()


append_all: EventReducer = EventReducer("append_all", Items[Any].with_item)
"""Keep every event."""

replace_latest: EventReducer = EventReducer(
    "replace_latest", lambda _items, event, owner: create_items((event,), owner)
)
"""Keep the last event only."""


def upsert_by(key: Callable[[Any], Hashable]) -> EventReducer:
    """Return a reducer that keeps one event per key, at the position of the first."""

    def fold(items: Items[Any], event: Any, owner: object) -> Items[Any]:
        position = items.position(key, key(event), owner)
        if position is None:
            return items.with_item(event, owner)
        return items.with_item_at(position, event, key, owner)

    return EventReducer("upsert_by", fold)


def replace_latest_by(key: Callable[[Any], Hashable]) -> EventReducer:
    """Return a reducer that keeps the last event per key, the newest at the end."""

    def fold(items: Items[Any], event: Any, owner: object) -> Items[Any]:
        position = items.position(key, key(event), owner)
        if position is None:
            return items.with_item(event, owner)
        if position == len(items) - 1:
            return items.with_item_at(position, event, key, owner)
        return items.without(position, owner).with_item(event, owner)

    return EventReducer("replace_latest_by", fold)


def _on_tuples(function: Reducer[Any, Any], kind: type[Any]) -> Fold:
    """Adapt a function of tuples, and check that it returns only items of type `kind`."""

    def fold(items: Items[Any], event: Any, owner: object) -> Items[Any]:
        before = items.as_tuple()
        after = tuple(function(before, event))
        return items if after is before else check_items(after, kind, owner)

    return Fold(_name(function), fold)


def _on_latest(method: Callable[..., Any], kind: type[Any]) -> Reducer[Any, Any]:
    """Adapt a method of the slice's own class, which is called on the latest item."""

    @wraps(method)
    def reduce(items: tuple[Any, ...], event: Any) -> Iterable[Any]:
        if not items:
            raise LookupError("The slice is empty: install it with an initial item")
        result = method(items[-1], event)
        return (result,) if isinstance(result, kind) else result

    return reduce


def check_items(items: tuple[Any, ...], kind: type[T], owner: object) -> Items[T]:
    """Check that all items are of type `kind`, and return them as `Items`.

    Raises:
        TypeError: One is not.
    """
    for each in items:
        if not isinstance(each, kind):
            raise TypeError(f"Not a {kind.__qualname__}: {each!r}")
    return create_items(items, owner)


@lru_cache(maxsize=1024)
def check_slice_type(kind: Any) -> None:
    """Check that a type can be the type of a slice.

    Raises:
        TypeError: It is not a frozen dataclass.
    """
    parameters = getattr(kind, "__dataclass_params__", None)
    if not (isinstance(kind, type) and parameters is not None and parameters.frozen):
        raise TypeError(f"Slice type is not a frozen dataclass: {kind!r}")


def create_fold(kind: type[Any], event_type: type[Any], reducer: Any) -> Fold:
    """Return a reducer for the items of a slice.

    Raises:
        TypeError: It stores events whose type is not that of the slice.
    """
    if isinstance(reducer, EventReducer):
        if not issubclass(event_type, kind):
            raise TypeError(
                f"{reducer!r} stores events, so a slice of {kind.__qualname__} cannot take: "
                f"{event_type.__qualname__!r}"
            )
        return reducer
    is_method = isinstance(reducer, FunctionType) and any(
        vars(base).get(reducer.__name__) is reducer for base in kind.__mro__
    )
    return _on_tuples(_on_latest(reducer, kind) if is_method else reducer, kind)


def _name(reducer: object) -> str:
    return getattr(reducer, "__qualname__", None) or repr(reducer)


Initial: TypeAlias = Callable[[], Any]
Refresh: TypeAlias = Callable[[Any], Any]
Route: TypeAlias = tuple[type[Any], Fold]
ItemsByType: TypeAlias = Mapping[type[Any], Items[Any]]
Accepts: TypeAlias = Callable[[type[Any]], bool]
"""Which slices an operation may change."""

NO_ITEMS: Items[Any] = create_items(())


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of a slice: initial item, kind and reducers."""

    initial: Initial | None = None
    log: bool = False
    refresh: Refresh | None = None
    reducers: Mapping[type[Any], Fold] = field(default_factory=dict[type[Any], Fold])


DEFAULT_DEFINITION = Definition()


class Definitions:
    """The definitions of all slices, and the reducers for each type of event."""

    __slots__ = ("by_kind", "routes", "shared")

    def __init__(
        self,
        by_kind: Mapping[type[Any], Definition],
        routes: dict[type[Any], tuple[Route, ...]] | None = None,
    ) -> None:
        """Wrap `by_kind`; pass `routes` from definitions with the same reducers."""
        self.by_kind: Mapping[type[Any], Definition] = by_kind
        self.routes: dict[type[Any], tuple[Route, ...]] = {} if routes is None else routes
        self.shared: frozenset[type[Any]] = frozenset(
            kind for kind, each in by_kind.items() if each.log or each.refresh is not None
        )
        """The slices whose changes are visible to all at once, and survive a rollback."""

    def with_changes(self, changes: Mapping[type[Any], Definition]) -> "Definitions":
        """Return the definitions with some replaced or added."""
        if not changes:
            return self
        known = self.by_kind
        same = all(
            each.reducers == known.get(kind, DEFAULT_DEFINITION).reducers
            for kind, each in changes.items()
        )
        return Definitions({**known, **changes}, self.routes if same else None)

    def find_routes(self, event_type: type[Any]) -> tuple[Route, ...]:
        """Return each slice with its reducer for the nearest base class of an event."""
        found = self.routes.get(event_type)
        if found is None:
            found = self.routes[event_type] = tuple(self._route(event_type))
        return found

    def _route(self, event_type: type[Any]) -> list[Route]:
        found: list[Route] = []
        for kind, definition in self.by_kind.items():
            reducers = definition.reducers
            base = next((each for each in event_type.__mro__ if each in reducers), None)
            if base is not None:
                found.append((kind, reducers[base]))
        return found


class SessionState(NamedTuple):
    """The whole state of a session at one moment."""

    definitions: Definitions
    items: ItemsByType
    tags: Mapping[str, Any]

    def get(self, kind: type[Any]) -> Items[Any]:
        """Return the items of a slice, which may not exist yet."""
        return self.items.get(kind, NO_ITEMS)

    def with_items(self, items: ItemsByType) -> "SessionState":
        """Return the state with new items of slices; slices that do not exist are defined."""
        known = self.definitions.by_kind
        new = {kind: DEFAULT_DEFINITION for kind in items if kind not in known}
        return SessionState(self.definitions.with_changes(new), {**self.items, **items}, self.tags)

    def with_definition(self, kind: type[Any], definition: Definition) -> "SessionState":
        """Return the state with a slice defined or redefined."""
        return self._replace(definitions=self.definitions.with_changes({kind: definition}))

    def rebase(self, old: "SessionState", new: "SessionState") -> "SessionState":
        """Return `new` with the changes that lead from `old` to this state."""
        if old is new:
            return self
        definitions = _find_changes(old.definitions.by_kind, self.definitions.by_kind)
        return SessionState(
            new.definitions.with_changes(definitions),
            {**new.items, **_find_changes(old.items, self.items)},
            {**new.tags, **_find_changes(old.tags, self.tags)},
        )


def _find_changes(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> dict[Any, Any]:
    if old is new:
        return {}
    return {key: value for key, value in new.items() if old.get(key) is not value}


class SliceOperation(NamedTuple):
    """A change of one slice."""

    kind: type[Any]
    change: Callable[[SessionState], SessionState]

    def kinds(self, _state: SessionState) -> Collection[type[Any]]:
        """Return the slices that it reads or changes; None means all."""
        return (self.kind,)

    def apply(self, state: SessionState, _accepts: Accepts) -> SessionState:
        """Return the next state."""
        return self.change(state)


class FoldEvent:
    """Fold an event into every slice that has a reducer for it."""

    __slots__ = ("event", "failures", "owner")

    def __init__(self, event: object, owner: object) -> None:
        """Fold `event`; `owner` may append to items in place."""
        self.event: object = event
        self.owner: object = owner
        self.failures: list[ReducerError] = []

    def kinds(self, state: SessionState) -> Collection[type[Any]]:
        """Return the slices that have a reducer."""
        return dict(state.definitions.find_routes(type(self.event)))

    def apply(self, state: SessionState, accepts: Accepts) -> SessionState:
        """Fold it; if a reducer fails, its slice is unchanged and the others still run."""
        new_items: dict[type[Any], Items[Any]] = {}
        for kind, fold in state.definitions.find_routes(type(self.event)):
            if accepts(kind):
                try:
                    new_items[kind] = fold.fold(state.get(kind), self.event, self.owner)
                except Exception as error:  # noqa: BLE001 # the others must still be folded
                    failure = ReducerError(fold, kind, self.event, error)
                    failure.__cause__ = error
                    self.failures.append(failure)
        return SessionState(state.definitions, {**state.items, **new_items}, state.tags)


class Restore(NamedTuple):
    """Restore the items of all slices, and clear those without items to restore.

    Args:
        items: The items to restore; a mirror of something outside the session that is not
            among them stays as it is.
        logs: Which of their slices are logs.
        preserve_logs: Whether logs stay as they are.
    """

    items: ItemsByType
    logs: frozenset[type[Any]]
    preserve_logs: bool

    def kinds(self, _state: SessionState) -> None:
        """Return None: all slices."""

    def apply(self, state: SessionState, accepts: Accepts) -> SessionState:
        """Restore them."""
        known = state.definitions.by_kind
        new = {kind: Definition(log=kind in self.logs) for kind in self.items if kind not in known}
        restored = {
            kind: each
            for kind, each in {**known, **new}.items()
            if accepts(kind)
            and not (self.preserve_logs if each.log else each.refresh and kind not in self.items)
        }
        definitions = {kind: each for kind, each in new.items() if kind in restored}
        return SessionState(
            state.definitions.with_changes(definitions),
            {**state.items, **{kind: self.items.get(kind, NO_ITEMS) for kind in restored}},
            state.tags,
        )


Operation: TypeAlias = SliceOperation | FoldEvent | Restore
"""One change that can be replayed on another state."""
