"""The `claude` dialect: the tools of Claude Code, with their parameter schemas and descriptions."""

from dataclasses import dataclass, field
from typing import Any

from weakincentives.contrib.tools import requests
from weakincentives.contrib.tools.context import ToolSpec
from weakincentives.contrib.tools.dialects import shared
from weakincentives.errors import ToolValidationError


@dataclass(frozen=True, slots=True)
class Read:
    """Read a file.

    Args:
        file_path: The file.
        offset: The first line to return, counted from 1.
        limit: The number of lines to return.
    """

    file_path: str
    offset: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """Write a whole file.

    Args:
        file_path: The file; missing parent directories are created.
        content: The complete text of the file.
    """

    file_path: str
    content: str


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace text in a file.

    Args:
        file_path: The file.
        old_string: The text to replace.
        new_string: The new text.
        replace_all: Replace every occurrence.
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
        edits: The replacements, applied in this order, all or none.
        old_string: The text to replace, instead of edits.
        new_string: The text to replace it with.
        replace_all: Replace every occurrence of each text.
    """

    file_path: str
    edits: tuple[requests.TextEdit, ...]
    old_string: str | None = None
    new_string: str | None = None
    replace_all: bool = False


@dataclass(frozen=True, slots=True)
class GlobFiles:
    """Find files by name.

    Args:
        pattern: The pattern, such as "src/**/*.ts".
        path: The directory to search.
    """

    pattern: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Grep:
    """Search the lines of files.

    Args:
        pattern: The regular expression; it matches within one line.
        path: The file or directory to search.
        glob: Search only files that match, such as "*.js" or "*.{ts,tsx}".
        type: Search only files of this type, such as "py" or "rust".
        output_mode: "files_with_matches" returns paths, "content" matching lines with their line
            numbers, "count" the number of matching lines per file.
        ignore_case: Ignore case.
        numbers: Accepted without effect: "content" always shows line numbers.
        after: Lines to show after each match in "content".
        before: Lines to show before each match in "content".
        context: Lines to show before and after each match in "content".
        head_limit: The maximum number of lines, paths or counts to return.
        multiline: Answered with an error that says what to do instead.
    """

    pattern: str
    path: str | None = None
    glob: str | None = None
    type: str | None = None
    output_mode: requests.GrepMode = "files_with_matches"
    ignore_case: bool = field(default=False, metadata={"name": "-i"})
    numbers: bool = field(default=True, metadata={"name": "-n", "hidden": True})
    after: int | None = field(default=None, metadata={"name": "-A"})
    before: int | None = field(default=None, metadata={"name": "-B"})
    context: int | None = field(default=None, metadata={"name": "-C"})
    head_limit: int | None = None
    multiline: bool = field(default=False, metadata={"hidden": True})


def _encode_glob(request: requests.GlobParams | requests.LsParams) -> GlobFiles | None:
    # there is no tool to list a directory: it is a glob for everything below it
    if isinstance(request, requests.LsParams):
        return (
            GlobFiles("**/*", shared.path_or_none(request.path))
            if shared.sets_only(request, "path")
            else None
        )
    if not shared.sets_only(request, "pattern", "path"):
        return None
    return GlobFiles(request.pattern, shared.path_or_none(request.path))


_GREP_FIELDS = shared.FieldMapping(Grep, requests.GrepParams)


def _decode_grep(params: Grep, _: object) -> requests.GrepParams:
    if params.multiline:
        raise ToolValidationError(
            "multiline is not available: search for text within one line, then read around it"
        )
    return _GREP_FIELDS.decode(params)


_READ = f"{shared.READ_PAGES} offset.\n{shared.FILE_FORMATS}"
_EDIT = f"""\
Replace text in a file; returns a diff of the change.
old_string must match exactly one place, unless replace_all is set: copy it from the file without \
line numbers, with enough surrounding lines to be unique. {shared.EDIT_TOLERANCE}
{shared.CREATES_WITH_EMPTY_OLD}"""
_GLOB = f"""\
Find files by path pattern; returns sorted paths. To list a directory, use the pattern "*" or, at \
any depth, "**/*".
{shared.GLOB_SYNTAX} Files ignored by .gitignore are not found.
To search the contents of files, use $GrepParams."""
_GREP = f"""\
Search the lines of files for a regular expression ({shared.REGEX_SYNTAX}). Skips \
binary files and files ignored by .gitignore."""
_FILE_PATH = {"path": "file_path"}
CLAUDE: tuple[ToolSpec[Any], ...] = (
    shared.page_tool("Read", _READ, Read, aliases=_FILE_PATH),
    shared.mapped("Write", shared.WRITE_WHOLE, shared.map_whole_text(Write), aliases=_FILE_PATH),
    shared.edit_tool(
        "Edit",
        _EDIT,
        shared.FieldMapping(Edit, requests.EditFileParams),
        shared.FieldMapping(MultiEdit, requests.EditFileParams),
        aliases={**_FILE_PATH, **shared.EDIT_ALIASES},
        other_names=("MultiEdit",),
    ),
    ToolSpec(
        name="Glob",
        description=_GLOB,
        params=GlobFiles,
        requests=(requests.GlobParams, requests.LsParams),
        decode=lambda params, _: requests.GlobParams(params.pattern, params.path or "."),
        encode=_encode_glob,
        read_only=True,
    ),
    shared.mapped("Grep", _GREP, _GREP_FIELDS, decode=_decode_grep, read_only=True),
    *shared.delete_and_move("Delete", "Move", aliases=_FILE_PATH),
)
