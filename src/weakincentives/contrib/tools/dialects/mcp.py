"""The calls of the dialect `mcp`, and which requests they are."""

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.dialects.shared import (
    EDIT_ALIASES,
    fields_as_they_are,
    first_line,
    identity,
    is_page,
    is_whole_text,
    lines_before,
    says_only,
)
from weakincentives.contrib.tools.handlers.render import format_path, line_start
from weakincentives.contrib.tools.requests import (
    EditFileParams,
    GlobParams,
    LsParams,
    MkdirParams,
    MoveParams,
    ReadFileParams,
    ReadManyParams,
    RmParams,
    StatParams,
    TextEdit,
    TreeParams,
    WorkspaceParams,
    WriteFileParams,
)
from weakincentives.contrib.tools.spec import ToolSpec
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import TimeLimitError

_PICTURES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp"})


@dataclass(frozen=True, slots=True)
class ReadTextCall:
    """Read a text file.

    Args:
        path: The file.
        head: Return only the first lines, this many.
        tail: Return only the last lines, this many.
        start_line: The line to begin with, counted from 1; for the rest of a long file.
    """

    path: str
    head: int | None = None
    tail: int | None = None
    start_line: int | None = None


@dataclass(frozen=True, slots=True)
class PathCall:
    """Name a file or directory.

    Args:
        path: The file or directory.
    """

    path: str


@dataclass(frozen=True, slots=True)
class PathsCall:
    """Name files.

    Args:
        paths: The files.
    """

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WriteCall:
    """Write a whole file.

    Args:
        path: The file; directories on the way are made.
        content: Its text.
    """

    path: str
    content: str


@dataclass(frozen=True, slots=True)
class Replacement:
    """One replacement.

    Args:
        old_string: The text to replace, as it is in the file; it must be there exactly once.
        new_string: The text to put in its place.
    """

    old_string: str = field(metadata={"name": "oldText"})
    new_string: str = field(metadata={"name": "newText"})


@dataclass(frozen=True, slots=True)
class EditCall:
    """Replace text in a file.

    Args:
        path: The file.
        edits: The replacements, made in this order, all or none.
        dry_run: Show the difference and change nothing.
    """

    path: str
    edits: tuple[Replacement, ...]
    dry_run: bool = field(default=False, metadata={"name": "dryRun"})


@dataclass(frozen=True, slots=True)
class TreeCall:
    """Show a directory and what is below it.

    Args:
        path: The directory; "." is the top of the workspace.
        exclude: Patterns of names to leave out.
    """

    path: str = "."
    exclude: tuple[str, ...] = field(default=(), metadata={"name": "excludePatterns"})


@dataclass(frozen=True, slots=True)
class SearchCall:
    """Find files by name.

    Args:
        path: The directory to look in; "." is the top of the workspace.
        pattern: For example "**/*.py"; "*" stays in one directory, "**" spans any number.
        exclude: Patterns of paths to leave out.
    """

    path: str
    pattern: str
    exclude: tuple[str, ...] = field(default=(), metadata={"name": "excludePatterns"})


def read_text(params: ReadTextCall, context: HandlerContext) -> ReadFileParams:
    """Return the request for a file, its first lines, its last, or what follows a line.

    Raises:
        ToolValidationError: Both ends are asked for, or the end of a file that is too large.
    """
    if params.tail is None:
        return ReadFileParams(params.path, lines_before(params.start_line), params.head)
    if params.head is not None or params.start_line is not None:
        raise ToolValidationError("tail cannot be given together with head or start_line")
    return ReadFileParams(params.path, max(_lines(context, params.path) - params.tail, 0))


def say_read_text(request: ReadFileParams) -> ReadTextCall | None:
    """Return the call for a page of a file."""
    if not is_page(request):
        return None
    return ReadTextCall(request.file_path, request.limit, start_line=first_line(request))


def read_media(params: PathCall, context: object) -> ReadFileParams:
    """Return the request for a picture, or for the bytes of anything else as base64."""
    return ReadFileParams(params.path, view="auto" if _is_picture(params.path) else "base64")


