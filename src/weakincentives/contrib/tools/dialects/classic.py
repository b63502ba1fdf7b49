"""The `classic` dialect: four tools with strict paths, their schemas and their result values.

Paths are relative, without `..`, and ASCII unless the settings allow other names; bytes are
encoded as base64.
"""

import base64
import binascii
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from weakincentives.contrib.tools.context import HandlerContext, ToolSpec
from weakincentives.contrib.tools.dialects.shared import DELETE_DESCRIPTION
from weakincentives.contrib.tools.file_projection import VfsFile, VirtualFileSystem, WorkspacePath
from weakincentives.contrib.tools.requests import (
    LsParams,
    ReadFileParams,
    RmParams,
    WriteFileParams,
)
from weakincentives.contrib.tools.results import LsResult, ReadFileResult, WriteFileResult
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import LimitExceededError, VfsPath, WriteMode
from weakincentives.filesystem.base import SNIFF_LENGTH, is_binary
from weakincentives.prompt import ToolResult
from weakincentives.serde import encode

ContentEncoding = Literal["utf-8", "binary"]


class _RelativePath:
    """Parameters with a path that is relative, without `..`."""

    __slots__ = ()
    path: Any

    def __post_init__(self) -> None:
        """Check the path."""
        if self.path is not None:
            object.__setattr__(self, "path", _parse_relative(self.path))


@dataclass(frozen=True, slots=True)
class ListDirectory(_RelativePath):
    """List a directory.

    Args:
        path: The directory; the workspace root if omitted.
        offset: The number of entries to skip; counts from 0. For the rest of a long listing.
    """

    path: VfsPath | str | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class ReadFile(_RelativePath):
    """Read a file.

    Args:
        path: The file.
        offset: The number of lines (in binary files: bytes) to skip; counts from 0.
        limit: The number of lines (or bytes) to return.
    """

    path: VfsPath | str
    offset: int = 0
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class WriteFileCall(_RelativePath):
    """Write a file.

    Args:
        path: The file; missing parent directories are created.
        content: The text, or base64 if encoding is "binary".
        mode: "create" fails if the file exists, "overwrite" replaces it, "append" adds to its
            end.
        encoding: "binary" if content is base64-encoded bytes.
    """

    path: VfsPath | str
    content: str
    mode: WriteMode = "create"
    encoding: ContentEncoding = "utf-8"


@dataclass(frozen=True, slots=True)
class DeleteFile(_RelativePath):
    """Delete a file, or a directory with everything in it.

    Args:
        path: The file or directory.
    """

    path: VfsPath | str

    def render(self) -> str:
        """Return a line that says what was removed."""
        return f"removed {self.path}"


@dataclass(frozen=True, slots=True)
class WriteFile:
    """The file that `write_file` wrote, its result; a program may also pass one as a call."""

    path: VfsPath
    content: bytes
    mode: WriteMode = "create"
    encoding: str | None = "utf-8"

    def render(self) -> str:
        """Return a line that says what was written."""
        return f"{self.path}: {len(self.content)} bytes ({self.mode}, {self.encoding})"


@dataclass(frozen=True, slots=True)
class FileReadResult:
    """The metadata of a file, and the bytes that were read."""

    file: VfsFile
    content: bytes

    def render(self) -> str:
        """Return the metadata, then the text, or the bytes as base64."""
        file = self.file
        head = f"{file.path} ({file.encoding}, {file.size_bytes} bytes, version {file.version})"
        if file.encoding == "binary":
            return f"{head}\n{base64.b64encode(self.content).decode()}"
        return f"{head}\n{self.content.decode(errors='replace')}"


class DirectorySummary(dict[str, object]):
    """A directory listing for JSON: `path`, `directories`, `files`, `truncated`."""

    def render(self) -> str:
        """Return the summary as JSON."""
        return encode(dict(self)).decode()


def _decode_read(params: ReadFile, context: HandlerContext) -> ReadFileParams:
    path = _checked_path(params.path, context)
    view = "base64" if _is_binary(context, path) else "auto"
    return ReadFileParams(path, params.offset, params.limit, view=view)


def _encode_read(request: ReadFileParams) -> ReadFile | None:
    if request.view != "auto" or not _is_relative(request.file_path):
        return None
    offset = request.offset if request.start_line is None else request.start_line - 1
    return ReadFile(request.file_path, offset, request.limit)


def _encode_list(request: LsParams) -> ListDirectory | None:
    if request.exclude or not _is_relative(request.path):
        return None
    return ListDirectory(None if request.path == "." else request.path, request.offset)


def _decode_list(params: ListDirectory, context: HandlerContext) -> LsParams:
    path = "" if params.path is None else _checked_path(params.path, context)
    return LsParams(path or ".", offset=params.offset)


def _decode_write(params: WriteFileCall | WriteFile, context: HandlerContext) -> WriteFileParams:
    path = _checked_path(params.path, context)
    encoding = "base64" if params.encoding == "binary" else "utf-8"
    if isinstance(params.content, str):
        return WriteFileParams(path, params.content, params.mode, encoding)
    if params.encoding in ("utf-8", None):
        with suppress(UnicodeDecodeError):
            return WriteFileParams(path, params.content.decode(), params.mode)
    return WriteFileParams(path, base64.b64encode(params.content).decode(), params.mode, "base64")


def _encode_write(request: WriteFileParams) -> WriteFileCall | None:
    if not _is_relative(request.file_path):
        return None
    encoding = "binary" if request.encoding == "base64" else "utf-8"
    return WriteFileCall(request.file_path, request.content, request.mode, encoding)


