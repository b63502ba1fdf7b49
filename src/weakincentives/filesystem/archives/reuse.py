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
from weakincentives.filesystem.archives.zipdirectory import member_at, raw_directory
from weakincentives.filesystem.archives.zipreader import ZipReader
from weakincentives.filesystem.archives.ziprecords import (
    CENTRAL,
    CENTRAL_SIGNATURE,
    LOCAL_SIGNATURE,
)
from weakincentives.filesystem.archives.zipwriter import BEGINNINGS, RUN, Copy
from weakincentives.filesystem.compression import Codec
from weakincentives.filesystem.limits import check_time
from weakincentives.filesystem.rooted import read_range

_OUR_OWN = ArchiveLimits(max_entries=10_000_000, max_manifest_bytes=1024**3)
# records in the directory, without their signatures
_SIZES = Struct("<16x2L14xL")  # packed size, size, offset
_LENGTHS = slice(24, 34)  # of name, extra field and comment; disk, internal attributes
_NO_LENGTHS = bytes(8)  # of the last four
_RECORD = CENTRAL.size - len(CENTRAL_SIGNATURE)


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
        self._listed: dict[bytes, bytes] = {}
        self._records: dict[str, FileRecord] = {}
        if descriptor >= 0:
            self._read()

    def find(self, path: str, size: int, digest: str) -> Copy | None:
        """Return the file at `path` if it had this content, and was packed as it would be now."""
        record = self._records.get(path)
        if record is None or record.sha256 != digest or record.size != size:
            return None
        place = entry_of(path)
        name = (FILES + place).encode()
        listed = self._listed.get(name)
        if listed is None or record.entry != (None if place == path else place):
            return None
        packed_size, declared, offset = _SIZES.unpack_from(listed)
        if listed[:12] not in BEGINNINGS or declared != size:
            return None
        header = LOCAL_SIGNATURE + listed[2:26] + b"\0\0" + name
        end = offset + len(header) + packed_size
        return Copy(record, listed, header, offset, end, packed_size)

    def forget(self) -> None:
        """Know nothing any more."""
        self._listed, self._records = {}, {}

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
        view, crc32 = memoryview(data), self._codec.crc32
        for record, _, header, offset, end, packed_size in run:
            packed = view[end - packed_size - begin : end - begin]
            if not data.startswith(header, offset - begin):
                raise DamagedError
            if f"{crc32(packed):08x}" != record.packed_crc32:
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
        if f"{crc:08x}" != entry.record.packed_crc32:
            raise DamagedError

    def _read(self) -> None:
        size = os.fstat(self._descriptor).st_size
        directory, _, end = raw_directory(self._descriptor, size, _OUR_OWN)
        listed = dict(_listed(directory))
        own = listed.get(MANIFEST.encode())
        if own is None:
            return  # not ours
        member = member_at(CENTRAL_SIGNATURE + own, 0, MANIFEST)
        manifest = read_manifest(ZipReader(self._descriptor, end), [member], _OUR_OWN)
        check_records(manifest.files or ())
        if manifest.packer == self._codec.name:
            self._records = {record.path: record for record in manifest.files or ()}
            self._listed = listed


def _listed(directory: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the names in a directory, with their records but for the signature.

    Records that we would not write are left out.
    """
    for listed in directory.split(CENTRAL_SIGNATURE)[1:]:
        name = listed[_RECORD:]
        if listed[_LENGTHS] == len(name).to_bytes(2, "little") + _NO_LENGTHS:
            yield name, listed


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
