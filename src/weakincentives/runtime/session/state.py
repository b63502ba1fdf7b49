"""The immutable state of a session, and replayable operations that lead to the next one.

A transaction records its operations, so that they can be replayed on a state that others have
changed.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from weakincentives.runtime.session.reducers import Fold, Items, ReducerError, create_items

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


class State(NamedTuple):
    """The whole state of a session at one moment."""

    definitions: Definitions
    items: ItemsByType
    tags: Mapping[str, Any]

    def get(self, kind: type[Any]) -> Items[Any]:
        """Return the items of a slice, which may not exist yet."""
        return self.items.get(kind, NO_ITEMS)

    def with_items(self, items: ItemsByType) -> "State":
        """Return the state with new items of slices; slices that do not exist are defined."""
        known = self.definitions.by_kind
        new = {kind: DEFAULT_DEFINITION for kind in items if kind not in known}
        return State(self.definitions.with_changes(new), {**self.items, **items}, self.tags)

    def with_definition(self, kind: type[Any], definition: Definition) -> "State":
        """Return the state with a slice defined or redefined."""
        return self._replace(definitions=self.definitions.with_changes({kind: definition}))

    def rebase(self, old: "State", new: "State") -> "State":
        """Return `new` with the changes that lead from `old` to this state."""
        if old is new:
            return self
        definitions = _find_changes(old.definitions.by_kind, self.definitions.by_kind)
        return State(
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
    change: Callable[[State], State]

    def kinds(self, _state: State) -> Collection[type[Any]]:
        """Return the slices that it reads or changes; None means all."""
        return (self.kind,)

    def apply(self, state: State, _accepts: Accepts) -> State:
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

    def kinds(self, state: State) -> Collection[type[Any]]:
        """Return the slices that have a reducer."""
        return dict(state.definitions.find_routes(type(self.event)))

    def apply(self, state: State, accepts: Accepts) -> State:
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
        return State(state.definitions, {**state.items, **new_items}, state.tags)


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

    def kinds(self, _state: State) -> None:
        """Return None: all slices."""

    def apply(self, state: State, accepts: Accepts) -> State:
        """Restore them."""
        known = state.definitions.by_kind
        new = {kind: Definition(log=kind in self.logs) for kind in self.items if kind not in known}
        restored = {
            kind: each
            for kind, each in {**known, **new}.items()
            if accepts(kind) and self._restores(kind, each)
        }
        definitions = {kind: each for kind, each in new.items() if kind in restored}
        return State(
            state.definitions.with_changes(definitions),
            {**state.items, **{kind: self.items.get(kind, NO_ITEMS) for kind in restored}},
            state.tags,
        )

    def _restores(self, kind: type[Any], definition: Definition) -> bool:
        if definition.log:
            return not self.preserve_logs
        return definition.refresh is None or kind in self.items


Operation: TypeAlias = SliceOperation | FoldEvent | Restore
"""One change that can be replayed on another state."""
