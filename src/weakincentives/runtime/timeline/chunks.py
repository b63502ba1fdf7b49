"""The content of files in a timeline: chunks, compressed, and stored as splices where possible.

Most edits change one place of a file. A chunk whose beginning and end are those of an earlier
chunk is stored as a splice: a reference to that chunk, and the bytes in between. Splices of
splices are limited in depth, so that reading costs a bounded number of records.
"""

import struct
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from weakincentives.filesystem import Content
from weakincentives.posix import check_time
from weakincentives.runtime.timeline.records import (
    CHUNK,
    RecordReader,
    RecordWriter,
    TimelineError,
)

CHUNK_SIZE = 1024 * 1024
"""Bytes of a file in one chunk; only the last one is shorter."""
_RAW, _DEFLATED, _SPLICE = 0, 1, 2
_HEAD = struct.Struct(">BBI")  # encoding, depth, size of the content
_REFERENCE = struct.Struct(">QII")  # offset of the other chunk, bytes at its beginning and its end
_MAX_DEPTH = 64
_MIN_SHARED = 64  # bytes; less is not worth a reference
_LEVEL = 4  # higher levels save 3 %, and take nearly twice the time
_MAX_SMALL = 8 * 1024  # bytes; less gets a small window, of the same size
_SMALL_WINDOW, _SMALL_MEMORY = 13, 6
_CACHE_BYTES = 8 * CHUNK_SIZE


class PackedChunk(NamedTuple):
    """A chunk, compressed if that makes it smaller."""

    encoding: int
    size: int
    body: bytes


def pack(data: bytes) -> PackedChunk:
    """Compress a chunk; threads can do this at the same time."""
    packed = _deflate(data)
    if len(packed) < len(data):
        return PackedChunk(_DEFLATED, len(data), packed)
    return PackedChunk(_RAW, len(data), data)


class ChunkWriter:
    """Stores content as chunk records."""

    def __init__(self, writer: RecordWriter, reader: "ChunkReader") -> None:
        """Append to `writer`; `reader` reads the same file."""
        self._writer = writer
        self._reader = reader
        self._depths: dict[int, int] = {}

    def store(self, data: bytes, base: int | None = None) -> int:
        """Store a chunk, which is probably similar to the one at `base`; return its offset."""
        if base is not None:
            spliced = self._store_splice(data, base)
            if spliced is not None:
                return spliced
        return self.store_packed(pack(data))

    def store_packed(self, packed: "PackedChunk") -> int:
        """Store a chunk that has been compressed already; return its offset."""
        return self._append(packed.encoding, 0, packed.size, packed.body)

    def _store_splice(self, data: bytes, offset: int) -> int | None:
        depth = self._depths.get(offset)
        if depth is None:
            depth = self._depths[offset] = self._reader.depth(offset)
        depth += 1
        if depth > _MAX_DEPTH:
            return None
        other = self._reader.load(offset)
        start = _common_prefix(data, other)
        stop = _common_suffix(data[start:], other[start:])
        if start + stop < _MIN_SHARED:
            return None
        middle = _deflate(data[start : len(data) - stop])
        if len(middle) + _REFERENCE.size > len(data) // 2:
            return None
        body = _REFERENCE.pack(offset, start, stop) + middle
        return self._append(_SPLICE, depth, len(data), body)

    def _append(self, encoding: int, depth: int, size: int, body: bytes) -> int:
        offset = self._writer.append(CHUNK, _HEAD.pack(encoding, depth, size) + body)
        self._depths[offset] = depth
        return offset


