"""The directory at the end of a ZIP file, read with suspicion.

Every record is checked for itself here: that it is whole, that its name is plain, that
it is packed in a way that we know.
"""

import re
import stat
import zlib
from collections.abc import Iterator, Sequence
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
    leads_elsewhere,
)
from weakincentives.posix import check_time, read_range, shorten_path

_UNKNOWN_FLAGS = 0xFFFF & ~(FASTEST | STREAMED | UTF8)
_METHODS = frozenset({STORED, DEFLATED})
_FILE_KINDS = frozenset({0, stat.S_IFREG >> 12})
_CHECK_EVERY = 4_096  # entries between two looks at the clock
_EXTRA = Struct("<2H")
_UNSIGNED_64 = Struct("<Q")
_CONTROL = re.compile("[\x00-\x1f\x7f\\\\]")
_DRIVE = re.compile("(?:files/)?[A-Za-z]:")
_LENGTHS = Struct("<3H")  # of name, extra field and comment
_LENGTHS_AT = 28  # in a record


def raw_directory(descriptor: int, file_size: int, limits: ArchiveLimits) -> tuple[bytes, int, int]:
    """Return the directory, how many entries it has, and where it begins.

    Raises:
        ArchiveError: There is none, or it is too large.
    """
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
    return directory, count, offset


def read_members(directory: bytes, count: int) -> list[ZipMember]:
    """Return the entries in the order of the directory.

    Raises:
        ArchiveError: One is damaged, there twice, or not to be trusted.
    """
    places = list(records(directory, count))
    names = _names([name for _, name in places])
    if len({*names}) != count:
        raise ArchiveError(f"Archive has an entry twice: {shorten_path(_repeated(names))!r}")
    return [member_at(directory, at, name) for (at, _), name in zip(places, names, strict=True)]


def member_at(directory: bytes, at: int, name: str) -> ZipMember:
    """Return the entry whose record begins at `at`.

    Raises:
        ArchiveError: It is damaged, or packed in a way that we do not know.
    """
    fields = CENTRAL.unpack_from(directory, at)
    _, _, _, flags, method, _, _, crc, packed, size, _, _, _, disk, _, external, offset = fields
    if MAX_32 in (packed, size, offset):
        size, packed, offset = _wide(directory, at, name, size, packed, offset)
    member = ZipMember(name, flags, method, crc, packed, size, external >> 16, offset)
    is_plain = not (flags & _UNKNOWN_FLAGS or disk) and external >> 28 in _FILE_KINDS
    if not is_plain or method != DEFLATED or name[-1] == "/":
        _check(member, disk)
    return member


def records(directory: bytes, count: int) -> Iterator[tuple[int, bytes]]:
    """Yield where each record begins, and the name in it.

    Raises:
        ArchiveError: The directory holds something else, or another number of them.
    """
    at, length = 0, len(directory)
    for number in range(count):
        if number % _CHECK_EVERY == 0:
            check_time("Archive")
        begin = at + CENTRAL.size
        if begin > length:
            raise ArchiveError("Archive has fewer entries than it declares")
        name_size, extra_size, comment_size = _LENGTHS.unpack_from(directory, at + _LENGTHS_AT)
        end = begin + name_size + extra_size + comment_size
        if end > length or not directory.startswith(CENTRAL_SIGNATURE, at):
            raise ArchiveError("Archive has a damaged directory")
        yield at, directory[begin : begin + name_size]
        at = end
    if at != length:
        raise ArchiveError("Archive has more entries than it declares")


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


def _wide(directory: bytes, at: int, name: str, *values: int) -> Iterator[int]:
    """Yield the values, those that need 64 bits from the extra field."""
    name_size, extra_size, _ = _LENGTHS.unpack_from(directory, at + _LENGTHS_AT)
    begin = at + CENTRAL.size + name_size
    wide = iter(_UNSIGNED_64.iter_unpack(_zip64(directory[begin : begin + extra_size], name)))
    for value in values:
        found = next(wide, None) if value == MAX_32 else (value,)
        if found is None:
            raise ArchiveError(f"Entry has a damaged header: {shorten_path(name)!r}")
        yield found[0]


def _zip64(extra: bytes, name: str) -> bytes:
    at = 0
    while at + _EXTRA.size <= len(extra):
        kind, size = _EXTRA.unpack_from(extra, at)
        at += _EXTRA.size
        if kind == ZIP64_EXTRA and at + size <= len(extra):
            return extra[at : at + size - size % 8]
        at += size
    raise ArchiveError(f"Entry has a damaged header: {shorten_path(name)!r}")


