"""Nested savepoints and the write lock that isolates them.

Savepoints nest as in a database. While one is open, only its thread can change the
filesystem: other threads can read, but wait before they change anything.
"""

import time
from collections.abc import Callable
from threading import RLock, get_ident
from typing import Protocol, Self

from weakincentives.errors import WinkError
from weakincentives.posix import TimeLimitError, check_time

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

    def rollback(self, depth: int) -> None:
        """End that savepoint and undo the changes."""
        ...


class WriteLock:
    """The reentrant write lock of a filesystem, which an open savepoint holds.

    Use it as a context manager for one change. `mutex` is held during each change;
    readers that must not see a half-done change take it too. They need not wait for a
    savepoint to end.
    """

    def __init__(self, *, timeout: float = LOCK_TIMEOUT) -> None:
        """Wait no longer than `timeout` seconds for another thread's savepoint."""
        self.mutex: RLock = RLock()
        self.savepoints: list[Savepoint] = []
        self._lock = RLock()
        self._holds = 0
        self._timeout = timeout

    def __enter__(self) -> None:
        """Acquire the lock and the mutex.

        Raises:
            TimeLimitError: Another thread kept the lock too long.
        """
        self.acquire()
        try:
            self.mutex.acquire()
        except BaseException:
            self.release()
            raise

    def __exit__(self, *_: object) -> None:
        """Release both."""
        self.mutex.release()
        self.release()

    def acquire(self) -> None:
        """Acquire the lock; each call needs one `release` in the same thread.

        Raises:
            TimeLimitError: Another thread kept the lock too long.
        """
        if not self._lock.acquire(blocking=False):
            self._wait()

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def hold(self) -> Callable[[], None]:
        """Acquire the lock for changes that no savepoint covers; return its release function.

        Raises:
            TimeLimitError: Another thread kept the lock too long.
        """
        self.acquire()
        self._holds += 1
        return self._release_hold

    @property
    def is_held(self) -> bool:
        """Whether `hold` is in effect."""
        return self._holds > 0

    def abandon_savepoints(self) -> None:
        """Roll back all open savepoints, from any thread."""
        for outermost in self.savepoints[:1]:
            outermost.abandon()

    def _release_hold(self) -> None:
        self._holds -= 1
        self.release()

    def _wait(self) -> None:
        started = time.monotonic()
        while not self._lock.acquire(timeout=POLL_INTERVAL):
            check_time("Waiting for another thread")
            if (self.savepoints or self._holds) and time.monotonic() - started > self._timeout:
                raise TimeLimitError(
                    f"Waited {self._timeout:g} seconds for another thread to end its savepoint"
                )


class Savepoint:
    """A point to go back to: `release` keeps the changes made since, `rollback` undoes them.

    As a context manager it is released at the end of the block, and rolled back if an
    exception leaves it. Changes of a released inner savepoint belong to the outer one;
    ending the outer one ends all that are inside it.
    """

    __slots__ = ("_depth", "_is_open", "_lock", "_on_rollback", "_storage", "_thread")

    def __init__(
        self, lock: WriteLock, storage: SavepointStorage, on_rollback: Callable[[], None]
    ) -> None:
        """Open a savepoint; `on_rollback` is called after a rollback that undid something."""
        self._lock = lock
        self._storage = storage
        self._on_rollback = on_rollback
        self._thread = get_ident()
        self._is_open = False
        lock.acquire()
        try:
            with lock.mutex:  # `close` in another thread must not see a half-open one
                self._depth = len(lock.savepoints)
                lock.savepoints.append(self)
                storage.begin()
                self._is_open = True
        except BaseException:
            with lock.mutex:
                if self not in lock.savepoints:  # an interrupt arrived at once
                    lock.release()
                elif storage.depth > self._depth:  # an interrupt arrived after it was opened
                    self._undo()
                else:
                    self._end()
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
        self._check_usable()
        with self._lock.mutex:
            self._check_usable()  # another thread may have closed the filesystem meanwhile
            try:
                self._storage.release(self._depth)
            finally:
                if self._storage.depth <= self._depth:  # also if an interrupt came too late
                    self._end()

    def rollback(self) -> None:
        """End the savepoint and undo the changes.

        Raises:
            SavepointError: The savepoint has ended, belongs to another thread, or the disk
                failed. After a disk failure the next change, or the next instance on the
                directory, continues the rollback.
            BackendUnavailableError: The workspace has been removed; nothing can be undone.
        """
        self._check_usable()
        with self._lock.mutex:
            self._check_usable()  # another thread may have closed the filesystem meanwhile
            self._undo()

    def abandon(self) -> None:
        """Roll back from any thread, unless the savepoint has ended."""
        with self._lock.mutex:
            if self._is_open:
                self._undo()

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Release, or roll back after an exception; do nothing if it has ended."""
        with self._lock.mutex:
            if kind is not None:
                self.abandon()
            elif self._is_open:
                try:
                    self.release()
                except BaseException:
                    self.abandon()
                    raise

    def _check_usable(self) -> None:
        if not self._is_open:
            raise SavepointError("Savepoint has ended: it, or one that it was inside of")
        if self._thread != get_ident():
            raise SavepointError("Savepoint belongs to another thread")

    def _undo(self) -> None:
        with self._lock.mutex:
            changed = self._storage.has_changed(self._depth)
            try:
                self._storage.rollback(self._depth)
            finally:
                if self._storage.depth <= self._depth:  # not if an interrupt came too early
                    try:
                        if changed:
                            self._on_rollback()
                    finally:
                        self._end()

    def _end(self) -> None:
        """End this savepoint and those inside it."""
        is_owner = self._thread == get_ident()
        ended: Savepoint | None = None
        # not by the length of the list: once the lock is released, another thread may append
        while ended is not self:
            ended = self._lock.savepoints.pop()
            ended._is_open = False  # noqa: SLF001  another one of the same class
            if is_owner:  # only the owner can release an RLock
                self._lock.release()
