"""Slices: typed access to the items of one type in a session."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar, overload

from weakincentives.runtime.events import PublishResult
from weakincentives.runtime.session.reducers import Method, Reducer
from weakincentives.runtime.session.state import read_all, read_latest
from weakincentives.runtime.session.store import Store, check_slice_type

T = TypeVar("T")
E = TypeVar("E")
T_co = TypeVar("T_co", covariant=True)


class SliceReader(Protocol[T_co]):
    """The reading part of a slice."""

    def all(self) -> tuple[T_co, ...]:
        """Return the items."""
        ...

    def latest(self) -> T_co | None:
        """Return the last item; None if there is none."""
        ...

    def where(self, predicate: Callable[[T_co], bool]) -> tuple[T_co, ...]:
        """Return the items for which `predicate` is true."""
        ...


class SliceWriter(Protocol[T]):
    """The writing part of a slice."""

    def append(self, item: T) -> None:
        """Add an item."""
        ...

    def seed(self, items: Iterable[T] | T) -> None:
        """Replace all items by `items`."""
        ...

    def clear(self) -> None:
        """Remove all items."""
        ...

    @overload
    def register(self, event_type: type[E], reducer: Reducer[T, E]) -> None: ...

    @overload
    def register(self, event_type: type[E], reducer: Method[T, E]) -> None: ...

    def register(self, event_type: type[E], reducer: Reducer[T, E] | Method[T, E]) -> None:
        """Fold events of a type into the slice."""
        ...

    def dispatch(self, event: object) -> PublishResult:
        """Publish an event on the session's bus."""
        ...


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
        return self._store.read(self._kind, read_all)

    def latest(self) -> T | None:
        """Return the last item; None if there is none."""
        return self._store.read(self._kind, read_latest)

    def where(self, predicate: Callable[[T], bool]) -> tuple[T, ...]:
        """Return the items for which `predicate` is true."""
        return self._store.read(self._kind, lambda items: tuple(filter(predicate, items)))

    def append(self, item: T) -> None:
        """Add an item; no event is published.

        Raises:
            TypeError: The item has another type.
        """
        self._store.append(self._kind, item)

    def seed(self, items: Iterable[T] | T) -> None:
        """Replace all items by `items`: several, or a single one.

        Raises:
            TypeError: An item has another type.
        """
        several: Any = (items,) if isinstance(items, self._kind) else items
        self._store.replace_items(self._kind, several)

    def clear(self) -> None:
        """Remove all items."""
        self._store.replace_items(self._kind, ())

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
        self._store.register(self._kind, event_type, reducer)

    def dispatch(self, event: object) -> PublishResult:
        """Publish an event on the session's bus, for every slice and subscriber."""
        return self._publish(event)
