"""Retries: whether and when a request that failed in passing is made again."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from weakincentives.adapters.errors import ProviderError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to wait before a request is made again, twice as long each time.

    Waits are shortened by chance, down to a half, so that many who failed together do not
    come back together. What a provider asks for is the least that is waited.
    """

    max_retries: int = 5
    """How often one request is made again."""
    first_delay: float = 0.5
    """Seconds before the first time."""
    max_delay: float = 30.0
    """The longest wait, unless the provider asks for more."""
    max_retry_after: float = 300.0
    """What a provider may ask for; who asks for more is not waited for."""
    random: Callable[[], float] = field(default=random.random, repr=False, compare=False)
    """Gives numbers from 0 to 1."""
    sleep: Callable[[float], None] | None = field(default=None, repr=False, compare=False)
    """Waits so many seconds; None is a wait that a cancellation ends."""

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ValueError: A number is negative.
        """
        for name in ("max_retries", "first_delay", "max_delay", "max_retry_after"):
            value = getattr(self, name)
            if value < 0:
                raise ValueError(f"{name} must not be negative: {value!r}")

    def delay(self, retries: int, error: ProviderError) -> float | None:
        """Return how many seconds to wait, or None if it is not tried again.

        Args:
            retries: How often it was tried again already.
            error: What went wrong this time.
        """
        asked = error.retry_after or 0.0
        if not error.passes or retries >= self.max_retries or asked > self.max_retry_after:
            return None
        longest = min(self.max_delay, self.first_delay * 2.0 ** min(retries, 60))
        return max(asked, longest * (0.5 + self.random() / 2))
