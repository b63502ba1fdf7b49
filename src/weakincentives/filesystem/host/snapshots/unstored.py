"""A state that is known and not stored: what a restore begins from when the store is full."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from weakincentives.gitstore import ObjectStore, PackedObject, PackTransaction, hash_object

_SMALL = 4096  # bytes: the targets of links are never longer


class UnstoredBatch(PackTransaction):
    """Objects that get their ids and are written nowhere; trees and small blobs are held."""

    def __init__(self, objects: ObjectStore) -> None:
        """Hold what is not among `objects`."""
        super().__init__(Path(), objects.is_packed, durable=False)
        self.held: dict[str, tuple[str, bytes]] = {}
        self.sizes: dict[str, int] = {}

    def add(self, kind: str, data: bytes) -> str:
        """Return the id of an object."""
        object_id = hash_object(kind, data)
        if object_id not in self:
            self._added.add(object_id)
            self.sizes[object_id] = len(data)
            if kind != "blob" or len(data) <= _SMALL:
                self.held[object_id] = kind, data
        return object_id

    def add_blob(self, size: int, chunks: Iterable[bytes]) -> str:
        """Return the id of a blob of `size` bytes.

        Raises:
            ValueError: The chunks have another size together.
        """
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        length = 0
        for chunk in chunks:
            digest.update(chunk)
            length += len(chunk)
        if length != size:
            raise ValueError(f"Content has another size than {size}: {length}")
        object_id = digest.hexdigest()
        self._added.add(object_id)
        self.sizes[object_id] = size
        return object_id

    def add_raw(self, object_id: str, packed: PackedObject) -> None:
        """Hold an object that is packed already."""
        self.add(packed.kind, packed.content)

    def finish(self, also_sync: Sequence[int] = ()) -> str | None:
        """Make nothing visible: there is nothing."""
        return None


class OverlaidObjects(ObjectStore):
    """The objects of a store, and those that a batch holds."""

    def __init__(self, directory: Path, batch: UnstoredBatch) -> None:
        """Read what is in `batch`, or else in the `objects` directory of a repository."""
        super().__init__(directory)
        self._batch = batch

    def read(self, object_id: str) -> tuple[str, bytes]:
        """Return kind and content of an object.

        Raises:
            ObjectError: It is neither held nor stored, or damaged.
        """
        return self._batch.held.get(object_id) or super().read(object_id)

    def size_of(self, object_id: str) -> int:
        """Return the size of an object.

        Raises:
            ObjectError: It is neither known nor stored.
        """
        size = self._batch.sizes.get(object_id)
        return super().size_of(object_id) if size is None else size
