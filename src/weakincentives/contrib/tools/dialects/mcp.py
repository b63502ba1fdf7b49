"""The `mcp` dialect: the tools of the MCP reference filesystem server, with their schemas."""

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from weakincentives.contrib.tools import requests
from weakincentives.contrib.tools.context import HandlerContext, ToolSpec
from weakincentives.contrib.tools.dialects import shared
from weakincentives.contrib.tools.handlers.render import format_path, line_start
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import TimeLimitError

_IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp"})
ReadTextCall: type[Any] = shared.params(
    path=(str, "The file."),
    head=(int | None, "Return only this many lines."),
    tail=(int | None, "Return only this many lines from the end."),
    start_line=(int | None, "The first line to return, counted from 1."),
)
FileCall: type[Any] = shared.params(path=(str, "The file."))
DirectoryCall: type[Any] = shared.params(path=(str, 'The directory; "." is the workspace root.'))
SizesCall: type[Any] = shared.params(
    path=(str, 'The directory; "." is the workspace root.'),
    sort_by=(
        requests.SortBy,
        'The order: "size" lists the largest file first.',
        "name",
        {"name": "sortBy"},
    ),
)
PathsCall: type[Any] = shared.params(paths=(tuple[str, ...], "The files."))
WriteTextCall: type[Any] = shared.params(
    path=(str, "The file; missing parent directories are created."),
    content=(str, "The complete text."),
)


@dataclass(frozen=True, slots=True)
class Replacement:
    """One replacement.

    Args:
        old_string: The text to replace.
        new_string: The new text.
    """

    old_string: str = field(metadata={"name": "oldText"})
    new_string: str = field(metadata={"name": "newText"})


EditCall: type[Any] = shared.params(
    path=(str, "The file."),
    edits=(tuple[Replacement, ...], "The replacements."),
    dry_run=(bool, "Return the diff without changing the file.", False, {"name": "dryRun"}),
)
TreeCall: type[Any] = shared.params(
    path=(str, 'The directory; "." is the workspace root.', "."),
    exclude=(tuple[str, ...], "Name patterns to leave out.", (), {"name": "excludePatterns"}),
)
SearchCall: type[Any] = shared.params(
    path=(str, 'The directory to search; "." is the workspace root.'),
    pattern=(str, "The pattern."),
    exclude=(tuple[str, ...], "Path patterns to leave out.", (), {"name": "excludePatterns"}),
)


def _decode_read_text(params: Any, context: HandlerContext) -> requests.ReadFileParams:
    if params.tail is None:
        head = params.head or None  # 0 stands for none, as in the reference server
        return requests.ReadFileParams(params.path, shared.line_offset(params.start_line), head)
    if params.head is not None or params.start_line is not None:
        raise ToolValidationError("tail cannot be combined with head or start_line")
    return requests.ReadFileParams(
        params.path, max(_count_lines(context, params.path) - params.tail, 0)
    )


def _encode_read_text(request: requests.ReadFileParams) -> Any:
    if not shared.is_page(request):
        return None
    return ReadTextCall(request.file_path, request.limit, start_line=shared.first_line(request))


def _decode_read_media(params: Any, _: object) -> requests.ReadFileParams:
    return requests.ReadFileParams(params.path, view="auto" if _is_image(params.path) else "base64")


def _encode_read_media(request: requests.ReadFileParams) -> Any:
    # an image would be returned as an image, not as base64
    whole = shared.sets_only(request, "file_path", "view") and request.view == "base64"
    return FileCall(request.file_path) if whole and not _is_image(request.file_path) else None


def _decode_edit(params: Any, _: object) -> requests.EditFileParams:
    edits = tuple(requests.TextEdit(each.old_string, each.new_string) for each in params.edits)
    return requests.EditFileParams(params.path, edits=edits, dry_run=params.dry_run)


def _encode_edit(request: requests.EditFileParams) -> Any:
    edits = request.edits
    if request.old_string is not None and request.new_string is not None:
        edits = (requests.TextEdit(request.old_string, request.new_string, request.replace_all),)
    if not edits or any(each.replace_all for each in edits):
        return None
    replacements = tuple(Replacement(each.old_string, each.new_string) for each in edits)
    return EditCall(request.file_path, replacements, request.dry_run)


