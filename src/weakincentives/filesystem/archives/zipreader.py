"""ZIP files, read with suspicion: every record is checked before its content is used.

The directory at the end is the truth. What the headers beside the content say must
agree with it; entries must not overlap; names must be plain.
"""

import os
import re
import stat
import zlib
from collections.abc import Iterator
from struct import Struct
from typing import Self

from weakincentives.filesystem.archives.format import ArchiveError, ArchiveLimits
from weakincentives.filesystem.archives.ziprecords import (
    CENTRAL,
    CENTRAL_SIGNATURE,
    DEFLATED,
    END,
    END64,
    END64_SIGNATURE,
    END_SIGNATURE,
    LOCAL,
    LOCAL_SIGNATURE,
    LOCATOR64,
    LOCATOR64_SIGNATURE,
    MAX_16,
    MAX_32,
    STORED,
    STREAMED,
    UTF8,
    ZIP64_EXTRA,
    ZipMember,
)
from weakincentives.filesystem.limits import check_time
from weakincentives.filesystem.paths import brief
from weakincentives.filesystem.rooted import read_range

PIECE = 1024 * 1024
_PACKED_PIECE = 256 * 1024
_KNOWN_FLAGS = 0b110 | STREAMED | UTF8
_CHECK_EVERY = 4_096  # entries between two looks at the clock
_EXTRA = Struct("<2H")
_UNSIGNED_64 = Struct("<Q")
_CONTROL = re.compile("[\x00-\x1f\x7f\\\\]")
_DRIVE = re.compile("(?:files/)?[A-Za-z]:")


class ZipReader:
    """The entries of an open ZIP file, all of them checked; `close` is up to the caller."""

    def __init__(self, descriptor: int, limits: ArchiveLimits, *, lazy: bool = False) -> None:
        """Read the directory and check it against the headers.

        If `lazy`, a header is checked when its entry is read, and overlaps are not noticed.

        Raises:
            ArchiveError: Something is wrong with the file, or too large.
        """
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self.members, self.end = _directory(descriptor, self.size, limits)
        if not lazy:
            self.members = _placed(descriptor, self.members, self.end)

    def read(self, member: ZipMember) -> bytes:
        """Return the content of an entry, checked."""
        return b"".join(self.pieces(member))

    def pieces(self, member: ZipMember) -> Iterator[bytes]:
        """Yield the content of an entry; more than its size is never unpacked.

        Raises:
            ArchiveError: It is damaged, or not what the directory says.
        """
        if member.start < 0:
            member = _located(self._descriptor, member, self.end)
        stream = MemberStream(self._descriptor, member)
        size = crc = 0
        while piece := stream.piece():
            check_time("Archive")
            size += len(piece)
            if size > member.size:
                raise _damaged(member, f"holds more than the {member.size} bytes it declares")
            crc = zlib.crc32(piece, crc)
            yield piece
        if size != member.size:
            raise _damaged(member, f"holds {size} bytes, not the {member.size} it declares")
        if crc != member.crc:
            raise _damaged(member, "is damaged, its checksum is wrong")


class MemberStream:
    """The content of an entry from a place in it to its end; a copy goes its own way."""

    def __init__(self, descriptor: int, member: ZipMember) -> None:
        """Stand at the beginning."""
        self._descriptor = descriptor
        self._member = member
        self._position = member.start
        self._engine = zlib.decompressobj(-15) if member.method == DEFLATED else None

    def copy(self) -> Self:
        """Return a stream that stands where this one does."""
        copied = type(self)(self._descriptor, self._member)
        copied._position = self._position
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
                    raise _damaged(self._member, "ends too early")
        except zlib.error as error:
            raise _damaged(self._member, f"is damaged ({error})") from None
        if not data and (engine.unused_data or self._position < self._member.end):
            raise _damaged(self._member, "is followed by bytes that do not belong to it")
        return data

    def _packed(self, size: int) -> bytes:
        wanted = min(size, self._member.end - self._position)
        data = read_range(self._descriptor, self._position, wanted)
        self._position += len(data)
        return data


