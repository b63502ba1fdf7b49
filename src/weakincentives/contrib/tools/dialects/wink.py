"""The `wink` dialect: eight tools whose parameters are the workspace's own requests."""

from typing import Any

from weakincentives.contrib.tools import requests
from weakincentives.contrib.tools.context import ToolSpec
from weakincentives.contrib.tools.dialects import shared

_READ_FILE = f"""\
{shared.READ_PAGES} offset.
{shared.FILE_FORMATS}
To find the relevant lines of a large file, use $GrepParams."""

_WRITE_FILE = """\
Create a file; replace or extend one with mode.
To change part of a file, use $EditFileParams.
At most 48000 characters per call; write the rest with mode "append"."""

_EDIT_FILE = f"""\
Replace text in a file; returns a diff of the change.
old_string must match exactly one place, unless replace_all is set: copy it from the file without \
line numbers, with enough surrounding lines to be unique. {shared.EDIT_TOLERANCE}
edits are applied in order, all or none."""

_GLOB = """\
Find files by path pattern; returns sorted paths.
"*" matches within one directory, "**" across any number: "*.py" finds top-level files, "**/*.py" \
files at any depth. Files ignored by .gitignore are found only with include_ignored.
To search the contents of files, use $GrepParams."""

_FILE_PATH = {"path": "file_path", "filename": "file_path", "filePath": "file_path"}


WINK: tuple[ToolSpec[Any], ...] = (
    shared.pass_through(
        "ls",
        requests.LsParams,
        shared.LIST_DIRECTORY,
        aliases={**shared.DIRECTORY_ALIASES, "ignore": "exclude"},
        read_only=True,
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
    shared.pass_through(
        "glob", requests.GlobParams, _GLOB, aliases=shared.DIRECTORY_ALIASES, read_only=True
    ),
    shared.GREP,
    shared.pass_through(
        "rm", requests.RmParams, shared.DELETE_DESCRIPTION, aliases=shared.DIRECTORY_ALIASES
    ),
    shared.pass_through(
        "move_file",
        requests.MoveParams,
        shared.MOVE_DESCRIPTION,
        aliases=shared.MOVE_ALIASES,
        other_names=("mv", "rename_file"),
    ),
)
