"""Messages of a server that the SDK would refuse as a whole: one odd part spoils only itself.

The SDK's parser refuses a message that is nested 200 levels deep, or that has half a character in
it, and its types refuse a list of tools for one odd tool. Here what is too deep is replaced, and
the list passes with the tools that it accepts, and with all of them as plain data.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from anyio.abc import ObjectReceiveStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCResponse
from mcp_types.methods import validate_server_result
from pydantic import ValidationError
from pydantic_core import from_json

LISTED_TOOLS = "weakincentives/tools"
"""Where in the metadata of a list of tools all of them are, as the server sent them."""
MAX_DEPTH = 100
"""The levels of a message; what is deeper is replaced by a sentence."""
_TOO_DEEP = '"[nested too deeply]"'
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
_VERSIONS = ("2025-11-25", "2026-07-28")  # one of each form that the SDK knows


def repair(data: bytes) -> bytes:
    """Return a message that the SDK can parse; one that is not JSON stays as it is."""
    try:
        from_json(data)
    except ValueError:
        try:
            message: object = json.loads(_prune(data.decode("utf-8", "replace")))
        except ValueError:
            return data
        return json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
    return data


def _prune(text: str) -> str:
    """Replace what is nested too deeply."""
    kept: list[str] = []
    depth = position = 0
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                kept += (text[position : token.start()], _TOO_DEEP)
        elif token[0] in "]}":
            if depth == MAX_DEPTH + 1:
                position = token.end()
            depth -= 1
    return "".join((*kept, text[position:]))


class ToolListStream(ObjectReceiveStream[SessionMessage | Exception]):
    """The messages of a server, with lists of tools that a session accepts."""

    def __init__(self, messages: ObjectReceiveStream[SessionMessage | Exception]) -> None:
        """Read from a transport."""
        self._messages = messages

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        found = await self._messages.receive()
        if isinstance(found, SessionMessage) and isinstance(found.message, JSONRPCResponse):
            tools = found.message.result.get("tools")
            if isinstance(tools, list):
                _separate(found.message.result, cast("list[object]", tools))
        return found

    async def aclose(self) -> None:
        """Close the transport's stream."""
        await self._messages.aclose()


def _separate(result: dict[str, Any], tools: list[object]) -> None:
    """Leave in a list what the SDK accepts, and put all of it beside it."""
    meta: object = result.get("_meta")
    known = cast("dict[str, object]", meta if isinstance(meta, dict) else {})
    result["_meta"] = {**known, LISTED_TOOLS: tools}
    result["tools"] = [each for each in tools if _is_valid(each)]


def _is_valid(tool: object) -> bool:
    try:
        for version in _VERSIONS:
            validate_server_result("tools/list", version, {**_LIST, "tools": [tool]})
    except ValidationError:
        return False
    return True


_LIST: Mapping[str, object] = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
