"""What an export can take over from an earlier archive, as it is packed there.

An entry is taken over if the manifest has the same hash, its packed bytes still have
the checksum that was written beside it, and it was packed as it would be now.
"""

import os
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from weakincentives.filesystem.archives.format import (
    FILES,
    ArchiveError,
    ArchiveLimits,
    FileRecord,
    entry_of,
)
from weakincentives.filesystem.archives.state import open_archive, read_manifest
from weakincentives.filesystem.archives.zipreader import PIECE, ZipReader
from weakincentives.filesystem.archives.ziprecords import FASTEST, STORED, ZipMember
from weakincentives.filesystem.archives.zipwriter import WIDE, local_header
from weakincentives.filesystem.rooted import read_range

_OUR_OWN = ArchiveLimits(max_entries=10_000_000, max_manifest_bytes=1024**3)


class Reusable(NamedTuple):
    """A file of an earlier archive, and the checksum of its packed bytes."""

    member: ZipMember
    sha256: str
    packed_crc: int


class EarlierArchive:
    """The files of an earlier archive by their escaped paths."""

    def __init__(self, descriptor: int = -1) -> None:
        """Know the files of an open archive, or none.

        Raises:
            ArchiveError: It has no directory or no manifest that can be read.
        """
        self._descriptor = descriptor
        self._files: dict[str, Reusable] = {}
        if descriptor < 0:
            return
        reader = ZipReader(descriptor, _OUR_OWN, lazy=True)
        members = {member.name: member for member in reader.members}
        for record in read_manifest(reader, _OUR_OWN).files or ():
            member = members.get(FILES + (record.entry or entry_of(record.path)))
            if member is None or member.offset > reader.end:
                continue
            if _is_reusable(record, member):
                crc = int(record.packed_crc32 or "", 16)
                self._files[record.path] = Reusable(member, record.sha256, crc)

    def find(self, path: str, size: int) -> Reusable | None:
        """Return the file at `path` if it had this size."""
        known = self._files.get(path)
        return known if known is not None and known.member.size == size else None

    def raw(self, known: Reusable) -> Iterable[bytes] | None:
        """Return header and packed bytes, or None if they are not what they would be now."""
        member = known.member
        header = local_header(member, member.size >= WIDE)
        size = len(header) + member.packed_size
        if size <= PIECE:  # read once; what is larger is read again to be copied
            data = read_range(self._descriptor, member.offset, size)
            crc = zlib.crc32(memoryview(data)[len(header) :])
            return (data,) if data.startswith(header) and crc == known.packed_crc else None
        if read_range(self._descriptor, member.offset, len(header)) != header:
            return None
        crc = 0
        for piece in self._pieces(member.offset + len(header), member.packed_size):
            crc = zlib.crc32(piece, crc)
        return self._pieces(member.offset, size) if crc == known.packed_crc else None

    def _pieces(self, begin: int, size: int) -> Iterator[bytes]:
        for offset in range(begin, begin + size, PIECE):
            yield read_range(self._descriptor, offset, min(PIECE, begin + size - offset))


def _is_reusable(record: FileRecord, member: ZipMember) -> bool:
    """Return whether the entry was packed as it would be packed now."""
    packed_as_now = member.flags & FASTEST == FASTEST or member.method == STORED
    return record.packed_crc32 is not None and packed_as_now and member.size == record.size


@contextmanager
def earlier_archive(path: Path | None) -> Generator[EarlierArchive, None, None]:
    """Open an earlier archive; one that is missing or no good holds nothing to take over."""
    try:
        descriptor = None if path is None else open_archive(path)
    except (ArchiveError, OSError):
        descriptor = None
    try:
        yield _known(descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _known(descriptor: int | None) -> EarlierArchive:
    try:
        return EarlierArchive() if descriptor is None else EarlierArchive(descriptor)
    except (ValueError, OSError):
        return EarlierArchive()
