"""Deflate and CRC-32, by the fastest library that is installed.

The extra `fast` brings ISA-L, which packs five times as fast as zlib and unpacks twice
as fast. Each reads what the other writes; the packed bytes differ.
"""

import zlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

try:
    from isal import igzip_lib, isal_zlib
except ImportError:
    igzip_lib = isal_zlib = None


_RAW = -15  # no header, the largest window
_ZLIB_LEVEL = 1  # what the next ones save is not worth their time
_ISAL_LEVEL = 0  # 1 and 2 save a tenth, but do not give the same bytes every time
Buffer = bytes | bytearray | memoryview


class Deflater(Protocol):
    """Packs a stream."""

    def compress(self, data: bytes, /) -> bytes:
        """Take more of the content; return what is packed so far."""
        ...

    def flush(self) -> bytes:
        """Return the rest."""
        ...


class Codec(NamedTuple):
    """A library."""

    name: str
    deflate: Callable[[bytes], bytes]
    """Return data packed."""
    deflater: Callable[[], Deflater]
    """Return what packs a stream."""
    inflate: Callable[[Buffer, int], bytes | None]
    """Return the content of a given size that is packed in a buffer.

    None if that is not what it holds, or not all. More is never unpacked.
    """
    crc32: Callable[[Buffer], int]
    """Return the checksum of data."""


def _zlib() -> Codec:
    def deflate(data: bytes) -> bytes:
        return zlib.compress(data, _ZLIB_LEVEL, _RAW)

    def deflater() -> Deflater:
        return zlib.compressobj(_ZLIB_LEVEL, zlib.DEFLATED, _RAW)

    def inflate(packed: Buffer, size: int) -> bytes | None:
        engine = zlib.decompressobj(_RAW)
        try:
            data = engine.decompress(packed, size or 1)  # 0 would mean no limit
        except zlib.error:
            return None
        is_all = engine.eof and not engine.unused_data and len(data) == size
        return data if is_all else None

    return Codec("zlib", deflate, deflater, inflate, zlib.crc32)


def _isal() -> Codec | None:
    if igzip_lib is None or isal_zlib is None:
        return None
    packing, unpacking, flag = isal_zlib, igzip_lib, igzip_lib.DECOMP_DEFLATE

    def deflate(data: bytes) -> bytes:
        return packing.compress(data, _ISAL_LEVEL, _RAW)

    def deflater() -> Deflater:
        return packing.compressobj(_ISAL_LEVEL, packing.DEFLATED, _RAW)

    def inflate(packed: Buffer, size: int) -> bytes | None:
        # not that of `isal_zlib`, which does not see up to 7 bytes after the stream
        engine = unpacking.IgzipDecompressor(flag=flag)
        try:
            data = engine.decompress(packed, size or 1)
        except unpacking.error:
            return None
        is_all = engine.eof and not engine.unused_data and len(data) == size
        return data if is_all else None

    return Codec("isal", deflate, deflater, inflate, packing.crc32)


ZLIB = _zlib()
"""What every Python has."""
ISAL = _isal()
"""ISA-L, if it is installed."""
DEFAULT_CODEC = ISAL or ZLIB
"""What is used unless another one is asked for."""
