"""The dialect `wink`: the seven tools of the workspace, as its own requests say them."""

from typing import Any

from weakincentives.contrib.tools.dialects.shared import EDIT_ALIASES, fields_as_they_are, identity
from weakincentives.contrib.tools.requests import (
    EditFileParams,
    GlobParams,
    GrepParams,
    LsParams,
    ReadFileParams,
    RmParams,
    WriteFileParams,
)
from weakincentives.contrib.tools.spec import ToolSpec

_LS = """\
List a directory: directories first, then files with their sizes.
Use it to look around; it does not go into directories. $GlobParams finds files at any depth."""

_READ_FILE = """\
Read a file, 2000 lines at a time, each with its number before it; the numbers count from 1.
Read a file before you change it. Page through a long one with offset, which counts from 0, or \
start_line, which counts from 1.
Notebooks are shown as cells, pictures as pictures where you can see them, and other binary files \
as a hex dump. $GrepParams finds the lines that matter in a large file."""

_WRITE_FILE = """\
Create a file with the given content, and the directories on the way to it.
A file that exists is left alone unless mode is "overwrite" (replace it) or "append" (add to its \
end).
$EditFileParams is the better way to change a part of a file.
At most 48000 characters in one call; write the rest with mode "append"."""

_EDIT_FILE = """\
Replace text in a file, and return what changed as a diff.
old_string must be in the file exactly once, unless replace_all is set: quote it as the file has \
it, without line numbers, with enough lines around it. Small slips in white space and quotation \
marks are forgiven where the place is clear, and told.
Several replacements go into edits: they are made in order, all or none.
Use $ReadFileParams first, so that you quote what is there."""

_GLOB = """\
Find files by a pattern of their path, sorted by path: "**/*.py", "src/*.{ts,tsx}", "docs/**".
"*" stays in one directory and "**" spans any number, so "*.py" finds only files at the top.
Files that .gitignore leaves out are found only with include_ignored.
$GrepParams searches what is in files."""

_GREP = """\
Search the lines of files for a regular expression (RE2: no look-around, no back references).
output_mode "content" shows the lines with their numbers, which count from 1, \
"files_with_matches" only the paths, "count" how many lines match in each file.
Narrow a search down with path, glob ("*.py") or type ("py"); show lines around a match with \
context. Files that .gitignore leaves out, and binary files, are not searched.
$GlobParams finds files by name."""

_RM = """\
Remove a file, or a directory with everything in it.
It asks nothing back: look first if you are not sure what is there."""

_FILE_PATH = {"path": "file_path", "filename": "file_path", "filePath": "file_path"}
_DIRECTORY = {"file_path": "path", "dir_path": "path", "directory": "path"}


def _spec(name: str, request: type[Any], description: str, **more: Any) -> ToolSpec[Any]:
    return ToolSpec(
        name=name,
        description=description,
        params=request,
        requests=(request,),
        decode=identity,
        encode=fields_as_they_are,
        **more,
    )


WINK: tuple[ToolSpec[Any], ...] = (
    _spec("ls", LsParams, _LS, aliases={**_DIRECTORY, "ignore": "exclude"}, read_only=True),
    _spec("read_file", ReadFileParams, _READ_FILE, aliases=_FILE_PATH, read_only=True),
    _spec(
        "write_file",
        WriteFileParams,
        _WRITE_FILE,
        aliases={**_FILE_PATH, "file_text": "content", "text": "content", "contents": "content"},
    ),
    _spec(
        "edit_file",
        EditFileParams,
        _EDIT_FILE,
        aliases={
            **_FILE_PATH,
            **EDIT_ALIASES,
            "replaceAll": "replace_all",
            "allow_multiple": "replace_all",
            "replacements": "edits",
            "dryRun": "dry_run",
        },
    ),
    _spec("glob", GlobParams, _GLOB, aliases=_DIRECTORY, read_only=True),
    _spec(
        "grep",
        GrepParams,
        _GREP,
        aliases={
            **_DIRECTORY,
            "include": "glob",
            "-i": "ignore_case",
            "-A": "after",
            "-B": "before",
            "-C": "context",
            "max_count": "head_limit",
        },
        read_only=True,
    ),
    _spec("rm", RmParams, _RM, aliases=_DIRECTORY),
)
