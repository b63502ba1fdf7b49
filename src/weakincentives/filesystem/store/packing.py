"""Writes git pack files: whole objects one after the other, and the index of them."""

import hashlib
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import BinaryIO

_NUMBERS = {"commit": 1, "tree": 2, "blob": 3, "tag": 4}
_HEADER = struct.Struct(">4sII")
_INDEX_MAGIC = b"\xfftOc\0\0\0\x02"
_FAR = 0x80000000  # marks an offset that is in the table of large ones
_CHUNK = 1024 * 1024
_BYTES = [bytes((value,)) for value in range(256)]


class PackWriter:
    """Writes whole objects to a file, then the index that finds them."""

    def __init__(self, file: BinaryIO) -> None:
        """Start a pack in `file`, which is empty, readable and buffered."""
        self._file = file
        self._entries: list[tuple[bytes, int, int]] = []
        self._offset = file.write(_HEADER.pack(b"PACK", 2, 0))

    def __len__(self) -> int:
        """How many objects there are."""
        return len(self._entries)

    def add(self, name: str, kind: str, size: int, deflated: bytes) -> None:
        """Add the object with the id `name`, `size` bytes long, in its deflated form."""
        entry = _entry_header(_NUMBERS[kind], size) + deflated
        self._file.write(entry)
        self._entries.append((bytes.fromhex(name), zlib.crc32(entry), self._offset))
        self._offset += len(entry)

    def add_parts(
        self, kind: str, size: int, deflated: Iterable[bytes], named: Callable[[], str | None]
    ) -> None:
        """Add an object in parts; `named` gives its id afterwards, or None to drop it.

        If the parts end with an exception, nothing has been added.
        """
        header = _entry_header(_NUMBERS[kind], size)
        crc, length = zlib.crc32(header), self._file.write(header)
        name = None
        try:
            for part in deflated:
                crc = zlib.crc32(part, crc)
                length += self._file.write(part)
            name = named()
        finally:
            if name is None:
                self._file.seek(self._offset)
                self._file.truncate()
        if name is not None:
            self._entries.append((bytes.fromhex(name), crc, self._offset))
            self._offset += length

    def finish(self) -> bytes:
        """End the pack; return the content of its index.

        The number of objects comes first in the file and is known last, so the
        checksum is taken from what was written.
        """
        self._file.seek(0)
        self._file.write(_HEADER.pack(b"PACK", 2, len(self._entries)))
        self._file.seek(0)
        digest = hashlib.sha1(usedforsecurity=False)
        while chunk := self._file.read(_CHUNK):
            digest.update(chunk)
        self._file.write(digest.digest())
        self._file.flush()
        return _index(sorted(self._entries), digest.digest())


def _entry_header(number: int, size: int) -> bytes:
    first, size = number << 4 | size & 15, size >> 4
    header = b""
    while size:
        header += _BYTES[first | 0x80]
        first, size = size & 0x7F, size >> 7
    return header + _BYTES[first]


def _index(entries: list[tuple[bytes, int, int]], checksum: bytes) -> bytes:
    keys, crcs, offsets = zip(*entries, strict=True) if entries else ((), (), ())
    counts = Counter([key[0] for key in keys])
    far = [offset for offset in offsets if offset >= _FAR]
    if far:
        places = {offset: number | _FAR for number, offset in enumerate(far)}
        offsets = [places.get(offset, offset) for offset in offsets]
    body = b"".join(
        (
            _INDEX_MAGIC,
            struct.pack(">256I", *accumulate(counts[first] for first in range(256))),
            b"".join(keys),
            struct.pack(f">{len(crcs)}I", *crcs),
            struct.pack(f">{len(offsets)}I", *offsets),
            struct.pack(f">{len(far)}Q", *far),
            checksum,
        )
    )
    return body + hashlib.sha1(body, usedforsecurity=False).digest()
