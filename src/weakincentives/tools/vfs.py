"""Names of the specification: the in-memory workspace, its tools and its session projection."""

from weakincentives.contrib.tools import (
    FILESYSTEM_TOOLS,
    DeleteFile,
    FileEncoding,
    FileReadResult,
    HostMount,
    ListDirectory,
    ReadFile,
    VfsFile,
    VfsPath,
    VfsSection,
    VfsToolsSection,
    VirtualFileSystem,
    WriteFile,
    WriteMode,
    filesystem_tools,
)

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
