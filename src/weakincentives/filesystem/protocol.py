"""Structural protocols by capability: what tools and programs ask of a filesystem.

`Filesystem` is the whole interface that every tool needs. Everything else is a small
runtime-checkable protocol with the methods of one capability. A class that has the methods
has the capability, whatever it derives from; callers ask for the capability, not for a class.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from weakincentives.filesystem.events import Listener
from weakincentives.filesystem.savepoints import Savepoint
from weakincentives.filesystem.types import (
    FileEntry,
    FileStat,
    FilesystemSnapshot,
    GlobMatch,
    GrepMatch,
    LineStart,
    ReadBytesResult,
    ReadResult,
    Results,
    WriteMode,
    WriteResult,
)
from weakincentives.history import PathChange


@runtime_checkable
class Filesystem(Protocol):
    """A workspace of files, on any backend.

    Paths are relative to the root and use `/`. A path that leaves the root raises
    PermissionError; symbolic links are never followed.
    """

    def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, encoding: str = "utf-8"
    ) -> ReadResult:
        """Return a page of text: `limit` lines from line `offset`, which counts from 0.

        Raises:
            FileNotFoundError: The path does not exist.
            IsADirectoryError: The path is a directory.
            PermissionError: The file cannot be read, or a symbolic link is in the way.
            ValueError: The page is not text in `encoding`.
        """
        ...

    def read_bytes(
        self, path: str, *, offset: int = 0, limit: int | None = None
    ) -> ReadBytesResult:
        """Return `limit` bytes from byte `offset`; no limit means to the end.

        Raises:
            FileNotFoundError: The path does not exist.
            IsADirectoryError: The path is a directory.
            PermissionError: The file cannot be read, or a symbolic link is in the way.
        """
        ...

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""
        ...

    def stat(self, path: str) -> FileStat:
        """Return the metadata of an entry.

        Raises:
            FileNotFoundError: The path does not exist.
        """
        ...

    def list(self, path: str = ".") -> Sequence[FileEntry]:
        """Return the entries of a directory, sorted by name.

        Raises:
            FileNotFoundError: The path does not exist.
            NotADirectoryError: The path is a file.
        """
        ...

    def glob(self, pattern: str, *, path: str = ".") -> Sequence[GlobMatch]:
        """Return the matching files below `path`, sorted by path."""
        ...

    def grep(
        self,
        pattern: str,
        *,
        path: str = ".",
        glob: str | None = None,
        max_matches: int | None = None,
    ) -> Sequence[GrepMatch]:
        """Return the matching lines below `path`, sorted by path and line number."""
        ...

    def write(
        self, path: str, content: str, *, mode: WriteMode = "overwrite", create_parents: bool = True
    ) -> WriteResult:
        """Write text as UTF-8, atomically.

        Raises:
            FileExistsError: The path exists and the mode is "create".
            FileNotFoundError: The parent is missing and `create_parents` is False.
            PermissionError: The file cannot be written, or a symbolic link is in the way.
            ValueError: The content or the path exceeds the limits.
        """
        ...

    def write_bytes(
        self,
        path: str,
        content: bytes,
        *,
        mode: WriteMode = "overwrite",
        create_parents: bool = True,
    ) -> WriteResult:
        """Write bytes atomically; raises as `write` does."""
        ...

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or link, or with `recursive` a directory with everything below it.

        Raises:
            FileNotFoundError: The path does not exist.
            IsADirectoryError: The path is a directory and `recursive` is False.
            PermissionError: The entry cannot be removed.
        """
        ...

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Make a directory.

        Raises:
            FileExistsError: The directory exists and `exist_ok` is False, or the path is a file.
            FileNotFoundError: The parent is missing and `parents` is False.
        """
        ...

    @property
    def root(self) -> str:
        """The directory of the workspace; `/` if it is not on disk."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether writes raise PermissionError."""
        ...


@runtime_checkable
class Snapshotable(Protocol):
    """Keeps its whole state, and restores it."""

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        """Keep the present state.

        Raises:
            SnapshotError: The state could not be kept.
        """
        ...

    def restore(self, snapshot: FilesystemSnapshot) -> None:
        """Restore the state of a snapshot; everything created since is removed.

        Raises:
            SnapshotRestoreError: The state cannot be restored; nothing has changed.
        """
        ...


@runtime_checkable
class Archivable(Protocol):
    """Exports its whole state to a ZIP archive, and imports one."""

    def export_archive(self, path: Path) -> int:
        """Write the whole state to a ZIP file; return the number of files in it.

        Raises:
            OSError: A file cannot be read or written; what was at `path` is still there.
        """
        ...

    def import_archive(self, path: Path) -> int:
        """Replace the whole state with that of a ZIP file; return the number of files in it.

        Raises:
            ArchiveError: The file is not an archive, is damaged, or cannot be trusted; nothing
                has changed.
        """
        ...


