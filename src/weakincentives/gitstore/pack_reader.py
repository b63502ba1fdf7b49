"""Read git packs: the index, whole objects and deltas, without loading a pack."""

import hashlib
import os
import re
import struct
import threading
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from weakincentives.errors import WinkError
from weakincentives.posix import (
    check_time,
    fault_point,
    is_temporary,
    open_regular,
    remove_leftovers,
)

MAX_OBJECT_SIZE = 512 * 1024 * 1024
"""Bytes of the largest object that is held as a whole; git makes no deltas of larger ones."""


class PackError(WinkError, ValueError):
    """A pack, or an object in it, is damaged."""


class TooLargeError(PackError):
    """An object is larger than what is held as a whole; that is no damage."""


def apply_delta(base: bytes, delta: bytes) -> bytes:
    """Return what `delta` makes of `base`.

    Raises:
        PackError: The delta is damaged or belongs to another object.
    """
    try:
        size, at = _number(delta, 0)
        wanted, at = _number(delta, at)
        if size != len(base):
            raise PackError("Delta belongs to another object")
        if wanted > MAX_OBJECT_SIZE:
            raise TooLargeError(f"Delta makes an object that is too large: {wanted}")
        return _built(base, delta, at, wanted)
    except IndexError:
        raise PackError("Delta ends too early") from None


def _built(base: bytes, delta: bytes, at: int, wanted: int) -> bytes:
    parts: list[bytes] = []
    left = wanted
    while at < len(delta):
        part, at = _instruction(base, delta, at)
        parts.append(part)
        left -= len(part)
        if left < 0:
            break
    if left:
        raise PackError("Delta makes an object of another size than it says")
    return b"".join(parts)


def _instruction(base: bytes, delta: bytes, at: int) -> tuple[bytes, int]:
    """Return the next part of the object and where the instruction after it begins."""
    code = delta[at]
    at += 1
    if code & 0x80:
        return _copied(base, delta, at, code)
    part = delta[at : at + code]
    if not code or len(part) != code:
        raise PackError("Delta holds an unknown or unfinished instruction")
    return part, at + code


def _copied(base: bytes, delta: bytes, at: int, code: int) -> tuple[bytes, int]:
    offset = size = 0
    for bit in range(4):
        if code & 1 << bit:
            offset |= delta[at] << 8 * bit
            at += 1
    for bit in range(3):
        if code & 0x10 << bit:
            size |= delta[at] << 8 * bit
            at += 1
    size = size or 0x10000
    if offset + size > len(base):
        raise PackError("Delta copies what is not in its base")
    return base[offset : offset + size], at


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number, seven bits to the byte and the lowest first, and where it ends."""
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise PackError("Delta holds a number that is too large")
    return value | data[at] << shift, at + 1


CHUNK_SIZE = 1024 * 1024
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
        self._most = min(CHUNK_SIZE, packed_size(size))
        self._engine = zlib.decompressobj()
        self._data = b""

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces that are left."""
        while piece := self.read_chunk():
            yield piece

    def read_chunk(self) -> bytes:
        """Return the next piece; nothing at the end.

        Raises:
            PackError: The object is damaged.
        """
        while not self._engine.eof:
            if not self._data:
                self._data = self._read(self._at, self._most)
                self._at += len(self._data)
            try:
                piece = self._engine.decompress(self._data, min(self._left + 1, CHUNK_SIZE))
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


KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
_OFFSET_DELTA, _REFERENCE_DELTA = 6, 7
_HEADER = struct.Struct(">4sII")
_INDEX_MAGIC = b"\xfftOc\0\0\0\x02"
_IDS_AT = 8 + 256 * 4  # after the magic number and the table of first bytes
_FAR = 0x80000000  # marks an offset that is in the table of large ones
_DIGEST = 20
_SMALLEST = 9  # bytes of an object in a pack, the header and an empty deflate stream
_MAX_CHAIN = 4_096  # git allows 4,095 deltas on top of each other
_MAX_BASES = 16 * 1024 * 1024  # bytes of bases of deltas that are kept
_SCANNED = 64  # ids that are quicker searched than halved


class Stream(NamedTuple):
    """An object that is being read; its chunks are as long as `size` says, or damaged.

    Who does not want all of it, or not in order, takes the `inflater` if there is one.
    """

    kind: str
    size: int
    chunks: Iterator[bytes]
    inflater: Inflater | None = None


class PackedObject(NamedTuple):
    """A whole object, as it is and as it is packed."""

    kind: str
    content: bytes
    deflated: bytes


