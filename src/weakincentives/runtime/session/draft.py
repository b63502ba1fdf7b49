"""Drafts: the session changes of one transaction, published in one step at its commit.

A draft is bound to a context. Code in that context reads and changes the draft; all other code
sees the session without it. Drafts take turns: from its first look at the session to its end,
a draft has the session to itself, so that the result is as if transactions had run one after
the other, and nothing has to run twice. Changes without a transaction, and those of a draft that
is not exclusive, do not wait; the operations of a draft are then applied to what they left.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from itertools import zip_longest
from threading import Condition, RLock
from typing import Any, Literal, NamedTuple, Protocol

from weakincentives.errors import WinkError
from weakincentives.posix import TimeLimitError, check_time, defer_interrupts
from weakincentives.runtime.session.items import Items, create_items
from weakincentives.runtime.session.state import (
    NO_ITEMS,
    Changes,
    FoldEvent,
    Operation,
    Query,
    ReplaceAll,
    Restore,
    State,
)

TURN_TIMEOUT = 600.0  # seconds; bounds a deadlock between two calls
POLL_INTERVAL = 0.05  # seconds between two checks of the time limit while waiting
_log = logging.getLogger(__name__)
_bound: ContextVar["Draft | None"] = ContextVar("draft", default=None)


class TransactionEndedError(WinkError, RuntimeError):
    """A change came after its transaction was rolled back; nothing was changed."""


class _LogReplacement(NamedTuple):
    """New items for a log, to be set when the draft is committed."""

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
    """The committed state of a session, from which drafts start."""

    turn: "Draft | None"
    """The draft that has the session to itself."""
    is_awaited: bool
    """Whether another draft waits for its turn."""

    @property
    def lock(self) -> RLock:
        """The lock for every change, held for moments only."""
        ...

    @property
    def turn_ended(self) -> Condition:
        """Notified when a draft ends."""
        ...

    @property
    def owner(self) -> object:
        """The owner that may append to items in place."""
        ...

    @property
    def state(self) -> State:
        """The committed state."""
        ...

    def run(self, operation: Operation, changes: Changes) -> None:
        """Apply an operation; reducers must not change the session meanwhile."""
        ...

    def publish(self, changes: Changes) -> None:
        """Commit changes."""
        ...


class Draft:
    """The session changes of one transaction."""

    __slots__ = (
        "_changes",
        "_is_exclusive",
        "enclosing",
        "log_replacements",
        "operations",
        "parent",
        "status",
        "touched",
        "touches_all",
        "trunk",
        "turn",
    )

    def __init__(self, trunk: Trunk, parent: "Draft | None", *, exclusive: bool = True) -> None:
        """Start without changes; its base state is the one at its first use.

        If it is not `exclusive`, it neither waits for other drafts nor keeps them waiting.
        """
        self.trunk: Trunk = trunk
        self.parent: Draft | None = parent
        self.enclosing: Draft | None = None
        """The draft, of this session or another, to which the context was bound before."""
        self.status: Literal["open", "committed", "dropped"] = "open"
        self.turn: Draft | None = None
        """The nested draft that has this one to itself."""
        self.operations: list[Operation] = []
        self.touched: set[type[Any]] = set()
        self.touches_all: bool = False
        self.log_replacements: dict[type[Any], _LogReplacement] = {}
        self._changes: Changes | None = None
        self._is_exclusive = exclusive

    def bind(self) -> None:
        """Bind this context to the draft, until `unbind`."""
        self.enclosing = _bound.get()
        _bound.set(self)

    def unbind(self) -> None:
        """Bind the context to the previous draft again."""
        if _bound.get() is self:
            _bound.set(self.enclosing)

    @property
    def has_changed(self) -> bool:
        """Whether anything was changed in it."""
        return bool(self.operations or self.log_replacements)

    @property
    def state(self) -> State:
        """The state as seen in the draft."""
        return self._current().result

    def take_turn(self) -> None:
        """Wait until no other exclusive draft is open, and keep others waiting until the end.

        Raises:
            TimeLimitError: Another one took too long.
        """
        if not self._is_exclusive:
            return
        with self.trunk.lock:
            parent = self._open_parent()
            place = self.trunk if parent is None else parent
            if place.turn is self:
                return
            if parent is not None:
                parent.take_turn()
            if place.turn is not None and place.turn.status == "open":
                self._wait(place)
            place.turn = self

    def _wait(self, place: "Trunk | Draft") -> None:
        started = time.monotonic()
        while place.turn is not None and place.turn.status == "open":
            self.trunk.is_awaited = True
            self.trunk.turn_ended.wait(POLL_INTERVAL)
            defer_interrupts().deliver()
            check_time("Waiting for another call on the session")
            if time.monotonic() - started > TURN_TIMEOUT:
                raise TimeLimitError(
                    f"Waited {TURN_TIMEOUT:g} seconds for another call on the session to end"
                )

    def read(self, kind: type[Any], query: Query) -> Any:
        """Return the result of `query` on the items of a slice."""
        with self.trunk.lock:
            if kind in self.trunk.state.definitions.shared:
                items = self._shared_items(kind)
            else:
                self.take_turn()
                items = self._current().get(kind)
                self._touch((kind,))
        return query(items)  # without the lock: a custom query may take long

    def read_everything(self) -> Mapping[type[Any], Items[Any]]:
        """Return the items of all slices."""
        self.take_turn()
        state = self.state
        self._touch(None)
        shared = self.trunk.state.definitions.shared
        return {**state.items, **{kind: self._shared_items(kind) for kind in shared}}

    def change(self, operation: Operation) -> None:
        """Apply an operation to the draft; what it adds to logs is visible to all at once."""
        kinds = operation.kinds(self._current())
        if kinds is None or not self.trunk.state.definitions.shared.issuperset(kinds):
            self.take_turn()
        shared = self.trunk.state.definitions.shared
        if kinds is None or not shared.isdisjoint(kinds):
            live = Changes(self.trunk.state, self.trunk.owner, shared.__contains__)
            self.trunk.run(operation, live)
            if isinstance(operation, ReplaceAll | Restore):
                self._defer_log_changes(live)
            self.trunk.publish(live)
        if kinds is None or not shared.issuperset(kinds):
            self.trunk.run(operation, self._current())
            self.operations.append(operation)
            self._touch(kinds)

    def replace_operations(self, operations: Iterable[Operation]) -> None:
        """Go back to the moment when these were the operations."""
        self.operations = list(operations)
        if self._changes is not None:
            self._changes = self._replay(self._changes.base)

    def commit(self, release: Callable[[], object]) -> None:
        """Move the changes to the parent or publish them, atomically with `release`.

        Raises:
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
            if parent is not None:
                parent.absorb(self, merged)
            else:
                self._publish(merged)
            self._end("committed")

    def drop(self) -> None:
        """Discard the changes; later ones raise `TransactionEndedError`."""
        with self.trunk.lock:
            if self.status == "open":
                self._changes = None
                self.operations = []
                self.log_replacements = {}
                self._end("dropped")

    def absorb(self, child: "Draft", merged: Changes | None) -> None:
        """Add the changes of a committed nested draft."""
        if merged is not None:
            self._current().absorb(merged)
        self.operations += child.operations
        self.log_replacements.update(child.log_replacements)

    # --- parent and trunk ---

    def _end(self, status: Literal["committed", "dropped"]) -> None:
        self.status = status
        if self.trunk.is_awaited:
            self.trunk.is_awaited = False  # those who still wait set it again
            self.trunk.turn_ended.notify_all()

    def _publish(self, merged: Changes | None) -> None:
        if merged is not None:
            self.trunk.publish(merged)
        if self.log_replacements:
            logs = Changes(self.trunk.state, self.trunk.owner)
            logs.set_items({kind: self._shared_items(kind) for kind in self.log_replacements})
            self.trunk.publish(logs)

    def _shared_items(self, kind: type[Any]) -> Items[Any]:
        """Return the items of a shared slice, with log replacements of this draft applied."""
        live = self.trunk.state.items.get(kind, NO_ITEMS)
        draft: Draft | None = self
        while draft is not None and kind not in draft.log_replacements:
            draft = draft.parent
        return live if draft is None else draft.log_replacements[kind].apply(live, self.trunk.owner)

    def _defer_log_changes(self, live: Changes) -> None:
        """Defer replacement of logs to the commit: a failed call must not remove entries."""
        known = live.definitions.by_kind
        for kind in [kind for kind in live.items if known[kind].log]:
            seen = self.trunk.state.items.get(kind, NO_ITEMS)
            self.log_replacements[kind] = _LogReplacement(seen, live.items.pop(kind))

    def _current(self) -> Changes:
        """Return the changes so far, based on the latest state that does not affect them."""
        live, changes = self._parent_state(), self._changes
        if changes is None:
            changes = self._changes = Changes(live, self.trunk.owner, self._is_private)
        elif changes.base is not live and self._is_unaffected(changes, live):
            changes.rebase(live)
        return changes

    def _open_parent(self) -> "Draft | None":
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

    def _is_unaffected(self, changes: Changes, live: State) -> bool:
        """Return whether everything read or changed here is the same in the base and `live`."""
        if self.touches_all or not _same_reducers(changes, live):
            return False
        before, after = changes.base.items, live.items
        return all(before.get(kind) is after.get(kind) for kind in self.touched)

    def _touch(self, kinds: Iterable[type[Any]] | None) -> None:
        """Record that slices were read or changed, here and in all parents."""
        draft: Draft | None = self
        while draft is not None:
            if kinds is None:
                draft.touches_all = True
            else:
                draft.touched.update(kinds)
            draft = draft.parent

    # --- commit ---

    def _merge(self) -> Changes | None:
        """Return the changes, based on the current state of the parent or trunk."""
        changes = self._changes
        if changes is None or not self.operations:
            return None
        live = self._parent_state()
        if live is changes.base or self._is_unaffected(changes, live):
            return changes
        return self._replay(live)

    def _replay(self, base: State) -> Changes:
        """Apply the operations to a state that others have changed."""
        changes = Changes(base, self.trunk.owner, self._is_private)
        for operation in self.operations:
            known = len(operation.failures) if isinstance(operation, FoldEvent) else 0
            self.trunk.run(operation, changes)
            for failure in operation.failures[known:] if isinstance(operation, FoldEvent) else ():
                _log.warning("%s, applied to what others had changed", failure)
        return changes


def find_draft(trunk: Trunk) -> Draft | None:
    """Return the draft of a session to which this context is bound, if any.

    After its commit, a draft is replaced by its parent.
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
    found = find_draft(trunk)
    if found is not None and found.status == "dropped":
        raise TransactionEndedError(
            "The call that made this change has ended and was rolled back, so nothing was"
            " changed: a call must wait for its threads before it returns"
        )


def _same_reducers(changes: Changes, live: State) -> bool:
    """Return whether the base of changes and `live` have the same reducers."""
    before, after = changes.base.definitions, live.definitions
    return before.routes is after.routes and all(
        before.by_kind.get(kind) is after.by_kind.get(kind) for kind in changes.defined
    )
