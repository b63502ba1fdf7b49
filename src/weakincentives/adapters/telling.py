"""Telling a session of a prompt: that it was rendered, and what came of it."""

from typing import Any

from weakincentives.prompt import RenderedPrompt
from weakincentives.runtime import PromptExecuted, PromptRendered, TokenUsage
from weakincentives.runtime.session import Session


def tell_rendered(session: Session, rendered: RenderedPrompt[Any], *, adapter: str) -> None:
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


def tell_executed(
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
