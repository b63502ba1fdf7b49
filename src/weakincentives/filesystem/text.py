r"""File content as text: binary detection, line index, pages and encodings.

A line ends at `\n` and nowhere else, so line numbers agree with editors, and a page is an exact
slice of the bytes, carriage returns and byte order mark included. In a large file a page is
found through a line index with a count per block, which is built only as far as needed; the
file itself is never held in memory.
"""

import codecs
from abc import abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from operator import itemgetter
from threading import Lock
from typing import NamedTuple, Protocol, Self

from weakincentives.errors import WinkError
from weakincentives.filesystem.limits import (
    DEFAULT_LIMITS,
    READ_ENTIRE_FILE,
    Limits,
    check_fits,
    out_of_memory,
)
from weakincentives.posix import CloseOnExit, TimeLimitError, check_time

BLOCK = 64 * 1024
CHECKPOINT_INTERVAL = 8 * 1024 * 1024
"""Bytes between two points from which compressed content can be read again."""
_CHUNK = 16 * BLOCK
# encodings in which the byte 0x0A is a line end and nothing else
_NEWLINE_IS_ONE_BYTE = frozenset({"utf-8", "ascii", "iso8859-1", "iso8859-15", "cp1252"})

BINARY_PREFIX = 8 * 1024
"""Bytes at the beginning of a file that decide whether it is binary."""
SNIFF_LENGTH = BINARY_PREFIX + 1
"""Bytes to read for `is_binary`: one more shows whether the last character may be cut."""


class BinaryContentError(WinkError, ValueError):
    """The bytes are not text in the requested encoding."""


def is_binary(data: bytes) -> bool:
    """Return whether the first 8 KiB contain a NUL or are not UTF-8."""
    head = data if len(data) <= BINARY_PREFIX else data[:BINARY_PREFIX]
    if b"\0" in head:
        return True
    if head.isascii():
        return False
    try:
        codecs.utf_8_decode(
            head, "strict", head is data
        )  # if not final, the last character may be cut
    except UnicodeDecodeError:
        return True
    return False


