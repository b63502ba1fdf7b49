"""Content-addressed object store: git's loose objects and packs, verified when read."""

import hashlib
import logging
import os
import re
import shutil
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from weakincentives.errors import WinkError
from weakincentives.gitstore.pack_reader import (
    CHUNK_SIZE,
    KINDS,
    MAX_OBJECT_SIZE,
    Pack,
    PackedObject,
    PackError,
    PackReader,
    Stream,
    TooLargeError,
)
from weakincentives.gitstore.pack_set import PackSet
from weakincentives.gitstore.pack_writer import PackTransaction, hash_object
from weakincentives.posix import fault_point, open_regular

_LOOSE_CHUNK = 1024 * 1024
_MAX_HEADER = 32  # "commit 18446744073709551615" and the NUL after it
_ID = re.compile(r"[0-9a-f]{40}")
_MAX_WHOLE = 16 * 1024 * 1024  # larger objects are copied in chunks
_SMALL_PACK = 16 * 1024 * 1024  # larger packs are not merged
_MAX_SMALL_PACKS = 64
_WRONG_ID = "its content has another id"
_log = logging.getLogger(__name__)


def loose_stream(path: Path) -> Stream:
    """Return a stream of the loose object in a file; it is never held in memory.

    Raises:
        FileNotFoundError: It does not exist.
        PackError: The object is damaged; also while its chunks are read.
    """
    chunks = _inflate_file(path)
    start = next(chunks, b"")
    header, separator, rest = start.partition(b"\0")
    kind, _, digits = header.partition(b" ")
    is_known = kind.decode("ascii", "replace") in KINDS.values()
    if not (separator and is_known and digits.isdigit() and len(header) < _MAX_HEADER):
        raise PackError(f"Object file is damaged: {path.name!r}")
    return Stream(kind.decode(), int(digits), _check_size(int(digits), rest, chunks))


