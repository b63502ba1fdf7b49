"""Read git packs: indexes, whole objects, deltas, and the set of packs in a directory.

Packs are read by position; only their indexes are held in memory.
"""

import hashlib
import os
import struct
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from weakincentives.errors import WinkError
from weakincentives.posix import check_time, open_regular

MAX_OBJECT_SIZE = 512 * 1024 * 1024
"""Bytes of the largest object that is held in memory; git makes no deltas of larger ones."""
CHUNK_SIZE = 1024 * 1024
"""Bytes of the largest chunk that is read at once."""
KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
_OFFSET_DELTA, _REFERENCE_DELTA = 6, 7
_HEADER = struct.Struct(">4sII")
_INDEX_MAGIC = b"\xfftOc\0\0\0\x02"
_IDS_AT = 8 + 256 * 4  # after the magic number and the table of first bytes
_FAR = 0x80000000  # marks an offset that is in the table of large ones
_DIGEST = 20
_MIN_OBJECT_SIZE = 9  # bytes in a pack: the header and an empty deflate stream
_MAX_CHAIN = 4_096  # git allows 4,095 deltas on top of each other
_MAX_BASES = 16 * 1024 * 1024  # bytes of delta bases that are cached
_LINEAR_SEARCH_SIZE = 64  # ids; below it `find` is faster than a binary search


class PackError(WinkError, ValueError):
    """A pack, or an object in it, is damaged."""


class TooLargeError(PackError):
    """An object is too large for memory; that is not damage."""


def hash_object(kind: str, data: bytes) -> str:
    """Return git's id of an object: the SHA-1 of its header and content."""
    digest = hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)), usedforsecurity=False)
    digest.update(data)
    return digest.hexdigest()


def apply_delta(base: bytes, delta: bytes) -> bytes:
    """Return the object that `delta` describes relative to `base`.

    Raises:
        PackError: The delta is damaged or belongs to another object.
    """
    try:
        base_size, at = _read_number(delta, 0)
        size, at = _read_number(delta, at)
        if base_size != len(base):
            raise PackError("Delta belongs to another object")
        if size > MAX_OBJECT_SIZE:
            raise TooLargeError(f"Delta describes an object that is too large: {size} bytes")
        return _apply_instructions(base, delta, at, size)
    except IndexError:
        raise PackError("Delta is truncated") from None


def _apply_instructions(base: bytes, delta: bytes, at: int, size: int) -> bytes:
    parts: list[bytes] = []
    left = size
    while at < len(delta):
        part, at = _apply_instruction(base, delta, at)
        parts.append(part)
        left -= len(part)
        if left < 0:
            break
    if left:
        raise PackError("Delta describes an object of another size than it declares")
    return b"".join(parts)


def _apply_instruction(base: bytes, delta: bytes, at: int) -> tuple[bytes, int]:
    """Return the next part of the object and the position of the next instruction."""
    code = delta[at]
    at += 1
    if code & 0x80:
        return _copy_from_base(base, delta, at, code)
    part = delta[at : at + code]
    if not code or len(part) != code:
        raise PackError("Delta has an unknown or truncated instruction")
    return part, at + code


def _copy_from_base(base: bytes, delta: bytes, at: int, code: int) -> tuple[bytes, int]:
    offset = size = 0
    for bit in range(4):
        if code & 1 << bit:
            offset |= delta[at] << 8 * bit
            at += 1
    for bit in range(3):
        if code & 0x10 << bit:
            size |= delta[at] << 8 * bit
            at += 1
    size = size or 0x10000
    if offset + size > len(base):
        raise PackError("Delta copies bytes from beyond the end of its base")
    return base[offset : offset + size], at


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    """Return a little-endian number of seven bits per byte, and the position after it."""
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise PackError("Delta has a number that is too large")
    return value | data[at] << shift, at + 1


