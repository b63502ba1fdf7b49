"""A thread that works beside a block and ends with it."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Event, Thread


@contextmanager
def run_beside(work: Callable[[Event], None], name: str) -> Generator[None, None, None]:
    """Run `work` in a thread; at the end of the block set its event, and wait for it."""
    finished = Event()
    thread = Thread(target=work, args=(finished,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
