"""Tools for agents, the sections that bring them, and what a session knows of their work."""

from weakincentives.contrib.tools.projection import VfsFile, VirtualFileSystem
from weakincentives.contrib.tools.sections import (
    ClaudeAgentWorkspaceSection,
    FilesystemSection,
    HostWorkspaceSection,
    VfsSection,
    VfsToolsSection,
    WorkspaceSection,
)
from weakincentives.contrib.tools.suite import FILESYSTEM_TOOLS, filesystem_tools
from weakincentives.contrib.tools.workbench import ToolSettings
from weakincentives.filesystem import HostMount, InMemoryFilesystem

__all__ = [
    "FILESYSTEM_TOOLS",
    "ClaudeAgentWorkspaceSection",
    "FilesystemSection",
    "HostMount",
    "HostWorkspaceSection",
    "InMemoryFilesystem",
    "ToolSettings",
    "VfsFile",
    "VfsSection",
    "VfsToolsSection",
    "VirtualFileSystem",
    "WorkspaceSection",
    "filesystem_tools",
]
