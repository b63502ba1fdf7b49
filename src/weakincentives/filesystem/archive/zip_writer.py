"""A deterministic ZIP writer, which can copy compressed entries from an earlier archive.

The same entries give the same bytes: dates and compression settings are fixed. An entry is copied
from the earlier archive if the manifest has the same hash, its header and compressed bytes are
unchanged, and it was compressed with the same settings.
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
    central_prefix,
    central_record,
    check_records,
    end_records,
    entry_name,
    local_header,
    needs_zip64,
)
from weakincentives.filesystem.archive.verify import open_archive, read_manifest
from weakincentives.filesystem.archive.zip_reader import ZipReader, member_at, read_directory
from weakincentives.filesystem.manifest import MANIFEST, ArchiveDocument, FileRecord
from weakincentives.posix import Codec, Deflater, check_time, read_range, write_all

_OUR_PREFIXES = frozenset({central_prefix(UTF8 | FASTEST, DEFLATED), central_prefix(UTF8, STORED)})
_MAX_RUN = 1024 * 1024  # bytes of entries that are copied at once; a larger entry is copied alone
_BUFFER_SIZE = 256 * 1024
_TAIL = Struct("<2L")  # of a central record: external attributes, offset
_ATTRIBUTES, _NAME = 34, 42  # their positions in a central record, after the signature
Chunks = Callable[[], Iterable[bytes]]
_OWN_LIMITS = ArchiveLimits(max_entries=10_000_000, max_manifest_bytes=1024**3)
# slices of central records, without their signatures
_SIZES = Struct("<16x2L14xL")  # packed size, size, offset
_PREFIX = slice(12)  # up to the date
_LOCAL_PART = slice(2, 26)  # the part that the local header repeats
_LENGTHS = slice(24, 34)  # of name, extra field and comment; disk, internal attributes
_NO_LENGTHS = bytes(8)  # zeros for the last four
_CENTRAL_NAME = CENTRAL.size - len(CENTRAL_SIGNATURE)


class CompressedContent(NamedTuple):
    """Compressed content; `packed_crc` is the checksum of the compressed bytes."""

    packed: bytes
    method: int
    flags: int
    crc: int
    packed_crc: int


class StoredEntry(NamedTuple):
    """An entry that was written: its size, and the checksum of its compressed bytes."""

    size: int
    packed_crc: int


class RawCopy(NamedTuple):
    """An entry of an earlier archive that can be copied."""

    record: FileRecord
    central: bytes
    """Its central record, without the signature."""
    header: bytes
    offset: int
    end: int
    packed_size: int


def compress(codec: Codec, data: bytes) -> CompressedContent:
    """Return content compressed, or stored if that is not smaller."""
    packed, method, flags = codec.deflate(data), DEFLATED, UTF8 | FASTEST
    if len(packed) >= len(data):
        packed, method, flags = data, STORED, UTF8
    return CompressedContent(packed, method, flags, codec.crc32(data), codec.crc32(packed))


class ZipWriter:
    """Writes a ZIP to an empty open file."""

    def __init__(self, descriptor: int, codec: Codec, source: "EarlierArchive") -> None:
        """Start a ZIP; `source` is the archive that copies come from."""
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
        """Add a file with the content `data`, compressed as `packed`."""
        self._flush_copies()
        if not self._fits_ratio(len(data), len(packed.packed)):
            packed = self._compress_less(packed, data)
        mode = stat.S_IFREG | permissions
        fixed = packed.flags, packed.method, packed.crc
        member = ZipMember(name, *fixed, len(packed.packed), len(data), mode, self._offset)
        self._add_central(central_record(member))
        self._write(local_header(member, wide=False))
        self._write(packed.packed)
        return StoredEntry(len(data), packed.packed_crc)

    def add_large(self, name: str, permissions: int, expected: int, chunks: Chunks) -> StoredEntry:
        """Add a file in chunks, with up to `expected` bytes; `chunks` may be called twice."""
        self._flush_copies()
        self._flush()
        mode = stat.S_IFREG | permissions
        flags = UTF8 | FASTEST
        member = ZipMember(name, flags, DEFLATED, 0, 0, 0, mode, self._flushed)
        wide = needs_zip64(expected)
        written, crc = self._stream(member, chunks(), self._codec.deflater(), wide=wide)
        if not self._fits_ratio(written.size, written.packed_size):
            os.ftruncate(self._descriptor, member.offset)
            os.lseek(self._descriptor, member.offset, os.SEEK_SET)
            self._flushed = member.offset
            member = member._replace(flags=UTF8)
            written, crc = self._stream(member, chunks(), _huffman_deflater(), wide=wide)
        os.pwrite(self._descriptor, local_header(written, wide=wide), member.offset)
        self._add_central(central_record(written))
        return StoredEntry(written.size, crc)

    def add_directory(self, name: str, permissions: int) -> None:
        """Add a directory; `name` ends with a slash."""
        self._flush_copies()
        mode = stat.S_IFDIR | permissions
        member = ZipMember(name, UTF8, STORED, 0, 0, 0, mode, self._offset)
        self._add_central(central_record(member))
        self._write(local_header(member, wide=False))

    def add_copy(self, copy: RawCopy, permissions: int) -> bool:
        """Copy a file from the earlier archive; return False if it must be compressed again."""
        record, central, _, begin, end, packed_size = copy
        offset = self._flushed + self._buffered + self._run_size
        if needs_zip64(offset) or not self._fits_ratio(record.size, packed_size):
            return False
        if begin != self._run_end or self._run_size + end - begin > _MAX_RUN:
            self._flush_copies()
        tail = _TAIL.pack((stat.S_IFREG | permissions) << 16, offset)
        self._add_central(CENTRAL_SIGNATURE + central[:_ATTRIBUTES] + tail + central[_NAME:])
        self._run.append(copy)
        self._run_size += end - begin
        self._run_end = end
        return True

    def finish(self) -> None:
        """Write the central directory."""
        self._flush_copies()
        begin, length = self._offset, len(self._directory)
        self._flush()
        write_all(self._descriptor, bytes(self._directory))
        write_all(self._descriptor, end_records(self._count, length, begin))

    def _fits_ratio(self, size: int, packed_size: int) -> bool:
        """Return whether an entry keeps within the ratio that readers accept; count it if so."""
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
        if self._buffered >= _BUFFER_SIZE:
            self._flush()

    def _flush_copies(self) -> None:
        """Write the pending copies."""
        run, self._run, self._run_size = self._run, [], 0
        for chunk in self._source.read_run(run) if run else ():
            self._write(chunk)

    def _add_central(self, record: bytes) -> None:
        self._directory += record
        self._count += 1

    def _compress_less(self, packed: CompressedContent, data: bytes) -> CompressedContent:
        """Return content compressed by Huffman coding only: at most eight to one."""
        loose = b"".join(each for _, each in _compress_chunks(_huffman_deflater(), (data,)))
        return packed._replace(
            packed=loose, method=DEFLATED, flags=UTF8, packed_crc=self._codec.crc32(loose)
        )

    def _stream(
        self, member: ZipMember, chunks: Iterable[bytes], engine: Deflater, *, wide: bool
    ) -> tuple[ZipMember, int]:
        """Write an entry of unknown size; return it with its sizes, and its checksum."""
        self._write(local_header(member, wide=wide))
        size = crc = packed_size = packed_crc = 0
        for raw, packed in _compress_chunks(engine, chunks):
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


def _huffman_deflater() -> Deflater:
    return zlib.compressobj(1, zlib.DEFLATED, -15, zlib.DEF_MEM_LEVEL, zlib.Z_HUFFMAN_ONLY)


def _compress_chunks(engine: Deflater, chunks: Iterable[bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Yield each chunk with the compressed bytes that are ready."""
    for chunk in chunks:
        check_time("Archive")
        yield chunk, engine.compress(chunk)
    yield b"", engine.flush()


