"""What changed in a filesystem, told after it has happened.

Hashes are SHA-256 in hexadecimal; None stands for "there was nothing" and for
what has no content of its own. Together, in order, the events are enough to keep
a journal or a projection of the workspace.
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

    `encoding` is "utf-8" or "binary", and None where the bytes were not looked at.
    """

    path: str
    bytes_written: int
    mode: WriteMode = "overwrite"
    created: bool = False
    before_hash: str | None = None
    after_hash: str | None = None
    before_size: int | None = None
    after_size: int | None = None
    encoding: str | None = field(default=None, compare=False)  # a hint, no part of what happened

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
    """A directory was made."""

    path: str

    def __str__(self) -> str:
        """Return the path and what happened to it."""
        return f"{display_path(self.path)}/ created"


@dataclass(frozen=True, slots=True)
class LinkCreated:
    """A symbolic link was copied to a new place."""

    path: str
    target: str

    def __str__(self) -> str:
        """Return the path and what happened to it."""
        return f"{display_path(self.path)} -> {display_path(self.target)} created"


@dataclass(frozen=True, slots=True)
class EntryMoved:
    """A file, link or directory got a new path, with everything below it."""

    source: str
    path: str
    kind: Kind = "file"

    def __str__(self) -> str:
        """Return both paths."""
        return f"{display_path(self.source)} moved to {display_path(self.path)}"


@dataclass(frozen=True, slots=True)
class StateReplaced:
    """Everything was replaced at once, by a snapshot or an archive; anything may differ.

    After a rollback everything is as it was when a savepoint was made. `rewritten` are the
    files that have other bytes than before, or may have; None where that is not known.
    `reversible` is False if there was no room to keep the state before a restore.
    """

    reason: Literal["restore", "import", "rollback"]
    reference: str
    rewritten: frozenset[str] | None = field(default=None, compare=False)
    reversible: bool = field(default=True, compare=False)

    def __str__(self) -> str:
        """Return what happened."""
        return f". replaced by {self.reason} of {display_path(self.reference)}"


FilesystemEvent: TypeAlias = (
    FileWritten | FileDeleted | DirectoryCreated | LinkCreated | EntryMoved | StateReplaced
)
Listener: TypeAlias = Callable[[FilesystemEvent], object]

_log = logging.getLogger(__name__)


class Listeners:
    """Those who want to know; false while there is nobody."""

    def __init__(self) -> None:
        """Start with nobody."""
        self._entries: tuple[tuple[Listener], ...] = ()
        self._lock = Lock()

    def __bool__(self) -> bool:
        """Whether anybody listens."""
        return bool(self._entries)

    def add(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` from now on; return a function that ends it."""
        entry = (listener,)
        with self._lock:
            self._entries = (*self._entries, entry)

        def remove() -> None:
            with self._lock:
                self._entries = tuple(one for one in self._entries if one is not entry)

        return remove

    def tell(self, *events: FilesystemEvent) -> None:
        """Tell everybody, in order; one who fails is logged and stops nothing."""
        for event in events:
            for (listener,) in self._entries:
                try:
                    listener(event)
                except Exception:  # noqa: BLE001 # the change stands whatever a listener does
                    _log.exception("A filesystem listener failed on %s", event)
