"""Hearing: waiting for what other threads say, without being deaf to signals."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import RLock
from typing import TypeVar

from weakincentives.adapters.errors import RunCancelledError

T = TypeVar("T")
# seconds; a signal may come to another thread, and its handler runs when this one wakes up
_LOOK = 0.1


def drain_until(seconds: float, queue: "SimpleQueue[T]") -> Iterator[T]:
    """Yield what is put into a queue, until so many seconds have passed."""
    ends = time.monotonic() + seconds  # by the real clock: the waiting is real too
    while (left := ends - time.monotonic()) > 0:
        with suppress(Empty):
            yield queue.get(timeout=min(left, _LOOK))


class CancellationToken:
    """What a run looks at between its steps and while it waits.

    Every method may be called from any thread, and `cancel` from a signal handler too.
    """

    def __init__(self) -> None:
        """Start without being cancelled."""
        # a signal handler may come while its own thread is in here, so nothing else will do
        self._lock = RLock()
        self._listeners: list[Callable[[], None]] = []
        self._is_cancelled = False
        self._reason = ""

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled."""
        return self._is_cancelled

    def cancel(self, reason: str = "") -> None:
        """End the runs that have this token; the first reason given stays."""
        with self._lock:
            if self._is_cancelled:
                return
            self._reason, self._is_cancelled = reason, True
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()

    def check(self, what: str = "Run") -> None:
        """Return while nobody has cancelled.

        Raises:
            RunCancelledError: Somebody has.
        """
        if self._is_cancelled:
            because = f": {self._reason}" if self._reason else ""
            raise RunCancelledError(f"{what} stopped: the run was cancelled{because}")

    def wait(self, seconds: float) -> None:
        """Return after so many seconds, or as soon as somebody cancels."""
        heard: SimpleQueue[None] = SimpleQueue()
        stop = self.subscribe(lambda: heard.put(None))
        try:
            next(drain_until(seconds, heard), None)
        finally:
            stop()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` when somebody cancels, or now if somebody has.

        It is called once, in the thread that cancels. What is returned ends it.
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
