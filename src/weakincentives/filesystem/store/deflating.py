"""The packed form of objects: zlib streams, made as cheaply as the content allows."""

import struct
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain

from weakincentives.filesystem.compression import BEST, ZLIB, Codec

_TINY = 256
_SMALL = 8 * 1024
_SMALL_WINDOW, _SMALL_MEMORY = 13, 6
_RAW = -15
_HEADER = b"\x78\x01"
_STORED = struct.Struct("<3sHH")  # with the header of the only block, which is not packed
_CHECKSUM = struct.Struct(">I")


def deflated(data: bytes, codec: Codec = BEST) -> bytes:
    """Return the stream of an object."""
    size = len(data)
    if size <= _TINY:  # what packing would save is not worth its time
        header = _STORED.pack(_HEADER + b"\x01", size, ~size & 0xFFFF)
        return header + data + _CHECKSUM.pack(zlib.adler32(data))
    if codec is ZLIB and size <= _SMALL:
        # most of the cost of a small object is preparing tables for a large one
        deflater = zlib.compressobj(1, zlib.DEFLATED, _SMALL_WINDOW, _SMALL_MEMORY)
        return deflater.compress(data) + deflater.flush()
    packed = codec.deflate(data)
    if len(packed) > size:
        return zlib.compress(data, 0)  # ISA-L makes what cannot be packed a quarter larger
    return _HEADER + packed + _CHECKSUM.pack(zlib.adler32(data))


def deflated_parts(chunks: Iterable[bytes], codec: Codec = BEST) -> Iterator[bytes]:
    """Yield the stream of an object that is too large to be held; the first chunk tells how."""
    pending = iter(chunks)
    first = next(pending, b"")
    is_packable = len(codec.deflate(first)) < len(first)
    deflater = codec.deflater() if is_packable else zlib.compressobj(0, zlib.DEFLATED, _RAW)
    checksum = 1
    yield _HEADER
    for chunk in chain((first,), pending):
        checksum = zlib.adler32(chunk, checksum)
        yield deflater.compress(chunk)
    yield deflater.flush() + _CHECKSUM.pack(checksum)
