"""Our tools as MCP has them: title, schemas and annotations, and the results of calls."""

import base64
import mimetypes
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
    ToolAnnotations,
)
from mcp.types import Tool as McpTool

from weakincentives.adapters import ToolOutcome
from weakincentives.contrib.tools import (
    MkdirParams,
    ReadFileParams,
    ReadFileResult,
    WriteFileParams,
)
from weakincentives.contrib.tools.context import SpecHandler
from weakincentives.filesystem import Filesystem
from weakincentives.mcp.history import Recording
from weakincentives.mcp.history_tools import CHECKPOINT, RESULTS, HistoryResult
from weakincentives.posix import display_path
from weakincentives.prompt import Media, Tool
from weakincentives.serde import json_schema, to_builtins

MEDIA_TOOL = "read_media_file"
"""The tool that returns pictures, sound and other binary files."""
MAX_MEDIA = 5 * 1024 * 1024
"""Bytes of the largest binary file in one answer."""
_REGISTERED = {"audio/x-wav": "audio/wav", "audio/x-aiff": "audio/aiff"}
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
        input_schema=deepcopy(dict(tool.schema)),
        output_schema=_output_schema(tool),
        annotations=_annotations(tool),
    )


def requests_of(tool: Tool[Any, Any]) -> tuple[type[Any], ...]:
    """Return the types of requests that a tool of a dialect sends."""
    return tool.handler.spec.requests if isinstance(tool.handler, SpecHandler) else ()


def is_history_tool(tool: Tool[Any, Any]) -> bool:
    """Return whether a tool is one of those on the history."""
    return tool.name in RESULTS and not requests_of(tool)


def _title(tool: Tool[Any, Any]) -> str:
    if is_history_tool(tool):
        return RESULTS[tool.name][0]
    words = [word.lower() for word in _WORD.findall(tool.name)]
    return " ".join(words).capitalize()


def _output_schema(tool: Tool[Any, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {"content": dict(_CONTENT)}
    if tool.name == MEDIA_TOOL:
        properties = {"content": deepcopy(dict(_MEDIA))}
    elif requests_of(tool) == (ReadFileParams,):
        properties = {"content": {**_CONTENT, "description": _RAW}, **deepcopy(dict(_PAGE))}
    elif not tool.read_only:
        properties.update(deepcopy(dict(_CHANGES)))
    if tool.bypasses_filesystem:
        properties.update(deepcopy(dict(_COMMAND)))
    required = ["content"]
    if is_history_tool(tool):
        schema = cast("dict[str, Any]", json_schema(RESULTS[tool.name][1]))
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
    return ToolAnnotations(
        read_only_hint=False,
        destructive_hint=not is_mkdir,
        idempotent_hint=is_mkdir or (requests == (WriteFileParams,) and not _has_mode(tool)),
        open_world_hint=False,
    )


def _has_mode(tool: Tool[Any, Any]) -> bool:
    """Return whether the tool can also append, so that a second call has another effect."""
    return "mode" in cast("Mapping[str, object]", tool.schema["properties"])


def to_result(
    outcome: ToolOutcome,
    recording: Recording,
    filesystem: Filesystem | None,
    *,
    uri: Callable[[str], str],
) -> CallToolResult:
    """Return an outcome in the form of the protocol.

    Args:
        outcome: The outcome.
        recording: Notes about the call, and its step if it changed something.
        filesystem: The workspace, for the bytes of a binary file.
        uri: Returns the URI of a file.
    """
    step, notes = recording.step, recording.notes
    result = outcome.result
    if not result.success:
        return error_result(outcome.text, notes)
    if outcome.call.name == MEDIA_TOOL and isinstance(result.value, ReadFileResult):
        assert filesystem is not None  # it was read there
        return _media_result(outcome, result.value, filesystem, uri)
    if step is not None and step.is_undo:
        notes = [*notes, f"This is call {step.number}; to redo: undo with call={step.number}."]
    text = "\n".join([outcome.text, *notes])
    content: list[ContentBlock] = [TextContent(text=text)]
    content += [_image(media) for media in result.media]
    structured: dict[str, Any] = {"content": text}
    if isinstance(result.value, ReadFileResult) and result.value.encoding == "utf-8":
        structured = _page(result.value)
    elif isinstance(result.value, HistoryResult):
        structured |= cast("dict[str, Any]", to_builtins(result.value))
    if result.command is not None:
        command = result.command
        structured |= {"exitCode": command.exit_code, "timedOut": command.timed_out}
    if step is not None and step.after is not None:
        structured |= {"call": step.number, "changed": [*map(display_path, step.paths)]}
    return CallToolResult(content=content, structured_content=structured)


def _page(value: ReadFileResult) -> dict[str, Any]:
    """Return a page of a text file for programs: its lines without numbers."""
    page: dict[str, Any] = {
        "content": value.content,
        "firstLine": value.offset + 1,
        "lines": value.shown,
        "totalLines": value.total,
    }
    return page if value.next_offset is None else page | {"nextLine": value.next_offset + 1}


def error_result(text: str, notes: Sequence[str] = ()) -> CallToolResult:
    """Return the result of a call that failed, with sentences for the model."""
    return CallToolResult(content=[TextContent(text="\n".join([text, *notes]))], is_error=True)


def _media_result(
    outcome: ToolOutcome,
    value: ReadFileResult,
    filesystem: Filesystem,
    uri: Callable[[str], str],
) -> CallToolResult:
    """Return a binary file as the reference server does: image, audio or blob."""
    if outcome.result.media:
        media = outcome.result.media[0]
    elif value.size_bytes > MAX_MEDIA:
        return error_result(
            f"{display_path(value.path)} has {value.size_bytes:,} bytes, more than the"
            f" {MAX_MEDIA:,} that fit into one answer"
        )
    else:
        media = Media(mime_type(value.path), filesystem.read_bytes(value.path).content)
    data = base64.b64encode(media.data).decode()
    kind = media.media_type.split("/")[0]
    block = _media_block(kind, uri(value.path), media.media_type, data)
    item = block.model_dump(by_alias=True, mode="json", exclude_none=True)
    return CallToolResult(content=[block], structured_content={"content": [item]})


def _media_block(kind: str, uri: str, media_type: str, data: str) -> ContentBlock:
    if kind == "image":
        return ImageContent(data=data, mime_type=media_type)
    if kind == "audio":
        return AudioContent(data=data, mime_type=media_type)
    contents = BlobResourceContents(uri=uri, mime_type=media_type, blob=data)
    return EmbeddedResource(resource=contents)


def mime_type(path: str) -> str:
    """Return the MIME type that a file's name suggests."""
    found = mimetypes.guess_type(path)[0] or "application/octet-stream"
    return _REGISTERED.get(found, found)


def _image(media: Media) -> ImageContent:
    return ImageContent(data=base64.b64encode(media.data).decode(), mime_type=media.media_type)
