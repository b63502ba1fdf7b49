"""Reads git pack files: many objects in one file, with an index beside it.

What we write holds whole objects only. What is read may hold deltas too, because a
person may have run `git gc` on the store.
"""

import hashlib
import os
import struct
import threading
import weakref
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from weakincentives.filesystem.limits import check_time
from weakincentives.filesystem.regular import open_regular
from weakincentives.filesystem.store.deltas import LARGEST, PackError, TooLargeError, patched
from weakincentives.filesystem.store.inflating import PIECE, Inflater, packed_size

KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
_OFFSET_DELTA, _REFERENCE_DELTA = 6, 7
_HEADER = struct.Struct(">4sII")
_INDEX_MAGIC = b"\xfftOc\0\0\0\x02"
_IDS_AT = 8 + 256 * 4  # after the magic number and the table of first bytes
_FAR = 0x80000000  # marks an offset that is in the table of large ones
_DIGEST = 20
_SMALLEST = 9  # bytes of an object in a pack, the header and an empty deflate stream
_MAX_CHAIN = 4_096  # git allows 4,095 deltas on top of each other
_MAX_BASES = 16 * 1024 * 1024  # bytes of bases of deltas that are kept
_SCANNED = 64  # ids that are quicker searched than halved


class Stream(NamedTuple):
    """An object that is being read; its chunks are as long as `size` says, or damaged.

    Who does not want all of it, or not in order, takes the `inflater` if there is one.
    """

    kind: str
    size: int
    chunks: Iterator[bytes]
    inflater: Inflater | None = None


class Packed(NamedTuple):
    """A whole object, as it is and as it is packed."""

    kind: str
    content: bytes
    deflated: bytes


