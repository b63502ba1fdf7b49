"""A context-local time limit that long operations check as they go."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

from weakincentives.errors import WinkError


class TimeLimitError(WinkError, TimeoutError):
    """An operation was stopped because its time was up."""


_RETURN_SECONDS = 1.0  # kept for returning what was found
_Clock = Callable[[], float]
_deadline: ContextVar[tuple[float, _Clock] | None] = ContextVar("deadline", default=None)


@contextmanager
def time_limit(seconds: float, *, clock: _Clock | None = None) -> Generator[None, None, None]:
    """Stop filesystem work in this context after `seconds`; an outer, earlier limit stays.

    The time is taken from `clock`, else from that of the outer limit, else from the machine.
    """
    outer = _deadline.get()
    clock = clock or (time.monotonic if outer is None else outer[1])
    mine = (clock() + seconds, clock)
    if outer is not None and outer[0] - outer[1]() <= seconds:
        mine = outer
    token = _deadline.set(mine)
    try:
        yield
    finally:
        _deadline.reset(token)


@contextmanager
def no_time_limit() -> Generator[None, None, None]:
    """Let work in this context go on to its end, late as it may be: taking back what was done."""
    token = _deadline.set(None)
    try:
        yield
    finally:
        _deadline.reset(token)


def remaining_time() -> float | None:
    """Return how many seconds the time limit of this context leaves; None if there is none."""
    deadline = _deadline.get()
    return None if deadline is None else deadline[0] - deadline[1]()


@contextmanager
def early_time_limit(seconds: float) -> Generator[None, None, None]:
    """Stop after `seconds`, or so early that the caller can still tell what was found.

    A tenth of what an outer limit leaves, and at most a second, is kept for that.
    """
    left = remaining_time()
    if left is not None:
        seconds = min(seconds, left - min(left / 10, _RETURN_SECONDS))
    with time_limit(seconds):
        yield


def is_time_up() -> bool:
    """Return whether the time limit of this context has passed."""
    deadline = _deadline.get()
    return deadline is not None and deadline[1]() >= deadline[0]


def check_time(what: str) -> None:
    """Return while there is time left.

    Raises:
        TimeLimitError: The time limit of this context has passed.
    """
    if is_time_up():
        raise TimeLimitError(f"{what} stopped: the time limit of this call has passed")
