"""An answer in the words of the Chat Completions API, whole or in pieces.

Servers differ, and so everything is taken as it comes: what is missing is made up for,
and what is not understood is left out.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from weakincentives.adapters.chat.request import CALL_EXTRAS, RETURNED
from weakincentives.adapters.http import lenient
from weakincentives.adapters.http.lenient import sendable
from weakincentives.adapters.messages import Completion, StopReason, ToolCall
from weakincentives.runtime import TokenUsage

_MOST_CALLS = 1000
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
        function = lenient.as_mapping(delta.get("function"))
        self.call_id = self.call_id or lenient.as_text(delta.get("id"))
        self.name = self.name or lenient.as_text(function.get("name"))
        arguments = function.get("arguments")
        if isinstance(arguments, dict | list):  # some servers have read the JSON already
            arguments = json.dumps(arguments)
        self.arguments.append(lenient.as_text(arguments))
        if "extra_content" in delta:
            self.extras["extra_content"] = delta["extra_content"]

    def call(self, call_id: str) -> ToolCall:
        return ToolCall(sendable(self.name), sendable("".join(self.arguments)), call_id)


class ChatResponse:
    """An answer that is put together from what a server sends."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.has_choice: bool = False
        """Whether there is an answer at all."""
        self.has_ended: bool = False
        """Whether the server said that this is all."""
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._kept_texts: dict[str, list[str]] = {}
        self._kept_lists: dict[str, list[Any]] = {}
        self._finish = ""
        self._usage: Mapping[str, Any] = {}
        self._model = ""
        self._response_id = ""

    def add(self, chunk: Mapping[str, Any]) -> str:
        """Take in what was sent, a whole answer or a piece, and return what text is new."""
        self._model = lenient.as_text(chunk.get("model")) or self._model
        self._response_id = lenient.as_text(chunk.get("id")) or self._response_id
        self._usage = lenient.as_mapping(chunk.get("usage")) or self._usage
        choices = [lenient.as_mapping(each) for each in lenient.as_items(chunk.get("choices"))]
        if not choices:
            # after the last piece, and before the first there are filters without tokens
            self.has_ended = self.has_ended or (self.has_choice and bool(chunk.get("usage")))
            return ""
        choice = choices[0]
        if choice.get("index"):
            return ""
        self.has_choice = True
        finish = lenient.as_text(choice.get("finish_reason"))
        self._finish = finish or self._finish
        self.has_ended = self.has_ended or bool(finish)
        delta = lenient.as_mapping(choice.get("delta"))
        return self._say(delta or lenient.as_mapping(choice.get("message")), is_whole=not delta)

    def completion(self) -> Completion:
        """Return what the model answered."""
        calls = [each for each in self._calls if each.name or any(each.arguments)]
        ids = lenient.distinct([sendable(each.call_id) for each in calls])
        refusal = sendable("".join(self._refusal))
        return Completion(
            sendable("".join(self._text)) or refusal,
            tuple(each.call(call_id) for each, call_id in zip(calls, ids, strict=True)),
            _token_usage(self._usage),
            "refused" if refusal and not calls else self._stop_reason(bool(calls)),
            self._extras(calls),
            sendable(self._model) or None,
            sendable(self._response_id) or None,
        )

    def _extras(self, calls: Sequence[_Call]) -> dict[str, Any]:
        """Return what goes back with the message."""
        texts = {name: "".join(kept) for name, kept in self._kept_texts.items()}
        extras: dict[str, Any] = {**texts, **self._kept_lists}
        if any(each.extras for each in calls):
            extras[CALL_EXTRAS] = [each.extras for each in calls]
        return lenient.sendable_json(extras)

    def _say(self, message: Mapping[str, Any], *, is_whole: bool) -> str:
        text = _content(message.get("content"))
        self._text.append(text)
        self._refusal.append(lenient.as_text(message.get("refusal")))
        for each in lenient.as_items(message.get("tool_calls")):
            delta = lenient.as_mapping(each)
            (self._new_call() if is_whole else self._call(delta)).add(delta)
        legacy = lenient.as_mapping(message.get("function_call"))
        if legacy:
            self._call({"index": -1}).add({"function": legacy})
        for name in RETURNED:
            self._keep(name, message.get(name))
        return text

    def _call(self, delta: Mapping[str, Any]) -> _Call:
        """Return the call that a piece belongs to; not all servers number them, or rightly so."""
        index, call_id = delta.get("index"), lenient.as_text(delta.get("id"))
        name = lenient.as_text(lenient.as_mapping(delta.get("function")).get("name"))
        if isinstance(index, int):
            found = self._by_index.get(index)
        elif call_id:
            found = next((each for each in self._calls if each.call_id == call_id), None)
        else:
            found = self._calls[-1] if self._calls and not name else None
        if found is not None and name and call_id:
            is_same = found.call_id in ("", call_id) and found.name in ("", name)
            found = found if is_same else None  # several calls with one number, or one id
        found = found or self._new_call()
        if isinstance(index, int):
            self._by_index[index] = found
        return found

    def _new_call(self) -> _Call:
        if len(self._calls) >= _MOST_CALLS:
            raise lenient.AnswerError(f"it has more than {_MOST_CALLS} tool calls")
        self._calls.append(_Call())
        return self._calls[-1]

    def _keep(self, name: str, value: object) -> None:
        if isinstance(value, str):
            self._kept_texts.setdefault(name, []).append(value)
        elif isinstance(value, list):
            self._kept_lists.setdefault(name, []).extend(cast("list[Any]", value))

    def _stop_reason(self, has_calls: bool) -> StopReason:
        if has_calls and self._finish in ("", "stop"):
            return "tool_calls"
        return "end" if not self._finish else _STOP_REASONS.get(self._finish, "other")


def _token_usage(usage: Mapping[str, Any]) -> TokenUsage:
    """Return what an answer cost; some servers count reasoning in the total only."""
    told, said = (
        lenient.as_count(usage.get("prompt_tokens")),
        lenient.as_count(usage.get("completion_tokens")),
    )
    total = lenient.as_count(usage.get("total_tokens"))
    details = lenient.as_mapping(usage.get("prompt_tokens_details"))
    cached = lenient.as_count(details.get("cached_tokens")) or lenient.as_count(
        usage.get("prompt_cache_hit_tokens")
    )
    return TokenUsage(told, max(said, total - told), cached)


def _content(content: object) -> str:
    """Return the text of a message; some servers send it in parts."""
    parts = lenient.as_items(content)
    return lenient.as_text(content) or "".join(
        lenient.as_text(lenient.as_mapping(each).get("text")) for each in parts
    )
