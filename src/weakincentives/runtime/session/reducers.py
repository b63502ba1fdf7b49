"""Reducers: pure functions that fold an event into the items of a slice.

A reducer of your own takes the items as a tuple, and the event, and returns the new
items. Those here store the event itself, and work on the slice without copying it.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Protocol, TypeAlias, TypeVar

from weakincentives.errors import WinkError
from weakincentives.runtime.session.items import Items, KeyOf, items_of

T = TypeVar("T")
E = TypeVar("E")

Reducer: TypeAlias = Callable[[tuple[T, ...], E], Iterable[T]]
"""What takes the items of a slice and an event, and returns the new items."""


Method: TypeAlias = Callable[[T, E], T | Iterable[T]]
"""A method of the slice's own class: what it returns takes the place of the items."""


class ReducerError(WinkError, RuntimeError):
    """A reducer failed; its slice is as it was before the event."""

    def __init__(self, reducer: object, kind: type[Any], event: object, error: Exception) -> None:
        """Say whose reducer failed, on what, and why."""
        super().__init__(
            f"Reducer {_name(reducer)} of slice {kind.__qualname__} failed on "
            f"{type(event).__qualname__}: {type(error).__name__}: {error}"
        )
        self.reducer = reducer
        self.slice_type = kind
        self.event = event


class Fold(Protocol):
    """A reducer that works on the items themselves."""

    def fold(self, items: Items[Any], event: Any, owner: object) -> Items[Any]:
        """Return the new items."""
        ...


class EventReducer:
    """A reducer whose items are the events themselves."""

    def __init__(self, name: str) -> None:
        """Call it `name` in messages."""
        self._name = name

    def __call__(self, items: tuple[T, ...], event: T) -> tuple[T, ...]:
        """Return the new items: it can be called like any reducer."""
        return self.fold(items_of(items), event, None).as_tuple()

    def __repr__(self) -> str:
        """Return its name."""
        return self._name

    def fold(self, items: Items[T], event: T, owner: object) -> Items[T]:
        """Return the new items."""
        raise NotImplementedError


class _AppendAll(EventReducer):
    def fold(self, items: Items[T], event: T, owner: object) -> Items[T]:
        return items.appended(event, owner)


class _ReplaceLatest(EventReducer):
    def fold(self, items: Items[T], event: T, owner: object) -> Items[T]:
        return items_of((event,), owner)


class _UpsertBy(EventReducer):
    def __init__(self, name: str, key_of: KeyOf) -> None:
        super().__init__(name)
        self._key_of = key_of

    def fold(self, items: Items[T], event: T, owner: object) -> Items[T]:
        position = items.position(self._key_of, self._key_of(event), owner)
        if position is None:
            return items.appended(event, owner)
        return items.replaced(position, event, self._key_of, owner)


class _ReplaceLatestBy(_UpsertBy):
    def fold(self, items: Items[T], event: T, owner: object) -> Items[T]:
        position = items.position(self._key_of, self._key_of(event), owner)
        if position is None:
            return items.appended(event, owner)
        if position == len(items) - 1:
            return items.replaced(position, event, self._key_of, owner)
        return items.without(position, owner).appended(event, owner)


append_all: _AppendAll = _AppendAll("append_all")
"""Keep every event."""

replace_latest: _ReplaceLatest = _ReplaceLatest("replace_latest")
"""Keep the last event only."""


def upsert_by(key: Callable[[Any], Hashable]) -> EventReducer:
    """Return a reducer that keeps one event per key, each where the first with it stood."""
    return _UpsertBy("upsert_by", key)


def replace_latest_by(key: Callable[[Any], Hashable]) -> EventReducer:
    """Return a reducer that keeps the last event per key, the newest at the end."""
    return _ReplaceLatestBy("replace_latest_by", key)


class FunctionFold:
    """A function of tuples, at work on items."""

    def __init__(self, function: Reducer[Any, Any], kind: type[Any]) -> None:
        """Take what `function` returns, if it is made of `kind` only."""
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
    """A method of the slice's own class: the latest item and an event make the new one."""

    def __init__(self, method: Callable[..., Any], kind: type[Any]) -> None:
        """Take what `method` returns: one item, or several."""
        self._method = method
        self._kind = kind

    def __repr__(self) -> str:
        """Return the name of the method."""
        return _name(self._method)

    def fold(self, items: Items[Any], event: Any, owner: object) -> Items[Any]:
        """Return the new items.

        Raises:
            LookupError: There is no item to call the method of.
        """
        latest = items.latest()
        if latest is None:
            raise LookupError("The slice is empty: install it with an initial item")
        made = self._method(latest, event)
        return check_items(
            (made,) if isinstance(made, self._kind) else tuple(made), self._kind, owner
        )


def check_items(items: tuple[Any, ...], kind: type[T], owner: object) -> Items[T]:
    """Return `items` if each is a `kind`.

    Raises:
        TypeError: One is not.
    """
    for each in items:
        if not isinstance(each, kind):
            raise TypeError(f"Not a {kind.__qualname__}: {each!r}")
    return items_of(items, owner)


def _name(reducer: object) -> str:
    return getattr(reducer, "__qualname__", None) or repr(reducer)
