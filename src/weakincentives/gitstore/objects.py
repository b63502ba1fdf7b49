"""Content-addressed object store: git's loose objects and packs, verified when read."""

import hashlib
import logging
import os
import re
import shutil
import threading
import weakref
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from weakincentives.errors import WinkError
from weakincentives.gitstore.directory import sweep_directory
from weakincentives.gitstore.pack_reader import (
    CHUNK_SIZE,
    KINDS,
    MAX_OBJECT_SIZE,
    Inflater,
    ObjectStream,
    Pack,
    PackedObject,
    PackError,
    PackReader,
    TooLargeError,
    hash_object,
)
from weakincentives.gitstore.pack_writer import PackTransaction
from weakincentives.posix import defer_interrupts, fault_point, open_regular

_PACK_FILE = re.compile(r"(pack-[0-9a-f]{40})\.([a-z]+)")
_NAME_SIZE = len("pack-") + 40
_MAX_ATTEMPTS = 10
_LOOSE_HEADER = re.compile(rb"(%s) ([0-9]+)\0" % "|".join(KINDS.values()).encode())
_LOOSE_START = 1024  # bytes of a loose object that contain its header
_MAX_HEADER = 32  # "commit 18446744073709551615" and the NUL after it
_ID = re.compile(r"[0-9a-f]{40}")
_MAX_WHOLE = 16 * 1024 * 1024  # larger objects are copied in chunks
_SMALL_PACK = 16 * 1024 * 1024  # larger packs are not merged
_MAX_SMALL_OBJECTS = 100  # of a pack whose ids are all in one table
_MAX_SMALL_PACKS = 64
_WRONG_ID = "its content has another id"
_log = logging.getLogger(__name__)


