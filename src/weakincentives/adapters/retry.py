"""Retries with exponential backoff and jitter."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from weakincentives.adapters.errors import ProviderError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff: each wait is twice as long as the one before.

    Jitter shortens a wait by up to a half, so that clients do not retry in lockstep. A
    wait is never shorter than the provider's `retry_after`.
    """

    max_retries: int = 5
    """Maximum retries of one request."""
    first_delay: float = 0.5
    """Seconds before the first retry."""
    max_delay: float = 30.0
    """Maximum wait in seconds, unless the provider asks for more."""
    max_retry_after: float = 300.0
    """Maximum `retry_after` in seconds; a request is not retried if the provider asks for more."""
    random: Callable[[], float] = field(default=random.random, repr=False, compare=False)
    """Returns random numbers from 0 to 1, for the jitter."""
    sleep: Callable[[float], None] | None = field(default=None, repr=False, compare=False)
    """Waits for a number of seconds; None is a wait that a cancellation ends."""

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: A number is negative.
        """
        for name in ("max_retries", "first_delay", "max_delay", "max_retry_after"):
            value = getattr(self, name)
            if value < 0:
                raise ValueError(f"{name} must not be negative: {value!r}")

    def delay(self, retries: int, error: ProviderError) -> float | None:
        """Return the seconds to wait before the next retry, or None for no retry.

        Args:
            retries: How many retries there were already.
            error: The error of the last attempt.
        """
        retry_after = error.retry_after or 0.0
        if not error.retryable or retries >= self.max_retries:
            return None
        if retry_after > self.max_retry_after:
            return None
        backoff = min(self.max_delay, self.first_delay * 2.0 ** min(retries, 60))
        return max(retry_after, backoff * (0.5 + self.random() / 2))
