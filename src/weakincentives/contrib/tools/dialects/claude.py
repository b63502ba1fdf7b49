"""The `claude` dialect: the tools of Claude Code, with their parameter schemas and descriptions."""

from typing import Any

from weakincentives.contrib.tools import requests
from weakincentives.contrib.tools.context import ToolSpec
from weakincentives.contrib.tools.dialects import shared
from weakincentives.errors import ToolValidationError

Read: type[Any] = shared.params(
    file_path=(str, "The file."),
    offset=(int | None, "The first line to return, counted from 1."),
    limit=(int | None, "The number of lines to return."),
)
Write: type[Any] = shared.params(
    file_path=(str, "The file; missing parent directories are created."),
    content=(str, "The complete text of the file."),
)
Edit: type[Any] = shared.params(
    file_path=(str, "The file."),
    old_string=(str, "The text to replace."),
    new_string=(str, "The new text."),
    replace_all=(bool, "Replace every occurrence.", False),
)
MultiEdit: type[Any] = shared.params(
    file_path=(str, "The file."),
    edits=(tuple[requests.TextEdit, ...], "The replacements, applied in this order, all or none."),
    old_string=(str | None, "The text to replace, instead of edits."),
    new_string=(str | None, "The text to replace it with."),
    replace_all=(bool, "Replace every occurrence of each text.", False),
)
GlobFiles: type[Any] = shared.params(
    pattern=(str, 'The pattern, such as "src/**/*.ts".'),
    path=(str | None, "The directory to search."),
)
Grep: type[Any] = shared.params(
    pattern=(str, "The regular expression; it matches within one line."),
    path=(str | None, "The file or directory to search."),
    glob=(str | None, 'Search only files that match, such as "*.js" or "*.{ts,tsx}".'),
    type=(str | None, 'Search only files of this type, such as "py" or "rust".'),
    output_mode=(
        requests.GrepMode,
        '"files_with_matches" returns paths, "content" matching lines with their line numbers,'
        ' "count" the number of matching lines per file.',
        "files_with_matches",
    ),
    ignore_case=(bool, "Ignore case.", False, {"name": "-i"}),
    numbers=(bool, "", True, {"name": "-n", **shared.HIDDEN}),
    after=(int | None, 'Lines to show after each match in "content".', None, {"name": "-A"}),
    before=(int | None, 'Lines to show before each match in "content".', None, {"name": "-B"}),
    context=(
        int | None,
        'Lines to show before and after each match in "content".',
        None,
        {"name": "-C"},
    ),
    head_limit=(int | None, "The maximum number of lines, paths or counts to return."),
    multiline=(bool, "", False, shared.HIDDEN),
)


def _encode_glob(request: requests.GlobParams | requests.LsParams) -> Any:
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


def _decode_grep(params: Any, _: object) -> requests.GrepParams:
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
