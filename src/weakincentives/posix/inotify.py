"""File change notification by the kernel: inotify, without a thread and without a library.

The kernel reports every change that is made by a path, by any process on this machine. It does
not report what other machines change on a network file system, what the server of a FUSE file
system changes behind it, and what happens in the layers below an overlay: `reports_all_changes`
accepts only file systems where changes are made through this kernel.
"""

import ctypes
import errno
import os
import struct
import sys
import weakref
from enum import IntFlag
from typing import NamedTuple

_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_BUFFER_SIZE = 256 * 1024
_LOCAL_FILE_SYSTEMS = frozenset(
    {
        0xEF53,  # ext2, ext3, ext4
        0x58465342,  # XFS
        0x9123683E,  # Btrfs
        0x01021994,  # tmpfs
        0xF2F52010,  # F2FS
    }
)
_libc = ctypes.CDLL(None, use_errno=True)


class Mask(IntFlag):
    """The kinds of events, and flags; the names are those of inotify(7)."""

    MODIFY = 0x00000002
    ATTRIB = 0x00000004
    CLOSE_WRITE = 0x00000008
    MOVED_FROM = 0x00000040
    MOVED_TO = 0x00000080
    CREATE = 0x00000100
    DELETE = 0x00000200
    UNMOUNT = 0x00002000
    OVERFLOW = 0x00004000
    IGNORED = 0x00008000
    ONLYDIR = 0x01000000
    DONT_FOLLOW = 0x02000000
    ISDIR = 0x40000000


class Event(NamedTuple):
    """One event; `name` is empty if it is about the watched file or directory itself.

    `mask` is a plain number, because a command may cause thousands of events.
    """

    watch: int
    mask: int
    cookie: int
    name: bytes


class Inotify:
    """An inotify instance: a queue of events in the kernel."""

    def __init__(self) -> None:
        """Create it without watches.

        Raises:
            OSError: The system has no inotify, or the user has too many instances.
        """
        if sys.platform != "linux":
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._descriptor = _checked(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, os.close, self._descriptor)

    @property
    def is_shared(self) -> bool:
        """Whether this process is a fork: events that it reads are missing in its parent."""
        return os.getpid() != self._owner

    def add(self, path: bytes, mask: Mask) -> int:
        """Watch a path; return the number of the watch, the same for the same inode.

        Raises:
            OSError: It does not exist, or the user has too many watches.
        """
        return _checked(_libc.inotify_add_watch(self._descriptor, path, int(mask)))

    def read(self) -> list[Event]:
        """Return all events since the last call."""
        events: list[Event] = []
        while True:
            try:
                data = os.read(self._descriptor, _BUFFER_SIZE)
            except BlockingIOError:
                return events
            position = 0
            while position < len(data):
                watch, mask, cookie, length = _EVENT.unpack_from(data, position)
                position += _EVENT.size + length
                name = data[position - length : position].rstrip(b"\0")
                events.append(Event(watch, mask, cookie, name))

    def close(self) -> None:
        """Close it; idempotent."""
        self._finalizer()


def reports_all_changes(descriptor: int) -> bool:
    """Return whether inotify reports every change on the file system of an open directory."""
    if sys.platform != "linux":
        return False
    buffer = ctypes.create_string_buffer(512)  # longer than `struct statfs`, which begins with it
    if _libc.fstatfs(descriptor, buffer) < 0:
        return False
    kind = int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder)
    return kind & 0xFFFFFFFF in _LOCAL_FILE_SYSTEMS


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
