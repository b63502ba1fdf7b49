"""An open file of the host, and what is remembered about its lines."""

import errno
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from operator import attrgetter
from threading import Lock
from typing import TypeAlias

from weakincentives.filesystem.text import Content, LineIndex
from weakincentives.posix import read_range

Identity: TypeAlias = tuple[int, int, int, int, int, int]
_REMEMBERED = 64
_SECTOR = 512  # bytes in the unit of st_blocks
_RACY_NS = 100_000_000  # a file changed this recently may change again unnoticed
_COARSE_NS = 2_000_000_000  # the same where times have whole seconds only
identity_of: Callable[[os.stat_result], Identity] = attrgetter(
    "st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns", "st_mode"
)
"""Return what changes whenever a file does."""


class LineIndexes:
    """The line indexes of the files that were read last, for as long as they stay the same."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._indexes: OrderedDict[Identity, LineIndex] = OrderedDict()
        self._lock = Lock()

    def of(self, content: "HostFile") -> LineIndex:
        """Return where the lines of `content` are."""
        key = content.identity
        with self._lock:
            index = self._indexes.get(key)
            if index is not None:
                self._indexes.move_to_end(key)
                return index
        index = LineIndex()
        if is_stable(key):
            with self._lock:
                self._indexes[key] = index
                while len(self._indexes) > _REMEMBERED:
                    self._indexes.popitem(last=False)
        return index


class HostFile(Content):
    """A regular file, open; it stays the same file whatever happens to its name."""

    __slots__ = ("_descriptor", "_indexes", "_stat")

    def __init__(self, descriptor: int, found: os.stat_result, indexes: LineIndexes) -> None:
        """Own `descriptor`, which `found` describes."""
        self._descriptor = descriptor
        self._stat = found
        self._indexes = indexes

    @property
    def size(self) -> int:
        """How many bytes there were when it was opened."""
        return self._stat.st_size

    @property
    def identity(self) -> Identity:
        """What changes whenever the file does."""
        return identity_of(self._stat)

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""
        return read_range(self._descriptor, offset, max(0, min(size, self.size - offset)))

    def next_data(self, offset: int) -> int:
        """Return where the hole that `offset` is in ends, else `offset`."""
        if self._stat.st_blocks * _SECTOR >= self.size:
            return offset
        try:
            return min(os.lseek(self._descriptor, offset, os.SEEK_DATA), self.size)
        except OSError as error:
            return self.size if error.errno == errno.ENXIO else offset

    def line_index(self) -> LineIndex:
        """Return where the lines are, remembered from before if nothing changed."""
        return self._indexes.of(self)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def is_stable(key: Identity) -> bool:
    """Return whether a file that looks so cannot have changed again without looking otherwise."""
    changed = max(key[3], key[4])
    margin = _RACY_NS if changed % 1_000_000_000 else _COARSE_NS
    return time.time_ns() - changed > margin
