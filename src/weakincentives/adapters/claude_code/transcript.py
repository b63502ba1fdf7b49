"""A conversation with Claude Code, put together from what it tells while it works."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from claude_agent_sdk import AssistantMessage as Said
from claude_agent_sdk import StreamEvent, TextBlock, ToolUseBlock

from weakincentives.adapters.claude_code.process import PREFIX
from weakincentives.adapters.http import lenient
from weakincentives.adapters.messages import (
    AssistantMessage,
    Completion,
    Message,
    StopReason,
    ToolCall,
    ToolMessage,
    ToolOutcome,
)
from weakincentives.runtime import TokenUsage

OUTPUT_TOOL = "StructuredOutput"
"""The tool that Claude Code has the model answer by."""
_NOT_ANSWERED = "No result: the work was stopped before the call was answered"
_STOP_REASONS: Mapping[str, StopReason] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "paused",
    "refusal": "refused",
}


@dataclass(slots=True)
class _Step:
    """One answer of the model as it arrives."""

    message_id: str
    model: str = ""
    streamed: bool = False
    text: list[str] = field(default_factory=list[str])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    usage: dict[str, int] = field(default_factory=dict[str, int])
    stop: str = ""
    has_content: bool = False

    def add(self, block: object) -> str:
        """Take in a part of the answer, and return its text."""
        self.has_content = True
        if isinstance(block, ToolUseBlock):
            if block.name == OUTPUT_TOOL:
                self.text = [json.dumps(block.input)]
            else:
                name = block.name.removeprefix(PREFIX)
                self.calls.append(ToolCall(name, block.input, block.id))
            return ""
        text = block.text if isinstance(block, TextBlock) else ""
        self.text.append(text)
        return text

    def count(self, usage: object) -> None:
        told = lenient.as_mapping(usage).items()
        self.usage |= {name: lenient.as_count(each) for name, each in told if isinstance(each, int)}

    def completion(self) -> Completion:
        other: StopReason = "tool_calls" if self.calls else "end"
        return Completion(
            "".join(self.text),
            tuple(self.calls),
            token_usage(self.usage),
            _STOP_REASONS.get(self.stop, "other") if self.stop and not self.calls else other,
            model=self.model or None,
            response_id=self.message_id or None,
        )


class Transcript:
    """What was said and called so far."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.messages: list[Message] = []
        self.usage: TokenUsage = TokenUsage()
        self.count: int = 0
        self.last: Completion = Completion(stop_reason="other")
        self.outcomes: dict[str, ToolOutcome] = {}
        """What calls came to, by their ids."""
        self._step: _Step | None = None
        self._calls: tuple[ToolCall, ...] = ()

    @property
    def is_waiting(self) -> bool:
        """Whether it is for tools that the model waits."""
        return any(each.call_id not in self.outcomes for each in self._calls)

    @property
    def is_arriving(self) -> bool:
        """Whether more pieces of an answer are to come."""
        return self._step is not None and self._step.streamed

    def call(self, call_id: str) -> ToolCall | None:
        """Return a call of the last answer, or of the one that is arriving."""
        arriving = () if self._step is None else self._step.calls
        return next((each for each in (*self._calls, *arriving) if each.call_id == call_id), None)

    def hear_event(self, event: StreamEvent) -> str:
        """Take in a piece of an answer, and return its text."""
        told = event.event
        kind = told.get("type")
        if kind == "message_start":
            message = lenient.as_mapping(told.get("message"))
            self._begin(lenient.as_text(message.get("id")), lenient.as_text(message.get("model")))
            assert self._step is not None
            self._step.streamed = True
            self._step.count(message.get("usage"))
        elif kind == "message_delta" and self._step is not None:
            self._step.stop = lenient.as_text(
                lenient.as_mapping(told.get("delta")).get("stop_reason")
            )
            self._step.count(told.get("usage"))
        elif kind == "content_block_delta":
            return lenient.as_text(lenient.as_mapping(told.get("delta")).get("text"))
        return ""

    def hear(self, said: Said) -> str:
        """Take in a part of an answer, and return its text if that was not streamed."""
        step = self._step
        if step is None or step.message_id != (said.message_id or ""):
            step = self._begin(said.message_id or "", said.model)
            step.stop = said.stop_reason or ""
            step.count(said.usage)
        text = "".join([step.add(block) for block in said.content])
        return "" if step.streamed else text

    def is_over(self, event: StreamEvent) -> bool:
        """Return whether a piece is the last one of an answer."""
        return event.event.get("type") == "message_stop"

    def finish(self) -> Completion | None:
        """Return the answer that has been arriving, if it has arrived."""
        step, self._step = self._step, None
        if step is None or not step.has_content:
            return None  # a connection broke, and the same is asked again
        self.settle()
        completion = self.last = step.completion()
        self.count += 1
        self.usage += completion.usage
        self.messages.append(AssistantMessage(completion.text, completion.tool_calls))
        self._calls = completion.tool_calls
        return completion

    def settle(self) -> None:
        """Have every call of the last answer answered, in their order."""
        for call in self._calls:
            found = self.outcomes.get(call.call_id)
            text = _NOT_ANSWERED if found is None else found.text
            success = found is not None and found.result.success
            media = () if found is None else found.result.media
            self.messages.append(ToolMessage(call.call_id, call.name, text, success, media))
        self._calls = ()

    def mark(self, **extras: object) -> None:
        """Have the last message of the model carry what only this adapter understands."""
        for place in reversed(range(len(self.messages))):
            message = self.messages[place]
            if isinstance(message, AssistantMessage):
                self.messages[place] = replace(message, extras=extras)
                return

    def _begin(self, message_id: str, model: str) -> _Step:
        self._step = _Step(message_id, model)
        return self._step


def token_usage(usage: Mapping[str, Any]) -> TokenUsage:
    """Return what something cost; the API counts apart what was cached."""
    cached = lenient.as_count(usage.get("cache_read_input_tokens"))
    stored = lenient.as_count(usage.get("cache_creation_input_tokens"))
    told, said = (lenient.as_count(usage.get(f"{each}_tokens")) for each in ("input", "output"))
    return TokenUsage(told + cached + stored, said, cached)
