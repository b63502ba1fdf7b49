"""Writes git pack files: whole objects one after the other, and the index of them."""

import hashlib
import os
import struct
import zlib
from collections.abc import Callable, Iterable
from itertools import accumulate

from weakincentives.filesystem.staging import write_all

_NUMBERS = {"commit": 1, "tree": 2, "blob": 3, "tag": 4}
_HEADER = struct.Struct(">4sII")
_INDEX_MAGIC = b"\xfftOc\0\0\0\x02"
_FAR = 0x80000000  # marks an offset that is in the table of large ones
_CHUNK = 1024 * 1024
_BUFFER = 256 * 1024
_BYTES = [bytes((value,)) for value in range(256)]


class PackWriter:
    """Writes whole objects to a file, then the index that finds them.

    The file is asked for when there is more than a little to write, or at the end.
    """

    def __init__(self, opened: Callable[[], int]) -> None:
        """Start a pack; `opened` returns the descriptor of an empty file."""
        self._opened = opened
        self._descriptor: int | None = None
        self._written = 0
        self._buffer = bytearray(_HEADER.pack(b"PACK", 2, 0))
        self._entries: list[tuple[bytes, int, int]] = []

    def __len__(self) -> int:
        """How many objects there are."""
        return len(self._entries)

    def add(self, name: str, kind: str, size: int, deflated: bytes) -> None:
        """Add the object with the id `name`, `size` bytes long, in its deflated form."""
        entry = _entry_header(_NUMBERS[kind], size) + deflated
        self._entries.append((bytes.fromhex(name), zlib.crc32(entry), self._offset()))
        self._write(entry)

    def add_parts(
        self, kind: str, size: int, deflated: Iterable[bytes], named: Callable[[], str | None]
    ) -> None:
        """Add an object in parts; `named` gives its id afterwards, or None to drop it.

        If the parts end with an exception, nothing has been added.
        """
        offset = self._offset()
        header = _entry_header(_NUMBERS[kind], size)
        crc = zlib.crc32(header)
        name = None
        try:
            self._write(header)
            for part in deflated:
                crc = zlib.crc32(part, crc)
                self._write(part)
            name = named()
        finally:
            if name is None:
                self._go_back(offset)
        if name is not None:
            self._entries.append((bytes.fromhex(name), crc, offset))

    def finish(self) -> bytes:
        """End the pack, all of it in the file; return the content of its index.

        The number of objects comes first and is known last, so the checksum is taken
        from what was written.
        """
        header = _HEADER.pack(b"PACK", 2, len(self._entries))
        digest = hashlib.sha1(usedforsecurity=False)
        if self._descriptor is None:
            self._buffer[: len(header)] = header
        else:
            self._flush()
            os.pwrite(self._descriptor, header, 0)
            for offset in range(0, self._written, _CHUNK):
                digest.update(os.pread(self._descriptor, _CHUNK, offset))
        digest.update(self._buffer)
        self._buffer += digest.digest()
        self._flush()
        return _index(sorted(self._entries), digest.digest())

    def _offset(self) -> int:
        return self._written + len(self._buffer)

    def _write(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > _BUFFER:
            self._flush()

    def _flush(self) -> None:
        if self._descriptor is None:
            self._descriptor = self._opened()
        write_all(self._descriptor, self._buffer)
        self._written += len(self._buffer)
        self._buffer.clear()

    def _go_back(self, offset: int) -> None:
        """Forget what has been written from `offset` on."""
        del self._buffer[max(0, offset - self._written) :]
        if self._descriptor is not None and offset < self._written:
            os.ftruncate(self._descriptor, offset)
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            self._written = offset


def _entry_header(number: int, size: int) -> bytes:
    first, size = number << 4 | size & 15, size >> 4
    header = b""
    while size:
        header += _BYTES[first | 0x80]
        first, size = size & 0x7F, size >> 7
    return header + _BYTES[first]


def _index(entries: list[tuple[bytes, int, int]], checksum: bytes) -> bytes:
    keys, crcs, offsets = zip(*entries, strict=True) if entries else ((), (), ())
    counts = [0] * 256
    for key in keys:
        counts[key[0]] += 1
    far = [offset for offset in offsets if offset >= _FAR]
    if far:
        places = {offset: number | _FAR for number, offset in enumerate(far)}
        offsets = [places.get(offset, offset) for offset in offsets]
    body = b"".join(
        (
            _INDEX_MAGIC,
            struct.pack(">256I", *accumulate(counts)),
            b"".join(keys),
            struct.pack(f">{len(crcs)}I", *crcs),
            struct.pack(f">{len(offsets)}I", *offsets),
            struct.pack(f">{len(far)}Q", *far),
            checksum,
        )
    )
    return body + hashlib.sha1(body, usedforsecurity=False).digest()
