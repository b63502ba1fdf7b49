"""Events of a run: what the model did in each step, and what had to be tried again."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from weakincentives.adapters.messages import StopReason
from weakincentives.prompt import RenderedPrompt
from weakincentives.runtime import SYSTEM_CLOCK, PromptExecuted, PromptRendered, TokenUsage
from weakincentives.runtime.session import Session


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


def emit_rendered(session: Session, rendered: RenderedPrompt[Any], *, adapter: str) -> None:
    """Tell that a prompt is about to be sent to a model."""
    session.dispatch(
        PromptRendered(
            prompt_ns=rendered.ns,
            prompt_key=rendered.key,
            prompt_name=rendered.name,
            text=rendered.text,
            tools=tuple(tool.name for tool in rendered.tools),
            adapter=adapter,
            session_id=session.session_id,
        )
    )


def emit_executed(
    session: Session,
    rendered: RenderedPrompt[Any],
    *,
    adapter: str,
    model: str,
    text: str,
    usage: TokenUsage,
    tool_calls: int,
    seconds: float,
    error: BaseException | None = None,
) -> None:
    """Tell that a model has worked on a prompt to the end, or why not."""
    session.dispatch(
        PromptExecuted(
            prompt_ns=rendered.ns,
            prompt_key=rendered.key,
            prompt_name=rendered.name,
            adapter=adapter,
            model=model,
            success=error is None,
            text=text,
            error=None if error is None else f"{type(error).__name__}: {error}",
            usage=usage,
            tool_calls=tool_calls,
            duration_ms=seconds * 1000,
            session_id=session.session_id,
        )
    )
