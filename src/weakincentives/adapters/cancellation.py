"""Cancellation: how anybody, in any thread, ends a run at its next safe moment."""

from threading import Event

from weakincentives.adapters.problems import RunCancelledError


class CancellationToken:
    """What a run looks at between its steps and while it waits; safe to share between threads."""

    def __init__(self) -> None:
        """Start without being cancelled."""
        self._event = Event()
        self._reason = ""

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled."""
        return self._event.is_set()

    def cancel(self, reason: str = "") -> None:
        """End the runs that have this token; the first reason given stays."""
        if not self._event.is_set():
            self._reason = reason
            self._event.set()

    def check(self, what: str = "Run") -> None:
        """Return while nobody has cancelled.

        Raises:
            RunCancelledError: Somebody has.
        """
        if self._event.is_set():
            because = f": {self._reason}" if self._reason else ""
            raise RunCancelledError(f"{what} stopped: the run was cancelled{because}")

    def wait(self, seconds: float) -> None:
        """Return after so many seconds, or as soon as somebody cancels."""
        self._event.wait(seconds)
