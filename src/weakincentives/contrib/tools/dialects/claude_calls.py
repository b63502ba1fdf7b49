"""The calls of the dialect `claude`, and which requests they are."""

from dataclasses import dataclass, field

from weakincentives.contrib.tools.dialects.spelling import (
    first_line,
    is_page,
    is_whole_text,
    lines_before,
    one_edit,
    says_only,
)
from weakincentives.contrib.tools.requests import (
    EditFileParams,
    GlobParams,
    GrepMode,
    GrepParams,
    LsParams,
    ReadFileParams,
    TextEdit,
    WriteFileParams,
)
from weakincentives.errors import ToolValidationError


@dataclass(frozen=True, slots=True)
class Read:
    """Read a file.

    Args:
        file_path: The file.
        offset: The line to begin with, counted from 1. Leave it out to begin at the first.
        limit: How many lines to read; 2000 if left out.
    """

    file_path: str
    offset: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """Write a whole file.

    Args:
        file_path: The file; directories on the way are made.
        content: Its text.
    """

    file_path: str
    content: str


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace text in a file.

    Args:
        file_path: The file.
        old_string: The text to replace, as it is in the file, without line numbers.
        new_string: The text to put in its place; it must be different.
        replace_all: Replace it everywhere; otherwise it must be there exactly once.
    """

    file_path: str
    old_string: str
    new_string: str
    replace_all: bool = False


@dataclass(frozen=True, slots=True)
class MultiEdit:
    """Replace several texts in a file.

    Args:
        file_path: The file.
        edits: The replacements, made in this order, all or none.
        old_string: The text to replace, instead of edits.
        new_string: The text to put in its place.
        replace_all: Replace everything everywhere.
    """

    file_path: str
    edits: tuple[TextEdit, ...]
    old_string: str | None = None
    new_string: str | None = None
    replace_all: bool = False


@dataclass(frozen=True, slots=True)
class Glob:
    """Find files by name.

    Args:
        pattern: For example "**/*.js" or "src/**/*.ts".
        path: The directory to look in; the whole workspace if left out.
    """

    pattern: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Grep:
    """Search the lines of files.

    Args:
        pattern: A regular expression (RE2: no look-around, no back references).
        path: The file or directory to search; the whole workspace if left out.
        glob: Search only files whose name matches, for example "*.js" or "*.{ts,tsx}".
        type: Search only files of a language, for example "js", "py", "rust".
        output_mode: "files_with_matches" returns paths, "content" the lines that match, "count"
            how many lines match in each file.
        ignore_case: Take upper and lower case for the same.
        numbers: Show the numbers of lines, counted from 1; they are always shown with "content".
        after: Lines to show after each match; needs output_mode "content".
        before: Lines to show before each match; needs output_mode "content".
        context: Lines to show before and after each match; needs output_mode "content".
        head_limit: How many lines, paths or counts to return at most.
        multiline: Not available: a pattern matches within one line. Leave it out.
    """

    pattern: str
    path: str | None = None
    glob: str | None = None
    type: str | None = None
    output_mode: GrepMode = "files_with_matches"
    ignore_case: bool = field(default=False, metadata={"name": "-i"})
    numbers: bool = field(default=True, metadata={"name": "-n"})
    after: int | None = field(default=None, metadata={"name": "-A"})
    before: int | None = field(default=None, metadata={"name": "-B"})
    context: int | None = field(default=None, metadata={"name": "-C"})
    head_limit: int | None = None
    multiline: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a file or directory.

    Args:
        file_path: What to remove.
    """

    file_path: str


def read(params: Read, bench: object) -> ReadFileParams:
    """Return the request for a page of a file."""
    return ReadFileParams(params.file_path, lines_before(params.offset), params.limit)


def say_read(request: ReadFileParams) -> Read | None:
    """Return the call for a page of a file."""
    if not is_page(request):
        return None
    return Read(request.file_path, first_line(request), request.limit)


def write(params: Write, bench: object) -> WriteFileParams:
    """Return the request to write a file, whether it exists or not."""
    return WriteFileParams(params.file_path, params.content, "overwrite")


def say_write(request: WriteFileParams) -> Write | None:
    """Return the call that writes a whole text."""
    return Write(request.file_path, request.content) if is_whole_text(request) else None


def edit(params: Edit | MultiEdit, bench: object) -> EditFileParams:
    """Return the request for one replacement, or for several."""
    return EditFileParams(
        params.file_path,
        params.old_string,
        params.new_string,
        params.replace_all,
        params.edits if isinstance(params, MultiEdit) else (),
    )


def say_edit(request: EditFileParams) -> Edit | None:
    """Return the call for one replacement."""
    edit = one_edit(request)
    if edit is None:
        return None
    return Edit(request.file_path, edit.old_string, edit.new_string, edit.replace_all)


def glob(params: Glob, bench: object) -> GlobParams:
    """Return the request for files by name."""
    return GlobParams(params.pattern, params.path or ".")


def say_glob(request: GlobParams | LsParams) -> Glob | None:
    """Return the call for files by name; those of a directory are found so too."""
    if isinstance(request, LsParams):
        return Glob("**/*", _directory(request.path)) if says_only(request, "path") else None
    if not says_only(request, "pattern", "path"):
        return None
    return Glob(request.pattern, _directory(request.path))


def grep(params: Grep, bench: object) -> GrepParams:
    """Return the request for lines or files."""
    if params.multiline:
        raise ToolValidationError(
            "multiline is not available: search for what is in one line, then read around it"
        )
    return GrepParams(
        params.pattern,
        params.path or ".",
        params.glob,
        params.type,
        params.output_mode,
        params.ignore_case,
        context=params.context,
        before=params.before,
        after=params.after,
        head_limit=params.head_limit,
    )


def say_grep(request: GrepParams) -> Grep | None:
    """Return the call for lines or files."""
    unsayable = request.fixed_string or request.include_ignored or request.exclude is not None
    if unsayable or request.max_per_file is not None:
        return None
    return Grep(
        request.pattern,
        _directory(request.path),
        request.glob,
        request.type,
        request.output_mode,
        request.ignore_case,
        after=request.after,
        before=request.before,
        context=request.context,
        head_limit=request.head_limit,
    )


def _directory(path: str) -> str | None:
    return None if path == "." else path
