"""The wire format of Anthropic's Messages API: encode requests, decode responses.

The API knows some tools by their own types. Such a tool is sent without schema and description;
it still runs here, so the system prompt describes it.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NoReturn, cast

from anthropic import transform_schema

from weakincentives.adapters.http import lenient
from weakincentives.adapters.http.lenient import sendable, sendable_json
from weakincentives.adapters.loop.output import ExpectedOutput
from weakincentives.adapters.messages import (
    AssistantMessage,
    Completion,
    CompletionRequest,
    Message,
    OutputFormat,
    StopReason,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from weakincentives.prompt import Media
from weakincentives.serde import encode

CONTENT = "content"
"""The key of a message's extras with its blocks in order, reasoning unchanged."""
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_-]")
_PICTURE_TYPES = ("image/gif", "image/jpeg", "image/png", "image/webp")
_REASONING_TYPES = ("thinking", "redacted_thinking")
_CACHED_TURNS = 2  # with the tools and the system prompt four marks, the API's maximum
_DEFINITION = "#/$defs/"
_MAX_BLOCKS = 10_000
_CALL_FIELDS = ("id", "input", "name")
# by type of delta: the type of its block, its own field, and the field of the block
_DELTAS: Mapping[str, tuple[str, str, str]] = {
    "text_delta": ("text", "text", "text"),
    "thinking_delta": ("thinking", "thinking", "thinking"),
    "signature_delta": ("thinking", "signature", "signature"),
    "input_json_delta": ("tool_use", "partial_json", "input"),
}


def build_message_request(
    request: CompletionRequest,
    *,
    max_tokens: int,
    native_output: bool,
    native_tools: bool,
    cache: bool,
    with_pictures: bool,
) -> dict[str, Any]:
    """Return the body of a request, without the model.

    Args:
        request: The request.
        max_tokens: Token limit of the answer, if the request has none.
        native_output: Whether the API enforces `request.output`.
        native_tools: Whether to send tools that the API knows by their types.
        cache: Whether to mark what the next step sends again for the cache.
        with_pictures: Whether to send pictures.
    """
    types = {each.name: native_type(each) for each in request.tools} if native_tools else {}
    output = request.output if native_output else None
    output_format = None if output is None else encode_output_format(output)
    system = [each.text for each in request.messages if isinstance(each, SystemMessage)]
    system += [_tool_description(each) for each in request.tools if types.get(each.name)]
    if output is not None and output_format is None:
        system.append(ExpectedOutput(output, None, is_array=False).instructions())
    optional: dict[str, Any] = {
        "system": [_encode_text(each) for each in system if each.strip()],
        "tools": [_encode_tool(each, types.get(each.name)) for each in request.tools],
        "output_config": _encode_config(request.effort, output_format),
    }
    body = {
        "max_tokens": max_tokens if request.max_tokens is None else request.max_tokens,
        "messages": _encode_turns(request.messages, with_pictures=with_pictures),
        **{name: each for name, each in optional.items() if each},
        **({} if request.temperature is None else {"temperature": request.temperature}),
    }
    if cache and request.tools:  # without tools there is rarely a next step
        _mark_for_cache(body)
    return body


def _tool_description(tool: ToolDefinition) -> str:
    return f"What `{tool.name}` does here:\n\n{tool.description}"


def _encode_config(effort: str | None, output_format: Mapping[str, Any] | None) -> dict[str, Any]:
    config = {"effort": effort, "format": output_format}
    return {name: each for name, each in config.items() if each is not None}


def _encode_turns(messages: Sequence[Message], *, with_pictures: bool) -> list[dict[str, Any]]:
    """Return the conversation in turns; the results of one message's calls share a turn."""
    turns: list[dict[str, Any]] = []
    ids = _valid_ids(messages)
    for message in messages:
        if isinstance(message, SystemMessage):
            continue
        role = "assistant" if isinstance(message, AssistantMessage) else "user"
        blocks = _encode_blocks(message, ids, with_pictures=with_pictures)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return turns


