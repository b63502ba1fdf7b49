"""The table of who carries out which request."""

from collections.abc import Mapping
from typing import Any

from weakincentives.contrib.tools.filesystem.editing import edit_counted, edit_file
from weakincentives.contrib.tools.filesystem.finding import glob
from weakincentives.contrib.tools.filesystem.inserting import insert_text
from weakincentives.contrib.tools.filesystem.listing import ls, stat, workspace
from weakincentives.contrib.tools.filesystem.moving import mkdir, move
from weakincentives.contrib.tools.filesystem.outline import tree
from weakincentives.contrib.tools.filesystem.patching import apply_patch
from weakincentives.contrib.tools.filesystem.reading import read_file, read_many
from weakincentives.contrib.tools.filesystem.removing import rm
from weakincentives.contrib.tools.filesystem.searching import grep
from weakincentives.contrib.tools.filesystem.writing import write_file
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
from weakincentives.contrib.tools.workbench import Performer

PERFORMERS: Mapping[type[Any], Performer] = {
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
    CountedEditParams: edit_counted,
    RmParams: rm,
    ApplyPatchParams: apply_patch,
    InsertTextParams: insert_text,
    MoveParams: move,
    MkdirParams: mkdir,
}
"""Who carries out which request."""