class Inflater:
    """A stream of the content of a packed object; a copy continues independently."""

    __slots__ = ("_at", "_data", "_engine", "_left", "_max_read", "_read")

    def __init__(self, read: Callable[[int, int], bytes], at: int, size: int) -> None:
        """Start at the beginning of an object of `size` bytes, compressed from `at` on.

        `read(offset, size)` returns at least one and at most `size` bytes, or raises.
        """
        self._read = read
        self._at = at
        self._left = size
        self._max_read = min(CHUNK_SIZE, max_packed_size(size))
        self._engine = zlib.decompressobj()
        self._data = b""

    def __iter__(self) -> Iterator[bytes]:
        """Yield the remaining chunks."""
        while chunk := self.read_chunk():
            yield chunk

    def read_chunk(self, most: int = CHUNK_SIZE) -> bytes:
        """Return the next chunk, of up to `most` bytes; empty at the end.

        Raises:
            PackError: The object is damaged.
        """
        while not self._engine.eof:
            if not self._data:
                self._data = self._read(self._at, self._max_read)
                self._at += len(self._data)
            try:
                chunk = self._engine.decompress(self._data, min(self._left + 1, most))
            except zlib.error as error:
                raise PackError(f"Pack is damaged before {self._at}: {error}") from None
            self._data = self._engine.unconsumed_tail
            self._left -= len(chunk)
            if self._left < 0:
                break
            if chunk:
                return chunk
        if self._left:
            raise PackError(f"Pack has an object of another size than declared before {self._at}")
        return b""

    def copy(self) -> Self:
        """Return an independent inflater at the same position."""
        duplicate = copy(self)
        duplicate._engine = self._engine.copy()  # noqa: SLF001  an object of this class
        return duplicate


def max_packed_size(size: int) -> int:
    """Return the most bytes that an object of `size` takes in any pack."""
    return size + (size >> 8) + 64


class ObjectStream(NamedTuple):
    """An object that is being read; its chunks have `size` bytes together, or raise.

    To read only part of it, or with seeks, use the `inflater` if there is one.
    """

    kind: str
    size: int
    chunks: Iterator[bytes]
    inflater: Inflater | None = None


class PackedObject(NamedTuple):
    """An object that is not a delta: its content, and its compressed bytes."""

    kind: str
    content: bytes
    deflated: bytes


