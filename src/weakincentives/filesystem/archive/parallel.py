"""An ordered parallel map over threads.

Compression, decompression and hashing release the GIL, so threads use every processor.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
_MAX_THREADS = 4  # more would wait for the sequential part
_LOOKAHEAD = 2  # items for each thread that are submitted ahead


def parallel_map(function: Callable[[T], R], items: Iterable[T]) -> Generator[R, None, None]:
    """Yield `function(item)` for each item, in order; threads are used from the second on.

    Items are taken in the calling thread, a few ahead. Time limits apply in all threads.
    """
    source = iter(items)
    count = min(_MAX_THREADS, _count_processors())
    yield from map(function, islice(source, 1 if count > 1 else None))
    futures: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(count, "wink-archive")  # starts its threads on demand
    try:
        for item in source:
            futures.append(_submit(pool, function, item))
            if len(futures) > count * _LOOKAHEAD:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _submit(pool: ThreadPoolExecutor, function: Callable[[T], R], item: T) -> Future[R]:
    try:
        return pool.submit(copy_context().run, function, item)
    except RuntimeError:  # no thread can be started: too many, or interpreter shutdown
        future: Future[R] = Future()
        future.set_result(function(item))
        return future


def _count_processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux has it
        return os.cpu_count() or 1
