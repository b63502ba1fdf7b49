"""File descriptors: close them in any case, lock them, read and write all of what is wanted.

A lock (`flock`) is advisory, and ends with its process. Containers use this module too, where
Python may be 3.10.
"""

import errno
import fcntl
import os
from abc import ABC, abstractmethod
from typing import TypeVar

T = TypeVar("T", bound="CloseOnExit")
_NO_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
"""The errors of file systems that have no locks, or none on directories."""
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class CloseOnExit(ABC):
    """A resource that is closed at the end of its with block."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release what it holds."""

    def __enter__(self: T) -> T:
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


def lock(descriptor: int, operation: int = fcntl.LOCK_EX) -> bool:
    """Apply an operation of `fcntl.flock`; return False if another process keeps it waiting.

    Where there are no locks, this does nothing and returns True.
    """
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Return whether a process has locked a file or directory; False if it cannot be opened."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return False
    with OpenDescriptor(descriptor):
        return not lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
