"""Write git packs: zlib streams, the pack and its index, and transactions of new objects.

A `PackTransaction` collects objects in one pack, and publishes them with one rename.
"""

import hashlib
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import accumulate, chain
from pathlib import Path
from typing import Self, TypeAlias

from weakincentives import posix
from weakincentives.gitstore.pack_reader import Pack, PackedObject, hash_object

_RAW = -15
_ZLIB_HEADER = b"\x78\x01"
_CHECKSUM = struct.Struct(">I")
NUMBERS = {"commit": 1, "tree": 2, "blob": 3, "tag": 4}
"""The types of objects as numbers, as in a pack."""
_PACK_HEADER = struct.Struct(">4sII")
_INDEX_MAGIC = b"\xfftOc\0\0\0\x02"
_FAR = 0x80000000  # marks an offset in the table of large offsets
_CHUNK = 1024 * 1024
_MAX_WHOLE = 16 * 1024 * 1024  # bytes of a file that is read at once
_BUFFER = 256 * 1024
_BYTES = [bytes((value,)) for value in range(256)]
PackLog: TypeAlias = Callable[[bytes, bytes], bool]
"""Makes a copy of a pack and its index durable; returns False if it cannot."""
_PACK_AGE_NS = 1_000_000_000  # how much older than its index a pack is made


def deflate(data: bytes, codec: posix.Codec = posix.PACK_CODEC) -> bytes:
    """Return an object as a zlib stream."""
    size = len(data)
    if size <= (posix.MAX_SMALL if codec is posix.ZLIB else posix.MAX_STORED):
        return posix.deflate_small(data)
    packed = codec.deflate(data)
    if len(packed) > size:
        return zlib.compress(data, 0)  # ISA-L makes incompressible data a quarter larger
    return _ZLIB_HEADER + packed + _CHECKSUM.pack(zlib.adler32(data))


def deflate_stream(
    chunks: Iterable[bytes], codec: posix.Codec = posix.PACK_CODEC
) -> Iterator[bytes]:
    """Yield a large object as a zlib stream; it is compressed if the first chunk shrinks."""
    pending = iter(chunks)
    first = next(pending, b"")
    shrinks = len(codec.deflate(first)) < len(first)
    deflater = codec.deflater() if shrinks else zlib.compressobj(0, zlib.DEFLATED, _RAW)
    checksum = 1
    yield _ZLIB_HEADER
    for chunk in chain((first,), pending):
        checksum = zlib.adler32(chunk, checksum)
        yield deflater.compress(chunk)
    yield deflater.flush() + _CHECKSUM.pack(checksum)