def _encode_blocks(
    message: Message, ids: Mapping[str, str], *, with_pictures: bool
) -> list[dict[str, Any]]:
    match message:
        case AssistantMessage():
            uses = [_encode_call(call, ids[call.call_id]) for call in message.tool_calls]
            # the API rejects blank text blocks
            text = [_encode_text(message.text)] if message.text.strip() else []
            return _original_blocks(message, uses) or [*text, *uses]
        case ToolMessage():
            media = message.media if with_pictures else ()
            return [_encode_result(message, ids[message.call_id], media)]
        case UserMessage():
            # pictures first, as the provider advises; the last block is marked for the cache
            return [*map(_encode_picture, message.media), _encode_text(message.text)]
        case _:
            return [_encode_text(message.text)]


def _original_blocks(
    message: AssistantMessage, uses: Sequence[dict[str, Any]]
) -> list[dict[str, Any]] | None:
    """Return the blocks that the provider sent, or None if the message was changed since."""
    blocks = [lenient.as_mapping(each) for each in lenient.as_items(message.extras.get(CONTENT))]
    texts = [lenient.as_text(each.get("text")) for each in blocks if each.get("type") == "text"]
    calls = [each for each in blocks if each.get("type") == "tool_use"]
    # not compared by id: a call without an id, or with a repeated one, has got a new one
    if len(calls) != len(uses) or "".join(texts) != message.text:
        return None
    while blocks and blocks[-1].get("type") in _REASONING_TYPES:
        blocks.pop()  # the API rejects messages that end with reasoning
    remaining = iter(uses)
    return [
        {**each, **next(remaining)} if each.get("type") == "tool_use" else sendable_json(each)
        for each in blocks
        if each.get("type") != "text" or lenient.as_text(each.get("text")).strip()
    ]


def _encode_call(call: ToolCall, call_id: str) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": call_id,
        "name": _NOT_IN_IDS.sub("_", call.name) or "_",
        "input": _encode_arguments(call.arguments),
    }


def _encode_arguments(arguments: Mapping[str, object] | str) -> Mapping[str, Any]:
    """Return arguments as a JSON object, which the API requires.

    The result of the call tells the model what was wrong with invalid ones.
    """
    if isinstance(arguments, str) and not arguments.strip():
        return {}
    text = arguments if isinstance(arguments, str) else encode(arguments).decode("utf-8", "replace")
    try:
        value = sendable_json(json.loads(text, parse_constant=_reject_constant))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return {"invalid_arguments": sendable(text)}
    return cast("dict[str, Any]", value)


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"Not JSON: {constant!r}")


def _encode_result(message: ToolMessage, call_id: str, media: Iterable[Media]) -> dict[str, Any]:
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id}
    text = sendable(message.text)
    if not message.success:
        # the API rejects empty errors, and errors with pictures
        return {**result, "content": text if text.strip() else "The call failed", "is_error": True}
    pictures = [_encode_picture(each) for each in media if each.media_type in _PICTURE_TYPES]
    if pictures:
        return {**result, "content": [*([_encode_text(text)] if text.strip() else []), *pictures]}
    return {**result, "content": text} if text.strip() else result


def _encode_picture(media: Media) -> dict[str, Any]:
    data = b64encode(media.data).decode()
    source = {"type": "base64", "media_type": media.media_type, "data": data}
    return {"type": "image", "source": source}


def _valid_ids(messages: Sequence[Message]) -> Mapping[str, str]:
    """Return a valid id for each call id; other providers allow more characters.

    Different ids stay different, because results are matched by them.
    """
    calls = [
        call for each in messages if isinstance(each, AssistantMessage) for call in each.tool_calls
    ]
    call_ids = [call.call_id for call in calls]
    call_ids += [each.call_id for each in messages if isinstance(each, ToolMessage)]
    cleaned = {each: _NOT_IN_IDS.sub("_", each) or "_" for each in call_ids}
    used = {each for each, clean in cleaned.items() if each == clean}
    ids: dict[str, str] = {}
    for each, clean in cleaned.items():
        if each != clean and clean in used:
            digest = sha256(each.encode("utf-8", "surrogatepass")).hexdigest()
            clean = f"{clean}_{digest[:16]}"
        used.add(clean)
        ids[each] = clean
    return ids


def _encode_text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": sendable(text)}


def _encode_tool(tool: ToolDefinition, native: str | None) -> dict[str, Any]:
    if native is not None:
        return {"type": native, "name": tool.name}
    return {"name": tool.name, "description": tool.description, "input_schema": tool.schema}