class Pack:
    """A pack on disk, read by position; only the index is held in memory.

    It stays readable when it is removed from the disk, and its file is closed when
    nobody refers to it any more. Threads may share it.

    A pack that was damaged is read all the same, but nothing new may rely on it:
    `is_suspect` says so. It is known by its checksum, which is looked at if somebody has
    written to the file after its index was made.
    """

    def __init__(self, index: Path) -> None:
        """Read the index and open the pack beside it.

        Raises:
            FileNotFoundError: One of the two is not there.
            PackError: They are damaged, or do not belong together.
        """
        self._descriptor, found = _opened(index.with_suffix(".pack"))
        weakref.finalize(self, os.close, self._descriptor)
        self.size_bytes: int = found.st_size
        self.inode: int = found.st_ino
        self._written = found.st_mtime_ns
        data, indexed = _index_data(index, self.size_bytes)
        self._fanout: tuple[int, ...] = struct.unpack(">256I", data[8:_IDS_AT])
        count = self._fanout[255]
        crcs = _IDS_AT + count * _DIGEST
        self._ids = data[_IDS_AT:crcs]
        self._near = data[crcs + count * 4 : crcs + count * 8]
        self._far = data[crcs + count * 8 : -2 * _DIGEST]
        self._bases: dict[int, tuple[str, bytes]] = {}
        self._bases_size = 0
        self._bases_lock = threading.Lock()
        header, checksum = self._bytes(0, 12), self._bytes(self.size_bytes - _DIGEST, _DIGEST)
        if header not in {_HEADER.pack(b"PACK", version, count) for version in (2, 3)}:
            raise PackError(f"Pack does not belong to its index: {index.name!r}")
        if checksum != data[-2 * _DIGEST : -_DIGEST]:
            raise PackError(f"Pack does not belong to its index: {index.name!r}")
        self.is_suspect: bool = self._written > indexed and not self._is_whole(checksum)

    def __len__(self) -> int:
        """How many objects there are."""
        return self._fanout[255]

    def __iter__(self) -> Iterator[str]:
        """Yield the ids of all objects."""
        for at in range(0, len(self._ids), _DIGEST):
            yield self._ids[at : at + _DIGEST].hex()

    def has_changed(self) -> bool:
        """Return whether somebody has written to the file since it was opened."""
        found = os.fstat(self._descriptor)
        return (found.st_size, found.st_mtime_ns) != (self.size_bytes, self._written)

    def distrust(self) -> None:
        """Take note, for other processes too, that something in here is damaged."""
        self.is_suspect = True
        with suppress(OSError):
            os.utime(self._descriptor)
            self._written = os.fstat(self._descriptor).st_mtime_ns

    def offset_of(self, key: bytes) -> int | None:
        """Return where an object begins, or None if it is not here."""
        first = key[0]
        low, high = self._fanout[first - 1] if first else 0, self._fanout[first]
        if low == high:
            return None  # at once: in a small pack that is nearly always so
        ids = self._ids
        while high - low > _SCANNED:
            middle = (low + high) // 2
            if ids[middle * _DIGEST : middle * _DIGEST + _DIGEST] <= key:
                low = middle
            else:
                high = middle
        at, end = low * _DIGEST, high * _DIGEST
        while (at := ids.find(key, at, end)) != -1:
            if at % _DIGEST == 0:
                return self._offset(at // _DIGEST)
            at += 1  # the bytes of two neighbours look like the id
        return None

    def stream(self, offset: int) -> Stream:
        """Return the object that begins at `offset`; a whole one is never held in memory.

        Raises:
            PackError: The object is damaged; also while its chunks are read.
        """
        number, size, at = self._header(offset)
        if number in KINDS:
            inflater = Inflater(self._bytes, at, size)
            return Stream(KINDS[number], size, iter(inflater), inflater)
        kind, content = self.read(offset)
        return Stream(kind, len(content), iter([content]))

    def read_raw(self, offset: int) -> PackedObject | None:
        """Return the object that begins at `offset` if it is small, undamaged and no delta."""
        try:
            number, size, at = self._header(offset)
            if number not in KINDS or size > CHUNK_SIZE:
                return None
            data = self._bytes(at, packed_size(size))
            inflater = zlib.decompressobj()
            content = inflater.decompress(data, size + 1)
        except (PackError, zlib.error):
            return None
        if len(content) != size or not inflater.eof:
            return None
        return PackedObject(KINDS[number], content, data[: len(data) - len(inflater.unused_data)])

    def read(self, offset: int) -> tuple[str, bytes]:
        """Return kind and content of the object that begins at `offset`.

        Raises:
            PackError: The object is damaged, or too large to be held.
        """
        deltas: list[tuple[int, int, int]] = []
        while (known := self._bases.get(offset)) is None:
            number, size, at = self._header(offset)
            if number in KINDS:
                known = KINDS[number], self._inflate(at, size)
                break
            base, at = self._base(offset, number, at)
            deltas.append((offset, at, size))
            if len(deltas) == _MAX_CHAIN:
                raise PackError("Pack holds too many deltas on top of each other")
            offset = base
        kind, content = known
        for above, at, size in reversed(deltas):
            self._remember(offset, kind, content)
            content, offset = apply_delta(content, self._inflate(at, size)), above
        return kind, content

    def _remember(self, offset: int, kind: str, content: bytes) -> None:
        """Keep the base of a delta: the next object is probably made from it too."""
        with self._bases_lock:
            if offset in self._bases or len(content) > _MAX_BASES:
                return
            if self._bases_size + len(content) > _MAX_BASES:
                self._bases.clear()
                self._bases_size = 0
            self._bases[offset] = kind, content
            self._bases_size += len(content)

    def _offset(self, position: int) -> int:
        (near,) = struct.unpack_from(">I", self._near, position * 4)
        if not near & _FAR:
            return near
        place = (near & ~_FAR) * 8
        if place + 8 > len(self._far):
            return self.size_bytes  # where nothing is: damage shows when it is read
        return int.from_bytes(self._far[place : place + 8])

    def _header(self, offset: int) -> tuple[int, int, int]:
        """Return type, size and the position after them."""
        data = self._bytes(offset, 16)
        number, size, shift, at = data[0] >> 4 & 7, data[0] & 15, 4, 0
        while data[at] & 0x80:
            at += 1
            if at == len(data):
                raise PackError(f"Pack is damaged at {offset}")
            size |= (data[at] & 0x7F) << shift
            shift += 7
        return number, size, offset + at + 1

    def _base(self, offset: int, number: int, at: int) -> tuple[int, int]:
        """Return where the base of a delta begins, and the position after that."""
        if number == _REFERENCE_DELTA:
            base = self.offset_of(self._bytes(at, _DIGEST).ljust(_DIGEST, b"\0"))
            if base is None:
                raise PackError(f"Pack does not hold the base of a delta at {offset}")
            return base, at + _DIGEST
        if number != _OFFSET_DELTA:
            raise PackError(f"Pack holds an object of an unknown type at {offset}: {number}")
        data = self._bytes(at, 16)
        end, back = 0, data[0] & 0x7F
        while data[end] & 0x80:
            end += 1
            if end == len(data):
                raise PackError(f"Pack is damaged at {offset}")
            back = (back + 1) << 7 | data[end] & 0x7F
        if not 0 < back < offset:
            raise PackError(f"Pack holds a delta of nothing at {offset}")
        return offset - back, at + end + 1

    def _inflate(self, at: int, size: int) -> bytes:
        if size > MAX_OBJECT_SIZE:
            raise TooLargeError(f"Object is too large to be held: {size}")
        return b"".join(Inflater(self._bytes, at, size))

    def _is_whole(self, checksum: bytes) -> bool:
        digest = hashlib.sha1(usedforsecurity=False)
        end = self.size_bytes - _DIGEST
        for at in range(0, end, CHUNK_SIZE):
            check_time("Snapshot")
            digest.update(self._bytes(at, min(CHUNK_SIZE, end - at)))
        return digest.digest() == checksum

    def _bytes(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes, and at least one."""
        data = b""
        if 0 <= offset < self.size_bytes:
            try:
                data = os.pread(self._descriptor, size, offset)
            except OSError as error:
                raise PackError(f"Pack cannot be read at {offset}: {error}") from error
        if not data:
            raise PackError(f"Pack ends before {offset}")
        return data


def _opened(path: Path) -> tuple[int, os.stat_result]:
    """Open a regular file; return its descriptor and what is known about it."""
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise PackError(f"Pack cannot be opened: {path.name!r}: {error}") from error


def _index_data(path: Path, pack_size: int) -> tuple[bytes, int]:
    """Return the content of an index, as long as it says it is, undamaged, and its time."""
    descriptor, found = _opened(path)
    size = found.st_size
    with os.fdopen(descriptor, "rb") as file:
        # a pack of this size has room for so many objects and no more
        if size > _IDS_AT + 2 * _DIGEST + (_DIGEST + 16) * (pack_size // _SMALLEST):
            raise PackError(f"Pack index is too large: {path.name!r}")
        data = file.read(size)
    if data[:8] != _INDEX_MAGIC or len(data) < _IDS_AT + 2 * _DIGEST:
        raise PackError(f"Pack index is damaged: {path.name!r}")
    fanout = struct.unpack(">256I", data[8:_IDS_AT])
    least = _IDS_AT + fanout[255] * (_DIGEST + 8) + 2 * _DIGEST
    if len(data) < least or list(fanout) != sorted(fanout):
        raise PackError(f"Pack index is damaged: {path.name!r}")
    digest = hashlib.sha1(memoryview(data)[:-_DIGEST], usedforsecurity=False)
    if digest.digest() != data[-_DIGEST:]:
        raise PackError(f"Pack index is damaged: {path.name!r}")
    return data, found.st_mtime_ns


_PACK_FILE = re.compile(r"(pack-[0-9a-f]{40})\.([a-z]+)")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ATTEMPTS = 10


class PackSet:
    """The packs in one directory, as they were when it was looked at last."""

    def __init__(self, directory: Path) -> None:
        """Know of none yet."""
        self._directory = directory
        self._refreshing = threading.Lock()
        self.all: dict[str, Pack] = {}
        self.trusted: tuple[Pack, ...] = ()
        self.damaged: dict[str, PackError] = {}
        """Those that cannot be opened, and why."""
        self.losses: int = 0
        """How often objects were found to be gone, or damaged, that had been here."""

    def is_packed(self, key: bytes) -> bool:
        """Return whether an object is in a pack that is undamaged."""
        packs = self.trusted
        return bool(packs) and any(pack.offset_of(key) is not None for pack in packs)

    def refresh(self, *, closely: bool = False) -> None:
        """Look for packs that have been added or removed; `closely` also for others' writing."""
        with self._refreshing:
            if closely:
                self.all = {n: p for n, p in self.all.items() if not p.has_changed()}
            self._relist(self._names())

    def sweep(self) -> None:
        """Remove what killed writers left, and look what is there."""
        with self._refreshing:
            names = self._names()
            self._sweep(names)
            self._relist(names)

    def distrust(self, pack: Pack) -> None:
        """Rely no more on a pack in which something was found to be damaged."""
        pack.distrust()
        with self._refreshing:
            self.trusted = tuple(each for each in self.trusted if each is not pack)
            self.losses += 1

    def remove(self, names: Collection[str]) -> None:
        """Remove packs, except those that a person wants to keep."""
        files = [match for match in map(_PACK_FILE.fullmatch, self._names()) if match]
        kept = {match[1] for match in files if match[2] == "keep"}
        # it would name packs that are gone; git does without
        (self._directory / "multi-pack-index").unlink(missing_ok=True)
        for name in set(names) - kept:
            # git and we read a pack only where both files are, and git never writes an
            # index before its pack: an index alone is known to be a leftover
            self._file(name, "pack").unlink(missing_ok=True)
            fault_point("objects.removed")
            for match in files:
                if match[1] == name:
                    (self._directory / match[0]).unlink(missing_ok=True)
        self.refresh()

    def close(self) -> None:
        """Let go of the packs; what is being read elsewhere stays readable."""
        with self._refreshing:
            self.all, self.trusted, self.damaged = {}, (), {}

    def _relist(self, names: dict[str, int]) -> None:
        for _ in range(_ATTEMPTS):
            if self._listed(names):
                return
            names = self._names()

    def _listed(self, names: dict[str, int]) -> bool:
        """Open the packs that are there; False if one has gone in the meantime."""
        packs: dict[str, Pack] = {}
        damaged: dict[str, PackError] = {}
        complete = True
        for name in sorted(n.removesuffix(".idx") for n in names if n.endswith(".idx")):
            inode = names.get(f"{name}.pack")
            if inode is None:
                continue
            known = self.all.get(name)
            try:
                # a damaged pack may have been replaced by a good one of the same name
                if known is None or known.inode != inode:
                    known = Pack(self._file(name, "idx"))
                packs[name] = known
            except FileNotFoundError:
                complete = False
            except PackError as error:
                damaged[name] = error
        before, self.all, self.damaged = self.trusted, packs, damaged
        self.trusted = tuple(pack for pack in packs.values() if not pack.is_suspect)
        vanished = [pack for pack in before if pack not in self.trusted]
        if complete and not all(
            self.is_packed(bytes.fromhex(each)) for pack in vanished for each in pack
        ):
            self.losses += 1
        return complete

    def _sweep(self, names: dict[str, int]) -> None:
        """Remove what killed writers left: hidden files, and parts of a pack without the pack."""
        hidden = list(filter(is_temporary, names))
        if hidden:
            directory = os.open(self._directory, _DIRECTORY)
            try:
                remove_leftovers(directory, hidden)
            finally:
                os.close(directory)
        for match in filter(None, map(_PACK_FILE.fullmatch, names)):
            if f"{match[1]}.pack" not in names and match[2] != "keep":
                (self._directory / match[0]).unlink(missing_ok=True)

    def _names(self) -> dict[str, int]:
        """Return the names in the directory of packs, with their inodes."""
        with suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            return {entry.name: entry.inode() for entry in entries}
        return {}

    def _file(self, name: str, kind: str) -> Path:
        return self._directory / f"{name}.{kind}"
