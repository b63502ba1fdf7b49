"""Interrupts: a Ctrl-C that comes while something is made whole waits until it is."""

import logging
import signal
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from itertools import count
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from weakincentives.filesystem import Filesystem, FilesystemEvent
from weakincentives.posix import no_time_limit
from weakincentives.runtime.before_images import unwrap
from weakincentives.runtime.rollback import RollbackHandle, begin_rollback, begin_snapshot_rollback
from weakincentives.runtime.session import Session
from weakincentives.runtime.session.branch import Branch


@contextmanager
def defer_interrupts() -> Generator[None, None, None]:
    """Let SIGINT wait for the end of the block; only the main thread is ever interrupted."""
    handler: Any = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or not callable(handler):
        yield
        return
    arrived: list[tuple[int, FrameType | None]] = []
    try:
        signal.signal(signal.SIGINT, lambda number, frame: arrived.append((number, frame)))
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if arrived:
            handler(*arrived[-1])


_current: ContextVar["Transaction | None"] = ContextVar("transaction", default=None)
_log = logging.getLogger(__name__)
_open: set["Transaction"] = set()  # those that may change files, without those inside others
_ends = count(1)
_last_end = [0]
_MAX_LOOKS = 20  # at files that are taken back each time while they are looked at
T = TypeVar("T")


class _Part(NamedTuple):
    """A filesystem in a transaction, and where the one around it was when it began."""

    undo: RollbackHandle
    outer: RollbackHandle | None
    position: int

    def with_snapshot(self, filesystem: Filesystem) -> "_Part":
        """Return the same with an undo that works for changes past `filesystem`."""
        if unwrap(self.undo.filesystem) is not filesystem:
            return self
        return _Part(begin_snapshot_rollback(self.undo), None, 0)


