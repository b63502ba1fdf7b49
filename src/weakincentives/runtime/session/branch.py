"""Branches: optimistic concurrency control for transactions on a session.

A branch is bound to a context. Code in that context reads and changes the branch; all other
code sees the session without it. A commit merges the branch into the session atomically: if
others have committed meanwhile, the operations of the branch are replayed on the new state. If
a read then has another result, the branch conflicts and is dropped. So committed transactions
are serializable: the result is as if they had run one after the other.
"""

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar, Token
from itertools import zip_longest
from threading import RLock
from typing import Any, Literal, NamedTuple, Protocol

from weakincentives.errors import WinkError
from weakincentives.runtime.session.items import Items, create_items
from weakincentives.runtime.session.state import (
    NO_ITEMS,
    Draft,
    Operation,
    Query,
    Read,
    ReadAll,
    ReplaceAll,
    Restore,
    RolledBack,
    State,
    read_all,
    read_latest,
)

_MAX_QUERIES = 256  # custom queries to replay; beyond that, all items are compared

_bound: ContextVar["Branch | None"] = ContextVar("branch", default=None)


class TransactionConflictError(WinkError, RuntimeError):
    """Others changed what a transaction had read; it was rolled back."""


class TransactionEndedError(WinkError, RuntimeError):
    """A change came after its transaction was rolled back; nothing was changed."""


class _LogReplacement(NamedTuple):
    """New items for a log, to be set when the branch is committed."""

    seen: Items[Any]
    replacement: Items[Any]

    def apply(self, live: Items[Any], owner: object) -> Items[Any]:
        """Return the replacement, followed by what was logged since."""
        if live is self.seen:
            return self.replacement
        before, now = self.seen.as_tuple(), live.as_tuple()
        if any(old is not new for old, new in zip_longest(before, now[: len(before)])):
            return live  # others have replaced the log
        return create_items((*self.replacement, *now[len(before) :]), owner)


class Trunk(Protocol):
    """The committed state of a session, from which branches start."""

    @property
    def lock(self) -> RLock:
        """The lock for every change."""
        ...

    @property
    def owner(self) -> object:
        """The owner that may append to items in place."""
        ...

    @property
    def state(self) -> State:
        """The committed state."""
        ...

    @property
    def is_folding(self) -> bool:
        """Whether a reducer is running."""
        ...

    def run(self, operation: Operation, draft: Draft) -> bool:
        """Apply an operation to a draft; reducers must not change the session meanwhile."""
        ...

    def publish(self, draft: Draft) -> None:
        """Commit the changes of a draft."""
        ...


