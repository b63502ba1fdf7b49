"""The calls of the dialect `claude`, and which requests they are."""

from dataclasses import dataclass, field
from typing import Any

from weakincentives.contrib.tools.dialects.shared import (
    EDIT_ALIASES,
    fields_as_they_are,
    first_line,
    identity,
    is_page,
    is_whole_text,
    lines_before,
    one_edit,
    says_only,
)
from weakincentives.contrib.tools.requests import (
    BashParams,
    EditFileParams,
    GlobParams,
    GrepMode,
    GrepParams,
    LsParams,
    MoveParams,
    ReadFileParams,
    RmParams,
    TextEdit,
    WriteFileParams,
)
from weakincentives.contrib.tools.spec import ToolSpec
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


def glob(params: Glob, context: object) -> GlobParams:
    """Return the request for files by name."""
    return GlobParams(params.pattern, params.path or ".")


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


def read(params: Read, context: object) -> ReadFileParams:
    """Return the request for a page of a file."""
    return ReadFileParams(params.file_path, lines_before(params.offset), params.limit)


def say_read(request: ReadFileParams) -> Read | None:
    """Return the call for a page of a file."""
    if not is_page(request):
        return None
    return Read(request.file_path, first_line(request), request.limit)


def write(params: Write, context: object) -> WriteFileParams:
    """Return the request to write a file, whether it exists or not."""
    return WriteFileParams(params.file_path, params.content, "overwrite")


def say_write(request: WriteFileParams) -> Write | None:
    """Return the call that writes a whole text."""
    return Write(request.file_path, request.content) if is_whole_text(request) else None


def edit(params: Edit | MultiEdit, context: object) -> EditFileParams:
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


def say_glob(request: GlobParams | LsParams) -> Glob | None:
    """Return the call for files by name; those of a directory are found so too."""
    if isinstance(request, LsParams):
        return Glob("**/*", _directory(request.path)) if says_only(request, "path") else None
    if not says_only(request, "pattern", "path"):
        return None
    return Glob(request.pattern, _directory(request.path))


def grep(params: Grep, context: object) -> GrepParams:
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


_READ = """\
Read a file: up to 2000 lines, each with its number before it; the numbers, and offset, count \
from 1.
Read a file before you edit it or write over it. For a long file, page with offset and limit.
Notebooks are shown as cells, pictures as pictures where you can see them, and other binary files \
as a hex dump.
It reads files only; $GlobParams finds them."""
_WRITE = """\
Write a file; one that exists is replaced as a whole.
Read a file that exists first, and prefer $EditFileParams for changing a part of it.
At most 48000 characters in one call."""
_EDIT = """\
Replace text in a file, and return what changed as a diff.
old_string must be in the file exactly once, unless replace_all is set: quote it as the file has \
it, without the line numbers that $ReadFileParams shows, and with enough around it to be unique.
Small slips in white space and quotation marks are forgiven where the place is clear, and told.
With an empty old_string, a file that does not exist is created."""
_GLOB = """\
Find files by a pattern of their path: "**/*.js", "src/**/*.ts"; sorted by path. "**/*" with a \
path shows all that is in a directory.
"*" stays in one directory and "**" spans any number. Files that .gitignore leaves out are not \
found.
$GrepParams searches what is in files."""
_GREP = """\
Search files for a regular expression (RE2: no look-around, no back references; special \
characters that are meant as such need a backslash).
output_mode "files_with_matches", the default, returns paths; "content" returns lines with their \
numbers, which count from 1, and takes -A, -B and -C; "count" returns how many lines match in each \
file.
Narrow it down with path, glob ("*.js") or type ("py"). A pattern matches within one line.
Binary files, and files that .gitignore leaves out, are not searched."""
_DELETE = """\
Remove a file, or a directory with everything in it."""
_MOVE = """\
Move or rename a file or directory; what is at the destination is never replaced."""
_FILE_PATH = {"path": "file_path"}
CLAUDE: tuple[ToolSpec[Any], ...] = (
    ToolSpec(
        name="Read",
        description=_READ,
        params=Read,
        requests=(ReadFileParams,),
        decode=read,
        encode=say_read,
        aliases=_FILE_PATH,
        read_only=True,
    ),
    ToolSpec(
        name="Write",
        description=_WRITE,
        params=Write,
        requests=(WriteFileParams,),
        decode=write,
        encode=say_write,
        aliases=_FILE_PATH,
    ),
    ToolSpec(
        name="Edit",
        description=_EDIT,
        params=Edit,
        requests=(EditFileParams,),
        decode=edit,
        encode=say_edit,
        aliases={**_FILE_PATH, **EDIT_ALIASES},
        other_names=("MultiEdit",),
        other_params=MultiEdit,
    ),
    ToolSpec(
        name="Glob",
        description=_GLOB,
        params=Glob,
        requests=(GlobParams, LsParams),
        decode=glob,
        encode=say_glob,
        read_only=True,
    ),
    ToolSpec(
        name="Grep",
        description=_GREP,
        params=Grep,
        requests=(GrepParams,),
        decode=grep,
        encode=say_grep,
        read_only=True,
    ),
    ToolSpec(
        name="Delete",
        description=_DELETE,
        params=Delete,
        requests=(RmParams,),
        decode=lambda params, context: RmParams(params.file_path),
        encode=lambda request: Delete(request.path),
        aliases=_FILE_PATH,
        superseded_by=(BashParams,),
    ),
    ToolSpec(
        name="Move",
        description=_MOVE,
        params=MoveParams,
        requests=(MoveParams,),
        decode=identity,
        encode=fields_as_they_are,
        superseded_by=(BashParams,),
    ),
)