def _is_relative(path: str) -> bool:
    """Return whether a path is relative, without `..`."""
    try:
        _parse_relative(path)
    except ValueError:
        return False
    return True


def _render_list(_: LsParams, result: ToolResult[LsResult], __: object) -> ToolResult[Any]:
    if result.value is None:
        return result
    listed = result.value
    summary = DirectorySummary(
        path=listed.path,
        directories=[each.name for each in listed.entries if each.is_directory],
        files=[each.name for each in listed.entries if not each.is_directory],
        truncated=listed.truncated,
    )
    return replace(result, value=summary)


def _render_read(
    request: ReadFileParams, result: ToolResult[ReadFileResult], context: HandlerContext
) -> ToolResult[Any]:
    """Return the result with the page as a `FileReadResult`, and a note on the file."""
    if result.value is None:
        return result
    path = context.resolve_path(request.file_path)
    file = _file_metadata(path, result.value, context)
    content = _read_bytes(request, result.value, context)
    note = f"\n[{file.encoding}, {file.size_bytes} bytes, version {file.version}]"
    fits = len(result.message) + len(note) <= context.settings.budget
    message = result.message + note if fits else result.message
    return replace(result, message=message, value=FileReadResult(file, content))


def _render_write(
    request: WriteFileParams, result: ToolResult[WriteFileResult], context: HandlerContext
) -> ToolResult[Any]:
    if result.value is None:
        return result
    path = WorkspacePath(tuple(context.resolve_path(request.file_path).split("/")))
    if request.encoding == "base64":
        value = WriteFile(path, _decode_base64(request.content), request.mode, "binary")
    else:
        value = WriteFile(path, request.content.encode(), request.mode)
    return replace(result, value=value)


def _render_delete(
    request: RmParams, result: ToolResult[Any], context: HandlerContext
) -> ToolResult[Any]:
    return replace(result, value=DeleteFile(context.resolve_path(request.path)))


def _parse_relative(path: VfsPath | str) -> VfsPath:
    if isinstance(path, VfsPath):
        return path
    if path.startswith("/"):
        return VfsPath.parse(path)  # raises, because the path is absolute
    segments = tuple(each for each in path.split("/") if each not in ("", "."))
    return VfsPath(segments) if ".." in segments else WorkspacePath(segments)


def _checked_path(path: VfsPath | str, context: HandlerContext) -> str:
    """Return a path as text; check it if the settings ask for ASCII names."""
    segments = _parse_relative(path).segments
    if context.settings.ascii_paths:
        try:
            VfsPath(segments)
        except ValueError as error:
            raise ToolValidationError(str(error)) from error
    return "/".join(segments)


def _is_binary(context: HandlerContext, path: str) -> bool:
    try:
        return is_binary(context.filesystem.read_bytes(path, limit=SNIFF_LENGTH).content)
    except (OSError, ValueError):
        return False  # the read itself reports what is wrong


def _file_metadata(path: str, found: ReadFileResult, context: HandlerContext) -> VfsFile:
    """Return the metadata of a file from the session, or else from the filesystem."""
    known = context.tool_context.session[VirtualFileSystem].latest()
    file = None if known is None else known.file(path)
    if file is not None:
        return file
    stat = context.filesystem.stat(path)
    made = stat.created_at or stat.modified_at or datetime.now(UTC)
    encoding = "binary" if found.encoding == "binary" else "utf-8"
    return VfsFile(
        WorkspacePath(tuple(path.split("/"))),
        encoding,
        found.size_bytes,
        1,
        made,
        stat.modified_at or made,
    )


def _read_bytes(request: ReadFileParams, found: ReadFileResult, context: HandlerContext) -> bytes:
    if found.offset == 0 and found.next_offset is None:
        with suppress(LimitExceededError):  # then the page must do
            return context.filesystem.read_bytes(context.resolve_path(request.file_path)).content
    if request.view == "base64":
        return _decode_base64(found.content)
    return found.content.encode("utf-8", "surrogateescape")


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error as error:
        raise ToolValidationError(f"Content is not base64: {error}") from error


_LIST = """\
List one directory: its subdirectories and files."""
_READ = """\
Read a file: up to 2000 lines per call, each with its line number; binary files as base64. For the \
rest of a long file, set offset."""
_WRITE = """\
Create a file; replace or extend one with mode. To change part of a file, read it with \
$ReadFileParams, then write the complete text with mode "overwrite".
At most 48000 characters, or bytes, per call."""
_PATH = {"file_path": "path"}
CLASSIC: tuple[ToolSpec[Any], ...] = (
    ToolSpec(
        name="list_directory",
        description=_LIST,
        params=ListDirectory,
        requests=(LsParams,),
        decode=_decode_list,
        encode=_encode_list,
        aliases={"dir_path": "path"},
        render=_render_list,
        read_only=True,
    ),
    ToolSpec(
        name="read_file",
        description=_READ,
        params=ReadFile,
        requests=(ReadFileParams,),
        decode=_decode_read,
        encode=_encode_read,
        aliases=_PATH,
        render=_render_read,
        read_only=True,
    ),
    ToolSpec(
        name="write_file",
        description=_WRITE,
        params=WriteFileCall,
        requests=(WriteFileParams,),
        decode=_decode_write,
        encode=_encode_write,
        aliases=_PATH,
        render=_render_write,
    ),
    ToolSpec(
        name="delete_file",
        description=DELETE_DESCRIPTION,
        params=DeleteFile,
        requests=(RmParams,),
        decode=lambda params, context: RmParams(_checked_path(params.path, context)),
        encode=lambda request: DeleteFile(request.path) if _is_relative(request.path) else None,
        aliases=_PATH,
        render=_render_delete,
    ),
)
