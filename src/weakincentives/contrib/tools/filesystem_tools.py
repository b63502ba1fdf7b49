"""Names of the specification: the tools for any workspace."""

from weakincentives.contrib.tools.suite import (
    FILESYSTEM_TOOLS,
    edit_file_tool,
    glob_tool,
    grep_tool,
    ls_tool,
    move_file_tool,
    read_file_tool,
    rm_tool,
    write_file_tool,
)

__all__ = [
    "FILESYSTEM_TOOLS",
    "edit_file_tool",
    "glob_tool",
    "grep_tool",
    "ls_tool",
    "move_file_tool",
    "read_file_tool",
    "rm_tool",
    "write_file_tool",
]
