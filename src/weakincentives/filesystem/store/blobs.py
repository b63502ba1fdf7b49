"""A blob as content: read where it is asked for, and never held as a whole if it is large."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter

from weakincentives.filesystem.store.deltas import PackError
from weakincentives.filesystem.store.inflating import PIECE, Inflater
from weakincentives.filesystem.store.objects import ObjectError, ObjectStore
from weakincentives.filesystem.text import BytesContent, Content

_MARK_EVERY = 8 * 1024 * 1024  # bytes between two places from which reading can go on


def read_blob(objects: ObjectStore, blob: str) -> bytes:
    """Return the content of a blob, verified.

    Raises:
        ObjectError: It is missing, damaged, no blob, or too large to be held.
    """
    kind, data = objects.read(blob)
    if kind != "blob":
        raise ObjectError(f"Object is no blob but a {kind}: {blob!r}")
    return data


def open_blob(objects: ObjectStore, blob: str) -> Content:
    """Return a blob to be read; a small one has been verified.

    Raises:
        ObjectError: It is missing, damaged or no blob; also while it is read.
    """
    if objects.size_of(blob) <= PIECE:
        return BytesContent(read_blob(objects, blob))
    return _LargeBlob(objects, blob)


class _LargeBlob(Content):
    """A blob that is unpacked as it is read; going back starts from the last mark before.

    What is read is verified when the end is reached: the part of it before is as it is stored.
    """

    __slots__ = (
        "_at",
        "_blob",
        "_buffer",
        "_digest",
        "_hashed",
        "_inflater",
        "_marks",
        "_objects",
        "_pieces",
        "_size",
    )

    def __init__(self, objects: ObjectStore, blob: str) -> None:
        self._objects = objects
        self._blob = blob
        self._marks: list[tuple[int, Inflater]] = []
        self._hashed = 0
        self._start()
        header = b"blob %d\0" % self._size
        self._digest = hashlib.sha1(header, usedforsecurity=False)

    @property
    def size(self) -> int:
        return self._size

    def read(self, offset: int, size: int) -> bytes:
        end = min(offset + size, self._size)
        if offset < self._at:
            self._go_back(offset)
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

    def _start(self) -> None:
        found = self._objects.stream(self._blob)
        if found.kind != "blob":
            raise ObjectError(f"Object is no blob but a {found.kind}: {self._blob!r}")
        self._size = found.size
        self._at, self._buffer = 0, b""
        self._inflater = found.inflater
        self._pieces: Iterator[bytes] = found.chunks
        if found.inflater is not None:
            self._marks = [(0, found.inflater.copy())]

    def _advance(self) -> None:
        self._at += len(self._buffer)
        if self._inflater is not None and self._at - self._marks[-1][0] >= _MARK_EVERY:
            self._marks.append((self._at, self._inflater.copy()))
        self._buffer = self._next()
        if self._at == self._hashed:
            self._digest.update(self._buffer)
            self._hashed += len(self._buffer)
            if self._hashed == self._size and self._digest.hexdigest() != self._blob:
                raise ObjectError(f"Object is damaged: {self._blob!r}: its content has another id")

    def _next(self) -> bytes:
        if self._inflater is None:
            piece = next(self._pieces, b"")
        else:
            try:
                piece = self._inflater.piece()
            except PackError as error:
                raise ObjectError(f"Object is damaged: {self._blob!r}: {error}") from error
        if not piece:
            raise ObjectError(f"Object is damaged: {self._blob!r}: it ends too early")
        return piece

    def _go_back(self, offset: int) -> None:
        if not self._marks:
            self._start()
            return
        mark = bisect_right(self._marks, offset, key=itemgetter(0)) - 1
        self._at, inflater = self._marks[mark]
        self._inflater = inflater.copy()
        self._buffer = b""