class Transaction:
    """What is being done, and how it is taken back; `transaction` makes one."""

    def __init__(self, session: Session, outer: "Transaction | None" = None) -> None:
        """Begin, inside `outer` if that is of the same session."""
        self.session = session
        self.branch: Branch = session.branch()
        self._outer = outer if outer is not None and outer.session is session else None
        self._parts: list[_Part] = []
        self._joined: list[Filesystem] = []
        self._is_unwanted = False
        self._is_over = False
        self._end_callbacks: list[Callable[[], object]] = []
        self._end_priority: Callable[[], None] | None = None

    @property
    def events(self) -> Sequence[FilesystemEvent]:
        """What has changed in the files so far."""
        return [event for part in self._parts for event in part.undo.events()]

    @property
    def snapshot_ref(self) -> str | None:
        """The snapshot of the files before, if one was taken."""
        for part in self._parts:
            if part.undo.snapshot_ref is not None:
                return part.undo.snapshot_ref
        return None

    def join(self, filesystem: Filesystem, *, bypasses_filesystem: bool = False) -> None:
        """Make `filesystem` part of it: what changes there from now on is taken back too.

        Args:
            filesystem: Where files will change.
            bypasses_filesystem: Files change behind its back, by a shell for example.

        Raises:
            SnapshotError: The state before could not be kept.
            OSError: The same, where files have to be read to be kept.
        """
        self._join(filesystem, bypasses_filesystem=bypasses_filesystem, recorded=False)

    def files(self, filesystem: Filesystem, *, bypasses_filesystem: bool = False) -> Filesystem:
        """Make `filesystem` part of it, and return what to change it through.

        That is the filesystem itself, unless it has nothing but the protocol: then it is one
        that keeps what is about to change, which costs less than to keep everything.

        Raises:
            SnapshotError: The state before could not be kept.
            OSError: The same, where files have to be read to be kept.
        """
        return self._join(filesystem, bypasses_filesystem=bypasses_filesystem, recorded=True).files

    def _join(
        self, filesystem: Filesystem, *, bypasses_filesystem: bool, recorded: bool
    ) -> RollbackHandle:
        known = self._part_of(filesystem)
        if known is not None and (known.bypasses_filesystem or not bypasses_filesystem):
            return known
        if known is not None:
            # from the inside out: what is around it is taken back and done again as well
            original = unwrap(filesystem)
            self._parts = [each.with_snapshot(original) for each in self._parts]
        outer = None
        if self._outer is None:
            _open.add(self)
        else:
            outer = self._outer._join(
                filesystem, bypasses_filesystem=bypasses_filesystem, recorded=recorded
            )
        if known is not None:
            return self._part_of(filesystem) or known
        return self._begin_part(
            filesystem if outer is None else outer.files, outer, bypasses_filesystem, recorded
        )

    def _begin_part(
        self,
        filesystem: Filesystem,
        outer: RollbackHandle | None,
        bypasses_filesystem: bool,
        recorded: bool,
    ) -> RollbackHandle:
        position = 0 if outer is None else outer.position()
        undo = begin_rollback(
            filesystem, bypasses_filesystem=bypasses_filesystem, recorded=recorded
        )
        try:
            self._joined.append(unwrap(filesystem))
            self._parts.append(_Part(undo, outer, position))
        except BaseException:
            undo.rollback()
            raise
        return undo

    def covers(self, filesystem: Filesystem) -> bool:
        """Return whether what changes in `filesystem` is part of it."""
        mine = self._part_of(filesystem) is not None
        return mine or (self._outer is not None and self._outer.covers(filesystem))

    def has_joined(self, filesystem: Filesystem) -> bool:
        """Return whether it covers `filesystem`, or has done so before its end."""
        original = unwrap(filesystem)
        return any(each is original for each in self._joined)

    def rollback(self) -> None:
        """Take everything back at the end, although nothing was raised."""
        self._is_unwanted = True

    @property
    def outermost(self) -> "Transaction":
        """The transaction that decides whether this one stays."""
        return self if self._outer is None else self._outer.outermost

    def prioritize(self) -> None:
        """Let other transactions wait with their commits until it is over, for a few seconds.

        For one that has conflicted and is made again: nothing that it reads is then changed by
        them. Join filesystems first, since others may wait with theirs in hand.
        """
        if self._outer is None and self._end_priority is None:
            with defer_interrupts():  # or nobody would end it
                self._end_priority = self.session.prioritize(self.branch)

    def on_end(self, function: Callable[[], object]) -> None:
        """Call `function` when it is over, kept or taken back; now, if it is."""
        self._end_callbacks.append(function)
        if self._is_over:
            self._call_waiting()

    def freeze(self) -> Sequence[FilesystemEvent]:
        """Return what has changed in the files, after the last change: it is not looked for again.

        Changes past the filesystem are found by comparing everything, which is done once.
        """
        for part in self._parts:
            part.undo.freeze()
        return self.events

    def finish(self) -> None:
        """End it: keep what was done, or take it back if that was asked for."""
        if self._is_unwanted:
            self.undo()
            return
        try:
            # inside another one it is not certain yet that they stay
            events = self.events if self._outer is None else ()
        except BaseException:
            self.undo()
            raise
        # where nothing has changed there is nothing to tear, and a shield costs more than the rest
        with defer_interrupts() if events or self.branch.has_changed else nullcontext():
            self._keep(events)

    def _keep(self, events: Sequence[FilesystemEvent]) -> None:
        """Keep what was done, and tell the session of it."""
        late: list[BaseException] = []
        try:
            self.session.commit(self.branch, lambda: late.extend(self._release()), events)
        except BaseException:
            if self.branch.status == "open":
                self.undo()
            else:
                self._end()
            raise
        self._end()
        if late:  # an interruption came too late: everything has been kept
            raise late[0]

    def _release(self) -> list[BaseException]:
        """Keep what has changed in the files; return the interruptions that came too late."""
        interruptions: list[BaseException] = []
        while self._parts:
            undo = self._parts[-1].undo
            try:
                undo.release()
            except BaseException as error:
                if undo.is_open:
                    raise
                interruptions.append(error)
            self._parts.pop()
        return interruptions

    def undo(self) -> None:
        """Make files and session what they were before; neither time nor Ctrl-C stops it.

        What is over stays as it is.
        """
        if self._is_over:
            return
        with defer_interrupts():
            with no_time_limit():
                while self._parts:
                    self._rollback_part(*self._parts[-1])
                    self._parts.pop()
            self.branch.drop()
            self._end()

    def _rollback_part(
        self, undo: RollbackHandle, outer: RollbackHandle | None, position: int
    ) -> None:
        if undo.is_open:
            undo.rollback()
        if outer is not None:
            outer.forget_since(position)

    def _part_of(self, filesystem: Filesystem) -> RollbackHandle | None:
        """Return the latest part that is about `filesystem`."""
        if not self._parts:
            return None
        original = unwrap(filesystem)
        for part in reversed(self._parts):
            if unwrap(part.undo.filesystem) is original:
                return part.undo
        return None

    def _give_way(self) -> None:
        end, self._end_priority = self._end_priority, None
        if end is not None:
            end()

    def _end(self) -> None:
        self._is_over = True
        self._give_way()
        if self in _open:
            _last_end[0] = next(_ends)
            _open.discard(self)
        self._call_waiting()

    def _call_waiting(self) -> None:
        while self._end_callbacks:
            try:
                self._end_callbacks.pop()()
            except Exception:  # noqa: BLE001 # it is over, whatever others make of that
                _log.exception("What waited for the end of a transaction has failed")

    def abandon(self) -> None:
        """Drop what is still open: it could not be taken back, and must not be kept."""
        self.branch.drop()
        self._give_way()
        _open.discard(self)


