r"""Text as a view of bytes: lines, pages and encodings.

A line ends at `\n` and nowhere else, so line numbers agree with editors and a page
cut out of the bytes is the exact text, carriage returns and byte order mark
included. A page of a large file is found through an index of line counts per
block; the file itself is never held in memory.
"""

import codecs
from abc import ABC, abstractmethod
from bisect import bisect_left
from itertools import accumulate
from typing import Self

from weakincentives.errors import WinkError
from weakincentives.filesystem.limits import READ_ENTIRE_FILE, check_time

BLOCK = 64 * 1024
_CHUNK = 16 * BLOCK
# encodings in which the byte 0x0A is a line end and nothing else
_NEWLINE_IS_ONE_BYTE = frozenset({"utf-8", "ascii", "iso8859-1", "iso8859-15", "cp1252"})


_BINARY_PREFIX = 8 * 1024  # bytes that tell text from anything else
SNIFFED = _BINARY_PREFIX + 1
"""How many bytes of a file tell `is_binary` all that it looks at."""


class BinaryContentError(WinkError, ValueError):
    """The bytes are not text in the encoding that was asked for."""


def is_binary(data: bytes) -> bool:
    """Return whether bytes are no UTF-8 text, as far as their first 8 KiB tell."""
    head = data if len(data) <= _BINARY_PREFIX else data[:_BINARY_PREFIX]
    if b"\0" in head:
        return True
    if head.isascii():
        return False
    try:
        codecs.utf_8_decode(head, "strict", head is data)  # else the last character may be cut
    except UnicodeDecodeError:
        return True
    return False


class Content(ABC):
    """The bytes of one open file."""

    __slots__ = ()

    @property
    @abstractmethod
    def size(self) -> int:
        """How many bytes there are."""

    @abstractmethod
    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""

    def line_index(self) -> "LineIndex":
        """Return where the lines are; a backend may remember it."""
        return LineIndex(self)

    def close(self) -> None:  # noqa: B027 # content in memory has nothing to close
        """Let go of what reading needs."""

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class BytesContent(Content):
    """Content that is already in memory."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        """Hold `data`."""
        self._data = data

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return len(self._data)

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""
        if offset == 0 and size >= len(self._data):
            return self._data
        return self._data[offset : offset + size]


class LineIndex:
    """How many line ends there are up to the end of each block."""

    __slots__ = ("_ends", "total")

    def __init__(self, content: Content) -> None:
        """Count the lines of `content`, a chunk at a time."""
        counts: list[int] = []
        last = b"\n"
        for offset in range(0, content.size, _CHUNK):
            check_time("Read")
            chunk = content.read(offset, _CHUNK)
            counts += [chunk.count(b"\n", at, at + BLOCK) for at in range(0, len(chunk), BLOCK)]
            last = chunk[-1:] or last
        self._ends = list(accumulate(counts))
        self.total = (self._ends[-1] if counts else 0) + (last != b"\n")

    def offset_of(self, line: int, content: Content) -> int:
        """Return the byte at which `line` begins; past the last line, the size."""
        if line == 0:
            return 0
        block = bisect_left(self._ends, line)
        if block == len(self._ends):
            return content.size
        before = self._ends[block - 1] if block else 0
        data = content.read(block * BLOCK, BLOCK)
        return block * BLOCK + _after_line(data, line - before)


def read_page(content: Content, offset: int, limit: int, encoding: str) -> tuple[str, int]:
    """Return the text of `limit` lines from line `offset`, and how many lines there are.

    Raises:
        UnicodeError: The page is not text in `encoding`.
        LookupError: The encoding is not known.
    """
    if encoding == "utf-8" or codecs.lookup(encoding).name in _NEWLINE_IS_ONE_BYTE:
        page, total = _page(content, offset, limit)
        return page.decode(encoding), total
    lines = content.read(0, content.size).decode(encoding).split("\n")
    kept = [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    stop = None if limit == READ_ENTIRE_FILE else offset + limit
    return "".join(kept[offset:stop]), len(kept)


def _page(content: Content, offset: int, limit: int) -> tuple[bytes, int]:
    if content.size <= BLOCK:
        return _small_page(content.read(0, BLOCK), offset, limit)
    index = content.line_index()
    start = index.offset_of(offset, content)
    whole = limit == READ_ENTIRE_FILE
    stop = content.size if whole else index.offset_of(offset + limit, content)
    return content.read(start, stop - start), index.total


def _small_page(data: bytes, offset: int, limit: int) -> tuple[bytes, int]:
    total = data.count(b"\n") + (data[-1:] not in {b"\n", b""})
    if offset == 0 and (limit >= total or limit == READ_ENTIRE_FILE):
        return data, total
    start = _after_line(data, offset)
    if limit == READ_ENTIRE_FILE:
        return data[start:], total
    page = data[start:]
    return page[: _after_line(page, limit)], total


def _after_line(data: bytes, count: int) -> int:
    """Return the position after the first `count` lines of `data`."""
    if count == 0:
        return 0
    pieces = data.split(b"\n", min(count, len(data) + 1))
    return len(data) - len(pieces[-1]) if len(pieces) > count else len(data)
