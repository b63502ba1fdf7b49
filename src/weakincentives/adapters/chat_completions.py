"""The Chat Completions wire format: encode requests, decode responses.

OpenAI's API, which LiteLLM and many servers speak too. Servers differ, so decoding is lenient:
missing values get defaults, and unknown ones are ignored.
"""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from weakincentives.adapters.http import lenient
from weakincentives.adapters.http.lenient import as_items, as_mapping, sendable, sendable_json
from weakincentives.adapters.messages import (
    AssistantMessage,
    Completion,
    CompletionRequest,
    Message,
    StopReason,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from weakincentives.prompt import Media
from weakincentives.runtime import TokenUsage
from weakincentives.serde import encode

MaxTokensField: TypeAlias = Literal["max_completion_tokens", "max_tokens"]
"""A server's name for the token limit: newer models reject one, older servers the other."""
# what some servers require back with a message that called tools
_REASONING_FIELDS = ("reasoning_content", "reasoning_details")
# the key of the extras with what servers require back with each call, in the order of the calls
_CALL_EXTRAS = "call_extras"
_MAX_CALLS = 1000
_STOP_REASONS: Mapping[str, StopReason] = {
    "stop": "end",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refused",
}


def build_chat_request(
    request: CompletionRequest,
    *,
    max_tokens_field: MaxTokensField,
    native_output: bool,
    with_extras: bool,
    with_pictures: bool,
) -> dict[str, Any]:
    """Return the body of a request, without the model.

    Args:
        request: The request.
        max_tokens_field: The server's name for the token limit of an answer.
        native_output: Whether the server enforces `request.output`.
        with_extras: Whether to send the extras of messages back.
        with_pictures: Whether to send pictures.
    """
    messages = [_encode_message(each, with_extras=with_extras) for each in request.messages]
    body: dict[str, Any] = {
        "messages": _add_pictures(request.messages, messages) if with_pictures else messages
    }
    if request.tools:
        body["tools"] = [_encode_tool(each) for each in request.tools]
    if request.output is not None and native_output:
        output = request.output
        schema = {"name": output.name, "schema": output.schema, "strict": _is_strict(output.schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if request.max_tokens is not None:
        body[max_tokens_field] = request.max_tokens
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.effort is not None:
        body["reasoning_effort"] = request.effort
    return body


def _encode_message(message: Message, *, with_extras: bool) -> dict[str, Any]:
    match message:
        case ToolMessage():
            content, call_id = sendable(message.text), sendable(message.call_id)
            return {"role": "tool", "tool_call_id": call_id, "content": content}
        case AssistantMessage() if message.tool_calls:
            return _encode_calls(message, message.extras if with_extras else {})
        case UserMessage() if message.media:
            text = {"type": "text", "text": sendable(message.text)}
            return {"role": "user", "content": [text, *map(_encode_picture, message.media)]}
        case _:
            return {"role": message.role, "content": sendable(message.text)}


def _add_pictures(
    messages: Sequence[Message], encoded: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the encoded messages with the pictures of tool results after the results.

    In this API a tool result is text only, and nothing may come between results.
    """
    result: list[dict[str, Any]] = []
    pending: list[dict[str, Any]] = []
    for message, body in zip(messages, encoded, strict=True):
        if pending and not isinstance(message, ToolMessage):
            result.append({"role": "user", "content": pending})
            pending = []
        result.append(body)
        if isinstance(message, ToolMessage) and message.media:
            label = sendable(f"From {message.name}, {message.call_id}:")
            pending += [{"type": "text", "text": label}]
            pending += [_encode_picture(each) for each in message.media]
    return [*result, {"role": "user", "content": pending}] if pending else result


def _encode_picture(media: Media) -> dict[str, Any]:
    data = b64encode(media.data).decode()
    url = f"data:{media.media_type};base64,{data}"
    return {"type": "image_url", "image_url": {"url": url}}


def _encode_calls(message: AssistantMessage, extras: Mapping[str, object]) -> dict[str, Any]:
    extras = sendable_json(
        {name: extras[name] for name in (*_REASONING_FIELDS, _CALL_EXTRAS) if name in extras}
    )
    by_call = [as_mapping(each) for each in as_items(extras.get(_CALL_EXTRAS))]
    if len(by_call) != len(message.tool_calls):  # the message was changed
        by_call = [as_mapping(None) for _ in message.tool_calls]
    return {
        "role": "assistant",
        "content": sendable(message.text) or None,
        "tool_calls": [
            {
                "id": sendable(call.call_id),
                "type": "function",
                "function": {"name": sendable(call.name), "arguments": _encode_arguments(call)},
                **call_extras,
            }
            for call, call_extras in zip(message.tool_calls, by_call, strict=True)
        ],
        **{name: extras[name] for name in _REASONING_FIELDS if name in extras},
    }


def _encode_arguments(call: ToolCall) -> str:
    """Return the arguments as a JSON object, unchanged if they are one.

    Servers that parse them to fill in a template reject the whole conversation otherwise. The
    result of the call tells the model what was wrong.
    """
    if not isinstance(call.arguments, str):
        return encode(call.arguments).decode("utf-8", "replace")
    if not call.arguments.strip():
        return "{}"
    try:
        is_object = isinstance(json.loads(call.arguments), dict)
    except (ValueError, RecursionError):
        is_object = False
    sent = call.arguments if is_object else json.dumps({"invalid_arguments": call.arguments})
    return sendable(sent)


def _encode_tool(tool: ToolDefinition) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}


def _is_strict(schema: object) -> bool:
    """Return whether a schema qualifies for strict mode: nothing in it is optional."""
    if isinstance(schema, list):
        return all(_is_strict(each) for each in cast("list[object]", schema))
    if not isinstance(schema, dict):
        return True
    node = cast("dict[str, Any]", schema)
    if "properties" in node and set(node["properties"]) != set(node.get("required", ())):
        return False
    if node.get("type") == "object" and node.get("additionalProperties") is not False:
        return False
    return all(_is_strict(each) for each in node.values())


@dataclass(slots=True)
class _Call:
    """A tool call, built from its deltas."""

    call_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    extras: dict[str, object] = field(default_factory=dict[str, object])

    def add(self, delta: Mapping[str, Any]) -> None:
        function = lenient.as_mapping(delta.get("function"))
        self.call_id = self.call_id or lenient.as_text(delta.get("id"))
        self.name = self.name or lenient.as_text(function.get("name"))
        arguments = function.get("arguments")
        if isinstance(arguments, dict | list):  # some servers send parsed JSON
            arguments = json.dumps(arguments)
        self.arguments.append(lenient.as_text(arguments))
        if "extra_content" in delta:
            self.extras["extra_content"] = delta["extra_content"]

    def call(self, call_id: str) -> ToolCall:
        return ToolCall(sendable(self.name), sendable("".join(self.arguments)), call_id)


class ChatResponse:
    """Decodes a response, whole or in chunks, into a completion."""

    def __init__(self) -> None:
        """Start without any chunks."""
        self.has_ended: bool = False
        """Whether the server said that the answer is complete."""
        self._has_choice = False
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._reasoning_texts: dict[str, list[str]] = {}
        self._reasoning_lists: dict[str, list[Any]] = {}
        self._finish = ""
        self._usage: Mapping[str, Any] = {}
        self._model = ""
        self._response_id = ""

    @property
    def defect(self) -> str | None:
        """Why the response is not an answer, or None."""
        return None if self._has_choice else "it contains no choices"

    def add_response(self, response: Mapping[str, Any]) -> str:
        """Add a response that is not streamed, and return its text."""
        return self.add(response)

    def add(self, chunk: Mapping[str, Any]) -> str:
        """Add a chunk or a whole response, and return its new text."""
        self._model = lenient.as_text(chunk.get("model")) or self._model
        self._response_id = lenient.as_text(chunk.get("id")) or self._response_id
        self._usage = lenient.as_mapping(chunk.get("usage")) or self._usage
        choices = [lenient.as_mapping(each) for each in lenient.as_items(chunk.get("choices"))]
        if not choices:
            # usage comes after the last choice, and content filters before the first one
            self.has_ended = self.has_ended or (self._has_choice and bool(chunk.get("usage")))
            return ""
        choice = choices[0]
        if choice.get("index"):
            return ""
        self._has_choice = True
        finish = lenient.as_text(choice.get("finish_reason"))
        self._finish = finish or self._finish
        self.has_ended = self.has_ended or bool(finish)
        delta = lenient.as_mapping(choice.get("delta"))
        message = delta or lenient.as_mapping(choice.get("message"))
        return self._add_message(message, is_whole=not delta)

    def completion(self) -> Completion:
        """Return the completion."""
        calls = [each for each in self._calls if each.name or any(each.arguments)]
        ids = lenient.distinct([sendable(each.call_id) for each in calls])
        refusal = sendable("".join(self._refusal))
        return Completion(
            sendable("".join(self._text)) or refusal,
            tuple(each.call(call_id) for each, call_id in zip(calls, ids, strict=True)),
            _token_usage(self._usage),
            "refused" if refusal and not calls else self._stop_reason(has_calls=bool(calls)),
            self._extras(calls),
            sendable(self._model) or None,
            sendable(self._response_id) or None,
        )

    def _extras(self, calls: Sequence[_Call]) -> dict[str, Any]:
        """Return what the server requires back with the message."""
        texts = {name: "".join(pieces) for name, pieces in self._reasoning_texts.items()}
        extras: dict[str, Any] = {**texts, **self._reasoning_lists}
        if any(each.extras for each in calls):
            extras[_CALL_EXTRAS] = [each.extras for each in calls]
        return lenient.sendable_json(extras)

    def _add_message(self, message: Mapping[str, Any], *, is_whole: bool) -> str:
        text = _join_content(message.get("content"))
        self._text.append(text)
        self._refusal.append(lenient.as_text(message.get("refusal")))
        for each in lenient.as_items(message.get("tool_calls")):
            delta = lenient.as_mapping(each)
            (self._add_call() if is_whole else self._find_call(delta)).add(delta)
        legacy = lenient.as_mapping(message.get("function_call"))
        if legacy:
            self._find_call({"index": -1}).add({"function": legacy})
        for name in _REASONING_FIELDS:
            self._add_extra(name, message.get(name))
        return text

    def _find_call(self, delta: Mapping[str, Any]) -> _Call:
        """Return the call that a delta belongs to; some servers omit or repeat the index."""
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
            found = found if is_same else None  # the server repeats an index or id
        found = found or self._add_call()
        if isinstance(index, int):
            self._by_index[index] = found
        return found

    def _add_call(self) -> _Call:
        if len(self._calls) >= _MAX_CALLS:
            raise lenient.ResponseError(f"it has more than {_MAX_CALLS} tool calls")
        self._calls.append(_Call())
        return self._calls[-1]

    def _add_extra(self, name: str, value: object) -> None:
        if isinstance(value, str):
            self._reasoning_texts.setdefault(name, []).append(value)
        elif isinstance(value, list):
            self._reasoning_lists.setdefault(name, []).extend(cast("list[Any]", value))

    def _stop_reason(self, *, has_calls: bool) -> StopReason:
        if has_calls and self._finish in ("", "stop"):
            return "tool_calls"
        return "end" if not self._finish else _STOP_REASONS.get(self._finish, "other")


def _token_usage(usage: Mapping[str, Any]) -> TokenUsage:
    """Return the usage of a response; some servers count reasoning in the total only."""
    sent = lenient.as_count(usage.get("prompt_tokens"))
    received = lenient.as_count(usage.get("completion_tokens"))
    total = lenient.as_count(usage.get("total_tokens"))
    details = lenient.as_mapping(usage.get("prompt_tokens_details"))
    cached = lenient.as_count(details.get("cached_tokens")) or lenient.as_count(
        usage.get("prompt_cache_hit_tokens")
    )
    written = lenient.as_count(details.get("cache_write_tokens")) or lenient.as_count(
        details.get("cache_creation_tokens")  # LiteLLM
    )
    return TokenUsage(sent, max(received, total - sent), cached, written)


def _join_content(content: object) -> str:
    """Return the text of a message; some servers send it in parts."""
    parts = lenient.as_items(content)
    return lenient.as_text(content) or "".join(
        lenient.as_text(lenient.as_mapping(each).get("text")) for each in parts
    )
