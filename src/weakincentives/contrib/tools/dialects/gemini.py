"""The `gemini` dialect: the tools of Gemini CLI, with their parameter schemas and descriptions."""

from typing import Any

from weakincentives.contrib.tools import requests
from weakincentives.contrib.tools.context import ToolSpec
from weakincentives.contrib.tools.dialects import shared

ReadLinesCall: type[Any] = shared.params(
    file_path=(str, "The file."),
    start_line=(int | None, "The first line to return, counted from 1."),
    end_line=(int | None, "The last line to return, counted from 1."),
)
WriteCall: type[Any] = shared.params(
    file_path=(str, "The file; missing parent directories are created."),
    content=(
        str,
        "The complete text; a placeholder for unchanged text would be written literally.",
    ),
)
ReplaceCall: type[Any] = shared.params(
    file_path=(str, "The file."),
    old_string=(str, "The text to replace."),
    new_string=(str, "The new text."),
    instruction=(str | None, "", None, shared.HIDDEN),
    allow_multiple=(bool, "Replace every occurrence.", False),
)
CountedReplaceCall: type[Any] = shared.params(
    file_path=(str, "The file."),
    old_string=(str, "The text to replace."),
    new_string=(str, "The new text."),
    expected_replacements=(int, "The required number of occurrences; all of them are replaced."),
    instruction=(str | None, "The purpose of the change, in one sentence."),
    allow_multiple=(bool, "Ignored; expected_replacements decides.", False),
)
ListDirectoryCall: type[Any] = shared.params(
    dir_path=(str, 'The directory; "." is the workspace root.', "."),
    ignore=(tuple[str, ...], "Name patterns to leave out.", ()),
)
GlobCall: type[Any] = shared.params(
    pattern=(str, 'The pattern, such as "docs/*.md".'),
    dir_path=(str | None, "The directory to search."),
    respect_git_ignore=(bool, "Leave out files ignored by .gitignore.", True),
)
GrepCall: type[Any] = shared.params(
    pattern=(str, "The regular expression."),
    dir_path=(str | None, "The directory or file to search."),
    include_pattern=(str | None, 'Search only files that match, such as "*.{ts,tsx}".'),
    exclude_pattern=(str | None, "Leave out files that match."),
    names_only=(bool, "Return paths instead of lines.", False),
    case_sensitive=(bool, "Match case.", False),
    fixed_strings=(bool, "Treat the pattern as plain text.", False),
    context=(int | None, "Lines to show before and after each match."),
    after=(int | None, "Lines to show after each match."),
    before=(int | None, "Lines to show before each match."),
    no_ignore=(bool, "Also search files ignored by .gitignore.", False),
    max_matches_per_file=(int | None, "The maximum number of matches to return per file."),
    total_max_matches=(int, "The maximum number of matches to return.", 100),
)


def _encode_read(request: requests.ReadFileParams) -> Any:
    if not shared.is_page(request):
        return None
    return ReadLinesCall(request.file_path, shared.first_line(request), shared.last_line(request))


_NOT = {True: False, False: True}
_GREP_FIELDS = shared.FieldMapping(
    GrepCall,
    requests.GrepParams,
    {
        "dir_path": "path",
        "include_pattern": "glob",
        "exclude_pattern": "exclude",
        "fixed_strings": "fixed_string",
        "no_ignore": "include_ignored",
        "max_matches_per_file": "max_per_file",
        "total_max_matches": "head_limit",
        "case_sensitive": "ignore_case",
        "names_only": "output_mode",
    },
    values={"case_sensitive": _NOT, "names_only": {True: "files_with_matches", False: "content"}},
    fits=lambda request: request.output_mode != "count" and request.type is None,
)
_READ = f"{shared.READ_PAGES} start_line.\n{shared.FILE_FORMATS}"
_REPLACE = f"""\
Replace text in a file; returns a diff of the change.
old_string must match exactly one place, unless allow_multiple is set: copy it from the file \
without line numbers, with about three surrounding lines. {shared.EDIT_TOLERANCE}
{shared.CREATES_WITH_EMPTY_OLD}"""
_GLOB = f"""\
Find files by path pattern; returns sorted paths.
{shared.GLOB_SYNTAX}
To search the contents of files, use $GrepParams."""
_GREP = f"""\
Search the lines of files for a regular expression ({shared.REGEX_SYNTAX}), ignoring case; returns \
matching lines with their line numbers. Skips binary files and files ignored by .gitignore."""
_FILE_PATH = {"path": "file_path", "absolute_path": "file_path"}
_DIR_PATH = {"path": "dir_path"}
GEMINI: tuple[ToolSpec[Any], ...] = (
    shared.mapped(
        "list_directory",
        shared.LIST_DIRECTORY,
        shared.FieldMapping(
            ListDirectoryCall,
            requests.LsParams,
            {"dir_path": "path", "ignore": "exclude"},
            fits=lambda request: not request.offset,
        ),
        aliases=_DIR_PATH,
        read_only=True,
    ),
    ToolSpec(
        name="read_file",
        description=_READ,
        params=ReadLinesCall,
        requests=(requests.ReadFileParams,),
        decode=lambda params, _: shared.page_request(
            params.file_path, params.start_line, params.end_line
        ),
        encode=_encode_read,
        aliases=_FILE_PATH,
        read_only=True,
    ),
    shared.mapped(
        "write_file", shared.WRITE_WHOLE, shared.map_whole_text(WriteCall), aliases=_FILE_PATH
    ),
    shared.edit_tool(
        "replace",
        _REPLACE,
        shared.FieldMapping(
            ReplaceCall, requests.EditFileParams, {"allow_multiple": "replace_all"}
        ),
        shared.FieldMapping(
            CountedReplaceCall, requests.CountedEditParams, {"expected_replacements": "expected"}
        ),
        aliases={**_FILE_PATH, **shared.EDIT_ALIASES, "replace_all": "allow_multiple"},
    ),
    shared.mapped(
        "glob",
        _GLOB,
        shared.FieldMapping(
            GlobCall,
            requests.GlobParams,
            {"dir_path": "path", "respect_git_ignore": "include_ignored"},
            values={"respect_git_ignore": _NOT},
        ),
        aliases=_DIR_PATH,
        read_only=True,
    ),
    shared.mapped(
        "grep_search",
        _GREP,
        _GREP_FIELDS,
        aliases={**_DIR_PATH, "include": "include_pattern"},
        read_only=True,
        other_names=("search_file_content",),
    ),
    *shared.delete_and_move("delete_file", "move_file", aliases=_FILE_PATH),
)
