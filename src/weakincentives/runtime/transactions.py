"""Transactions over files and session, with deferred interrupts.

Leaving the `with` block commits everything; an exception rolls everything back. A Ctrl-C that
arrives during a commit or rollback is delivered when it is complete.
"""

import logging
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from contextvars import ContextVar, copy_context
from typing import Self, TypeVar
from weakref import ref

from weakincentives.filesystem import Filesystem, FilesystemEvent
from weakincentives.posix import defer_interrupts, no_time_limit
from weakincentives.runtime.before_images import unwrap
from weakincentives.runtime.rollback import (
    RollbackHandle,
    RollbackResult,
    begin_rollback,
    begin_snapshot_rollback,
)
from weakincentives.runtime.session import Session
from weakincentives.runtime.session.store import Draft

# weak, so that a transaction whose block was lost to an interrupt is rolled back as garbage
_current: ContextVar["ref[Transaction] | None"] = ContextVar("transaction", default=None)
_log = logging.getLogger(__name__)
_open: set["ref[Transaction]"] = set()  # outermost transactions that may change files
_last_end = [object()]  # another one after every end
_MAX_ATTEMPTS = 20  # to read files while transactions keep ending
T = TypeVar("T")


class Transaction:
    """Changes of files and session that are committed or rolled back together.

    `transaction` creates one. It begins when its `with` block is entered, and can be used for
    one block after the other. It is not a generator, because every tool call pays for it.
    """

    draft: Draft
    """The changes of the session."""
    _outer: "Transaction | None"
    _handles: list[RollbackHandle]
    _joined: list[Filesystem]
    rollbacks: list[RollbackResult]
    """What its rollback met of others, by filesystem; empty unless it was rolled back.

    One that displaced something is also published on the bus of the session.
    """
    _wants_rollback: bool
    _has_ended: bool
    _end_callbacks: list[Callable[[], object]]

    def __init__(
        self, session: Session, filesystem: Filesystem | None, *, bypasses_filesystem: bool
    ) -> None:
        """Prepare a transaction; it begins in `__enter__`."""
        self.session = session
        self._filesystem = filesystem
        self._bypasses_filesystem = bypasses_filesystem
        self._ref: ref[Transaction] = ref(self)
        self._enclosing: ref[Transaction] | None = None
        self._is_open = False

    def __enter__(self) -> Self:
        """Begin the transaction, nested in the current one if that is of the same session.

        Raises:
            RuntimeError: The transaction is open already.
            TransactionEndedError: The enclosing transaction was rolled back.
            SnapshotError: The state of the files could not be recorded.
            OSError: The same, if files have to be read to be recorded.
        """
        if self._is_open:
            raise RuntimeError("Transaction is open already")
        outer = current_transaction()
        self.draft = self.session.draft(exclusive=not self._bypasses_filesystem)
        self._outer = outer if outer is not None and outer.session is self.session else None
        self._handles = []
        self._joined = []
        self.rollbacks = []
        self._wants_rollback = self._has_ended = False
        self._end_callbacks = []
        try:
            self._is_open = True
            self._enclosing = _current.get()
            _current.set(self._ref)
            self.draft.bind()
            if self._filesystem is not None:
                self.join(self._filesystem, bypasses_filesystem=self._bypasses_filesystem)
        except BaseException:
            self.__exit__(BaseException)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Commit, or roll back after an exception."""
        try:
            if kind is None:
                self.finish()
        finally:
            if self._handles or not self._has_ended:
                with defer_interrupts():
                    try:
                        self.undo()
                    finally:
                        self._unbind()
            else:
                self._unbind()

    def __del__(self) -> None:
        """Roll back if the block was lost, to an interrupt at its end for example."""
        if getattr(self, "_is_open", False) and not sys.is_finalizing():
            with suppress(Exception):
                self.__exit__(BaseException)

    def _unbind(self) -> None:
        if self.draft.status == "open":  # it could not be rolled back
            self.draft.drop()
            _open.discard(self._ref)
        self.draft.unbind()
        if _current.get() is self._ref:
            _current.set(self._enclosing)
        self._is_open = False

    @property
    def events(self) -> Sequence[FilesystemEvent]:
        """The events of all file changes so far."""
        return [event for handle in self._handles for event in handle.events()]

    @property
    def snapshot_ref(self) -> str | None:
        """The snapshot of the files at the beginning, if one was taken."""
        for handle in self._handles:
            if handle.snapshot_ref is not None:
                return handle.snapshot_ref
        return None

    def join(self, filesystem: Filesystem, *, bypasses_filesystem: bool = False) -> None:
        """Add `filesystem` to the transaction: changes made there from now on are covered.

        Args:
            filesystem: Where files will change.
            bypasses_filesystem: Whether files change behind its back, by a shell for example.

        Raises:
            SnapshotError: The state of the files could not be recorded.
            OSError: The same, if files have to be read to be recorded.
        """
        self.open_handle(filesystem, bypasses_filesystem=bypasses_filesystem, recorded=False)

    def files(self, filesystem: Filesystem, *, bypasses_filesystem: bool = False) -> Filesystem:
        """Add `filesystem` to the transaction, and return what to change it through.

        That is the filesystem itself, unless it has nothing but the protocol: then it is a
        proxy that records before-images of what changes, which is cheaper than one of everything.

        Raises:
            SnapshotError: The state of the files could not be recorded.
            OSError: The same, if files have to be read to be recorded.
        """
        handle = self.open_handle(
            filesystem, bypasses_filesystem=bypasses_filesystem, recorded=True
        )
        return handle.files

    def open_handle(
        self, filesystem: Filesystem, *, bypasses_filesystem: bool, recorded: bool
    ) -> RollbackHandle:
        """Return the rollback handle of `filesystem`; create it here and in outer transactions.

        The arguments are those of `begin_rollback`.
        """
        known = self._find_handle(filesystem)
        if known is not None and (known.bypasses_filesystem or not bypasses_filesystem):
            return known
        original = unwrap(filesystem)
        if known is not None:
            # inner before outer: the enclosing one is rolled back and restored as well
            for place, handle in enumerate(self._handles):
                if unwrap(handle.filesystem) is original:
                    self._handles[place] = begin_snapshot_rollback(handle)
        options = {"bypasses_filesystem": bypasses_filesystem, "recorded": recorded}
        outer = None
        if self._outer is None:
            _open.add(self._ref)
            self.draft.take_turn()  # always before the lock of the files
        else:
            outer = self._outer.open_handle(filesystem, **options)
        if known is not None:
            return self._find_handle(filesystem) or known
        files = filesystem if outer is None else outer.files
        with defer_interrupts():  # or a handle could be lost before it is known here
            handle = begin_rollback(files, **options, outer=outer)
            self._joined.append(original)
            self._handles.append(handle)
        return handle

    def covers(self, filesystem: Filesystem) -> bool:
        """Return whether changes of `filesystem` are part of this transaction or an outer one."""
        is_part = self._find_handle(filesystem) is not None
        return is_part or (self._outer is not None and self._outer.covers(filesystem))

    def has_joined(self, filesystem: Filesystem) -> bool:
        """Return whether `filesystem` has ever joined, also after the end."""
        original = unwrap(filesystem)
        return any(each is original for each in self._joined)

    def rollback(self) -> None:
        """Request a rollback at the end of the block, without an exception."""
        self._wants_rollback = True

    @property
    def outermost(self) -> "Transaction":
        """The outermost transaction, which decides about the commit."""
        return self if self._outer is None else self._outer.outermost

    def on_end(self, function: Callable[[], object]) -> None:
        """Call `function` at the end, after commit or rollback; at once if it has ended."""
        self._end_callbacks.append(function)
        if self._has_ended:
            self._run_end_callbacks()

    def freeze(self) -> Sequence[FilesystemEvent]:
        """Return the events of all file changes, and detect no further ones.

        Changes behind the filesystem's back are detected by a full comparison, which is
        then done only once.
        """
        for handle in self._handles:
            handle.freeze()
        return self.events

    def finish(self) -> None:
        """Commit, or roll back if `rollback` was called."""
        if self._wants_rollback:
            self.undo()
            return
        try:
            # events of a nested transaction are dispatched by the outermost one
            events = self.freeze() if self._outer is None else ()
        except BaseException:
            self.undo()
            raise
        # without changes nothing can be torn, and deferring interrupts costs more than the rest
        with defer_interrupts() if self._handles or self.draft.has_changed else nullcontext():
            self._commit(events)

    def _commit(self, events: Sequence[FilesystemEvent]) -> None:
        """Keep all changes, and dispatch the events to the session."""
        late: list[BaseException] = []
        try:
            self.session.commit(self.draft, lambda: late.extend(self._release()), events)
        except BaseException:
            if self.draft.status == "open":
                self.undo()
            else:
                self._end()
            raise
        self._end()
        if late:  # the interrupt came too late: everything is committed
            raise late[0]

    def _release(self) -> list[BaseException]:
        """Keep all file changes; return interrupts that came too late."""
        interrupts: list[BaseException] = []
        while self._handles:
            handle = self._handles[-1]
            try:
                handle.release()
            except BaseException as error:
                if handle.is_open:
                    raise
                interrupts.append(error)
            self._handles.pop()
        return interrupts

    def undo(self) -> None:
        """Roll back files and session now; neither a time limit nor Ctrl-C stops it.

        Does nothing if the transaction has ended.
        """
        if self._has_ended:
            return
        with defer_interrupts():
            with no_time_limit():
                while self._handles:
                    if self._handles[-1].is_open:
                        self.rollbacks.append(self._handles[-1].rollback())
                    self._handles.pop()
            self.draft.drop()
            self._end()
            for each in self.rollbacks:
                if each.displaced:
                    copy_context().run(self._publish, each)
                    if not each.is_reported:
                        _log.warning("%s", each)

    def _publish(self, result: RollbackResult) -> None:
        """Publish what a rollback displaced: the session changes no longer belong to its draft."""
        self.draft.unbind()
        self.session.bus.publish(result)

    def _find_handle(self, filesystem: Filesystem) -> RollbackHandle | None:
        """Return the latest handle of `filesystem`."""
        if not self._handles:
            return None
        original = unwrap(filesystem)
        for handle in reversed(self._handles):
            if unwrap(handle.filesystem) is original:
                return handle
        return None

    def _end(self) -> None:
        self._has_ended = True
        if self._ref in _open:
            _last_end[0] = object()
            _open.discard(self._ref)
        self._run_end_callbacks()

    def _run_end_callbacks(self) -> None:
        while self._end_callbacks:
            try:
                self._end_callbacks.pop()()
            except Exception:  # noqa: BLE001 # the transaction has ended, whatever a callback does
                _log.exception("A callback at the end of a transaction failed")


def current_transaction() -> Transaction | None:
    """Return the innermost transaction of this context.

    Code that creates a filesystem inside a transaction should `join` it.
    """
    found = _current.get()
    return None if found is None else found()


def open_transactions() -> frozenset[Transaction]:
    """Return the outermost transactions that may change files."""
    found = (each() for each in tuple(_open))
    return frozenset(each for each in found if each is not None)


def read_consistently(
    filesystem: Filesystem, read: Callable[[], T]
) -> tuple[T, Collection[Transaction]]:
    """Return the result of `read`, and the open transactions whose changes it may have seen.

    `read` is called again if a transaction ended meanwhile: its changes may have been rolled
    back after they were seen.
    """
    attempts = 0
    while True:
        attempts += 1
        last_end, before = _last_end[0], open_transactions()
        result = read()
        if last_end is _last_end[0] or attempts == _MAX_ATTEMPTS:
            candidates = before | open_transactions()
            # one that is being rolled back covers nothing any more, but was seen
            return result, [each for each in candidates if each.has_joined(filesystem)]


def transaction(
    session: Session, filesystem: Filesystem | None = None, *, bypasses_filesystem: bool = False
) -> Transaction:
    """Commit everything done in a `with` block, or nothing.

    An exception that leaves the block rolls back the changes of session and filesystem, and
    propagates; `rollback()` of the transaction does the same without an exception. A transaction
    inside another of the same session is nested in it. Changes of the session belong to the
    block if they are made in its context: a thread takes part if it runs in a copy of the
    context (`contextvars.copy_context().run`).

    Args:
        session: The session to change.
        filesystem: The filesystem to change; more can `join` later.
        bypasses_filesystem: Whether files change behind the filesystem's back, by a shell for
            example. Then a snapshot is taken first, and changes are detected by comparison.

    Raises:
        TransactionEndedError: The enclosing transaction was rolled back.
        SnapshotError: The state could not be recorded or restored.
    """
    return Transaction(session, filesystem, bypasses_filesystem=bypasses_filesystem)
