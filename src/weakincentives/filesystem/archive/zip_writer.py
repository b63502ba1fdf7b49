"""ZIP files, written so that the same entries give the same bytes.

Times are fixed, compression too. Entries of another archive can be taken over as they
are packed.
"""

import os
import stat
import zlib
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import NamedTuple, Protocol

from weakincentives.filesystem.archive.format import (
    DEFAULT_ARCHIVE_LIMITS,
    RATIO_FREE_BYTES,
    FileRecord,
)
from weakincentives.filesystem.archive.zip_records import (
    CENTRAL_SIGNATURE,
    DEFLATED,
    FASTEST,
    STORED,
    UTF8,
    ZipMember,
    central,
    end_records,
    entry_prefix,
    is_wide,
    local_header,
)
from weakincentives.posix import Codec, Deflater, check_time, write_all

BEGINNINGS = frozenset({entry_prefix(UTF8 | FASTEST, DEFLATED), entry_prefix(UTF8, STORED)})
"""How records in the directory go on, for what is packed as it should be or not at all."""
RUN = 1024 * 1024
"""Bytes of entries that are copied at once; one that is larger is copied alone."""
_BUFFER = 256 * 1024
_TAIL = Struct("<2L")  # of a record in the directory: external attributes, offset
_ATTRIBUTES, _NAME = 34, 42  # where these are, and the name is, counting from the signature
Chunks = Callable[[], Iterable[bytes]]


class CompressedContent(NamedTuple):
    """Content as it is stored; `packed_crc` is the checksum of the packed bytes."""

    packed: bytes
    method: int
    flags: int
    crc: int
    packed_crc: int


class StoredEntry(NamedTuple):
    """What came of an entry: its size, and the checksum of its packed bytes."""

    size: int
    packed_crc: int


class RawCopy(NamedTuple):
    """An entry of another archive."""

    record: FileRecord
    listed: bytes
    """Its record in the directory, without the signature."""
    header: bytes
    offset: int
    end: int
    packed_size: int


class RawSource(Protocol):
    """Another archive."""

    def checked(self, run: Sequence[RawCopy]) -> Iterable[bytes]:
        """Yield the bytes of entries that follow each other, once they have been checked."""
        ...


def pack(codec: Codec, data: bytes) -> CompressedContent:
    """Return content as it is stored: packed, unless that is not smaller."""
    packed, method, flags = codec.deflate(data), DEFLATED, UTF8 | FASTEST
    if len(packed) >= len(data):
        packed, method, flags = data, STORED, UTF8
    return CompressedContent(packed, method, flags, codec.crc32(data), codec.crc32(packed))


