"""The tool suite: the tools of a dialect, each with its handler."""

from collections.abc import Mapping
from typing import Any

from weakincentives.contrib.tools import context, requests
from weakincentives.contrib.tools.dialects import DIALECTS, DialectName
from weakincentives.contrib.tools.handlers.edit import edit_expected, edit_file, insert_text
from weakincentives.contrib.tools.handlers.glob import glob
from weakincentives.contrib.tools.handlers.grep import grep
from weakincentives.contrib.tools.handlers.list import ls, stat, tree, workspace
from weakincentives.contrib.tools.handlers.move import mkdir, move, rm
from weakincentives.contrib.tools.handlers.patch import apply_patch
from weakincentives.contrib.tools.handlers.read import read_file, read_many
from weakincentives.contrib.tools.handlers.write import write_file
from weakincentives.prompt import Tool

HANDLERS: Mapping[type[Any], context.Handler] = {
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


def create_dialect(
    dialect: DialectName = "wink",
    *,
    handlers: Mapping[type[Any], context.Handler] = HANDLERS,
    read_only: bool = False,
) -> context.Dialect:
    """Return the tools of a dialect whose requests have a handler, or only the read-only ones.

    Raises:
        PromptError: The dialect is unknown.
    """
    return context.select_specs(DIALECTS, dialect, handlers, read_only=read_only)


def filesystem_tools(
    dialect: DialectName = "wink",
    *,
    settings: context.ToolSettings = context.DEFAULT_SETTINGS,
    binding: context.Binding | None = None,
    extra_handlers: Mapping[type[Any], context.Handler] | None = None,
    read_only: bool = False,
) -> tuple[Tool[Any, Any], ...]:
    """Return the tools of a workspace, with the names and parameters of a dialect.

    Args:
        dialect: The dialect.
        settings: Limits and rules of the tools.
        binding: Returns the context for each call.
        extra_handlers: Handlers for further requests that the dialect knows; a shell, for example.
        read_only: Leave out the tools that can change something.

    Raises:
        PromptError: The dialect is unknown.
    """
    handlers = {**HANDLERS, **(extra_handlers or {})}
    offered = create_dialect(dialect, handlers=handlers, read_only=read_only)
    return context.build_tools(offered, handlers, settings, binding)


_TOOLS = {tool.name: tool for tool in filesystem_tools()}
ls_tool: Tool[Any, Any] = _TOOLS["ls"]
read_file_tool: Tool[Any, Any] = _TOOLS["read_file"]
write_file_tool: Tool[Any, Any] = _TOOLS["write_file"]
edit_file_tool: Tool[Any, Any] = _TOOLS["edit_file"]
glob_tool: Tool[Any, Any] = _TOOLS["glob"]
grep_tool: Tool[Any, Any] = _TOOLS["grep"]
rm_tool: Tool[Any, Any] = _TOOLS["rm"]
move_file_tool: Tool[Any, Any] = _TOOLS["move_file"]
FILESYSTEM_TOOLS = (
    ls_tool,
    read_file_tool,
    write_file_tool,
    edit_file_tool,
    glob_tool,
    grep_tool,
    rm_tool,
)
"""Seven tools of the `wink` dialect, for any workspace; `move_file_tool` is the eighth."""
