"""Interrupts: a Ctrl-C that comes while something is made whole waits until it is."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Any


@contextmanager
def uninterrupted() -> Generator[None, None, None]:
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