def _directory(
    descriptor: int, file_size: int, limits: ArchiveLimits
) -> tuple[list[ZipMember], int]:
    """Return the entries, each checked for itself, and where the directory begins."""
    count, size, offset = _directory_of(descriptor, file_size)
    if count > limits.max_entries + 1:
        raise ArchiveError(f"Archive has more than {limits.max_entries} entries: {count}")
    if size > limits.max_manifest_bytes:
        raise ArchiveError(
            f"Archive has a directory of more than {limits.max_manifest_bytes} bytes: {size}"
        )
    directory = read_range(descriptor, offset, size)
    if len(directory) != size:
        raise ArchiveError("Archive is truncated in its directory")
    return _listed(directory, count), offset


def _directory_of(descriptor: int, size: int) -> tuple[int, int, int]:
    """Return how many entries the directory has, its size and its offset."""
    at, end = _end_record(descriptor, size)
    _, disk, first, here, count, length, offset, _ = end
    if disk or first or here != count:
        raise ArchiveError("Archive is one part of several")
    if MAX_16 in (here, count) or MAX_32 in (length, offset):
        at, count, length, offset = _end64_record(descriptor, at)
    if offset + length != at:
        raise ArchiveError("Archive has a directory that is not where it must be")
    return count, length, offset


def _end_record(descriptor: int, size: int) -> tuple[int, tuple[bytes, *tuple[int, ...]]]:
    """Return where the end record is, and its fields; it must end where the file does."""
    tail_size = min(size, END.size + MAX_16)
    tail = read_range(descriptor, size - tail_size, tail_size)
    found: list[int] = []
    at = tail.rfind(END_SIGNATURE)
    while at >= 0:
        comment = int.from_bytes(tail[at + END.size - 2 : at + END.size], "little")
        if at + END.size + comment == len(tail):
            found.append(at)
        at = tail.rfind(END_SIGNATURE, 0, at + 3)
    if len(found) != 1:
        reason = "has more than one end" if found else "is not a ZIP file, or truncated"
        raise ArchiveError(f"Archive {reason}")
    return size - tail_size + found[0], END.unpack_from(tail, found[0])


def _end64_record(descriptor: int, end: int) -> tuple[int, int, int, int]:
    at = end - LOCATOR64.size - END64.size
    data = read_range(descriptor, at, LOCATOR64.size + END64.size) if at >= 0 else b""
    if len(data) != LOCATOR64.size + END64.size:
        raise ArchiveError("Archive is truncated in its end record")
    signature, size, _, _, disk, first, here, count, length, offset = END64.unpack_from(data)
    locator = LOCATOR64.unpack_from(data, END64.size)
    if signature != END64_SIGNATURE or size != END64.size - 12:
        raise ArchiveError("Archive has a damaged end record")
    if locator != (LOCATOR64_SIGNATURE, 0, at, 1) or disk or first or here != count:
        raise ArchiveError("Archive is one part of several, or its end record is damaged")
    return at, count, length, offset


def _listed(directory: bytes, count: int) -> list[ZipMember]:
    """Return the entries in the order of the directory."""
    members: list[ZipMember] = []
    names: set[str] = set()
    at = 0
    for number in range(count):
        if number % _CHECK_EVERY == 0:
            check_time("Archive")
        member, at = _member(directory, at)
        if member.name in names:
            raise ArchiveError(f"Archive has an entry twice: {brief(member.name)!r}")
        names.add(member.name)
        members.append(member)
    if at != len(directory):
        raise ArchiveError("Archive has more entries than it declares")
    return members


def _member(directory: bytes, at: int) -> tuple[ZipMember, int]:
    """Return the entry at `at`, and where the next one begins."""
    if at + CENTRAL.size > len(directory):
        raise ArchiveError("Archive has fewer entries than it declares")
    fields = CENTRAL.unpack_from(directory, at)
    signature, _, _, flags, method, _, _, crc, packed, size = fields[:10]
    name_size, extra_size, comment_size, disk, _, external, offset = fields[10:]
    name_at = at + CENTRAL.size
    extra_at = name_at + name_size
    end = extra_at + extra_size + comment_size
    if signature != CENTRAL_SIGNATURE or end > len(directory):
        raise ArchiveError("Archive has a damaged directory")
    name = _name(directory[name_at:extra_at])
    if MAX_32 in (packed, size, offset):
        extra = directory[extra_at : extra_at + extra_size]
        size, packed, offset = _wide(extra, name, size, packed, offset)
    member = ZipMember(name, flags, method, crc, packed, size, external >> 16, offset)
    _check(member, disk)
    return member, end