def _mark_for_cache(body: Mapping[str, Any]) -> None:
    """Mark the ends of what the next step sends again, for the cache."""
    turns: list[dict[str, Any]] = body["messages"]
    user_blocks = [each["content"][-1] for each in turns if each["role"] == "user"]
    ends = [body["tools"][-1], *body.get("system", ())[-1:], *user_blocks[-_CACHED_TURNS:]]
    for each in ends:
        if each.get("text", "-").strip():
            each["cache_control"] = {"type": "ephemeral"}


@dataclass(frozen=True, slots=True)
class _NativeTool:
    """A tool type of the API: what calls of it contain."""

    type: str
    parameters: frozenset[str]
    required: frozenset[str]
    """Parameters that every call has."""
    commands: frozenset[str] = frozenset()
    """Values of `command`, if it is one of a few."""

    def matches(self, schema: Mapping[str, object]) -> bool:
        """Return whether a tool with this schema accepts every call of the native type."""
        properties = lenient.as_mapping(schema.get("properties"))
        allowed = lenient.as_items(lenient.as_mapping(properties.get("command")).get("enum"))
        return (
            self.parameters <= properties.keys()
            and self.required >= set(lenient.as_items(schema.get("required")))
            and (not allowed or self.commands <= set(allowed))
        )


_NATIVE_TOOLS: Mapping[str, _NativeTool] = {
    "str_replace_based_edit_tool": _NativeTool(
        "text_editor_20250728",
        frozenset(
            {
                *("command", "path", "view_range", "file_text", "old_str", "new_str"),
                *("insert_line", "insert_text"),
            }
        ),
        required=frozenset({"command", "path"}),
        commands=frozenset({"view", "create", "str_replace", "insert"}),
    ),
    # a call that restarts the shell has no command
    "bash": _NativeTool("bash_20250124", frozenset({"command", "restart"}), required=frozenset()),
}


def native_type(tool: ToolDefinition) -> str | None:
    """Return the API's type of a tool, if it has the name and parameters of a native one."""
    native = _NATIVE_TOOLS.get(tool.name)
    return native.type if native is not None and native.matches(tool.schema) else None


def encode_output_format(output: OutputFormat) -> dict[str, Any] | None:
    """Return the format for the API, or None if the API cannot express the schema.

    It cannot express objects with arbitrary keys, recursive types and values of any type.
    """
    if not _is_expressible(output.schema, lenient.as_mapping(output.schema.get("$defs")), ()):
        return None
    return {"type": "json_schema", "schema": transform_schema(dict(output.schema))}


def _is_expressible(node: object, defs: Mapping[str, Any], enclosing: tuple[str, ...]) -> bool:
    """Return whether the API keeps a schema's meaning; `enclosing` are the definitions around."""
    schema = lenient.as_mapping(node)
    ref = lenient.as_text(schema.get("$ref"))
    if ref:
        name = ref.removeprefix(_DEFINITION)
        return name not in enclosing and _is_expressible(defs.get(name), defs, (*enclosing, name))
    if "enum" in schema or "const" in schema:
        return True
    if "anyOf" in schema:
        options = lenient.as_items(schema["anyOf"])
        return all(_is_expressible(each, defs, enclosing) for each in options)
    if schema.get("type") == "object":
        properties = lenient.as_mapping(schema.get("properties")).values()
        is_closed = schema.get("additionalProperties") is False
        return is_closed and all(_is_expressible(each, defs, enclosing) for each in properties)
    if schema.get("type") == "array":
        has_items = "prefixItems" not in schema
        return has_items and _is_expressible(schema.get("items"), defs, enclosing)
    return isinstance(schema.get("type"), str)


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
        self._by_index: dict[str, _ContentBlock] = {}  # a server may send any JSON as an index
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
        block = self._by_index.get(lenient.json_text(index))
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
        self._by_index[lenient.json_text(index)] = block
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


def _is_plain(blocks: Sequence[_ContentBlock]) -> bool:
    """Return whether text and calls lose nothing: at most one text block, then only calls."""
    kinds = [each.type for each in blocks]
    return kinds[:1] in ([], ["text"], ["tool_use"]) and set(kinds[1:]) <= {"tool_use"}
