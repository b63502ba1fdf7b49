"""The records of a ZIP file, byte for byte."""

from struct import Struct
from typing import NamedTuple

STORED, DEFLATED = 0, 8
STREAMED = 1 << 3  # sizes follow the data
FASTEST = 0b11 << 1  # how hard it was compressed: zlib's level 1
UTF8 = 1 << 11
UNIX = 3
MAX_16, MAX_32 = 0xFFFF, 0xFFFFFFFF
ZIP64_EXTRA = 0x0001

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


class ZipMember(NamedTuple):
    """An entry of a ZIP: `offset` is where its header begins, `start` its packed bytes."""

    name: str
    flags: int
    method: int
    crc: int
    packed_size: int
    size: int
    mode: int
    offset: int
    start: int = -1

    @property
    def is_directory(self) -> bool:
        """Whether it stands for a directory."""
        return self.name.endswith("/")

    @property
    def end(self) -> int:
        """Where its packed bytes end."""
        return self.start + self.packed_size
