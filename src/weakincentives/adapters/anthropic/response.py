"""Decode responses of Anthropic's Messages API, whole or streamed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weakincentives.adapters.anthropic.request import CONTENT
from weakincentives.adapters.http import lenient
from weakincentives.adapters.http.lenient import sendable
from weakincentives.adapters.messages import Completion, StopReason, ToolCall

_MAX_BLOCKS = 10_000
_CALL_FIELDS = ("id", "input", "name")
# by type of delta: the type of its block, its own field, and the field of the block
_DELTAS: Mapping[str, tuple[str, str, str]] = {
    "text_delta": ("text", "text", "text"),
    "thinking_delta": ("thinking", "thinking", "thinking"),
    "signature_delta": ("thinking", "signature", "signature"),
    "input_json_delta": ("tool_use", "partial_json", "input"),
}


@dataclass(slots=True)
class _ContentBlock:
    """A content block, built from its start and its deltas."""

    start: dict[str, Any]
    pieces: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    citations: list[Any] = field(default_factory=list[Any])

    @property
    def type(self) -> str:
        return lenient.as_text(self.start.get("type"))

    @property
    def text(self) -> str:
        return self._join("text") if self.type == "text" else ""

    def add(self, delta: Mapping[str, Any]) -> str:
        """Add a delta, and return its new text."""
        kind = lenient.as_text(delta.get("type"))
        if kind == "citations_delta":
            self.citations.append(delta.get("citation"))
        if kind not in _DELTAS:
            return ""
        _, source, target = _DELTAS[kind]
        piece = lenient.as_text(delta.get(source))
        self.pieces.setdefault(target, []).append(piece)
        return piece if kind == "text_delta" else ""

    def call(self, call_id: str, *, truncated: bool) -> ToolCall:
        """Return the tool call of the block; truncated arguments are never valid JSON."""
        arguments = self._join("input")
        if not arguments:
            arguments = json.dumps(self.start.get("input") or {}, ensure_ascii=False)
            arguments = arguments.removesuffix("}") if truncated else arguments
        name = lenient.as_text(self.start.get("name"))
        return ToolCall(sendable(name), sendable(arguments), call_id)

    def to_json(self, call_id: str | None) -> dict[str, Any]:
        """Return the block to send back; for a tool call without what `ToolCall` has."""
        if call_id is not None:
            rest = {name: each for name, each in self.start.items() if name not in _CALL_FIELDS}
            return lenient.sendable_json({**rest, "id": call_id})
        content: dict[str, Any] = {name: self._join(name) for name in self.pieces}
        if self.type == "text":
            content["text"] = self.text
        if self.citations:
            content["citations"] = [*lenient.as_items(self.start.get("citations")), *self.citations]
        return lenient.sendable_json(self.start | content)

    def _join(self, name: str) -> str:
        return lenient.as_text(self.start.get(name)) + "".join(self.pieces.get(name, ()))


class MessageResponse:
    """Decodes a response, whole or in events, into a completion."""

    def __init__(self) -> None:
        """Start without any events."""
        self.has_ended: bool = False
        """Whether the server said that the answer is complete."""
        self._has_content = False
        self._blocks: list[_ContentBlock] = []
        self._by_index: dict[str, _ContentBlock] = {}
        self._stop = ""
        self._explanation = ""
        self._usage: dict[str, int] = {}
        self._model = ""
        self._response_id = ""

    @property
    def defect(self) -> str | None:
        """Why the response is not an answer, or None."""
        return None if self._has_content else "it contains no content"

    def add_response(self, response: Mapping[str, Any]) -> str:
        """Add a response that is not streamed, and return its text."""
        return self.add({"type": "message", **response})

    def add(self, chunk: Mapping[str, Any]) -> str:
        """Add an event of a stream or a whole message, and return its new text."""
        match chunk.get("type"):
            case "message":
                return self._add_message(chunk)
            case "message_start":
                return self._add_message(lenient.as_mapping(chunk.get("message")))
            case "content_block_start":
                block = lenient.as_mapping(chunk.get("content_block"))
                return self._add_block(chunk.get("index"), dict(block)).text
            case "content_block_delta":
                return self._add_delta(chunk.get("index"), lenient.as_mapping(chunk.get("delta")))
            case "message_delta":
                self._add_end(lenient.as_mapping(chunk.get("delta")), chunk.get("usage"))
            case "message_stop":
                self.has_ended = True
            case _:
                pass  # pings, and events of later versions
        return ""

    def completion(self) -> Completion:
        """Return the completion."""
        blocks = [each for each in self._blocks if each.type]
        calls = [each for each in blocks if each.type == "tool_use"]
        call_ids = lenient.distinct(
            [sendable(lenient.as_text(each.start.get("id"))) for each in calls]
        )
        ids = {id(each): call_id for each, call_id in zip(calls, call_ids, strict=True)}
        truncated = lenient.MESSAGE_STOP_REASONS.get(self._stop) == "length"
        return Completion(
            "".join(sendable(each.text) for each in blocks) or sendable(self._explanation),
            tuple(
                each.call(ids[id(each)], truncated=truncated and each is blocks[-1])
                for each in calls
            ),
            lenient.message_usage(self._usage),
            self._stop_reason(has_calls=bool(calls)),
            {}
            if _is_plain(blocks)
            else {CONTENT: [each.to_json(ids.get(id(each))) for each in blocks]},
            sendable(self._model) or None,
            sendable(self._response_id) or None,
        )

    def _add_message(self, message: Mapping[str, Any]) -> str:
        self._has_content = self._has_content or isinstance(message.get("content"), list)
        self._model = lenient.as_text(message.get("model"))
        self._response_id = lenient.as_text(message.get("id"))
        content = enumerate(lenient.as_items(message.get("content")))
        texts = [self._add_block(i, dict(lenient.as_mapping(each))).text for i, each in content]
        self._add_end(message, message.get("usage"))
        return "".join(texts)

    def _add_delta(self, index: object, delta: Mapping[str, Any]) -> str:
        block = self._by_index.get(_index_key(index))
        if block is None:
            kind = _DELTAS.get(lenient.as_text(delta.get("type")), ("text",))[0]
            block = self._add_block(index, {"type": kind})
        return block.add(delta)

    def _add_block(self, index: object, start: dict[str, Any]) -> _ContentBlock:
        """Start a block; a repeated index replaces the earlier block for later deltas."""
        if len(self._blocks) >= _MAX_BLOCKS:
            raise lenient.ResponseError(f"it has more than {_MAX_BLOCKS} blocks")
        self._has_content = True
        block = _ContentBlock(start)
        self._blocks.append(block)
        self._by_index[_index_key(index)] = block
        return block

    def _add_end(self, message: Mapping[str, Any], usage: object) -> None:
        self._stop = lenient.as_text(message.get("stop_reason")) or self._stop
        self.has_ended = self.has_ended or bool(self._stop)
        details = lenient.as_mapping(message.get("stop_details"))
        self._explanation = lenient.as_text(details.get("explanation")) or self._explanation
        # each event has the totals so far, and not every one has all of them
        self._usage |= {
            name: lenient.as_count(each)
            for name, each in lenient.as_mapping(usage).items()
            if isinstance(each, int | float)
        }

    def _stop_reason(self, *, has_calls: bool) -> StopReason:
        if not self._stop:
            return "tool_calls" if has_calls else "end"
        return lenient.MESSAGE_STOP_REASONS.get(self._stop, "other")


def _index_key(index: object) -> str:
    """Return a dictionary key for an index; servers may send any JSON value."""
    return lenient.json_text(index)


def _is_plain(blocks: Sequence[_ContentBlock]) -> bool:
    """Return whether text and calls lose nothing: at most one text block, then only calls."""
    kinds = [each.type for each in blocks]
    return kinds[:1] in ([], ["text"], ["tool_use"]) and set(kinds[1:]) <= {"tool_use"}
