"""Work on many pieces at a time, with the results in order.

Packing, unpacking and hashing let other threads run meanwhile, so that every processor
can take part.
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
_MOST = 4  # threads: what is left to one at a time keeps more of them waiting
_AHEAD = 2  # pieces for each thread that are begun before they are asked for


def parallel_map(work: Callable[[T], R], pieces: Iterable[T]) -> Generator[R, None, None]:
    """Yield the result of `work` for each piece; if there are many, several are worked on.

    Pieces are taken in the calling thread, a few ahead. Time limits hold in all threads.
    """
    source = iter(pieces)
    count = min(_MOST, _processors())
    yield from map(work, islice(source, 1 if count > 1 else None))
    begun: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(count, "wink-archive")  # a thread begins with its first piece
    try:
        for piece in source:
            begun.append(_begin(pool, work, piece))
            if len(begun) > count * _AHEAD:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(pool: ThreadPoolExecutor, work: Callable[[T], R], piece: T) -> Future[R]:
    try:
        return pool.submit(copy_context().run, work, piece)
    except RuntimeError:  # no more threads: the process has too many, or is about to end
        done: Future[R] = Future()
        done.set_result(work(piece))
        return done


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux tells
        return os.cpu_count() or 1
