"""New objects on their way into one pack, which becomes visible in one step."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from weakincentives.filesystem.faults import reached
from weakincentives.filesystem.staging import sync_directory
from weakincentives.filesystem.store.deflating import deflated, deflated_parts
from weakincentives.filesystem.store.hidden import HiddenFile, sync_files
from weakincentives.filesystem.store.packing import PackWriter
from weakincentives.filesystem.store.packs import Packed

_OLDER_NS = 1_000_000_000


def id_of(kind: str, data: bytes) -> str:
    """Return the id that git gives to an object."""
    digest = hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)), usedforsecurity=False)
    digest.update(data)
    return digest.hexdigest()


class Batch:
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
        self._file: HiddenFile | None = None
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
        object_id = id_of(kind, data)
        if object_id not in self._added and not self._known(object_id):
            self._added.add(object_id)
            self._writer.add(object_id, kind, len(data), deflated(data))
        return object_id

    def add_packed(self, object_id: str, packed: Packed) -> None:
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

        self._writer.add_parts("blob", size, deflated_parts(counted()), named)
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
        reached("objects.packed")
        name = f"pack-{index[-40:-20].hex()}"
        with self._held, HiddenFile(self._directory, index) as indexed:
            reached("objects.indexed")
            self._publish(name, indexed, beside)
        return name

    def _publish(self, name: str, indexed: HiddenFile, beside: Sequence[int]) -> None:
        packed = self._file
        if packed is None:
            raise RuntimeError("Nothing has been written")
        _make_older(packed.descriptor, indexed.descriptor)
        self._sync(packed.descriptor, indexed.descriptor, *beside)
        indexed.name(self._directory / f"{name}.idx")
        reached("objects.named")
        packed.name(self._directory / f"{name}.pack")
        reached("objects.visible")
        if self._durable:
            sync_directory(self._directory)

    def _opened(self) -> int:
        self._file = self._held.enter_context(HiddenFile(self._directory))
        return self._file.descriptor

    def _sync(self, *descriptors: int) -> None:
        if self._durable:
            sync_files(descriptors)


def _make_older(pack: int, index: int) -> None:
    """Let a pack be older than its index: then whoever writes to it later is found out."""
    with suppress(OSError):
        found = os.fstat(index)
        os.utime(pack, ns=(found.st_atime_ns, found.st_mtime_ns - _OLDER_NS))
