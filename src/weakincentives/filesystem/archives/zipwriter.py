"""ZIP files, written so that the same entries give the same bytes.

Times are fixed, compression too. An entry of another archive can be taken over as it
is packed.
"""

import os
import stat
import zlib
from collections.abc import Callable, Iterable
from struct import Struct
from typing import NamedTuple

from weakincentives.filesystem.archives.format import DEFAULT_ARCHIVE_LIMITS, RATIO_FREE_BYTES
from weakincentives.filesystem.archives.ziprecords import (
    CENTRAL,
    CENTRAL_SIGNATURE,
    DEFLATED,
    END,
    END64,
    END64_SIGNATURE,
    END_SIGNATURE,
    FASTEST,
    LOCAL,
    LOCAL_SIGNATURE,
    LOCATOR64,
    LOCATOR64_SIGNATURE,
    MAX_16,
    MAX_32,
    STORED,
    UNIX,
    UTF8,
    ZIP64_EXTRA,
    ZipMember,
)
from weakincentives.filesystem.limits import check_time
from weakincentives.filesystem.staging import write_all

LEVEL = 1
_BUFFER = 1024 * 1024
WIDE = 0xF0000000  # sizes from here on get 64 bits, which leaves room for what deflate adds
_VERSION = 45  # of the format: 64 bits
_TIME, _DATE = 0, (1 << 5) | 1  # midnight of 1980-01-01, the first that a ZIP knows
_WIDE_SIZES = Struct("<2H2Q")

Chunks = Callable[[], Iterable[bytes]]


class Packed(NamedTuple):
    """What came of an entry: its size, and the checksum of its packed bytes."""

    size: int
    packed_crc: int