class _LooseFile:
    """The file of a loose object; it is closed with the last reader."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._descriptor = open_regular(path)[0]
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        if not data:
            raise PackError(f"Object file ends too early: {self._name!r}")
        return data


def loose_stream(path: Path) -> ObjectStream:
    """Return a stream of the loose object in a file; it is never held in memory.

    Raises:
        FileNotFoundError: It does not exist.
        PackError: The object is damaged; also while its chunks are read.
    """
    file = _LooseFile(path)
    try:
        start = zlib.decompressobj().decompress(file.read(0, _LOOSE_START), _MAX_HEADER)
    except zlib.error as error:
        raise PackError(f"Object file is damaged: {path.name!r}: {error}") from None
    match = _LOOSE_HEADER.match(start)
    if match is None:
        raise PackError(f"Object file is damaged: {path.name!r}")
    header, size = match.end(), int(match[2])
    inflater = Inflater(file.read, 0, header + size)
    while header:
        header -= len(inflater.read_chunk(header))
    return ObjectStream(match[1].decode(), size, iter(inflater), inflater)


class ObjectError(WinkError, ValueError):
    """An object is missing or damaged."""


def is_object_id(text: str) -> bool:
    """Return whether `text` is a full object id."""
    return _ID.fullmatch(text) is not None


class PackSet:
    """The packs in one directory, as of the last refresh."""

    def __init__(self, directory: Path) -> None:
        """Start empty."""
        self.directory: Path = directory
        self._refreshing = threading.Lock()
        self._opened: dict[str, int] = {}  # the files as of the last time, with their inodes
        self.all: dict[str, Pack] = {}
        self.trusted: tuple[Pack, ...] = ()
        self.small: dict[bytes, Pack] = {}
        """The small trusted packs by the ids of their objects; there may be many of them."""
        self.damaged: dict[str, PackError] = {}
        """Packs that cannot be opened, and why."""
        self.losses: int = 0
        """How many times objects that had been here were found missing or damaged."""

    def is_packed(self, object_id: str) -> bool:
        """Return whether the object is in an undamaged pack that is already open."""
        key = bytes.fromhex(object_id)
        if key in self.small:
            return True
        large = (pack for pack in self.trusted if len(pack) > _MAX_SMALL_OBJECTS)
        return any(pack.offset_of(key) is not None for pack in large)

    def has_all(self, keys: Iterable[bytes]) -> bool:
        """Return whether all objects, given by their binary ids, are in undamaged packs."""
        missing = set(keys)
        for pack in self.trusted:
            missing.difference_update(pack.keys())
        return not missing

    def refresh(self, *, sweep: bool = False, closely: bool = False) -> None:
        """Detect packs that were added or removed; with `closely` also modified ones.

        With `sweep`, leftovers of killed writers are removed.
        """
        with defer_interrupts(), self._refreshing:
            if closely:
                unchanged = {n: p for n, p in self.all.items() if not p.has_changed()}
                if len(unchanged) < len(self.all):
                    self.all, self._opened = unchanged, {}
            names = self._names()
            if sweep:
                self._remove_leftovers(names)
            self._reload(names)

    def adopt(self, pack: Pack, index_inode: int) -> None:
        """Add a pack that was just written here, as if a refresh had found it."""
        with defer_interrupts(), self._refreshing:
            inodes = {f"{pack.name}.idx": index_inode, f"{pack.name}.pack": pack.inode}
            self._opened = self._opened | inodes
            self.all = self.all | {pack.name: pack}
            self._trust(self.all.values())

    def mark_suspect(self, pack: Pack) -> None:
        """Mark a pack as damaged, so that nothing new relies on it."""
        pack.mark_suspect()
        with defer_interrupts(), self._refreshing:
            self._trust(self.trusted)
            self.losses += 1

    def remove(self, names: Collection[str]) -> None:
        """Remove packs, except those with a `.keep` file."""
        files = [match for match in map(_PACK_FILE.fullmatch, self._names()) if match]
        kept = {match[1] for match in files if match[2] == "keep"}
        # it would name packs that are gone; git works without it
        (self.directory / "multi-pack-index").unlink(missing_ok=True)
        for name in set(names) - kept:
            # a pack is read only if both files exist, and git never writes an index
            # before its pack: so an index alone is a leftover
            self._file(name, "pack").unlink(missing_ok=True)
            fault_point("objects.removed")
            for match in files:
                if match[1] == name:
                    (self.directory / match[0]).unlink(missing_ok=True)
        self.refresh()

    def close(self) -> None:
        """Release the packs; streams that are open stay readable."""
        with defer_interrupts(), self._refreshing:
            self._opened, self.all, self.damaged = {}, {}, {}
            self._trust(())

    def _trust(self, packs: Iterable[Pack]) -> None:
        """Let new objects rely on those of the packs that are not suspect."""
        trusted = dict.fromkeys(pack for pack in packs if not pack.is_suspect)
        is_larger = trusted.keys() >= set(self.trusted)
        small = self.small if is_larger else {}
        for pack in trusted.keys() - set(self.trusted) if is_larger else trusted:
            if len(pack) <= _MAX_SMALL_OBJECTS:
                small.update(dict.fromkeys(pack.keys(), pack))
        self.trusted, self.small = tuple(trusted), small

    def _reload(self, names: dict[str, int]) -> None:
        for _ in range(_MAX_ATTEMPTS):
            if names == self._opened and not self.damaged:
                return
            if self._open_packs(names):
                self._opened = names
                return
            names = self._names()

    def _open_packs(self, names: dict[str, int]) -> bool:
        """Open the packs among `names`; False if one disappeared meanwhile."""
        packs: dict[str, Pack] = {}
        damaged: dict[str, PackError] = {}
        complete = True
        for name in sorted(n.removesuffix(".idx") for n in names if n.endswith(".idx")):
            inode = names.get(f"{name}.pack")
            if inode is None:
                continue
            known = self.all.get(name)
            try:
                # a damaged pack may have been replaced by a good one with the same name
                if known is None or known.inode != inode:
                    known = Pack(self._file(name, "idx"))
                packs[name] = known
            except FileNotFoundError:
                complete = False
            except PackError as error:
                damaged[name] = error
        before, self.all, self.damaged = self.trusted, packs, damaged
        self._trust(packs.values())
        vanished = [pack for pack in before if pack not in self.trusted]
        if complete and not all(self.is_packed(each) for pack in vanished for each in pack):
            self.losses += 1
        return complete

    def _remove_leftovers(self, names: dict[str, int]) -> None:
        """Remove temporary files of killed writers, and indexes without their pack."""
        sweep_directory(self.directory, names)
        alone = [name for name in names if f"{name[:_NAME_SIZE]}.pack" not in names]
        for match in filter(None, map(_PACK_FILE.fullmatch, alone)):
            if match[2] != "keep":
                (self.directory / match[0]).unlink(missing_ok=True)

    def _names(self) -> dict[str, int]:
        """Return the names in the pack directory, with their inodes."""
        with suppress(FileNotFoundError), os.scandir(self.directory) as entries:
            return {entry.name: entry.inode() for entry in entries}
        return {}

    def _file(self, name: str, kind: str) -> Path:
        return self.directory / f"{name}.{kind}"


class ObjectStore(PackSet):
    """The objects below one `objects` directory of a git repository, in packs or loose.

    Any number of threads and processes may read. To write or remove, hold the repository's
    lock.
    """

    def __init__(self, directory: Path, *, durable: bool = True) -> None:
        """Use the objects in `directory`; with `durable` new ones are synced to the disk."""
        super().__init__(directory / "pack")
        self._durable = durable

    def __contains__(self, object_id: str) -> bool:
        """Return whether the object exists; its content is not read."""
        if not is_object_id(object_id):
            return False
        if self.is_packed(object_id):
            return True
        self.refresh()
        return self.is_packed(object_id) or self._loose(object_id).is_file()

    def read(self, object_id: str, wanted: str | None = None) -> tuple[str, bytes]:
        """Return kind and content of an object, verified against its id.

        Raises:
            ObjectError: It is missing, damaged, too large for memory, or not of the kind `wanted`.
        """
        failure: object = None
        for location in self._find_locations(object_id):
            try:
                found = location.open()
                if found.size > MAX_OBJECT_SIZE:
                    raise TooLargeError(f"Object is too large for memory: {found.size} bytes")
                kind, data = found.kind, b"".join(found.chunks)
            except (PackError, OSError) as error:
                failure = _worse(failure, error)
                self._mark_suspect(location, error)
                continue
            if hash_object(kind, data) == object_id:
                _check_kind(object_id, kind, wanted or kind)
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
        _check_kind(object_id, found.kind, "blob")
        return found.chunks

    def size_of(self, object_id: str) -> int:
        """Return the size of an object as its header declares it.

        Raises:
            ObjectError: It is missing or damaged.
        """
        return self._open(object_id)[1].size

    def stream(self, object_id: str) -> ObjectStream:
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
        return ObjectStream(kind, len(data), iter([data]))

    def ids(self) -> Iterator[str]:
        """Yield the id of every object, once for each copy that is stored."""
        self.refresh()
        for pack in self.all.values():
            yield from pack
        for directory in self._loose_directories():
            for path in sorted(directory.iterdir()):
                if is_object_id(directory.name + path.name):
                    yield directory.name + path.name

    def begin_pack(self, *, rewrite: bool = False) -> PackTransaction:
        """Begin a pack of new objects; nothing is visible before it is finished.

        Objects that are stored already are skipped, unless `rewrite` is set. Packs that are
        damaged or gone are noticed, and leftovers of killed writers are removed.
        """
        self.refresh(sweep=True, closely=True)
        is_known: Callable[[str], bool] = (lambda _: False) if rewrite else self.is_packed
        return PackTransaction(self.directory, is_known, durable=self._durable, adopt=self.adopt)

    def packs(self) -> dict[str, int]:
        """Return the packs by name, with their sizes in bytes."""
        self.refresh()
        return {name: pack.size_bytes for name, pack in self.all.items()}

    def damaged_packs(self) -> dict[str, PackError]:
        """Return the packs that cannot be opened, and why."""
        self.refresh()
        return dict(self.damaged)

    def merge_small_packs(self) -> None:
        """Merge the small packs into one, if there are many of them.

        Each merge takes at least half of them, smallest first, and stops at a pack that is
        larger than all before it together: so objects are rewritten rarely.

        Raises:
            ObjectError: An object in them is damaged; nothing is changed.
        """
        if len(self.all) < _MAX_SMALL_PACKS:
            return  # without a refresh: this is called after every snapshot
        self.refresh()
        small = sorted(
            (pack.size_bytes, name)
            for name, pack in self.all.items()
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
        self.rewrite([each for name in chosen for each in self.all[name]], chosen)

    def collect(self, object_ids: Iterable[str]) -> None:
        """Keep these objects, in one pack and perhaps one large old one, in which commits may stay.

        Raises:
            ObjectError: An object is missing or damaged; no object is lost.
        """
        wanted = dict.fromkeys(object_ids)
        replaced = {*self.packs(), *self.damaged_packs()}
        whole = self._find_whole(wanted)
        if whole is not None:
            replaced.remove(whole)
            others = {key for name in replaced & self.all.keys() for key in self.all[name]}
            # an object with two copies is written again: one of them may be damaged
            alone = [each for each in self.all[whole] if each not in others]
            for each in alone:
                wanted.pop(each, None)
        self.rewrite(wanted, replaced)
        for directory in self._loose_directories():
            shutil.rmtree(directory, ignore_errors=True)
            fault_point("objects.loosened")

    def _find_whole(self, wanted: Mapping[str, object]) -> str | None:
        """Return a pack with most of the wanted objects, and of others only commits."""
        if any(self._loose_directories()):
            return None
        for name, pack in self.all.items():
            if 2 * len(pack) > len(wanted) and not pack.is_suspect:
                others = [each for each in pack if each not in wanted]
                is_small = len(others) <= len(pack) // 100
                commits = is_small and all(self._open(each)[1].kind == "commit" for each in others)
                return name if commits else None
        return None

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
            if (pack := self.all.get(name)) is not None and object_ids.keys().isdisjoint(pack)
        }
        self.remove(useless)
        with self.begin_pack(rewrite=True) as batch:
            for object_id in object_ids:
                self.copy(object_id, batch)
            written = batch.finish()
        fault_point("objects.rewritten")
        self.remove(set(replaced) - useless - {written})

    def copy(self, object_id: str, batch: PackTransaction) -> None:
        """Add an object to a pack, however large it is.

        Raises:
            ObjectError: It is missing or damaged.
        """
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

    def _open(self, object_id: str) -> "tuple[_Location, ObjectStream]":
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
        return sum(pack.offset_of(key) is not None for pack in self.all.values()) > 1

    def _verify_chunks(
        self, object_id: str, location: "_Location", stream: ObjectStream
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
        self.mark_suspect(pack)

    def _find_locations(self, object_id: str) -> "Iterator[_Location]":
        """Yield the locations of an object: the likeliest first, damaged packs last."""
        if not is_object_id(object_id):
            return
        key = bytes.fromhex(object_id)
        known = self.trusted
        likely = self.small.get(key)
        yield from _in_packs(key, known if likely is None else (likely, *known))
        self.refresh()
        yield from _in_packs(key, [pack for pack in self.trusted if pack not in known])
        yield _Location(None, partial(loose_stream, self._loose(object_id)))
        suspects = [pack for pack in self.all.values() if pack.is_suspect]
        yield from _in_packs(key, suspects)

    def _read_raw(self, object_id: str) -> PackedObject | None:
        """Return an object that can be copied without recompression, as most can."""
        key = bytes.fromhex(object_id)
        for pack in self.all.values():
            offset = pack.offset_of(key)
            if offset is not None:
                packed = pack.read_raw(offset)
                if packed is not None and hash_object(packed.kind, packed.content) == object_id:
                    return packed
        return None

    def _loose(self, object_id: str) -> Path:
        return self.directory.parent / object_id[:2] / object_id[2:]

    def _loose_directories(self) -> list[Path]:
        return sorted(self.directory.parent.glob("[0-9a-f][0-9a-f]"))


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

    def _find_locations(self, object_id: str) -> "Iterator[_Location]":
        if is_object_id(object_id):
            yield from _in_packs(bytes.fromhex(object_id), [self._pack])


class LayeredObjects(ObjectStore):
    """The objects of a store, below small ones that are found elsewhere; read-only."""

    def __init__(
        self, base: ObjectStore, find: Callable[[str], tuple[str, int, bytes] | None]
    ) -> None:
        """Read what `find` returns, kind, size and content, and else from `base`."""
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
            kind, size, data = found
            yield _Location(None, lambda: ObjectStream(kind, size, iter([data])))
        yield from self._base._find_locations(object_id)  # noqa: SLF001 # of the same class

    def _has_several_copies(self, object_id: str) -> bool:
        return self._base._has_several_copies(object_id)  # noqa: SLF001 # of the same class

    def _read_raw(self, object_id: str) -> PackedObject | None:
        return self._base._read_raw(object_id)  # noqa: SLF001 # of the same class

    def _mark_suspect(self, location: "_Location", failure: object) -> None:
        self._base._mark_suspect(location, failure)  # noqa: SLF001 # of the same class


class _Location(NamedTuple):
    """Where an object may be stored; `pack` is None for a loose object."""

    pack: PackReader | None
    open: Callable[[], ObjectStream]


def _in_packs(key: bytes, packs: Iterable[PackReader]) -> Iterator[_Location]:
    for pack in packs:
        offset = pack.offset_of(key)
        if offset is not None:
            yield _Location(pack, partial(pack.stream, offset))


def _check_kind(object_id: str, kind: str, wanted: str) -> None:
    if kind != wanted:
        raise ObjectError(f"Object is a {kind}, not a {wanted}: {object_id!r}")


def _worse(failure: object, error: Exception) -> object:
    """Return the failure to report: any other than that a loose file is missing."""
    return error if failure is None or isinstance(failure, FileNotFoundError) else failure


def _unreadable(object_id: str, failure: object) -> ObjectError:
    if failure is None or isinstance(failure, FileNotFoundError):
        return ObjectError(f"Object is missing: {object_id!r}")
    return ObjectError(f"Object is damaged: {object_id!r}: {failure}")
