"""A conversation with a model, in no provider's words.

The loop speaks in these values and each adapter translates them for its provider. What
only the provider understands travels in `extras`: it is kept and sent back as it came.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from weakincentives.adapters.calls import ToolCall
from weakincentives.prompt import Media
from weakincentives.runtime import TokenUsage

StopReason: TypeAlias = Literal["end", "tool_calls", "length", "refused", "paused", "other"]
"""Why a model stopped; `paused` asks to be sent the conversation again, to go on."""


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """What a model is told before everything else."""

    text: str
    role: Literal["system"] = field(default="system", init=False)


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What a model is asked."""

    text: str
    role: Literal["user"] = field(default="user", init=False)


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What a model has said: text, tool calls, or both."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    extras: Mapping[str, object] = field(default_factory=dict[str, object])
    """JSON values that only the provider understands."""
    role: Literal["assistant"] = field(default="assistant", init=False)


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """What a tool call came to; there is one for each call, in the order of the calls."""

    call_id: str
    name: str
    text: str
    success: bool = True
    media: tuple[Media, ...] = ()
    """Pictures, for models that can see."""
    role: Literal["tool"] = field(default="tool", init=False)


Message: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolMessage
"""One part of a conversation."""


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as a model is told of it; `schema` is the JSON schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """What the answer must be: JSON of a schema, whose top is always an object."""

    name: str
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What a model is asked in one step: the whole conversation so far, and what it may do.

    A `SystemMessage`, if there is one, is the first. None is for the provider to decide.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    output: OutputFormat | None = None
    max_tokens: int | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model answered in one step.

    Args:
        text: What it said; of reasoning nothing.
        tool_calls: What it wants done, in order.
        usage: What the step cost.
        stop_reason: Why it stopped.
        extras: JSON values that the provider wants back with this message.
        model: The model that answered, if the provider says.
        response_id: What the provider calls the answer.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: TokenUsage = field(default_factory=TokenUsage)
    stop_reason: StopReason = "end"
    extras: Mapping[str, object] = field(default_factory=dict[str, object])
    model: str | None = None
    response_id: str | None = None
