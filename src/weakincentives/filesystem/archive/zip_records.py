"""The records of a ZIP file, byte for byte."""

from struct import Struct
from typing import NamedTuple

STORED, DEFLATED = 0, 8
STREAMED = 1 << 3  # sizes follow the data
FASTEST = 0b11 << 1  # how hard it was compressed: not very
UTF8 = 1 << 11
UNIX = 3
MAX_16, MAX_32 = 0xFFFF, 0xFFFFFFFF
ZIP64_EXTRA = 0x0001
WIDE = 0xF0000000
"""Sizes from here on get 64 bits, which leaves room for what deflate adds."""
LOCAL = Struct("<4s5H3L2H")
"""Signature, version, flags, method, time, date, crc, packed, size, name, extra."""
CENTRAL = Struct("<4s6H3L5H2L")
"""Signature, made by, version, flags, method, time, date, crc, packed, size, name, extra,
comment, disk, internal, external, offset."""
END = Struct("<4s4H2LH")
"""Signature, disk, disk of the directory, entries here, entries, size, offset, comment."""
END64 = Struct("<4sQ2H2L4Q")
"""Signature, size, made by, version, disk, disk of the directory, entries here, entries,
size, offset."""
LOCATOR64 = Struct("<4sLQL")
"""Signature, disk, offset, disks."""
LOCAL_SIGNATURE = b"PK\3\4"
CENTRAL_SIGNATURE = b"PK\1\2"
END_SIGNATURE = b"PK\5\6"
END64_SIGNATURE = b"PK\6\6"
LOCATOR64_SIGNATURE = b"PK\6\7"
_BEGINNING = Struct("<6H")  # of a record in the directory after its signature, up to the date
_WIDE_SIZES = Struct("<2H2Q")
_VERSION = 45  # of the format: 64 bits
_MADE_BY = (UNIX << 8) | _VERSION
_TIME, _DATE = 0, (1 << 5) | 1  # midnight of 1980-01-01, the first that a ZIP knows


class ZipMember(NamedTuple):
    """An entry of a ZIP; `offset` is where the header before its content begins."""

    name: str
    flags: int
    method: int
    crc: int
    packed_size: int
    size: int
    mode: int
    offset: int

    @property
    def is_directory(self) -> bool:
        """Whether it stands for a directory."""
        return self.name.endswith("/")

    @property
    def least_end(self) -> int:
        """Where it ends if nothing stands between its name and its content."""
        return self.offset + LOCAL.size + len(self.name) + self.packed_size


def is_wide(size: int) -> bool:
    """Return whether a size needs 64 bits."""
    return size >= WIDE


def local_header(member: ZipMember, wide: bool) -> bytes:
    """Return what stands before the packed bytes of an entry; `wide` if sizes need 64 bits."""
    name = member.name.encode()
    sizes, extra = (member.packed_size, member.size), b""
    if wide:
        extra = _WIDE_SIZES.pack(ZIP64_EXTRA, 16, member.size, member.packed_size)
        sizes = (MAX_32, MAX_32)
    lengths = len(name), len(extra)
    fixed = _VERSION, member.flags, member.method, _TIME, _DATE, member.crc
    return LOCAL.pack(LOCAL_SIGNATURE, *fixed, *sizes, *lengths) + name + extra


def central(member: ZipMember) -> bytes:
    """Return the record of an entry in the directory."""
    name = member.name.encode()
    wide = b""
    small: list[int] = []
    for value in (member.size, member.packed_size, member.offset):
        if value >= WIDE:
            wide += value.to_bytes(8, "little")
        small.append(MAX_32 if value >= WIDE else value)
    if wide:
        wide = ZIP64_EXTRA.to_bytes(2, "little") + len(wide).to_bytes(2, "little") + wide
    size, packed_size, offset = small
    external = (member.mode << 16) | (0x10 if member.is_directory else 0)
    fixed = _MADE_BY, _VERSION, member.flags, member.method, _TIME, _DATE, member.crc
    lengths = len(name), len(wide), 0
    tail = 0, 0, external, offset
    return CENTRAL.pack(CENTRAL_SIGNATURE, *fixed, packed_size, size, *lengths, *tail) + name + wide


def entry_prefix(flags: int, method: int) -> bytes:
    """Return how the record of an entry goes on after its signature, if it is packed so."""
    return _BEGINNING.pack(_MADE_BY, _VERSION, flags, method, _TIME, _DATE)


def end_records(count: int, length: int, begin: int) -> bytes:
    """Return what ends a ZIP."""
    wide = b""
    if count >= MAX_16 or length >= WIDE or begin >= WIDE:
        fixed = END64.size - 12, _MADE_BY, _VERSION, 0, 0
        wide = END64.pack(END64_SIGNATURE, *fixed, count, count, length, begin)
        wide += LOCATOR64.pack(LOCATOR64_SIGNATURE, 0, begin + length, 1)
        count, length, begin = MAX_16, MAX_32, MAX_32
    return wide + END.pack(END_SIGNATURE, 0, 0, count, count, length, begin, 0)
