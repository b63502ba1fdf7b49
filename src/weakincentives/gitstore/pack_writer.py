"""Write git packs: new objects in one transaction, one pack, one rename."""

import hashlib
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import accumulate, chain
from pathlib import Path
from typing import Self

from weakincentives.gitstore.pack_reader import PackedObject
from weakincentives.posix import (
    DEFAULT_CODEC,
    ZLIB,
    AtomicFile,
    Codec,
    fault_point,
    sync_directory,
    sync_files,
    write_all,
)

_TINY = 256
_SMALL = 8 * 1024
_SMALL_WINDOW, _SMALL_MEMORY = 13, 6
_RAW = -15
_ZLIB_HEADER = b"\x78\x01"
_STORED = struct.Struct("<3sHH")  # with the header of the only block, which is not packed
_CHECKSUM = struct.Struct(">I")


def deflate(data: bytes, codec: Codec = DEFAULT_CODEC) -> bytes:
    """Return the stream of an object."""
    size = len(data)
    if size <= _TINY:  # what packing would save is not worth its time
        header = _STORED.pack(_ZLIB_HEADER + b"\x01", size, ~size & 0xFFFF)
        return header + data + _CHECKSUM.pack(zlib.adler32(data))
    if codec is ZLIB and size <= _SMALL:
        # most of the cost of a small object is preparing tables for a large one
        deflater = zlib.compressobj(1, zlib.DEFLATED, _SMALL_WINDOW, _SMALL_MEMORY)
        return deflater.compress(data) + deflater.flush()
    packed = codec.deflate(data)
    if len(packed) > size:
        return zlib.compress(data, 0)  # ISA-L makes what cannot be packed a quarter larger
    return _ZLIB_HEADER + packed + _CHECKSUM.pack(zlib.adler32(data))


def deflate_stream(chunks: Iterable[bytes], codec: Codec = DEFAULT_CODEC) -> Iterator[bytes]:
    """Yield the stream of an object that is too large to be held; the first chunk tells how."""
    pending = iter(chunks)
    first = next(pending, b"")
    is_packable = len(codec.deflate(first)) < len(first)
    deflater = codec.deflater() if is_packable else zlib.compressobj(0, zlib.DEFLATED, _RAW)
    checksum = 1
    yield _ZLIB_HEADER
    for chunk in chain((first,), pending):
        checksum = zlib.adler32(chunk, checksum)
        yield deflater.compress(chunk)
    yield deflater.flush() + _CHECKSUM.pack(checksum)


_NUMBERS = {"commit": 1, "tree": 2, "blob": 3, "tag": 4}
_PACK_HEADER = struct.Struct(">4sII")
_INDEX_MAGIC = b"\xfftOc\0\0\0\x02"
_FAR = 0x80000000  # marks an offset that is in the table of large ones
_CHUNK = 1024 * 1024
_BUFFER = 256 * 1024
_BYTES = [bytes((value,)) for value in range(256)]


class PackWriter:
    """Writes whole objects to a file, then the index that finds them.

    The file is asked for when there is more than a little to write, or at the end.
    """

    def __init__(self, opened: Callable[[], int]) -> None:
        """Start a pack; `opened` returns the descriptor of an empty file."""
        self._opened = opened
        self._descriptor: int | None = None
        self._written = 0
        self._buffer = bytearray(_PACK_HEADER.pack(b"PACK", 2, 0))
        self._entries: list[tuple[bytes, int, int]] = []

    def __len__(self) -> int:
        """How many objects there are."""
        return len(self._entries)

    def add(self, name: str, kind: str, size: int, deflated: bytes) -> None:
        """Add the object with the id `name`, `size` bytes long, in its deflated form."""
        entry = _entry_header(_NUMBERS[kind], size) + deflated
        self._entries.append((bytes.fromhex(name), zlib.crc32(entry), self._offset()))
        self._write(entry)

    def add_parts(
        self, kind: str, size: int, deflated: Iterable[bytes], named: Callable[[], str | None]
    ) -> None:
        """Add an object in parts; `named` gives its id afterwards, or None to drop it.

        If the parts end with an exception, nothing has been added.
        """
        offset = self._offset()
        header = _entry_header(_NUMBERS[kind], size)
        crc = zlib.crc32(header)
        name = None
        try:
            self._write(header)
            for part in deflated:
                crc = zlib.crc32(part, crc)
                self._write(part)
            name = named()
        finally:
            if name is None:
                self._go_back(offset)
        if name is not None:
            self._entries.append((bytes.fromhex(name), crc, offset))

    def finish(self) -> bytes:
        """End the pack, all of it in the file; return the content of its index.

        The number of objects comes first and is known last, so the checksum is taken
        from what was written.
        """
        header = _PACK_HEADER.pack(b"PACK", 2, len(self._entries))
        digest = hashlib.sha1(usedforsecurity=False)
        if self._descriptor is None:
            self._buffer[: len(header)] = header
        else:
            self._flush()
            os.pwrite(self._descriptor, header, 0)
            for offset in range(0, self._written, _CHUNK):
                digest.update(os.pread(self._descriptor, _CHUNK, offset))
        digest.update(self._buffer)
        self._buffer += digest.digest()
        self._flush()
        return _index(sorted(self._entries), digest.digest())

    def _offset(self) -> int:
        return self._written + len(self._buffer)

    def _write(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > _BUFFER:
            self._flush()

    def _flush(self) -> None:
        if self._descriptor is None:
            self._descriptor = self._opened()
        write_all(self._descriptor, self._buffer)
        self._written += len(self._buffer)
        self._buffer.clear()

    def _go_back(self, offset: int) -> None:
        """Forget what has been written from `offset` on."""
        del self._buffer[max(0, offset - self._written) :]
        if self._descriptor is not None and offset < self._written:
            os.ftruncate(self._descriptor, offset)
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            self._written = offset


def _entry_header(number: int, size: int) -> bytes:
    first, size = number << 4 | size & 15, size >> 4
    header = b""
    while size:
        header += _BYTES[first | 0x80]
        first, size = size & 0x7F, size >> 7
    return header + _BYTES[first]


def _index(entries: list[tuple[bytes, int, int]], checksum: bytes) -> bytes:
    keys, crcs, offsets = zip(*entries, strict=True) if entries else ((), (), ())
    counts = [0] * 256
    for key in keys:
        counts[key[0]] += 1
    far = [offset for offset in offsets if offset >= _FAR]
    if far:
        places = {offset: number | _FAR for number, offset in enumerate(far)}
        offsets = [places.get(offset, offset) for offset in offsets]
    body = b"".join(
        (
            _INDEX_MAGIC,
            struct.pack(">256I", *accumulate(counts)),
            b"".join(keys),
            struct.pack(f">{len(crcs)}I", *crcs),
            struct.pack(f">{len(offsets)}I", *offsets),
            struct.pack(f">{len(far)}Q", *far),
            checksum,
        )
    )
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


_OLDER_NS = 1_000_000_000


def hash_object(kind: str, data: bytes) -> str:
    """Return the id that git gives to an object."""
    digest = hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)), usedforsecurity=False)
    digest.update(data)
    return digest.hexdigest()


