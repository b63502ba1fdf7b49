"""Branches: what a transaction changes in a session, for itself until it is certain to stay.

A branch is bound to a context. Who runs in it reads and changes the branch; everybody else
sees the session without it. Committing a branch makes its changes part of the session in one
step: what others changed meanwhile stays, and the operations of the branch are applied to that
again. If one of them then sees something else than it saw before, the branch conflicts with the
others and nothing of it is kept: so all that is committed is as if it had happened one after
the other.
"""

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar, Token
from itertools import zip_longest
from threading import RLock
from typing import Any, Literal, NamedTuple, Protocol

from weakincentives.errors import WinkError
from weakincentives.runtime.session.items import Items, items_of
from weakincentives.runtime.session.state import (
    NOTHING,
    Draft,
    Operation,
    Put,
    Query,
    Read,
    ReadAll,
    Restore,
    State,
    Undone,
    read_all,
    read_latest,
)

_MAX_QUERIES = 256  # questions of a caller's own that a branch asks again; then it compares all

_bound: ContextVar["Branch | None"] = ContextVar("branch", default=None)


class TransactionConflictError(WinkError, RuntimeError):
    """Others have changed what a transaction had read; nothing of it was kept."""


class TransactionEndedError(WinkError, RuntimeError):
    """A change came after its transaction was taken back; nothing has changed."""


class _Cut(NamedTuple):
    """What takes the place of a log, as it was at one moment, when a branch is committed."""

    seen: Items[Any]
    put: Items[Any]

    def on(self, live: Items[Any], owner: object) -> Items[Any]:
        """Return a log after it; what was logged since that moment stays."""
        if live is self.seen:
            return self.put
        before, now = self.seen.as_tuple(), live.as_tuple()
        if any(old is not new for old, new in zip_longest(before, now[: len(before)])):
            return live  # others have put something else in its place
        return items_of((*self.put, *now[len(before) :]), owner)


class Trunk(Protocol):
    """What branches grow from: the state of a session that everybody sees."""

    @property
    def lock(self) -> RLock:
        """Held for every change."""
        ...

    @property
    def owner(self) -> object:
        """Who may append to items in place."""
        ...

    @property
    def state(self) -> State:
        """What everybody sees."""
        ...

    @property
    def is_folding(self) -> bool:
        """Whether a reducer is at work."""
        ...

    def run(self, operation: Operation, draft: Draft) -> bool:
        """Apply an operation to a draft; a reducer that it calls must not change the session."""
        ...

    def publish(self, draft: Draft) -> None:
        """Make the changes of a draft part of the state."""
        ...