class Content(CloseOnExit):
    """The bytes of one open file."""

    __slots__ = ()

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of bytes."""

    @abstractmethod
    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""

    def next_data(self, offset: int) -> int:
        """Return the next offset that may hold data: a sparse file skips its holes."""
        return offset

    def line_index(self) -> "LineIndex":
        """Return a line index of the content; a backend may cache it."""
        return LineIndex()

    def close(self) -> None:  # content in memory has nothing to close
        """Release resources."""


class BytesContent(Content):
    """Content in memory."""

    __slots__ = ("_data", "_index")

    def __init__(self, data: bytes, index: "Callable[[], LineIndex] | None" = None) -> None:
        """Hold `data`; `index` returns a cached line index."""
        self._data = data
        self._index = index or LineIndex

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self._data)

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""
        if offset == 0 and size >= len(self._data):
            return self._data
        return self._data[offset : offset + size]

    def line_index(self) -> "LineIndex":
        """Return the cached line index, or a new one."""
        return self._index()


class ResumableStream(Protocol):
    """The chunks of a compressed file; a copy continues independently."""

    def read_chunk(self) -> bytes:
        """Return the next chunk; empty at the end."""
        ...

    def copy(self) -> Self:
        """Return a stream at the same position."""
        ...


class StreamedContent(Content):
    """Content that is decompressed as it is read; a seek back resumes from a checkpoint."""

    __slots__ = ("_at", "_buffer", "_checkpoints", "_index", "_size", "_stream")

    def __init__(
        self, stream: ResumableStream, size: int, index: "Callable[[], LineIndex] | None" = None
    ) -> None:
        """Read `size` bytes from the start of `stream`; `index` returns a cached line index."""
        self._size = size
        self._index = index or LineIndex
        self._stream = stream
        self._checkpoints = [(0, stream.copy())]
        self._at = 0
        self._buffer = b""

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self._size

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""
        end = min(offset + size, self._size)
        if offset < self._at:
            self._seek_back(offset)
        parts: list[bytes] = []
        while offset < end:
            skipped = offset - self._at
            part = self._buffer[skipped : skipped + end - offset]
            if part:
                parts.append(part)
                offset += len(part)
            else:
                self._advance()
        return b"".join(parts)

    def line_index(self) -> "LineIndex":
        """Return the cached line index, or a new one."""
        return self._index()

    @abstractmethod
    def _next_chunk(self) -> bytes:
        """Return the next chunk, or raise if there is none."""

    def _advance(self) -> None:
        self._at += len(self._buffer)
        if self._at - self._checkpoints[-1][0] >= CHECKPOINT_INTERVAL:
            self._checkpoints.append((self._at, self._stream.copy()))
        self._buffer = self._next_chunk()

    def _seek_back(self, offset: int) -> None:
        index = bisect_right(self._checkpoints, offset, key=itemgetter(0)) - 1
        self._at, stream = self._checkpoints[index]
        self._stream = stream.copy()
        self._buffer = b""


class LineTotal(NamedTuple):
    """The number of lines; a lower bound unless `exact`."""

    lines: int
    exact: bool = True


class Page(NamedTuple):
    """The text of a page, and the lines of the file; a lower bound unless `exact`."""

    text: str
    total: int
    exact: bool = True


class LineIndex:
    """A thread-safe index of the line ends in a file, per block of 64 KiB.

    For each block that has line ends it holds the total up to the end of the block. It covers
    the beginning of the file and is extended on demand.
    """

    __slots__ = ("_counted", "_ends", "_lock", "_offsets", "_unended")

    def __init__(self) -> None:
        """Start empty."""
        self._offsets = array("Q")
        self._ends = array("Q")
        self._counted = 0
        self._unended = False
        self._lock = Lock()

    def find(self, line: int, content: Content, *, before: int | None = None) -> int | None:
        """Return the byte offset of `line`; past the last line, the size.

        Return None if it is not found up to the byte `before`.

        Raises:
            TimeLimitError: The time limit has passed; the index keeps what it has counted.
        """
        if line == 0:
            return 0
        while not self._ends or self._ends[-1] < line:
            if self._counted >= content.size:
                return content.size
            if before is not None and self._counted > before:
                return None
            self._extend(content)
        block = bisect_left(self._ends, line)
        above = self._ends[block - 1] if block else 0
        offset = self._offsets[block]
        return offset + _offset_after_lines(content.read(offset, BLOCK), line - above)

    def count(self, content: Content, until: int | None = None) -> LineTotal:
        """Count the lines up to byte `until`; a lower bound if `content` is longer.

        When time runs out, return what has been counted.
        """
        until = content.size if until is None else -(-until // BLOCK) * BLOCK
        try:
            while self._counted < min(until, content.size):
                self._extend(content)
        except TimeLimitError:
            until = self._counted
        if until >= content.size:
            return LineTotal((self._ends[-1] if self._ends else 0) + self._unended)
        block = bisect_left(self._offsets, until)
        return LineTotal((self._ends[block - 1] if block else 0) + 1, exact=False)

    def _extend(self, content: Content) -> None:
        """Index the next chunk."""
        check_time("Read")
        known = self._counted
        start = max(known, content.next_data(known) // BLOCK * BLOCK)
        chunk = content.read(start, _CHUNK)
        counts = [chunk.count(b"\n", at, at + BLOCK) for at in range(0, len(chunk), BLOCK)]
        with self._lock:
            if self._counted != known:
                return  # another thread was faster
            total = self._ends[-1] if self._ends else 0
            for number, count in enumerate(counts):
                if count:
                    total += count
                    self._offsets.append(start + number * BLOCK)
                    self._ends.append(total)
            if chunk or start > known:
                self._unended = chunk[-1:] != b"\n"
            # a short read means that the file was truncated meanwhile
            self._counted = start + _CHUNK if len(chunk) == _CHUNK else content.size


def read_page(
    content: Content,
    offset: int,
    limit: int,
    encoding: str,
    limits: Limits = DEFAULT_LIMITS,
    path: str = "",
) -> Page:
    """Return the text of `limit` lines from line `offset`, and the number of lines.

    Raises:
        UnicodeError: The page is not text in `encoding`.
        LookupError: The encoding is unknown.
        LimitExceededError: The page is too large for memory.
        TimeLimitError: The page was not found in time.
    """
    try:
        if encoding == "utf-8" or codecs.lookup(encoding).name in _NEWLINE_IS_ONE_BYTE:
            data, count = _page(content, offset, limit, limits, path)
            return Page(data.decode(encoding), *count)
        text = load(content, path, limits, text=True).decode(encoding)
        start = _position_after_lines(text, offset)
        stop = len(text)
        if limit != READ_ENTIRE_FILE:
            stop = _position_after_lines(text, offset + limit)
        return Page(text[start:stop], text.count("\n") + (text[-1:] not in {"\n", ""}))
    except MemoryError:
        raise out_of_memory(path, content.size, content.size) from None


def load(content: Content, path: str, limits: Limits, *, text: bool = False) -> bytes:
    """Load all bytes of `content`, the file at `path`.

    Raises:
        LimitExceededError: They do not fit into memory; nothing was read.
    """
    return load_part(content, 0, content.size, path, limits, text=text)


def load_part(
    content: Content, offset: int, wanted: int, path: str, limits: Limits, *, text: bool = False
) -> bytes:
    """Load `wanted` bytes of `content` from `offset`; raises as `load` does."""
    check_fits(path, wanted, content.size, limits, text=text)
    try:
        return content.read(offset, wanted)
    except MemoryError:
        raise out_of_memory(path, wanted, content.size) from None


def _page(
    content: Content, offset: int, limit: int, limits: Limits, path: str
) -> tuple[bytes, LineTotal]:
    size = content.size
    if size <= BLOCK:
        data, total = _small_page(content.read(0, BLOCK), offset, limit)
        check_fits(path, len(data), size, limits)
        return data, LineTotal(total)
    index = content.line_index()
    start = index.find(offset, content) or 0
    stop: int | None = size
    if limit != READ_ENTIRE_FILE:
        stop = index.find(offset + limit, content, before=start + limits.max_read_bytes)
    # a page whose end was not found exceeds max_read_bytes
    wanted = limits.max_read_bytes + 1 if stop is None else stop - start
    data = load_part(content, start, wanted, path, limits, text=True)
    return data, index.count(content, start + wanted + limits.max_count_bytes)


def _small_page(data: bytes, offset: int, limit: int) -> tuple[bytes, int]:
    total = data.count(b"\n") + (data[-1:] not in {b"\n", b""})
    if offset == 0 and (limit >= total or limit == READ_ENTIRE_FILE):
        return data, total
    start = _offset_after_lines(data, offset)
    if limit == READ_ENTIRE_FILE:
        return data[start:], total
    page = data[start:]
    return page[: _offset_after_lines(page, limit)], total


def _position_after_lines(text: str, count: int) -> int:
    """Return the position after the first `count` lines of `text`, scanning block by block."""
    for block in range(0, len(text), BLOCK):
        found = text.count("\n", block, block + BLOCK)
        if found >= count:
            for _ in range(count):
                block = text.index("\n", block) + 1
            return block
        count -= found
    return len(text)


def _offset_after_lines(data: bytes, count: int) -> int:
    """Return the position after the first `count` lines of `data`."""
    if count == 0:
        return 0
    pieces = data.split(b"\n", min(count, len(data) + 1))
    return len(data) - len(pieces[-1]) if len(pieces) > count else len(data)
