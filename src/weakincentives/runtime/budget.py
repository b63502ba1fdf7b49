"""Budgets for tokens, tool calls and time, and a thread-safe tracker of what was used."""

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Final

from weakincentives.errors import WinkError
from weakincentives.runtime.deadlines import Deadline


class BudgetExceededError(WinkError, RuntimeError):
    """More was used than the budget allows."""

    def __init__(self, *excesses: "Excess") -> None:
        """List each exceeded limit, and by how much."""
        super().__init__("; ".join(map(str, excesses)))
        self.excesses = excesses


@dataclass(frozen=True, slots=True)
class Excess:
    """One exceeded limit of a budget."""

    limit: str
    allowed: int
    used: int

    def __str__(self) -> str:
        """Return the limit and by how much it was exceeded."""
        over = self.used - self.allowed
        return f"Budget exceeded: {self.limit} by {over}, {self.used} of {self.allowed}"


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens used.

    `cached_tokens` are the input tokens that were read from a cache, and `cache_write_tokens` those
    that were written to it, where the provider counts them: both are a part of `input_tokens`.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: A number is negative.
        """
        cache = min(self.cached_tokens, self.cache_write_tokens)
        if min(self.input_tokens, self.output_tokens, cache) < 0:
            raise ValueError(f"Token usage is negative: {self!r}")

    @property
    def total_tokens(self) -> int:
        """The sum of input and output tokens."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        """Return the sum."""
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits for tokens, tool calls and time; None means no limit."""

    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_total_tokens: int | None = None
    max_tool_calls: int | None = None
    deadline: Deadline | None = None

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
            ValueError: A limit is negative.
        """
        for name in ("max_input_tokens", "max_output_tokens", "max_total_tokens", "max_tool_calls"):
            limit = getattr(self, name)
            if limit is not None and limit < 0:
                raise ValueError(f"{name} must not be negative: {limit!r}")


class BudgetTracker:
    """Adds up what was used of a budget; thread-safe."""

    budget: Final[Budget]
    """The budget."""
    usage: TokenUsage
    """The tokens used so far."""
    tool_calls: int
    """The number of tool calls so far."""

    def __init__(self, budget: Budget) -> None:
        """Start with nothing used."""
        self.budget = budget
        self.usage = TokenUsage()
        self.tool_calls = 0
        self._lock = Lock()

    def record(self, usage: TokenUsage) -> None:
        """Add tokens that were used; `check` raises if it was too much."""
        with self._lock:
            self.usage += usage

    def count_tool_call(self) -> None:
        """Count one tool call before it runs.

        Raises:
            BudgetExceededError: The budget allows no more calls; this one was not counted.
        """
        with self._lock:
            allowed, calls = self.budget.max_tool_calls, self.tool_calls + 1
            if allowed is not None and calls > allowed:
                raise BudgetExceededError(Excess("max_tool_calls", allowed, calls))
            self.tool_calls = calls

    def check(self, what: str = "Work") -> None:
        """Check that tokens and time are within the budget.

        Raises:
            BudgetExceededError: Too many tokens were used; it names every exceeded limit.
            DeadlineExceededError: The budget's deadline has passed.
        """
        excesses = tuple(self._find_excesses(self.usage))
        if excesses:
            raise BudgetExceededError(*excesses)
        if self.budget.deadline is not None:
            self.budget.deadline.check(what)

    def _find_excesses(self, usage: TokenUsage) -> Iterator[Excess]:
        for limit, allowed, used in (
            ("max_input_tokens", self.budget.max_input_tokens, usage.input_tokens),
            ("max_output_tokens", self.budget.max_output_tokens, usage.output_tokens),
            ("max_total_tokens", self.budget.max_total_tokens, usage.total_tokens),
        ):
            if allowed is not None and used > allowed:
                yield Excess(limit, allowed, used)
