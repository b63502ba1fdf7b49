"""Entries of a directory inside a container, by descriptor: facts, content, copies, removal.

It runs as a part of the runner and imports only the standard library. Nothing follows a symbolic
link, and permissions never keep the owner out.
"""

import errno
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from weakincentives.posix.descriptors import CloseOnExit, OpenDescriptor, write_all

FILE, DIRECTORY, LINK, SPECIAL = "f", "d", "l", "s"
"""Kinds of entries."""

TEMPORARY_PREFIX = ".wink-container-"
"""Names with it are hidden: files on their way to their place."""

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1024 * 1024


def open_directory(root: str, path: str) -> int:
    """Open a directory below `root` without following links.

    Raises:
        OSError: It is not a directory.
    """
    descriptor = os.open(root, _PATH | os.O_DIRECTORY)
    for segment in path.split("/") if path else ():
        with OpenDescriptor(descriptor) as above:
            descriptor = os.open(segment, _PATH | os.O_DIRECTORY, dir_fd=above)
    return descriptor


class Parent(CloseOnExit):
    """The open directory above a path, and the last segment of it."""

    def __init__(self, root: str, path: str) -> None:
        """Open it; the root itself is `.` in the root."""
        above, _, name = path.rpartition("/")
        self.name: str = name or "."
        self.directory: int = open_directory(root, above)

    def close(self) -> None:
        """Close the directory."""
        os.close(self.directory)


class Facts(NamedTuple):
    """What the runner reports about an entry; times are in nanoseconds."""

    kind: str
    size: int
    permissions: int
    modified: int
    changed: int
    created: int
    inode: int
    target: str


def describe(directory: int, name: str) -> Facts:
    """Return the facts of an entry."""
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    kind = SPECIAL
    target = ""
    if stat.S_ISREG(found.st_mode):
        kind = FILE
    elif stat.S_ISDIR(found.st_mode):
        kind = DIRECTORY
    elif stat.S_ISLNK(found.st_mode):
        kind, target = LINK, os.readlink(name, dir_fd=directory)
    size = found.st_size if kind == FILE else 0
    times = found.st_mtime_ns, found.st_ctime_ns, found.st_ctime_ns
    return Facts(kind, size, stat.S_IMODE(found.st_mode), *times, found.st_ino, target)


def scan(directory: int) -> Iterator[tuple[str, Facts]]:
    """Yield the names in a directory with their facts."""
    with _grant_access(directory):
        opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        with OpenDescriptor(opened) as listing:
            for name in os.listdir(listing):  # noqa: PTH208 # a descriptor has no path
                if name.startswith(TEMPORARY_PREFIX):
                    continue
                try:
                    yield name, describe(listing, name)
                except FileNotFoundError:
                    continue  # it is gone meanwhile


@contextmanager
def _grant_access(directory: int) -> Generator[None, None, None]:
    """Grant the owner access to a directory while it is in use."""
    mode = stat.S_IMODE(os.fstat(directory).st_mode)
    is_closed = mode & 0o500 != 0o500
    if is_closed:
        _set_mode(directory, mode | 0o700)
    try:
        yield
    finally:
        if is_closed:
            _set_mode(directory, mode)


def _set_mode(descriptor: int, mode: int) -> None:
    os.chmod(f"/proc/self/fd/{descriptor}", mode)  # noqa: PTH101 # pathlib takes long to import


def open_readable(directory: int, name: str) -> int:
    """Open a regular file for reading, whatever its permissions are."""
    try:
        descriptor = os.open(name, _READ | os.O_NONBLOCK, dir_fd=directory)
    except PermissionError:
        mode = mode_of(directory, name)
        if mode is None:
            raise
        change_mode(directory, name, mode | 0o400)
        try:
            descriptor = os.open(name, _READ | os.O_NONBLOCK, dir_fd=directory)
        finally:
            change_mode(directory, name, mode)
    found = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(found):
        os.close(descriptor)
        raise OSError(errno.EISDIR if stat.S_ISDIR(found) else errno.EPERM, "Not a regular file")
    return descriptor


def mode_of(directory: int, name: str) -> int | None:
    """Return the permissions of a file, or None if there is nothing."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return stat.S_IMODE(found.st_mode)


def change_mode(directory: int, name: str, mode: int) -> None:
    """Change permissions of a file or directory; a link is left alone."""
    with OpenDescriptor(os.open(name, _PATH, dir_fd=directory)) as descriptor:
        if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
            _set_mode(descriptor, mode)


def read_all(descriptor: int) -> bytes:
    """Return the content of an open file, and close it."""
    with OpenDescriptor(descriptor):
        parts: list[bytes] = []
        while part := os.read(descriptor, _CHUNK):
            parts.append(part)
        return b"".join(parts)


def create_file(directory: int, name: str, data: bytes) -> None:
    """Create a file that only its owner can read."""
    with OpenDescriptor(os.open(name, _NEW_FILE, 0o600, dir_fd=directory)) as file:
        write_all(file, data)


def remove_tree(directory: int, name: str) -> None:
    """Remove an entry with everything below it, whatever its permissions are."""
    try:
        os.unlink(name, dir_fd=directory)
        return
    except (IsADirectoryError, PermissionError):
        pass
    change_mode(directory, name, 0o700)
    opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    with OpenDescriptor(opened) as below:
        for each in os.listdir(below):  # noqa: PTH208 # a descriptor has no path
            remove_tree(below, each)
    os.rmdir(name, dir_fd=directory)


def copy_tree(source: tuple[int, str], goal: tuple[int, str]) -> None:
    """Copy an entry with everything below it; special files are left out."""
    kind, _, mode, *_, target = describe(*source)
    directory, name = goal
    if kind == LINK:
        os.symlink(target, name, dir_fd=directory)
    elif kind == FILE:
        create_file(directory, name, read_all(open_readable(*source)))
        change_mode(directory, name, mode)
    elif kind == DIRECTORY:
        os.mkdir(name, 0o700, dir_fd=directory)
        with (
            OpenDescriptor(os.open(source[1], _PATH | os.O_DIRECTORY, dir_fd=source[0])) as old,
            OpenDescriptor(os.open(name, _PATH | os.O_DIRECTORY, dir_fd=directory)) as new,
        ):
            for each, _ in scan(old):
                copy_tree((old, each), (new, each))
        change_mode(directory, name, mode)