class DamagedError(Exception):
    """An earlier archive has been modified since it was written."""


class EarlierArchive:
    """The files of an earlier archive by their escaped paths."""

    def __init__(self, codec: Codec, descriptor: int = -1) -> None:
        """Index the files of an open archive; without a descriptor there are none.

        Raises:
            ArchiveError: Its central directory or manifest cannot be read.
        """
        self._codec = codec
        self._descriptor = descriptor
        self._files: dict[str, RawCopy] = {}
        if descriptor >= 0:
            self._read_index()

    def find(self, path: str, size: int, digest: str | None = None) -> RawCopy | None:
        """Return the file at `path` if it has this size, and this digest if one is given."""
        known = self._files.get(path)
        if known is None or known.record.size != size:
            return None
        return known if digest is None or known.record.sha256 == digest else None

    def forget(self) -> None:
        """Clear the index."""
        self._files = {}

    def read_run(self, run: Sequence[RawCopy]) -> Iterator[bytes]:
        """Yield the bytes of consecutive entries, verified.

        Raises:
            DamagedError: They have changed; discard the bytes that were yielded.
        """
        check_time("Archive")
        begin, size = run[0].offset, run[-1].end - run[0].offset
        if size > _MAX_RUN:
            yield from self._read_large(run[0])
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

    def _read_large(self, entry: RawCopy) -> Iterator[bytes]:
        if read_range(self._descriptor, entry.offset, len(entry.header)) != entry.header:
            raise DamagedError
        yield entry.header
        crc = 0
        for offset in range(entry.offset + len(entry.header), entry.end, _MAX_RUN):
            chunk = read_range(self._descriptor, offset, min(_MAX_RUN, entry.end - offset))
            crc = zlib.crc32(chunk, crc)
            yield chunk
        if f"{crc:08x}" != entry.record.packed_crc32:
            raise DamagedError

    def _read_index(self) -> None:
        size = os.fstat(self._descriptor).st_size
        directory, _, end = read_directory(self._descriptor, size, _OWN_LIMITS)
        at = len(directory) - CENTRAL.size - len(MANIFEST)
        if not directory.startswith(CENTRAL_SIGNATURE, max(at, 0)):
            return  # the manifest is not the last entry, so this package did not write it
        member = member_at(directory, at, MANIFEST)
        manifest = read_manifest(ZipReader(self._descriptor, end), [member], _OWN_LIMITS)
        check_records(manifest.files or ())
        if manifest.packer == self._codec.name:
            self._files = {copy.record.path: copy for copy in _find_copies(directory, manifest)}


