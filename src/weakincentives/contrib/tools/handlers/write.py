"""`write_file`: create, replace or append to a file."""

import base64
import binascii
from dataclasses import dataclass

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.editing.match import excerpt
from weakincentives.contrib.tools.editing.sanitize import find_placeholder, is_placeholder
from weakincentives.contrib.tools.handlers import errors, render
from weakincentives.contrib.tools.handlers.edit import Changes, decode_text
from weakincentives.contrib.tools.requests import WriteFileParams
from weakincentives.contrib.tools.results import WriteFileResult
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Filesystem, WriteMode
from weakincentives.prompt import ToolResult

_MAX_COMPARED = 1024 * 1024  # bytes of the largest old file that is compared
_MAX_DIFF = 3_000  # characters; short, because the model has just sent the new text


@dataclass(frozen=True, slots=True)
class _OldFile:
    """The file before the write; `data` is None if it is not compared."""

    size: int
    data: bytes | None
    lacks_final_newline: bool


def write_file(
    request: WriteFileParams, context: HandlerContext, *, expected: bytes | None = None
) -> ToolResult[WriteFileResult]:
    """Write a file, or append to it; with `expected`, replace it only if these are its bytes."""
    fs, path = context.filesystem, context.resolve_new_path(request.file_path)
    errors.ensure_writable(context, path)
    if not path:
        raise errors.is_directory_error(context, path)
    as_bytes = request.encoding == "base64"
    data = _decode_content(request)
    length, unit = (len(data), "bytes") if as_bytes else (len(request.content), "characters")
    errors.ensure_within_limit(context, path, length, unit=unit)
    with errors.explain_errors(context, path):
        before = _read_old(fs, path, request.mode)
        if before is not None and request.mode == "overwrite" and not as_bytes:
            _check_placeholders(context, request.content, path)
        if expected is not None and before is not None:
            Changes(fs).replace(path, data, expected)
        elif as_bytes:
            fs.write_bytes(path, data, mode=request.mode)
        else:
            fs.write(path, request.content, mode=request.mode)
    size = fs.stat(path).size_bytes
    value = WriteFileResult(path, request.mode, before is None, len(data), size)
    written = render.format_count(len(data), "byte")
    if not as_bytes:
        written = f"{render.format_count(render.count_lines(data), 'line')}, {written}"
    text = _render_write(value, written, data, before, context)
    return ToolResult(text, value, exclude_value_from_context=True)


def _decode_content(request: WriteFileParams) -> bytes:
    if request.encoding != "base64":
        errors.ensure_encodable(request.content)
        return request.content.encode()
    try:
        return base64.b64decode("".join(request.content.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ToolValidationError(
            f"Content is not valid base64: {error}; nothing was written"
        ) from None


def _check_placeholders(context: HandlerContext, content: str, path: str) -> None:
    """Reject content with a placeholder line in the place of existing text."""
    lines = content.split("\n")
    if not any(map(is_placeholder, lines)):
        return  # spares reading what may be a large file
    old = decode_text(context.filesystem.read_bytes(path).content)
    line = find_placeholder(old.split("\n"), lines)
    if line is not None:
        raise ToolValidationError(
            f"Content has a placeholder instead of text: {excerpt(line.strip())}; the file"
            " was not replaced. Send the complete content"
            + render.hint(", or edit part of the file with", errors.edit_tool_name(context))
        )


def _read_old(fs: Filesystem, path: str, mode: WriteMode) -> _OldFile | None:
    """Return the file before the write; None if there is none."""
    if not fs.exists(path):
        return None
    found = fs.stat(path)
    if not found.is_file:
        return None  # the write will fail
    size = found.size_bytes
    last = fs.read_bytes(path, offset=size - 1, limit=1).content if size else b"\n"
    compared = mode == "overwrite" and size <= _MAX_COMPARED
    return _OldFile(size, fs.read_bytes(path).content if compared else None, last != b"\n")


def _render_write(
    value: WriteFileResult,
    length: str,
    data: bytes,
    before: _OldFile | None,
    context: HandlerContext,
) -> str:
    name = render.format_path(value.path)
    if before is None:
        return f"Created {name}: {length}"
    if value.mode == "append":
        text = f"Appended {length} to {name}: {render.format_count(value.size_bytes, 'byte')} now"
        if data and before.lacks_final_newline:
            text += "\nThe file had no final newline, so the new text continues its last line"
        return text
    if data == before.data:
        return f"Replaced {name}: {length}, unchanged"
    text = f"Replaced {name}: {length}, was {render.format_count(before.size, 'byte')}"
    diff = "" if before.data is None else render.make_diff(value.path, before.data, data).text
    return render.render_change(context, [text], diff, path=value.path, limit=_MAX_DIFF)
