"""The workspace in memory, its tools and what a session knows about it."""

from weakincentives.contrib.tools.projection import VfsFile, VirtualFileSystem
from weakincentives.contrib.tools.sections import VfsSection, VfsToolsSection
from weakincentives.contrib.tools.suite import FILESYSTEM_TOOLS, filesystem_tools
from weakincentives.filesystem import HostMount, VfsPath

__all__ = [
    "FILESYSTEM_TOOLS",
    "HostMount",
    "VfsFile",
    "VfsPath",
    "VfsSection",
    "VfsToolsSection",
    "VirtualFileSystem",
    "filesystem_tools",
]
