"""Events of a run: model responses, retries and compactions."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias
from uuid import UUID, uuid4

from weakincentives.adapters.messages import StopReason
from weakincentives.runtime import SYSTEM_CLOCK, TokenUsage
from weakincentives.runtime.timeline import record_as


@record_as("model")
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResponded:
    """A model has answered a request; its tool calls are about to run."""

    prompt_name: str
    adapter: str
    model: str
    step: int
    """Number of the request in the run, from 1."""
    text: str = ""
    tool_calls: tuple[str, ...] = ()
    """Names of the tools that it called."""
    stop_reason: StopReason = "end"
    usage: TokenUsage = field(default_factory=TokenUsage)
    """Tokens of this step."""
    duration_ms: float = 0.0
    session_id: UUID | None = None
    event_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=SYSTEM_CLOCK.now)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRetried:
    """A request failed with a retryable error and is sent again after a wait."""

    prompt_name: str
    adapter: str
    model: str
    step: int
    """Number of the request in the run, from 1."""
    retry: int
    """Number of this retry, from 1."""
    error: str
    delay: float
    """The wait in seconds."""
    streamed_characters: int = 0
    """Length of the text that was streamed before the failure; discard it, it is streamed again."""
    session_id: UUID | None = None
    event_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=SYSTEM_CLOCK.now)


CompactionReason: TypeAlias = Literal["full", "refused"]
"""Why a conversation was compacted: the window was nearly full, or the provider refused it."""


@record_as("context")
@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCompacted:
    """A conversation became too long for the model, and from now on a part of it is left out.

    The conversation itself, as it is recorded, stays whole.
    """

    prompt_name: str
    adapter: str
    model: str
    step: int
    """Number of the next request in the run, from 1."""
    reason: CompactionReason
    window: int
    """Tokens that the model takes, as far as known."""
    tokens_before: int
    """Tokens of the request as it would have been sent, estimated."""
    tokens_after: int
    """Tokens of the request as it is sent, estimated."""
    shortened: int = 0
    """Number of tool results that are replaced by a line, besides earlier ones."""
    summarized: int = 0
    """Number of messages that are replaced by a summary, besides earlier ones."""
    summary: str = ""
    """The summary, if there is a new one."""
    fits: bool = True
    """Whether the rest fits; if not, the model may refuse it."""
    usage: TokenUsage = field(default_factory=TokenUsage)
    """Tokens of the request for the summary."""
    session_id: UUID | None = None
    event_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=SYSTEM_CLOCK.now)

    def __str__(self) -> str:
        """Return what was left out, in a line."""
        parts = [
            f"{number:,} {name}{'' if number == 1 else 's'} {done}"
            for number, name, done in (
                (self.shortened, "tool result", "shortened"),
                (self.summarized, "message", "summarized"),
            )
            if number
        ] or ["tool results cut"]
        return f"{', '.join(parts)}: {self.tokens_before:,} to {self.tokens_after:,} tokens"
