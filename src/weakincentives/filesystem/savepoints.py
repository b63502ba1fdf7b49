"""Nested savepoints and the write lock that isolates them.

Savepoints nest as in a database. While one is open, only its thread can change the
filesystem: other threads can read, but wait before they change anything.

An interrupt (Ctrl-C) can arrive between any two lines. So a claim to write is data and no
lock that is held: a savepoint whose owner lost it to an interrupt is garbage, and rolled back
as such. The mutex is held only in `with` blocks of one function, which Python leaves safely.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition, RLock, get_ident
from typing import Protocol, Self
from weakref import ref

from weakincentives.errors import WinkError
from weakincentives.history import Kept
from weakincentives.posix import TimeLimitError, check_time, defer_interrupts

LOCK_TIMEOUT = 600.0  # seconds; bounds a deadlock between two threads
POLL_INTERVAL = 0.05  # seconds between two checks of the time limit while waiting


class SavepointError(WinkError, RuntimeError):
    """A savepoint has ended, belongs to another thread, or could not be rolled back."""


class SavepointStorage(Protocol):
    """A backend's stack of savepoints, addressed by depth from 0.

    Ending a savepoint also ends those inside it, which are deeper.
    """

    @property
    def depth(self) -> int:
        """How many savepoints are open."""
        ...

    def begin(self) -> None:
        """Open a savepoint inside those that are open; cheap, and copies nothing yet."""
        ...

    def has_changed(self, depth: int) -> bool:
        """Return whether there are changes since that savepoint, other than undone ones."""
        ...

    def release(self, depth: int) -> None:
        """End that savepoint and keep the changes."""
        ...

    def rollback(self, depth: int) -> Sequence[Kept]:
        """End that savepoint and undo the changes; return what was left alone."""
        ...


class WriteLock:
    """The write lock of a filesystem: one thread at a time has savepoints and holds.

    To change something, enter `mutex` and call `await_turn` first. Readers that must not see
    a half-done change enter `mutex` too; they need not wait for a savepoint to end.
    """

    def __init__(self) -> None:
        """Start without savepoints."""
        self.mutex: RLock = RLock()
        self.savepoints: list[ref[Savepoint]] = []
        self.holds: list[ref[Hold]] = []
        self._owner = 0
        self._is_free = Condition(self.mutex)
        self._is_awaited = False
        self._timeout = LOCK_TIMEOUT

    @property
    def is_claimed(self) -> bool:
        """Whether a thread has savepoints or holds."""
        return bool(self.savepoints or self.holds)

    def await_turn(self) -> None:
        """Wait until no other thread has savepoints or holds; call it inside `mutex`.

        Raises:
            TimeLimitError: Another thread kept them too long.
        """
        if (self.savepoints or self.holds) and self._owner != get_ident():
            self._wait()

    def claim(self) -> None:
        """Make this thread the owner, whose turn it is."""
        self._owner = get_ident()

    def hold(self) -> "Hold":
        """Keep other threads from changes that no savepoint covers; call it to release it.

        Raises:
            TimeLimitError: Another thread kept the lock too long.
        """
        return Hold(self)

    @property
    def is_held(self) -> bool:
        """Whether `hold` is in effect."""
        return bool(self.holds)

    def abandon_savepoints(self) -> None:
        """Roll back all open savepoints, from any thread."""
        with self.mutex:
            outermost = self.savepoints[0]() if self.savepoints else None
            if outermost is not None:
                outermost.abandon()

    def notify(self) -> None:
        """Wake up the threads that wait, if it is their turn."""
        if self._is_awaited and not self.is_claimed:
            self._is_awaited = False  # those who still wait set it again
            self._is_free.notify_all()

    def _wait(self) -> None:
        started = time.monotonic()
        while self.is_claimed:
            self._is_awaited = True
            self._is_free.wait(POLL_INTERVAL)
            defer_interrupts().deliver()
            check_time("Waiting for another thread")
            if self.is_claimed and time.monotonic() - started > self._timeout:
                raise TimeLimitError(
                    f"Waited {self._timeout:g} seconds for another thread to end its savepoint"
                )


class Hold:
    """Keeps other threads from changing a filesystem, until it is called or garbage."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self, lock: WriteLock) -> None:
        """Wait for the turn of this thread."""
        self._lock = lock
        with lock.mutex:
            lock.await_turn()
            lock.claim()
            lock.holds.append(ref(self))

    def __call__(self) -> None:
        """Release it; does nothing the second time."""
        with self._lock.mutex:
            self._lock.holds[:] = [each for each in self._lock.holds if each() not in (None, self)]
            self._lock.notify()

    def __del__(self) -> None:
        """Release it if its owner lost it, to an interrupt for example."""
        if hasattr(self, "_lock") and not sys.is_finalizing():
            self()


