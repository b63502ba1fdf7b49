"""Wall clock and monotonic clock, from the system or set by a test.

A wall clock may jump, so durations are always measured with the monotonic clock.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """A source of wall-clock and monotonic time."""

    def now(self) -> datetime:
        """Return the wall-clock time, with a time zone; it may jump."""
        ...

    def monotonic(self) -> float:
        """Return seconds since some fixed point; it never goes back."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> datetime:
        """Return the wall-clock time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds since some fixed point."""
        return time.monotonic()


SYSTEM_CLOCK = SystemClock()
"""The default clock."""


class ManualClock:
    """A clock for tests: it stands still until the test moves it."""

    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        """Start at `now`, with the monotonic clock at 0."""
        self._now = now
        self._monotonic = 0.0

    def now(self) -> datetime:
        """Return the wall-clock time."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds that have passed."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Advance both clocks."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds

    def jump(self, by: timedelta) -> None:
        """Change the wall clock only, as if somebody had set it."""
        self._now += by
