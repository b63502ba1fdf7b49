"""An answer in the words of Anthropic's Messages API, whole or in pieces."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weakincentives.adapters.anthropic.request import CONTENT
from weakincentives.adapters.http import lenient
from weakincentives.adapters.http.lenient import sendable
from weakincentives.adapters.messages import Completion, StopReason, ToolCall
from weakincentives.runtime import TokenUsage

_STOP_REASONS: Mapping[str, StopReason] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "paused",
    "refusal": "refused",
}
_MOST_BLOCKS = 10_000
_CALLED = ("id", "input", "name")
# where the pieces of a block go, by the kind of the piece: its kind of block, and its field
_PIECES: Mapping[str, tuple[str, str, str]] = {
    "text_delta": ("text", "text", "text"),
    "thinking_delta": ("thinking", "thinking", "thinking"),
    "signature_delta": ("thinking", "signature", "signature"),
    "input_json_delta": ("tool_use", "partial_json", "input"),
}


@dataclass(slots=True)
class _Block:
    """A block of an answer as it arrives."""

    start: dict[str, Any]
    pieces: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    citations: list[Any] = field(default_factory=list[Any])

    @property
    def type(self) -> str:
        return lenient.as_text(self.start.get("type"))

    @property
    def text(self) -> str:
        return self._joined("text") if self.type == "text" else ""

    def add(self, delta: Mapping[str, Any]) -> str:
        """Take in a piece, and return what text is new."""
        kind = lenient.as_text(delta.get("type"))
        if kind == "citations_delta":
            self.citations.append(delta.get("citation"))
        if kind not in _PIECES:
            return ""
        _, source, target = _PIECES[kind]
        piece = lenient.as_text(delta.get(source))
        self.pieces.setdefault(target, []).append(piece)
        return piece if kind == "text_delta" else ""

    def call(self, call_id: str, *, is_cut: bool) -> ToolCall:
        """Return the tool call that it is; arguments that were cut off are no JSON."""
        given = self._joined("input")
        if not given:
            given = json.dumps(self.start.get("input") or {}, ensure_ascii=False)
            given = given.removesuffix("}") if is_cut else given
        return ToolCall(sendable(lenient.as_text(self.start.get("name"))), sendable(given), call_id)

    def kept(self, call_id: str | None) -> dict[str, Any]:
        """Return what goes back with the message; of a tool call not what the call says."""
        if call_id is not None:
            rest = {name: each for name, each in self.start.items() if name not in _CALLED}
            return lenient.sendable_json({**rest, "id": call_id})
        told: dict[str, Any] = {name: self._joined(name) for name in self.pieces}
        if self.type == "text":
            told["text"] = self.text
        if self.citations:
            told["citations"] = [*lenient.as_items(self.start.get("citations")), *self.citations]
        return lenient.sendable_json(self.start | told)

    def _joined(self, name: str) -> str:
        return lenient.as_text(self.start.get(name)) + "".join(self.pieces.get(name, ()))


class MessageResponse:
    """An answer that is put together from what a server sends."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.has_content: bool = False
        """Whether there is an answer at all."""
        self.has_ended: bool = False
        """Whether the server said that this is all."""
        self._blocks: list[_Block] = []
        self._by_index: dict[str, _Block] = {}
        self._stop = ""
        self._explanation = ""
        self._usage: dict[str, int] = {}
        self._model = ""
        self._response_id = ""

    def add(self, event: Mapping[str, Any]) -> str:
        """Take in what was sent, a whole answer or a piece, and return what text is new."""
        match event.get("type"):
            case "message":
                return self._whole(event)
            case "message_start":
                return self._whole(lenient.as_mapping(event.get("message")))
            case "content_block_start":
                return self._begin(
                    event.get("index"), lenient.as_mapping(event.get("content_block"))
                )
            case "content_block_delta":
                return self._continue(event.get("index"), lenient.as_mapping(event.get("delta")))
            case "message_delta":
                self._end(lenient.as_mapping(event.get("delta")), event.get("usage"))
            case "message_stop":
                self.has_ended = True
            case _:
                pass  # pings, and what comes to be sent one day
        return ""

    def completion(self) -> Completion:
        """Return what the model answered."""
        blocks = [each for each in self._blocks if each.type]
        used = [each for each in blocks if each.type == "tool_use"]
        given = lenient.distinct([sendable(lenient.as_text(each.start.get("id"))) for each in used])
        ids = {id(each): call_id for each, call_id in zip(used, given, strict=True)}
        is_cut = _STOP_REASONS.get(self._stop) == "length"
        return Completion(
            "".join(sendable(each.text) for each in blocks) or sendable(self._explanation),
            tuple(each.call(ids[id(each)], is_cut=is_cut and each is blocks[-1]) for each in used),
            self._token_usage(),
            self._stop_reason(bool(used)),
            {}
            if _is_plain(blocks)
            else {CONTENT: [each.kept(ids.get(id(each))) for each in blocks]},
            sendable(self._model) or None,
            sendable(self._response_id) or None,
        )

    def _whole(self, message: Mapping[str, Any]) -> str:
        self.has_content = self.has_content or isinstance(message.get("content"), list)
        self._model = lenient.as_text(message.get("model"))
        self._response_id = lenient.as_text(message.get("id"))
        content = enumerate(lenient.as_items(message.get("content")))
        text = "".join([self._begin(index, lenient.as_mapping(each)) for index, each in content])
        self._end(message, message.get("usage"))
        return text

    def _begin(self, index: object, block: Mapping[str, Any]) -> str:
        return self._new_block(index, dict(block)).text

    def _continue(self, index: object, delta: Mapping[str, Any]) -> str:
        found = self._by_index.get(_key(index))
        if found is None:
            kind = _PIECES.get(lenient.as_text(delta.get("type")), ("text",))[0]
            found = self._new_block(index, {"type": kind})
        return found.add(delta)

    def _new_block(self, index: object, start: dict[str, Any]) -> _Block:
        """Return a block that begins; not all servers number them, or rightly so."""
        if len(self._blocks) >= _MOST_BLOCKS:
            raise lenient.AnswerError(f"it has more than {_MOST_BLOCKS} blocks")
        self.has_content = True
        block = _Block(start)
        self._blocks.append(block)
        self._by_index[_key(index)] = block
        return block

    def _end(self, message: Mapping[str, Any], usage: object) -> None:
        self._stop = lenient.as_text(message.get("stop_reason")) or self._stop
        self.has_ended = self.has_ended or bool(self._stop)
        details = lenient.as_mapping(message.get("stop_details"))
        self._explanation = lenient.as_text(details.get("explanation")) or self._explanation
        # each tells the sum so far, and not all tell everything
        told = lenient.as_mapping(usage).items()
        self._usage |= {
            name: lenient.as_count(each) for name, each in told if isinstance(each, int | float)
        }

    def _stop_reason(self, has_calls: bool) -> StopReason:
        if not self._stop:
            return "tool_calls" if has_calls else "end"
        return _STOP_REASONS.get(self._stop, "other")

    def _token_usage(self) -> TokenUsage:
        """Return what the answer cost; the API counts apart what was cached."""
        cached = self._usage.get("cache_read_input_tokens", 0)
        stored = self._usage.get("cache_creation_input_tokens", 0)
        told, said = (self._usage.get(f"{each}_tokens", 0) for each in ("input", "output"))
        return TokenUsage(told + cached + stored, said, cached)


def _key(index: object) -> str:
    """Return what a piece is told by: any JSON value may stand in the place of a number."""
    return lenient.json_text(index)


def _is_plain(blocks: Sequence[_Block]) -> bool:
    """Return whether text and calls say everything: at most one text, and calls after it."""
    kinds = [each.type for each in blocks]
    return kinds[:1] in ([], ["text"], ["tool_use"]) and set(kinds[1:]) <= {"tool_use"}
