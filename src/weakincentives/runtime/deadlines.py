"""Deadlines: when work has to be done, and what is said when it is not."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Self

from weakincentives.errors import WinkError
from weakincentives.posix import time_limit
from weakincentives.runtime.clock import SYSTEM_CLOCK, Clock


class DeadlineExceededError(WinkError, TimeoutError):
    """The time for this work is over."""

    def __init__(self, what: str, deadline: "Deadline", overrun: timedelta) -> None:
        """Say what was stopped, which deadline it had, and by how much that has passed."""
        super().__init__(
            f"{what} stopped: the deadline of {_seconds(deadline.allowed)} passed "
            f"{_seconds(overrun)} ago"
        )
        self.deadline = deadline
        self.overrun = overrun


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment by which work has to be done.

    What remains is measured from the making of this value with a monotonic clock: a
    wall clock that jumps moves nothing.
    """

    expires_at: datetime
    clock: Clock = field(default=SYSTEM_CLOCK, repr=False, compare=False)
    allowed: timedelta = field(init=False, compare=False)
    """How much time there was when this value was made."""
    ends: float = field(init=False, repr=False, compare=False)
    """When it ends, by the monotonic clock."""

    def __post_init__(self) -> None:
        """Note what remains.

        Raises:
            ValueError: The moment has no time zone.
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
        """Return how much time is left; below zero, how long ago it passed."""
        return timedelta(seconds=self.ends - self.clock.monotonic())

    def check(self, what: str = "Work") -> None:
        """Return while there is time; `what` names the work in the message.

        Raises:
            DeadlineExceededError: The deadline has passed.
        """
        left = self.remaining()
        if left <= timedelta():
            raise DeadlineExceededError(what, self, -left)

    @contextmanager
    def applied(self) -> Generator[None, None, None]:
        """Stop filesystem work in this context when the deadline passes."""
        left = self.ends - self.clock.monotonic()
        with time_limit(left, clock=self.clock.monotonic):
            yield


def _seconds(length: timedelta) -> str:
    return f"{length.total_seconds():.3f} s"
