"""Unpacks an object of a pack piece by piece, from any place that has been reached before."""

import zlib
from collections.abc import Callable, Iterator
from typing import Self

from weakincentives.filesystem.store.deltas import PackError

PIECE = 1024 * 1024
"""Bytes of the largest piece."""


class Inflater:
    """The content of a packed object from here to its end; a copy goes its own way."""

    __slots__ = ("_at", "_data", "_engine", "_left", "_most", "_read")

    def __init__(self, read: Callable[[int, int], bytes], at: int, size: int) -> None:
        """Stand at the beginning of an object of `size` bytes whose stream begins at `at`.

        `read` returns up to so many bytes from a place, and at least one, or raises.
        """
        self._read = read
        self._at = at
        self._left = size
        self._most = min(PIECE, packed_size(size))
        self._engine = zlib.decompressobj()
        self._data = b""

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces that are left."""
        while piece := self.piece():
            yield piece

    def piece(self) -> bytes:
        """Return the next piece; nothing at the end.

        Raises:
            PackError: The object is damaged.
        """
        while not self._engine.eof:
            if not self._data:
                self._data = self._read(self._at, self._most)
                self._at += len(self._data)
            try:
                piece = self._engine.decompress(self._data, min(self._left + 1, PIECE))
            except zlib.error as error:
                raise PackError(f"Pack is damaged before {self._at}: {error}") from None
            self._data = self._engine.unconsumed_tail
            self._left -= len(piece)
            if self._left < 0:
                break
            if piece:
                return piece
        if self._left:
            raise PackError(f"Pack holds an object of another size than it says before {self._at}")
        return b""

    def copy(self) -> Self:
        """Return one that stands where this one does."""
        copied = type(self)(self._read, self._at, self._left)
        copied._most = self._most
        copied._engine = self._engine.copy()
        copied._data = self._data
        return copied


def packed_size(size: int) -> int:
    """Return how many bytes an object takes at most, whoever has packed it."""
    return size + (size >> 8) + 64
