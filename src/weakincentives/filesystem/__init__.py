"""The workspace: one protocol, its backends, and what they share."""

from weakincentives.errors import SnapshotError, SnapshotRestoreError
from weakincentives.filesystem.archive import (
    DEFAULT_ARCHIVE_LIMITS,
    ArchiveError,
    ArchiveFilesystem,
    ArchiveLimits,
    ArchiveManifest,
    export_archive,
)
from weakincentives.filesystem.backend import BaseFilesystem
from weakincentives.filesystem.base import ReadableFilesystem, ReadOnlyError
from weakincentives.filesystem.diff import (
    Change,
    ChangeKind,
    Diff,
    DiffStatistics,
    LineCount,
    Omission,
    StaleDiffError,
    diff,
)
from weakincentives.filesystem.events import (
    DirectoryCreated,
    EntryMoved,
    FileDeleted,
    FilesystemEvent,
    FileWritten,
    LinkCreated,
    Listener,
    StateReplaced,
)
from weakincentives.filesystem.glob import InvalidGlobError, glob_match
from weakincentives.filesystem.grep import InvalidRegexError
from weakincentives.filesystem.host.filesystem import HostFilesystem
from weakincentives.filesystem.host.snapshots.history import SnapshotHistory
from weakincentives.filesystem.limits import (
    DEFAULT_LIMITS,
    DEFAULT_READ_LIMIT,
    MAX_GREP_MATCHES,
    MAX_PATH_DEPTH,
    MAX_SEGMENT_LENGTH,
    MAX_WRITE_LENGTH,
    READ_ENTIRE_FILE,
    LimitExceededError,
    Limits,
)
from weakincentives.filesystem.memory.filesystem import (
    MAX_MEMORY_SNAPSHOTS,
    MEMORY_LIMITS,
    InMemoryFilesystem,
)
from weakincentives.filesystem.memory.history import MemoryHistory
from weakincentives.filesystem.mounts import HostMount, MountProgress, MountReport, SkippedEntry
from weakincentives.filesystem.paths import (
    InvalidPathError,
    PathEscapeError,
    VfsPath,
    normalize_path,
    validate_path,
)
from weakincentives.filesystem.protocol import (
    ArchivableFilesystem,
    Filesystem,
    ObservableFilesystem,
    SnapshotableFilesystem,
)
from weakincentives.filesystem.savepoints import Savepoint, SavepointError
from weakincentives.filesystem.snapshot_manager import SnapshotInfo, SnapshotManager
from weakincentives.filesystem.text import BinaryContentError, BytesContent, Content
from weakincentives.filesystem.types import (
    Children,
    Coverage,
    FileEntry,
    FileStat,
    FilesystemSnapshot,
    GlobMatch,
    GrepMatch,
    Kind,
    LineStart,
    ReadBytesResult,
    ReadResult,
    Results,
    TruncationReason,
    WriteMode,
    WriteResult,
)
from weakincentives.gitstore import SnapshotProblem, StoreSize
from weakincentives.posix import BackendUnavailableError, TimeLimitError, time_limit

# names of earlier drafts
FilesystemProtocol = Filesystem
FileContent = ReadResult
InMemoryBackend = InMemoryFilesystem
HostBackend = HostFilesystem

__all__ = [
    "DEFAULT_ARCHIVE_LIMITS",
    "DEFAULT_LIMITS",
    "DEFAULT_READ_LIMIT",
    "MAX_GREP_MATCHES",
    "MAX_MEMORY_SNAPSHOTS",
    "MAX_PATH_DEPTH",
    "MAX_SEGMENT_LENGTH",
    "MAX_WRITE_LENGTH",
    "MEMORY_LIMITS",
    "READ_ENTIRE_FILE",
    "ArchivableFilesystem",
    "ArchiveError",
    "ArchiveFilesystem",
    "ArchiveLimits",
    "ArchiveManifest",
    "BackendUnavailableError",
    "BaseFilesystem",
    "BinaryContentError",
    "BytesContent",
    "Change",
    "ChangeKind",
    "Children",
    "Content",
    "Coverage",
    "Diff",
    "DiffStatistics",
    "DirectoryCreated",
    "EntryMoved",
    "FileContent",
    "FileDeleted",
    "FileEntry",
    "FileStat",
    "FileWritten",
    "Filesystem",
    "FilesystemEvent",
    "FilesystemProtocol",
    "FilesystemSnapshot",
    "GlobMatch",
    "GrepMatch",
    "HostBackend",
    "HostFilesystem",
    "HostMount",
    "InMemoryBackend",
    "InMemoryFilesystem",
    "InvalidGlobError",
    "InvalidPathError",
    "InvalidRegexError",
    "Kind",
    "LimitExceededError",
    "Limits",
    "LineCount",
    "LineStart",
    "LinkCreated",
    "Listener",
    "MemoryHistory",
    "MountProgress",
    "MountReport",
    "ObservableFilesystem",
    "Omission",
    "PathEscapeError",
    "ReadBytesResult",
    "ReadOnlyError",
    "ReadResult",
    "ReadableFilesystem",
    "Results",
    "Savepoint",
    "SavepointError",
    "SkippedEntry",
    "SnapshotError",
    "SnapshotHistory",
    "SnapshotInfo",
    "SnapshotManager",
    "SnapshotProblem",
    "SnapshotRestoreError",
    "SnapshotableFilesystem",
    "StaleDiffError",
    "StateReplaced",
    "StoreSize",
    "TimeLimitError",
    "TruncationReason",
    "VfsPath",
    "WriteMode",
    "WriteResult",
    "diff",
    "export_archive",
    "glob_match",
    "normalize_path",
    "time_limit",
    "validate_path",
]
