"""A request in the words of the Chat Completions API, which many servers understand."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from weakincentives.adapters.http.lenient import as_items, as_mapping, sendable, sendable_json
from weakincentives.adapters.messages import (
    AssistantMessage,
    CompletionRequest,
    Message,
    OutputFormat,
    ToolCall,
    ToolDefinition,
    ToolMessage,
)
from weakincentives.prompt import Media
from weakincentives.serde import encode

MaxTokensField: TypeAlias = Literal["max_completion_tokens", "max_tokens"]
"""What a server calls the longest answer: newer models refuse the one, older servers the other."""
RETURNED = ("reasoning_content", "reasoning_details")
"""What some servers want back with a message that called tools."""
CALL_EXTRAS = "call_extras"
"""Where the extras of a message have what servers want back with each call, in their order."""
_KEPT = (*RETURNED, CALL_EXTRAS)


def build_chat_request(
    request: CompletionRequest,
    *,
    max_tokens_field: MaxTokensField,
    native_output: bool,
    with_extras: bool,
    with_pictures: bool,
) -> dict[str, Any]:
    """Return what is sent, but for the model.

    Args:
        request: What the model is asked.
        max_tokens_field: What the server calls the longest answer.
        native_output: Whether the server sees to it that the answer is `request.output`.
        with_extras: Whether the server gets back what only it understands.
        with_pictures: Whether the model can see.
    """
    messages = [_message(each, with_extras=with_extras) for each in request.messages]
    body: dict[str, Any] = {
        "messages": _with_pictures(request.messages, messages) if with_pictures else messages
    }
    if request.tools:
        body["tools"] = [_tool(each) for each in request.tools]
    if request.output is not None and native_output:
        body["response_format"] = _format(request.output)
    if request.max_tokens is not None:
        body[max_tokens_field] = request.max_tokens
    if request.temperature is not None:
        body["temperature"] = request.temperature
    return body


def _message(message: Message, *, with_extras: bool) -> dict[str, Any]:
    match message:
        case ToolMessage():
            content, call_id = sendable(message.text), sendable(message.call_id)
            return {"role": "tool", "tool_call_id": call_id, "content": content}
        case AssistantMessage() if message.tool_calls:
            return _calling(message, message.extras if with_extras else {})
        case _:
            return {"role": message.role, "content": sendable(message.text)}


def _with_pictures(
    messages: Sequence[Message], sent: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return what is sent, with the pictures of results after the results of their message.

    A result can be text alone in this API, and nothing may come between results.
    """
    made: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    for message, body in zip(messages, sent, strict=True):
        if waiting and not isinstance(message, ToolMessage):
            made.append({"role": "user", "content": waiting})
            waiting = []
        made.append(body)
        if isinstance(message, ToolMessage) and message.media:
            whose = sendable(f"From {message.name}, {message.call_id}:")
            waiting += [{"type": "text", "text": whose}]
            waiting += [_picture(each) for each in message.media]
    return [*made, {"role": "user", "content": waiting}] if waiting else made


def _picture(media: Media) -> dict[str, Any]:
    data = b64encode(media.data).decode()
    url = f"data:{media.media_type};base64,{data}"
    return {"type": "image_url", "image_url": {"url": url}}


def _calling(message: AssistantMessage, extras: Mapping[str, object]) -> dict[str, Any]:
    extras = sendable_json({name: extras[name] for name in _KEPT if name in extras})
    by_call = [as_mapping(each) for each in as_items(extras.get(CALL_EXTRAS))]
    if len(by_call) != len(message.tool_calls):  # the message is another by now
        by_call = [as_mapping(None) for _ in message.tool_calls]
    return {
        "role": "assistant",
        "content": sendable(message.text) or None,
        "tool_calls": [
            {
                "id": sendable(call.call_id),
                "type": "function",
                "function": {"name": sendable(call.name), "arguments": _arguments(call)},
                **kept,
            }
            for call, kept in zip(message.tool_calls, by_call, strict=True)
        ],
        **{name: extras[name] for name in RETURNED if name in extras},
    }


def _arguments(call: ToolCall) -> str:
    """Return the arguments as JSON of an object, as it came if it is that.

    Servers that read them to fill in a template refuse the whole conversation otherwise, and
    what was wrong is told to the model in the answer to the call.
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


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}


def _format(output: OutputFormat) -> dict[str, Any]:
    named = {"name": output.name, "schema": output.schema, "strict": _is_strict(output.schema)}
    return {"type": "json_schema", "json_schema": named}


def _is_strict(schema: object) -> bool:
    """Return whether a schema is one that can be kept to exactly: nothing in it is optional."""
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
