"""Copy some objects of a pack, as they are, into a new pack; and read a pack in another file.

Nothing is inflated or compressed: most of a new pack is a few long runs of bytes of the old one.
"""

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import chain

from weakincentives.gitstore.pack_reader import (
    CHUNK_SIZE,
    KINDS,
    PackError,
    PackReader,
    check_index,
)
from weakincentives.gitstore.pack_writer import (
    NUMBERS,
    deflate,
    encode_index,
    entry_header,
    hash_object,
)

_HEADER = struct.Struct(">4sII")
_DIGEST = 20


class PackSubset:
    """Some objects of a pack, and new ones, as the bytes of a pack and of its index."""

    def __init__(
        self, pack: PackReader, wanted: Set[bytes], new: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        """Copy the objects with the keys `wanted`, and add `new` ones: kind and content.

        Raises:
            PackError: One of them is not in the pack.
        """
        self._pack = pack
        self._entries: list[tuple[bytes, int, int]] = []
        self._starts: list[int] = []  # of the objects, in the old pack
        self._runs: list[tuple[int, int]] = []
        at = self._copy(wanted)
        self._new: list[bytes] = []
        for kind, data in new:
            packed = entry_header(NUMBERS[kind], len(data)) + deflate(data)
            self._entries.append((bytes.fromhex(hash_object(kind, data)), zlib.crc32(packed), at))
            self._new.append(packed)
            at += len(packed)
        self.pack_size: int = at + _DIGEST
        self.index: bytes = b""
        """The index; empty until the pack has been read."""

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes of the pack.

        Raises:
            PackError: It is damaged, or has a delta, whose base may be missing in the new pack.
        """
        digest = hashlib.sha1(usedforsecurity=False)
        header = _HEADER.pack(b"PACK", 2, len(self._entries))
        for chunk in chain((header,), self._copied(), self._new):
            digest.update(chunk)
            yield chunk
        yield digest.digest()
        self.index = encode_index(sorted(self._entries), digest.digest())

    def _copy(self, wanted: Set[bytes]) -> int:
        """Plan what is copied; return the offset after it."""
        entries = self._pack.entries()
        ends = [offset for offset, _, _ in entries[1:]]
        ends.append(self._pack.size_bytes - _DIGEST)
        at = _HEADER.size
        last = -1  # where the current run ends
        for (start, crc, key), end in zip(entries, ends, strict=False):
            if key not in wanted:
                continue
            self._entries.append((key, crc, at))
            self._starts.append(start)
            if start == last:
                start = self._runs.pop()[0]
            self._runs.append((start, end))
            at += end - self._starts[-1]
            last = end
        if len(self._entries) != len(wanted):
            raise PackError("Pack does not have all the objects")
        return at

    def _copied(self) -> Iterator[bytes]:
        starts = iter(self._starts)
        start = next(starts, -1)
        for at, end in self._runs:
            while at < end:
                chunk = self._pack.read_bytes(at, min(CHUNK_SIZE, end - at))
                while at <= start < at + len(chunk):
                    if chunk[start - at] >> 4 & 7 not in KINDS:
                        raise PackError(f"Pack has a delta at {start}")
                    start = next(starts, -1)
                yield chunk
                at += len(chunk)


class EmbeddedPack(PackReader):
    """A pack that is part of another file."""

    def __init__(
        self, read: Callable[[int, int], bytes], size_bytes: int, index: bytes, name: str
    ) -> None:
        """Read a pack of `size_bytes` through `read(offset, size)`, which returns some bytes.

        Raises:
            PackError: It is damaged.
        """
        self._read = read
        check_index(index, name)
        super().__init__(size_bytes, index, name)

    def _bytes(self, offset: int, size: int) -> bytes:
        data = b""
        if 0 <= offset < self.size_bytes:
            data = self._read(offset, min(size, self.size_bytes - offset))
        if not data:
            raise PackError(f"Pack ends before {offset}")
        return data
