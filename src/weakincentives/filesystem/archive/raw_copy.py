"""What an export can take over from an earlier archive, as it is packed there.

An entry is taken over if the manifest has the same hash, its header and its packed bytes
are still what was written, and it was packed as it would be now.
"""

import os
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from struct import Struct

from weakincentives.filesystem.archive.format import (
    FILES,
    MANIFEST,
    ArchiveError,
    ArchiveLimits,
    FileRecord,
    Manifest,
    check_records,
    entry_of,
)
from weakincentives.filesystem.archive.verify import open_archive, read_manifest
from weakincentives.filesystem.archive.zip_reader import ZipReader, member_at, raw_directory
from weakincentives.filesystem.archive.zip_records import (
    CENTRAL,
    CENTRAL_SIGNATURE,
    LOCAL_SIGNATURE,
)
from weakincentives.filesystem.archive.zip_writer import BEGINNINGS, RUN, RawCopy
from weakincentives.posix import Codec, check_time, read_range

_OUR_OWN = ArchiveLimits(max_entries=10_000_000, max_manifest_bytes=1024**3)
# records in the directory, without their signatures
_SIZES = Struct("<16x2L14xL")  # packed size, size, offset
_BEGINNING = slice(12)  # up to the date
_SHARED = slice(2, 26)  # what is in the header too: from the version to the length of the name
_LENGTHS = slice(24, 34)  # of name, extra field and comment; disk, internal attributes
_NO_LENGTHS = bytes(8)  # of the last four
_NAME = CENTRAL.size - len(CENTRAL_SIGNATURE)


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


def _files(directory: bytes, manifest: Manifest) -> Iterator[RawCopy]:
    """Yield the files of an archive that are packed and listed as they would be now."""
    records = {
        (FILES + (record.entry or record.path)).encode(): record
        for record in manifest.files or ()
        if record.packed_crc32 and _is_named(record)
    }
    for listed in directory.split(CENTRAL_SIGNATURE)[1:]:
        name = listed[_NAME:]
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
