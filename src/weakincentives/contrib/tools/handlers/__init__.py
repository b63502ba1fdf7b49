"""Handlers and their registry: how each request is carried out, on every backend."""

from collections.abc import Mapping
from typing import Any

from weakincentives.contrib.tools import requests
from weakincentives.contrib.tools.context import Handler
from weakincentives.contrib.tools.handlers.edit import edit_expected, edit_file, insert_text
from weakincentives.contrib.tools.handlers.glob import glob
from weakincentives.contrib.tools.handlers.grep import grep
from weakincentives.contrib.tools.handlers.list import ls, stat, tree, workspace
from weakincentives.contrib.tools.handlers.move import mkdir, move, rm
from weakincentives.contrib.tools.handlers.patch import apply_patch
from weakincentives.contrib.tools.handlers.read import read_file, read_many
from weakincentives.contrib.tools.handlers.write import write_file

__all__ = ["HANDLERS"]


HANDLERS: Mapping[type[Any], Handler] = {
    requests.LsParams: ls,
    requests.ReadFileParams: read_file,
    requests.GlobParams: glob,
    requests.GrepParams: grep,
    requests.StatParams: stat,
    requests.TreeParams: tree,
    requests.WorkspaceParams: workspace,
    requests.ReadManyParams: read_many,
    requests.WriteFileParams: write_file,
    requests.EditFileParams: edit_file,
    requests.CountedEditParams: edit_expected,
    requests.RmParams: rm,
    requests.ApplyPatchParams: apply_patch,
    requests.InsertTextParams: insert_text,
    requests.MoveParams: move,
    requests.MkdirParams: mkdir,
}
"""The handler for each type of request."""
