"""Names of the specification: the filesystem protocol, its values and backends."""

from weakincentives.contrib.tools.results import GlobResult, GrepResult
from weakincentives.filesystem import (
    FileContent,
    FileEntry,
    Filesystem,
    FilesystemProtocol,
    GrepMatch,
    HostBackend,
    HostFilesystem,
    InMemoryBackend,
    InMemoryFilesystem,
    WriteResult,
)
from weakincentives.sandbox import ContainerBackend, ContainerFilesystem

__all__ = [
    "ContainerBackend",
    "ContainerFilesystem",
    "FileContent",
    "FileEntry",
    "Filesystem",
    "FilesystemProtocol",
    "GlobResult",
    "GrepMatch",
    "GrepResult",
    "HostBackend",
    "HostFilesystem",
    "InMemoryBackend",
    "InMemoryFilesystem",
    "WriteResult",
]
