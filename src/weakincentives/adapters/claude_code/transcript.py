"""The conversation of a Claude Code run, built from its stream of messages."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from claude_agent_sdk import AssistantMessage as SdkAssistantMessage
from claude_agent_sdk import StreamEvent, TextBlock, ToolUseBlock

from weakincentives.adapters.claude_code.process import PREFIX
from weakincentives.adapters.http import lenient
from weakincentives.adapters.loop.run import RunState
from weakincentives.adapters.messages import AssistantMessage, Completion, StopReason, ToolCall
from weakincentives.runtime import TokenUsage

OUTPUT_TOOL = "StructuredOutput"
"""The tool through which the model gives structured output."""
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
    """One answer of the model, built as it arrives."""

    message_id: str
    model: str = ""
    streamed: bool = False
    text: list[str] = field(default_factory=list[str])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    usage: dict[str, int] = field(default_factory=dict[str, int])
    stop: str = ""
    has_content: bool = False

    def add(self, block: object) -> str:
        """Add a content block, and return its text."""
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

    def add_usage(self, usage: object) -> None:
        counts = lenient.as_mapping(usage).items()
        self.usage |= {
            name: lenient.as_count(each) for name, each in counts if isinstance(each, int)
        }

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


class Transcript(RunState):
    """The state of a run, with the answer that is arriving."""

    _step: _Step | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the model waits for tool results."""
        return any(each.call_id not in self.outcomes for each in self.open_calls)

    @property
    def is_arriving(self) -> bool:
        """Whether a streamed answer is still incomplete."""
        return self._step is not None and self._step.streamed

    def find_call(self, call_id: str) -> ToolCall | None:
        """Return a call of the last answer, or of the arriving one."""
        arriving = () if self._step is None else self._step.calls
        return next(
            (each for each in (*self.open_calls, *arriving) if each.call_id == call_id), None
        )

    def add_event(self, event: StreamEvent) -> str:
        """Add a streaming event, and return its text."""
        data = event.event
        kind = data.get("type")
        if kind == "message_start":
            message = lenient.as_mapping(data.get("message"))
            self._begin(lenient.as_text(message.get("id")), lenient.as_text(message.get("model")))
            assert self._step is not None
            self._step.streamed = True
            self._step.add_usage(message.get("usage"))
        elif kind == "message_delta" and self._step is not None:
            self._step.stop = lenient.as_text(
                lenient.as_mapping(data.get("delta")).get("stop_reason")
            )
            self._step.add_usage(data.get("usage"))
        elif kind == "content_block_delta":
            return lenient.as_text(lenient.as_mapping(data.get("delta")).get("text"))
        return ""

    def add_message(self, message: SdkAssistantMessage) -> str:
        """Add a part of an answer, and return its text if it was not streamed."""
        step = self._step
        if step is None or step.message_id != (message.message_id or ""):
            step = self._begin(message.message_id or "", message.model)
            step.stop = message.stop_reason or ""
            step.add_usage(message.usage)
        text = "".join([step.add(block) for block in message.content])
        return "" if step.streamed else text

    def is_last(self, event: StreamEvent) -> bool:
        """Return whether an event is the last one of an answer."""
        return event.event.get("type") == "message_stop"

    def finish(self) -> Completion | None:
        """Add the answer that has arrived to the conversation, and return it if there is one."""
        step, self._step = self._step, None
        if step is None or not step.has_content:
            return None  # the connection broke, and Claude Code retries
        self.close_calls()
        completion = step.completion()
        self.add_completion(completion)
        return completion

    def set_extras(self, **extras: object) -> None:
        """Set the extras of the model's last message."""
        for index in reversed(range(len(self.messages))):
            message = self.messages[index]
            if isinstance(message, AssistantMessage):
                self.messages[index] = replace(message, extras=extras)
                return

    def _begin(self, message_id: str, model: str) -> _Step:
        self._step = _Step(message_id, model)
        return self._step


def token_usage(usage: Mapping[str, Any]) -> TokenUsage:
    """Return a token usage; the API counts cached tokens separately."""
    cached = lenient.as_count(usage.get("cache_read_input_tokens"))
    stored = lenient.as_count(usage.get("cache_creation_input_tokens"))
    sent, received = (lenient.as_count(usage.get(f"{each}_tokens")) for each in ("input", "output"))
    return TokenUsage(sent + cached + stored, received, cached, stored)
