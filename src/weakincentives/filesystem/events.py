"""What changed in a filesystem, told after it has happened.

Hashes are SHA-256 in hexadecimal; None stands for "there was nothing" and for
what has no content of its own. Together, in order, the events are enough to keep
a journal or a projection of the workspace.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from weakincentives.filesystem.paths import shown
from weakincentives.filesystem.types import Kind, WriteMode


@dataclass(frozen=True, slots=True)
class FileWritten:
    """A file was created, replaced or appended to."""

    path: str
    bytes_written: int
    mode: WriteMode = "overwrite"
    created: bool = False
    before_hash: str | None = None
    after_hash: str | None = None
    before_size: int | None = None
    after_size: int | None = None

    def __str__(self) -> str:
        """Return the path and what happened to it."""
        return f"{shown(self.path)} {'created' if self.created else 'written'}"


@dataclass(frozen=True, slots=True)
class FileDeleted:
    """A file, link or directory was removed, with everything below it."""

    path: str
    kind: Kind = "file"
    before_hash: str | None = None
    before_size: int | None = None

    def __str__(self) -> str:
        """Return the path and what happened to it."""
        return f"{shown(self.path)} deleted"


@dataclass(frozen=True, slots=True)
class DirectoryCreated:
    """A directory was made."""

    path: str

    def __str__(self) -> str:
        """Return the path and what happened to it."""
        return f"{shown(self.path)}/ created"


@dataclass(frozen=True, slots=True)
class LinkCreated:
    """A symbolic link was copied to a new place."""

    path: str
    target: str

    def __str__(self) -> str:
        """Return the path and what happened to it."""
        return f"{shown(self.path)} -> {shown(self.target)} created"


@dataclass(frozen=True, slots=True)
class EntryMoved:
    """A file, link or directory got a new path, with everything below it."""

    source: str
    path: str
    kind: Kind = "file"

    def __str__(self) -> str:
        """Return both paths."""
        return f"{shown(self.source)} moved to {shown(self.path)}"


FilesystemEvent: TypeAlias = FileWritten | FileDeleted | DirectoryCreated | LinkCreated | EntryMoved
Listener: TypeAlias = Callable[[FilesystemEvent], object]
