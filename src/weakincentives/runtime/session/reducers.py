"""Reducers: pure functions that fold an event into the items of a slice.

A custom reducer takes the items as a tuple and the event, and returns the new items. The
built-in reducers store the event itself, and do not copy the slice.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Protocol, TypeAlias, TypeVar

from weakincentives.errors import WinkError
from weakincentives.runtime.session.items import Items, KeyOf, create_items

T = TypeVar("T")
E = TypeVar("E")

Reducer: TypeAlias = Callable[[tuple[T, ...], E], Iterable[T]]
"""A function of the items of a slice and an event that returns the new items."""


Method: TypeAlias = Callable[[T, E], T | Iterable[T]]
"""A method of the slice's own class: its result replaces the items."""


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


class Fold(Protocol):
    """A reducer that works on `Items`, without tuples."""

    def fold(self, items: Items[Any], event: Any, owner: object) -> Items[Any]:
        """Return the new items."""
        ...


class EventReducer:
    """A reducer whose items are the events themselves."""

    def __init__(self, name: str) -> None:
        """Use `name` in messages."""
        self._name = name

    def __call__(self, items: tuple[T, ...], event: T) -> tuple[T, ...]:
        """Return the new items: a built-in reducer can be called like any other."""
        return self.fold(create_items(items), event, None).as_tuple()

    def __repr__(self) -> str:
        """Return its name."""
        return self._name

    def fold(self, items: Items[T], event: T, owner: object) -> Items[T]:
        """Return the new items."""
        raise NotImplementedError


class _AppendAll(EventReducer):
    def fold(self, items: Items[T], event: T, owner: object) -> Items[T]:
        return items.with_item(event, owner)


class _ReplaceLatest(EventReducer):
    def fold(self, items: Items[T], event: T, owner: object) -> Items[T]:
        del items  # all of them are replaced
        return create_items((event,), owner)


class _UpsertBy(EventReducer):
    def __init__(self, name: str, key_of: KeyOf) -> None:
        super().__init__(name)
        self._key_of = key_of

    def fold(self, items: Items[T], event: T, owner: object) -> Items[T]:
        position = items.position(self._key_of, self._key_of(event), owner)
        if position is None:
            return items.with_item(event, owner)
        return items.with_item_at(position, event, self._key_of, owner)


class _ReplaceLatestBy(_UpsertBy):
    def fold(self, items: Items[T], event: T, owner: object) -> Items[T]:
        position = items.position(self._key_of, self._key_of(event), owner)
        if position is None:
            return items.with_item(event, owner)
        if position == len(items) - 1:
            return items.with_item_at(position, event, self._key_of, owner)
        return items.without(position, owner).with_item(event, owner)


append_all: _AppendAll = _AppendAll("append_all")
"""Keep every event."""

replace_latest: _ReplaceLatest = _ReplaceLatest("replace_latest")
"""Keep the last event only."""


def upsert_by(key: Callable[[Any], Hashable]) -> EventReducer:
    """Return a reducer that keeps one event per key, at the position of the first."""
    return _UpsertBy("upsert_by", key)


def replace_latest_by(key: Callable[[Any], Hashable]) -> EventReducer:
    """Return a reducer that keeps the last event per key, the newest at the end."""
    return _ReplaceLatestBy("replace_latest_by", key)


class FunctionFold:
    """Adapts a reducer function of tuples to items."""

    def __init__(self, function: Reducer[Any, Any], kind: type[Any]) -> None:
        """Call `function`, and check that it returns only items of type `kind`."""
        self._function = function
        self._kind = kind

    def __repr__(self) -> str:
        """Return the name of the function."""
        return _name(self._function)

    def fold(self, items: Items[Any], event: Any, owner: object) -> Items[Any]:
        """Return the new items."""
        before = items.as_tuple()
        after = tuple(self._function(before, event))
        return items if after is before else check_items(after, self._kind, owner)


class MethodFold:
    """Adapts a method of the slice's own class, called on the latest item."""

    def __init__(self, method: Callable[..., Any], kind: type[Any]) -> None:
        """Call `method`, which returns one item or several."""
        self._method = method
        self._kind = kind

    def __repr__(self) -> str:
        """Return the name of the method."""
        return _name(self._method)

    def fold(self, items: Items[Any], event: Any, owner: object) -> Items[Any]:
        """Return the new items.

        Raises:
            LookupError: The slice has no item on which to call the method.
        """
        latest = items.latest()
        if latest is None:
            raise LookupError("The slice is empty: install it with an initial item")
        result = self._method(latest, event)
        return check_items(
            (result,) if isinstance(result, self._kind) else tuple(result), self._kind, owner
        )


def check_items(items: tuple[Any, ...], kind: type[T], owner: object) -> Items[T]:
    """Check that all items are of type `kind`, and return them as `Items`.

    Raises:
        TypeError: One is not.
    """
    for each in items:
        if not isinstance(each, kind):
            raise TypeError(f"Not a {kind.__qualname__}: {each!r}")
    return create_items(items, owner)


def _name(reducer: object) -> str:
    return getattr(reducer, "__qualname__", None) or repr(reducer)
