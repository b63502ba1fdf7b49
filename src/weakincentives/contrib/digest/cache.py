"""A cache of facts about files, by the hash of their content, and of the last digest.

A fact that is found by the hash of the very bytes that were read cannot be out of date. The last
digest is found by a fingerprint of the whole workspace, and the last inventory by the id of a
snapshot of it. The cache lives in memory, and in a file if there is a path. That file is replaced
atomically, holds what the last digest needed and no more, and can be removed at any time. Keep it
outside of the workspace: whoever can write it decides what a digest says.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from weakincentives.contrib.digest.definitions import Outline
from weakincentives.contrib.digest.scanner import FileNames
from weakincentives.posix import open_directory, read_regular, store_file, write_all

_FORMAT = 4  # raised whenever scanning or parsing changes, or a digest
_MAX_FILE = 256 * 1024 * 1024  # bytes


@dataclass(slots=True)
class _Facts:
    """What is known about files; the keys are hashes of their content."""

    names: dict[str, FileNames] = field(default_factory=dict[str, FileNames])
    outlines: dict[str, Outline] = field(default_factory=dict[str, Outline])


@dataclass(slots=True)
class _CacheFile:
    """The content of the file; most of it is decoded only if it is needed."""

    format: int = _FORMAT
    digest: tuple[str, bytes] | None = None
    """The last digest, encoded, and its key."""
    inventory: tuple[str, bytes] | None = None
    """The last inventory, encoded, and its key."""
    facts: bytes = b""


class DigestCache:
    """Makes the next digest of a workspace cost only what has changed.

    Use one cache for one workspace. It may be used by one thread at a time.
    """

    scans: int
    """Files whose names were scanned since the cache was made."""
    parses: int
    """Files that were parsed since the cache was made."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        """Keep facts in memory, and in the file `path` if there is one.

        A file that is missing, damaged or of another version is ignored, and replaced by `save`.
        """
        self.scans = 0
        self.parses = 0
        self._path = None if path is None else Path(path)
        self._file = self._load()
        self._decoded: _Facts | None = None
        self._used: dict[str, FileNames] = {}
        self._is_changed = False
        self._attempts = 0  # to parse a file

    def find_digest(self, key: str) -> bytes | None:
        """Return the last digest, encoded, if it has this key."""
        return _find(self._file.digest, key)

    def keep_digest(self, key: str, encoded: bytes) -> None:
        """Keep a digest until the next one, unless files could not be parsed in time."""
        if self._attempts == self.parses:
            self._file.digest = (key, encoded)
            self._is_changed = True

    def find_inventory(self, key: str) -> bytes | None:
        """Return the last inventory, encoded, if it has this key."""
        return _find(self._file.inventory, key)

    def keep_inventory(self, key: str, encoded: bytes) -> None:
        """Keep an inventory until the next one."""
        self._file.inventory = (key, encoded)
        self._is_changed = True

    def names(self, key: str, scan: Callable[[], FileNames]) -> FileNames:
        """Return the names of the file with this hash; `scan` finds them if they are new."""
        found = self._facts.names.get(key)
        if found is None:
            found = scan()
            self.scans += 1
            self._is_changed = True
        self._used[key] = found
        return found

    def find_names(self, key: str) -> FileNames | None:
        """Return the names of the file with this hash, if they are known."""
        found = self._facts.names.get(key)
        if found is not None:
            self._used[key] = found
        return found

    def find_outline(self, key: str) -> Outline | None:
        """Return the outline of the file with this hash, if it is known."""
        return self._facts.outlines.get(key)

    def outline(self, key: str, parse: Callable[[], Outline]) -> Outline:
        """Return the outline of the file with this hash; `parse` makes it if it is new."""
        found = self._facts.outlines.get(key)
        if found is None:
            self._attempts += 1
            found = parse()
            self.parses += 1
            self._is_changed = True
            self._facts.outlines[key] = found
        return found

    def save(self) -> None:
        """Forget the files whose names were not used since the last save; write the file, if any.

        A file that cannot be written is no error: the next digest takes longer, and no more.
        """
        self._is_changed |= len(self._used) < len(self._facts.names)
        outlines = self._facts.outlines
        kept = {key: found for key, found in outlines.items() if key in self._used}
        self._decoded = _Facts(names=self._used, outlines=kept)
        self._used = {}
        if self._path is not None and self._is_changed:
            self._file.facts = msgspec.msgpack.encode(self._decoded)
            with suppress(OSError):
                self._write(self._path, msgspec.msgpack.encode(self._file))
        self._is_changed = False

    @property
    def _facts(self) -> _Facts:
        if self._decoded is None:
            self._decoded = _Facts()
            with suppress(msgspec.MsgspecError, ValueError):
                self._decoded = msgspec.msgpack.decode(self._file.facts, type=_Facts)
        return self._decoded

    def _load(self) -> _CacheFile:
        if self._path is None:
            return _CacheFile()
        try:
            content = read_regular(self._path, _MAX_FILE)
            found = msgspec.msgpack.decode(content, type=_CacheFile)
        except (OSError, msgspec.MsgspecError, ValueError):
            return _CacheFile()
        return found if found.format == _FORMAT else _CacheFile()

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open_directory(path.parent) as directory:
            store_file(directory, path.name, lambda file: write_all(file, data), permissions=0o600)


def _find(entry: tuple[str, bytes] | None, key: str) -> bytes | None:
    return entry[1] if entry is not None and entry[0] == key else None
