"""Clocks and deadlines.

A `Clock` has a wall clock and a monotonic clock, from the system or set by a test. A wall clock
may jump, so deadlines and durations are always measured with the monotonic clock.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol, Self

from weakincentives.errors import WinkError
from weakincentives.posix import time_limit

_NOTICEABLE = timedelta(seconds=1)  # less than that after a deadline says nothing


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
        """Change the wall clock only, as if the user had set it."""
        self._now += by


class DeadlineExceededError(WinkError, TimeoutError):
    """The deadline has passed."""

    def __init__(self, what: str, deadline: "Deadline", overrun: timedelta) -> None:
        """Describe the work that was stopped, its deadline, and how long ago that passed."""
        is_past = deadline.allowed <= timedelta()  # when it was made
        allowed = "" if is_past else f" of {_format_seconds(deadline.allowed)}"
        fact = f"{what} stopped: the deadline{allowed} passed"
        if overrun >= _NOTICEABLE:
            fact += f" {_format_seconds(overrun)} ago"
        super().__init__(fact)
        self.deadline = deadline
        self.overrun = overrun


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time by which work has to be done.

    The remaining time is measured with a monotonic clock from the creation of this value,
    so a jump of the wall clock has no effect.
    """

    expires_at: datetime
    clock: Clock = field(default=SYSTEM_CLOCK, repr=False, compare=False)
    allowed: timedelta = field(init=False, compare=False)
    """The remaining time when this value was created."""
    ends: float = field(init=False, repr=False, compare=False)
    """When it expires, by the monotonic clock."""

    def __post_init__(self) -> None:
        """Record the remaining time.

        Raises:
            ValueError: `expires_at` has no time zone.
        """
        if self.expires_at.tzinfo is None:
            raise ValueError(f"Deadline has no time zone: {self.expires_at!r}")
        allowed = self.expires_at - self.clock.now()
        object.__setattr__(self, "allowed", allowed)
        object.__setattr__(self, "ends", self.clock.monotonic() + allowed.total_seconds())

    @classmethod
    def after(cls, seconds: float | timedelta, *, clock: Clock = SYSTEM_CLOCK) -> Self:
        """Return the deadline `seconds` from now."""
        length = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
        return cls(clock.now() + length, clock)

    @property
    def expired(self) -> bool:
        """Whether it has passed."""
        return self.remaining() <= timedelta()

    def remaining(self) -> timedelta:
        """Return the time left; negative once the deadline has passed."""
        return timedelta(seconds=self.ends - self.clock.monotonic())

    def check(self, what: str = "Work") -> None:
        """Check that time is left; `what` names the work in the message.

        Raises:
            DeadlineExceededError: The deadline has passed.
        """
        left = self.remaining()
        if left <= timedelta():
            raise DeadlineExceededError(what, self, -left)

    @contextmanager
    def enforce(self) -> Generator[None, None, None]:
        """Limit filesystem operations in this context to the remaining time."""
        left = self.ends - self.clock.monotonic()
        with time_limit(left, clock=self.clock.monotonic):
            yield


def _format_seconds(length: timedelta) -> str:
    """Return a length in seconds, with three significant digits where it is short."""
    seconds = length.total_seconds()
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"
