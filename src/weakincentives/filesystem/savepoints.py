"""Savepoints: points to which everything changed since can be taken back.

They nest like those of a database. While one is open, only its thread changes the
filesystem: other threads read what is there, and wait before they change anything.
"""

import time
from collections.abc import Callable
from threading import RLock, get_ident
from typing import Protocol, Self

from weakincentives.errors import WinkError
from weakincentives.posix import TimeLimitError, check_time

_PATIENCE = 600.0  # seconds; who waits for a thread that waits for him must not wait for ever
_LOOK = 0.05  # seconds between two looks at the time limit while waiting


class SavepointError(WinkError, RuntimeError):
    """A savepoint has ended, is another thread's, or could not be rolled back."""


class SavepointStorage(Protocol):
    """What a backend keeps for a savepoint; ending one ends those that were made after it."""

    @property
    def changed(self) -> bool:
        """Whether a change was begun since, and not taken back."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether it has not ended yet."""
        ...

    def release(self) -> None:
        """Keep what was changed."""
        ...

    def roll_back(self) -> None:
        """Take back what was changed."""
        ...


class WriteLock:
    """Whose turn it is to change a filesystem.

    Used as a context manager it is held for one change. A savepoint has the turn for
    as long as it is open. `reading` is held during each change, and by those who must
    not see half of one: they need not wait for the end of a savepoint.
    """

    def __init__(self, *, patience: float = _PATIENCE) -> None:
        """Wait no longer than `patience` seconds for the savepoint of another thread."""
        self.reading: RLock = RLock()
        self.open: list[Savepoint] = []
        self._turn = RLock()
        self._held = 0
        self._patience = patience

    def __enter__(self) -> None:
        """Wait for the turn.

        Raises:
            TimeLimitError: It did not come in time.
        """
        self.take_turn()
        try:
            self.reading.acquire()
        except BaseException:
            self.end_turn()
            raise

    def __exit__(self, *_: object) -> None:
        """Let others have it."""
        self.reading.release()
        self.end_turn()

    def take_turn(self) -> None:
        """Wait for the turn; every time it is taken it must be ended once."""
        if not self._turn.acquire(False):
            self._wait()

    def end_turn(self) -> None:
        """Let others have it."""
        self._turn.release()

    def hold(self) -> None:
        """Have the turn until `let_go`, for changes that no savepoint covers.

        Raises:
            TimeLimitError: It did not come in time.
        """
        self.take_turn()
        self._held += 1

    @property
    def is_held(self) -> bool:
        """Whether somebody has the turn for changes that no savepoint covers."""
        return self._held > 0

    def let_go(self) -> None:
        """End what `hold` began, in the same thread."""
        self._held -= 1
        self.end_turn()

    def abandon(self) -> None:
        """Roll back what is open, whose ever it is: nobody will end it."""
        for savepoint in self.open[:1]:
            savepoint.abandon()

    def _wait(self) -> None:
        started = time.monotonic()
        while not self._turn.acquire(timeout=_LOOK):
            check_time("Waiting for another thread")
            if (self.open or self._held) and time.monotonic() - started > self._patience:
                raise TimeLimitError(
                    f"Waited {self._patience:g} seconds for another thread to end its savepoint"
                )


class Savepoint:
    """A point to go back to: `release` keeps what was changed since, `rollback` takes it back.

    As a context manager it is released at the end, and rolled back if an exception
    leaves the block. What was done in an inner savepoint belongs to the outer one
    when it is released; ending the outer one ends all that are inside it.
    """

    __slots__ = ("_lock", "_mark", "_thread", "_told")

    def __init__(
        self, lock: WriteLock, begin: Callable[[], SavepointStorage], told: Callable[[], None]
    ) -> None:
        """Begin one; `told` is called after a rollback that has taken something back."""
        self._lock = lock
        self._told = told
        self._thread = get_ident()
        self._mark: SavepointStorage | None = None
        lock.take_turn()
        try:
            with lock.reading:
                lock.open.append(self)
                self._mark = begin()
        except BaseException:
            if self._mark is None:
                self._end()
            else:  # an interruption came after the beginning
                self.abandon()
            raise

    @property
    def is_open(self) -> bool:
        """Whether it has neither been released nor rolled back."""
        return self._mark is not None

    @property
    def changed(self) -> bool:
        """Whether anything was changed since through the filesystem, and not taken back.

        Raises:
            SavepointError: The savepoint has ended.
        """
        return self._checked().changed

    def release(self) -> None:
        """End the savepoint and keep what was changed.

        Raises:
            SavepointError: The savepoint has ended, or is another thread's.
            OSError: The disk failed; the savepoint is still open.
        """
        mark = self._checked()
        with self._lock.reading:
            try:
                mark.release()
            finally:
                if not mark.is_open:  # an interruption came too late to stop it
                    self._end()

    def rollback(self) -> None:
        """End the savepoint and take back what was changed.

        Raises:
            SavepointError: The savepoint has ended, is another thread's, or the disk
                failed. In this case the next change goes on with it, or the next instance.
            BackendUnavailableError: The workspace has been removed; nothing can be undone.
        """
        self._roll_back(self._checked())

    def abandon(self) -> None:
        """Roll back, whose ever it is, unless it has ended."""
        if self._mark is not None:
            self._roll_back(self._mark)

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Release, or roll back after an exception; one that has ended is left alone."""
        if kind is not None:
            self.abandon()
        elif self._mark is not None:
            try:
                self.release()
            except BaseException:
                self.abandon()
                raise

    def _checked(self) -> SavepointStorage:
        if self._mark is None:
            raise SavepointError("Savepoint has ended: it, or one that it was inside of")
        if self._thread != get_ident():
            raise SavepointError("Savepoint is another thread's")
        return self._mark

    def _roll_back(self, mark: SavepointStorage) -> None:
        with self._lock.reading:
            changed = mark.changed
            try:
                mark.roll_back()
            finally:
                if changed:
                    self._told()
                self._end()

    def _end(self) -> None:
        """End this one and those inside it."""
        ours = self._thread == get_ident()
        ended: Savepoint | None = None
        while ended is not self:
            ended = self._lock.open.pop()
            ended._mark = None
            if ours:
                self._lock.end_turn()
