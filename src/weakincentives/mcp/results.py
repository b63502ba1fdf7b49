"""The outcome of a tool call as the protocol returns it: content and structured content."""

import base64
import mimetypes
from collections.abc import Callable, Sequence
from typing import Any, cast

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
)

from weakincentives.adapters import ToolOutcome
from weakincentives.contrib.tools import ReadFileResult
from weakincentives.filesystem import Filesystem
from weakincentives.mcp.history_results import HistoryResult
from weakincentives.mcp.tools import MEDIA_TOOL
from weakincentives.posix import display_path
from weakincentives.prompt import Media
from weakincentives.serde import to_builtins

MAX_MEDIA = 5 * 1024 * 1024
"""Bytes of the largest binary file in one answer."""


def to_result(
    outcome: ToolOutcome,
    filesystem: Filesystem,
    *,
    uri: Callable[[str], str],
    call: int | None = None,
    changed: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> CallToolResult:
    """Return an outcome in the form of the protocol.

    Args:
        outcome: The outcome.
        filesystem: The workspace, for the bytes of a binary file.
        uri: Returns the URI of a file.
        call: The number of the call, if it changed something.
        changed: The paths that it changed.
        notes: Sentences to add to the text.
    """
    result = outcome.result
    if not result.success:
        return error_result(outcome.text, notes)
    if outcome.call.name == MEDIA_TOOL and isinstance(result.value, ReadFileResult):
        return _media_result(outcome, result.value, filesystem, uri)
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
    if call is not None:
        structured |= {"call": call, "changed": [display_path(path) for path in changed]}
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


_REGISTERED = {"audio/x-wav": "audio/wav", "audio/x-aiff": "audio/aiff"}


def mime_type(path: str) -> str:
    """Return the MIME type that a file's name suggests."""
    found = mimetypes.guess_type(path)[0] or "application/octet-stream"
    return _REGISTERED.get(found, found)


def _image(media: Media) -> ImageContent:
    return ImageContent(data=base64.b64encode(media.data).decode(), mime_type=media.media_type)
