r"""Lines of a file as bytes, each bounded, without holding the file.

A line ends at `\n` and nowhere else. Of a line that is longer than what can be shown
only the beginning is kept, and how many bytes follow: one that has 100 MB costs time
and no memory. Of one that does not end within reach it is known that more follows.
"""

from collections.abc import Iterator
from typing import NamedTuple

from weakincentives.filesystem import (
    DEFAULT_LIMITS,
    Content,
    Filesystem,
    LineStart,
    ReadableFilesystem,
    TimeLimitError,
)
from weakincentives.filesystem.limits import early_time_limit
from weakincentives.filesystem.readable import not_found_in_time
from weakincentives.filesystem.text import LineIndex

CHUNK = 128 * 1024
"""How much is read at once."""

_REACH = 256 * 1024 * 1024  # bytes in which the lines of one page must end


class RawLine(NamedTuple):
    """A line: its bytes without the end, where it begins, and how many bytes are left out.

    If it is `endless`, its end was not reached, and at least so many are left out.
    """

    data: bytes
    start: int
    left_out: int = 0
    ended: bool = True
    endless: bool = False


class WorkspaceContent(Content):
    """The bytes of a file, read through the protocol as they are asked for."""

    __slots__ = ("_filesystem", "_path", "_size")

    def __init__(self, filesystem: Filesystem, path: str, size: int) -> None:
        """Read `path`, which has `size` bytes."""
        self._filesystem = filesystem
        self._path = path
        self._size = size

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return self._size

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""
        return self._filesystem.read_bytes(self._path, offset=offset, limit=size).content


def line_start(filesystem: Filesystem, path: str, line: int, size: int) -> LineStart:
    """Return the byte at which `line`, counted from 0, begins, and how many lines there are."""
    if isinstance(filesystem, ReadableFilesystem):
        return filesystem.line_start(path, line)
    try:
        with early_time_limit(DEFAULT_LIMITS.max_read_seconds):
            return find_line(WorkspaceContent(filesystem, path, size), line)
    except TimeLimitError:
        raise not_found_in_time(path, line, size) from None


def find_line(content: Content, line: int) -> LineStart:
    """Return the byte at which `line` of `content` begins, and how many lines there are."""
    index = LineIndex()
    start = index.find(line, content) or 0
    return LineStart(start, *index.count(content, start + DEFAULT_LIMITS.max_count_bytes))


def lines_from(content: Content, start: int, keep: int, reach: int = _REACH) -> Iterator[RawLine]:
    """Yield the lines from byte `start` on, of each at most `keep` bytes.

    No more than `reach` bytes are read: a line that does not end in them is the last one.
    """
    at = begin = start
    kept, left_out = b"", 0
    while chunk := content.read(at, CHUNK):
        if at - start >= reach:
            if begin < at:
                yield RawLine(kept, begin, left_out, ended=False, endless=True)
            return
        at += len(chunk)
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            data = kept + piece if kept else piece
            yield RawLine(data[:keep], begin, left_out + max(len(data) - keep, 0))
            begin += len(data) + left_out + 1
            kept, left_out = b"", 0
        kept += rest
        left_out += max(len(kept) - keep, 0)
        kept = kept[:keep]
    if kept:
        yield RawLine(kept, begin, left_out, ended=False)
