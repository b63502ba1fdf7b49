"""Deadlines, measured with a monotonic clock."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Self

from weakincentives.errors import WinkError
from weakincentives.posix import time_limit
from weakincentives.runtime.clock import SYSTEM_CLOCK, Clock


class DeadlineExceededError(WinkError, TimeoutError):
    """The deadline has passed."""

    def __init__(self, what: str, deadline: "Deadline", overrun: timedelta) -> None:
        """Describe the work that was stopped, its deadline, and how long ago that passed."""
        super().__init__(
            f"{what} stopped: the deadline of {_format_seconds(deadline.allowed)} passed "
            f"{_format_seconds(overrun)} ago"
        )
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
    return f"{length.total_seconds():.3f} s"
