"""The state of a session: what its slices are, and what is in them, as a value that never changes.

An `Operation` makes one change. It is applied to a `Draft`, which becomes the next state; a
transaction keeps its operations, so that they can be applied again to a state that others changed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from weakincentives.runtime.session.items import Items, items_of
from weakincentives.runtime.session.reducers import Fold, ReducerError

Initial: TypeAlias = Callable[[], Any]
Refresh: TypeAlias = Callable[[Any], Any]
Query: TypeAlias = Callable[[Items[Any]], Any]
Route: TypeAlias = tuple[type[Any], Fold]

NOTHING: Items[Any] = items_of(())
UNKNOWN = object()
"""What was seen by a query that has not come to its end."""


@dataclass(frozen=True, slots=True)
class Definition:
    """What a slice is."""

    initial: Initial | None = None
    log: bool = False
    refresh: Refresh | None = None
    reducers: Mapping[type[Any], Fold] = field(default_factory=dict[type[Any], Fold])

    @property
    def is_shared(self) -> bool:
        """Whether changes are seen by all at once, and stay whatever becomes of a transaction."""
        return self.log or self.refresh is not None


PLAIN = Definition()


class Definitions:
    """All slices by type, and which of them fold which events."""

    __slots__ = ("by_kind", "routes", "shared")

    def __init__(
        self,
        by_kind: Mapping[type[Any], Definition],
        routes: dict[type[Any], tuple[Route, ...]] | None = None,
    ) -> None:
        """Hold `by_kind`; `routes` are those of definitions with the same reducers."""
        self.by_kind: Mapping[type[Any], Definition] = by_kind
        self.routes: dict[type[Any], tuple[Route, ...]] = {} if routes is None else routes
        self.shared: frozenset[type[Any]] = frozenset(
            kind for kind, each in by_kind.items() if each.is_shared
        )

    def changed(self, made: Mapping[type[Any], Definition]) -> "Definitions":
        """Return these with others, or with more."""
        if not made:
            return self
        known = self.by_kind
        same = all(each.reducers == known.get(kind, PLAIN).reducers for kind, each in made.items())
        return Definitions({**known, **made}, self.routes if same else None)

    def routes_of(self, event_type: type[Any]) -> tuple[Route, ...]:
        """Return each slice with its reducer for the nearest base of an event's type."""
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
    """Everything in a session at one moment."""

    definitions: Definitions
    items: Mapping[type[Any], Items[Any]]
    tags: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SessionState:
    """All slices at one moment."""

    items: Mapping[type[Any], Items[Any]]
    logs: frozenset[type[Any]]


class Draft:
    """A state, and what is changed in it.

    Args:
        base: The state.
        owner: Who may append to items in place.
        wants: Which slices may be changed; None means all.
    """

    __slots__ = ("_definitions", "base", "defined", "items", "owner", "tags", "wants")

    def __init__(
        self, base: State, owner: object, wants: Callable[[type[Any]], bool] | None = None
    ) -> None:
        """Begin with no changes."""
        self.base: State = base
        self.owner: object = owner
        self.wants: Callable[[type[Any]], bool] = wants or _everything
        self.items: dict[type[Any], Items[Any]] = {}
        self.defined: dict[type[Any], Definition] = {}
        self.tags: dict[str, Any] = {}
        self._definitions: Definitions | None = None

    @property
    def definitions(self) -> Definitions:
        """What the slices are now."""
        if not self.defined:
            return self.base.definitions
        if self._definitions is None:
            self._definitions = self.base.definitions.changed(self.defined)
        return self._definitions

    def get(self, kind: type[Any]) -> Items[Any]:
        """Return the items of a slice."""
        mine = self.items.get(kind)
        return self.base.items.get(kind, NOTHING) if mine is None else mine

    def put(self, made: Mapping[type[Any], Items[Any]]) -> None:
        """Give slices new items, all at once; one that is not there is made."""
        known = self.definitions.by_kind
        for kind in made:
            if kind not in known:
                self.define(kind, PLAIN)
        self.items.update(made)

    def define(self, kind: type[Any], definition: Definition) -> None:
        """Say what a slice is."""
        self.defined[kind] = definition
        self._definitions = None

    def rebase(self, base: State) -> None:
        """Go on from a later state, in which nothing that matters here has changed."""
        self.base = base
        self._definitions = None

    def on(self, base: State) -> State:
        """Return `base` with these changes; it may be a later one than that of the draft."""
        return State(
            base.definitions.changed(self.defined),
            {**base.items, **self.items},
            {**base.tags, **self.tags} if self.tags else base.tags,
        )