class ZipWriter:
    """Writes a ZIP to an open, empty file."""

    def __init__(self, descriptor: int) -> None:
        """Begin at the beginning."""
        self._descriptor = descriptor
        self._buffer = bytearray()
        self._flushed = 0
        self._members: list[ZipMember] = []
        self._excess = 0

    @property
    def _offset(self) -> int:
        return self._flushed + len(self._buffer)

    def add(self, name: str, permissions: int, data: bytes) -> Packed:
        """Add a file whose content is in memory."""
        packed = zlib.compress(data, LEVEL, -15)
        flags = UTF8 | FASTEST
        if self._spend(len(data), len(packed)):
            packed, flags = _huffman(data), UTF8
        method = DEFLATED
        if len(packed) >= len(data):
            packed, method, flags = data, STORED, UTF8
        mode, crc = stat.S_IFREG | permissions, zlib.crc32(data)
        member = ZipMember(name, flags, method, crc, len(packed), len(data), mode, self._offset)
        self._members.append(member)
        self._write(local_header(member, wide=False) + packed)
        return Packed(len(data), zlib.crc32(packed))

    def add_large(self, name: str, permissions: int, expected: int, chunks: Chunks) -> Packed:
        """Add a file a chunk at a time; it has up to `expected` bytes.

        `chunks` may be asked for twice.
        """
        self._flush()
        mode = stat.S_IFREG | permissions
        member = ZipMember(name, UTF8 | FASTEST, DEFLATED, 0, 0, 0, mode, self._flushed)
        wide = expected >= WIDE
        written, crc = self._stream(member, wide, chunks(), zlib.Z_DEFAULT_STRATEGY)
        if self._spend(written.size, written.packed_size):
            os.ftruncate(self._descriptor, member.offset)
            os.lseek(self._descriptor, member.offset, os.SEEK_SET)
            self._flushed = member.offset
            member = member._replace(flags=UTF8)
            written, crc = self._stream(member, wide, chunks(), zlib.Z_HUFFMAN_ONLY)
        os.pwrite(self._descriptor, local_header(written, wide), member.offset)
        self._members.append(written)
        return Packed(written.size, crc)

    def add_raw(self, member: ZipMember, permissions: int, pieces: Iterable[bytes]) -> None:
        """Add a file as it is in another archive: `pieces` are its header and packed bytes."""
        mode = stat.S_IFREG | permissions
        self._members.append(member._replace(mode=mode, offset=self._offset))
        for piece in pieces:
            self._write(piece)

    def add_directory(self, name: str, permissions: int) -> None:
        """Add a directory; `name` ends with a slash."""
        mode = stat.S_IFDIR | permissions
        member = ZipMember(name, UTF8, STORED, 0, 0, 0, mode, self._offset)
        self._members.append(member)
        self._write(local_header(member, wide=False))

    def takes(self, size: int, packed_size: int) -> bool:
        """Return whether an entry packed so tightly may be added, and count it if so."""
        return not self._spend(size, packed_size)

    def finish(self) -> None:
        """Write the directory."""
        begin = self._offset
        for member in self._members:
            self._write(_central(member))
        length = self._offset - begin
        self._write(_end(len(self._members), length, begin))
        self._flush()

    def _spend(self, size: int, packed_size: int) -> bool:
        """Count what exceeds the ratio that readers allow; return True if that is too much."""
        excess = max(0, size - packed_size * DEFAULT_ARCHIVE_LIMITS.max_ratio)
        if self._excess + excess > RATIO_FREE_BYTES:
            return True
        self._excess += excess
        return False

    def _stream(
        self, member: ZipMember, wide: bool, chunks: Iterable[bytes], strategy: int
    ) -> tuple[ZipMember, int]:
        """Write an entry whose sizes are not known yet; return it with them, and a checksum."""
        self._write(local_header(member, wide))
        size = crc = packed_size = packed_crc = 0
        for raw, packed in _compressed(strategy, chunks):
            size += len(raw)
            crc = zlib.crc32(raw, crc)
            packed_size += len(packed)
            packed_crc = zlib.crc32(packed, packed_crc)
            self._write(packed)
        self._flush()
        return member._replace(size=size, crc=crc, packed_size=packed_size), packed_crc

    def _write(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= _BUFFER:
            self._flush()

    def _flush(self) -> None:
        write_all(self._descriptor, bytes(self._buffer))
        self._flushed += len(self._buffer)
        self._buffer.clear()


def _huffman(data: bytes) -> bytes:
    """Return `data` packed without looking for repetitions: at most eight to one."""
    return b"".join(packed for _, packed in _compressed(zlib.Z_HUFFMAN_ONLY, (data,)))


def _compressed(strategy: int, chunks: Iterable[bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Yield what goes in with what comes out."""
    engine = zlib.compressobj(LEVEL, zlib.DEFLATED, -15, zlib.DEF_MEM_LEVEL, strategy)
    for chunk in chunks:
        check_time("Archive")
        yield chunk, engine.compress(chunk)
    yield b"", engine.flush()


def local_header(member: ZipMember, wide: bool) -> bytes:
    """Return what stands before the packed bytes of an entry; `wide` if sizes need 64 bits."""
    name = member.name.encode()
    sizes, extra = (member.packed_size, member.size), b""
    if wide:
        extra = _WIDE_SIZES.pack(ZIP64_EXTRA, 16, member.size, member.packed_size)
        sizes = (MAX_32, MAX_32)
    lengths = len(name), len(extra)
    fixed = _VERSION, member.flags, member.method, _TIME, _DATE, member.crc
    return LOCAL.pack(LOCAL_SIGNATURE, *fixed, *sizes, *lengths) + name + extra


def _central(member: ZipMember) -> bytes:
    name = member.name.encode()
    wide = b""
    small: list[int] = []
    for value in (member.size, member.packed_size, member.offset):
        if value >= WIDE:
            wide += value.to_bytes(8, "little")
        small.append(MAX_32 if value >= WIDE else value)
    if wide:
        wide = ZIP64_EXTRA.to_bytes(2, "little") + len(wide).to_bytes(2, "little") + wide
    size, packed_size, offset = small
    made_by = (UNIX << 8) | _VERSION
    external = (member.mode << 16) | (0x10 if member.is_directory else 0)
    fixed = made_by, _VERSION, member.flags, member.method, _TIME, _DATE, member.crc
    lengths = len(name), len(wide), 0
    tail = 0, 0, external, offset
    return CENTRAL.pack(CENTRAL_SIGNATURE, *fixed, packed_size, size, *lengths, *tail) + name + wide


def _end(count: int, length: int, begin: int) -> bytes:
    wide = b""
    if count >= MAX_16 or length >= WIDE or begin >= WIDE:
        fixed = END64.size - 12, (UNIX << 8) | _VERSION, _VERSION, 0, 0
        wide = END64.pack(END64_SIGNATURE, *fixed, count, count, length, begin)
        wide += LOCATOR64.pack(LOCATOR64_SIGNATURE, 0, begin + length, 1)
        count, length, begin = MAX_16, MAX_32, MAX_32
    return wide + END.pack(END_SIGNATURE, 0, 0, count, count, length, begin, 0)
