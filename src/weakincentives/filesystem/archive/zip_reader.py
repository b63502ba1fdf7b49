"""A strict ZIP reader: the central directory, local headers and content, all checked.

Each record must be complete, have a plain name, and use a compression method that we support.
Local headers must agree with the central directory.
"""

import re
import stat
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from struct import Struct
from typing import Self

from weakincentives.filesystem.archive.format import (
    CENTRAL,
    CENTRAL_SIGNATURE,
    DEFLATED,
    END,
    END64,
    END64_SIGNATURE,
    END_SIGNATURE,
    FASTEST,
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
    ArchiveError,
    ArchiveLimits,
    ZipMember,
    has_special_segment,
)
from weakincentives.posix import check_time, read_range, shorten_path

_UNKNOWN_FLAGS = 0xFFFF & ~(FASTEST | STREAMED | UTF8)
_METHODS = frozenset({STORED, DEFLATED})
_FILE_KINDS = frozenset({0, stat.S_IFREG >> 12})
_TIME_CHECK_INTERVAL = 4_096  # entries between two checks of the time limit
_EXTRA = Struct("<2H")
_UNSIGNED_64 = Struct("<Q")
_CONTROL = re.compile("[\x00-\x1f\x7f\\\\]")
_DRIVE = re.compile("(?:files/)?[A-Za-z]:")
_LENGTHS = Struct("<3H")  # of name, extra field and comment
_LENGTHS_AT = 28  # in a central record
CHUNK_SIZE = 1024 * 1024
_COMPRESSED_CHUNK = 256 * 1024


def read_directory(
    descriptor: int, file_size: int, limits: ArchiveLimits
) -> tuple[bytes, int, int]:
    """Return the central directory, its number of entries, and its offset.

    Raises:
        ArchiveError: It is missing or too large.
    """
    count, size, offset = _find_directory(descriptor, file_size)
    if count > limits.max_entries + 1:
        raise ArchiveError(f"Archive has more than {limits.max_entries} entries: {count}")
    if size > limits.max_manifest_bytes:
        raise ArchiveError(
            f"Central directory is larger than {limits.max_manifest_bytes} bytes: {size}"
        )
    directory = read_range(descriptor, offset, size)
    if len(directory) != size:
        raise ArchiveError("Archive is truncated in its central directory")
    return directory, count, offset


def read_members(directory: bytes, count: int) -> list[ZipMember]:
    """Return the entries in the order of the central directory.

    Raises:
        ArchiveError: An entry is damaged, duplicate or unsafe.
    """
    found = list(iter_records(directory, count))
    names = _decode_names([name for _, name in found])
    if len({*names}) != count:
        ((twice, _),) = Counter(names).most_common(1)
        raise ArchiveError(f"Archive has an entry twice: {shorten_path(twice)!r}")
    return [member_at(directory, at, name) for (at, _), name in zip(found, names, strict=True)]


def member_at(directory: bytes, at: int, name: str) -> ZipMember:
    """Return the entry whose central record is at `at`.

    Raises:
        ArchiveError: It is damaged, or compressed by an unsupported method.
    """
    fields = CENTRAL.unpack_from(directory, at)
    _, _, _, flags, method, _, _, crc, packed, size, _, _, _, disk, _, external, offset = fields
    if MAX_32 in (packed, size, offset):
        size, packed, offset = _read_zip64(directory, at, name, size, packed, offset)
    member = ZipMember(name, flags, method, crc, packed, size, external >> 16, offset)
    is_plain = not (flags & _UNKNOWN_FLAGS or disk) and external >> 28 in _FILE_KINDS
    if not is_plain or method != DEFLATED or name[-1] == "/":
        _check_member(member, disk)
    return member


def iter_records(directory: bytes, count: int) -> Iterator[tuple[int, bytes]]:
    """Yield the position of each central record, and its raw name.

    Raises:
        ArchiveError: The directory is damaged, or has another number of records.
    """
    at, length = 0, len(directory)
    for number in range(count):
        if number % _TIME_CHECK_INTERVAL == 0:
            check_time("Archive")
        begin = at + CENTRAL.size
        if begin > length:
            raise ArchiveError("Archive has fewer entries than it declares")
        name_size, extra_size, comment_size = _LENGTHS.unpack_from(directory, at + _LENGTHS_AT)
        end = begin + name_size + extra_size + comment_size
        if end > length or not directory.startswith(CENTRAL_SIGNATURE, at):
            raise ArchiveError("Archive has a damaged central directory")
        yield at, directory[begin : begin + name_size]
        at = end
    if at != length:
        raise ArchiveError("Archive has more entries than it declares")