def current_transaction() -> Transaction | None:
    """Return the transaction that this code runs in; who makes a filesystem late joins it."""
    return _current.get()


def read_consistently(
    filesystem: Filesystem, look: Callable[[], T]
) -> tuple[T, Collection[Transaction]]:
    """Return what `look` returns, and the transactions whose changes it may have seen.

    It is called again if a transaction ended meanwhile: it may have seen what was taken back.
    """
    looks = 0
    while True:
        looks += 1
        last_end, before = _last_end[0], frozenset(_open)
        found = look()
        if last_end == _last_end[0] or looks == _MAX_LOOKS:
            unsettled = before | frozenset(_open)
            # one that is just being taken back covers nothing any more, but was seen
            return found, [each for each in unsettled if each.has_joined(filesystem)]


def transaction(
    session: Session,
    filesystem: Filesystem | None = None,
    *,
    bypasses_filesystem: bool = False,
    shared: bool = False,
) -> AbstractContextManager[Transaction]:
    """Do everything in a `with` block, or nothing.

    Any exception that leaves the block takes back what was changed in the session and
    in the filesystem, and goes on; so does `rollback()` of the value, without one. A
    transaction inside another of the same session is part of that one. Changes of the session
    belong to the block if they are made in its context: a thread that it starts takes part if
    it runs in a copy of the context (`contextvars.copy_context().run`).

    Args:
        session: Whose state is restored.
        filesystem: Where files are restored; more can `join` later.
        bypasses_filesystem: Files change past the methods of `filesystem`, by a shell for
            example. Then a snapshot is taken first, and what changed is found out later.
        shared: Without effect: other threads may always work in the session meanwhile.

    Raises:
        TransactionConflictError: At the end: another thread has changed what was read in the
            session meanwhile, so everything was taken back.
        TransactionEndedError: It is inside one that was taken back.
        SnapshotError: The state before could not be kept, or not be restored.
    """
    del shared  # what it asked for is true of every transaction
    return _Block(session, filesystem, bypasses_filesystem)


class _Block:
    """A `with` block that is a transaction; every tool call pays for it, so it is no generator."""

    __slots__ = ("_bound", "_filesystem", "_outside", "_session", "_step", "_token")

    def __init__(
        self, session: Session, filesystem: Filesystem | None, bypasses_filesystem: bool
    ) -> None:
        self._session = session
        self._filesystem = filesystem
        self._outside = bypasses_filesystem

    def __enter__(self) -> Transaction:
        self._step = step = Transaction(self._session, _current.get())
        self._token = _current.set(step)
        self._bound = step.branch.bind()
        try:
            if self._filesystem is not None:
                step.join(self._filesystem, bypasses_filesystem=self._outside)
        except BaseException:
            self.__exit__(BaseException)
            raise
        return step

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._step.finish()
        finally:
            try:
                self._step.undo()  # unless it is over
            finally:
                if self._step.branch.status == "open":
                    self._step.abandon()
                self._step.branch.unbind(self._bound)
                _current.reset(self._token)
