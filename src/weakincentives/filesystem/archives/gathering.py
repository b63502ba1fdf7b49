"""What goes into an archive: read in order, and packed by as many threads as there are."""

import hashlib
from collections.abc import Generator, Iterator
from contextlib import closing

from weakincentives.filesystem.archives.format import FILES
from weakincentives.filesystem.archives.listing import listing
from weakincentives.filesystem.archives.names import entry_of
from weakincentives.filesystem.archives.reuse import EarlierArchive
from weakincentives.filesystem.archives.workers import in_order
from weakincentives.filesystem.archives.zipwriter import Copy, Packed, pack
from weakincentives.filesystem.compression import Codec
from weakincentives.filesystem.limits import check_time
from weakincentives.filesystem.searchable import SearchableFilesystem
from weakincentives.filesystem.text import Content
from weakincentives.filesystem.types import FileStat

LARGE = 1024 * 1024
"""Bytes: what is larger is not read as a whole."""

_BATCH = 256 * 1024  # bytes that are packed by one thread at a time
_MOST = 256  # entries in a batch


class Entry:
    """Something in the state, and what becomes of it in the archive."""

    __slots__ = (
        "data",
        "digest",
        "escaped",
        "found",
        "is_parent",
        "known",
        "packed",
        "permissions",
    )

    def __init__(self, escaped: str, found: FileStat, is_parent: bool) -> None:
        """Describe what was found; `is_parent` says that something is below it."""
        self.escaped: str = escaped
        self.found: FileStat = found
        self.is_parent: bool = is_parent
        self.permissions: int = found.permissions & 0o777
        self.digest: str | None = None
        self.known: Copy | None = None
        self.data: bytes | None = None
        self.packed: Packed | None = None

    @property
    def name(self) -> str:
        """The name of a file in the ZIP."""
        return FILES + entry_of(self.escaped)


class Gathering:
    """The entries of a state, in the order of the archive."""

    def __init__(self, fs: SearchableFilesystem, earlier: EarlierArchive, codec: Codec) -> None:
        """Read `fs` as it is now, if it can be frozen; `earlier` is what need not be packed."""
        self._state = fs._stable()  # pyright: ignore[reportPrivateUsage] # a state is read by its primitives
        self._lookup = self._state._lookup  # pyright: ignore[reportPrivateUsage] # the same
        self._open = self._state._open  # pyright: ignore[reportPrivateUsage] # the same
        self.is_frozen: bool = self._state is not fs
        self._earlier = earlier
        self._codec = codec

    def entries(self) -> Generator[Entry, None, None]:
        """Yield everything; small files have been read and packed, or are known."""
        with closing(in_order(self._prepared, self._batches())) as batches:
            for batch in batches:
                yield from batch

    def opened(self, found: FileStat) -> Content | None:
        """Open a file; None if it has gone, or been replaced by something else."""
        try:
            return self._open(found.path)
        except OSError:
            again = self._lookup(found.path)
            if again is not None and again.is_file:
                raise
            return None

    def _batches(self) -> Iterator[list[Entry]]:
        batch: list[Entry] = []
        size = 0
        for escaped, path, is_parent in listing(self._state):
            found = self._lookup(path)
            if found is None:
                continue  # gone since it was listed
            entry = Entry(escaped.removesuffix("/"), found, is_parent)
            if found.is_file and not self._read(entry):
                continue
            batch.append(entry)
            size += 0 if entry.data is None else len(entry.data)
            if size >= _BATCH or len(batch) >= _MOST:
                check_time("Archive")
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _read(self, entry: Entry) -> bool:
        """Read a file unless it is known or large; return False if it has gone."""
        found = entry.found
        if self.is_frozen:
            # a state that nobody changes remembers the hashes of its files
            entry.digest = found.content_hash
            if entry.digest is not None:
                entry.known = self._earlier.find(entry.escaped, found.size_bytes, entry.digest)
        if entry.known is None and found.size_bytes <= LARGE:
            content = self.opened(found)
            if content is None:
                return False
            with content:
                if content.size <= LARGE:
                    entry.data = content.read(0, content.size)
        return True

    def _prepared(self, batch: list[Entry]) -> list[Entry]:
        """Pack what has been read; runs in any thread."""
        for entry in batch:
            if entry.data is None:
                continue
            check_time("Archive")
            if entry.digest is None:
                entry.digest = hashlib.sha256(entry.data).hexdigest()
                entry.known = self._earlier.find(entry.escaped, len(entry.data), entry.digest)
            if entry.known is None:
                entry.packed = pack(self._codec, entry.data)
        return batch