def _find_directory(descriptor: int, size: int) -> tuple[int, int, int]:
    """Return the central directory's number of entries, size and offset."""
    at, end = _read_end(descriptor, size)
    _, disk, first, here, count, length, offset, _ = end
    if disk or first or here != count:
        raise ArchiveError("Archive is one part of a multi-part ZIP")
    if MAX_16 in (here, count) or MAX_32 in (length, offset):
        at, count, length, offset = _read_end64(descriptor, at)
    if offset + length != at:
        raise ArchiveError("Archive has its central directory in the wrong place")
    return count, length, offset


def _read_end(descriptor: int, size: int) -> tuple[int, tuple[bytes, *tuple[int, ...]]]:
    """Return the position and fields of the end record, which must end the file."""
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
        reason = "has more than one end record" if found else "is not a ZIP file, or is truncated"
        raise ArchiveError(f"Archive {reason}")
    return size - tail_size + found[0], END.unpack_from(tail, found[0])


def _read_end64(descriptor: int, end: int) -> tuple[int, int, int, int]:
    at = end - LOCATOR64.size - END64.size
    data = read_range(descriptor, at, LOCATOR64.size + END64.size) if at >= 0 else b""
    if len(data) != LOCATOR64.size + END64.size:
        raise ArchiveError("Archive is truncated in its end record")
    signature, size, _, _, disk, first, here, count, length, offset = END64.unpack_from(data)
    locator = LOCATOR64.unpack_from(data, END64.size)
    if signature != END64_SIGNATURE or size != END64.size - 12:
        raise ArchiveError("Archive has a damaged end record")
    if locator != (LOCATOR64_SIGNATURE, 0, at, 1) or disk or first or here != count:
        raise ArchiveError("Archive is part of a multi-part ZIP, or its end record is damaged")
    return at, count, length, offset


def _read_zip64(directory: bytes, at: int, name: str, *values: int) -> Iterator[int]:
    """Yield the values, taking those that need 64 bits from the extra field."""
    name_size, extra_size, _ = _LENGTHS.unpack_from(directory, at + _LENGTHS_AT)
    begin = at + CENTRAL.size + name_size
    wide = iter(
        _UNSIGNED_64.iter_unpack(_find_zip64_extra(directory[begin : begin + extra_size], name))
    )
    for value in values:
        found = next(wide, None) if value == MAX_32 else (value,)
        if found is None:
            raise ArchiveError(f"Entry has a damaged ZIP64 field: {shorten_path(name)!r}")
        yield found[0]


def _find_zip64_extra(extra: bytes, name: str) -> bytes:
    at = 0
    while at + _EXTRA.size <= len(extra):
        kind, size = _EXTRA.unpack_from(extra, at)
        at += _EXTRA.size
        if kind == ZIP64_EXTRA and at + size <= len(extra):
            return extra[at : at + size - size % 8]
        at += size
    raise ArchiveError(f"Entry has a damaged ZIP64 field: {shorten_path(name)!r}")


def _decode_names(packed: Sequence[bytes]) -> list[str]:
    """Decode and check all names together; one by one only if that finds something suspicious."""
    try:
        text = b"\n".join(packed).decode()
    except UnicodeDecodeError:
        return [_decode_name(each) for each in packed]
    names = text.split("\n")
    are_visible = len(names) == len(packed) and "".join(names).isprintable()
    segments = f"\n{text}\n".replace("/\n", "\n").replace("\n", "/")
    if are_visible and "\\" not in text and ":" not in text and not has_special_segment(segments):
        return names
    return [_decode_name(each) for each in packed]


def _decode_name(packed: bytes) -> str:
    try:
        name = packed.decode()
    except UnicodeDecodeError:
        raise ArchiveError(f"Entry has a name that is not UTF-8: {packed[:200]!r}") from None
    if _CONTROL.search(name) or _DRIVE.match(name):
        raise ArchiveError(
            f"Entry name has a control character, backslash or drive letter: {shorten_path(name)!r}"
        )
    segments = name.removesuffix("/").split("/")
    if not {"", ".", ".."}.isdisjoint(segments):
        raise ArchiveError(f"Entry has an empty, '.' or '..' segment: {shorten_path(name)!r}")
    return name


def _check_member(member: ZipMember, disk: int) -> None:
    kind = stat.S_IFMT(member.mode)
    if member.flags & _UNKNOWN_FLAGS:
        raise damage_error(member, "is encrypted or has unsupported flags")
    if member.method not in _METHODS:
        raise damage_error(member, f"has the unsupported compression method {member.method}")
    if disk:
        raise damage_error(member, "is in another part of a multi-part ZIP")
    if kind not in {0, stat.S_IFDIR if member.is_directory else stat.S_IFREG}:
        raise damage_error(member, "has a type that is not supported or contradicts its name")
    if member.is_directory and (member.size or member.crc):
        raise damage_error(member, "is a directory with content")
    if member.method == STORED and member.size != member.packed_size:
        raise damage_error(member, "is stored, but has two different sizes")


