"""Moving what is there, and making directories."""

from contextlib import suppress
from dataclasses import dataclass

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers.changes import all_or_none
from weakincentives.contrib.tools.handlers.errors import (
    ensure_not_read_only,
    explain,
    explain_errors,
    present,
)
from weakincentives.contrib.tools.handlers.render import count_text, format_path, hint
from weakincentives.contrib.tools.requests import MkdirParams, MoveParams, RmParams
from weakincentives.contrib.tools.results import MkdirResult, MoveResult, RmResult
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import FileStat, Filesystem
from weakincentives.prompt import ToolResult


def move(request: MoveParams, context: HandlerContext) -> ToolResult[MoveResult]:
    """Give a file, link or directory another path, where nothing is."""
    source, destination = (
        context.resolve_path(request.source),
        context.resolve_new_path(request.destination),
    )
    if not source:
        raise ToolValidationError("The workspace itself cannot be moved; name what is in it")
    ensure_not_read_only(context, source)
    found = present(context, source)
    if context.filesystem.exists(destination):
        raise _taken(context, destination)
    with explain_errors(context, destination), all_or_none(context.filesystem) as changes:
        changes.move(source, destination)
    slash = "/" if found.is_directory else ""
    text = f"Moved {format_path(source)}{slash} to {format_path(destination)}{slash}"
    return ToolResult(text, MoveResult(source, destination), exclude_value_from_context=True)


def mkdir(request: MkdirParams, context: HandlerContext) -> ToolResult[MkdirResult]:
    """Make a directory, and those on the way to it."""
    path = context.resolve_new_path(request.path)
    ensure_not_read_only(context, path)
    fs = context.filesystem
    created = not fs.exists(path)
    if not created and not fs.stat(path or ".").is_directory:
        raise FileExistsError(
            f"A file is there already, so no directory was made: {format_path(path)!r}"
        )
    with explain_errors(context, path):
        fs.mkdir(path)
    text = f"Made the directory {format_path(path)}/"
    if not created:
        text = f"The directory {format_path(path)}/ is there already; nothing was changed"
    return ToolResult(text, MkdirResult(path or ".", created), exclude_value_from_context=True)


def _taken(context: HandlerContext, path: str) -> FileExistsError:
    text = f"Something is there already, so nothing was moved: {format_path(path)!r}"
    inside = ""
    if context.filesystem.stat(path or ".").is_directory:
        inside = "; to move into a directory, name the path that it is to have there"
    return FileExistsError(
        text + (inside or hint("; remove it first:", explain(context, RmParams(path))))
    )


@dataclass
class _Contents:
    """How much goes with a path; `more` says that it was not counted to the end."""

    files: int = 0
    directories: int = 0
    more: bool = False

    def __str__(self) -> str:
        below = count_text(self.directories, "directory", "directories")
        text = count_text(self.files, "file") + (f", {below}" if self.directories else "")
        return f"more than {text}" if self.more else text


def rm(request: RmParams, context: HandlerContext) -> ToolResult[RmResult]:
    """Remove what is at a path, with everything in it."""
    path = context.resolve_path(request.path)
    if not path:
        raise ToolValidationError(
            f"The workspace itself cannot be removed: {request.path!r}; name what is in it"
        )
    ensure_not_read_only(context, path)
    found = present(context, path)
    contents = _contents(context.filesystem, found)
    context.filesystem.delete(path, recursive=True)
    value = RmResult(path, found.kind, contents.files)
    return ToolResult(_told(found, contents), value, exclude_value_from_context=True)


def _contents(fs: Filesystem, found: FileStat) -> _Contents:
    if not found.is_directory:
        return _Contents(1)
    contents = _Contents()
    pending = [found.path]
    while pending:
        place = pending.pop()
        with suppress(OSError):  # a directory that cannot be read; deleting it says why
            entries = fs.list(place)
            contents.more |= bool(getattr(entries, "truncated", False))
            below = [entry.path for entry in entries if entry.is_directory]
            contents.directories += len(below)
            contents.files += len(entries) - len(below)
            pending += below
    return contents


def _told(found: FileStat, contents: _Contents) -> str:
    name = format_path(found.path)
    if found.is_symlink:
        target = format_path(found.link_target or "")
        return f"Removed the link {name}; what it points to, {target!r}, was not touched"
    if not found.is_directory:
        return f"Removed {name}: {count_text(found.size_bytes, 'byte')}"
    if contents == _Contents():
        return f"Removed {name}/, which was empty"
    return f"Removed {name}/ and everything in it: {contents}"
