"""Filesystem events, emitted after each change, and their listeners.

Hashes are SHA-256 in hexadecimal; None means that there was no file, or that the entry has
no content (a directory or a link). The events in order are enough to maintain a journal or a
projection of the workspace.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal, TypeAlias

from weakincentives.filesystem.types import Kind, WriteMode
from weakincentives.posix import display_path


@dataclass(frozen=True, slots=True)
class FileWritten:
    """A file was created, replaced or appended to.

    `encoding` is "utf-8" or "binary", or None if the bytes were not examined.
    """

    path: str
    bytes_written: int
    mode: WriteMode = "overwrite"
    created: bool = False
    before_hash: str | None = None
    after_hash: str | None = None
    before_size: int | None = None
    after_size: int | None = None
    encoding: str | None = field(
        default=None, compare=False
    )  # a hint, not part of the event's identity

    def __str__(self) -> str:
        """Return the path and what happened to it."""
        return f"{display_path(self.path)} {'created' if self.created else 'written'}"


@dataclass(frozen=True, slots=True)
class FileDeleted:
    """A file, link or directory was removed, with everything below it."""

    path: str
    kind: Kind = "file"
    before_hash: str | None = None
    before_size: int | None = None

    def __str__(self) -> str:
        """Return the path and what happened to it."""
        return f"{display_path(self.path)} deleted"


@dataclass(frozen=True, slots=True)
class DirectoryCreated:
    """A directory was created."""

    path: str

    def __str__(self) -> str:
        """Return the path and what happened to it."""
        return f"{display_path(self.path)}/ created"


@dataclass(frozen=True, slots=True)
class PermissionsChanged:
    """A command changed the permissions of a directory."""

    path: str
    before: int
    after: int

    def __str__(self) -> str:
        """Return the path and what happened to it."""
        return f"{display_path(self.path)}/ permissions {self.before:o} -> {self.after:o}"


@dataclass(frozen=True, slots=True)
class LinkCreated:
    """A symbolic link was created, by copying one."""

    path: str
    target: str

    def __str__(self) -> str:
        """Return the path and what happened to it."""
        return f"{display_path(self.path)} -> {display_path(self.target)} created"


@dataclass(frozen=True, slots=True)
class EntryMoved:
    """A file, link or directory was moved, with everything below it."""

    source: str
    path: str
    kind: Kind = "file"

    def __str__(self) -> str:
        """Return both paths."""
        return f"{display_path(self.source)} moved to {display_path(self.path)}"


@dataclass(frozen=True, slots=True)
class StateReplaced:
    """The whole state was replaced, by a snapshot, an archive or a rollback; any file may differ.

    After a rollback the state is that of the savepoint. `rewritten` holds the paths that differ,
    or may differ, from before; None if that is not known. With `partial`, as in the undo of one
    change, nothing else was looked at. `reversible` is False if there was no room to keep the
    state before a restore.
    """

    reason: Literal["restore", "import", "rollback"]
    reference: str
    rewritten: frozenset[str] | None = field(default=None, compare=False)
    reversible: bool = field(default=True, compare=False)
    partial: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        """Return what happened."""
        return f". replaced by {self.reason} of {display_path(self.reference)}"


FilesystemEvent: TypeAlias = (
    FileWritten
    | FileDeleted
    | DirectoryCreated
    | PermissionsChanged
    | LinkCreated
    | EntryMoved
    | StateReplaced
)
Listener: TypeAlias = Callable[[FilesystemEvent], object]

_log = logging.getLogger(__name__)


class Listeners:
    """A thread-safe list of listeners; false while it is empty."""

    def __init__(self) -> None:
        """Start without listeners."""
        self._entries: tuple[tuple[Listener], ...] = ()
        self._lock = Lock()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._entries)

    def add(self, listener: Listener) -> Callable[[], None]:
        """Add a listener; return a function that removes it."""
        entry = (listener,)
        with self._lock:
            self._entries = (*self._entries, entry)

        def remove() -> None:
            with self._lock:
                self._entries = tuple(one for one in self._entries if one is not entry)

        return remove

    def notify(self, *events: FilesystemEvent) -> None:
        """Call every listener with each event; one that raises is logged and skipped."""
        for event in events:
            for (listener,) in self._entries:
                try:
                    listener(event)
                except Exception:  # noqa: BLE001 # the change has been made already
                    _log.exception("A filesystem listener failed on %s", event)