def _wide(extra: bytes, name: str, *values: int) -> Iterator[int]:
    """Yield the values, those that need 64 bits from the extra field."""
    wide = iter(_UNSIGNED_64.iter_unpack(_zip64(extra, name)))
    for value in values:
        found = next(wide, None) if value == MAX_32 else (value,)
        if found is None:
            raise ArchiveError(f"Entry has a damaged header: {brief(name)!r}")
        yield found[0]


def _zip64(extra: bytes, name: str) -> bytes:
    at = 0
    while at + _EXTRA.size <= len(extra):
        kind, size = _EXTRA.unpack_from(extra, at)
        at += _EXTRA.size
        if kind == ZIP64_EXTRA and at + size <= len(extra):
            return extra[at : at + size - size % 8]
        at += size
    raise ArchiveError(f"Entry has a damaged header: {brief(name)!r}")


def _name(raw: bytes) -> str:
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise ArchiveError(f"Entry has a name that is not UTF-8: {raw[:200]!r}") from None
    if _CONTROL.search(name) or _DRIVE.match(name):
        raise ArchiveError(f"Entry has a name that is not plain: {brief(name)!r}")
    segments = name.removesuffix("/").split("/")
    if not {"", ".", ".."}.isdisjoint(segments):
        raise ArchiveError(f"Entry has a name that leads elsewhere: {brief(name)!r}")
    return name


def _check(member: ZipMember, disk: int) -> None:
    kind = stat.S_IFMT(member.mode)
    if member.flags & ~_KNOWN_FLAGS:
        raise _damaged(member, "is encrypted, or packed in an unknown way")
    if member.method not in {STORED, DEFLATED}:
        raise _damaged(member, f"is packed by an unknown method, {member.method}")
    if disk:
        raise _damaged(member, "is in another part of the archive")
    if kind not in {0, stat.S_IFDIR if member.is_directory else stat.S_IFREG}:
        raise _damaged(member, "is neither a file nor a directory, or not what its name says")
    if member.is_directory and (member.size or member.crc):
        raise _damaged(member, "is a directory with content")
    if member.method == STORED and member.size != member.packed_size:
        raise _damaged(member, "has two sizes")


def _placed(descriptor: int, members: list[ZipMember], end: int) -> list[ZipMember]:
    """Return the entries with their places, in the order of the directory."""
    placed: dict[str, ZipMember] = {}
    free = 0
    for number, member in enumerate(sorted(members, key=lambda each: each.offset)):
        if number % _CHECK_EVERY == 0:
            check_time("Archive")
        if member.offset < free:
            raise _damaged(member, "overlaps another one")
        found = _located(descriptor, member, end)
        free = found.end
        placed[member.name] = found
    return [placed[member.name] for member in members]


def _located(descriptor: int, member: ZipMember, end: int) -> ZipMember:
    """Compare the header beside the content with the directory, which begins at `end`."""
    if member.offset > end:
        raise _damaged(member, "reaches into the directory")
    name = member.name.encode()
    header = read_range(descriptor, member.offset, LOCAL.size + len(name))
    if len(header) != LOCAL.size + len(name) or header[LOCAL.size :] != name:
        raise _damaged(member, "has another name, or none, where its content is")
    signature, _, flags, method, _, _, crc, packed, size, name_size, extra_size = LOCAL.unpack_from(
        header
    )
    if signature != LOCAL_SIGNATURE or name_size != len(name):
        raise _damaged(member, "has a damaged header")
    agrees = (
        crc == member.crc
        and packed in (member.packed_size, MAX_32)
        and size in (member.size, MAX_32)
    )
    unsaid = flags & STREAMED and not (crc or packed or size)
    if (flags, method) != (member.flags, member.method) or not (agrees or unsaid):
        raise _damaged(member, "has a header that contradicts the directory")
    found = member._replace(start=member.offset + LOCAL.size + name_size + extra_size)
    if found.end > end:
        raise _damaged(member, "reaches into the directory")
    return found


def _damaged(member: ZipMember, fact: str) -> ArchiveError:
    return ArchiveError(f"Entry {fact}: {brief(member.name)!r}")