def _find_copies(directory: bytes, manifest: ArchiveDocument) -> Iterator[RawCopy]:
    """Yield the files of an archive whose compressed bytes and records are as we write them."""
    records = {
        (FILES_PREFIX + (record.entry or record.path)).encode(): record
        for record in manifest.files or ()
        if record.packed_crc32 and _has_default_entry(record)
    }
    for central in directory.split(CENTRAL_SIGNATURE)[1:]:
        name = central[_CENTRAL_NAME:]
        record = records.get(name)
        if record is None or central[_LENGTHS] != len(name).to_bytes(2, "little") + _NO_LENGTHS:
            continue
        packed_size, size, offset = _SIZES.unpack_from(central)
        if size == record.size and central[_PREFIX] in _OUR_PREFIXES:
            header = LOCAL_SIGNATURE + central[_LOCAL_PART] + b"\0\0" + name
            end = offset + len(header) + packed_size
            yield RawCopy(record, central, header, offset, end, packed_size)


def _has_default_entry(record: FileRecord) -> bool:
    """Return whether a file has the ZIP name that we would give it."""
    entry = entry_name(record.path)
    return record.entry == (None if entry == record.path else entry)


@contextmanager
def open_earlier(path: Path | None, codec: Codec) -> Generator[EarlierArchive, None, None]:
    """Open an earlier archive; if it is missing or damaged, there is nothing to copy."""
    try:
        descriptor = None if path is None else open_archive(path)
    except (ArchiveError, OSError):
        descriptor = None
    try:
        yield _load_earlier(codec, descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _load_earlier(codec: Codec, descriptor: int | None) -> EarlierArchive:
    try:
        return EarlierArchive(codec, -1 if descriptor is None else descriptor)
    except (ValueError, OSError):
        return EarlierArchive(codec)