@runtime_checkable
class Observable(Protocol):
    """Emits an event after every change."""

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` after every change; return a function that unsubscribes it."""
        ...


@runtime_checkable
class SnapshotableFilesystem(Filesystem, Snapshotable, Protocol):
    """A filesystem whose state can be kept and restored."""


@runtime_checkable
class ArchivableFilesystem(Filesystem, Archivable, Protocol):
    """A filesystem whose state can be exported to an archive and imported from one."""


@runtime_checkable
class ObservableFilesystem(Filesystem, Observable, Protocol):
    """A filesystem that emits an event after every change."""


@runtime_checkable
class Transactional(Protocol):
    """Has savepoints, which undo changes without a snapshot."""

    def savepoint(self) -> Savepoint:
        """Open a savepoint."""
        ...


@runtime_checkable
class Lockable(Protocol):
    """Has a lock that keeps other threads from changing files."""

    def hold(self) -> Callable[[], None]:
        """Take the write lock; return the function that releases it, in the same thread."""
        ...


@runtime_checkable
class Reversible(Protocol):
    """Stores the state before each restore, so that it can be undone."""

    @property
    def replaced(self) -> FilesystemSnapshot | None:
        """The state before the last restore; None if it could not be stored."""
        ...

    def compare(self, before: FilesystemSnapshot, after: FilesystemSnapshot) -> Sequence[str]:
        """Return the paths that differ between two snapshots, sorted."""
        ...


@runtime_checkable
class Pinnable(Protocol):
    """Can protect a snapshot from being pruned."""

    def pin(self, snapshot: FilesystemSnapshot) -> Callable[[], None]:
        """Protect a snapshot until the returned function is called."""
        ...


@runtime_checkable
class Viewable(Protocol):
    """Shows a snapshot as a read-only filesystem."""

    def view(self, snapshot: FilesystemSnapshot) -> Filesystem:
        """Return the files of a snapshot."""
        ...


@runtime_checkable
class ReportsChanges(Protocol):
    """Reports what each call changed, with what it replaced."""

    def subscribe_changes(
        self, listener: Callable[[Sequence[PathChange]], None]
    ) -> Callable[[], None]:
        """Call `listener` with the paths that a call changed; return how to unsubscribe it."""
        ...


@runtime_checkable
class HostBacked(Protocol):
    """Keeps its files in a directory of the host, where other programs can change them."""

    @property
    def root(self) -> str:
        """The directory."""
        ...

    def invalidate(self) -> None:
        """Drop what is cached about files: another program may have changed them."""
        ...


@runtime_checkable
class ChangeReporting(Protocol):
    """Knows by itself what confined programs change, without a call of `invalidate`."""

    @property
    def reported_programs(self) -> int:
        """How many confined programs have changed files so far, or may have."""
        ...


@runtime_checkable
class Movable(Protocol):
    """Moves an entry without copying it."""

    def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        """Move a file, link or directory with everything below it."""
        ...


@runtime_checkable
class Rewritable(Protocol):
    """Replaces a file of any size in one step."""

    def replace_content(
        self, path: str, content: bytes, *, expected: bytes | None = None
    ) -> WriteResult:
        """Replace the bytes of an existing file, if it has the `expected` bytes.

        The limit on one write does not apply.
        """
        ...


@runtime_checkable
class LineIndexed(Protocol):
    """Finds a line without reading every line before it."""

    def line_start(self, path: str, line: int) -> LineStart:
        """Return the byte at which `line`, counted from 0, begins, and the number of lines."""
        ...


@runtime_checkable
class IgnoreAware(Protocol):
    """Honours ignore files in its searches."""

    @property
    def ignore_files(self) -> Sequence[str]:
        """The names of the ignore files, such as `.gitignore`."""
        ...

    def glob(
        self, pattern: str, *, path: str = ".", use_ignore_files: bool = False
    ) -> Results[GlobMatch]:
        """Return matching files; with `use_ignore_files`, without those ignored."""
        ...

    def grep(
        self,
        pattern: str,
        *,
        path: str = ".",
        glob: str | None = None,
        max_matches: int | None = None,
        use_ignore_files: bool = False,
    ) -> Results[GrepMatch]:
        """Return matching lines; with `use_ignore_files`, not of files that are ignored."""
        ...


@runtime_checkable
class Closable(Protocol):
    """Holds something open."""

    def close(self) -> None:
        """Release it."""
        ...


CHANGING_METHODS = frozenset(
    {
        "copy",
        "hydrate_all_from_host",
        "hydrate_from_host",
        "import_archive",
        "move",
        "replace_content",
        "restore",
    }
)
"""The methods beyond `Filesystem` that change files: a wrapper must not just pass them on."""
