"""Deferred interrupts: a Ctrl-C during a critical section is delivered at its end."""

import _signal  # pyright: ignore[reportMissingImports] # in C, not in the stubs
from collections.abc import Callable
from signal import SIGINT
from threading import get_ident, main_thread
from types import FrameType
from typing import Any

# the functions of `signal` convert to enums, which takes ten times as long
_set_handler: Callable[[int, Any], Any] = _signal.signal  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
_get_handler: Callable[[int], Any] = _signal.getsignal  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
_SIGINT = int(SIGINT)


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