class Branch:
    """The session changes of one transaction."""

    __slots__ = (
        "_draft",
        "_queries",
        "_read",
        "_state",
        "enclosing",
        "has_writes",
        "log_replacements",
        "operations",
        "parent",
        "status",
        "touched",
        "touches_all",
        "trunk",
    )

    def __init__(self, trunk: Trunk, parent: "Branch | None") -> None:
        """Start a branch; its base state is the one at its first use."""
        self.trunk: Trunk = trunk
        self.parent: Branch | None = parent
        self.enclosing: Branch | None = None
        """The branch, of this session or another, to which the context was bound before."""
        self.status: Literal["open", "committed", "dropped"] = "open"
        self._draft: Draft | None = None
        self._state: State | None = None
        self.operations: list[Operation] = []
        self._read: dict[tuple[type[Any], Query], Items[Any]] = {}
        self.touched: set[type[Any]] = set()
        self.touches_all: bool = False
        self.has_writes: bool = False
        self._queries = 0
        self.log_replacements: dict[type[Any], _LogReplacement] = {}

    def bind(self) -> Token["Branch | None"]:
        """Bind this context to the branch, until `unbind`."""
        self.enclosing = _bound.get()
        return _bound.set(self)

    @staticmethod
    def unbind(token: Token["Branch | None"]) -> None:
        """Bind the context to the previous branch again."""
        _bound.reset(token)

    @property
    def has_changed(self) -> bool:
        """Whether anything was changed in it."""
        return self.has_writes or bool(self.log_replacements)

    @property
    def state(self) -> State:
        """The state as seen in the branch."""
        draft = self._current_draft()
        if self._state is None:
            self._state = draft.apply_to(draft.base)
        return self._state

    def read(self, kind: type[Any], query: Query) -> Any:
        """Return the result of `query` on the items of a slice."""
        with self.trunk.lock:
            live = self.trunk.state
            if kind in live.definitions.shared:
                items, read = self._shared_items(kind), None
            else:
                items = self._current_draft().get(kind)
                read = None if self.trunk.is_folding else self._record_read(kind, query, items)
        seen = query(items)  # without the lock: a custom query may take long
        if read is not None:
            read.seen = seen
        return seen

    def read_everything(self) -> Mapping[type[Any], Items[Any]]:
        """Return the items of all slices."""
        state = self.state
        self.operations.append(ReadAll(state.items))
        self._touch(None)
        shared = self.trunk.state.definitions.shared
        return {**state.items, **{kind: self._shared_items(kind) for kind in shared}}

    def change(self, operation: Operation) -> None:
        """Apply an operation to the branch; what it adds to logs is visible to all at once."""
        shared = self.trunk.state.definitions.shared
        draft = self._current_draft()
        kinds = operation.kinds(draft)
        if kinds is None or not shared.isdisjoint(kinds):
            trunk_draft = Draft(self.trunk.state, self.trunk.owner, shared.__contains__)
            self.trunk.run(operation, trunk_draft)
            if isinstance(operation, ReplaceAll | Restore):
                self._defer_log_changes(trunk_draft)
            self.trunk.publish(trunk_draft)
        if kinds is None or not shared.issuperset(kinds):
            self.trunk.run(operation, draft)
            self._state = None
            self.operations.append(operation)
            self.has_writes = True
            self._touch(kinds)

    def commit(self, release: Callable[[], object]) -> None:
        """Merge the changes into the parent or the trunk, atomically with `release`.

        Raises:
            TransactionConflictError: Others changed what was read; `release` was not called.
            TransactionEndedError: It has ended, or the enclosing transaction was rolled back.
        """
        with self.trunk.lock:
            if self.status != "open":
                raise TransactionEndedError("The transaction has ended")
            parent = self._open_parent()
            if parent is not None and parent.status == "dropped":
                raise TransactionEndedError("The enclosing transaction was rolled back")
            merged = self._merge()
            release()
            self.status = "committed"
            if parent is not None:
                parent.absorb(self, merged)
                return
            if merged is not None:
                self.trunk.publish(merged)
            if self.log_replacements:
                logs = Draft(self.trunk.state, self.trunk.owner)
                logs.set_items({kind: self._shared_items(kind) for kind in self.log_replacements})
                self.trunk.publish(logs)

    def drop(self) -> None:
        """Discard the changes; later ones raise `TransactionEndedError`."""
        with self.trunk.lock:
            if self.status == "open":
                self.status = "dropped"
                parent = self._open_parent()
                if parent is not None and self.operations:
                    parent.operations.append(RolledBack(self.operations))
                self._draft = self._state = None
                self.operations = []
                self.log_replacements = {}

    # --- parent and trunk ---

    def _shared_items(self, kind: type[Any]) -> Items[Any]:
        """Return the items of a shared slice, with log replacements of this branch applied."""
        live = self.trunk.state.items.get(kind, NO_ITEMS)
        branch: Branch | None = self
        while branch is not None and kind not in branch.log_replacements:
            branch = branch.parent
        return (
            live if branch is None else branch.log_replacements[kind].apply(live, self.trunk.owner)
        )

    def _defer_log_changes(self, trunk_draft: Draft) -> None:
        """Defer replacement of logs to the commit: a failed call must not remove entries."""
        known = trunk_draft.definitions.by_kind
        for kind in [kind for kind in trunk_draft.items if known[kind].log]:
            seen = self.trunk.state.items.get(kind, NO_ITEMS)
            self.log_replacements[kind] = _LogReplacement(seen, trunk_draft.items.pop(kind))

    def _current_draft(self) -> Draft:
        """Return the changes so far, rebased on the latest state that does not affect them."""
        live, draft = self._parent_state(), self._draft
        if draft is None:
            draft = self._draft = Draft(live, self.trunk.owner, self._is_private)
        elif draft.base is not live and self._is_unaffected(draft, live):
            draft.rebase(live)
            self._state = None
        return draft

    def _open_parent(self) -> "Branch | None":
        found = self.parent
        while found is not None and found.status == "committed":
            found = found.parent
        return found

    def _parent_state(self) -> State:
        parent = self._open_parent()
        if parent is None or parent.status == "dropped":
            return self.trunk.state
        return parent.state

    def _is_private(self, kind: type[Any]) -> bool:
        return kind not in self.trunk.state.definitions.shared

    def _is_unaffected(self, draft: Draft, live: State) -> bool:
        """Return whether everything read or changed here is the same in the base and `live`."""
        if self.touches_all or not _same_reducers(draft, live):
            return False
        before, after = draft.base.items, live.items
        return all(before.get(kind) is after.get(kind) for kind in self.touched)

    def _touch(self, kinds: Iterable[type[Any]] | None) -> None:
        """Record that slices were read or changed, here and in all parents."""
        branch: Branch | None = self
        while branch is not None:
            if kinds is None:
                branch.touches_all = True
            else:
                branch.touched.update(kinds)
            branch = branch.parent

    def _record_read(self, kind: type[Any], query: Query, items: Items[Any]) -> Read | None:
        if query is not read_all and query is not read_latest:
            self._queries += 1
            if self._queries > _MAX_QUERIES:
                query = read_all
        elif self._read.get((kind, query)) is items:
            return None
        else:
            self._read[kind, query] = items
        self._touch((kind,))
        self.operations.append(read := Read(kind, query))
        if self._queries > _MAX_QUERIES:
            read.seen = items.as_tuple()
            return None
        return read

    # --- commit ---

    def _merge(self) -> Draft | None:
        """Return the changes, based on the current state of the parent or trunk."""
        draft = self._draft
        if draft is None or not self.has_writes:
            return None
        live = self._parent_state()
        if live is draft.base or self._is_unaffected(draft, live):
            return draft
        return self._replay(draft, live)

    def _replay(self, draft: Draft, live: State) -> Draft:
        """Replay the operations on slices that others have changed."""
        before, after, same_reducers = draft.base.items, live.items, _same_reducers(draft, live)

        def is_unchanged(kind: type[Any]) -> bool:
            return same_reducers and before.get(kind) is after.get(kind)

        replayed = Draft(
            live, self.trunk.owner, lambda kind: self._is_private(kind) and not is_unchanged(kind)
        )
        for operation in self.operations:
            if not self.trunk.run(operation, replayed):
                raise TransactionConflictError(
                    "Another call changed what this one had read from the session"
                    f"{_describe_read(operation)}; it was rolled back: call it again"
                )
        for kind in filter(is_unchanged, draft.items):
            replayed.items[kind] = draft.items[kind]
        if same_reducers:
            replayed.defined = {**draft.defined, **replayed.defined}
        return replayed

    def absorb(self, child: "Branch", merged: Draft | None) -> None:
        """Add the changes of a committed child branch."""
        draft = self._current_draft()
        if merged is not None:
            draft.items.update(merged.items)
            for kind, definition in merged.defined.items():
                draft.define(kind, definition)
            draft.tags.update(merged.tags)
        self._state = None
        self.operations += child.operations
        self._read.clear()
        self.has_writes |= child.has_writes
        self.log_replacements.update(child.log_replacements)


def find_branch(trunk: Trunk) -> Branch | None:
    """Return the branch of a session to which this context is bound, if any.

    After its commit, a branch is replaced by its parent.
    """
    found = _bound.get()
    while found is not None and found.trunk is not trunk:
        found = found.enclosing
    while found is not None and found.status == "committed":
        found = found.parent
    return found


def check_open(trunk: Trunk) -> None:
    """Check that this context does not belong to a transaction that was rolled back.

    Raises:
        TransactionEndedError: It does.
    """
    found = find_branch(trunk)
    if found is not None and found.status == "dropped":
        raise TransactionEndedError(
            "The call that made this change has ended and was rolled back, so nothing was"
            " changed: a call must wait for its threads before it returns"
        )


def _same_reducers(draft: Draft, live: State) -> bool:
    """Return whether the base of a draft and `live` have the same reducers."""
    before, after = draft.base.definitions, live.definitions
    return before.routes is after.routes and all(
        before.by_kind.get(kind) is after.by_kind.get(kind) for kind in draft.defined
    )


def _describe_read(operation: Operation) -> str:
    return f" ({operation.kind.__qualname__})" if isinstance(operation, Read) else ""
