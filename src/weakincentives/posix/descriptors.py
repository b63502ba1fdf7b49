"""File descriptors: close them in any case, and read and write all of what is wanted."""

import os
from abc import ABC, abstractmethod
from typing import Self


class CloseOnExit(ABC):
    """A resource that is closed at the end of its with block."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release what it holds."""

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class OpenDescriptor:
    """A descriptor that is closed at the end of its with block."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        """Own an open descriptor."""
        self._descriptor = descriptor

    def __enter__(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        """Close it."""
        os.close(self._descriptor)


def open_directory(path: str | os.PathLike[str]) -> OpenDescriptor:
    """Open a directory for a block; a link to one is followed."""
    return OpenDescriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def read_range(descriptor: int, offset: int, size: int) -> bytes:
    """Return `size` bytes from `offset`, fewer only at the end of the file."""
    data = os.pread(descriptor, size, offset)
    while 0 < len(data) < size:
        more = os.pread(descriptor, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def write_all(descriptor: int, data: bytes | bytearray) -> None:
    """Write all of `data`, however many calls that takes."""
    written = os.write(descriptor, data) if data else 0
    if written == len(data):
        return
    view = memoryview(data)[written:]
    while view:
        view = view[os.write(descriptor, view) :]
