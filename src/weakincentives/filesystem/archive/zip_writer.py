"""ZIP files, written so that the same entries give the same bytes.

Times are fixed, compression too. Entries of another archive can be taken over as they
are packed.
"""

import os
import stat
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from weakincentives.filesystem.archive.format import (
    CENTRAL,
    CENTRAL_SIGNATURE,
    DEFAULT_ARCHIVE_LIMITS,
    DEFLATED,
    FASTEST,
    FILES_PREFIX,
    LOCAL_SIGNATURE,
    RATIO_FREE_BYTES,
    STORED,
    UTF8,
    ArchiveError,
    ArchiveLimits,
    ZipMember,
    central,
    check_records,
    end_records,
    entry_of,
    entry_prefix,
    is_wide,
    local_header,
)
from weakincentives.filesystem.archive.verify import open_archive, read_manifest
from weakincentives.filesystem.archive.zip_reader import ZipReader, member_at, raw_directory
from weakincentives.filesystem.manifest import (
    MANIFEST,
    ArchiveDocument,
    FileRecord,
)
from weakincentives.posix import Codec, Deflater, check_time, read_range, write_all

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


def pack(codec: Codec, data: bytes) -> CompressedContent:
    """Return content as it is stored: packed, unless that is not smaller."""
    packed, method, flags = codec.deflate(data), DEFLATED, UTF8 | FASTEST
    if len(packed) >= len(data):
        packed, method, flags = data, STORED, UTF8
    return CompressedContent(packed, method, flags, codec.crc32(data), codec.crc32(packed))


class ZipWriter:
    """Writes a ZIP to an open, empty file."""

    def __init__(self, descriptor: int, codec: Codec, source: "EarlierArchive") -> None:
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


_OUR_OWN = ArchiveLimits(max_entries=10_000_000, max_manifest_bytes=1024**3)
# records in the directory, without their signatures
_SIZES = Struct("<16x2L14xL")  # packed size, size, offset
_BEGINNING = slice(12)  # up to the date
_SHARED = slice(2, 26)  # what is in the header too: from the version to the length of the name
_LENGTHS = slice(24, 34)  # of name, extra field and comment; disk, internal attributes
_NO_LENGTHS = bytes(8)  # of the last four
_CENTRAL_NAME = CENTRAL.size - len(CENTRAL_SIGNATURE)


class DamagedError(Exception):
    """An earlier archive is not what it was when it was written."""


class EarlierArchive:
    """The files of an earlier archive by their escaped paths."""

    def __init__(self, codec: Codec, descriptor: int = -1) -> None:
        """Know the files of an open archive, or none.

        Raises:
            ArchiveError: It has no directory or no manifest that can be read.
        """
        self._codec = codec
        self._descriptor = descriptor
        self._files: dict[str, RawCopy] = {}
        if descriptor >= 0:
            self._read()

    def find(self, path: str, size: int, digest: str | None = None) -> RawCopy | None:
        """Return the file at `path` if it had this content; no digest means any."""
        known = self._files.get(path)
        if known is None or known.record.size != size:
            return None
        return known if digest is None or known.record.sha256 == digest else None

    def forget(self) -> None:
        """Know nothing any more."""
        self._files = {}

    def checked(self, run: Sequence[RawCopy]) -> Iterator[bytes]:
        """Yield the bytes of entries that follow each other.

        Raises:
            DamagedError: They are not what they were; what has been yielded is no good.
        """
        check_time("Archive")
        begin, size = run[0].offset, run[-1].end - run[0].offset
        if size > RUN:
            yield from self._checked_large(run[0])
            return
        data = read_range(self._descriptor, begin, size)
        view, crc32 = memoryview(data), self._codec.crc32
        for record, _, header, offset, end, packed_size in run:
            packed = view[end - packed_size - begin : end - begin]
            if not data.startswith(header, offset - begin):
                raise DamagedError
            if f"{crc32(packed):08x}" != record.packed_crc32:
                raise DamagedError
        yield data

    def _checked_large(self, entry: RawCopy) -> Iterator[bytes]:
        if read_range(self._descriptor, entry.offset, len(entry.header)) != entry.header:
            raise DamagedError
        yield entry.header
        crc = 0
        for offset in range(entry.offset + len(entry.header), entry.end, RUN):
            piece = read_range(self._descriptor, offset, min(RUN, entry.end - offset))
            crc = zlib.crc32(piece, crc)
            yield piece
        if f"{crc:08x}" != entry.record.packed_crc32:
            raise DamagedError

    def _read(self) -> None:
        size = os.fstat(self._descriptor).st_size
        directory, _, end = raw_directory(self._descriptor, size, _OUR_OWN)
        at = len(directory) - CENTRAL.size - len(MANIFEST)
        if not directory.startswith(CENTRAL_SIGNATURE, max(at, 0)):
            return  # the manifest is not the last entry, so the archive is not ours
        member = member_at(directory, at, MANIFEST)
        manifest = read_manifest(ZipReader(self._descriptor, end), [member], _OUR_OWN)
        check_records(manifest.files or ())
        if manifest.packer == self._codec.name:
            self._files = {known.record.path: known for known in _files(directory, manifest)}


def _files(directory: bytes, manifest: ArchiveDocument) -> Iterator[RawCopy]:
    """Yield the files of an archive that are packed and listed as they would be now."""
    records = {
        (FILES_PREFIX + (record.entry or record.path)).encode(): record
        for record in manifest.files or ()
        if record.packed_crc32 and _is_named(record)
    }
    for listed in directory.split(CENTRAL_SIGNATURE)[1:]:
        name = listed[_CENTRAL_NAME:]
        record = records.get(name)
        if record is None or listed[_LENGTHS] != len(name).to_bytes(2, "little") + _NO_LENGTHS:
            continue
        packed_size, size, offset = _SIZES.unpack_from(listed)
        if size == record.size and listed[_BEGINNING] in BEGINNINGS:
            header = LOCAL_SIGNATURE + listed[_SHARED] + b"\0\0" + name
            end = offset + len(header) + packed_size
            yield RawCopy(record, listed, header, offset, end, packed_size)


def _is_named(record: FileRecord) -> bool:
    """Return whether the entry of a file has the name that it would have now."""
    place = entry_of(record.path)
    return record.entry == (None if place == record.path else place)


@contextmanager
def earlier_archive(path: Path | None, codec: Codec) -> Generator[EarlierArchive, None, None]:
    """Open an earlier archive; one that is missing or no good holds nothing to take over."""
    try:
        descriptor = None if path is None else open_archive(path)
    except (ArchiveError, OSError):
        descriptor = None
    try:
        yield _known(codec, descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _known(codec: Codec, descriptor: int | None) -> EarlierArchive:
    try:
        return EarlierArchive(codec, -1 if descriptor is None else descriptor)
    except (ValueError, OSError):
        return EarlierArchive(codec)
