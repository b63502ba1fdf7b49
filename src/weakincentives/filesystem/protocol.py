"""The protocols that tools and programs are written against, by capability."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from weakincentives.filesystem.events import Listener
from weakincentives.filesystem.types import (
    FileEntry,
    FileStat,
    FilesystemSnapshot,
    GlobMatch,
    GrepMatch,
    ReadBytesResult,
    ReadResult,
    WriteMode,
    WriteResult,
)


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
            FileNotFoundError: Nothing is there.
            IsADirectoryError: A directory is there.
            PermissionError: It may not be read, or a link is in the way.
            ValueError: The page is not text in `encoding`.
        """
        ...

    def read_bytes(
        self, path: str, *, offset: int = 0, limit: int | None = None
    ) -> ReadBytesResult:
        """Return `limit` bytes from byte `offset`; no limit means to the end.

        Raises:
            FileNotFoundError: Nothing is there.
            IsADirectoryError: A directory is there.
            PermissionError: It may not be read, or a link is in the way.
        """
        ...

    def exists(self, path: str) -> bool:
        """Return whether something is there."""
        ...

    def stat(self, path: str) -> FileStat:
        """Return the metadata of what is there.

        Raises:
            FileNotFoundError: Nothing is there.
        """
        ...

    def list(self, path: str = ".") -> Sequence[FileEntry]:
        """Return the entries of a directory, sorted by name.

        Raises:
            FileNotFoundError: Nothing is there.
            NotADirectoryError: A file is there.
        """
        ...

    def glob(self, pattern: str, *, path: str = ".") -> Sequence[GlobMatch]:
        """Return the files below `path` that match, sorted by path."""
        ...

    def grep(
        self,
        pattern: str,
        *,
        path: str = ".",
        glob: str | None = None,
        max_matches: int | None = None,
    ) -> Sequence[GrepMatch]:
        """Return the lines below `path` that match, sorted by path and line number."""
        ...

    def write(
        self,
        path: str,
        content: str,
        *,
        mode: WriteMode = "overwrite",
        create_parents: bool = True,
    ) -> WriteResult:
        """Write text, as UTF-8, in one step.

        Raises:
            FileExistsError: Something is there and the mode is "create".
            FileNotFoundError: The parent is missing and `create_parents` is False.
            PermissionError: It may not be written, or a link is in the way.
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
        """Write bytes in one step; raises as `write` does."""
        ...

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or link, or with `recursive` a directory and all below it.

        Raises:
            FileNotFoundError: Nothing is there.
            IsADirectoryError: A directory is there and `recursive` is False.
            PermissionError: It may not be removed.
        """
        ...

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Make a directory.

        Raises:
            FileExistsError: It exists and `exist_ok` is False, or a file is there.
            FileNotFoundError: The parent is missing and `parents` is False.
        """
        ...

    @property
    def root(self) -> str:
        """Where the workspace is; `/` when it is nowhere on disk."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether writing is refused."""
        ...


@runtime_checkable
class SnapshotableFilesystem(Filesystem, Protocol):
    """A filesystem whose state can be kept and brought back."""

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        """Keep the present state.

        Raises:
            SnapshotError: It could not be kept.
        """
        ...

    def restore(self, snapshot: FilesystemSnapshot) -> None:
        """Make everything as it was then; what was made since is gone.

        Raises:
            SnapshotRestoreError: It cannot be done, and nothing has changed.
        """
        ...


@runtime_checkable
class ArchivableFilesystem(Filesystem, Protocol):
    """A filesystem whose state can be put into an archive, and taken from one."""

    def export_archive(self, path: Path) -> int:
        """Write the whole state to a ZIP file; return how many files are in it.

        Raises:
            OSError: Something cannot be read or written; what was at `path` is still there.
        """
        ...

    def import_archive(self, path: Path) -> int:
        """Make everything as it is in a ZIP file; return how many files are in it.

        Raises:
            ArchiveError: It is no archive, damaged, or not to be trusted; nothing has changed.
        """
        ...


@runtime_checkable
class ObservableFilesystem(Filesystem, Protocol):
    """A filesystem that tells what changes."""

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` after every change; return a function that ends it."""
        ...