def _is_image(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in _IMAGE_SUFFIXES


def _count_lines(context: HandlerContext, path: str) -> int:
    """Return the number of lines of a file; 0 if it cannot be read."""
    key = context.resolve_path(path)
    try:
        size = context.filesystem.stat(key or ".").size_bytes
        place = line_start(context.filesystem, key or ".", 0, size)
    except TimeLimitError:
        raise
    except (OSError, ValueError):
        return 0  # the read itself reports what is wrong
    if not place.total_is_exact:
        raise ToolValidationError(
            f"tail is not available for {format_path(key)!r}: the file has {size:,} bytes, too"
            " many to count its lines; read it with start_line"
        )
    return place.total_lines


_READ = """\
Read a text file: up to 2000 lines per call, each with its line number. For the rest of a long \
file, set start_line."""
_MEDIA = """\
Read an image, to view it if you can, or any other file as base64."""
_MANY = """\
Read several files at once; a file that cannot be read does not affect the others."""
_WRITE = """\
Write a whole file; an existing one is replaced.
To change part of a file, use $EditFileParams."""
_EDIT = f"""\
Replace text in a file; returns a diff of the change. The edits are applied in order, all or none.
Each oldText must match exactly one place: copy it from the file without line numbers, with enough \
surrounding lines to be unique. {shared.EDIT_TOLERANCE}"""
_MKDIR = """\
Create a directory and its missing parents. Succeeds if the directory exists."""
_LIST = """\
List one directory: subdirectories first, with a trailing slash, then files with their sizes.
To see all levels, use $TreeParams."""
_SIZES = """\
List one directory with the sizes of its files."""
_TREE = """\
Show a directory and everything below it as a tree. Leave out large directories with \
excludePatterns."""
_SEARCH = """\
Find files by path pattern: "*.md" finds files in the directory itself, "**/*.md" at any depth; a \
trailing "/" finds directories. Ignored files are found too.
To search the contents of files, use $GrepParams."""
_INFO = """\
Return the type, size, dates and permissions of a file or directory."""
_ALLOWED = """\
Return which files are accessible, and how to write paths."""
_PATH = {"file_path": "path"}
_TEXTS = {name: field for name, field in shared.EDIT_ALIASES.items() if not name.endswith("Text")}
_READ_TOOLS: tuple[ToolSpec[Any], ...] = (
    ToolSpec(
        name="read_text_file",
        description=_READ,
        params=ReadTextCall,
        requests=(requests.ReadFileParams,),
        decode=_decode_read_text,
        encode=_encode_read_text,
        aliases=_PATH,
        read_only=True,
        other_names=("read_file",),
    ),
    ToolSpec(
        name="read_media_file",
        description=_MEDIA,
        params=FileCall,
        requests=(requests.ReadFileParams,),
        decode=_decode_read_media,
        encode=_encode_read_media,
        aliases=_PATH,
        read_only=True,
    ),
    shared.mapped(
        "read_multiple_files",
        _MANY,
        shared.FieldMapping(PathsCall, requests.ReadManyParams, {"paths": "file_paths"}),
        read_only=True,
    ),
)
_WRITE_TOOLS: tuple[ToolSpec[Any], ...] = (
    shared.mapped(
        "write_file", _WRITE, shared.map_whole_text(WriteTextCall, path="file_path"), aliases=_PATH
    ),
    ToolSpec(
        name="edit_file",
        description=_EDIT,
        params=EditCall,
        requests=(requests.EditFileParams,),
        decode=_decode_edit,
        encode=_encode_edit,
        aliases={**_PATH, **_TEXTS},
    ),
    shared.mapped(
        "create_directory", _MKDIR, shared.FieldMapping(DirectoryCall, requests.MkdirParams)
    ),
    shared.pass_through(
        "move_file", requests.MoveParams, shared.MOVE_DESCRIPTION, aliases=shared.MOVE_ALIASES
    ),
    shared.pass_through("delete_file", requests.RmParams, shared.DELETE_DESCRIPTION, aliases=_PATH),
)
_SEARCH_TOOLS: tuple[ToolSpec[Any], ...] = (
    shared.mapped(
        "list_directory",
        _LIST,
        shared.FieldMapping(DirectoryCall, requests.LsParams),
        read_only=True,
    ),
    shared.mapped(
        "list_directory_with_sizes",
        _SIZES,
        shared.FieldMapping(SizesCall, requests.LsParams),
        read_only=True,
    ),
    shared.mapped(
        "directory_tree", _TREE, shared.FieldMapping(TreeCall, requests.TreeParams), read_only=True
    ),
    shared.mapped(
        "search_files",
        _SEARCH,
        shared.FieldMapping(
            SearchCall,
            requests.GlobParams,
            # the reference server does not know ignore files
            fixed={"include_ignored": True},
            fits=lambda request: request.head_limit is None,
        ),
        read_only=True,
    ),
    shared.GREP,
    shared.pass_through("get_file_info", requests.StatParams, _INFO, read_only=True),
    shared.pass_through(
        "list_allowed_directories", requests.WorkspaceParams, _ALLOWED, read_only=True
    ),
)
MCP: tuple[ToolSpec[Any], ...] = (*_READ_TOOLS, *_WRITE_TOOLS, *_SEARCH_TOOLS)
