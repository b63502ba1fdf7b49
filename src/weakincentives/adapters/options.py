"""Options of a run: how many steps, how long a request, how many tools at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from weakincentives.adapters.policies import Policy
from weakincentives.adapters.retry import RetryPolicy
from weakincentives.runtime import SYSTEM_CLOCK, Clock

MAX_RESULT_CHARACTERS = 256_000
"""How much of a result a model is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a prompt is worked on; None is for the provider to decide."""

    max_steps: int = 100
    """How often the model is asked before it must have come to an answer."""
    max_tokens: int | None = None
    """Tokens in one answer."""
    temperature: float | None = None
    """How much chance there is in an answer."""
    output_retries: int = 1
    """How often an answer that is not what the prompt asks for is sent back."""
    max_parallel: int = 8
    """Calls of read-only tools that run side by side."""
    request_timeout: float = 600.0
    """Seconds for one request; less if the deadline comes before."""
    max_result_characters: int = MAX_RESULT_CHARACTERS
    """How much of a tool's result the model is given."""
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    """What is done about requests that fail in passing."""
    policies: Sequence[Policy] = ()
    """Who may forbid a tool call."""
    clock: Clock = field(default=SYSTEM_CLOCK, repr=False, compare=False)
    """Measures how long things take."""

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ValueError: A number is too small.
        """
        for name, least in (("max_steps", 1), ("output_retries", 0), ("max_parallel", 1)):
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"{name} must be {least} or more: {value!r}")
        for name in ("max_tokens", "request_timeout"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be more than 0: {value!r}")