def say_read_media(request: ReadFileParams) -> PathCall | None:
    """Return the call for the bytes of a file as base64; a picture is shown by it instead."""
    whole = says_only(request, "file_path", "view") and request.view == "base64"
    return PathCall(request.file_path) if whole and not _is_picture(request.file_path) else None


def write(params: WriteCall, context: object) -> WriteFileParams:
    """Return the request to write a file, whether it exists or not."""
    return WriteFileParams(params.path, params.content, "overwrite")


def say_write(request: WriteFileParams) -> WriteCall | None:
    """Return the call that writes a whole text."""
    return WriteCall(request.file_path, request.content) if is_whole_text(request) else None


def edit(params: EditCall, context: object) -> EditFileParams:
    """Return the request for several replacements."""
    edits = tuple(TextEdit(each.old_string, each.new_string) for each in params.edits)
    return EditFileParams(params.path, edits=edits, dry_run=params.dry_run)


def say_edit(request: EditFileParams) -> EditCall | None:
    """Return the call for replacements of which each has one place."""
    edits = request.edits
    if request.old_string is not None and request.new_string is not None:
        edits = (TextEdit(request.old_string, request.new_string, request.replace_all),)
    if not edits or any(each.replace_all for each in edits):
        return None
    said = tuple(Replacement(each.old_string, each.new_string) for each in edits)
    return EditCall(request.file_path, said, request.dry_run)


def search(params: SearchCall, context: object) -> GlobParams:
    """Return the request for files by name; as the reference server, it knows no ignore files."""
    return GlobParams(params.pattern, params.path, include_ignored=True, exclude=params.exclude)


def say_search(request: GlobParams) -> SearchCall | None:
    """Return the call that finds files by name."""
    if request.head_limit is not None:
        return None
    return SearchCall(request.path, request.pattern, request.exclude)


def say_tree(request: TreeParams) -> TreeCall | None:
    """Return the call that shows all that is below a directory."""
    if not says_only(request, "path", "exclude"):
        return None
    return TreeCall(request.path, request.exclude)