class ZipWriter:
    """Writes a ZIP to an open, empty file."""

    def __init__(self, descriptor: int, codec: Codec, source: RawSource) -> None:
        """Begin at the beginning; `source` is where copies come from."""
        self._descriptor = descriptor
        self._codec = codec
        self._source = source
        self._run: list[RawCopy] = []
        self._run_size = 0
        self._run_end = -1
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._flushed = 0
        self._directory = bytearray()
        self._count = 0
        self._excess = 0

    @property
    def _offset(self) -> int:
        return self._flushed + self._buffered + self._run_size

    def add(
        self, name: str, permissions: int, packed: CompressedContent, data: bytes
    ) -> StoredEntry:
        """Add a file whose content is `data`, and what it has been packed to."""
        self._settle()
        if not self._takes(len(data), len(packed.packed)):
            packed = self._loosely(packed, data)
        mode = stat.S_IFREG | permissions
        fixed = packed.flags, packed.method, packed.crc
        member = ZipMember(name, *fixed, len(packed.packed), len(data), mode, self._offset)
        self._list(central(member))
        self._write(local_header(member, wide=False))
        self._write(packed.packed)
        return StoredEntry(len(data), packed.packed_crc)

    def add_large(self, name: str, permissions: int, expected: int, chunks: Chunks) -> StoredEntry:
        """Add a file a chunk at a time; it has up to `expected` bytes.

        `chunks` may be asked for twice.
        """
        self._settle()
        self._flush()
        mode = stat.S_IFREG | permissions
        flags = UTF8 | FASTEST
        member = ZipMember(name, flags, DEFLATED, 0, 0, 0, mode, self._flushed)
        wide = is_wide(expected)
        written, crc = self._stream(member, wide, chunks(), self._codec.deflater())
        if not self._takes(written.size, written.packed_size):
            os.ftruncate(self._descriptor, member.offset)
            os.lseek(self._descriptor, member.offset, os.SEEK_SET)
            self._flushed = member.offset
            member = member._replace(flags=UTF8)
            written, crc = self._stream(member, wide, chunks(), _huffman())
        os.pwrite(self._descriptor, local_header(written, wide), member.offset)
        self._list(central(written))
        return StoredEntry(written.size, crc)

    def add_directory(self, name: str, permissions: int) -> None:
        """Add a directory; `name` ends with a slash."""
        self._settle()
        mode = stat.S_IFDIR | permissions
        member = ZipMember(name, UTF8, STORED, 0, 0, 0, mode, self._offset)
        self._list(central(member))
        self._write(local_header(member, wide=False))

    def add_copy(self, copy: RawCopy, permissions: int) -> bool:
        """Add a file as it is in the other archive, unless it would have to be packed anew."""
        record, listed, _, begin, end, packed_size = copy
        offset = self._flushed + self._buffered + self._run_size
        if is_wide(offset) or not self._takes(record.size, packed_size):
            return False
        if begin != self._run_end or self._run_size + end - begin > RUN:
            self._settle()
        tail = _TAIL.pack((stat.S_IFREG | permissions) << 16, offset)
        self._list(CENTRAL_SIGNATURE + listed[:_ATTRIBUTES] + tail + listed[_NAME:])
        self._run.append(copy)
        self._run_size += end - begin
        self._run_end = end
        return True

    def finish(self) -> None:
        """Write the directory."""
        self._settle()
        begin, length = self._offset, len(self._directory)
        self._flush()
        write_all(self._descriptor, bytes(self._directory))
        write_all(self._descriptor, end_records(self._count, length, begin))

    def _takes(self, size: int, packed_size: int) -> bool:
        """Return whether an entry packed so tightly may be added, and count it if so."""
        excess = size - packed_size * DEFAULT_ARCHIVE_LIMITS.max_ratio
        if excess <= 0:
            return True
        if self._excess + excess > RATIO_FREE_BYTES:
            return False
        self._excess += excess
        return True

    def _write(self, data: bytes) -> None:
        self._buffer.append(data)
        self._buffered += len(data)
        if self._buffered >= _BUFFER:
            self._flush()

    def _settle(self) -> None:
        """Write the copies that are due."""
        run, self._run, self._run_size = self._run, [], 0
        for piece in self._source.checked(run) if run else ():
            self._write(piece)

    def _list(self, record: bytes) -> None:
        self._directory += record
        self._count += 1

    def _loosely(self, packed: CompressedContent, data: bytes) -> CompressedContent:
        """Return content packed without looking for repetitions: at most eight to one."""
        loose = b"".join(each for _, each in _compressed(_huffman(), (data,)))
        return packed._replace(
            packed=loose, method=DEFLATED, flags=UTF8, packed_crc=self._codec.crc32(loose)
        )

    def _stream(
        self, member: ZipMember, wide: bool, chunks: Iterable[bytes], engine: Deflater
    ) -> tuple[ZipMember, int]:
        """Write an entry whose sizes are not known yet; return it with them, and a checksum."""
        self._write(local_header(member, wide))
        size = crc = packed_size = packed_crc = 0
        for raw, packed in _compressed(engine, chunks):
            size += len(raw)
            crc = zlib.crc32(raw, crc)
            packed_size += len(packed)
            packed_crc = zlib.crc32(packed, packed_crc)
            self._write(packed)
        self._flush()
        return member._replace(size=size, crc=crc, packed_size=packed_size), packed_crc

    def _flush(self) -> None:
        write_all(self._descriptor, b"".join(self._buffer))
        self._flushed += self._buffered
        self._buffer, self._buffered = [], 0


def _huffman() -> Deflater:
    return zlib.compressobj(1, zlib.DEFLATED, -15, zlib.DEF_MEM_LEVEL, zlib.Z_HUFFMAN_ONLY)


def _compressed(engine: Deflater, chunks: Iterable[bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Yield what goes in with what comes out."""
    for chunk in chunks:
        check_time("Archive")
        yield chunk, engine.compress(chunk)
    yield b"", engine.flush()
