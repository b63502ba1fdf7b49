"""A request in the words of Anthropic's Messages API."""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NoReturn, cast

from weakincentives.adapters.anthropic.native import native_type, output_format
from weakincentives.adapters.http import lenient
from weakincentives.adapters.http.lenient import sendable, sendable_json
from weakincentives.adapters.loop.output import ExpectedOutput
from weakincentives.adapters.messages import (
    AssistantMessage,
    CompletionRequest,
    Message,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
)
from weakincentives.prompt import Media
from weakincentives.serde import encode

CONTENT = "content"
"""Where the extras of a message have its blocks in their order, reasoning as it came."""
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_-]")
_PICTURES = ("image/gif", "image/jpeg", "image/png", "image/webp")
_REASONING = ("thinking", "redacted_thinking")
_CACHED_TURNS = 2  # with the tools and the system prompt that makes four, which is all there are


def build_message_request(
    request: CompletionRequest,
    *,
    max_tokens: int,
    native_output: bool,
    native_tools: bool,
    cache: bool,
    with_pictures: bool,
) -> dict[str, Any]:
    """Return what is sent, but for the model.

    Args:
        request: What the model is asked.
        max_tokens: The longest answer, if the request does not say.
        native_output: Whether the API sees to it that the answer is `request.output`.
        native_tools: Whether tools that the API knows are sent by their types.
        cache: Whether what comes again in the next step is to be kept.
        with_pictures: Whether the model can see.
    """
    known = {each.name: native_type(each) for each in request.tools} if native_tools else {}
    output = request.output if native_output else None
    format_sent = None if output is None else output_format(output)
    told = [each.text for each in request.messages if isinstance(each, SystemMessage)]
    told += [_manual(each) for each in request.tools if known.get(each.name)]
    if output is not None and format_sent is None:
        told.append(ExpectedOutput(output, None, is_array=False).instructions())
    optional: dict[str, Any] = {
        "system": [_text(each) for each in told if each.strip()],
        "tools": [_tool(each, known.get(each.name)) for each in request.tools],
        "output_config": {"format": format_sent} if format_sent else None,
    }
    body = {
        "max_tokens": max_tokens if request.max_tokens is None else request.max_tokens,
        "messages": _turns(request.messages, with_pictures=with_pictures),
        **{name: each for name, each in optional.items() if each},
        **({} if request.temperature is None else {"temperature": request.temperature}),
    }
    if cache and request.tools:  # without tools there is seldom a next step
        _mark(body)
    return body


def _turns(messages: Sequence[Message], *, with_pictures: bool) -> list[dict[str, Any]]:
    """Return the conversation in turns; all results of one message's calls are in one."""
    turns: list[dict[str, Any]] = []
    ids = _sent_ids(messages)
    for message in messages:
        if isinstance(message, SystemMessage):
            continue
        role = "assistant" if isinstance(message, AssistantMessage) else "user"
        blocks = _blocks(message, ids, with_pictures=with_pictures)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return turns


def _blocks(
    message: Message, ids: Mapping[str, str], *, with_pictures: bool
) -> list[dict[str, Any]]:
    match message:
        case AssistantMessage():
            uses = [_use(call, ids[call.call_id]) for call in message.tool_calls]
            return _as_it_came(message, uses) or _said(message, uses)
        case ToolMessage():
            media = message.media if with_pictures else ()
            return [_result(message, ids[message.call_id], media)]
        case _:
            return [_text(message.text)]


