"""The calls of the dialect `gemini`, and which requests they are."""

from dataclasses import dataclass
from typing import Any

from weakincentives.contrib.tools.dialects.shared import (
    EDIT_ALIASES,
    fields_as_they_are,
    first_line,
    identity,
    is_page,
    is_whole_text,
    last_line,
    one_edit,
    page,
    says_only,
)
from weakincentives.contrib.tools.requests import (
    BashParams,
    CountedEditParams,
    EditFileParams,
    GlobParams,
    GrepParams,
    LsParams,
    MoveParams,
    ReadFileParams,
    RmParams,
    WriteFileParams,
)
from weakincentives.contrib.tools.spec import ToolSpec


@dataclass(frozen=True, slots=True)
class ReadCall:
    """Read a file.

    Args:
        file_path: The file.
        start_line: The first line to return, counted from 1.
        end_line: The last line to return, counted from 1; 2000 lines if left out.
    """

    file_path: str
    start_line: int | None = None
    end_line: int | None = None


@dataclass(frozen=True, slots=True)
class WriteCall:
    """Write a whole file.

    Args:
        file_path: The file; directories on the way are made.
        content: Its text, all of it.
    """

    file_path: str
    content: str


@dataclass(frozen=True, slots=True)
class ReplaceCall:
    """Replace text in a file.

    Args:
        file_path: The file.
        old_string: The text to replace, as it is in the file, without line numbers.
        new_string: The text to put in its place.
        instruction: What the change is for, in a sentence.
        allow_multiple: Replace it everywhere; otherwise it must be there exactly once.
    """

    file_path: str
    old_string: str
    new_string: str
    instruction: str | None = None
    allow_multiple: bool = False


@dataclass(frozen=True, slots=True)
class CountedReplaceCall:
    """Replace text in a file as often as it is said to be there.

    Args:
        file_path: The file.
        old_string: The text to replace, as it is in the file, without line numbers.
        new_string: The text to put in its place.
        expected_replacements: How many times it must be there; it is replaced everywhere.
        instruction: What the change is for, in a sentence.
        allow_multiple: As expected_replacements says; it is not needed.
    """

    file_path: str
    old_string: str
    new_string: str
    expected_replacements: int
    instruction: str | None = None
    allow_multiple: bool = False


@dataclass(frozen=True, slots=True)
class ListCall:
    """List a directory.

    Args:
        dir_path: The directory; "." is the top of the workspace.
        ignore: Patterns of names to leave out.
    """

    dir_path: str = "."
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GlobCall:
    """Find files by name.

    Args:
        pattern: For example "**/*.py" or "docs/*.md".
        dir_path: The directory to look in; the whole workspace if left out.
        respect_git_ignore: Leave out what .gitignore files leave out.
    """

    pattern: str
    dir_path: str | None = None
    respect_git_ignore: bool = True


@dataclass(frozen=True, slots=True)
class GrepCall:
    """Search the lines of files.

    Args:
        pattern: A regular expression (RE2: no look-around, no back references).
        dir_path: The directory or file to search; the whole workspace if left out.
        include_pattern: Search only files whose name matches, for example "*.{ts,tsx}".
        exclude_pattern: Leave out files whose name matches.
        names_only: Return only the paths of files that match.
        case_sensitive: Tell upper from lower case; they are the same if left out.
        fixed_strings: Take the pattern as plain text.
        context: Lines to show before and after each match.
        after: Lines to show after each match.
        before: Lines to show before each match.
        no_ignore: Search also what .gitignore files leave out.
        max_matches_per_file: How many matches to return of one file at most.
        total_max_matches: How many matches to return at most.
    """

    pattern: str
    dir_path: str | None = None
    include_pattern: str | None = None
    exclude_pattern: str | None = None
    names_only: bool = False
    case_sensitive: bool = False
    fixed_strings: bool = False
    context: int | None = None
    after: int | None = None
    before: int | None = None
    no_ignore: bool = False
    max_matches_per_file: int | None = None
    total_max_matches: int = 100


@dataclass(frozen=True, slots=True)
class DeleteCall:
    """Remove a file or directory.

    Args:
        file_path: What to remove.
    """

    file_path: str


def say_read(request: ReadFileParams) -> ReadCall | None:
    """Return the call for a page of a file."""
    if not is_page(request):
        return None
    return ReadCall(request.file_path, first_line(request), last_line(request))


def say_list(request: LsParams) -> ListCall | None:
    """Return the call that lists a directory from its beginning."""
    return None if request.offset else ListCall(request.path, request.exclude)


def say_write(request: WriteFileParams) -> WriteCall | None:
    """Return the call that writes a whole text."""
    return WriteCall(request.file_path, request.content) if is_whole_text(request) else None


def replace(
    params: ReplaceCall | CountedReplaceCall, context: object
) -> EditFileParams | CountedEditParams:
    """Return the request for one replacement."""
    if isinstance(params, CountedReplaceCall):
        return CountedEditParams(
            params.file_path, params.old_string, params.new_string, params.expected_replacements
        )
    return EditFileParams(
        params.file_path, params.old_string, params.new_string, params.allow_multiple
    )


def say_replace(request: EditFileParams) -> ReplaceCall | None:
    """Return the call for one replacement."""
    edit = one_edit(request)
    if edit is None:
        return None
    return ReplaceCall(
        request.file_path,
        edit.old_string,
        edit.new_string,
        allow_multiple=edit.replace_all,
    )


def glob(params: GlobCall, context: object) -> GlobParams:
    """Return the request for files by name."""
    return GlobParams(
        params.pattern, params.dir_path or ".", include_ignored=not params.respect_git_ignore
    )


