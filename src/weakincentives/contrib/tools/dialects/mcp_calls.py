"""The calls of the dialect `mcp`, and which requests they are."""

from dataclasses import dataclass, field
from pathlib import PurePosixPath

from weakincentives.contrib.tools.dialects.spelling import (
    first_line,
    is_page,
    is_whole_text,
    lines_before,
    says_only,
)
from weakincentives.contrib.tools.filesystem.lines import line_start
from weakincentives.contrib.tools.filesystem.wording import named
from weakincentives.contrib.tools.requests import (
    EditFileParams,
    GlobParams,
    ReadFileParams,
    TextEdit,
    TreeParams,
    WriteFileParams,
)
from weakincentives.contrib.tools.workbench import Workbench
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


def read_text(params: ReadTextCall, bench: Workbench) -> ReadFileParams:
    """Return the request for a file, its first lines, its last, or what follows a line.

    Raises:
        ToolValidationError: Both ends are asked for, or the end of a file that is too large.
    """
    if params.tail is None:
        return ReadFileParams(params.path, lines_before(params.start_line), params.head)
    if params.head is not None or params.start_line is not None:
        raise ToolValidationError("tail cannot be given together with head or start_line")
    return ReadFileParams(params.path, max(_lines(bench, params.path) - params.tail, 0))


def say_read_text(request: ReadFileParams) -> ReadTextCall | None:
    """Return the call for a page of a file."""
    if not is_page(request):
        return None
    return ReadTextCall(request.file_path, request.limit, start_line=first_line(request))


def read_media(params: PathCall, bench: object) -> ReadFileParams:
    """Return the request for a picture, or for the bytes of anything else as base64."""
    return ReadFileParams(params.path, view="auto" if _is_picture(params.path) else "base64")


def say_read_media(request: ReadFileParams) -> PathCall | None:
    """Return the call for the bytes of a file as base64; a picture is shown by it instead."""
    whole = says_only(request, "file_path", "view") and request.view == "base64"
    return PathCall(request.file_path) if whole and not _is_picture(request.file_path) else None


def write(params: WriteCall, bench: object) -> WriteFileParams:
    """Return the request to write a file, whether it exists or not."""
    return WriteFileParams(params.path, params.content, "overwrite")


def say_write(request: WriteFileParams) -> WriteCall | None:
    """Return the call that writes a whole text."""
    return WriteCall(request.file_path, request.content) if is_whole_text(request) else None


def edit(params: EditCall, bench: object) -> EditFileParams:
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


def search(params: SearchCall, bench: object) -> GlobParams:
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


def _lines(bench: Workbench, path: str) -> int:
    """Return how many lines a file has; 0 if it cannot be read."""
    key = bench.path(path)
    try:
        size = bench.filesystem.stat(key or ".").size_bytes
        place = line_start(bench.filesystem, key or ".", 0, size)
    except TimeLimitError:
        raise
    except (OSError, ValueError):
        return 0  # the tool that reads says what is wrong with it
    if not place.total_is_exact:
        raise ToolValidationError(
            f"The last lines of {named(key)!r} cannot be found: it has {size:,} bytes, which is"
            " too much to count its lines; read it from a line on with start_line"
        )
    return place.total_lines