def _is_picture(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in _PICTURES


def _lines(context: HandlerContext, path: str) -> int:
    """Return how many lines a file has; 0 if it cannot be read."""
    key = context.resolve_path(path)
    try:
        size = context.filesystem.stat(key or ".").size_bytes
        place = line_start(context.filesystem, key or ".", 0, size)
    except TimeLimitError:
        raise
    except (OSError, ValueError):
        return 0  # the tool that reads says what is wrong with it
    if not place.total_is_exact:
        raise ToolValidationError(
            f"The last lines of {format_path(key)!r} cannot be found: it has {size:,}"
            " bytes, which is"
            " too much to count its lines; read it from a line on with start_line"
        )
    return place.total_lines


_READ = """\
Read a file as text, 2000 lines at a time, each with its number before it; the numbers count \
from 1.
head returns only the first lines, tail only the last ones; start_line goes on with the rest of a \
long file."""
_MEDIA = """\
Read a picture, so that you can look at it where you can see, or the bytes of any other file as \
base64."""
_MANY = """\
Read several files at once; one that cannot be read does not keep the others back."""
_WRITE = """\
Write a file; one that exists is replaced as a whole. At most 48000 characters in one call.
$EditFileParams changes a part of a file."""
_EDIT = """\
Replace text in a file: each oldText, which must be in it exactly once, by its newText; all of \
them, or none. The answer is a diff.
Quote oldText as the file has it, without line numbers, with enough lines around it. Small slips \
in white space and quotation marks are forgiven where the place is clear, and told.
dryRun shows the difference and changes nothing."""
_MKDIR = """\
Make a directory, and those on the way to it; one that exists is fine."""
_LIST = """\
List a directory: directories first, with a slash, then files with their sizes. It does not go \
into directories.
$TreeParams does."""
_SIZES = """\
List a directory: directories first, with a slash, then files with their sizes."""
_TREE = """\
Show a directory and everything below it as a tree. Leave out what is large and does not matter \
with excludePatterns."""
_MOVE = """\
Move or rename a file or directory; what is at the destination is never replaced."""
_SEARCH = """\
Find files by a pattern of their path: "*.md" finds them in the directory itself, "**/*.md" at any \
depth; a pattern that ends in "/" finds directories. It does not look at what is in files."""
_INFO = """\
Say what is at a path: its kind, size, dates and permissions."""
_ALLOWED = """\
Say which files can be reached, and how paths are written."""
_DELETE = """\
Remove a file, or a directory with everything in it."""
_PATH = {"file_path": "path"}
_TEXTS = {name: field for name, field in EDIT_ALIASES.items() if not name.endswith("Text")}
_READING: tuple[ToolSpec[Any], ...] = (
    ToolSpec(
        name="read_text_file",
        description=_READ,
        params=ReadTextCall,
        requests=(ReadFileParams,),
        decode=read_text,
        encode=say_read_text,
        aliases=_PATH,
        read_only=True,
    ),
    ToolSpec(
        name="read_media_file",
        description=_MEDIA,
        params=PathCall,
        requests=(ReadFileParams,),
        decode=read_media,
        encode=say_read_media,
        aliases=_PATH,
        read_only=True,
    ),
    ToolSpec(
        name="read_multiple_files",
        description=_MANY,
        params=PathsCall,
        requests=(ReadManyParams,),
        decode=lambda params, context: ReadManyParams(params.paths),
        encode=lambda request: PathsCall(request.file_paths),
        read_only=True,
    ),
)
_WRITING: tuple[ToolSpec[Any], ...] = (
    ToolSpec(
        name="write_file",
        description=_WRITE,
        params=WriteCall,
        requests=(WriteFileParams,),
        decode=write,
        encode=say_write,
        aliases=_PATH,
    ),
    ToolSpec(
        name="edit_file",
        description=_EDIT,
        params=EditCall,
        requests=(EditFileParams,),
        decode=edit,
        encode=say_edit,
        aliases={**_PATH, **_TEXTS},
    ),
    ToolSpec(
        name="create_directory",
        description=_MKDIR,
        params=PathCall,
        requests=(MkdirParams,),
        decode=lambda params, context: MkdirParams(params.path),
        encode=lambda request: PathCall(request.path),
    ),
    ToolSpec(
        name="move_file",
        description=_MOVE,
        params=MoveParams,
        requests=(MoveParams,),
        decode=identity,
        encode=fields_as_they_are,
    ),
    ToolSpec(
        name="delete_file",
        description=_DELETE,
        params=PathCall,
        requests=(RmParams,),
        decode=lambda params, context: RmParams(params.path),
        encode=lambda request: PathCall(request.path),
        aliases=_PATH,
    ),
)
_FINDING: tuple[ToolSpec[Any], ...] = (
    ToolSpec(
        name="list_directory",
        description=_LIST,
        params=PathCall,
        requests=(LsParams,),
        decode=lambda params, context: LsParams(params.path),
        encode=lambda request: PathCall(request.path) if says_only(request, "path") else None,
        read_only=True,
    ),
    ToolSpec(
        name="list_directory_with_sizes",
        description=_SIZES,
        params=PathCall,
        requests=(LsParams,),
        decode=lambda params, context: LsParams(params.path),
        encode=lambda request: PathCall(request.path) if says_only(request, "path") else None,
        read_only=True,
    ),
    ToolSpec(
        name="directory_tree",
        description=_TREE,
        params=TreeCall,
        requests=(TreeParams,),
        decode=lambda params, context: TreeParams(params.path, params.exclude),
        encode=say_tree,
        read_only=True,
    ),
    ToolSpec(
        name="search_files",
        description=_SEARCH,
        params=SearchCall,
        requests=(GlobParams,),
        decode=search,
        encode=say_search,
        read_only=True,
    ),
    ToolSpec(
        name="get_file_info",
        description=_INFO,
        params=PathCall,
        requests=(StatParams,),
        decode=lambda params, context: StatParams(params.path),
        encode=lambda request: PathCall(request.path),
        read_only=True,
    ),
    ToolSpec(
        name="list_allowed_directories",
        description=_ALLOWED,
        params=WorkspaceParams,
        requests=(WorkspaceParams,),
        decode=identity,
        encode=fields_as_they_are,
        read_only=True,
    ),
)
MCP: tuple[ToolSpec[Any], ...] = (*_READING, *_WRITING, *_FINDING)