class PackReader:
    """The objects of a pack, read by position; only the index is held in memory.

    It is thread-safe.
    """

    def __init__(
        self, read: Callable[[int, int], bytes], size_bytes: int, index: bytes, name: str
    ) -> None:
        """Read a pack of `size_bytes` through `read(offset, size)`, which returns some bytes.

        Raises:
            PackError: Pack or index are damaged, or do not belong together.
        """
        _check_index(index, name)
        self._read = read
        self.size_bytes: int = size_bytes
        self._fanout: tuple[int, ...] = struct.unpack(">256I", index[8:_IDS_AT])
        count = self._fanout[255]
        crcs = _IDS_AT + count * _DIGEST
        self._ids = index[_IDS_AT:crcs]
        self._near = index[crcs + count * 4 : crcs + count * 8]
        self._far = index[crcs + count * 8 : -2 * _DIGEST]
        self._bases: dict[int, tuple[str, bytes]] = {}
        self._bases_size = 0
        self._bases_lock = threading.Lock()
        self.checksum: bytes = index[-2 * _DIGEST : -_DIGEST]
        header, checksum = self._bytes(0, 12), self._bytes(size_bytes - _DIGEST, _DIGEST)
        if header not in {_HEADER.pack(b"PACK", version, count) for version in (2, 3)}:
            raise PackError(f"Pack does not belong to its index: {name!r}")
        if checksum != self.checksum:
            raise PackError(f"Pack does not belong to its index: {name!r}")

    def __len__(self) -> int:
        """Return the number of objects."""
        return self._fanout[255]

    def __iter__(self) -> Iterator[str]:
        """Yield the ids of all objects."""
        return (key.hex() for key in self.keys())

    def keys(self) -> Iterator[bytes]:
        """Yield the binary ids of all objects."""
        for at in range(0, len(self._ids), _DIGEST):
            yield self._ids[at : at + _DIGEST]

    def offset_of(self, key: bytes) -> int | None:
        """Return the offset of an object, or None if it is not in this pack."""
        first = key[0]
        low, high = self._fanout[first - 1] if first else 0, self._fanout[first]
        if low == high:
            return None  # the usual case in a small pack
        ids = self._ids
        while high - low > _LINEAR_SEARCH_SIZE:
            middle = (low + high) // 2
            if ids[middle * _DIGEST : middle * _DIGEST + _DIGEST] <= key:
                low = middle
            else:
                high = middle
        at, end = low * _DIGEST, high * _DIGEST
        while (at := ids.find(key, at, end)) != -1:
            if at % _DIGEST == 0:
                return self._offset(at // _DIGEST)
            at += 1  # the match spans two neighbouring ids
        return None

    def stream(self, offset: int) -> ObjectStream:
        """Return the object at `offset`; only a delta is held in memory.

        Raises:
            PackError: The object is damaged; also while its chunks are read.
        """
        number, size, at = self._header(offset)
        if number in KINDS:
            inflater = Inflater(self._bytes, at, size)
            return ObjectStream(KINDS[number], size, iter(inflater), inflater)
        kind, content = self.read(offset)
        return ObjectStream(kind, len(content), iter([content]))

    def read_raw(self, offset: int) -> PackedObject | None:
        """Return the object at `offset` if it is small, undamaged and not a delta."""
        try:
            number, size, at = self._header(offset)
            if number not in KINDS or size > CHUNK_SIZE:
                return None
            data = self._bytes(at, max_packed_size(size))
            inflater = zlib.decompressobj()
            content = inflater.decompress(data, size + 1)
        except (PackError, zlib.error):
            return None
        if len(content) != size or not inflater.eof:
            return None
        return PackedObject(KINDS[number], content, data[: len(data) - len(inflater.unused_data)])

    def read(self, offset: int) -> tuple[str, bytes]:
        """Return kind and content of the object at `offset`.

        Raises:
            PackError: The object is damaged, or too large for memory.
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
                raise PackError(f"Pack has a delta chain of more than {_MAX_CHAIN - 1} deltas")
            offset = base
        kind, content = known
        for above, at, size in reversed(deltas):
            self._cache_base(offset, kind, content)
            content, offset = apply_delta(content, self._inflate(at, size)), above
        return kind, content

    def _cache_base(self, offset: int, kind: str, content: bytes) -> None:
        """Cache the base of a delta: the next object probably has the same base."""
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
            return self.size_bytes  # past the end: reading it reports the damage
        return int.from_bytes(self._far[place : place + 8])

    def _header(self, offset: int) -> tuple[int, int, int]:
        """Return type number, size and the position after the header."""
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
        """Return the offset of a delta's base, and the position after the reference."""
        if number == _REFERENCE_DELTA:
            base = self.offset_of(self._bytes(at, _DIGEST).ljust(_DIGEST, b"\0"))
            if base is None:
                raise PackError(f"Pack does not contain the base of the delta at {offset}")
            return base, at + _DIGEST
        if number != _OFFSET_DELTA:
            raise PackError(f"Pack has an object of an unknown type at {offset}: {number}")
        data = self._bytes(at, 16)
        end, back = 0, data[0] & 0x7F
        while data[end] & 0x80:
            end += 1
            if end == len(data):
                raise PackError(f"Pack is damaged at {offset}")
            back = (back + 1) << 7 | data[end] & 0x7F
        if not 0 < back < offset:
            raise PackError(f"Pack has a delta with an invalid base at {offset}")
        return offset - back, at + end + 1

    def _inflate(self, at: int, size: int) -> bytes:
        if size > MAX_OBJECT_SIZE:
            raise TooLargeError(f"Object is too large for memory: {size} bytes")
        return b"".join(Inflater(self._bytes, at, size))

    def _bytes(self, offset: int, size: int) -> bytes:
        """Return at least one and at most `size` bytes."""
        data = b""
        if 0 <= offset < self.size_bytes:
            data = self._read(offset, min(size, self.size_bytes - offset))
        if not data:
            raise PackError(f"Pack ends before {offset}")
        return data


class Pack(PackReader):
    """A pack on disk.

    It stays readable after it is removed from the disk; its file is closed with the last
    reference to it.

    A damaged pack can still be read, but nothing new may rely on it: `is_suspect` is set. Damage
    is detected by the checksum, which is verified only if the file was modified after its index
    was written.
    """

    def __init__(self, index: Path, written: tuple[int, bytes] | None = None) -> None:
        """Read the index and open the pack beside it, unless they have just been written.

        Then `written` is the open pack, which it owns from now on, and the content of the index.

        Raises:
            FileNotFoundError: One of the two is missing.
            PackError: They are damaged, or do not belong together.
        """
        if written is None:
            self._descriptor, found = _open_file(index.with_suffix(".pack"))
        else:
            self._descriptor, found = written[0], os.fstat(written[0])
        weakref.finalize(self, os.close, self._descriptor)
        self.size_bytes: int = found.st_size
        self.name: str = index.stem
        self.inode: int = found.st_ino
        self._written = found.st_mtime_ns
        data, indexed = written[1] if written else b"", self._written
        if written is None:
            data, indexed = _read_index(index, found.st_size)
        read = partial(_read_file, self._descriptor, self.name)  # a method would make a cycle
        super().__init__(read, found.st_size, data, index.name)
        self.is_suspect: bool = self._written > indexed and not self._has_checksum()

    def has_changed(self) -> bool:
        """Return whether the file was modified since it was opened."""
        found = os.fstat(self._descriptor)
        return (found.st_size, found.st_mtime_ns) != (self.size_bytes, self._written)

    def mark_suspect(self) -> None:
        """Mark the pack as damaged, for other processes too, by its modification time."""
        self.is_suspect = True
        with suppress(OSError):
            os.utime(self._descriptor)
            self._written = os.fstat(self._descriptor).st_mtime_ns

    def _has_checksum(self) -> bool:
        digest = hashlib.sha1(usedforsecurity=False)
        end = self.size_bytes - _DIGEST
        for at in range(0, end, CHUNK_SIZE):
            check_time("Snapshot")
            digest.update(self._bytes(at, min(CHUNK_SIZE, end - at)))
        return digest.digest() == self.checksum


def _read_file(descriptor: int, name: str, offset: int, size: int) -> bytes:
    try:
        return os.pread(descriptor, size, offset)
    except OSError as error:
        raise PackError(f"Pack cannot be read at {offset}: {name!r}: {error}") from error


def _open_file(path: Path) -> tuple[int, os.stat_result]:
    """Open a regular file; return its descriptor and its metadata."""
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise PackError(f"Pack cannot be opened: {path.name!r}: {error}") from error


def _read_index(path: Path, pack_size: int) -> tuple[bytes, int]:
    """Return the content of an index, and its modification time."""
    descriptor, found = _open_file(path)
    size = found.st_size
    with os.fdopen(descriptor, "rb") as file:
        # the pack cannot contain more objects than its size allows
        if size > max_index_size(pack_size):
            raise PackError(f"Pack index is too large: {path.name!r}")
        return file.read(size), found.st_mtime_ns


def max_index_size(pack_size: int) -> int:
    """Return the most bytes that the index of a pack of `pack_size` bytes has."""
    return _IDS_AT + 2 * _DIGEST + (_DIGEST + 16) * (pack_size // _MIN_OBJECT_SIZE)


def index_ids(index: bytes) -> list[bytes]:
    """Return the ids of all objects in a pack by its index, sorted.

    Raises:
        PackError: It is damaged.
    """
    _check_index(index, "")
    (count,) = struct.unpack_from(">I", index, _IDS_AT - 4)
    return [index[at : at + _DIGEST] for at in range(_IDS_AT, _IDS_AT + count * _DIGEST, _DIGEST)]


def _check_index(data: bytes, name: str) -> None:
    if data[:8] != _INDEX_MAGIC or len(data) < _IDS_AT + 2 * _DIGEST:
        raise PackError(f"Pack index is damaged: {name!r}")
    fanout = struct.unpack(">256I", data[8:_IDS_AT])
    min_size = _IDS_AT + fanout[255] * (_DIGEST + 8) + 2 * _DIGEST
    if len(data) < min_size or list(fanout) != sorted(fanout):
        raise PackError(f"Pack index is damaged: {name!r}")
    digest = hashlib.sha1(memoryview(data)[:-_DIGEST], usedforsecurity=False)
    if digest.digest() != data[-_DIGEST:]:
        raise PackError(f"Pack index is damaged: {name!r}")
