"""Events of a run: what the model did in each step, and what had to be tried again."""

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID, uuid4

from weakincentives.adapters.conversation import StopReason
from weakincentives.runtime import SYSTEM_CLOCK, TokenUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResponded:
    """A model has answered a request; its tool calls are about to run."""

    prompt_name: str
    adapter: str
    model: str
    step: int
    """Which request of the run it was; they count from 1."""
    text: str = ""
    tool_calls: tuple[str, ...] = ()
    """The names of the tools that it called."""
    stop_reason: StopReason = "end"
    usage: TokenUsage = field(default_factory=TokenUsage)
    """What this step cost."""
    duration_ms: float = 0.0
    session_id: UUID | None = None
    event_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=SYSTEM_CLOCK.now)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRetried:
    """A request failed in passing; it is made again after a wait."""

    prompt_name: str
    adapter: str
    model: str
    step: int
    """Which request of the run it is; they count from 1."""
    retry: int
    """How often it was made again, this time included."""
    error: str
    delay: float
    """The wait in seconds."""
    streamed_characters: int = 0
    """Text that had arrived and is void: it comes again."""
    session_id: UUID | None = None
    event_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=SYSTEM_CLOCK.now)
