"""The immutable state of a session, changes to it, and replayable operations.

An `Operation` adds to the `Changes` that lead to the next state. A transaction records its
operations, so that they can be replayed on a state that others have changed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from weakincentives.runtime.session.items import Items, create_items
from weakincentives.runtime.session.reducers import Fold, ReducerError

Initial: TypeAlias = Callable[[], Any]
Refresh: TypeAlias = Callable[[Any], Any]
Query: TypeAlias = Callable[[Items[Any]], Any]
Route: TypeAlias = tuple[type[Any], Fold]

NO_ITEMS: Items[Any] = create_items(())


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of a slice: initial item, kind and reducers."""

    initial: Initial | None = None
    log: bool = False
    refresh: Refresh | None = None
    reducers: Mapping[type[Any], Fold] = field(default_factory=dict[type[Any], Fold])

    @property
    def is_shared(self) -> bool:
        """Whether changes are visible to all at once, and survive a rollback."""
        return self.log or self.refresh is not None


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
            kind for kind, each in by_kind.items() if each.is_shared
        )

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


class State(NamedTuple):
    """The whole state of a session at one moment."""

    definitions: Definitions
    items: Mapping[type[Any], Items[Any]]
    tags: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CapturedState:
    """The items of all slices at one moment, and which slices are logs."""

    items: Mapping[type[Any], Items[Any]]
    logs: frozenset[type[Any]]


class Changes:
    """A base state and the changes to it.

    Args:
        base: The base state.
        owner: The owner that may append to items in place.
        accepts: Which slices may be changed; None means all.
    """

    __slots__ = ("_definitions", "_result", "accepts", "base", "defined", "items", "owner", "tags")

    def __init__(
        self, base: State, owner: object, accepts: Callable[[type[Any]], bool] | None = None
    ) -> None:
        """Start without changes."""
        self.base: State = base
        self.owner: object = owner
        self.accepts: Callable[[type[Any]], bool] = accepts or _accept_all
        self.items: dict[type[Any], Items[Any]] = {}
        self.defined: dict[type[Any], Definition] = {}
        self.tags: dict[str, Any] = {}
        self._definitions: Definitions | None = None
        self._result: State | None = None

    @property
    def definitions(self) -> Definitions:
        """The definitions of the slices, with the changes."""
        if not self.defined:
            return self.base.definitions
        if self._definitions is None:
            self._definitions = self.base.definitions.with_changes(self.defined)
        return self._definitions

    def get(self, kind: type[Any]) -> Items[Any]:
        """Return the items of a slice."""
        changed = self.items.get(kind)
        return self.base.items.get(kind, NO_ITEMS) if changed is None else changed

    @property
    def result(self) -> State:
        """The base state with the changes."""
        if self._result is None:
            self._result = self.apply_to(self.base)
        return self._result

    def set_items(self, items: Mapping[type[Any], Items[Any]]) -> None:
        """Set the items of slices; slices that do not exist are defined."""
        known = self.definitions.by_kind
        for kind in items:
            if kind not in known:
                self.define(kind, DEFAULT_DEFINITION)
        self.items.update(items)
        self._result = None

    def define(self, kind: type[Any], definition: Definition) -> None:
        """Define or redefine a slice."""
        self.defined[kind] = definition
        self._definitions = self._result = None

    def set_tag(self, name: str, snapshot: object) -> None:
        """Store a snapshot under a name."""
        self.tags[name] = snapshot
        self._result = None

    def absorb(self, later: "Changes") -> None:
        """Add changes that were made on top of these."""
        for kind, definition in later.defined.items():
            self.define(kind, definition)
        self.items.update(later.items)
        self.tags.update(later.tags)
        self._result = None

    def rebase(self, base: State) -> None:
        """Use a later base state, in which nothing that the changes depend on is different."""
        self.base = base
        self._definitions = self._result = None

    def apply_to(self, base: State) -> State:
        """Return `base`, which may be later than `self.base`, with these changes."""
        return State(
            base.definitions.with_changes(self.defined),
            {**base.items, **self.items},
            {**base.tags, **self.tags} if self.tags else base.tags,
        )


def _accept_all(_: type[Any]) -> bool:
    return True


class Operation(Protocol):
    """One change or read that can be replayed on another state."""

    def kinds(self, _changes: Changes, /) -> Mapping[type[Any], object] | None:
        """Return the slices that it reads or changes, as keys; None means all."""
        ...

    def apply(self, changes: Changes) -> None:
        """Apply it."""
        ...


@dataclass(slots=True)
class SliceOperation:
    """A change of one slice."""

    kind: type[Any]

    def kinds(self, _changes: Changes, /) -> Mapping[type[Any], object]:
        """Return the slice."""
        return {self.kind: None}


