"""Deflate compression and CRC-32, by the fastest library that is installed.

The extra `fast` installs ISA-L, which compresses five times as fast as zlib and decompresses
twice as fast. Each reads the output of the other; the compressed bytes differ.

Both release the GIL, so `parallel_map` compresses and checks files on several processors.
"""

import zlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

try:
    from isal import igzip_lib, isal_zlib
except ImportError:
    igzip_lib = isal_zlib = None
import os
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import islice
from typing import TypeVar

_RAW = -15  # window bits: no header, the largest window
_ZLIB_LEVEL = 1  # higher levels save too little for their time
_ISAL_LEVEL = 0  # deterministic, which archives must be
_ISAL_PACK_LEVEL = 3  # saves a sixth; its output varies, which does not matter in a pack
Buffer = bytes | bytearray | memoryview
T = TypeVar("T")
R = TypeVar("R")
_MAX_THREADS = 4  # more would wait for the sequential part
_LOOKAHEAD = 2  # items for each thread that are submitted ahead


class Deflater(Protocol):
    """Compresses a stream."""

    def compress(self, data: bytes, /) -> bytes:
        """Add content; return the compressed bytes that are ready."""
        ...

    def flush(self) -> bytes:
        """Return the remaining compressed bytes."""
        ...


class Codec(NamedTuple):
    """The compression functions of one library."""

    name: str
    deflate: Callable[[bytes], bytes]
    """Compress data in one call."""
    deflater: Callable[[], Deflater]
    """Create a compressor for a stream."""
    inflate: Callable[[Buffer, int], bytes | None]
    """Decompress a whole buffer to content of a given size.

    None if the buffer does not hold exactly that. It never decompresses more.
    """
    crc32: Callable[[Buffer], int]
    """Return the CRC-32 checksum of data."""


def _zlib_codec() -> Codec:
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
        is_complete = engine.eof and not engine.unused_data and len(data) == size
        return data if is_complete else None

    return Codec("zlib", deflate, deflater, inflate, zlib.crc32)


def _isal_codec(level: int) -> Codec | None:
    if igzip_lib is None or isal_zlib is None:
        return None
    compression, decompression, flag = isal_zlib, igzip_lib, igzip_lib.DECOMP_DEFLATE

    def deflate(data: bytes) -> bytes:
        return compression.compress(data, level, _RAW)

    def deflater() -> Deflater:
        return compression.compressobj(level, compression.DEFLATED, _RAW)

    def inflate(packed: Buffer, size: int) -> bytes | None:
        # the decompressor of `isal_zlib` misses up to 7 trailing bytes after the stream
        engine = decompression.IgzipDecompressor(flag=flag)
        try:
            data = engine.decompress(packed, size or 1)
        except decompression.error:
            return None
        is_complete = engine.eof and not engine.unused_data and len(data) == size
        return data if is_complete else None

    return Codec("isal", deflate, deflater, inflate, compression.crc32)


ZLIB = _zlib_codec()
"""The standard library's zlib, always available."""
ISAL = _isal_codec(_ISAL_LEVEL)
"""ISA-L, if it is installed."""
DEFAULT_CODEC = ISAL or ZLIB
"""The fastest codec that is installed."""
PACK_CODEC = _isal_codec(_ISAL_PACK_LEVEL) or ZLIB
"""The codec of packs: smaller than with the default codec, and still fast."""


def parallel_map(function: Callable[[T], R], items: Iterable[T]) -> Generator[R, None, None]:
    """Yield `function(item)` for each item, in order; threads are used from the second on.

    Items are taken in the calling thread, a few ahead. Time limits apply in all threads.
    """
    source = iter(items)
    count = min(_MAX_THREADS, count_processors())
    yield from map(function, islice(source, 1 if count > 1 else None))
    futures: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(count, "wink-archive")  # starts its threads on demand
    try:
        for item in source:
            futures.append(_submit(pool, function, item))
            if len(futures) > count * _LOOKAHEAD:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _submit(pool: ThreadPoolExecutor, function: Callable[[T], R], item: T) -> Future[R]:
    try:
        return pool.submit(copy_context().run, function, item)
    except RuntimeError:  # no thread can be started: too many, or interpreter shutdown
        future: Future[R] = Future()
        future.set_result(function(item))
        return future


def count_processors() -> int:
    """Return how many processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux has it
        return os.cpu_count() or 1
