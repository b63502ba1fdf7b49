"""Reads loose git objects: one deflated file for each, as git itself writes them.

We write none. A person who works on the store with git may leave some.
"""

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from weakincentives.filesystem.regular import open_regular
from weakincentives.filesystem.store.deltas import PackError
from weakincentives.filesystem.store.packs import KINDS, Stream

_CHUNK = 1024 * 1024
_MAX_HEADER = 32  # "commit 18446744073709551615" and the NUL after it


def loose_stream(path: Path) -> Stream:
    """Return the object in a file, which is never held in memory.

    Raises:
        FileNotFoundError: It is not there.
        PackError: The object is damaged; also while its chunks are read.
    """
    pieces = _pieces(path)
    start = next(pieces, b"")
    header, mark, rest = start.partition(b"\0")
    kind, _, digits = header.partition(b" ")
    known = kind.decode("ascii", "replace") in KINDS.values()
    if not (mark and known and digits.isdigit() and len(header) < _MAX_HEADER):
        raise PackError(f"Object file is damaged: {path.name!r}")
    return Stream(kind.decode(), int(digits), _measured(int(digits), rest, pieces))


def _measured(size: int, rest: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    left = size - len(rest)
    if rest:
        yield rest
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            break
        yield piece
    if left:
        raise PackError("Object file holds another size than it says")


def _pieces(path: Path) -> Iterator[bytes]:
    """Yield what a file inflates to; the first piece is not empty."""
    inflater = zlib.decompressobj()
    with os.fdopen(open_regular(path)[0], "rb", buffering=0) as file:
        data = b""
        while not inflater.eof:
            data = data or file.read(_CHUNK)
            if not data:
                raise PackError(f"Object file ends too early: {path.name!r}")
            try:
                piece = inflater.decompress(data, _CHUNK)
            except zlib.error as error:
                raise PackError(f"Object file is damaged: {path.name!r}: {error}") from None
            data = inflater.unconsumed_tail
            if piece:
                yield piece