def _everything(_: type[Any]) -> bool:
    return True


class Operation(Protocol):
    """One change, or one look, that can be repeated on another state."""

    def kinds(self, state: Draft) -> Mapping[type[Any], object] | None:
        """Return the slices that it is about as keys; None means all."""
        ...

    def apply(self, draft: Draft) -> bool:
        """Do it; return whether it came to the same as the first time."""
        ...


@dataclass(slots=True)
class Append:
    """Add one item to a slice."""

    kind: type[Any]
    item: Any

    def kinds(self, state: Draft) -> Mapping[type[Any], object]:
        """Return the one slice."""
        return {self.kind: None}

    def apply(self, draft: Draft) -> bool:
        """Add it."""
        if draft.wants(self.kind):
            draft.put({self.kind: draft.get(self.kind).appended(self.item, draft.owner)})
        return True


@dataclass(slots=True)
class Put:
    """Make items all that a slice has."""

    kind: type[Any]
    items: Items[Any]

    def kinds(self, state: Draft) -> Mapping[type[Any], object]:
        """Return the one slice."""
        return {self.kind: None}

    def apply(self, draft: Draft) -> bool:
        """Put them there."""
        if draft.wants(self.kind):
            draft.put({self.kind: self.items})
        return True


@dataclass(slots=True)
class Define:
    """Change what a slice is; if it is empty, give it its first item."""

    kind: type[Any]
    change: Callable[[Definition], Definition]
    first: Items[Any] | None = None

    def kinds(self, state: Draft) -> Mapping[type[Any], object]:
        """Return the one slice."""
        return {self.kind: None}

    def apply(self, draft: Draft) -> bool:
        """Change it, whether or not its items are wanted: other slices do not depend on it."""
        draft.define(self.kind, self.change(draft.definitions.by_kind.get(self.kind, PLAIN)))
        if self.first is not None and draft.wants(self.kind) and not draft.get(self.kind):
            draft.put({self.kind: self.first})
        return True


class FoldEvent:
    """Fold an event into every slice that has a reducer for it."""

    __slots__ = ("event", "failed", "failures")

    def __init__(self, event: object) -> None:
        """Fold `event`."""
        self.event: object = event
        self.failures: list[ReducerError] = []
        self.failed: dict[type[Any], bool] = {}

    def kinds(self, state: Draft) -> Mapping[type[Any], object]:
        """Return the slices that have a reducer."""
        return dict(state.definitions.routes_of(type(self.event)))

    def apply(self, draft: Draft) -> bool:
        """Fold it; a reducer that fails leaves its slice as it was and stops no other."""
        before = dict(self.failed)
        routes = draft.definitions.routes_of(type(self.event))
        wanted = [(kind, fold) for kind, fold in routes if draft.wants(kind)]
        # all at once, so that an interrupt in a reducer leaves every slice as it was
        draft.items.update(self.fold(wanted, draft.get, draft.owner))
        return all(before.get(kind, failed) == failed for kind, failed in self.failed.items())

    def fold(
        self,
        routes: Iterable[Route],
        items_of_kind: Callable[[type[Any]], Items[Any] | None],
        owner: object,
    ) -> dict[type[Any], Items[Any]]:
        """Return the new items of slices, and take note of reducers that fail."""
        made: dict[type[Any], Items[Any]] = {}
        for kind, fold in routes:
            try:
                made[kind] = fold.fold(items_of_kind(kind) or NOTHING, self.event, owner)
                self.failed[kind] = False
            except Exception as error:  # noqa: BLE001 # the other slices go on
                failure = ReducerError(fold, kind, self.event, error)
                failure.__cause__ = error
                self.failures.append(failure)
                self.failed[kind] = True
        return made


