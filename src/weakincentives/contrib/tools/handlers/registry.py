"""The registry of handlers, by type of request."""

from collections.abc import Mapping
from typing import Any

from weakincentives.contrib.tools.context import Handler
from weakincentives.contrib.tools.handlers.edit import edit_expected, edit_file, insert_text
from weakincentives.contrib.tools.handlers.glob import glob
from weakincentives.contrib.tools.handlers.grep import grep
from weakincentives.contrib.tools.handlers.list import ls, stat, tree, workspace
from weakincentives.contrib.tools.handlers.move import mkdir, move, rm
from weakincentives.contrib.tools.handlers.patch import apply_patch
from weakincentives.contrib.tools.handlers.read import read_file, read_many
from weakincentives.contrib.tools.handlers.write import write_file
from weakincentives.contrib.tools.requests import (
    ApplyPatchParams,
    CountedEditParams,
    EditFileParams,
    GlobParams,
    GrepParams,
    InsertTextParams,
    LsParams,
    MkdirParams,
    MoveParams,
    ReadFileParams,
    ReadManyParams,
    RmParams,
    StatParams,
    TreeParams,
    WorkspaceParams,
    WriteFileParams,
)

HANDLERS: Mapping[type[Any], Handler] = {
    LsParams: ls,
    ReadFileParams: read_file,
    GlobParams: glob,
    GrepParams: grep,
    StatParams: stat,
    TreeParams: tree,
    WorkspaceParams: workspace,
    ReadManyParams: read_many,
    WriteFileParams: write_file,
    EditFileParams: edit_file,
    CountedEditParams: edit_expected,
    RmParams: rm,
    ApplyPatchParams: apply_patch,
    InsertTextParams: insert_text,
    MoveParams: move,
    MkdirParams: mkdir,
}
"""The handler for each type of request."""