class ChunkReader:
    """Reads chunks, and keeps a few in memory."""

    def __init__(self, reader: RecordReader) -> None:
        """Read from `reader`."""
        self._reader = reader
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        self._cached_bytes = 0

    def load(self, offset: int) -> bytes:
        """Return the content of the chunk at `offset`.

        Raises:
            TimelineError: It is missing or damaged.
        """
        found = self._cache.get(offset)
        if found is not None:
            self._cache.move_to_end(offset)
            return found
        data = self._decode(offset)
        self._cache[offset] = data
        self._cached_bytes += len(data)
        while self._cached_bytes > _CACHE_BYTES and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= len(dropped)
        return data

    def depth(self, offset: int) -> int:
        """Return how many other chunks the one at `offset` is a splice of.

        Raises:
            TimelineError: It is missing or damaged.
        """
        return self._read(offset).depth

    def _decode(self, offset: int) -> bytes:
        pending: list[tuple[int, int, int, bytes]] = []  # splices, outermost first
        while True:
            chunk = self._read(offset)
            size, body = chunk.size, chunk.body
            if chunk.encoding != _SPLICE:
                break
            other, start, stop = _REFERENCE.unpack_from(body)
            if other >= offset or len(pending) > _MAX_DEPTH or start + stop > size:
                raise _damaged(offset)  # it could be a cycle
            middle = _inflate(body[_REFERENCE.size :], size - start - stop, offset)
            pending.append((offset, start, stop, middle))
            offset = other
        data = _inflate(body, size, offset) if chunk.encoding == _DEFLATED else body
        if len(data) != size:
            raise _damaged(offset)
        for place, start, stop, middle in reversed(pending):
            if start + stop > len(data):
                raise _damaged(place)
            data = data[:start] + middle + data[len(data) - stop :]
        return data

    def _read(self, offset: int) -> "_Chunk":
        payload = self._reader.read(offset, CHUNK)
        if len(payload) < _HEAD.size:
            raise _damaged(offset)
        encoding, depth, size = _HEAD.unpack_from(payload)
        chunk = _Chunk(encoding, depth, size, payload[_HEAD.size :])
        if chunk.encoding not in (_RAW, _DEFLATED, _SPLICE) or chunk.size > CHUNK_SIZE:
            raise _damaged(offset)
        if chunk.encoding == _SPLICE and len(chunk.body) < _REFERENCE.size:
            raise _damaged(offset)
        return chunk


class _Chunk(NamedTuple):
    encoding: int
    depth: int
    size: int
    body: bytes


class ChunkedContent(Content):
    """A file of a timeline; chunks are read on demand."""

    __slots__ = ("_chunks", "_reader", "_size")

    def __init__(self, reader: ChunkReader, chunks: Sequence[int], size: int) -> None:
        """Read the file that consists of these chunks."""
        self._reader = reader
        self._chunks = chunks
        self._size = size

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self._size

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""
        end = min(offset + size, self._size)
        parts: list[bytes] = []
        while offset < end:
            check_time("Read")
            number, start = divmod(offset, CHUNK_SIZE)
            if number >= len(self._chunks):
                raise TimelineError("A file of the timeline is shorter than its size")
            part = self._reader.load(self._chunks[number])[start : start + end - offset]
            if not part:
                raise TimelineError("A file of the timeline is shorter than its size")
            parts.append(part)
            offset += len(part)
        return b"".join(parts)


def _deflate(data: bytes) -> bytes:
    if len(data) > _MAX_SMALL:
        return zlib.compress(data, _LEVEL)
    # for little data, most of the cost is initializing large tables
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _SMALL_WINDOW, _SMALL_MEMORY)
    return deflater.compress(data) + deflater.flush()


def _inflate(body: bytes, size: int, offset: int) -> bytes:
    """Return exactly `size` bytes; more are not produced, whatever the data says."""
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, size + 1)
    except zlib.error:
        raise _damaged(offset) from None
    if len(data) != size or not inflater.eof:
        raise _damaged(offset)
    return data


def _damaged(offset: int) -> TimelineError:
    return TimelineError(f"Chunk at byte {offset} of the timeline is damaged")


def _common_prefix(first: bytes, second: bytes) -> int:
    """Return how many bytes both have in common at the beginning."""
    low, high = 0, min(len(first), len(second))
    while low < high:  # the slices double as a comparison at the speed of memcmp
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_suffix(first: bytes, second: bytes) -> int:
    """Return how many bytes both have in common at the end."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if (
            first[len(first) - middle : len(first) - low]
            == (second[len(second) - middle : len(second) - low])
        ):
            low = middle
        else:
            high = middle - 1
    return low
