"""Options and limits of a run: steps, timeouts, retries; cancellation, deadline and budget."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from weakincentives.adapters.cancellation import CancellationToken
from weakincentives.adapters.policies import Policy
from weakincentives.adapters.retry import RetryPolicy
from weakincentives.runtime import SYSTEM_CLOCK, BudgetTracker, Clock, Deadline

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model reasons before it answers; each provider supports some of them."""
EFFORTS: tuple[Effort, ...] = get_args(Effort)
"""Every effort, from the lowest to the highest."""
MAX_RESULT_CHARACTERS = 256_000
"""Maximum length of a tool result as the model sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run; None leaves the choice to the provider."""

    max_steps: int = 100
    """Maximum number of requests to the model."""
    max_tokens: int | None = None
    """Maximum tokens in one answer."""
    context_window: int | None = None
    """Tokens that the model takes in one request, if its name does not say it. Before they are
    reached, old tool results are left out, and old turns summarized."""
    temperature: float | None = None
    """Sampling temperature."""
    effort: Effort | None = None
    """How much the model reasons before it answers."""
    output_retries: int = 1
    """How often the model may correct an answer that does not match the output type."""
    max_parallel: int = 8
    """Maximum number of read-only tool calls that run in parallel."""
    request_timeout: float = 600.0
    """Timeout of one request in seconds; shorter if the deadline is nearer."""
    max_result_characters: int = MAX_RESULT_CHARACTERS
    """Maximum length of a tool result as the model sees it."""
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    """Retries of requests that fail with a retryable error."""
    policies: Sequence[Policy] = ()
    """Policies that may deny a tool call."""
    clock: Clock = field(default=SYSTEM_CLOCK, repr=False, compare=False)
    """Clock for durations."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: A number is too small, or the effort is unknown.
        """
        if self.effort is not None and self.effort not in EFFORTS:
            raise ValueError(f"effort must be one of {', '.join(EFFORTS)}: {self.effort!r}")
        for name, least in (("max_steps", 1), ("output_retries", 0), ("max_parallel", 1)):
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"{name} must be {least} or more: {value!r}")
        for name in ("max_tokens", "context_window", "request_timeout"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be more than 0: {value!r}")


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What can end a run from outside; checked before and after each of its actions."""

    cancellation: CancellationToken
    deadline: Deadline | None = None
    tracker: BudgetTracker | None = None

    def check(self, what: str) -> None:
        """Return if the run may continue; `what` names the action in the error.

        Raises:
            RunCancelledError: The run was cancelled.
            DeadlineExceededError: The deadline has passed.
            BudgetExceededError: The budget is used up.
        """
        self.cancellation.check(what)
        if self.deadline is not None:
            self.deadline.check(what)
        if self.tracker is not None:
            self.tracker.check(what)

    def remaining_seconds(self) -> float | None:
        """Return the seconds until the deadline, or None without one."""
        return None if self.deadline is None else self.deadline.remaining().total_seconds()

    def cap_tokens(self, max_tokens: int | None) -> int | None:
        """Return `max_tokens` of an answer, reduced to what the budget allows."""
        if max_tokens is None or self.tracker is None:
            return max_tokens
        budget, used = self.tracker.budget, self.tracker.usage
        for allowed, spent in (
            (budget.max_output_tokens, used.output_tokens),
            (budget.max_total_tokens, used.total_tokens),
        ):
            if allowed is not None:
                max_tokens = min(max_tokens, max(1, allowed - spent))
        return max_tokens


def earliest_deadline(*deadlines: Deadline | None) -> Deadline | None:
    """Return the deadline that passes first; their clocks may differ."""
    return min(filter(None, deadlines), key=Deadline.remaining, default=None)
