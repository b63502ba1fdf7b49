"""`move`, `mkdir` and `rm`."""

from contextlib import suppress
from dataclasses import dataclass

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers import errors
from weakincentives.contrib.tools.handlers.edit import all_or_none
from weakincentives.contrib.tools.handlers.render import format_count, format_path, hint
from weakincentives.contrib.tools.requests import MkdirParams, MoveParams, RmParams
from weakincentives.contrib.tools.results import MkdirResult, MoveResult, RmResult
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import FileStat, Filesystem
from weakincentives.prompt import ToolResult


def move(request: MoveParams, context: HandlerContext) -> ToolResult[MoveResult]:
    """Move a file, link or directory to a path that does not exist yet."""
    source, destination = (
        context.resolve_path(request.source),
        context.resolve_new_path(request.destination),
    )
    if not source:
        raise ToolValidationError(
            "The workspace root cannot be moved; name a file or directory in it"
        )
    errors.ensure_writable(context, source)
    found = errors.stat_path(context, source)
    if context.filesystem.exists(destination):
        raise _destination_error(context, destination)
    with errors.explain_errors(context, destination), all_or_none(context.filesystem) as changes:
        changes.move(source, destination)
    slash = "/" if found.is_directory else ""
    text = f"Moved {format_path(source)}{slash} to {format_path(destination)}{slash}"
    return ToolResult(text, MoveResult(source, destination), exclude_value_from_context=True)


def mkdir(request: MkdirParams, context: HandlerContext) -> ToolResult[MkdirResult]:
    """Create a directory and its missing parents."""
    path = context.resolve_new_path(request.path)
    errors.ensure_writable(context, path)
    fs = context.filesystem
    created = not fs.exists(path)
    if not created and not fs.stat(path or ".").is_directory:
        raise FileExistsError(
            f"Cannot create the directory: {format_path(path)!r} is an existing file"
        )
    with errors.explain_errors(context, path):
        fs.mkdir(path)
    text = f"Created directory {format_path(path)}/"
    if not created:
        text = f"Directory {format_path(path)}/ already exists; nothing was changed"
    return ToolResult(text, MkdirResult(path or ".", created), exclude_value_from_context=True)


def _destination_error(context: HandlerContext, path: str) -> FileExistsError:
    text = f"Destination already exists, nothing was moved: {format_path(path)!r}"
    inside = ""
    if context.filesystem.stat(path or ".").is_directory:
        inside = "; to move into this directory, give the full new path"
    return FileExistsError(
        text
        + (
            inside
            or hint("; to remove it first:", errors.format_supported_call(context, RmParams(path)))
        )
    )


@dataclass
class _Contents:
    """The number of files and directories below a path; `more` if the count is incomplete."""

    files: int = 0
    directories: int = 0
    more: bool = False

    def __str__(self) -> str:
        below = format_count(self.directories, "directory", "directories")
        text = format_count(self.files, "file") + (f", {below}" if self.directories else "")
        return f"more than {text}" if self.more else text


def rm(request: RmParams, context: HandlerContext) -> ToolResult[RmResult]:
    """Remove a file, or a directory with everything in it."""
    path = context.resolve_path(request.path)
    if not path:
        raise ToolValidationError(
            f"The workspace root cannot be removed: {request.path!r};"
            " name a file or directory in it"
        )
    errors.ensure_writable(context, path)
    found = errors.stat_path(context, path)
    contents = _count_contents(context.filesystem, found)
    context.filesystem.delete(path, recursive=True)
    value = RmResult(path, found.kind, contents.files)
    return ToolResult(_render_removal(found, contents), value, exclude_value_from_context=True)


def _count_contents(fs: Filesystem, found: FileStat) -> _Contents:
    if not found.is_directory:
        return _Contents(1)
    contents = _Contents()
    pending = [found.path]
    while pending:
        place = pending.pop()
        with suppress(OSError):  # unreadable directory; deleting it reports why
            entries = fs.list(place)
            contents.more |= bool(getattr(entries, "truncated", False))
            below = [entry.path for entry in entries if entry.is_directory]
            contents.directories += len(below)
            contents.files += len(entries) - len(below)
            pending += below
    return contents


def _render_removal(found: FileStat, contents: _Contents) -> str:
    name = format_path(found.path)
    if found.is_symlink:
        target = format_path(found.link_target or "")
        return f"Removed the link {name}; its target {target!r} was not touched"
    if not found.is_directory:
        return f"Removed {name}: {format_count(found.size_bytes, 'byte')}"
    if contents == _Contents():
        return f"Removed the empty directory {name}/"
    return f"Removed {name}/ and everything in it: {contents}"
