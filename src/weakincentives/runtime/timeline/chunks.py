"""The content of files in a timeline: chunks, compressed, and stored as splices where possible.

Most edits change one place of a file. A chunk whose beginning and end are those of an earlier
chunk is stored as a splice: a reference to that chunk, and the bytes in between. Splices of
splices are limited in depth, so that reading costs a bounded number of records. A splice can also
refer to a file of the base.
"""

import struct
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from weakincentives.filesystem import Content
from weakincentives.posix import check_time
from weakincentives.runtime.timeline.base import BaseFiles
from weakincentives.runtime.timeline.records import (
    CHUNK,
    RecordReader,
    RecordWriter,
    TimelineError,
)

CHUNK_SIZE = 1024 * 1024
"""Bytes of a file in one chunk; only the last one is shorter."""
_RAW, _DEFLATED, _SPLICE, _BASE_SPLICE = 0, 1, 2, 3
_HEAD = struct.Struct(">BBI")  # encoding, depth, size of the content
_REFERENCE = struct.Struct(">QII")  # offset of the other chunk, bytes at its beginning and its end
# git id of a file in the base, number of its chunk, bytes at the beginning and the end of that
_BASE_REFERENCE = struct.Struct(">20sIII")
_REFERENCES = {_SPLICE: _REFERENCE, _BASE_SPLICE: _BASE_REFERENCE}
_MAX_DEPTH = 64
_MIN_SHARED = 64  # bytes; less is not worth a reference
_LEVEL = 4  # higher levels save 3 %, and take nearly twice the time
_MAX_SMALL = 8 * 1024  # bytes; less gets a small window, of the same size
_SMALL_WINDOW, _SMALL_MEMORY = 13, 6
_CACHE_BYTES = 8 * CHUNK_SIZE


class BaseChunk(NamedTuple):
    """A chunk of a file in the base."""

    blob: str
    number: int


Reference: TypeAlias = int | BaseChunk
"""A chunk that is stored already: the offset of its record, or its place in the base."""


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

    def store(self, data: bytes, similar: Reference | None = None) -> int:
        """Store a chunk, which is probably similar to another one; return its offset."""
        if similar is not None:
            spliced = self._store_splice(data, similar)
            if spliced is not None:
                return spliced
        return self.store_packed(pack(data))

    def store_packed(self, packed: "PackedChunk") -> int:
        """Store a chunk that has been compressed already; return its offset."""
        return self._append(packed.encoding, 0, packed.size, packed.body)

    def _store_splice(self, data: bytes, similar: Reference) -> int | None:
        depth = self._depth(similar) + 1
        if depth > _MAX_DEPTH:
            return None
        other = self._reader.load(similar)
        start = _common_prefix(data, other)
        stop = _common_suffix(data[start:], other[start:])
        if start + stop < _MIN_SHARED:
            return None
        middle = _deflate(data[start : len(data) - stop])
        if len(middle) + _REFERENCE.size > len(data) // 2:
            return None
        if isinstance(similar, int):
            body = _REFERENCE.pack(similar, start, stop) + middle
            return self._append(_SPLICE, depth, len(data), body)
        blob = bytes.fromhex(similar.blob)
        body = _BASE_REFERENCE.pack(blob, similar.number, start, stop) + middle
        return self._append(_BASE_SPLICE, depth, len(data), body)

    def _depth(self, similar: Reference) -> int:
        if not isinstance(similar, int):
            return 0
        depth = self._depths.get(similar)
        if depth is None:
            depth = self._depths[similar] = self._reader.depth(similar)
        return depth

    def _append(self, encoding: int, depth: int, size: int, body: bytes) -> int:
        offset = self._writer.append(CHUNK, _HEAD.pack(encoding, depth, size) + body)
        self._depths[offset] = depth
        return offset


class ChunkReader:
    """Reads chunks, and keeps a few in memory."""

    def __init__(self, reader: RecordReader, base: BaseFiles | None = None) -> None:
        """Read from `reader`; `base` has the files of the first step, if they are stored there."""
        self._reader = reader
        self.base: BaseFiles | None = base
        self._cache: OrderedDict[Reference, bytes] = OrderedDict()
        self._cached_bytes = 0

    def load(self, chunk: Reference) -> bytes:
        """Return the content of a chunk.

        Raises:
            TimelineError: It is missing or damaged.
        """
        found = self._cache.get(chunk)
        if found is not None:
            self._cache.move_to_end(chunk)
            return found
        data = self._decode(chunk) if isinstance(chunk, int) else self._read_base(chunk)
        self._cache[chunk] = data
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
        pending: list[tuple[int, _Splice]] = []  # outermost first
        data = None
        while data is None:
            chunk = self._read(offset)
            splice = _decode_splice(chunk, offset)
            if splice is None:
                data = _decode_plain(chunk, offset)
                break
            if len(pending) > _MAX_DEPTH:
                raise _damaged(offset)
            pending.append((offset, splice))
            if isinstance(splice.other, int):
                offset = splice.other
            else:
                data = self.load(splice.other)
        for place, splice in reversed(pending):
            if splice.start + splice.stop > len(data):
                raise _damaged(place)
            data = data[: splice.start] + splice.middle + data[len(data) - splice.stop :]
        return data

    def _read_base(self, chunk: BaseChunk) -> bytes:
        if self.base is None:
            raise TimelineError("The timeline refers to a base that it does not have")
        with self.base.open(chunk.blob) as content:
            return content.read(chunk.number * CHUNK_SIZE, CHUNK_SIZE)

    def _read(self, offset: int) -> "_Chunk":
        payload = self._reader.read(offset, CHUNK)
        if len(payload) < _HEAD.size:
            raise _damaged(offset)
        encoding, depth, size = _HEAD.unpack_from(payload)
        chunk = _Chunk(encoding, depth, size, payload[_HEAD.size :])
        if chunk.encoding > _BASE_SPLICE or chunk.size > CHUNK_SIZE:
            raise _damaged(offset)
        reference = _REFERENCES.get(chunk.encoding)
        if reference is not None and len(chunk.body) < reference.size:
            raise _damaged(offset)
        return chunk


class _Chunk(NamedTuple):
    encoding: int
    depth: int
    size: int
    body: bytes


class _Splice(NamedTuple):
    """A chunk that consists of the beginning and the end of another one, and of a middle."""

    other: Reference
    start: int
    stop: int
    middle: bytes


def _decode_plain(chunk: _Chunk, offset: int) -> bytes:
    """Return the content of a chunk that is not a splice."""
    is_deflated = chunk.encoding == _DEFLATED
    data = _inflate(chunk.body, chunk.size, offset) if is_deflated else chunk.body
    if len(data) != chunk.size:
        raise _damaged(offset)
    return data


def _decode_splice(chunk: _Chunk, offset: int) -> _Splice | None:
    """Return the splice that a chunk is; None if it is none."""
    reference = _REFERENCES.get(chunk.encoding)
    if reference is None:
        return None
    *place, start, stop = reference.unpack_from(chunk.body)
    if start + stop > chunk.size:
        raise _damaged(offset)
    middle = _inflate(chunk.body[reference.size :], chunk.size - start - stop, offset)
    if chunk.encoding == _BASE_SPLICE:
        return _Splice(BaseChunk(place[0].hex(), place[1]), start, stop, middle)
    if place[0] >= offset:
        raise _damaged(offset)  # it could be a cycle
    return _Splice(place[0], start, stop, middle)


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
