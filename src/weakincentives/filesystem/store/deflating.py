"""The packed form of objects: zlib streams, made as cheaply as their size allows."""

import struct
import zlib

LEVEL = 1

_TINY = 256
_SMALL = 8 * 1024
_SMALL_WINDOW, _SMALL_MEMORY = 13, 6
# the header of a stream, and that of its only block, which holds the data as they are
_STORED = struct.Struct("<3sHH")
_STORED_HEADER = b"\x78\x01\x01"
_CHECKSUM = struct.Struct(">I")


def deflated(data: bytes) -> bytes:
    """Return the zlib stream of an object."""
    size = len(data)
    if size <= _TINY:  # what packing would save is not worth its time
        header = _STORED.pack(_STORED_HEADER, size, ~size & 0xFFFF)
        return header + data + _CHECKSUM.pack(zlib.adler32(data))
    if size > _SMALL:
        return zlib.compress(data, LEVEL)
    # most of the cost of a small object is preparing tables for a large one
    deflater = zlib.compressobj(LEVEL, zlib.DEFLATED, _SMALL_WINDOW, _SMALL_MEMORY)
    return deflater.compress(data) + deflater.flush()