@dataclass(slots=True)
class Append(SliceOperation):
    """Add one item to a slice."""

    item: Any

    def apply(self, changes: Changes) -> None:
        """Add it."""
        if changes.accepts(self.kind):
            changes.set_items(
                {self.kind: changes.get(self.kind).with_item(self.item, changes.owner)}
            )


@dataclass(slots=True)
class ReplaceAll(SliceOperation):
    """Replace all items of a slice."""

    items: Items[Any]

    def apply(self, changes: Changes) -> None:
        """Replace them."""
        if changes.accepts(self.kind):
            changes.set_items({self.kind: self.items})


@dataclass(slots=True)
class Define(SliceOperation):
    """Change the definition of a slice; if it is empty, set its first item."""

    change: Callable[[Definition], Definition]
    first: Items[Any] | None = None

    def apply(self, changes: Changes) -> None:
        """Change the definition, even if the changes does not accept the slice's items."""
        changes.define(
            self.kind, self.change(changes.definitions.by_kind.get(self.kind, DEFAULT_DEFINITION))
        )
        if self.first is not None and changes.accepts(self.kind) and not changes.get(self.kind):
            changes.set_items({self.kind: self.first})


class FoldEvent:
    """Fold an event into every slice that has a reducer for it."""

    __slots__ = ("event", "failures")

    def __init__(self, event: object) -> None:
        """Fold `event`."""
        self.event: object = event
        self.failures: list[ReducerError] = []

    def kinds(self, changes: Changes, /) -> Mapping[type[Any], object]:
        """Return the slices that have a reducer."""
        return dict(changes.definitions.find_routes(type(self.event)))

    def apply(self, changes: Changes) -> None:
        """Fold it; if a reducer fails, its slice is unchanged and the others still run."""
        routes = changes.definitions.find_routes(type(self.event))
        wanted = [(kind, fold) for kind, fold in routes if changes.accepts(kind)]
        # all at once, so that an interrupt in a reducer leaves every slice unchanged
        changes.set_items(self.fold(wanted, changes.get, changes.owner))

    def fold(
        self,
        routes: Iterable[Route],
        items_of_kind: Callable[[type[Any]], Items[Any] | None],
        owner: object,
    ) -> dict[type[Any], Items[Any]]:
        """Return the new items of the slices, and record failed reducers."""
        new_items: dict[type[Any], Items[Any]] = {}
        for kind, fold in routes:
            try:
                new_items[kind] = fold.fold(items_of_kind(kind) or NO_ITEMS, self.event, owner)
            except Exception as error:  # noqa: BLE001 # the other slices must still be folded
                failure = ReducerError(fold, kind, self.event, error)
                failure.__cause__ = error
                self.failures.append(failure)
        return new_items


@dataclass(slots=True)
class Restore:
    """Restore the items of all slices, or their initial items.

    Args:
        captured: The state to restore.
        fresh: The initial items of slices that are not in it.
        preserve_logs: Whether logs stay as they are.
        refreshed: The up-to-date items of slices that mirror something outside the session;
            those not listed stay as they are.
    """

    captured: CapturedState
    fresh: Mapping[type[Any], Items[Any]]
    preserve_logs: bool
    refreshed: Mapping[type[Any], Items[Any]] = field(default_factory=dict[type[Any], Items[Any]])

    def kinds(self, _changes: Changes, /) -> None:
        """Return None: all slices."""

    def apply(self, changes: Changes) -> None:
        """Restore them."""
        items, logs = self.captured.items, self.captured.logs
        for kind in items:
            is_new = kind not in changes.definitions.by_kind and changes.accepts(kind)
            if is_new and not (self.preserve_logs and kind in logs):
                changes.define(kind, Definition(log=kind in logs))
        new_items: dict[type[Any], Items[Any]] = {}
        for kind, definition in changes.definitions.by_kind.items():
            if not changes.accepts(kind) or (definition.log and self.preserve_logs):
                continue
            if definition.refresh is None:
                new_items[kind] = items.get(kind) or self.fresh.get(kind) or NO_ITEMS
            elif kind in self.refreshed:
                new_items[kind] = self.refreshed[kind]
        changes.set_items(new_items)


@dataclass(slots=True)
class Tag:
    """Store a snapshot under a name."""

    name: str
    snapshot: Any

    def kinds(self, _changes: Changes, /) -> Mapping[type[Any], object]:
        """Return a placeholder for all tags: no slice depends on them."""
        return {Tag: None}

    def apply(self, changes: Changes) -> None:
        """Store it."""
        changes.set_tag(self.name, self.snapshot)


def read_all(items: Items[Any]) -> tuple[Any, ...]:
    """Query all items."""
    return items.as_tuple()


def read_latest(items: Items[Any]) -> Any:
    """Query the last item."""
    return items.latest()