def say_glob(request: GlobParams) -> GlobCall | None:
    """Return the call for files by name."""
    if not says_only(request, "pattern", "path", "include_ignored"):
        return None
    return GlobCall(request.pattern, _directory(request.path), not request.include_ignored)


def grep(params: GrepCall, context: object) -> GrepParams:
    """Return the request for lines or files."""
    return GrepParams(
        params.pattern,
        params.dir_path or ".",
        params.include_pattern,
        output_mode="files_with_matches" if params.names_only else "content",
        ignore_case=not params.case_sensitive,
        fixed_string=params.fixed_strings,
        context=params.context,
        before=params.before,
        after=params.after,
        head_limit=params.total_max_matches,
        max_per_file=params.max_matches_per_file,
        exclude=params.exclude_pattern,
        include_ignored=params.no_ignore,
    )


def say_grep(request: GrepParams) -> GrepCall | None:
    """Return the call for lines or files."""
    if request.output_mode == "count" or request.type is not None:
        return None
    return GrepCall(
        request.pattern,
        _directory(request.path),
        request.glob,
        request.exclude,
        request.output_mode == "files_with_matches",
        not request.ignore_case,
        request.fixed_string,
        request.context,
        request.after,
        request.before,
        request.include_ignored,
        request.max_per_file,
        100 if request.head_limit is None else request.head_limit,
    )


def _directory(path: str) -> str | None:
    return None if path == "." else path


_READ = """\
Read a file: up to 2000 lines, each with its number before it; the numbers, start_line and \
end_line count from 1.
Read a file before you change it. For a long file, ask for the lines that matter.
Notebooks are shown as cells, pictures as pictures where you can see them, and other binary files \
as a hex dump."""
_WRITE = """\
Write a file; one that exists is replaced as a whole. Give the complete content: a placeholder for \
what stays as it is would be written as it stands.
$EditFileParams changes a part of a file. At most 48000 characters in one call."""
_REPLACE = """\
Replace text in a file, and return what changed as a diff.
old_string must be in the file exactly once, unless allow_multiple is set: quote it as the file \
has it, without line numbers, with about three lines around it.
Small slips in white space and quotation marks are forgiven where the place is clear, and told.
Use $ReadFileParams first, so that you quote what is there. With an empty old_string, a file that \
does not exist is created."""
_LIST = """\
List a directory: directories first, then files with their sizes. It does not go into directories; \
$GlobParams finds files at any depth."""
_GLOB = """\
Find files by a pattern of their path, sorted by path: "src/**/*.ts", "**/*.md".
"*" stays in one directory and "**" spans any number.
$GrepParams searches what is in files."""
_GREP = """\
Search the lines of files for a regular expression (RE2: no look-around, no back references), and \
return them with their numbers, which count from 1.
Upper and lower case are the same unless case_sensitive is set. Narrow it down with dir_path, \
include_pattern and exclude_pattern; names_only returns paths and no lines. Binary files are not \
searched."""
_DELETE = """\
Remove a file, or a directory with everything in it."""
_MOVE = """\
Move or rename a file or directory; what is at the destination is never replaced."""
_FILE_PATH = {"path": "file_path", "absolute_path": "file_path"}
_DIR_PATH = {"path": "dir_path"}
GEMINI: tuple[ToolSpec[Any], ...] = (
    ToolSpec(
        name="list_directory",
        description=_LIST,
        params=ListCall,
        requests=(LsParams,),
        decode=lambda params, context: LsParams(params.dir_path, params.ignore),
        encode=say_list,
        aliases=_DIR_PATH,
        read_only=True,
    ),
    ToolSpec(
        name="read_file",
        description=_READ,
        params=ReadCall,
        requests=(ReadFileParams,),
        decode=lambda params, context: page(params.file_path, params.start_line, params.end_line),
        encode=say_read,
        aliases=_FILE_PATH,
        read_only=True,
    ),
    ToolSpec(
        name="write_file",
        description=_WRITE,
        params=WriteCall,
        requests=(WriteFileParams,),
        decode=lambda params, context: WriteFileParams(
            params.file_path, params.content, "overwrite"
        ),
        encode=say_write,
        aliases=_FILE_PATH,
    ),
    ToolSpec(
        name="replace",
        description=_REPLACE,
        params=ReplaceCall,
        requests=(EditFileParams,),
        decode=replace,
        encode=say_replace,
        aliases={**_FILE_PATH, **EDIT_ALIASES, "replace_all": "allow_multiple"},
        other_params=CountedReplaceCall,
    ),
    ToolSpec(
        name="glob",
        description=_GLOB,
        params=GlobCall,
        requests=(GlobParams,),
        decode=glob,
        encode=say_glob,
        aliases=_DIR_PATH,
        read_only=True,
    ),
    ToolSpec(
        name="grep_search",
        description=_GREP,
        params=GrepCall,
        requests=(GrepParams,),
        decode=grep,
        encode=say_grep,
        aliases={**_DIR_PATH, "include": "include_pattern"},
        read_only=True,
        other_names=("search_file_content",),
    ),
    ToolSpec(
        name="delete_file",
        description=_DELETE,
        params=DeleteCall,
        requests=(RmParams,),
        decode=lambda params, context: RmParams(params.file_path),
        encode=lambda request: DeleteCall(request.path),
        aliases=_FILE_PATH,
        superseded_by=(BashParams,),
    ),
    ToolSpec(
        name="move_file",
        description=_MOVE,
        params=MoveParams,
        requests=(MoveParams,),
        decode=identity,
        encode=fields_as_they_are,
        superseded_by=(BashParams,),
    ),
)
