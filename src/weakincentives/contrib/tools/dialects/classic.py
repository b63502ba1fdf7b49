"""The calls of the dialect `classic`, which requests they are, and what they return.

Paths are strict: relative, ASCII, without `..`; bytes travel as base64.
"""

import base64
import binascii
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.projection import VfsFile, VirtualFileSystem, WorkspacePath
from weakincentives.contrib.tools.requests import (
    LsParams,
    ReadFileParams,
    RmParams,
    WriteFileParams,
)
from weakincentives.contrib.tools.results import LsResult, ReadFileResult, WriteFileResult
from weakincentives.contrib.tools.spec import ToolSpec
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import LimitExceededError, VfsPath, WriteMode
from weakincentives.filesystem.text import is_binary
from weakincentives.prompt import ToolResult
from weakincentives.serde import encode

ContentEncoding = Literal["utf-8", "binary"]
_SNIFFED = 16_384  # bytes that are read to tell text from anything else; only 8 KiB count


@dataclass(frozen=True, slots=True)
class ListDirectory:
    """List a directory.

    Args:
        path: The directory, relative, without ".."; the top of the workspace if left out.
        offset: How many entries to skip; counts from 0. For the rest of a long listing.
    """

    path: VfsPath | str | None = None
    offset: int = 0

    def __post_init__(self) -> None:
        """Refuse a path that is absolute, not ASCII, or has `..`."""
        if self.path is not None:
            object.__setattr__(self, "path", _strict(self.path))


@dataclass(frozen=True, slots=True)
class ReadFile:
    """Read a file.

    Args:
        path: The file, relative, without "..".
        offset: How many lines (for binary files: bytes) to skip; counts from 0.
        limit: How many lines (or bytes) to return; 2000 lines if left out.
    """

    path: VfsPath | str
    offset: int = 0
    limit: int | None = None

    def __post_init__(self) -> None:
        """Refuse a path that is absolute, not ASCII, or has `..`."""
        object.__setattr__(self, "path", _strict(self.path))


@dataclass(frozen=True, slots=True)
class WriteFileCall:
    """Write a file.

    Args:
        path: The file, relative, without ".."; directories on the way are made.
        content: Its text, or its bytes as base64 if encoding is "binary".
        mode: "create" refuses to replace a file that exists, "overwrite" replaces it,
            "append" adds to its end.
        encoding: "utf-8" for text, "binary" for bytes.
    """

    path: VfsPath | str
    content: str
    mode: WriteMode = "create"
    encoding: ContentEncoding = "utf-8"

    def __post_init__(self) -> None:
        """Refuse a path that is absolute, not ASCII, or has `..`."""
        object.__setattr__(self, "path", _strict(self.path))


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """Remove a file, or a directory with everything in it.

    Args:
        path: What to remove, relative, without "..".
    """

    path: VfsPath | str

    def __post_init__(self) -> None:
        """Refuse a path that is absolute, not ASCII, or has `..`."""
        object.__setattr__(self, "path", _strict(self.path))

    def render(self) -> str:
        """Return what is, or was, removed."""
        return f"removed {self.path}"


@dataclass(frozen=True, slots=True)
class WriteFile:
    """A file that was written: what `write_file` returns to programs."""

    path: VfsPath
    content: bytes
    mode: WriteMode = "create"
    encoding: str | None = "utf-8"

    def render(self) -> str:
        """Return what was written."""
        return f"{self.path}: {len(self.content)} bytes ({self.mode}, {self.encoding})"


@dataclass(frozen=True, slots=True)
class FileReadResult:
    """What is known about a file, and the bytes that were read of it."""

    file: VfsFile
    content: bytes

    def render(self) -> str:
        """Return what is known about the file, and its text, or its bytes as base64."""
        file = self.file
        head = f"{file.path} ({file.encoding}, {file.size_bytes} bytes, version {file.version})"
        if file.encoding == "binary":
            return f"{head}\n{base64.b64encode(self.content).decode()}"
        return f"{head}\n{self.content.decode(errors='replace')}"


class DirectorySummary(dict[str, object]):
    """What is in a directory, as JSON has it: `path`, `directories`, `files`, `truncated`."""

    def render(self) -> str:
        """Return the summary as JSON."""
        return encode(dict(self)).decode()


def read(params: ReadFile, context: HandlerContext) -> ReadFileParams:
    """Return the request for a page of text, or for bytes as base64."""
    view = "base64" if _is_binary(context, str(params.path)) else "auto"
    return ReadFileParams(str(params.path), params.offset, params.limit, view=view)


def say_read(request: ReadFileParams) -> ReadFile | None:
    """Return the call for a page of a file; how it is shown is not for the call to say."""
    if request.view != "auto" or not is_strict(request.file_path):
        return None
    offset = request.offset if request.start_line is None else request.start_line - 1
    return ReadFile(request.file_path, offset, request.limit)


def say_list(request: LsParams) -> ListDirectory | None:
    """Return the call that lists a directory."""
    if request.exclude or not is_strict(request.path):
        return None
    return ListDirectory(None if request.path == "." else request.path, request.offset)


def write(params: WriteFileCall, context: object) -> WriteFileParams:
    """Return the request to write a text, or bytes."""
    encoding = "base64" if params.encoding == "binary" else "utf-8"
    return WriteFileParams(str(params.path), params.content, params.mode, encoding)


