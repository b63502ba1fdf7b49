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
from typing import NamedTuple

from weakincentives.filesystem.archives.format import (
    FILES,
    MANIFEST,
    ArchiveError,
    ArchiveLimits,
    FileRecord,
    check_records,
)
from weakincentives.filesystem.archives.names import (
    entry_of,
)
from weakincentives.filesystem.archives.state import open_archive, read_manifest
from weakincentives.filesystem.archives.zipdirectory import member_at, raw_directory, records
from weakincentives.filesystem.archives.zipreader import ZipReader
from weakincentives.filesystem.archives.ziprecords import LOCAL_SIGNATURE
from weakincentives.filesystem.archives.zipwriter import BEGINNINGS, RUN, Copy
from weakincentives.filesystem.compression import Codec
from weakincentives.filesystem.limits import check_time
from weakincentives.filesystem.rooted import read_range

_OUR_OWN = ArchiveLimits(max_entries=10_000_000, max_manifest_bytes=1024**3)
_SIZES = Struct("<20x2L14xL")
"""What is needed of a record in the directory: packed size, size, offset."""
_NO_LENGTHS = bytes(8)  # of extra field and comment; disk, internal attributes


class DamagedError(Exception):
    """An earlier archive is not what it was when it was written."""


class Known(NamedTuple):
    """A file of an earlier archive."""

    record: FileRecord
    entry: Copy


class EarlierArchive:
    """The files of an earlier archive by their escaped paths."""

    def __init__(self, codec: Codec, descriptor: int = -1) -> None:
        """Know the files of an open archive, or none.

        Raises:
            ArchiveError: It has no directory or no manifest that can be read.
        """
        self._codec = codec
        self._descriptor = descriptor
        self._directory = b""
        self._places: dict[bytes, int] = {}
        self._records: dict[str, FileRecord] = {}
        if descriptor >= 0:
            self._read()

    def find(self, path: str, size: int, digest: str) -> Known | None:
        """Return the file at `path` if it had this content, and was packed as it would be now."""
        record = self._records.get(path)
        if record is None or record.sha256 != digest or record.packed_crc32 is None:
            return None
        place = entry_of(path)
        name = (FILES + place).encode()
        at = self._places.get(name)
        is_as_now = record.size == size and record.entry == (None if place == path else place)
        if at is None or not is_as_now:
            return None
        directory = self._directory
        packed_size, declared, offset = _SIZES.unpack_from(directory, at)
        if (
            directory[at : at + 16] not in BEGINNINGS
            or directory[at + 30 : at + 38] != _NO_LENGTHS
            or declared != size
        ):
            return None
        header = LOCAL_SIGNATURE + directory[at + 6 : at + 30] + b"\0\0" + name
        crc = int(record.packed_crc32, 16)
        return Known(record, Copy(directory[at : at + 38], header, offset, packed_size, crc))

    def forget(self) -> None:
        """Know nothing any more."""
        self._places, self._records = {}, {}

    def had(self, path: str, size: int) -> bool:
        """Return whether there was a file of this size at `path`."""
        record = self._records.get(path)
        return record is not None and record.size == size

    def checked(self, run: Sequence[Copy]) -> Iterator[bytes]:
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
        view = memoryview(data)
        for entry in run:
            at = entry.offset - begin
            packed = view[at + len(entry.header) : entry.end - begin]
            if not data.startswith(entry.header, at):
                raise DamagedError
            if self._codec.crc32(packed) != entry.packed_crc:
                raise DamagedError
        yield data

    def _checked_large(self, entry: Copy) -> Iterator[bytes]:
        if read_range(self._descriptor, entry.offset, len(entry.header)) != entry.header:
            raise DamagedError
        yield entry.header
        crc = 0
        for offset in range(entry.offset + len(entry.header), entry.end, RUN):
            piece = read_range(self._descriptor, offset, min(RUN, entry.end - offset))
            crc = zlib.crc32(piece, crc)
            yield piece
        if crc != entry.packed_crc:
            raise DamagedError

    def _read(self) -> None:
        size = os.fstat(self._descriptor).st_size
        directory, count, end = raw_directory(self._descriptor, size, _OUR_OWN)
        places = {name: at for at, name in records(directory, count)}
        at = places.get(MANIFEST.encode())
        if at is None:
            return
        member = member_at(directory, at, MANIFEST)
        manifest = read_manifest(ZipReader(self._descriptor, end), [member], _OUR_OWN)
        if manifest.packer != self._codec.name:
            return
        check_records(manifest.files or ())
        self._records = {record.path: record for record in manifest.files or ()}
        self._directory, self._places = directory, places


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
