"""The workspace in memory, its tools and what a session knows about it."""

from weakincentives.contrib.tools.dialects.classic import (
    DeleteFile,
    FileReadResult,
    ListDirectory,
    ReadFile,
    WriteFile,
)
from weakincentives.contrib.tools.projection import FileEncoding, VfsFile, VirtualFileSystem
from weakincentives.contrib.tools.sections import VfsSection, VfsToolsSection
from weakincentives.contrib.tools.suite import FILESYSTEM_TOOLS, filesystem_tools
from weakincentives.filesystem import HostMount, VfsPath, WriteMode

__all__ = [
    "FILESYSTEM_TOOLS",
    "DeleteFile",
    "FileEncoding",
    "FileReadResult",
    "HostMount",
    "ListDirectory",
    "ReadFile",
    "VfsFile",
    "VfsPath",
    "VfsSection",
    "VfsToolsSection",
    "VirtualFileSystem",
    "WriteFile",
    "WriteMode",
    "filesystem_tools",
]
