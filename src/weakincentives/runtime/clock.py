"""Clocks: what day it is, and how much time has passed.

The two are different questions. A wall clock may jump, so durations are always
measured with the monotonic one.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> datetime:
        """Return the time of day, with a time zone; it may jump."""
        ...

    def monotonic(self) -> float:
        """Return seconds since some fixed moment; it never goes back."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds since some fixed moment."""
        return time.monotonic()


SYSTEM_CLOCK = SystemClock()
"""What is used where no clock is given."""


class ManualClock:
    """A clock that stands still until it is moved: for tests."""

    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        """Start at `now`, with the monotonic clock at 0."""
        self._now = now
        self._monotonic = 0.0

    def now(self) -> datetime:
        """Return the time of day that was set."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds that have passed."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds

    def jump(self, by: timedelta) -> None:
        """Set the wall clock forward or back, while no time passes."""
        self._now += by