class PackTransaction:
    """Collects objects; use it in a with statement, and `finish` it there.

    Leaving the block without `finish` drops everything.
    """

    def __init__(
        self, directory: Path, known: Callable[[str], bool], *, durable: bool = True
    ) -> None:
        """Collect the objects that are not `known` in a pack in `directory`."""
        self._directory = directory
        self._known = known
        self._durable = durable
        self._added: set[str] = set()
        self._held = ExitStack()
        self._file: AtomicFile | None = None
        self._writer = PackWriter(self._opened)

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Drop what was not finished."""
        with suppress(OSError):  # on a full disk, for what nobody wants any more
            self._held.close()

    def __contains__(self, object_id: str) -> bool:
        """Return whether the object is in the batch, or known already."""
        return object_id in self._added or self._known(object_id)

    def add(self, kind: str, data: bytes) -> str:
        """Add an object unless it is there; return its id."""
        object_id = hash_object(kind, data)
        if object_id not in self._added and not self._known(object_id):
            self._added.add(object_id)
            self._writer.add(object_id, kind, len(data), deflate(data))
        return object_id

    def add_raw(self, object_id: str, packed: PackedObject) -> None:
        """Add an object that is packed and verified already."""
        if object_id not in self:
            self._added.add(object_id)
            self._writer.add(object_id, packed.kind, len(packed.content), packed.deflated)

    def add_blob(self, size: int, chunks: Iterable[bytes]) -> str:
        """Add a blob of `size` bytes that is too large to be held; return its id.

        Raises:
            ValueError: The chunks have another size together; nothing is added.
        """
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)

        def counted() -> Iterator[bytes]:
            length = 0
            for chunk in chunks:
                digest.update(chunk)
                length += len(chunk)
                yield chunk
            if length != size:
                raise ValueError(f"Content has another size than {size}: {length}")

        def named() -> str | None:
            object_id = digest.hexdigest()
            if object_id in self:
                return None
            self._added.add(object_id)
            return object_id

        self._writer.add_parts("blob", size, deflate_stream(counted()), named)
        return digest.hexdigest()

    def finish(self, beside: Sequence[int] = ()) -> str | None:
        """Make the objects visible, all at once; return the name of the pack, if there is one.

        Data reach the disk before names, and those of the descriptors `beside` with
        them. A pack is read where both of its files are, so the second rename is the
        one step that counts.
        """
        if not self._writer:
            self._sync(*beside)
            return None
        index = self._writer.finish()
        fault_point("objects.packed")
        name = f"pack-{index[-40:-20].hex()}"
        with self._held, AtomicFile(self._directory, index) as indexed:
            fault_point("objects.indexed")
            self._publish(name, indexed, beside)
        return name

    def _publish(self, name: str, indexed: AtomicFile, beside: Sequence[int]) -> None:
        packed = self._file
        if packed is None:
            raise RuntimeError("Nothing has been written")
        _make_older(packed.descriptor, indexed.descriptor)
        self._sync(packed.descriptor, indexed.descriptor, *beside)
        indexed.name(self._directory / f"{name}.idx")
        fault_point("objects.named")
        packed.name(self._directory / f"{name}.pack")
        fault_point("objects.visible")
        if self._durable:
            sync_directory(self._directory)

    def _opened(self) -> int:
        self._file = self._held.enter_context(AtomicFile(self._directory))
        return self._file.descriptor

    def _sync(self, *descriptors: int) -> None:
        if self._durable:
            sync_files(descriptors)


def _make_older(pack: int, index: int) -> None:
    """Let a pack be older than its index: then whoever writes to it later is found out."""
    with suppress(OSError):
        found = os.fstat(index)
        os.utime(pack, ns=(found.st_atime_ns, found.st_mtime_ns - _OLDER_NS))
