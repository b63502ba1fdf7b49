"""The content-addressed object store: loose objects and packs that git can read."""

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
    PackSet,
    Stream,
    TooLargeError,
)
from weakincentives.gitstore.pack_writer import PackTransaction, hash_object
from weakincentives.posix import fault_point, open_regular

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


_ID = re.compile(r"[0-9a-f]{40}")
_WHOLE = 16 * 1024 * 1024  # larger objects are copied in chunks
_SMALL_PACK = 16 * 1024 * 1024  # larger packs are not merged
_MAX_SMALL_PACKS = 64
_ANOTHER = "its content has another id"
_log = logging.getLogger(__name__)


class ObjectError(WinkError, ValueError):
    """An object is missing or damaged."""


def is_object_id(text: str) -> bool:
    """Return whether `text` is a full id and nothing else."""
    return _ID.fullmatch(text) is not None


class ObjectStore:
    """The objects below one `objects` directory of a git repository.

    Any number of threads and processes may read. Who writes or removes must keep all
    others from doing so: the repository has a lock for it.
    """

    def __init__(self, directory: Path, *, durable: bool = True) -> None:
        """Use the objects in `directory`; `durable` brings new ones to the disk at once."""
        self._directory = directory
        self._durable = durable
        self._packs = PackSet(directory / "pack")

    @property
    def losses(self) -> int:
        """How often objects were found to be gone that had been here."""
        return self._packs.losses

    def __contains__(self, object_id: str) -> bool:
        """Return whether the object is here; its content is not looked at."""
        if not is_object_id(object_id):
            return False
        if self.is_packed(object_id):
            return True
        self.refresh()
        return self.is_packed(object_id) or self._loose(object_id).is_file()

    def is_packed(self, object_id: str) -> bool:
        """Return whether the object is in a pack that has been met already and is undamaged."""
        return self._packs.is_packed(bytes.fromhex(object_id))

    def read(self, object_id: str) -> tuple[str, bytes]:
        """Return kind and content of an object, verified against its id.

        Raises:
            ObjectError: It is missing, damaged, or too large to be held.
        """
        failure: object = None
        for place in self._places(object_id):
            try:
                kind, data = _whole(place.opened())
            except (PackError, OSError) as error:
                failure = _graver(failure, error)
                self._blame(place, error)
                continue
            if hash_object(kind, data) == object_id:
                return kind, data
            failure = _ANOTHER
            self._blame(place, failure)
        raise _unreadable(object_id, failure)

    def chunks(self, object_id: str) -> Iterator[bytes]:
        """Return the content of a blob in pieces, each about a megabyte at most.

        The last piece is handed on when all of the content has been verified: who gets
        to the end has got it undamaged.

        Raises:
            ObjectError: It is missing, damaged or no blob.
        """
        found = self.stream(object_id)
        if found.kind != "blob":
            raise ObjectError(f"Object is no blob but a {found.kind}: {object_id!r}")
        return found.chunks

    def size_of(self, object_id: str) -> int:
        """Return the size of an object as it says itself.

        Raises:
            ObjectError: It is missing or damaged.
        """
        return self._opened(object_id)[1].size

    def stream(self, object_id: str) -> Stream:
        """Return an object to be read; its chunks are verified, its inflater is not.

        Raises:
            ObjectError: It is missing or damaged; also while its chunks are read.
        """
        place, found = self._opened(object_id)
        if found.size > CHUNK_SIZE:
            return found._replace(chunks=self._verified(object_id, place, found))
        with suppress(PackError, OSError):
            data = b"".join(found.chunks)
            if hash_object(found.kind, data) == object_id:
                return found._replace(chunks=iter([data]))
        kind, data = self.read(object_id)
        return Stream(kind, len(data), iter([data]))

    def ids(self) -> Iterator[str]:
        """Yield the id of every object; one that is stored twice comes twice."""
        self.refresh()
        for pack in self._packs.all.values():
            yield from pack
        for directory in self._loose_directories():
            for path in sorted(directory.iterdir()):
                if is_object_id(directory.name + path.name):
                    yield directory.name + path.name

    def begin_pack(self, *, rewrite: bool = False) -> PackTransaction:
        """Return a place for new objects; nothing is visible before it is finished.

        Objects that are here are not written again, unless all are to be written
        `anew`. What killed writers left is removed.
        """
        self._packs.sweep()
        known = _nothing if rewrite else self.is_packed
        return PackTransaction(self._directory / "pack", known, durable=self._durable)

    def refresh(self, *, closely: bool = False) -> None:
        """Look for packs that have been added or removed; `closely` also for others' writing."""
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
        """Put the small packs into one, if there are many of them.

        Each time at least half of them go, and no pack is taken that is larger than all
        of those before it: what is stored is rewritten seldom.

        Raises:
            ObjectError: An object in them is damaged; nothing is changed.
        """
        if len(self._packs.all) < _MAX_SMALL_PACKS:
            return  # without looking: this is asked after every snapshot
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
        """Put objects into one new pack, then remove the packs `replaced`.

        Those of them that hold none of the objects go first: on a full disk the new
        pack needs their room.

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
        """Remove what is not in a pack."""
        for directory in self._loose_directories():
            shutil.rmtree(directory, ignore_errors=True)
            fault_point("objects.loosened")

    def close(self) -> None:
        """Let go of the packs; what is being read elsewhere stays readable."""
        self._packs.close()

    def _opened(self, object_id: str) -> "tuple[_Place, Stream]":
        """Open the first place of an object that can be read.

        A large one is handed on before it is verified, so of several it must be whole.
        """
        failure: object = None
        for place in self._places(object_id):
            try:
                found = place.opened()
                if found.size > CHUNK_SIZE and self._is_in_several(object_id):
                    for _ in self._verified(object_id, place, found):
                        pass
                    found = place.opened()
                return place, found
            except (PackError, OSError, ObjectError) as error:
                failure = _graver(failure, error)
                self._blame(place, error)
        if isinstance(failure, ObjectError):
            raise failure
        raise _unreadable(object_id, failure)

    def _is_in_several(self, object_id: str) -> bool:
        key = bytes.fromhex(object_id)
        return sum(pack.offset_of(key) is not None for pack in self._packs.all.values()) > 1

    def _verified(self, object_id: str, place: "_Place", stream: Stream) -> Iterator[bytes]:
        """Hand on the chunks, the last one when the id is known to be right."""
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
            self._blame(place, error)
            raise _unreadable(object_id, error) from error
        if digest.hexdigest() != object_id:
            self._blame(place, _ANOTHER)
            raise _unreadable(object_id, _ANOTHER)
        yield last

    def _blame(self, place: "_Place", failure: object) -> None:
        """Rely no more on a pack in which something was found to be damaged."""
        pack = place.pack
        if pack is None or pack.is_suspect or isinstance(failure, TooLargeError):
            return
        _log.warning("Pack is damaged, so what is needed of it is stored again: %s", failure)
        self._packs.distrust(pack)

    def _places(self, object_id: str) -> "Iterator[_Place]":
        """Yield where an object may be read: the likeliest place first, damaged packs last."""
        if not is_object_id(object_id):
            return
        key = bytes.fromhex(object_id)
        known = self._packs.trusted
        yield from _in_packs(key, known)
        self.refresh()
        yield from _in_packs(key, [pack for pack in self._packs.trusted if pack not in known])
        yield _Place(None, partial(loose_stream, self._loose(object_id)))
        suspects = [pack for pack in self._packs.all.values() if pack.is_suspect]
        yield from _in_packs(key, suspects)

    def _copy(self, object_id: str, batch: PackTransaction) -> None:
        packed = self._packed(object_id)
        if packed is not None:
            batch.add_raw(object_id, packed)
            return
        found = self.stream(object_id)
        if found.kind == "blob" and found.size > _WHOLE:
            batch.add_blob(found.size, found.chunks)
            return
        try:
            batch.add(found.kind, b"".join(found.chunks))
        except ObjectError:  # there may be an undamaged one in another place
            batch.add(*self.read(object_id))

    def _packed(self, object_id: str) -> PackedObject | None:
        """Return an object that can be taken over as it is; most can."""
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


class _Place(NamedTuple):
    """Where an object may be read; `pack` is None for a file of its own."""

    pack: Pack | None
    opened: Callable[[], Stream]


def _in_packs(key: bytes, packs: Iterable[Pack]) -> Iterator[_Place]:
    for pack in packs:
        offset = pack.offset_of(key)
        if offset is not None:
            yield _Place(pack, partial(pack.stream, offset))


def _whole(stream: Stream) -> tuple[str, bytes]:
    if stream.size > MAX_OBJECT_SIZE:
        raise TooLargeError(f"Object is too large to be held: {stream.size}")
    return stream.kind, b"".join(stream.chunks)


def _graver(failure: object, error: Exception) -> object:
    """Return what is worth telling of two failures: that it is nowhere else is not."""
    return error if failure is None or isinstance(failure, FileNotFoundError) else failure


def _unreadable(object_id: str, failure: object) -> ObjectError:
    if failure is None or isinstance(failure, FileNotFoundError):
        return ObjectError(f"Object is missing: {object_id!r}")
    return ObjectError(f"Object is damaged: {object_id!r}: {failure}")


def _nothing(object_id: str) -> bool:
    return False
