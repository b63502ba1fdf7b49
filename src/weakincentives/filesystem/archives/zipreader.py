"""ZIP files, read with suspicion: no content is used before its header has been checked.

The directory at the end is the truth. What the headers beside the content say must
agree with it; entries must not overlap.
"""

import zlib
from collections.abc import Iterator
from typing import Self

from weakincentives.filesystem.archives.zipdirectory import damaged
from weakincentives.filesystem.archives.ziprecords import (
    DEFLATED,
    LOCAL,
    LOCAL_SIGNATURE,
    MAX_32,
    STREAMED,
    ZipMember,
)
from weakincentives.filesystem.limits import check_time
from weakincentives.filesystem.rooted import read_range

PIECE = 1024 * 1024
_PACKED_PIECE = 256 * 1024


class ZipReader:
    """The content of an open ZIP file; `close` is up to the caller."""

    def __init__(self, descriptor: int, end: int) -> None:
        """Read what is before `end`, where the directory begins."""
        self._descriptor = descriptor
        self.end = end

    def read(self, member: ZipMember) -> bytes:
        """Return the content of an entry, checked."""
        return b"".join(self.pieces(member, self.located(member)))

    def range(self, begin: int, size: int) -> bytes:
        """Return bytes of the file, which are none of the directory."""
        return read_range(self._descriptor, begin, min(size, self.end - begin))

    def located(self, member: ZipMember) -> int:
        """Return where the packed content of an entry begins.

        Raises:
            ArchiveError: The header beside it does not agree with the directory.
        """
        name = member.name.encode()
        header = b""
        if member.offset <= self.end:
            header = read_range(self._descriptor, member.offset, LOCAL.size + len(name))
        if len(header) != LOCAL.size + len(name) or header[LOCAL.size :] != name:
            raise damaged(member, "has another name, or none, where its content is")
        if header[:4] != LOCAL_SIGNATURE:
            raise damaged(member, "has a damaged header")
        _, _, flags, method, _, _, crc, packed, size, name_size, extra = LOCAL.unpack_from(header)
        agrees = (
            crc == member.crc
            and packed in (member.packed_size, MAX_32)
            and size in (member.size, MAX_32)
        )
        unsaid = flags & STREAMED and not (crc or packed or size)
        is_same = (flags, method, name_size) == (member.flags, member.method, len(name))
        if not is_same or not (agrees or unsaid):
            raise damaged(member, "has a header that contradicts the directory")
        start = member.offset + LOCAL.size + name_size + extra
        if start + member.packed_size > self.end:
            raise damaged(member, "reaches into the directory")
        return start

    def pieces(self, member: ZipMember, start: int) -> Iterator[bytes]:
        """Yield the content of an entry; more than its size is never unpacked.

        Raises:
            ArchiveError: It is damaged, or not what the directory says.
        """
        stream = MemberStream(self._descriptor, member, start)
        size = crc = 0
        while piece := stream.piece():
            check_time("Archive")
            size += len(piece)
            if size > member.size:
                raise damaged(member, f"holds more than the {member.size} bytes it declares")
            crc = zlib.crc32(piece, crc)
            yield piece
        if size != member.size:
            raise damaged(member, f"holds {size} bytes, not the {member.size} it declares")
        if crc != member.crc:
            raise damaged(member, "is damaged, its checksum is wrong")


class MemberStream:
    """The content of an entry from a place in it to its end; a copy goes its own way."""

    def __init__(self, descriptor: int, member: ZipMember, start: int) -> None:
        """Stand at the beginning; `start` is where the packed bytes begin."""
        self._descriptor = descriptor
        self._member = member
        self._position = start
        self._end = start + member.packed_size
        self._engine = zlib.decompressobj(-15) if member.method == DEFLATED else None

    def copy(self) -> Self:
        """Return a stream that stands where this one does."""
        copied = type(self)(self._descriptor, self._member, 0)
        copied._position = self._position
        copied._end = self._end
        copied._engine = None if self._engine is None else self._engine.copy()
        return copied

    def piece(self) -> bytes:
        """Return the next bytes, or none at the end.

        Raises:
            ArchiveError: The packed bytes are damaged.
        """
        engine = self._engine
        if engine is None:
            return self._packed(PIECE)
        room = min(PIECE, self._member.size + 1)  # a small entry needs no large buffer
        data = b""
        try:
            while not data and not engine.eof:
                packed = engine.unconsumed_tail or self._packed(_PACKED_PIECE)
                data = engine.decompress(packed, room)
                if not packed and not data:
                    raise damaged(self._member, "ends too early")
        except zlib.error as error:
            raise damaged(self._member, f"is damaged ({error})") from None
        if not data and (engine.unused_data or self._position < self._end):
            raise damaged(self._member, "is followed by bytes that do not belong to it")
        return data

    def _packed(self, size: int) -> bytes:
        wanted = min(size, self._end - self._position)
        data = read_range(self._descriptor, self._position, wanted)
        self._position += len(data)
        return data