class Savepoint:
    """A point to go back to: `release` keeps the changes made since, `rollback` undoes them.

    As a context manager it is released at the end of the block, and rolled back if an
    exception leaves it. Changes of a released inner savepoint belong to the outer one;
    ending the outer one ends all that are inside it. One that is garbage is rolled back.
    """

    __slots__ = (
        "__weakref__",
        "_depth",
        "_is_open",
        "_lock",
        "_on_rollback",
        "_storage",
        "_thread",
    )

    def __init__(
        self, lock: WriteLock, storage: SavepointStorage, on_rollback: Callable[[], None]
    ) -> None:
        """Open a savepoint; `on_rollback` is called after a rollback that undid something."""
        self._lock = lock
        self._storage = storage
        self._on_rollback = on_rollback
        self._thread = get_ident()
        self._is_open = False
        try:
            with lock.mutex:
                lock.await_turn()
                with defer_interrupts():
                    self._begin()
        except BaseException:
            self.abandon()  # if an interrupt came after it had begun
            raise

    @property
    def is_open(self) -> bool:
        """Whether it has neither been released nor rolled back."""
        return self._is_open

    @property
    def changed(self) -> bool:
        """Whether the filesystem object has made changes since that are not undone.

        Raises:
            SavepointError: The savepoint has ended.
        """
        self._check_usable()
        return self._storage.has_changed(self._depth)

    def release(self) -> None:
        """End the savepoint and keep the changes.

        Raises:
            SavepointError: The savepoint has ended, or belongs to another thread.
            OSError: The disk failed; the savepoint is still open.
        """
        with defer_interrupts(), self._lock.mutex:
            self._check_usable()
            try:
                self._storage.release(self._depth)
            finally:
                if self._storage.depth <= self._depth:  # also if it failed after the commit point
                    self._end()

    def rollback(self) -> tuple[Kept, ...]:
        """End the savepoint and undo the changes.

        Return the changes of other programs that were left alone, and where the other versions
        are.

        Raises:
            SavepointError: The savepoint has ended, belongs to another thread, or the disk
                failed. After a disk failure the next change, or the next instance on the
                directory, continues the rollback.
            BackendUnavailableError: The workspace has been removed; nothing can be undone.
        """
        with defer_interrupts(), self._lock.mutex:
            self._check_usable()
            return self._undo()

    def abandon(self) -> None:
        """Roll back from any thread, unless the savepoint has ended."""
        with defer_interrupts(), self._lock.mutex:
            if self._is_open:
                self._undo()

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Release, or roll back after an exception; do nothing if it has ended."""
        with defer_interrupts(), self._lock.mutex:
            try:
                if kind is None and self._is_open:
                    self.release()
            finally:
                self.abandon()

    def __del__(self) -> None:
        """Roll back if its owner lost it, to an interrupt for example."""
        if getattr(self, "_is_open", False) and not sys.is_finalizing():
            with suppress(Exception):  # what it cannot undo is left to the next instance
                self.abandon()

    def _begin(self) -> None:
        self._depth = len(self._lock.savepoints)
        self._lock.claim()
        self._storage.begin()
        self._lock.savepoints.append(ref(self))
        self._is_open = True

    def _check_usable(self) -> None:
        if not self._is_open:
            raise SavepointError("Savepoint has ended: it, or one that it was inside of")
        if self._thread != get_ident():
            raise SavepointError("Savepoint belongs to another thread")

    def _undo(self) -> tuple[Kept, ...]:
        changed = self._storage.has_changed(self._depth)
        try:
            return tuple(self._storage.rollback(self._depth))
        finally:
            if self._storage.depth <= self._depth:  # else it can be tried again
                try:
                    if changed:
                        self._on_rollback()
                finally:
                    self._end()

    def _end(self) -> None:
        """End this savepoint and those inside it."""
        for each in self._lock.savepoints[self._depth :]:
            ended = each()
            if ended is not None:
                ended._is_open = False  # noqa: SLF001 # another one of the same class
        self._is_open = False
        del self._lock.savepoints[self._depth :]
        self._lock.notify()


def open_savepoint(filesystem: object) -> Savepoint | None:
    """Open a savepoint of `filesystem`; return None if it is not `Transactional`.

    Raises:
        TimeLimitError: Another thread did not end its savepoint in time.
    """
    # not isinstance(..., Transactional): every tool call comes here, and Python 3.11 takes
    # microseconds for that
    method = getattr(filesystem, "savepoint", None)
    return None if method is None else method()


def hold_lock(filesystem: object) -> Callable[[], None] | None:
    """Take the write lock of `filesystem`; return None if it is not `Lockable`.

    Raises:
        TimeLimitError: Another thread did not end its savepoint in time.
    """
    method = getattr(filesystem, "hold", None)
    return None if method is None else method()