class Pack:
    """A pack on disk, read by position; only the index is held in memory.

    It stays readable when it is removed from the disk, and its file is closed when
    nobody refers to it any more. Threads may share it.

    A pack that was damaged is read all the same, but nothing new may rely on it:
    `is_suspect` says so. It is known by its checksum, which is looked at if somebody has
    written to the file after its index was made.
    """

    def __init__(self, index: Path) -> None:
        """Read the index and open the pack beside it.

        Raises:
            FileNotFoundError: One of the two is not there.
            PackError: They are damaged, or do not belong together.
        """
        self._descriptor, found = _opened(index.with_suffix(".pack"))
        weakref.finalize(self, os.close, self._descriptor)
        self.size_bytes: int = found.st_size
        self.inode: int = found.st_ino
        self._written = found.st_mtime_ns
        data, indexed = _index_data(index, self.size_bytes)
        self._fanout: tuple[int, ...] = struct.unpack(">256I", data[8:_IDS_AT])
        count = self._fanout[255]
        crcs = _IDS_AT + count * _DIGEST
        self._ids = data[_IDS_AT:crcs]
        self._near = data[crcs + count * 4 : crcs + count * 8]
        self._far = data[crcs + count * 8 : -2 * _DIGEST]
        self._bases: dict[int, tuple[str, bytes]] = {}
        self._bases_size = 0
        self._bases_lock = threading.Lock()
        header, checksum = self._bytes(0, 12), self._bytes(self.size_bytes - _DIGEST, _DIGEST)
        if header not in {_HEADER.pack(b"PACK", version, count) for version in (2, 3)}:
            raise PackError(f"Pack does not belong to its index: {index.name!r}")
        if checksum != data[-2 * _DIGEST : -_DIGEST]:
            raise PackError(f"Pack does not belong to its index: {index.name!r}")
        self.is_suspect: bool = self._written > indexed and not self._is_whole(checksum)

    def __len__(self) -> int:
        """How many objects there are."""
        return self._fanout[255]

    def __iter__(self) -> Iterator[str]:
        """Yield the ids of all objects."""
        for at in range(0, len(self._ids), _DIGEST):
            yield self._ids[at : at + _DIGEST].hex()

    def has_changed(self) -> bool:
        """Return whether somebody has written to the file since it was opened."""
        found = os.fstat(self._descriptor)
        return (found.st_size, found.st_mtime_ns) != (self.size_bytes, self._written)

    def distrust(self) -> None:
        """Take note, for other processes too, that something in here is damaged."""
        self.is_suspect = True
        with suppress(OSError):
            os.utime(self._descriptor)
            self._written = os.fstat(self._descriptor).st_mtime_ns

    def offset_of(self, key: bytes) -> int | None:
        """Return where an object begins, or None if it is not here."""
        first = key[0]
        low, high = self._fanout[first - 1] if first else 0, self._fanout[first]
        if low == high:
            return None  # at once: in a small pack that is nearly always so
        ids = self._ids
        while high - low > _SCANNED:
            middle = (low + high) // 2
            if ids[middle * _DIGEST : middle * _DIGEST + _DIGEST] <= key:
                low = middle
            else:
                high = middle
        at, end = low * _DIGEST, high * _DIGEST
        while (at := ids.find(key, at, end)) != -1:
            if at % _DIGEST == 0:
                return self._offset(at // _DIGEST)
            at += 1  # the bytes of two neighbours look like the id
        return None

    def stream(self, offset: int) -> Stream:
        """Return the object that begins at `offset`; a whole one is never held in memory.

        Raises:
            PackError: The object is damaged; also while its chunks are read.
        """
        number, size, at = self._header(offset)
        if number in KINDS:
            inflater = Inflater(self._bytes, at, size)
            return Stream(KINDS[number], size, iter(inflater), inflater)
        kind, content = self.read(offset)
        return Stream(kind, len(content), iter([content]))

    def packed(self, offset: int) -> Packed | None:
        """Return the object that begins at `offset` if it is small, undamaged and no delta."""
        try:
            number, size, at = self._header(offset)
            if number not in KINDS or size > PIECE:
                return None
            data = self._bytes(at, packed_size(size))
            inflater = zlib.decompressobj()
            content = inflater.decompress(data, size + 1)
        except (PackError, zlib.error):
            return None
        if len(content) != size or not inflater.eof:
            return None
        return Packed(KINDS[number], content, data[: len(data) - len(inflater.unused_data)])

    def read(self, offset: int) -> tuple[str, bytes]:
        """Return kind and content of the object that begins at `offset`.

        Raises:
            PackError: The object is damaged, or too large to be held.
        """
        deltas: list[tuple[int, int, int]] = []
        while (known := self._bases.get(offset)) is None:
            number, size, at = self._header(offset)
            if number in KINDS:
                known = KINDS[number], self._inflate(at, size)
                break
            base, at = self._base(offset, number, at)
            deltas.append((offset, at, size))
            if len(deltas) == _MAX_CHAIN:
                raise PackError("Pack holds too many deltas on top of each other")
            offset = base
        kind, content = known
        for above, at, size in reversed(deltas):
            self._remember(offset, kind, content)
            content, offset = patched(content, self._inflate(at, size)), above
        return kind, content

    def _remember(self, offset: int, kind: str, content: bytes) -> None:
        """Keep the base of a delta: the next object is probably made from it too."""
        with self._bases_lock:
            if offset in self._bases or len(content) > _MAX_BASES:
                return
            if self._bases_size + len(content) > _MAX_BASES:
                self._bases.clear()
                self._bases_size = 0
            self._bases[offset] = kind, content
            self._bases_size += len(content)

    def _offset(self, position: int) -> int:
        (near,) = struct.unpack_from(">I", self._near, position * 4)
        if not near & _FAR:
            return near
        place = (near & ~_FAR) * 8
        if place + 8 > len(self._far):
            return self.size_bytes  # where nothing is: damage shows when it is read
        return int.from_bytes(self._far[place : place + 8])

    def _header(self, offset: int) -> tuple[int, int, int]:
        """Return type, size and the position after them."""
        data = self._bytes(offset, 16)
        number, size, shift, at = data[0] >> 4 & 7, data[0] & 15, 4, 0
        while data[at] & 0x80:
            at += 1
            if at == len(data):
                raise PackError(f"Pack is damaged at {offset}")
            size |= (data[at] & 0x7F) << shift
            shift += 7
        return number, size, offset + at + 1

    def _base(self, offset: int, number: int, at: int) -> tuple[int, int]:
        """Return where the base of a delta begins, and the position after that."""
        if number == _REFERENCE_DELTA:
            base = self.offset_of(self._bytes(at, _DIGEST).ljust(_DIGEST, b"\0"))
            if base is None:
                raise PackError(f"Pack does not hold the base of a delta at {offset}")
            return base, at + _DIGEST
        if number != _OFFSET_DELTA:
            raise PackError(f"Pack holds an object of an unknown type at {offset}: {number}")
        data = self._bytes(at, 16)
        end, back = 0, data[0] & 0x7F
        while data[end] & 0x80:
            end += 1
            if end == len(data):
                raise PackError(f"Pack is damaged at {offset}")
            back = (back + 1) << 7 | data[end] & 0x7F
        if not 0 < back < offset:
            raise PackError(f"Pack holds a delta of nothing at {offset}")
        return offset - back, at + end + 1

    def _inflate(self, at: int, size: int) -> bytes:
        if size > LARGEST:
            raise TooLargeError(f"Object is too large to be held: {size}")
        return b"".join(Inflater(self._bytes, at, size))

    def _is_whole(self, checksum: bytes) -> bool:
        digest = hashlib.sha1(usedforsecurity=False)
        end = self.size_bytes - _DIGEST
        for at in range(0, end, PIECE):
            check_time("Snapshot")
            digest.update(self._bytes(at, min(PIECE, end - at)))
        return digest.digest() == checksum

    def _bytes(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes, and at least one."""
        data = b""
        if 0 <= offset < self.size_bytes:
            try:
                data = os.pread(self._descriptor, size, offset)
            except OSError as error:
                raise PackError(f"Pack cannot be read at {offset}: {error}") from error
        if not data:
            raise PackError(f"Pack ends before {offset}")
        return data


def _opened(path: Path) -> tuple[int, os.stat_result]:
    """Open a regular file; return its descriptor and what is known about it."""
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise PackError(f"Pack cannot be opened: {path.name!r}: {error}") from error


def _index_data(path: Path, pack_size: int) -> tuple[bytes, int]:
    """Return the content of an index, as long as it says it is, undamaged, and its time."""
    descriptor, found = _opened(path)
    size = found.st_size
    with os.fdopen(descriptor, "rb") as file:
        # a pack of this size has room for so many objects and no more
        if size > _IDS_AT + 2 * _DIGEST + (_DIGEST + 16) * (pack_size // _SMALLEST):
            raise PackError(f"Pack index is too large: {path.name!r}")
        data = file.read(size)
    if data[:8] != _INDEX_MAGIC or len(data) < _IDS_AT + 2 * _DIGEST:
        raise PackError(f"Pack index is damaged: {path.name!r}")
    fanout = struct.unpack(">256I", data[8:_IDS_AT])
    least = _IDS_AT + fanout[255] * (_DIGEST + 8) + 2 * _DIGEST
    if len(data) < least or list(fanout) != sorted(fanout):
        raise PackError(f"Pack index is damaged: {path.name!r}")
    digest = hashlib.sha1(memoryview(data)[:-_DIGEST], usedforsecurity=False)
    if digest.digest() != data[-_DIGEST:]:
        raise PackError(f"Pack index is damaged: {path.name!r}")
    return data, found.st_mtime_ns