class PackWriter:
    """Writes objects to a pack file, and builds its index.

    The file is opened when the buffer is full, or at the end.
    """

    def __init__(self, open_file: Callable[[], int]) -> None:
        """Start a pack; `open_file` returns the descriptor of an empty file."""
        self._open_file = open_file
        self._descriptor: int | None = None
        self._written = 0
        self._buffer = bytearray(_PACK_HEADER.pack(b"PACK", 2, 0))
        self._entries: list[tuple[bytes, int, int]] = []
        self.content: bytes | None = None
        """The whole pack after `finish`, if it fitted into the buffer."""

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._entries)

    def add(self, name: str, kind: str, size: int, deflated: bytes) -> None:
        """Add the object with the id `name` and `size` bytes, given as a zlib stream."""
        entry = entry_header(NUMBERS[kind], size) + deflated
        self._entries.append((bytes.fromhex(name), zlib.crc32(entry), self._offset()))
        self._write(entry)

    def add_parts(
        self, kind: str, size: int, deflated: Iterable[bytes], get_id: Callable[[], str | None]
    ) -> None:
        """Add an object in parts; afterwards `get_id` returns its id, or None to drop it.

        If the parts raise, nothing is added.
        """
        offset = self._offset()
        header = entry_header(NUMBERS[kind], size)
        crc = zlib.crc32(header)
        name = None
        try:
            self._write(header)
            for part in deflated:
                crc = zlib.crc32(part, crc)
                self._write(part)
            name = get_id()
        finally:
            if name is None:
                self._truncate(offset)
        if name is not None:
            self._entries.append((bytes.fromhex(name), crc, offset))

    def finish(self) -> bytes:
        """Complete the pack file; return the content of its index.

        The number of objects is at the start but known only now, so the checksum is computed
        from the file.
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
        self.content = bytes(self._buffer) if self._descriptor is None else None
        self._flush()
        return encode_index(sorted(self._entries), digest.digest())

    def _offset(self) -> int:
        return self._written + len(self._buffer)

    def _write(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > _BUFFER:
            self._flush()

    def _flush(self) -> None:
        if self._descriptor is None:
            self._descriptor = self._open_file()
        posix.write_all(self._descriptor, self._buffer)
        self._written += len(self._buffer)
        self._buffer.clear()

    def _truncate(self, offset: int) -> None:
        """Drop everything from `offset` on."""
        del self._buffer[max(0, offset - self._written) :]
        if self._descriptor is not None and offset < self._written:
            os.ftruncate(self._descriptor, offset)
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            self._written = offset


def entry_header(number: int, size: int) -> bytes:
    """Return what precedes the zlib stream of an object, of the type `number`, in a pack."""
    first, size = number << 4 | size & 15, size >> 4
    header = b""
    while size:
        header += _BYTES[first | 0x80]
        first, size = size & 0x7F, size >> 7
    return header + _BYTES[first]


def encode_index(entries: list[tuple[bytes, int, int]], checksum: bytes) -> bytes:
    """Return the index of a pack: key, CRC-32 and offset of every object, sorted."""
    keys, crcs, offsets = zip(*entries, strict=True) if entries else ((), (), ())
    counts = [0] * 256
    for key in keys:
        counts[key[0]] += 1
    far = [offset for offset in offsets if offset >= _FAR]
    if far:
        references = {offset: number | _FAR for number, offset in enumerate(far)}
        offsets = [references.get(offset, offset) for offset in offsets]
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


class PackTransaction:
    """Collects new objects in one pack; use it in a with statement, and call `finish` there.

    Leaving the block without `finish` drops everything.
    """

    def __init__(
        self,
        directory: Path,
        is_known: Callable[[str], bool],
        *,
        durable: bool = True,
        adopt: Callable[[Pack, int], None] | None = None,
    ) -> None:
        """Write objects to a pack in `directory`; skip those that are known.

        `adopt` gets the pack when it is complete, and the inode of its index.
        """
        self._directory = directory
        self._is_known = is_known
        self._durable = durable
        self._adopt = adopt
        self.is_logged: bool = False
        """Whether it is durable by a log, so that files which belong to it need no sync."""
        self._added: set[str] = set()
        self._resources = ExitStack()
        self._file: posix.AtomicFile | None = None
        self._writer = PackWriter(self._open_file)

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Drop what was not finished."""
        with suppress(OSError):  # as on a full disk: the file is not needed any more
            self._resources.close()

    def __contains__(self, object_id: str) -> bool:
        """Return whether the object was added, or is known already."""
        return object_id in self._added or self._is_known(object_id)

    def add(self, kind: str, data: bytes) -> str:
        """Add an object unless it is known; return its id."""
        object_id = hash_object(kind, data)
        if object_id not in self._added and not self._is_known(object_id):
            self._added.add(object_id)
            self._writer.add(object_id, kind, len(data), deflate(data))
        return object_id

    def add_deflated(self, blob: bytes, size: int, deflated: bytes) -> None:
        """Add a blob of `size` bytes, given as a zlib stream, unless it is known."""
        object_id = blob.hex()
        if object_id not in self:
            self._added.add(object_id)
            self._writer.add(object_id, "blob", size, deflated)

    def add_raw(self, object_id: str, packed: PackedObject) -> None:
        """Add an object that is compressed and verified already."""
        if object_id not in self:
            self._added.add(object_id)
            self._writer.add(object_id, packed.kind, len(packed.content), packed.deflated)

    def add_file(self, size: int, read: Callable[[int, int], bytes]) -> str:
        """Add a blob of `size` bytes by `read(offset, size)`, a large one in chunks; return its id.

        Raises:
            ValueError: There are fewer bytes; nothing is added.
        """
        if size > _MAX_WHOLE:
            offsets = range(0, size, _CHUNK)
            return self.add_blob(size, (read(at, min(_CHUNK, size - at)) for at in offsets))
        data = read(0, size)
        if len(data) != size:
            raise ValueError(f"Content has another size than {size}: {len(data)}")
        return self.add("blob", data)

    def add_blob(self, size: int, chunks: Iterable[bytes]) -> str:
        """Add a blob of `size` bytes that is too large for memory; return its id.

        Raises:
            ValueError: The chunks have another total size; nothing is added.
        """
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)

        def hash_chunks() -> Iterator[bytes]:
            length = 0
            for chunk in chunks:
                posix.check_time("Snapshot")
                digest.update(chunk)
                length += len(chunk)
                yield chunk
            if length != size:
                raise ValueError(f"Content has another size than {size}: {length}")

        def get_id() -> str | None:
            object_id = digest.hexdigest()
            if object_id in self:
                return None
            self._added.add(object_id)
            return object_id

        self._writer.add_parts("blob", size, deflate_stream(hash_chunks()), get_id)
        return digest.hexdigest()

    def finish(self, also_sync: Sequence[int] = (), log: PackLog | None = None) -> str | None:
        """Publish all objects atomically; return the name of the pack, None if it is empty.

        Content is synced before it gets its name, and with it the files `also_sync`, unless
        `log` made a copy durable. A pack is read only if both of its files exist, so the second
        rename is the commit point.
        """
        if not self._writer:
            self._sync(*also_sync)
            return None
        index = self._writer.finish()
        posix.fault_point("objects.packed")
        name = f"pack-{index[-40:-20].hex()}"
        with self._resources, posix.AtomicFile(self._directory, index) as index_file:
            posix.fault_point("objects.indexed")
            pack_file = self._file
            if pack_file is None:
                raise RuntimeError("The pack has not been written")
            files = pack_file.descriptor, index_file.descriptor
            inode = _make_older(*files)
            content = self._writer.content if self._durable else None
            self.is_logged = content is not None and log is not None and log(content, index)
            if not self.is_logged:
                self._sync(*files, *also_sync)
            _name_pack(f"{self._directory}/{name}", pack_file, index_file)
            if self._durable and not self.is_logged:
                posix.sync_directory(self._directory)
            if self._adopt is not None:
                written = os.dup(files[0]), index
                self._adopt(Pack(self._directory / f"{name}.idx", written), inode)
        return name

    def _open_file(self) -> int:
        self._file = self._resources.enter_context(posix.AtomicFile(self._directory))
        return self._file.descriptor

    def _sync(self, *descriptors: int) -> None:
        if self._durable:
            posix.sync_files(descriptors)


def store_pack(directory: Path, pack: bytes, index: bytes) -> None:
    """Store a complete pack, synced, in place of whatever has its name."""
    with (
        posix.AtomicFile(directory, pack) as pack_file,
        posix.AtomicFile(directory, index) as index_file,
    ):
        files = pack_file.descriptor, index_file.descriptor
        _make_older(*files)
        posix.sync_files(files)
        _name_pack(f"{directory}/pack-{index[-40:-20].hex()}", pack_file, index_file)
        posix.sync_directory(directory)


def _name_pack(path: str, pack_file: posix.AtomicFile, index_file: posix.AtomicFile) -> None:
    """Give both files of a pack their names: `path` with a suffix each."""
    index_file.name(f"{path}.idx")
    posix.fault_point("objects.named")
    pack_file.name(f"{path}.pack")
    posix.fault_point("objects.visible")


def _make_older(pack: int, index: int) -> int:
    """Make a pack older than its index, so that a later modification can be detected.

    Return the inode of the index.
    """
    found = os.fstat(index)
    with suppress(OSError):
        os.utime(pack, ns=(found.st_atime_ns, found.st_mtime_ns - _PACK_AGE_NS))
    return found.st_ino
