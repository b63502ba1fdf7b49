"""Import shortcuts for the in-memory workspace, its tools and its session projection."""

from weakincentives.contrib.tools import (
    FILESYSTEM_TOOLS,
    VfsFile,
    VfsSection,
    VfsToolsSection,
    VirtualFileSystem,
    filesystem_tools,
)
from weakincentives.contrib.tools.dialects.classic import (
    DeleteFile,
    FileReadResult,
    ListDirectory,
    ReadFile,
    WriteFile,
)
from weakincentives.contrib.tools.projection import FileEncoding
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
