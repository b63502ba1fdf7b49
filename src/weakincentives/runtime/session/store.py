"""The thread-safe store behind a session, and the drafts of transactions on it.

A slice is one of three kinds: state, which a restore brings back; a log of what happened,
which a restore leaves alone; or a mirror of something outside the session, which is refreshed.

A draft has the changes of one transaction, which are published in one step at its commit. It is
bound to a context: code in that context reads and changes the draft; all other code sees the
session without it. Drafts take turns: from its first look at the session to its end,
a draft has the session to itself, so that the result is as if transactions had run one after
the other, and nothing has to run twice. Changes without a transaction, and those of a draft that
is not exclusive, do not wait; the operations of a draft are then applied to what they left.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from threading import Condition, Lock, RLock
from typing import Any, Literal, NamedTuple, TypeVar

from weakincentives.errors import WinkError
from weakincentives.posix import TimeLimitError, check_time, defer_interrupts
from weakincentives.runtime.session.reducers import (
    NO_ITEMS,
    Accepts,
    Definition,
    Definitions,
    FoldEvent,
    Items,
    ItemsByType,
    Operation,
    ReducerError,
    Refresh,
    Restore,
    SessionState,
    check_items,
    create_items,
)

T = TypeVar("T")
TURN_TIMEOUT = 600.0  # seconds; bounds a deadlock between two calls
POLL_INTERVAL = 0.05  # seconds between two checks of the time limit while waiting
_MAX_ATTEMPTS = 20  # to compute an item while others keep changing its slice
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


@dataclass(frozen=True, slots=True)
class SessionSavepoint:
    """A point to which the state of a session can be rolled back; it costs nothing to keep."""

    owner: object
    items: ItemsByType
    draft: "Draft | None" = None
    operations: tuple[Operation, ...] = ()


class Store:
    """Typed slices for any number of threads."""

    def __init__(self) -> None:
        """Start without slices."""
        self.lock: RLock = RLock()
        self.turn: Draft | None = None
        """The draft that has the session to itself."""
        self.is_awaited: bool = False
        """Whether another draft waits for its turn."""
        self.turn_ended: Condition = Condition(self.lock)
        """Notified when a draft ends."""
        self.owner: object = object()
        """The owner that may append to items in place."""
        self.state: SessionState = SessionState(Definitions({}), {}, {})
        self.outbox: deque[object] = deque()
        """Events of committed transactions, in the order of their commits."""
        self._folding = Lock()

    def open_draft(self) -> "Draft | None":
        """Return the draft to which this context is bound, if any.

        Raises:
            TransactionEndedError: It was rolled back.
        """
        found = _find_draft(self, _bound.get())
        if found is not None and found.status == "dropped":
            raise TransactionEndedError(
                "The call that made this change has ended and was rolled back, so nothing was"
                " changed: a call must wait for its threads before it returns"
            )
        return found

    def read(self, kind: type[T]) -> Items[T]:
        """Return the items of a slice, which may not exist yet."""
        draft = _find_draft(self, _bound.get())
        if draft is None or draft.status == "dropped":
            return self.state.get(kind)
        return draft.read(kind)

    def view(self) -> SessionState:
        """Return the whole state, as seen in this context."""
        draft = _find_draft(self, _bound.get())
        if draft is None or draft.status == "dropped":
            return self.state
        return draft.view()

    def change(self, operation: Operation, *, removes: bool = False) -> None:
        """Apply an operation in this context; `removes` if it replaces the items of logs."""
        with self.lock:
            self._check_not_folding()
            draft = self.open_draft()
            if draft is None:
                self.state = self.run(operation, self.state, lambda _: True)
            else:
                draft.change(operation, removes=removes)

    def change_trunk(self, change: Callable[[SessionState], SessionState]) -> None:
        """Change a slice that is not part of transactions."""
        with self.lock:
            self._check_not_folding()
            self.state = change(self.state)

    def refresh(self, kind: type[Any], make: Refresh) -> None:
        """Replace the items of a slice by the result of `make` on the latest item.

        `make` is called again if the slice changes meanwhile: its result may be outdated.
        """
        for attempt in range(_MAX_ATTEMPTS):
            before = self.state.get(kind)
            new = {kind: check_items((make(before.latest()),), kind, self.owner)}
            with self.lock:
                if self.state.get(kind) is before or attempt == _MAX_ATTEMPTS - 1:
                    self.change_trunk(partial(SessionState.with_items, items=new))
                    return

    def fold(self, event: object) -> list[ReducerError]:
        """Fold an event into every slice that has a reducer for it; return the errors."""
        operation = FoldEvent(event, self.owner)
        routes = self.state.definitions.find_routes(type(event))
        if routes or self.open_draft() is not None:
            self.change(operation)
        return operation.failures

    def savepoint(self) -> SessionSavepoint:
        """Return a savepoint of all slices but logs."""
        with self.lock:
            state, draft = self.view(), _find_draft(self, _bound.get())
            operations = () if draft is None else tuple(draft.operations)
        logs = {kind for kind, each in state.definitions.by_kind.items() if each.log}
        items = {kind: each for kind, each in state.items.items() if kind not in logs}
        return SessionSavepoint(self.owner, items, draft, operations)

    def restore_savepoint(self, savepoint: SessionSavepoint) -> None:
        """Restore the slices of a savepoint.

        Raises:
            ValueError: The savepoint belongs to another session.
        """
        if savepoint.owner is not self.owner:
            raise ValueError("Savepoint belongs to another session")
        with self.lock:
            draft = self.open_draft()
            if draft is not None and draft is savepoint.draft:
                # its own changes are undone, and what others do meanwhile is not
                draft.replace_operations(savepoint.operations)
                return
        self.restore(savepoint.items, frozenset(), preserve_logs=True)

    def capture(self) -> tuple[ItemsByType, frozenset[type[Any]]]:
        """Return the items of all slices, except empty logs, and which of them are logs."""
        with self.lock:
            state = self.view()
        known = state.definitions.by_kind
        items = {kind: state.get(kind) for kind in known}
        items = {kind: each for kind, each in items.items() if each or not known[kind].log}
        return items, frozenset(kind for kind in items if known[kind].log)

    def restore(
        self,
        items: ItemsByType,
        logs: frozenset[type[Any]],
        *,
        preserve_logs: bool,
        refresh: bool = True,
    ) -> None:
        """Restore slices; a state slice that was not captured gets its initial item.

        Mirrors of something outside are refreshed or, without `refresh`, restored like the
        others.
        """
        is_draft = self.open_draft() is not None
        for attempt in range(_MAX_ATTEMPTS):
            before, known = self.state, self.view().definitions.by_kind
            wanted = {**items, **self._create_items(known, items, refresh=refresh and not is_draft)}
            mirrors = [kind for kind, each in known.items() if each.refresh is not None]
            for kind in mirrors if is_draft else ():
                wanted.pop(kind, None)  # events of this transaction's files follow its commit
            with self.lock:
                is_outdated = any(self.state.get(kind) is not before.get(kind) for kind in mirrors)
                if is_draft or not is_outdated or attempt == _MAX_ATTEMPTS - 1:
                    operation = Restore(wanted, logs, preserve_logs)
                    self.change(operation, removes=not preserve_logs)
                    return

    # --- for drafts ---

    def run(self, operation: Operation, state: SessionState, accepts: Accepts) -> SessionState:
        """Return the state after an operation; reducers must not change the session meanwhile."""
        with self._folding:
            return operation.apply(state, accepts)

    # --- steps ---

    def _create_items(
        self, known: Mapping[type[Any], Definition], items: ItemsByType, *, refresh: bool
    ) -> ItemsByType:
        """Create the items of mirrors, and the initial ones of slices that are not in `items`."""
        new: dict[type[Any], Any] = {}
        for kind, each in known.items():
            if refresh and each.refresh is not None:
                new[kind] = each.refresh(items.get(kind, NO_ITEMS).latest())
            elif each.initial is not None and kind not in items:
                new[kind] = each.initial()
        return {kind: check_items((item,), kind, self.owner) for kind, item in new.items()}

    def _check_not_folding(self) -> None:
        if self._folding.locked():
            raise RuntimeError("A reducer must not change its session")


class Draft:
    """The session changes of one transaction."""

    def __init__(self, trunk: "Store", *, exclusive: bool) -> None:
        """Start without changes; its base state is the one at its first use.

        If it is not `exclusive`, it neither waits for other drafts nor keeps them waiting.
        """
        self.trunk: Store = trunk
        self.enclosing: Draft | None = _bound.get()
        """The draft, of this session or another, to which the context is bound otherwise."""
        self.status: Literal["open", "committed", "dropped"] = "open"
        self.turn: Draft | None = None
        """The nested draft that has this one to itself."""
        self.operations: list[Operation] = []
        self.touched: set[type[Any]] | None = set()
        """The slices that were read or changed; None means all."""
        self.log_replacements: dict[type[Any], _LogReplacement] = {}
        self._states: tuple[SessionState, SessionState] | None = (
            None  # its base, and with the operations
        )
        self._is_exclusive = exclusive

    def bind(self) -> None:
        """Bind this context to the draft, until `unbind`."""
        _bound.set(self)

    def unbind(self) -> None:
        """Bind the context to the previous draft again."""
        if _bound.get() is self:
            _bound.set(self.enclosing)

    @property
    def parent(self) -> "Draft | None":
        """The draft in which it is nested; after the commit of that one, the next."""
        return _find_draft(self.trunk, self.enclosing)

    @property
    def has_changed(self) -> bool:
        """Whether anything was changed in it."""
        return bool(self.operations or self.log_replacements)

    @property
    def state(self) -> SessionState:
        """The state as seen in the draft."""
        return self._update()[1]

    def take_turn(self) -> None:
        """Wait until no other exclusive draft is open, and keep others waiting until the end.

        Raises:
            TimeLimitError: Another one took too long.
        """
        if not self._is_exclusive:
            return
        with self.trunk.lock:
            parent = self.parent
            place = self.trunk if parent is None else parent
            if place.turn is self:
                return
            if parent is not None:
                parent.take_turn()
            if place.turn is not None and place.turn.status == "open":
                self._wait(place)
            place.turn = self

    def _wait(self, place: "Store | Draft") -> None:
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

    def read(self, kind: type[Any]) -> Items[Any]:
        """Return the items of a slice."""
        with self.trunk.lock:
            if not self._is_private(kind):
                return self._shared_items(kind)
            self.take_turn()
            items = self.state.get(kind)
            self._touch((kind,))
            return items

    def view(self) -> SessionState:
        """Return the whole state as seen in the draft."""
        with self.trunk.lock:
            self.take_turn()
            state = self.state
            self._touch(None)
            shared = self.trunk.state.definitions.shared
            shared_items = {kind: self._shared_items(kind) for kind in shared}
            return state._replace(items={**state.items, **shared_items})

    def change(self, operation: Operation, *, removes: bool) -> None:
        """Apply an operation to the draft; what it adds to logs is visible to all at once."""
        kinds = operation.kinds(self.state)
        if kinds is None or not self.trunk.state.definitions.shared.issuperset(kinds):
            self.take_turn()
        shared = self.trunk.state.definitions.shared
        if kinds is None or not shared.isdisjoint(kinds):
            live = self.trunk.run(operation, self.trunk.state, shared.__contains__)
            self.trunk.state = self._defer_removal(live, kinds) if removes else live
        private = None if kinds is None else set(kinds) - shared
        if private is None or private:
            base, state = self._update()
            self._states = base, self.trunk.run(operation, state, self._is_private)
            self.operations.append(operation)
            self._touch(private)

    def replace_operations(self, operations: Iterable[Operation]) -> None:
        """Go back to the moment when these were the operations."""
        self.operations = list(operations)
        if self._states is not None:
            self._states = self._states[0], self._replay(self._states[0])

    def commit(self, release: Callable[[], object]) -> None:
        """Move the changes to the parent or publish them, atomically with `release`.

        Raises:
            TransactionEndedError: It has ended, or the enclosing transaction was rolled back.
        """
        with self.trunk.lock:
            if self.status != "open":
                raise TransactionEndedError("The transaction has ended")
            parent = self.parent
            if parent is not None and parent.status == "dropped":
                raise TransactionEndedError("The enclosing transaction was rolled back")
            if self.operations:
                self._update(replays=True)
            release()
            if self.has_changed:
                self._publish(parent)
            self._end("committed")

    def drop(self) -> None:
        """Discard the changes; later ones raise `TransactionEndedError`."""
        with self.trunk.lock:
            if self.status == "open":
                self._states = None
                self.operations = []
                self.log_replacements = {}
                self._end("dropped")

    def absorb(self, child: "Draft", state: SessionState) -> None:
        """Add the changes of a nested draft, which lead from the current state to `state`."""
        self._states = self._update()[0], state
        self.operations += child.operations
        self.log_replacements.update(child.log_replacements)

    # --- parent and trunk ---

    def _end(self, status: Literal["committed", "dropped"]) -> None:
        self.status = status
        if self.trunk.is_awaited:
            self.trunk.is_awaited = False  # those who still wait set it again
            self.trunk.turn_ended.notify_all()

    def _publish(self, parent: "Draft | None") -> None:
        # again: subscribers may have changed something when the files were released
        state = self._update(replays=True)[1]
        if parent is not None:
            parent.absorb(self, state)
            return
        logs = {kind: self._shared_items(kind) for kind in self.log_replacements}
        self.trunk.state = state.with_items(logs) if logs else state

    def _shared_items(self, kind: type[Any]) -> Items[Any]:
        """Return the items of a shared slice, with log replacements of this draft applied."""
        live = self.trunk.state.get(kind)
        draft: Draft | None = self
        while draft is not None and kind not in draft.log_replacements:
            draft = draft.parent
        return live if draft is None else draft.log_replacements[kind].apply(live, self.trunk.owner)

    def _defer_removal(
        self, live: SessionState, kinds: Collection[type[Any]] | None
    ) -> SessionState:
        """Defer replacement of logs to the commit: a failed call must not remove entries."""
        before, known = self.trunk.state, live.definitions.by_kind
        logs = [kind for kind in (known if kinds is None else kinds) if known[kind].log]
        for kind in logs:
            self.log_replacements[kind] = _LogReplacement(before.get(kind), live.get(kind))
        return live.with_items({kind: before.get(kind) for kind in logs})

    def _update(self, *, replays: bool = False) -> tuple[SessionState, SessionState]:
        """Return the base state and the one with the changes so far.

        The base is the current state of the parent or trunk, or the latest that does not affect
        the changes if their operations must not be replayed.
        """
        parent = self.parent
        live = self.trunk.state if parent is None or parent.status == "dropped" else parent.state
        if self._states is None:
            self._states = live, live
        base, state = self._states
        if base is not live and self._is_unaffected(base, live):
            self._states = live, state.rebase(base, live)
        elif base is not live and replays:
            self._states = live, self._replay(live)
        return self._states

    def _is_private(self, kind: type[Any]) -> bool:
        return kind not in self.trunk.state.definitions.shared

    def _is_unaffected(self, base: SessionState, live: SessionState) -> bool:
        """Return whether everything read or changed here is the same in `base` and `live`."""
        if not self.touched:
            return self.touched is not None
        before, after = base.definitions, live.definitions
        return before.routes is after.routes and all(
            before.by_kind.get(kind) is after.by_kind.get(kind)
            and base.items.get(kind) is live.items.get(kind)
            for kind in self.touched
        )

    def _touch(self, kinds: Iterable[type[Any]] | None) -> None:
        """Record that slices were read or changed, here and in all parents."""
        draft: Draft | None = self
        while draft is not None:
            if kinds is None:
                draft.touched = None
            elif draft.touched is not None:
                draft.touched.update(kinds)
            draft = draft.parent

    def _replay(self, state: SessionState) -> SessionState:
        """Apply the operations to a state that others have changed."""
        for operation in self.operations:
            failures = operation.failures if isinstance(operation, FoldEvent) else []
            known = len(failures)
            state = self.trunk.run(operation, state, self._is_private)
            for failure in failures[known:]:
                _log.warning("%s, applied to what others had changed", failure)
        return state


def _find_draft(trunk: Store, draft: Draft | None) -> Draft | None:
    """Return the innermost draft of a session, from `draft` outwards, that is not committed."""
    while draft is not None and (draft.trunk is not trunk or draft.status == "committed"):
        draft = draft.enclosing
    return draft
