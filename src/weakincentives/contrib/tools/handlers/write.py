"""Files as texts that can be changed and written back with every other byte as it was."""

import base64
import binascii
from dataclasses import dataclass

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.editing.errors import excerpt
from weakincentives.contrib.tools.editing.sanitize import find_placeholder, is_placeholder
from weakincentives.contrib.tools.handlers.errors import (
    directory_in_the_way,
    editing_tool,
    ensure_not_read_only,
    ensure_short_enough,
    ensure_storable,
    explain,
    explain_errors,
    link_error,
)
from weakincentives.contrib.tools.handlers.render import (
    count_text,
    difference,
    format_path,
    hint,
    line_count,
    message,
    rest_hint,
)
from weakincentives.contrib.tools.requests import WriteFileParams
from weakincentives.contrib.tools.results import WriteFileResult
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Filesystem, LimitExceededError, WriteMode
from weakincentives.filesystem.base import BINARY_PREFIX
from weakincentives.filesystem.diff import MAX_TEXT
from weakincentives.prompt import ToolResult

_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def decode_text(data: bytes) -> str:
    """Return bytes as text, those that are not UTF-8 as surrogates."""
    return data.decode("utf-8", "surrogateescape")


def encode_text(text: str) -> bytes:
    """Return the bytes of a text that was made by `decode_text`."""
    return text.encode("utf-8", "surrogateescape")


def file_bytes(context: HandlerContext, path: str) -> bytes | None:
    """Return the bytes of a file that is to be changed; None if nothing is there.

    Raises:
        IsADirectoryError: A directory is there.
        PermissionError: A link is there.
        LimitExceededError: It is too large.
    """
    try:
        found = context.filesystem.stat(path or ".")
    except (FileNotFoundError, NotADirectoryError):
        return None
    if found.is_directory:
        raise directory_in_the_way(context, path)
    if found.link_target is not None:
        raise link_error(context, path, found.link_target)
    if found.size_bytes > MAX_TEXT:
        raise LimitExceededError(
            f"File has {found.size_bytes} bytes, and only files of up to {MAX_TEXT} bytes"
            f" can be changed in part: {format_path(path)!r}"
        )
    return context.filesystem.read_bytes(path).content


def ensure_text(context: HandlerContext, path: str, data: bytes) -> None:
    """Return if bytes are a text.

    Raises:
        ToolValidationError: They are not; what else can be done is said.
    """
    if b"\0" not in data[:BINARY_PREFIX]:
        return
    what = "UTF-16 text" if data.startswith(_UTF16_MARKS) else "binary"
    size = count_text(len(data), "byte")
    text = f"File is {what} ({size}) and cannot be changed in part: {format_path(path)!r}"
    how = explain(context, WriteFileParams(path, "", "overwrite", "base64"), "mode", "encoding")
    raise ToolValidationError(text + hint("; write all of it:", how))


_MAX_COMPARED = 1024 * 1024  # bytes of an old file that the new one is compared with
_MAX_DIFF = 3_000  # characters: the model has just sent the new text, and knows it


@dataclass(frozen=True, slots=True)
class _Before:
    """The file that was there; `data` is None if it is not compared."""

    size: int
    data: bytes | None
    ends_within_a_line: bool


def write_file(request: WriteFileParams, context: HandlerContext) -> ToolResult[WriteFileResult]:
    """Write a whole file, or add to its end."""
    fs, path = context.filesystem, context.resolve_new_path(request.file_path)
    ensure_not_read_only(context, path)
    if not path:
        raise directory_in_the_way(context, path)
    as_bytes = request.encoding == "base64"
    data = _bytes(request)
    ensure_short_enough(context, path, len(data) if as_bytes else len(request.content))
    with explain_errors(context, path):
        before = _before(fs, path, request.mode)
        if before is not None and request.mode == "overwrite" and not as_bytes:
            _refuse_placeholders(context, request.content, path)
        if as_bytes:
            fs.write_bytes(path, data, mode=request.mode)
        else:
            fs.write(path, request.content, mode=request.mode)
    size = fs.stat(path).size_bytes
    value = WriteFileResult(path, request.mode, before is None, len(data), size)
    length = count_text(len(data), "byte")
    if not as_bytes:
        length = f"{count_text(line_count(data), 'line')}, {length}"
    text = _message(value, length, data, before, context)
    return ToolResult(text, value, exclude_value_from_context=True)


def _bytes(request: WriteFileParams) -> bytes:
    if request.encoding != "base64":
        ensure_storable(request.content)
        return request.content.encode()
    try:
        return base64.b64decode("".join(request.content.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ToolValidationError(f"Content is not base64: {error}; nothing was written") from None


def _refuse_placeholders(context: HandlerContext, content: str, path: str) -> None:
    """Refuse content that leaves out what the file has, and says so in a line of its own."""
    lines = content.split("\n")
    if not any(map(is_placeholder, lines)):
        return  # no need to read what may be a large file
    old = decode_text(context.filesystem.read_bytes(path).content)
    line = find_placeholder(old.split("\n"), lines)
    if line is not None:
        raise ToolValidationError(
            f"Content has a placeholder instead of text: {excerpt(line.strip())}; the file"
            " was not replaced. Send the whole content"
            + hint(", or change a part of it with", editing_tool(context))
        )


def _before(fs: Filesystem, path: str, mode: WriteMode) -> _Before | None:
    """Return the file that is there; None if there is none."""
    if not fs.exists(path):
        return None
    found = fs.stat(path)
    if not found.is_file:
        return None  # the write is refused
    size = found.size_bytes
    last = fs.read_bytes(path, offset=size - 1, limit=1).content if size else b"\n"
    compared = mode == "overwrite" and size <= _MAX_COMPARED
    return _Before(size, fs.read_bytes(path).content if compared else None, last != b"\n")


def _message(
    value: WriteFileResult,
    length: str,
    data: bytes,
    before: _Before | None,
    context: HandlerContext,
) -> str:
    name = format_path(value.path)
    if before is None:
        return f"Created {name}: {length}"
    if value.mode == "append":
        text = f"Appended {length} to {name}, which has {count_text(value.size_bytes, 'byte')} now"
        if data and before.ends_within_a_line:
            text += "\nIts last line had no end, so the new text goes on in that line"
        return text
    if data == before.data:
        return f"Replaced {name}: {length}, the same as before"
    text = f"Replaced {name}: {length} instead of {count_text(before.size, 'byte')}"
    diff = "" if before.data is None else difference(value.path, before.data, data).text
    rest = rest_hint(context, value.path, applied=True)
    return message(context, [text], diff, rest=rest, limit=_MAX_DIFF)
