"""Every byte of an archive is unpacked and compared before anybody sees one."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from operator import itemgetter
from typing import NamedTuple

from weakincentives.filesystem.archives.format import ArchiveError
from weakincentives.filesystem.archives.tree import ArchivedFile
from weakincentives.filesystem.archives.workers import in_order
from weakincentives.filesystem.archives.zipdirectory import damaged
from weakincentives.filesystem.archives.zipreader import ZipReader
from weakincentives.filesystem.archives.ziprecords import (
    LOCAL,
    LOCAL_SIGNATURE,
    STORED,
    ZipMember,
)
from weakincentives.filesystem.compression import Codec
from weakincentives.filesystem.limits import check_time
from weakincentives.filesystem.paths import brief

_KEPT_BYTES = 64 * 1024 * 1024  # content that stays in memory once it has been checked
_WHOLE = 4 * 1024 * 1024  # bytes, packed or not: what is larger is unpacked piece by piece
_SPAN = 256 * 1024  # packed bytes of several entries that are read at once
_OFFSET = ZipMember._fields.index("offset")


class _Item(NamedTuple):
    """An entry, the file that it is (None: none, or the manifest), and whether that is kept."""

    member: ZipMember
    file: ArchivedFile | None
    is_kept: bool


class Verification:
    """One pass over the entries of an archive, in the order in which they are stored."""

    def __init__(self, reader: ZipReader, members: Iterable[ZipMember], codec: Codec) -> None:
        """Refuse entries that overlap by what they declare."""
        self._reader = reader
        self._codec = codec
        self._members = sorted(members, key=itemgetter(_OFFSET))
        free = 0
        for member in self._members:
            if member.offset < free:
                raise _overlaps(member)
            free = member.least_end
            if free > reader.end:
                raise damaged(member, "reaches into the directory")

    def run(self, files: Mapping[str, ArchivedFile]) -> None:
        """Compare everything with what is declared; small files keep their content.

        Raises:
            ArchiveError: Something is not as it is declared.
        """
        free = 0
        with closing(in_order(self._verified, self._batches(files))) as verified:
            for first, end in verified:
                if first.offset < free:
                    raise _overlaps(first)
                free = end

    def _batches(self, files: Mapping[str, ArchivedFile]) -> Iterator[list[_Item]]:
        """Yield entries that lie near each other; a large one comes alone."""
        batch: list[_Item] = []
        begin = unpacked = 0
        room = _KEPT_BYTES
        for member in self._members:
            is_large = _is_large(member)
            is_far = member.least_end - begin > _SPAN or unpacked + member.size > _WHOLE
            if batch and (is_large or is_far):
                yield batch
                batch, unpacked = [], 0
            if not batch:
                begin = member.offset
            file = files.get(member.name)
            is_kept = file is not None and not is_large and member.size <= room
            if is_kept:
                room -= member.size
            batch.append(_Item(member, file, is_kept))
            unpacked += _WHOLE + 1 if is_large else member.size
        if batch:
            yield batch

    def _verified(self, batch: list[_Item]) -> tuple[ZipMember, int]:
        """Verify a batch; return its first entry, and where the last one ends."""
        check_time("Archive")
        first = batch[0].member
        if _is_large(first):
            return first, self._verify_large(first, batch[0].file)
        buffer = self._reader.range(first.offset, batch[-1].member.least_end - first.offset)
        view = memoryview(buffer)
        free = first.offset
        for member, file, is_kept in batch:
            if member.offset < free:
                raise _overlaps(member)
            start = self._start(buffer, member, member.offset - first.offset)
            free = start + member.packed_size
            if file is None:
                continue
            begin = start - first.offset
            data = self._content(member, view[begin : begin + member.packed_size])
            _compare(file, hashlib.sha256(data).hexdigest())
            file.start = start
            if is_kept:
                file.data = data
        return first, free

    def _start(self, buffer: bytes, member: ZipMember, at: int) -> int:
        """Return where the packed bytes begin after the header at `at`, which is checked."""
        name = member.name.encode()
        if len(buffer) >= at + LOCAL.size:
            fields = LOCAL.unpack_from(buffer, at)
            _, flags, method, crc, packed_size, size, _, _ = member[0:8]
            said = (flags, method, *fields[4:6], crc, packed_size, size, len(name), 0)
            is_same = fields[0] == LOCAL_SIGNATURE and fields[2:] == said
            if is_same and buffer.startswith(name, at + LOCAL.size):
                return member.offset + LOCAL.size + len(name)
        return self._reader.located(member)

    def _content(self, member: ZipMember, packed: memoryview) -> bytes:
        data = None
        if len(packed) == member.packed_size:
            is_stored = member.method == STORED
            data = bytes(packed) if is_stored else self._codec.inflate(packed, member.size)
        if data is None:
            return self._reader.read(member)  # which finds out what is wrong
        if self._codec.crc32(data) != member.crc:
            raise damaged(member, "is damaged, its checksum is wrong")
        return data

    def _verify_large(self, member: ZipMember, file: ArchivedFile | None) -> int:
        start = self._reader.located(member)
        if file is not None:
            digest = hashlib.sha256()
            for piece in self._reader.pieces(member, start):
                digest.update(piece)
            _compare(file, digest.hexdigest())
            file.start = start
        return start + member.packed_size


def _is_large(member: ZipMember) -> bool:
    return member.size > _WHOLE or member.packed_size > _WHOLE


def _compare(file: ArchivedFile, digest: str) -> None:
    if file.sha256 not in ("", digest):
        name = brief(file.member.name)
        raise ArchiveError(f"File is damaged, its sha256 is wrong: {name!r}")
    file.sha256 = digest


def _overlaps(member: ZipMember) -> ArchiveError:
    return damaged(member, "overlaps another one")
