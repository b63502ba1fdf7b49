"""Cancellation tokens, and waits on other threads that signals can interrupt."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import RLock
from typing import TypeVar

from weakincentives.adapters.errors import RunCancelledError

T = TypeVar("T")
# seconds; a signal may be delivered to another thread, and its handler runs when this one wakes up
_POLL_INTERVAL = 0.1


def drain_until(seconds: float, queue: "SimpleQueue[T]") -> Iterator[T]:
    """Yield the items of a queue as they arrive, for at most `seconds`."""
    ends = time.monotonic() + seconds  # the real clock, because the wait is real too
    while (left := ends - time.monotonic()) > 0:
        with suppress(Empty):
            yield queue.get(timeout=min(left, _POLL_INTERVAL))


class CancellationToken:
    """Cancels runs from outside; a run checks it between steps and while it waits.

    Thread-safe. A signal handler may call `cancel`.
    """

    def __init__(self) -> None:
        """Start as not cancelled."""
        # reentrant: a signal handler may run while its own thread holds the lock
        self._lock = RLock()
        self._listeners: list[Callable[[], None]] = []
        self._is_cancelled = False
        self._reason = ""

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._is_cancelled

    def cancel(self, reason: str = "") -> None:
        """Cancel the runs that have this token; the first reason stays."""
        with self._lock:
            if self._is_cancelled:
                return
            self._reason, self._is_cancelled = reason, True
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()

    def check(self, what: str = "Run") -> None:
        """Return if the token is not cancelled.

        Raises:
            RunCancelledError: It is cancelled.
        """
        if self._is_cancelled:
            because = f": {self._reason}" if self._reason else ""
            raise RunCancelledError(f"{what} stopped: the run was cancelled{because}")

    def wait(self, seconds: float) -> None:
        """Return after `seconds`, or at once on cancellation."""
        cancelled: SimpleQueue[None] = SimpleQueue()
        unsubscribe = self.subscribe(lambda: cancelled.put(None))
        try:
            next(drain_until(seconds, cancelled), None)
        finally:
            unsubscribe()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` once on cancellation, or now if it has happened already.

        It runs in the thread that cancels. Returns a function that unsubscribes.
        """
        with self._lock:
            self._listeners.append(listener)
            is_late = self._is_cancelled
        if is_late:
            listener()
        return lambda: self._unsubscribe(listener)

    def _unsubscribe(self, listener: Callable[[], None]) -> None:
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