def _check_size(size: int, rest: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the chunks; raise PackError unless they have `size` bytes."""
    left = size - len(rest)
    if rest:
        yield rest
    for chunk in chunks:
        left -= len(chunk)
        if left < 0:
            break
        yield chunk
    if left:
        raise PackError("Object file has another size than its header says")


def _inflate_file(path: Path) -> Iterator[bytes]:
    """Yield the inflated content of a file in chunks; the first is not empty."""
    inflater = zlib.decompressobj()
    with os.fdopen(open_regular(path)[0], "rb", buffering=0) as file:
        data = b""
        while not inflater.eof:
            data = data or file.read(_LOOSE_CHUNK)
            if not data:
                raise PackError(f"Object file ends too early: {path.name!r}")
            try:
                chunk = inflater.decompress(data, _LOOSE_CHUNK)
            except zlib.error as error:
                raise PackError(f"Object file is damaged: {path.name!r}: {error}") from None
            data = inflater.unconsumed_tail
            if chunk:
                yield chunk


class ObjectError(WinkError, ValueError):
    """An object is missing or damaged."""


def is_object_id(text: str) -> bool:
    """Return whether `text` is a full object id."""
    return _ID.fullmatch(text) is not None


class ObjectStore:
    """The objects below one `objects` directory of a git repository.

    Any number of threads and processes may read. To write or remove, hold the repository's
    lock.
    """

    def __init__(self, directory: Path, *, durable: bool = True) -> None:
        """Use the objects in `directory`; with `durable` new ones are synced to the disk."""
        self._directory = directory
        self._durable = durable
        self._packs = PackSet(directory / "pack")

    @property
    def losses(self) -> int:
        """How many times objects that had been here were found to be missing."""
        return self._packs.losses

    def __contains__(self, object_id: str) -> bool:
        """Return whether the object exists; its content is not read."""
        if not is_object_id(object_id):
            return False
        if self.is_packed(object_id):
            return True
        self.refresh()
        return self.is_packed(object_id) or self._loose(object_id).is_file()

    def is_packed(self, object_id: str) -> bool:
        """Return whether the object is in an undamaged pack that is already open."""
        return self._packs.is_packed(bytes.fromhex(object_id))

    def has_all(self, keys: Iterable[bytes]) -> bool:
        """Return whether all objects, given by their binary ids, are in undamaged packs."""
        return self._packs.has_all(keys)

    def read(self, object_id: str) -> tuple[str, bytes]:
        """Return kind and content of an object, verified against its id.

        Raises:
            ObjectError: It is missing, damaged, or too large for memory.
        """
        failure: object = None
        for location in self._find_locations(object_id):
            try:
                kind, data = _read_whole(location.open())
            except (PackError, OSError) as error:
                failure = _worse(failure, error)
                self._mark_suspect(location, error)
                continue
            if hash_object(kind, data) == object_id:
                return kind, data
            failure = _WRONG_ID
            self._mark_suspect(location, failure)
        raise _unreadable(object_id, failure)

    def chunks(self, object_id: str) -> Iterator[bytes]:
        """Return the content of a blob in chunks of about a megabyte at most.

        The last chunk is yielded only after the whole content has been verified: a reader that
        reaches the end has undamaged content.

        Raises:
            ObjectError: It is missing, damaged or not a blob.
        """
        found = self.stream(object_id)
        if found.kind != "blob":
            raise ObjectError(f"Object is a {found.kind}, not a blob: {object_id!r}")
        return found.chunks

    def size_of(self, object_id: str) -> int:
        """Return the size of an object as its header declares it.

        Raises:
            ObjectError: It is missing or damaged.
        """
        return self._open(object_id)[1].size

    def stream(self, object_id: str) -> Stream:
        """Return an object for reading; its chunks are verified, its inflater is not.

        Raises:
            ObjectError: It is missing or damaged; also while its chunks are read.
        """
        location, found = self._open(object_id)
        if found.size > CHUNK_SIZE:
            return found._replace(chunks=self._verify_chunks(object_id, location, found))
        with suppress(PackError, OSError):
            data = b"".join(found.chunks)
            if hash_object(found.kind, data) == object_id:
                return found._replace(chunks=iter([data]))
        kind, data = self.read(object_id)
        return Stream(kind, len(data), iter([data]))

    def ids(self) -> Iterator[str]:
        """Yield the id of every object, once for each copy that is stored."""
        self.refresh()
        for pack in self._packs.all.values():
            yield from pack
        for directory in self._loose_directories():
            for path in sorted(directory.iterdir()):
                if is_object_id(directory.name + path.name):
                    yield directory.name + path.name

    def begin_pack(self, *, rewrite: bool = False) -> PackTransaction:
        """Begin a pack of new objects; nothing is visible before it is finished.

        Objects that are stored already are skipped, unless `rewrite` is set. Leftovers of
        killed writers are removed.
        """
        self._packs.sweep()
        is_known = _is_never_known if rewrite else self.is_packed
        return PackTransaction(self._directory / "pack", is_known, durable=self._durable)

    def refresh(self, *, closely: bool = False) -> None:
        """Detect packs that were added or removed; with `closely` also modified ones."""
        self._packs.refresh(closely=closely)

    def packs(self) -> dict[str, int]:
        """Return the packs by name, with their sizes in bytes."""
        self.refresh()
        return {name: pack.size_bytes for name, pack in self._packs.all.items()}

    def damaged_packs(self) -> dict[str, PackError]:
        """Return the packs that cannot be opened, and why."""
        self.refresh()
        return dict(self._packs.damaged)

    def merge_small_packs(self) -> None:
        """Merge the small packs into one, if there are many of them.

        Each merge takes at least half of them, smallest first, and stops at a pack that is
        larger than all before it together: so objects are rewritten rarely.

        Raises:
            ObjectError: An object in them is damaged; nothing is changed.
        """
        if len(self._packs.all) < _MAX_SMALL_PACKS:
            return  # without a refresh: this is called after every snapshot
        self.refresh()
        small = sorted(
            (pack.size_bytes, name)
            for name, pack in self._packs.all.items()
            if pack.size_bytes < _SMALL_PACK and not pack.is_suspect
        )
        if len(small) <= _MAX_SMALL_PACKS:
            return
        chosen: list[str] = []
        total = 0
        for size, name in small:
            if len(chosen) >= _MAX_SMALL_PACKS // 2 and size > total:
                break
            chosen.append(name)
            total += size
        self.rewrite([each for name in chosen for each in self._packs.all[name]], chosen)

    def rewrite(self, object_ids: Iterable[str], replaced: Collection[str]) -> None:
        """Write objects to one new pack, then remove the packs `replaced`.

        Packs that contain none of the objects are removed first: on a full disk the new pack
        needs their space.

        Raises:
            ObjectError: An object is missing or damaged; no object is lost.
        """
        object_ids = dict.fromkeys(object_ids)
        self.refresh()
        useless = {
            name
            for name in replaced
            if (pack := self._packs.all.get(name)) is not None
            and object_ids.keys().isdisjoint(pack)
        }
        self._packs.remove(useless)
        with self.begin_pack(rewrite=True) as batch:
            for object_id in object_ids:
                self._copy(object_id, batch)
            written = batch.finish()
        fault_point("objects.rewritten")
        self._packs.remove(set(replaced) - useless - {written})

    def remove_loose(self) -> None:
        """Remove all loose objects."""
        for directory in self._loose_directories():
            shutil.rmtree(directory, ignore_errors=True)
            fault_point("objects.loosened")

    def close(self) -> None:
        """Release the packs; streams that are open stay readable."""
        self._packs.close()

    def _open(self, object_id: str) -> "tuple[_Location, Stream]":
        """Open an object at the first location where it can be read.

        A large object is streamed before it is fully verified. So if it has several copies,
        each is verified first, to pick an undamaged one.
        """
        failure: object = None
        for location in self._find_locations(object_id):
            try:
                found = location.open()
                if found.size > CHUNK_SIZE and self._has_several_copies(object_id):
                    for _ in self._verify_chunks(object_id, location, found):
                        pass
                    found = location.open()
                return location, found
            except (PackError, OSError, ObjectError) as error:
                failure = _worse(failure, error)
                self._mark_suspect(location, error)
        if isinstance(failure, ObjectError):
            raise failure
        raise _unreadable(object_id, failure)

    def _has_several_copies(self, object_id: str) -> bool:
        key = bytes.fromhex(object_id)
        return sum(pack.offset_of(key) is not None for pack in self._packs.all.values()) > 1

    def _verify_chunks(
        self, object_id: str, location: "_Location", stream: Stream
    ) -> Iterator[bytes]:
        """Yield the chunks, the last one only after the id has been verified."""
        header = b"%s %d\0" % (stream.kind.encode(), stream.size)
        digest = hashlib.sha1(header, usedforsecurity=False)
        last = b""
        try:
            for chunk in stream.chunks:
                if last:
                    yield last
                digest.update(chunk)
                last = chunk
        except (PackError, OSError) as error:
            self._mark_suspect(location, error)
            raise _unreadable(object_id, error) from error
        if digest.hexdigest() != object_id:
            self._mark_suspect(location, _WRONG_ID)
            raise _unreadable(object_id, _WRONG_ID)
        yield last

    def _mark_suspect(self, location: "_Location", failure: object) -> None:
        """Mark the pack of a location as suspect, so that nothing new relies on it."""
        pack = location.pack
        if not isinstance(pack, Pack) or pack.is_suspect or isinstance(failure, TooLargeError):
            return
        _log.warning("Pack is damaged; objects in it are stored again when needed: %s", failure)
        self._packs.mark_suspect(pack)

    def _find_locations(self, object_id: str) -> "Iterator[_Location]":
        """Yield the locations of an object: the likeliest first, damaged packs last."""
        if not is_object_id(object_id):
            return
        key = bytes.fromhex(object_id)
        known = self._packs.trusted
        yield from _in_packs(key, known)
        self.refresh()
        yield from _in_packs(key, [pack for pack in self._packs.trusted if pack not in known])
        yield _Location(None, partial(loose_stream, self._loose(object_id)))
        suspects = [pack for pack in self._packs.all.values() if pack.is_suspect]
        yield from _in_packs(key, suspects)

    def _copy(self, object_id: str, batch: PackTransaction) -> None:
        packed = self._read_raw(object_id)
        if packed is not None:
            batch.add_raw(object_id, packed)
            return
        found = self.stream(object_id)
        if found.kind == "blob" and found.size > _MAX_WHOLE:
            batch.add_blob(found.size, found.chunks)
            return
        try:
            batch.add(found.kind, b"".join(found.chunks))
        except ObjectError:  # there may be an undamaged copy at another location
            batch.add(*self.read(object_id))

    def _read_raw(self, object_id: str) -> PackedObject | None:
        """Return an object that can be copied without recompression, as most can."""
        key = bytes.fromhex(object_id)
        for pack in self._packs.all.values():
            offset = pack.offset_of(key)
            if offset is not None:
                packed = pack.read_raw(offset)
                if packed is not None and hash_object(packed.kind, packed.content) == object_id:
                    return packed
        return None

    def _loose(self, object_id: str) -> Path:
        return self._directory / object_id[:2] / object_id[2:]

    def _loose_directories(self) -> list[Path]:
        return sorted(self._directory.glob("[0-9a-f][0-9a-f]"))


class PackedObjects(ObjectStore):
    """The objects of one pack that is part of another file, verified when they are read."""

    def __init__(self, pack: PackReader) -> None:
        """Read from `pack`."""
        super().__init__(Path(os.devnull))
        self._pack = pack

    def __contains__(self, object_id: str) -> bool:
        """Return whether the object is in the pack."""
        return is_object_id(object_id) and self.is_packed(object_id)

    def is_packed(self, object_id: str) -> bool:
        """Return whether the object is in the pack."""
        return self._pack.offset_of(bytes.fromhex(object_id)) is not None

    def size_of(self, object_id: str) -> int:
        """Return the size of an object as its header declares it.

        Raises:
            ObjectError: It is missing or damaged.
        """
        offset = self._pack.offset_of(bytes.fromhex(object_id))
        if offset is None:
            raise _unreadable(object_id, None)
        try:
            return self._pack.size_of(offset)
        except PackError as error:
            raise _unreadable(object_id, error) from error

    def _find_locations(self, object_id: str) -> "Iterator[_Location]":
        if is_object_id(object_id):
            yield from _in_packs(bytes.fromhex(object_id), [self._pack])

    def _mark_suspect(self, location: "_Location", failure: object) -> None:
        """Do nothing: nothing is stored in this pack."""


class LayeredObjects(ObjectStore):
    """The objects of a store, below small ones that are found elsewhere; read-only."""

    def __init__(self, base: ObjectStore, find: Callable[[str], tuple[str, bytes] | None]) -> None:
        """Read what `find` returns, kind and content, and else from `base`."""
        super().__init__(Path(os.devnull))
        self._base = base
        self._find = find

    def __contains__(self, object_id: str) -> bool:
        """Return whether the object exists; its content is not verified."""
        return self._find(object_id) is not None or object_id in self._base

    def is_packed(self, object_id: str) -> bool:
        """Return whether the object exists."""
        return object_id in self

    def _find_locations(self, object_id: str) -> "Iterator[_Location]":
        found = self._find(object_id)
        if found is not None:
            kind, data = found
            yield _Location(None, lambda: Stream(kind, len(data), iter([data])))
        yield from self._base._find_locations(object_id)  # noqa: SLF001 # of the same class

    def _has_several_copies(self, object_id: str) -> bool:
        return self._base._has_several_copies(object_id)  # noqa: SLF001 # of the same class

    def _mark_suspect(self, location: "_Location", failure: object) -> None:
        self._base._mark_suspect(location, failure)  # noqa: SLF001 # of the same class


class _Location(NamedTuple):
    """Where an object may be stored; `pack` is None for a loose object."""

    pack: PackReader | None
    open: Callable[[], Stream]


def _in_packs(key: bytes, packs: Iterable[PackReader]) -> Iterator[_Location]:
    for pack in packs:
        offset = pack.offset_of(key)
        if offset is not None:
            yield _Location(pack, partial(pack.stream, offset))


def _read_whole(stream: Stream) -> tuple[str, bytes]:
    if stream.size > MAX_OBJECT_SIZE:
        raise TooLargeError(f"Object is too large for memory: {stream.size} bytes")
    return stream.kind, b"".join(stream.chunks)


def _worse(failure: object, error: Exception) -> object:
    """Return the failure to report: any other than that a loose file is missing."""
    return error if failure is None or isinstance(failure, FileNotFoundError) else failure


def _unreadable(object_id: str, failure: object) -> ObjectError:
    if failure is None or isinstance(failure, FileNotFoundError):
        return ObjectError(f"Object is missing: {object_id!r}")
    return ObjectError(f"Object is damaged: {object_id!r}: {failure}")


def _is_never_known(_object_id: str) -> bool:
    return False
