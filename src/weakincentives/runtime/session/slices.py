"""Slices: the items of one type in a session, read and changed in one place."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar, overload

from weakincentives.runtime.events import PublishResult
from weakincentives.runtime.session.reducers import Method, Reducer
from weakincentives.runtime.session.state import read_all, read_latest
from weakincentives.runtime.session.store import Store, check_kind

T = TypeVar("T")
E = TypeVar("E")
T_co = TypeVar("T_co", covariant=True)


class SliceReader(Protocol[T_co]):
    """A slice, to be read."""

    def all(self) -> tuple[T_co, ...]:
        """Return the items."""
        ...

    def latest(self) -> T_co | None:
        """Return the last item; None where there is none."""
        ...

    def where(self, predicate: Callable[[T_co], bool]) -> tuple[T_co, ...]:
        """Return the items for which `predicate` is true."""
        ...


class SliceWriter(Protocol[T]):
    """A slice, to be changed."""

    def append(self, item: T) -> None:
        """Add an item."""
        ...

    def seed(self, items: Iterable[T] | T) -> None:
        """Make `items` all that there is."""
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

    What it returns are values: they stay as they are when the slice changes.
    """

    __slots__ = ("_kind", "_publish", "_store")

    def __init__(
        self, store: Store, kind: type[T], publish: Callable[[object], PublishResult]
    ) -> None:
        """Use `session[kind]` instead.

        Raises:
            TypeError: `kind` is not a frozen dataclass.
        """
        check_kind(kind)
        self._store = store
        self._kind = kind
        self._publish = publish

    def __repr__(self) -> str:
        """Return its type and how many items there are."""
        return f"Slice({self._kind.__qualname__}, {len(self.all())} items)"

    def all(self) -> tuple[T, ...]:
        """Return the items."""
        return self._store.read(self._kind, read_all)

    def latest(self) -> T | None:
        """Return the last item; None where there is none."""
        return self._store.read(self._kind, read_latest)

    def where(self, predicate: Callable[[T], bool]) -> tuple[T, ...]:
        """Return the items for which `predicate` is true."""
        return self._store.read(self._kind, lambda items: tuple(filter(predicate, items)))

    def append(self, item: T) -> None:
        """Add an item; no event is published.

        Raises:
            TypeError: It is of another type.
        """
        self._store.append(self._kind, item)

    def seed(self, items: Iterable[T] | T) -> None:
        """Make `items` all that there is: several, or a single one.

        Raises:
            TypeError: One is of another type.
        """
        several: Any = (items,) if isinstance(items, self._kind) else items
        self._store.put(self._kind, several)

    def clear(self) -> None:
        """Remove all items."""
        self._store.put(self._kind, ())

    @overload
    def register(self, event_type: type[E], reducer: Reducer[T, E]) -> None: ...

    @overload
    def register(self, event_type: type[E], reducer: Method[T, E]) -> None: ...

    def register(self, event_type: type[E], reducer: Reducer[T, E] | Method[T, E]) -> None:
        """Fold events of a type, and of its subclasses, into the slice.

        A slice has one reducer per event type: registering another replaces it. A method of
        the slice's own class is called on the latest item, and what it returns takes its place.

        Raises:
            TypeError: The reducer stores events, and these are of another type than the slice.
        """
        self._store.register(self._kind, event_type, reducer)

    def dispatch(self, event: object) -> PublishResult:
        """Publish an event on the session's bus, for every slice and subscriber."""
        return self._publish(event)
