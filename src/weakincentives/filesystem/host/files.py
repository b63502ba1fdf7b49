"""Open files of the host: stat identity, racy timestamps, and a cache of line indexes."""

import errno
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from operator import attrgetter
from threading import RLock
from typing import TypeAlias

from weakincentives.filesystem.text import Content, LineIndex
from weakincentives.posix import read_range

Identity: TypeAlias = tuple[int, int, int, int, int, int]
_MAX_LINE_INDEXES = 64
_BLOCK_SIZE = 512  # bytes in the unit of st_blocks
_RACY_NS = 100_000_000  # a file this new may change again within one clock tick
_TICK_SECONDS = 0.001  # the clock of a file system advances every 1 to 10 of these
_COARSE_NS = 2_000_000_000  # the same where timestamps have whole seconds
identity_of: Callable[[os.stat_result], Identity] = attrgetter(
    "st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns", "st_mode"
)
"""Return the part of a stat that changes whenever the file does."""


class LineIndexes:
    """A bounded cache of line indexes by what identifies content."""

    def __init__(self) -> None:
        """Start empty."""
        self._indexes: OrderedDict[Identity | str, LineIndex] = OrderedDict()
        self._lock = RLock()

    def get(self, key: Identity | str) -> LineIndex:
        """Return the line index of content, given by its stat identity or its blob id.

        It is cached if the stat is reliable.
        """
        with self._lock:
            index = self._indexes.get(key)
            if index is not None:
                self._indexes.move_to_end(key)
                return index
        index = LineIndex()
        if isinstance(key, str) or is_stable(key):
            with self._lock:
                self._indexes[key] = index
                while len(self._indexes) > _MAX_LINE_INDEXES:
                    self._indexes.popitem(last=False)
        return index


class HostFile(Content):
    """An open regular file; renaming or replacing its name does not affect it."""

    __slots__ = ("_descriptor", "_indexes", "_stat")

    def __init__(self, descriptor: int, found: os.stat_result, indexes: LineIndexes) -> None:
        """Own `descriptor`; `found` is its stat."""
        self._descriptor = descriptor
        self._stat = found
        self._indexes = indexes

    @property
    def size(self) -> int:
        """The size in bytes when it was opened."""
        return self._stat.st_size

    @property
    def identity(self) -> Identity:
        """The part of the stat that changes whenever the file does."""
        return identity_of(self._stat)

    @property
    def modified_ns(self) -> int:
        """The modification time, in nanoseconds."""
        return self._stat.st_mtime_ns

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""
        return read_range(self._descriptor, offset, max(0, min(size, self.size - offset)))

    def next_data(self, offset: int) -> int:
        """Return the end of the hole at `offset`, or `offset` if there is none."""
        if self._stat.st_blocks * _BLOCK_SIZE >= self.size:
            return offset
        try:
            return min(os.lseek(self._descriptor, offset, os.SEEK_DATA), self.size)
        except OSError as error:
            return self.size if error.errno == errno.ENXIO else offset

    def line_index(self) -> LineIndex:
        """Return the line index, from the cache if the file is unchanged."""
        return self._indexes.get(self.identity)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def outlast_timestamp(directory: int, changed_ns: int) -> bool:
    """Wait until a change in this file system gets a later timestamp than `changed_ns`.

    Return False if that takes too long, as where timestamps have whole seconds. The directory
    is given by its descriptor; its times are changed.
    """
    end = time.monotonic_ns() + _RACY_NS
    while time.monotonic_ns() < end:
        os.utime(directory)
        if os.fstat(directory).st_ctime_ns > changed_ns:
            return True
        time.sleep(_TICK_SECONDS)
    return False


def is_stable(key: Identity) -> bool:
    """Return whether any later change of the file would show in its stat."""
    changed = max(key[3], key[4])
    margin = _RACY_NS if changed % 1_000_000_000 else _COARSE_NS
    return time.time_ns() - changed > margin
