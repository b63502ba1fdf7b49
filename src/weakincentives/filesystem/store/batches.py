"""New objects on their way into one pack, which becomes visible in one step."""

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

from weakincentives.filesystem.faults import reached
from weakincentives.filesystem.leftovers import temporary_name
from weakincentives.filesystem.staging import sync_directory
from weakincentives.filesystem.store.deflating import LEVEL, deflated
from weakincentives.filesystem.store.packing import PackWriter

_BUFFER = 256 * 1024
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


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
        self._path = directory / temporary_name()
        self._file: BinaryIO = self._path.open("x+b", buffering=_BUFFER)
        self._writer = PackWriter(self._file)

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Drop what was not finished."""
        with suppress(OSError):  # on a full disk, for what nobody wants any more
            self._file.close()
        self._path.unlink(missing_ok=True)

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

    def add_blob(self, size: int, chunks: Iterable[bytes]) -> str:
        """Add a blob of `size` bytes that is too large to be held; return its id.

        Raises:
            ValueError: The chunks have another size together; nothing is added.
        """
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        deflater = zlib.compressobj(LEVEL)

        def parts() -> Iterator[bytes]:
            length = 0
            for chunk in chunks:
                digest.update(chunk)
                length += len(chunk)
                yield deflater.compress(chunk)
            yield deflater.flush()
            if length != size:
                raise ValueError(f"Content has another size than {size}: {length}")

        def named() -> str | None:
            object_id = digest.hexdigest()
            if object_id in self:
                return None
            self._added.add(object_id)
            return object_id

        self._writer.add_parts("blob", size, parts(), named)
        return digest.hexdigest()

    def finish(self) -> str | None:
        """Make the objects visible, all at once; return the name of the pack, if there is one.

        Data reach the disk before names. A pack is read where both of its files are, so
        the second rename is the one step that counts.
        """
        if not self._writer:
            return None
        index = self._writer.finish()
        self._sync(self._file)
        reached("objects.packed")
        name = f"pack-{index[-40:-20].hex()}"
        try:
            self._publish(name, index)
        finally:
            self._file.close()
        return name

    def _publish(self, name: str, index: bytes) -> None:
        hidden = self._directory / temporary_name()
        try:
            with hidden.open("xb") as file:
                file.write(index)
                file.flush()
                self._sync(file)
            reached("objects.indexed")
            hidden.rename(self._directory / f"{name}.idx")
        except BaseException:
            hidden.unlink(missing_ok=True)
            raise
        reached("objects.named")
        self._path.rename(self._directory / f"{name}.pack")
        reached("objects.visible")
        if self._durable:
            opened = os.open(self._directory, _DIRECTORY)
            try:
                sync_directory(opened)
            finally:
                os.close(opened)

    def _sync(self, file: BinaryIO) -> None:
        if self._durable:
            os.fsync(file.fileno())
