"""What interrupts an operation: Ctrl-C, cancellation, a time limit, and faults injected by tests.

A Ctrl-C during a critical section is delivered at its end. Time limits and cancellation are
context-local; long operations check them as they go. Code that must survive a crash calls
`fault_point("store.renamed")` between its steps, which costs one comparison; a test installs a
hook and, at every point in turn, kills the process or raises the error of a full or broken disk.
"""

import _signal  # pyright: ignore[reportMissingImports] # in C, not in the stubs
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from signal import SIGINT
from threading import get_ident, main_thread
from types import FrameType
from typing import Any, Protocol

from weakincentives.errors import WinkError

# the functions of `signal` convert to enums, which takes ten times as long
_set_handler: Callable[[int, Any], Any] = _signal.signal  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
_get_handler: Callable[[int], Any] = _signal.getsignal  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
_SIGINT = int(SIGINT)
_MAX_RESERVE = 1.0  # seconds kept for returning what was found
_Clock = Callable[[], float]
_deadline: ContextVar[tuple[float, _Clock] | None] = ContextVar("deadline", default=None)
_hook: Callable[[str], None] | None = None


class InterruptDeferral:
    """A reentrant critical section; Python delivers SIGINT to the main thread only."""

    __slots__ = ("_depth", "_handler", "_pending")

    def __init__(self) -> None:
        """Start outside of the section."""
        self._depth = 0
        self._handler: Any = None
        self._pending: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> None:
        """Record interrupts from now on."""
        if get_ident() != main_thread().ident:
            return
        if not self._depth:
            handler = _get_handler(_SIGINT)
            if not callable(handler):
                return
            self._pending = None
            _set_handler(_SIGINT, self._record)
            self._handler = handler
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        """Deliver an interrupt that came meanwhile."""
        if not self._depth or get_ident() != main_thread().ident:
            return
        self._depth -= 1
        if not self._depth:
            handler, self._handler = self._handler, None
            _set_handler(_SIGINT, handler)
            if self._pending is not None:
                handler(*self._pending)

    def deliver(self) -> None:
        """Deliver an interrupt inside the section, where nothing has changed yet."""
        if self._pending is not None and self._depth and get_ident() == main_thread().ident:
            pending, self._pending = self._pending, None
            self._handler(*pending)

    def _record(self, number: int, frame: FrameType | None) -> None:
        self._pending = number, frame


_deferral = InterruptDeferral()


def defer_interrupts() -> InterruptDeferral:
    """Defer SIGINT to the end of a `with` block."""
    return _deferral


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
    return (lambda: None) if cancellation is None else cancellation.subscribe(listener)


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


def fault_point(point: str) -> None:
    """Call the hook, if one is installed, with the name of this point."""
    if _hook is not None:
        _hook(point)


@contextmanager
def fault_hook(hook: Callable[[str], None]) -> Generator[None, None, None]:
    """Call `hook` with the name of every fault point reached, in any thread."""
    global _hook
    _hook = hook
    try:
        yield
    finally:
        _hook = None