def say_write(request: WriteFileParams) -> WriteFileCall | None:
    """Return the call that writes a file."""
    if not is_strict(request.file_path):
        return None
    encoding = "binary" if request.encoding == "base64" else "utf-8"
    return WriteFileCall(request.file_path, request.content, request.mode, encoding)


def say_delete(request: RmParams) -> DeleteFile | None:
    """Return the call that removes a file or directory."""
    return DeleteFile(request.path) if is_strict(request.path) else None


def is_strict(path: str) -> bool:
    """Return whether a path is one that the dialect can say."""
    try:
        _strict(path)
    except ValueError:
        return False
    return True


def show_list(request: LsParams, result: ToolResult[LsResult], context: object) -> ToolResult[Any]:
    """Return a listing with a summary that JSON can hold."""
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


def show_read(
    request: ReadFileParams, result: ToolResult[ReadFileResult], context: HandlerContext
) -> ToolResult[Any]:
    """Return a page with what is known about its file."""
    if result.value is None:
        return result
    path = context.resolve_path(request.file_path)
    file = _file(path, result.value, context)
    content = _bytes(request, result.value, context)
    note = f"\n[{file.encoding}, {file.size_bytes} bytes, version {file.version}]"
    fits = len(result.message) + len(note) <= context.settings.budget
    message = result.message + note if fits else result.message
    return replace(result, message=message, value=FileReadResult(file, content))


def show_write(
    request: WriteFileParams, result: ToolResult[WriteFileResult], context: HandlerContext
) -> ToolResult[Any]:
    """Return what was written."""
    if result.value is None:
        return result
    path = VfsPath.parse(context.resolve_path(request.file_path))
    if request.encoding == "base64":
        value = WriteFile(path, _decoded(request.content), request.mode, "binary")
    else:
        value = WriteFile(path, request.content.encode(), request.mode)
    return replace(result, value=value)


def show_delete(
    request: RmParams, result: ToolResult[Any], context: HandlerContext
) -> ToolResult[Any]:
    """Return what was removed."""
    return replace(result, value=DeleteFile(context.resolve_path(request.path)))


def _strict(path: VfsPath | str) -> VfsPath:
    if isinstance(path, VfsPath):
        return path
    if path.startswith("/"):
        return VfsPath.parse(path)  # which says that it is absolute
    return VfsPath(tuple(each for each in path.split("/") if each not in ("", ".")))


def _is_binary(context: HandlerContext, path: str) -> bool:
    try:
        return is_binary(context.filesystem.read_bytes(path, limit=_SNIFFED).content)
    except (OSError, ValueError):
        return False  # the tool that reads says what is wrong with it


def _file(path: str, found: ReadFileResult, context: HandlerContext) -> VfsFile:
    """Return what the session knows about a file, or else what the filesystem does."""
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


def _bytes(request: ReadFileParams, found: ReadFileResult, context: HandlerContext) -> bytes:
    if found.offset == 0 and found.next_offset is None:
        with suppress(LimitExceededError):  # then what is shown must do
            return context.filesystem.read_bytes(context.resolve_path(request.file_path)).content
    if request.view == "base64":
        return _decoded(found.content)
    return found.content.encode("utf-8", "surrogateescape")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error as error:
        raise ToolValidationError(f"Content is not base64: {error}") from error


_LIST = """\
List a directory: its directories and files, without going into directories.
Use it to look around before you read or write, one directory at a time."""
_READ = """\
Read a file. Text is returned with the number of each line before it, which counts from 1, 2000 \
lines at a time; what is binary is returned as base64.
offset counts from 0 and leads to the rest of a long file."""
_WRITE = """\
Create a file with the given content, and the directories on the way to it.
A file that exists is left alone unless mode is "overwrite" (replace it) or "append" (add to its \
end): to change a file, use $ReadFileParams, then write all of it with mode "overwrite".
At most 48000 characters, or bytes, in one call. Keep binary files small."""
_DELETE = """\
Remove a file, or a directory with everything in it; nothing beside it is touched."""
_PATH = {"file_path": "path"}
CLASSIC: tuple[ToolSpec[Any], ...] = (
    ToolSpec(
        name="list_directory",
        description=_LIST,
        params=ListDirectory,
        requests=(LsParams,),
        decode=lambda params, context: LsParams(
            str(params.path or "") or ".", offset=params.offset
        ),
        encode=say_list,
        aliases={"dir_path": "path"},
        render=show_list,
        read_only=True,
    ),
    ToolSpec(
        name="read_file",
        description=_READ,
        params=ReadFile,
        requests=(ReadFileParams,),
        decode=read,
        encode=say_read,
        aliases=_PATH,
        render=show_read,
        read_only=True,
    ),
    ToolSpec(
        name="write_file",
        description=_WRITE,
        params=WriteFileCall,
        requests=(WriteFileParams,),
        decode=write,
        encode=say_write,
        aliases=_PATH,
        render=show_write,
    ),
    ToolSpec(
        name="delete_file",
        description=_DELETE,
        params=DeleteFile,
        requests=(RmParams,),
        decode=lambda params, context: RmParams(str(params.path)),
        encode=say_delete,
        aliases=_PATH,
        render=show_delete,
    ),
)