class Branch:
    """What is changed in a session by one transaction."""

    __slots__ = (
        "_cuts",
        "_draft",
        "_log",
        "_queries",
        "_read",
        "_state",
        "_touched",
        "_touches_all",
        "_writes",
        "around",
        "parent",
        "status",
        "trunk",
    )

    def __init__(self, trunk: Trunk, parent: "Branch | None") -> None:
        """Begin; what is there is looked at when it is first needed."""
        self.trunk: Trunk = trunk
        self.parent: Branch | None = parent
        self.around: Branch | None = None
        """The branch, of this session or another, that the context was bound to before."""
        self.status: Literal["open", "committed", "dropped"] = "open"
        self._draft: Draft | None = None
        self._state: State | None = None
        self._log: list[Operation] = []
        self._read: dict[tuple[type[Any], Query], Items[Any]] = {}
        self._touched: set[type[Any]] = set()
        self._touches_all = False
        self._writes = False
        self._queries = 0
        self._cuts: dict[type[Any], _Cut] = {}

    def bind(self) -> Token["Branch | None"]:
        """Let everything in this context happen in the branch, until `unbind`."""
        self.around = _bound.get()
        return _bound.set(self)

    @staticmethod
    def unbind(token: Token["Branch | None"]) -> None:
        """Let everything happen where it happened before."""
        _bound.reset(token)

    @property
    def has_changed(self) -> bool:
        """Whether anything was changed in it."""
        return self._writes or bool(self._cuts)

    @property
    def state(self) -> State:
        """What those see who run in it."""
        draft = self._draft_now()
        if self._state is None:
            self._state = draft.on(draft.base)
        return self._state

    def read(self, kind: type[Any], query: Query) -> Any:
        """Return what `query` makes of the items of a slice."""
        with self.trunk.lock:
            live = self.trunk.state
            if kind in live.definitions.shared:
                items, read = self._shared(kind), None
            else:
                items = self._draft_now().get(kind)
                read = None if self.trunk.is_folding else self._remember(kind, query, items)
        seen = query(items)  # without the lock: it may be a caller's own, and take long
        if read is not None:
            read.seen = seen
        return seen

    def read_everything(self) -> Mapping[type[Any], Items[Any]]:
        """Return the items of all slices."""
        mine = self.state
        self._log.append(ReadAll(mine.items))
        self._touch(None)
        shared = self.trunk.state.definitions.shared
        return {**mine.items, **{kind: self._shared(kind) for kind in shared}}

    def change(self, operation: Operation) -> None:
        """Apply an operation here; what it adds to logs is there for everybody, and stays."""
        shared = self.trunk.state.definitions.shared
        draft = self._draft_now()
        kinds = operation.kinds(draft)
        if kinds is None or not shared.isdisjoint(kinds):
            everywhere = Draft(self.trunk.state, self.trunk.owner, shared.__contains__)
            self.trunk.run(operation, everywhere)
            if isinstance(operation, Put | Restore):
                self._cut_logs(everywhere)
            self.trunk.publish(everywhere)
        if kinds is None or not shared.issuperset(kinds):
            self.trunk.run(operation, draft)
            self._state = None
            self._log.append(operation)
            self._writes = True
            self._touch(kinds)

    def commit(self, release: Callable[[], object]) -> None:
        """Make the changes part of what is around, in one step with `release`.

        Raises:
            TransactionConflictError: Others have changed what was read; `release` was not called.
            TransactionEndedError: It has ended, or the one around it was taken back.
        """
        with self.trunk.lock:
            if self.status != "open":
                raise TransactionEndedError("The transaction has ended")
            parent = self._parent_now()
            if parent is not None and parent.status == "dropped":
                raise TransactionEndedError("The transaction around this one was taken back")
            made = self._merge()
            release()
            self.status = "committed"
            if parent is not None:
                parent._absorb(self, made)
                return
            if made is not None:
                self.trunk.publish(made)
            if self._cuts:
                logs = Draft(self.trunk.state, self.trunk.owner)
                logs.put({kind: self._shared(kind) for kind in self._cuts})
                self.trunk.publish(logs)

    def drop(self) -> None:
        """Forget the changes; those that come later are refused."""
        with self.trunk.lock:
            if self.status == "open":
                self.status = "dropped"
                parent = self._parent_now()
                if parent is not None and self._log:
                    parent._log.append(Undone(self._log))
                self._draft = self._state = None
                self._log = []
                self._cuts = {}

    # --- what is around ---

    def _shared(self, kind: type[Any]) -> Items[Any]:
        """Return the items of a slice that everybody changes, without what is removed here."""
        live = self.trunk.state.items.get(kind, NOTHING)
        branch: Branch | None = self
        while branch is not None and kind not in branch._cuts:
            branch = branch.parent
        return live if branch is None else branch._cuts[kind].on(live, self.trunk.owner)

    def _cut_logs(self, everywhere: Draft) -> None:
        """Keep what would replace logs until the commit: a failed call removes nothing of them."""
        known = everywhere.definitions.by_kind
        for kind in [kind for kind in everywhere.items if known[kind].log]:
            seen = self.trunk.state.items.get(kind, NOTHING)
            self._cuts[kind] = _Cut(seen, everywhere.items.pop(kind))

    def _draft_now(self) -> Draft:
        """Return the changes so far, on the latest state on which they are the same."""
        live, draft = self._state_around(), self._draft
        if draft is None:
            draft = self._draft = Draft(live, self.trunk.owner, self._is_private)
        elif draft.base is not live and self._holds(draft, live):
            draft.rebase(live)
            self._state = None
        return draft

    def _parent_now(self) -> "Branch | None":
        found = self.parent
        while found is not None and found.status == "committed":
            found = found.parent
        return found

    def _state_around(self) -> State:
        parent = self._parent_now()
        if parent is None or parent.status == "dropped":
            return self.trunk.state
        return parent.state

    def _is_private(self, kind: type[Any]) -> bool:
        return kind not in self.trunk.state.definitions.shared

    def _holds(self, draft: Draft, live: State) -> bool:
        """Whether nothing that was read or changed here differs between the base and `live`."""
        if self._touches_all or not _rules_hold(draft, live):
            return False
        before, after = draft.base.items, live.items
        return all(before.get(kind) is after.get(kind) for kind in self._touched)

    def _touch(self, kinds: Iterable[type[Any]] | None) -> None:
        """Take note of slices that were read or changed, here and in what is around."""
        branch: Branch | None = self
        while branch is not None:
            if kinds is None:
                branch._touches_all = True
            else:
                branch._touched.update(kinds)
            branch = branch.parent

    def _remember(self, kind: type[Any], query: Query, items: Items[Any]) -> Read | None:
        if query is not read_all and query is not read_latest:
            self._queries += 1
            if self._queries > _MAX_QUERIES:
                query = read_all
        elif self._read.get((kind, query)) is items:
            return None
        else:
            self._read[kind, query] = items
        self._touch((kind,))
        self._log.append(read := Read(kind, query))
        if self._queries > _MAX_QUERIES:
            read.seen = items.as_tuple()
            return None
        return read

    # --- the end ---

    def _merge(self) -> Draft | None:
        """Return the changes, as they are on the present state around."""
        draft = self._draft
        if draft is None or not self._writes:
            return None
        live = self._state_around()
        if live is draft.base or self._holds(draft, live):
            return draft
        return self._repeat(draft, live)

    def _repeat(self, draft: Draft, live: State) -> Draft:
        """Apply the operations again, as far as others have changed what they are about."""
        before, after, rules_hold = draft.base.items, live.items, _rules_hold(draft, live)

        def is_unchanged(kind: type[Any]) -> bool:
            return rules_hold and before.get(kind) is after.get(kind)

        again = Draft(
            live, self.trunk.owner, lambda kind: self._is_private(kind) and not is_unchanged(kind)
        )
        for operation in self._log:
            if not self.trunk.run(operation, again):
                raise TransactionConflictError(
                    "Another call changed what this one had read in the session"
                    f"{_name(operation)}; nothing of it was kept: call it again"
                )
        for kind in filter(is_unchanged, draft.items):
            again.items[kind] = draft.items[kind]
        if rules_hold:
            again.defined = {**draft.defined, **again.defined}
        return again

    def _absorb(self, child: "Branch", made: Draft | None) -> None:
        """Take over what a branch of this one has come to."""
        draft = self._draft_now()
        if made is not None:
            draft.items.update(made.items)
            for kind, definition in made.defined.items():
                draft.define(kind, definition)
            draft.tags.update(made.tags)
        self._state = None
        self._log += child._log
        self._read.clear()
        self._writes |= child._writes
        self._cuts.update(child._cuts)


def branch_of(trunk: Trunk) -> Branch | None:
    """Return the branch of a session that this context is bound to and that has not ended.

    What a branch has come to after its commit happens in the one around it.
    """
    found = _bound.get()
    while found is not None and found.trunk is not trunk:
        found = found.around
    while found is not None and found.status == "committed":
        found = found.parent
    return found


def check_open(trunk: Trunk) -> None:
    """Return if a change in this context can come to something.

    Raises:
        TransactionEndedError: It belongs to a transaction that was taken back.
    """
    found = branch_of(trunk)
    if found is not None and found.status == "dropped":
        raise TransactionEndedError(
            "The call that this change belongs to has ended and was taken back, so nothing was"
            " changed: wait for the work of a call before it returns"
        )


def _rules_hold(draft: Draft, live: State) -> bool:
    """Whether the same reducers are at work on the base of a draft and on `live`."""
    before, after = draft.base.definitions, live.definitions
    return before.routes is after.routes and all(
        before.by_kind.get(kind) is after.by_kind.get(kind) for kind in draft.defined
    )


def _name(operation: Operation) -> str:
    return f" ({operation.kind.__qualname__})" if isinstance(operation, Read) else ""
