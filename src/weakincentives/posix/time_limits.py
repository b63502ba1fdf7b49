"""A context-local time limit and cancellation, which long operations check as they go."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from weakincentives.errors import WinkError

_MAX_RESERVE = 1.0  # seconds kept for returning what was found
_Clock = Callable[[], float]
_deadline: ContextVar[tuple[float, _Clock] | None] = ContextVar("deadline", default=None)


class Cancellation(Protocol):
    """Says whether work was cancelled, from any thread."""

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled."""
        ...

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on cancellation, or now; return a function that unsubscribes it."""
        ...


_cancellation: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


class TimeLimitError(WinkError, TimeoutError):
    """An operation was stopped because its time was up."""


@contextmanager
def time_limit(seconds: float, *, clock: _Clock | None = None) -> Generator[None, None, None]:
    """Stop filesystem work in this context after `seconds`; an outer, earlier limit stays.

    Time is measured by `clock`; by default the outer limit's clock, else the monotonic clock.
    """
    outer = _deadline.get()
    clock = clock or (time.monotonic if outer is None else outer[1])
    deadline = (clock() + seconds, clock)
    if outer is not None and outer[0] - outer[1]() <= seconds:
        deadline = outer
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


@contextmanager
def no_time_limit() -> Generator[None, None, None]:
    """Suspend time limit and cancellation in this context, for work such as a rollback."""
    token, cancellation = _deadline.set(None), _cancellation.set(None)
    try:
        yield
    finally:
        _deadline.reset(token)
        _cancellation.reset(cancellation)


@contextmanager
def cancellable(cancellation: Cancellation) -> Generator[None, None, None]:
    """Stop work in this context when it is cancelled: filesystem operations and commands."""
    token = _cancellation.set(cancellation)
    try:
        yield
    finally:
        _cancellation.reset(token)


def on_cancel(listener: Callable[[], None]) -> Callable[[], None]:
    """Call `listener` when the work of this context is cancelled, in the thread that cancels.

    Returns a function that unsubscribes it.
    """
    cancellation = _cancellation.get()
    return _do_nothing if cancellation is None else cancellation.subscribe(listener)


def is_cancelled() -> bool:
    """Return whether the work of this context was cancelled."""
    cancellation = _cancellation.get()
    return cancellation is not None and cancellation.is_cancelled


def check_cancelled(what: str) -> None:
    """Check that the work of this context was not cancelled.

    Raises:
        TimeLimitError: It was.
    """
    if is_cancelled():
        raise TimeLimitError(f"{what} stopped: it was cancelled")


def remaining_time() -> float | None:
    """Return the seconds that are left in this context; None without a time limit."""
    deadline = _deadline.get()
    return None if deadline is None else deadline[0] - deadline[1]()


@contextmanager
def early_time_limit(seconds: float) -> Generator[None, None, None]:
    """Stop after `seconds`, or early enough for the caller to return partial results.

    A tenth of what an outer limit leaves, at most a second, is reserved for that.
    """
    left = remaining_time()
    if left is not None:
        seconds = min(seconds, left - min(left / 10, _MAX_RESERVE))
    with time_limit(seconds):
        yield


def is_time_up() -> bool:
    """Return whether the time limit of this context has passed, or its work was cancelled."""
    deadline = _deadline.get()
    return (deadline is not None and deadline[1]() >= deadline[0]) or is_cancelled()


def check_time(what: str) -> None:
    """Check that there is time left for `what`.

    Raises:
        TimeLimitError: The time limit of this context has passed, or its work was cancelled.
    """
    if is_time_up():
        check_cancelled(what)
        raise TimeLimitError(f"{what} stopped: the time limit of this call has passed")


def _do_nothing() -> None:
    pass
