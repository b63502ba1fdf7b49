"""The `wink` dialect: seven tools whose parameters are the workspace's own requests."""

from typing import Any

from weakincentives.contrib.tools import requests
from weakincentives.contrib.tools.dialects import shared
from weakincentives.contrib.tools.spec import ToolSpec

_LS = """\
List one directory: subdirectories first, then files with their sizes.
Use it to explore; it does not recurse. To find files at any depth, use $GlobParams."""

_READ_FILE = f"""\
Read a file: up to 2000 lines per call, each with its line number, counted from 1.
Read a file before you change it. To page through a long file, set offset, which counts from 0, \
or start_line, counted from 1.
{shared.FILE_FORMATS}
To find the relevant lines of a large file, use $GrepParams."""

_WRITE_FILE = """\
Create a file with the given content; missing parent directories are created.
Fails if the file exists, unless mode is "overwrite" (replace it) or "append" (add to its end).
To change part of a file, prefer $EditFileParams.
At most 48000 characters per call; write the rest with mode "append"."""

_EDIT_FILE = f"""\
Replace text in a file; returns a diff of the change.
old_string must match exactly one place, unless replace_all is set: copy it from the file without \
line numbers, with enough surrounding lines to be unique. {shared.EDIT_TOLERANCE}
For several replacements, set edits: they are applied in order, all or none.
Use $ReadFileParams first, so that you copy the current text."""

_GLOB = """\
Find files by path pattern, such as "**/*.py", "src/*.{ts,tsx}" or "docs/**"; returns sorted paths.
"*" matches within one directory, "**" across any number, so "*.py" finds only top-level files.
Files ignored by .gitignore are found only with include_ignored.
To search the contents of files, use $GrepParams."""

_GREP = f"""\
Search the lines of files for a regular expression ({shared.REGEX_SYNTAX}).
output_mode "content" returns matching lines with their line numbers, counted from 1; \
"files_with_matches" only paths; "count" the number of matching lines per file.
Narrow the search with path, glob ("*.py") or type ("py"); set context to see surrounding lines. \
Binary files and files ignored by .gitignore are not searched.
To find files by name, use $GlobParams."""

_RM = f"""\
{shared.DELETE_DESCRIPTION}
It does not ask for confirmation; if you are unsure what is there, look first."""

_FILE_PATH = {"path": "file_path", "filename": "file_path", "filePath": "file_path"}
_DIRECTORY = {"file_path": "path", "dir_path": "path", "directory": "path"}


WINK: tuple[ToolSpec[Any], ...] = (
    shared.pass_through(
        "ls", requests.LsParams, _LS, aliases={**_DIRECTORY, "ignore": "exclude"}, read_only=True
    ),
    shared.pass_through(
        "read_file", requests.ReadFileParams, _READ_FILE, aliases=_FILE_PATH, read_only=True
    ),
    shared.pass_through(
        "write_file",
        requests.WriteFileParams,
        _WRITE_FILE,
        aliases={**_FILE_PATH, "file_text": "content", "text": "content", "contents": "content"},
    ),
    shared.pass_through(
        "edit_file",
        requests.EditFileParams,
        _EDIT_FILE,
        aliases={
            **_FILE_PATH,
            **shared.EDIT_ALIASES,
            "replaceAll": "replace_all",
            "allow_multiple": "replace_all",
            "replacements": "edits",
            "dryRun": "dry_run",
        },
    ),
    shared.pass_through("glob", requests.GlobParams, _GLOB, aliases=_DIRECTORY, read_only=True),
    shared.pass_through(
        "grep",
        requests.GrepParams,
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
    shared.pass_through("rm", requests.RmParams, _RM, aliases=_DIRECTORY),
)
