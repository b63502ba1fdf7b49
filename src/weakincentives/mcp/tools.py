"""Our tools as MCP has them: title, schemas and annotations."""

import re
from collections.abc import Mapping
from typing import Any, cast

from mcp.types import Tool as McpTool
from mcp.types import ToolAnnotations

from weakincentives.contrib.tools import MkdirParams, ReadFileParams, SpecHandler, WriteFileParams
from weakincentives.mcp.history_tools import CHECKPOINT, TOOLS
from weakincentives.prompt import Tool
from weakincentives.serde import json_schema

MEDIA_TOOL = "read_media_file"
"""The tool that returns pictures, sound and other binary files."""
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_CONTENT: Mapping[str, Any] = {
    "type": "string",
    "description": "The result as text, the same as in the content of the answer.",
}
_RAW = "The lines as they are in the file, without numbers; for other files the text of the answer."
_CHANGES: Mapping[str, Any] = {
    "call": {
        "type": "integer",
        "description": "The number of this call, for undo and diff; only if it changed something.",
    },
    "changed": {
        "type": "array",
        "items": {"type": "string"},
        "description": "The paths that the call changed.",
    },
}
_COMMAND: Mapping[str, Any] = {
    "exitCode": {
        "type": ["integer", "null"],
        "description": "The exit code of the command; null while it runs in the background.",
    },
    "timedOut": {"type": "boolean", "description": "Whether its time limit ended it."},
}
_PAGE: Mapping[str, Any] = {
    "firstLine": {"type": "integer", "description": "The number of the first line, from 1."},
    "lines": {"type": "integer", "description": "How many lines the content has."},
    "totalLines": {"type": "integer", "description": "How many lines the file has."},
    "nextLine": {
        "type": "integer",
        "description": "Where the file continues; missing if this is its end.",
    },
}
_MEDIA: Mapping[str, Any] = {
    "type": "array",
    "description": "One block: image, audio, or resource with a blob.",
    "items": {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": ["image", "audio", "resource"]},
            "data": {"type": "string", "description": "The bytes in base64."},
            "mimeType": {"type": "string"},
            "resource": {
                "type": "object",
                "properties": {
                    "uri": {"type": "string"},
                    "mimeType": {"type": "string"},
                    "blob": {"type": "string", "description": "The bytes in base64."},
                },
            },
        },
        "required": ["type"],
    },
}


def describe_tool(tool: Tool[Any, Any]) -> McpTool:
    """Return a tool in the form of the protocol."""
    return McpTool(
        name=tool.name,
        title=_title(tool),
        description=tool.description,
        input_schema=dict(tool.schema),
        output_schema=_output_schema(tool),
        annotations=_annotations(tool),
    )


def requests_of(tool: Tool[Any, Any]) -> tuple[type[Any], ...]:
    """Return the types of requests that a tool of a dialect sends."""
    return tool.handler.spec.requests if isinstance(tool.handler, SpecHandler) else ()


def is_history_tool(tool: Tool[Any, Any]) -> bool:
    """Return whether a tool is one of those on the history."""
    return tool.name in TOOLS and not requests_of(tool)


def _title(tool: Tool[Any, Any]) -> str:
    if is_history_tool(tool):
        return TOOLS[tool.name].title
    words = [word.lower() for word in _WORD.findall(tool.name)]
    return " ".join(words).capitalize()


def _output_schema(tool: Tool[Any, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {"content": _CONTENT}
    if tool.name == MEDIA_TOOL:
        properties = {"content": _MEDIA}
    elif requests_of(tool) == (ReadFileParams,):
        properties = {"content": {**_CONTENT, "description": _RAW}, **_PAGE}
    elif not tool.read_only:
        properties |= _CHANGES
    if tool.bypasses_filesystem:
        properties |= _COMMAND
    required = ["content"]
    if is_history_tool(tool):
        schema = cast("dict[str, Any]", json_schema(TOOLS[tool.name].result))
        properties |= schema["properties"]
        required += schema.get("required", ())
    return {"type": "object", "properties": properties, "required": required}


def _annotations(tool: Tool[Any, Any]) -> ToolAnnotations:
    if tool.read_only:
        return ToolAnnotations(
            read_only_hint=tool.name != CHECKPOINT,
            destructive_hint=False,
            idempotent_hint=tool.name != CHECKPOINT,
            open_world_hint=False,
        )
    requests = requests_of(tool)
    is_mkdir = requests == (MkdirParams,)
    # one that can also append has another effect the second time
    can_append = "mode" in cast("Mapping[str, object]", tool.schema["properties"])
    return ToolAnnotations(
        read_only_hint=False,
        destructive_hint=not is_mkdir,
        idempotent_hint=is_mkdir or (requests == (WriteFileParams,) and not can_append),
        open_world_hint=False,
    )