def damage_error(member: ZipMember, fact: str) -> ArchiveError:
    """Return the error for an entry that is damaged or unsafe."""
    return ArchiveError(f"Entry {fact}: {shorten_path(member.name)!r}")


class ZipReader:
    """Reads entries of an open ZIP file; the caller closes the file."""

    def __init__(self, descriptor: int, end: int) -> None:
        """Read entries before `end`, where the central directory begins."""
        self._descriptor = descriptor
        self.end = end

    def read(self, member: ZipMember) -> bytes:
        """Return the content of an entry, verified."""
        return b"".join(self.read_chunks(member, self.find_content(member)))

    def read_bytes(self, begin: int, size: int) -> bytes:
        """Return raw bytes of the file, none of them from the central directory."""
        return read_range(self._descriptor, begin, min(size, self.end - begin))

    def find_content(self, member: ZipMember) -> int:
        """Check the local header of an entry; return where its content begins.

        Raises:
            ArchiveError: The header is damaged, or contradicts the central directory.
        """
        name = member.name.encode()
        header = b""
        if member.offset <= self.end:
            header = read_range(self._descriptor, member.offset, LOCAL.size + len(name))
        if len(header) != LOCAL.size + len(name) or header[LOCAL.size :] != name:
            raise damage_error(member, "has another name in its local header, or none")
        if header[:4] != LOCAL_SIGNATURE:
            raise damage_error(member, "has a damaged local header")
        _, _, flags, method, _, _, crc, packed, size, name_size, extra = LOCAL.unpack_from(header)
        agrees = (
            crc == member.crc
            and packed in (member.packed_size, MAX_32)
            and size in (member.size, MAX_32)
        )
        is_deferred = flags & STREAMED and not (crc or packed or size)
        is_same = (flags, method, name_size) == (member.flags, member.method, len(name))
        if not is_same or not (agrees or is_deferred):
            raise damage_error(member, "has a local header that contradicts the central directory")
        start = member.offset + LOCAL.size + name_size + extra
        if start + member.packed_size > self.end:
            raise damage_error(member, "overlaps the central directory")
        return start

    def read_chunks(self, member: ZipMember, start: int) -> Iterator[bytes]:
        """Yield the content of an entry; never decompress more than its declared size.

        Raises:
            ArchiveError: It is damaged, or contradicts the central directory.
        """
        stream = MemberStream(self._descriptor, member, start)
        size = crc = 0
        while chunk := stream.read_chunk():
            check_time("Archive")
            size += len(chunk)
            if size > member.size:
                raise damage_error(member, f"has more than the {member.size} bytes it declares")
            crc = zlib.crc32(chunk, crc)
            yield chunk
        if size != member.size:
            raise damage_error(member, f"has {size} bytes, not the {member.size} it declares")
        if crc != member.crc:
            raise damage_error(member, "is damaged (wrong CRC-32)")


class MemberStream:
    """A decompressed stream of an entry; a copy continues independently."""

    def __init__(self, descriptor: int, member: ZipMember, start: int) -> None:
        """Start at the beginning; `start` is where the compressed bytes begin."""
        self._descriptor = descriptor
        self._member = member
        self._position = start
        self._end = start + member.packed_size
        self._engine = zlib.decompressobj(-15) if member.method == DEFLATED else None

    def copy(self) -> Self:
        """Return an independent stream at the same position."""
        duplicate = copy(self)
        duplicate._engine = None if self._engine is None else self._engine.copy()  # noqa: SLF001  an object of this class
        return duplicate

    def read_chunk(self) -> bytes:
        """Return the next chunk; empty at the end.

        Raises:
            ArchiveError: The compressed bytes are damaged.
        """
        engine = self._engine
        if engine is None:
            return self._read_raw(CHUNK_SIZE)
        room = min(CHUNK_SIZE, self._member.size + 1)  # a small entry needs no large buffer
        data = b""
        try:
            while not data and not engine.eof:
                packed = engine.unconsumed_tail or self._read_raw(_COMPRESSED_CHUNK)
                data = engine.decompress(packed, room)
                if not packed and not data:
                    raise damage_error(self._member, "is truncated")
        except zlib.error as error:
            raise damage_error(self._member, f"is damaged ({error})") from None
        if not data and (engine.unused_data or self._position < self._end):
            raise damage_error(self._member, "is followed by bytes that do not belong to it")
        return data

    def _read_raw(self, size: int) -> bytes:
        size = min(size, self._end - self._position)
        data = read_range(self._descriptor, self._position, size)
        self._position += len(data)
        return data
