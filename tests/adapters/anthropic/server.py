"""Answers of Anthropic's Messages API, for the local server, and the adapter that uses it."""

import json
from typing import Any

from tests.adapters.chat_server import Answer, Handler, drops, reply, share_server, streams
from weakincentives.adapters import CompletionRequest, ToolCall, UserMessage
from weakincentives.adapters.anthropic.adapter import AnthropicAdapter

REQUEST = CompletionRequest((UserMessage("hello"),))
KEY = "sk-ant-secret"
USAGE = {
    "input_tokens": 5,
    "cache_creation_input_tokens": 3,
    "cache_read_input_tokens": 12,
    "output_tokens": 7,
    "output_tokens_details": {"thinking_tokens": 2},
    "server_tool_use": None,
}
HEAD = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-test-1"}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def use(call: ToolCall) -> dict[str, Any]:
    given = call.arguments
    arguments = json.loads(given) if isinstance(given, str) else given
    return {"type": "tool_use", "id": call.call_id, "name": call.name, "input": arguments}


def says(said: str = "", *calls: ToolCall, **more: Any) -> Answer:
    """Answer as the model would, streamed if that is asked for."""
    blocks = [*([text(said)] if said else []), *map(use, calls)]
    return sends(*blocks, stop="tool_use" if calls else "end_turn", **more)


def sends(*blocks: dict[str, Any], stop: str = "end_turn", **more: Any) -> Answer:
    """Answer with blocks, streamed if that is asked for."""

    def answer(handler: Handler) -> None:
        if handler.streams:
            return events(*pieces(*blocks, stop=stop, **more))(handler)
        end = {"stop_reason": stop, "stop_sequence": None, "usage": USAGE}
        return reply({**HEAD, "content": blocks, **end, **more})(handler)

    return answer


def pieces(*blocks: dict[str, Any], stop: str = "end_turn", **more: Any) -> list[dict[str, Any]]:
    """Return an answer in small pieces, as Anthropic sends it."""
    begun = {"content": [], "stop_reason": None, "usage": {**USAGE, "output_tokens": 1}}
    found: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**HEAD, **begun}},
        {"type": "ping"},
    ]
    for index, block in enumerate(blocks):
        first, deltas = _cut(block)
        found.append({"type": "content_block_start", "index": index, "content_block": first})
        found += [{"type": "content_block_delta", "index": index, "delta": each} for each in deltas]
        found.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": stop, "stop_sequence": None, **more}
    usage = {"output_tokens": USAGE["output_tokens"], "input_tokens": None}
    found.append({"type": "message_delta", "delta": delta, "usage": usage})
    return [*found, {"type": "message_stop"}]


def events(*said: dict[str, Any]) -> Answer:
    return streams(*map(event, said), done=False)


def event(said: dict[str, Any]) -> bytes:
    return f"event: {said['type']}\ndata: {json.dumps(said)}\n\n".encode()


def drops_after(*said: dict[str, Any], **more: Any) -> Answer:
    """Hang up half-way."""
    return drops(*map(event, said), **more)


def fails(
    status: int, message: str = "no", kind: str = "invalid_request_error", **headers: str
) -> Answer:
    """Answer with a failure, in Anthropic's words."""
    return reply(failure(kind, message), status, **headers)


def failure(kind: str, message: str) -> dict[str, Any]:
    error = {"type": kind, "message": message}
    return {"type": "error", "error": error, "request_id": "req_1"}


def _cut(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match block["type"]:
        case "text":
            return {**block, "text": ""}, _deltas("text_delta", "text", block["text"])
        case "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}, [
                *_deltas("thinking_delta", "thinking", block["thinking"]),
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        case "tool_use":
            given = json.dumps(block["input"]) if block["input"] else ""
            deltas = _deltas("input_json_delta", "partial_json", given)
            return {**block, "input": {}}, [
                {"type": "input_json_delta", "partial_json": ""},
                *deltas,
            ]
        case _:
            return block, []


def _deltas(kind: str, name: str, said: str) -> list[dict[str, Any]]:
    return [{"type": kind, name: said[at : at + 5]} for at in range(0, len(said), 5)]


def _create(url: str, **given: Any) -> AnthropicAdapter:
    return AnthropicAdapter("claude-test", api_key=KEY, base_url=url, **given)


asked = share_server(_create)
