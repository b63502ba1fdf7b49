"""What an export can take over from an earlier archive, as it is packed there.

An entry is taken over if the manifest has the same hash, its packed bytes still have
the checksum that was written beside it, and it was packed as it would be now.
"""

import os
import zlib
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from weakincentives.filesystem.archiveformat import (
    FILES,
    ArchiveError,
    ArchiveLimits,
    FileRecord,
    entry_of,
)
from weakincentives.filesystem.archivestate import open_archive, read_manifest
from weakincentives.filesystem.zipreader import PIECE, ZipReader
from weakincentives.filesystem.ziprecords import FASTEST, STORED, ZipMember
from weakincentives.filesystem.zipwriter import Packed

_OUR_OWN = ArchiveLimits(max_entries=10_000_000, max_manifest_bytes=1024**3)


class Reusable(NamedTuple):
    """A file of an earlier archive."""

    member: ZipMember
    made: Packed
    sha256: str


class EarlierArchive:
    """The files of an earlier archive by their escaped paths."""

    def __init__(self, reader: ZipReader | None = None) -> None:
        """Know the files of `reader`, or none."""
        self._reader = reader
        self._files: dict[str, Reusable] = {}
        if reader is not None:
            members = {member.name: member for member in reader.members}
            for record in read_manifest(reader, _OUR_OWN).files or ():
                member = members.get(FILES + (record.entry or entry_of(record.path)))
                if member is not None:
                    self._remember(record, member)

    def find(self, path: str, size: int) -> Reusable | None:
        """Return the file at `path` if it had this size."""
        known = self._files.get(path)
        return known if known is not None and known.member.size == size else None

    def packed(self, known: Reusable) -> Iterable[bytes] | None:
        """Return the packed bytes, or None if they are no longer what was written."""
        if self._reader is None:
            return None
        pieces: Iterable[bytes] = self._reader.packed(known.member)
        if known.member.packed_size <= PIECE:
            pieces = tuple(pieces)  # read once; larger ones are read again to be copied
        crc = 0
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
        if crc != known.made.packed_crc:
            return None
        return pieces if isinstance(pieces, tuple) else self._reader.packed(known.member)

    def _remember(self, record: FileRecord, member: ZipMember) -> None:
        packed_as_now = member.flags & FASTEST == FASTEST or member.method == STORED
        if record.packed_crc32 is None or not packed_as_now or member.size != record.size:
            return
        crc = int(record.packed_crc32, 16)
        made = Packed(member.size, member.crc, member.packed_size, crc, member.method, member.flags)
        self._files[record.path] = Reusable(member, made, record.sha256)


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
    if descriptor is None:
        return EarlierArchive()
    try:
        return EarlierArchive(ZipReader(descriptor, _OUR_OWN))
    except (ValueError, OSError):
        return EarlierArchive()