def _names(packed: Sequence[bytes]) -> list[str]:
    """Return the names, all of them plain; looked at one by one only if need be."""
    try:
        text = b"\n".join(packed).decode()
    except UnicodeDecodeError:
        return [_name(each) for each in packed]
    names = text.split("\n")
    are_visible = len(names) == len(packed) and "".join(names).isprintable()
    segments = f"\n{text}\n".replace("/\n", "\n").replace("\n", "/")
    if are_visible and "\\" not in text and ":" not in text and not leads_elsewhere(segments):
        return names
    return [_name(each) for each in packed]


def _name(packed: bytes) -> str:
    try:
        name = packed.decode()
    except UnicodeDecodeError:
        raise ArchiveError(f"Entry has a name that is not UTF-8: {packed[:200]!r}") from None
    if _CONTROL.search(name) or _DRIVE.match(name):
        raise ArchiveError(f"Entry has a name that is not plain: {shorten_path(name)!r}")
    segments = name.removesuffix("/").split("/")
    if not {"", ".", ".."}.isdisjoint(segments):
        raise ArchiveError(f"Entry has a name that leads elsewhere: {shorten_path(name)!r}")
    return name


def _repeated(names: Sequence[str]) -> str:
    seen: set[str] = set()
    return next(name for name in names if name in seen or seen.add(name))


def _check(member: ZipMember, disk: int) -> None:
    kind = stat.S_IFMT(member.mode)
    if member.flags & _UNKNOWN_FLAGS:
        raise damage_error(member, "is encrypted, or packed in an unknown way")
    if member.method not in _METHODS:
        raise damage_error(member, f"is packed by an unknown method, {member.method}")
    if disk:
        raise damage_error(member, "is in another part of the archive")
    if kind not in {0, stat.S_IFDIR if member.is_directory else stat.S_IFREG}:
        raise damage_error(member, "is neither a file nor a directory, or not what its name says")
    if member.is_directory and (member.size or member.crc):
        raise damage_error(member, "is a directory with content")
    if member.method == STORED and member.size != member.packed_size:
        raise damage_error(member, "has two sizes")


def damage_error(member: ZipMember, fact: str) -> ArchiveError:
    """Return the error for an entry that cannot be trusted."""
    return ArchiveError(f"Entry {fact}: {shorten_path(member.name)!r}")


CHUNK_SIZE = 1024 * 1024
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
            raise damage_error(member, "has another name, or none, where its content is")
        if header[:4] != LOCAL_SIGNATURE:
            raise damage_error(member, "has a damaged header")
        _, _, flags, method, _, _, crc, packed, size, name_size, extra = LOCAL.unpack_from(header)
        agrees = (
            crc == member.crc
            and packed in (member.packed_size, MAX_32)
            and size in (member.size, MAX_32)
        )
        unsaid = flags & STREAMED and not (crc or packed or size)
        is_same = (flags, method, name_size) == (member.flags, member.method, len(name))
        if not is_same or not (agrees or unsaid):
            raise damage_error(member, "has a header that contradicts the directory")
        start = member.offset + LOCAL.size + name_size + extra
        if start + member.packed_size > self.end:
            raise damage_error(member, "reaches into the directory")
        return start

    def pieces(self, member: ZipMember, start: int) -> Iterator[bytes]:
        """Yield the content of an entry; more than its size is never unpacked.

        Raises:
            ArchiveError: It is damaged, or not what the directory says.
        """
        stream = MemberStream(self._descriptor, member, start)
        size = crc = 0
        while piece := stream.read_chunk():
            check_time("Archive")
            size += len(piece)
            if size > member.size:
                raise damage_error(member, f"holds more than the {member.size} bytes it declares")
            crc = zlib.crc32(piece, crc)
            yield piece
        if size != member.size:
            raise damage_error(member, f"holds {size} bytes, not the {member.size} it declares")
        if crc != member.crc:
            raise damage_error(member, "is damaged, its checksum is wrong")


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

    def read_chunk(self) -> bytes:
        """Return the next bytes, or none at the end.

        Raises:
            ArchiveError: The packed bytes are damaged.
        """
        engine = self._engine
        if engine is None:
            return self._packed(CHUNK_SIZE)
        room = min(CHUNK_SIZE, self._member.size + 1)  # a small entry needs no large buffer
        data = b""
        try:
            while not data and not engine.eof:
                packed = engine.unconsumed_tail or self._packed(_PACKED_PIECE)
                data = engine.decompress(packed, room)
                if not packed and not data:
                    raise damage_error(self._member, "ends too early")
        except zlib.error as error:
            raise damage_error(self._member, f"is damaged ({error})") from None
        if not data and (engine.unused_data or self._position < self._end):
            raise damage_error(self._member, "is followed by bytes that do not belong to it")
        return data

    def _packed(self, size: int) -> bytes:
        wanted = min(size, self._end - self._position)
        data = read_range(self._descriptor, self._position, wanted)
        self._position += len(data)
        return data