@dataclass(slots=True)
class Restore:
    """Give all slices the items that they had, or their initial one.

    Args:
        captured: What they had.
        fresh: The initial items of those that were not there.
        preserve_logs: Leave logs as they are.
        refreshed: What has become of slices that describe something outside; those that are
            not here stay as they are.
    """

    captured: SessionState
    fresh: Mapping[type[Any], Items[Any]]
    preserve_logs: bool
    refreshed: Mapping[type[Any], Items[Any]] = field(default_factory=dict[type[Any], Items[Any]])

    def kinds(self, state: Draft) -> None:
        """Return None: it is about all."""

    def apply(self, draft: Draft) -> bool:
        """Give them."""
        items, logs = self.captured.items, self.captured.logs
        for kind in items:
            is_new = kind not in draft.definitions.by_kind and draft.wants(kind)
            if is_new and not (self.preserve_logs and kind in logs):
                draft.define(kind, Definition(log=kind in logs))
        made: dict[type[Any], Items[Any]] = {}
        for kind, definition in draft.definitions.by_kind.items():
            if not draft.wants(kind) or (definition.log and self.preserve_logs):
                continue
            if definition.refresh is None:
                made[kind] = items.get(kind) or self.fresh.get(kind) or NOTHING
            elif kind in self.refreshed:
                made[kind] = self.refreshed[kind]
        draft.put(made)
        return True


@dataclass(slots=True)
class Tag:
    """Keep a snapshot under a name."""

    name: str
    snapshot: Any

    def kinds(self, state: Draft) -> Mapping[type[Any], object]:
        """Return what stands for all tags: no slice depends on them."""
        return {Tag: None}

    def apply(self, draft: Draft) -> bool:
        """Keep it."""
        draft.tags[self.name] = self.snapshot
        return True


@dataclass(slots=True)
class Read:
    """Look at a slice, and remember what was seen."""

    kind: type[Any]
    query: Query
    seen: Any = UNKNOWN

    def kinds(self, state: Draft) -> Mapping[type[Any], object]:
        """Return the one slice."""
        return {self.kind: None}

    def apply(self, draft: Draft) -> bool:
        """Return whether it would see the same."""
        if self.seen is UNKNOWN or not draft.wants(self.kind):
            return True
        return _is_same(self.query, draft.get(self.kind), self.seen)


@dataclass(slots=True)
class ReadAll:
    """Look at every slice, and remember what was seen."""

    seen: Mapping[type[Any], Items[Any]]

    def kinds(self, state: Draft) -> None:
        """Return None: it is about all."""

    def apply(self, draft: Draft) -> bool:
        """Return whether it would see the same."""
        kinds = {*self.seen, *draft.definitions.by_kind}
        return all(
            _is_same(read_all, draft.get(kind), self.seen.get(kind, NOTHING).as_tuple())
            for kind in kinds
            if draft.wants(kind)
        )


@dataclass(slots=True)
class Undone:
    """Operations that were taken back; what they saw while they lasted still counts."""

    operations: Sequence[Operation]

    def kinds(self, state: Draft) -> Mapping[type[Any], object]:
        """Return no slice: none is changed."""
        return {}

    def apply(self, draft: Draft) -> bool:
        """Return whether they would see the same."""
        scratch = Draft(draft.on(draft.base), draft.owner, draft.wants)
        return all(operation.apply(scratch) for operation in self.operations)


def read_all(items: Items[Any]) -> tuple[Any, ...]:
    """Return all items: a query."""
    return items.as_tuple()


def read_latest(items: Items[Any]) -> Any:
    """Return the last item: a query."""
    return items.latest()


def _is_same(query: Query, items: Items[Any], seen: Any) -> bool:
    try:
        found = query(items)
        return found is seen or bool(found == seen)
    except Exception:  # noqa: BLE001 # what cannot be compared, or asked again, may differ
        return False