def _as_it_came(
    message: AssistantMessage, uses: Sequence[dict[str, Any]]
) -> list[dict[str, Any]] | None:
    """Return the blocks that the provider sent, unless the message is another by now."""
    kept = [lenient.as_mapping(each) for each in lenient.as_items(message.extras.get(CONTENT))]
    texts = [lenient.as_text(each.get("text")) for each in kept if each.get("type") == "text"]
    used = [each for each in kept if each.get("type") == "tool_use"]
    # not by their ids: a call may have got another since, if it had none or one that was used
    if len(used) != len(uses) or "".join(texts) != message.text:
        return None
    while kept and kept[-1].get("type") in _REASONING:
        kept.pop()  # the API refuses messages that end with it
    left = iter(uses)
    return [
        {**each, **next(left)} if each.get("type") == "tool_use" else sendable_json(each)
        for each in kept
        if each.get("type") != "text" or lenient.as_text(each.get("text")).strip()
    ]


def _said(message: AssistantMessage, uses: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    # the API refuses blocks of text that are blank
    said = [_text(message.text)] if message.text.strip() else []
    return [*said, *uses]


def _use(call: ToolCall, call_id: str) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": call_id,
        "name": _NOT_IN_IDS.sub("_", call.name) or "_",
        "input": _input(call.arguments),
    }


def _input(arguments: Mapping[str, object] | str) -> Mapping[str, Any]:
    """Return arguments as the object that the API wants, which it refuses to do without.

    What was wrong with them is told to the model in the answer to the call.
    """
    if isinstance(arguments, str) and not arguments.strip():
        return {}
    given = (
        arguments if isinstance(arguments, str) else encode(arguments).decode("utf-8", "replace")
    )
    try:
        found = sendable_json(json.loads(given, parse_constant=_refuse))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return {"invalid_arguments": sendable(given)}
    return cast("dict[str, Any]", found)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"Not JSON: {constant!r}")


def _result(message: ToolMessage, call_id: str, media: Iterable[Media]) -> dict[str, Any]:
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id}
    text = sendable(message.text)
    if not message.success:
        # the API refuses errors that say nothing, and errors with pictures
        return {**result, "content": text if text.strip() else "The call failed", "is_error": True}
    pictures = [_picture(each) for each in media if each.media_type in _PICTURES]
    if pictures:
        return {**result, "content": [*([_text(text)] if text.strip() else []), *pictures]}
    return {**result, "content": text} if text.strip() else result


def _picture(media: Media) -> dict[str, Any]:
    data = b64encode(media.data).decode()
    source = {"type": "base64", "media_type": media.media_type, "data": data}
    return {"type": "image", "source": source}


def _sent_ids(messages: Sequence[Message]) -> Mapping[str, str]:
    """Return ids of calls as the API takes them; other providers are freer in theirs.

    Ids that differ stay different, since results are found by them.
    """
    calls = [
        call for each in messages if isinstance(each, AssistantMessage) for call in each.tool_calls
    ]
    given = [call.call_id for call in calls]
    given += [each.call_id for each in messages if isinstance(each, ToolMessage)]
    clean = {each: _NOT_IN_IDS.sub("_", each) or "_" for each in given}
    used = {each for each, sent in clean.items() if each == sent}
    ids: dict[str, str] = {}
    for each, sent in clean.items():
        if each != sent and sent in used:
            digest = sha256(each.encode("utf-8", "surrogatepass")).hexdigest()
            sent = f"{sent}_{digest[:16]}"
        used.add(sent)
        ids[each] = sent
    return ids


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": sendable(text)}


def _tool(tool: ToolDefinition, native: str | None) -> dict[str, Any]:
    if native is not None:
        return {"type": native, "name": tool.name}
    return {"name": tool.name, "description": tool.description, "input_schema": tool.schema}


def _manual(tool: ToolDefinition) -> str:
    return f"What `{tool.name}` does here:\n\n{tool.description}"


def _mark(body: Mapping[str, Any]) -> None:
    """Mark where what comes again in the next step ends."""
    turns: list[dict[str, Any]] = body["messages"]
    asked = [each["content"][-1] for each in turns if each["role"] == "user"]
    ends = [body["tools"][-1], *body.get("system", ())[-1:], *asked[-_CACHED_TURNS:]]
    for each in ends:
        if each.get("text", "-").strip():
            each["cache_control"] = {"type": "ephemeral"}
