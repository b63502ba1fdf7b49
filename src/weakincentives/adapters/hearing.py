"""Hearing: waiting for what other threads say, without being deaf to signals."""

import time
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")

# seconds; a signal may come to another thread, and its handler runs when this one wakes up
_LOOK = 0.1


def heard_within(seconds: float, queue: "SimpleQueue[T]") -> Iterator[T]:
    """Yield what is put into a queue, until so many seconds have passed."""
    ends = time.monotonic() + seconds  # by the real clock: the waiting is real too
    while (left := ends - time.monotonic()) > 0:
        with suppress(Empty):
            yield queue.get(timeout=min(left, _LOOK))
