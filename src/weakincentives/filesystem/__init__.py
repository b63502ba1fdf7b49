"""Virtual filesystems: one protocol, its backends, and the base classes they share."""

from weakincentives.errors import SnapshotError, SnapshotRestoreError
from weakincentives.filesystem.archive import (
    DEFAULT_ARCHIVE_LIMITS,
    ArchiveError,
    ArchiveFilesystem,
    ArchiveLimits,
    ArchiveManifest,
    export_archive,
)
from weakincentives.filesystem.backend import BaseFilesystem, TransactionalFilesystem
from weakincentives.filesystem.backend import export_state as export_state
from weakincentives.filesystem.backend import import_state as import_state
from weakincentives.filesystem.backend import is_exportable as is_exportable
from weakincentives.filesystem.base import ReadableFilesystem, ReadOnlyError, StaleContentError
from weakincentives.filesystem.diff import (
    Change,
    ChangeKind,
    Diff,
    DiffStatistics,
    LineCount,
    Omission,
    StaleDiffError,
    diff,
    diff_since,
)
from weakincentives.filesystem.events import (
    DirectoryCreated,
    EntryMoved,
    FileDeleted,
    FilesystemEvent,
    FileWritten,
    LinkCreated,
    Listener,
    PermissionsChanged,
    StateReplaced,
)
from weakincentives.filesystem.glob import InvalidGlobError, glob_match
from weakincentives.filesystem.grep import InvalidRegexError
from weakincentives.filesystem.host import HostFilesystem
from weakincentives.filesystem.host.journal.completion import ChangeListener
from weakincentives.filesystem.host.snapshots.history import SnapshotHistory
from weakincentives.filesystem.ignore import IGNORE_FILES as IGNORE_FILES
from weakincentives.filesystem.ignore import MAX_IGNORE_FILE as MAX_IGNORE_FILE
from weakincentives.filesystem.ignore import IgnoreRules as IgnoreRules
from weakincentives.filesystem.limits import (
    DEFAULT_LIMITS,
    DEFAULT_READ_LIMIT,
    MAX_GREP_MATCHES,
    MAX_PATH_DEPTH,
    MAX_SEGMENT_LENGTH,
    MAX_WRITE_LENGTH,
    POSIX_LIMITS,
    READ_ENTIRE_FILE,
    LimitExceededError,
    Limits,
)
from weakincentives.filesystem.manifest import VERSION as VERSION
from weakincentives.filesystem.memory.filesystem import (
    MAX_MEMORY_SNAPSHOTS,
    MEMORY_LIMITS,
    InMemoryFilesystem,
    MemoryHistory,
)
from weakincentives.filesystem.mounts import (
    HostMount,
    Mountable,
    MountProgress,
    MountReport,
    SkippedEntry,
)
from weakincentives.filesystem.paths import (
    InvalidPathError,
    PathEscapeError,
    VfsPath,
    normalize_path,
    validate_path,
)
from weakincentives.filesystem.protocol import (
    Archivable,
    ArchivableFilesystem,
    ChangeReporting,
    Closable,
    Filesystem,
    HostBacked,
    IgnoreAware,
    LineIndexed,
    Lockable,
    Movable,
    Observable,
    ObservableFilesystem,
    Pinnable,
    ReportsChanges,
    Reversible,
    Rewritable,
    Snapshotable,
    SnapshotableFilesystem,
    Transactional,
    Viewable,
)
from weakincentives.filesystem.reproducible import REPRODUCIBLE_MARKERS as REPRODUCIBLE_MARKERS
from weakincentives.filesystem.reproducible import REPRODUCIBLE_NAMES as REPRODUCIBLE_NAMES
from weakincentives.filesystem.reproducible import CompletedFilesystem as CompletedFilesystem
from weakincentives.filesystem.reproducible import ReproducibleFiles as ReproducibleFiles
from weakincentives.filesystem.reproducible import SourceFilesystem as SourceFilesystem
from weakincentives.filesystem.reproducible import is_byproduct as is_byproduct
from weakincentives.filesystem.reproducible import is_cache as is_cache
from weakincentives.filesystem.savepoints import Savepoint, SavepointError
from weakincentives.filesystem.savepoints import SavepointStorage as SavepointStorage
from weakincentives.filesystem.snapshot_manager import ARCHIVE_SUFFIX as ARCHIVE_SUFFIX
from weakincentives.filesystem.snapshot_manager import ArchiveDirectory as ArchiveDirectory
from weakincentives.filesystem.snapshot_manager import FileIdentity as FileIdentity
from weakincentives.filesystem.snapshot_manager import SnapshotInfo, SnapshotManager
from weakincentives.filesystem.snapshot_manager import read_identity as read_identity
from weakincentives.filesystem.snapshot_manager import seal as seal
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
from weakincentives.history import Kept, PathChange
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
    "POSIX_LIMITS",
    "READ_ENTIRE_FILE",
    "Archivable",
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
    "ChangeListener",
    "ChangeReporting",
    "Children",
    "Closable",
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
    "HostBacked",
    "HostBackend",
    "HostFilesystem",
    "HostMount",
    "IgnoreAware",
    "InMemoryBackend",
    "InMemoryFilesystem",
    "InvalidGlobError",
    "InvalidPathError",
    "InvalidRegexError",
    "Kept",
    "Kind",
    "LimitExceededError",
    "Limits",
    "LineCount",
    "LineIndexed",
    "LineStart",
    "LinkCreated",
    "Listener",
    "Lockable",
    "MemoryHistory",
    "MountProgress",
    "MountReport",
    "Mountable",
    "Movable",
    "Observable",
    "ObservableFilesystem",
    "Omission",
    "PathChange",
    "PathEscapeError",
    "PermissionsChanged",
    "Pinnable",
    "ReadBytesResult",
    "ReadOnlyError",
    "ReadResult",
    "ReadableFilesystem",
    "ReportsChanges",
    "Results",
    "Reversible",
    "Rewritable",
    "Savepoint",
    "SavepointError",
    "SkippedEntry",
    "SnapshotError",
    "SnapshotHistory",
    "SnapshotInfo",
    "SnapshotManager",
    "SnapshotProblem",
    "SnapshotRestoreError",
    "Snapshotable",
    "SnapshotableFilesystem",
    "StaleContentError",
    "StaleDiffError",
    "StateReplaced",
    "StoreSize",
    "TimeLimitError",
    "Transactional",
    "TransactionalFilesystem",
    "TruncationReason",
    "VfsPath",
    "Viewable",
    "WriteMode",
    "WriteResult",
    "diff",
    "diff_since",
    "export_archive",
    "glob_match",
    "normalize_path",
    "time_limit",
    "validate_path",
]
