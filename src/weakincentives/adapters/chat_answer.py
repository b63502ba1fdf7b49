"""An answer in the words of the Chat Completions API, whole or in pieces.

Servers differ, and so everything is taken as it comes: what is missing is made up for,
and what is not understood is left out.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from weakincentives.adapters.calls import ToolCall
from weakincentives.adapters.chat_request import CALL_EXTRAS, RETURNED, sendable
from weakincentives.adapters.conversation import Completion, StopReason
from weakincentives.runtime import TokenUsage

_STOP_REASONS: Mapping[str, StopReason] = {
    "stop": "end",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refused",
}


@dataclass(slots=True)
class _Call:
    """A tool call as it arrives."""

    call_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    extras: dict[str, object] = field(default_factory=dict[str, object])

    def add(self, delta: Mapping[str, Any]) -> None:
        function = _mapping(delta.get("function"))
        self.call_id = self.call_id or _text(delta.get("id"))
        self.name = self.name or _text(function.get("name"))
        arguments = function.get("arguments")
        if isinstance(arguments, dict | list):  # some servers have read the JSON already
            arguments = json.dumps(arguments)
        self.arguments.append(_text(arguments))
        if "extra_content" in delta:
            self.extras["extra_content"] = delta["extra_content"]


class ChatAnswer:
    """An answer that is put together from what a server sends."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.has_choice = False
        """Whether there is an answer at all."""
        self.has_ended = False
        """Whether the server said that this is all."""
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._extras: dict[str, Any] = {}
        self._finish = ""
        self._usage: Mapping[str, Any] = {}
        self._model = ""
        self._response_id = ""

    def add(self, chunk: Mapping[str, Any]) -> str:
        """Take in what was sent, a whole answer or a piece, and return what text is new."""
        self._model = _text(chunk.get("model")) or self._model
        self._response_id = _text(chunk.get("id")) or self._response_id
        self._usage = _mapping(chunk.get("usage")) or self._usage
        choices = [_mapping(each) for each in _items(chunk.get("choices"))]
        if not choices:
            # after the last piece, and before the first there are filters without tokens
            self.has_ended = self.has_ended or (self.has_choice and bool(chunk.get("usage")))
            return ""
        choice = choices[0]
        if choice.get("index"):
            return ""
        self.has_choice = True
        finish = _text(choice.get("finish_reason"))
        self._finish = finish or self._finish
        self.has_ended = self.has_ended or bool(finish)
        return self._say(_mapping(choice.get("delta")) or _mapping(choice.get("message")))

    def completion(self) -> Completion:
        """Return what the model answered."""
        calls = [each for each in self._calls if each.name or any(each.arguments)]
        refusal = sendable("".join(self._refusal))
        extras = {**self._extras}
        by_call = {each.call_id: each.extras for each in calls if each.extras and each.call_id}
        if by_call:
            extras[CALL_EXTRAS] = by_call
        return Completion(
            sendable("".join(self._text)) or refusal,
            tuple(ToolCall(each.name, "".join(each.arguments), each.call_id) for each in calls),
            _token_usage(self._usage),
            "refused" if refusal and not calls else self._stop_reason(bool(calls)),
            extras,
            self._model or None,
            self._response_id or None,
        )

    def _say(self, message: Mapping[str, Any]) -> str:
        text = _content(message.get("content"))
        self._text.append(text)
        self._refusal.append(_text(message.get("refusal")))
        for each in _items(message.get("tool_calls")):
            delta = _mapping(each)
            self._call(delta).add(delta)
        legacy = _mapping(message.get("function_call"))
        if legacy:
            self._call({"index": -1}).add({"function": legacy})
        for name in RETURNED:
            self._keep(name, message.get(name))
        return text

    def _call(self, delta: Mapping[str, Any]) -> _Call:
        """Return the call that a piece belongs to; not all servers number them, or rightly so."""
        index, call_id = delta.get("index"), _text(delta.get("id"))
        named = bool(_text(_mapping(delta.get("function")).get("name")))
        if isinstance(index, int):
            found = self._by_index.get(index)
        elif call_id:
            found = next((each for each in self._calls if each.call_id == call_id), None)
        else:
            found = self._calls[-1] if self._calls and not named else None
        if found is not None and named and call_id and found.call_id not in ("", call_id):
            found = None  # several calls with one number
        if found is None:
            found = _Call()
            self._calls.append(found)
        if isinstance(index, int):
            self._by_index[index] = found
        return found

    def _keep(self, name: str, value: object) -> None:
        if isinstance(value, str):
            self._extras[name] = _text(self._extras.get(name)) + value
        elif isinstance(value, list):
            self._extras[name] = [*_items(self._extras.get(name)), *cast("list[Any]", value)]

    def _stop_reason(self, has_calls: bool) -> StopReason:
        if has_calls and self._finish in ("", "stop"):
            return "tool_calls"
        return "end" if not self._finish else _STOP_REASONS.get(self._finish, "other")


def _token_usage(usage: Mapping[str, Any]) -> TokenUsage:
    """Return what an answer cost; some servers count reasoning in the total only."""
    told, said = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    total = _count(usage.get("total_tokens"))
    details = _mapping(usage.get("prompt_tokens_details"))
    cached = _count(details.get("cached_tokens")) or _count(usage.get("prompt_cache_hit_tokens"))
    return TokenUsage(told, max(said, total - told), cached)


def _content(content: object) -> str:
    """Return the text of a message; some servers send it in parts."""
    parts = _items(content)
    return _text(content) or "".join(_text(_mapping(each).get("text")) for each in parts)


def _count(value: object) -> int:
    return max(0, int(value)) if isinstance(value, int | float) and math.isfinite(value) else 0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _items(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
