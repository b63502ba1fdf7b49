"""Files, links and directories below a root: what they are, and whether they are in use."""

import errno
import fcntl
import hashlib
import os
import signal
import stat
import weakref
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from weakincentives.filesystem import Content, FileStat
from weakincentives.filesystem.diff import Side
from weakincentives.posix import (
    RootedDirectory,
    exchange,
    pin,
    remove_leftovers,
    rename,
    write_all,
)
from weakincentives.posix import set_mode as set_mode_of

Place: TypeAlias = tuple[int, str]
"""An open directory and a name in it."""

MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})

_PIECE = 1024 * 1024
_BLOCK = 4096  # what a hole in a sparse file is a multiple of
_ZEROS = bytes(_BLOCK)
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PINNING = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
# it would give a changed program the rights of the old one; a write in place removes it too
_NOT_COPIED = frozenset({"security.capability", "security.ima", "security.evm"})


@dataclass(frozen=True, slots=True)
class Facts:
    """What is expected at a path: its kind, permissions and content; nothing by default."""

    kind: str = "absent"
    mode: int = 0
    size: int = 0
    blob: str = ""
    """Git's id of the content of a file."""
    target: str = ""
    """Where a link points."""
    owner: tuple[int, int] = (-1, -1)
    """User and group of a directory."""


class Tree:
    """The entries below a directory; no path leads out of it.

    The directories that were used last stay open, until `look_again`.
    """

    def __init__(self, root: RootedDirectory) -> None:
        """Work below `root`."""
        self.root = root
        self._parents: dict[str, int] = {}
        weakref.finalize(self, _close_all, self._parents)

    def look_again(self) -> None:
        """Find directories anew by their paths: somebody may have renamed them."""
        _close_all(self._parents)

    def place(self, path: str) -> Place:
        """Return the directory that holds `path`, open, and the name in it."""
        directory, _, name = path.rpartition("/")
        parent = self._parents.get(directory)
        if parent is None:
            parent = self._parents[directory] = self.root.open_parent(path)[0]
        return parent, name

    def stat(self, path: str) -> os.stat_result | None:
        """Return the metadata of what is at `path`, or None if nothing is there."""
        try:
            parent, name = self.place(path)
            return os.stat(name, dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            if error.errno in MISSING:
                return None
            raise

    def is_directory(self, path: str) -> bool:
        """Return whether a directory is there."""
        return self.root.is_directory(path)

    def set_mode(self, path: str, mode: int) -> None:
        """Set the permissions of a directory; the root keeps its own."""
        with pin(*self.place(path)) as descriptor:
            if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
                set_mode_of(descriptor, mode)

    def rename(self, source: str, target: str, *, exclusive: bool = False) -> None:
        """Rename; `exclusive` raises FileExistsError where something is."""
        rename(self.place(source), self.place(target), exclusive=exclusive)

    def exchange(self, first: str, second: str) -> None:
        """Exchange what is at two paths in one step."""
        exchange(self.place(first), self.place(second))

    def unlink(self, path: str) -> None:
        """Remove a file or link."""
        parent, name = self.place(path)
        os.unlink(name, dir_fd=parent)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        parent, name = self.place(path)
        os.rmdir(name, dir_fd=parent)

    def mkdir(self, path: str, mode: int) -> None:
        """Make a directory."""
        parent, name = self.place(path)
        os.mkdir(name, mode, dir_fd=parent)

    def sync(self, path: str) -> None:
        """Bring the names in a directory to the disk."""
        opened = self.root.open_directory(path)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)

    def sweep(self, path: str) -> None:
        """Remove from a directory the temporary files of processes that are gone."""
        opened = self.root.open_directory(path)
        try:
            remove_leftovers(opened, [name for name, _ in self.names(path)])
        finally:
            os.close(opened)

    def names(self, path: str) -> Iterator[tuple[str, bool]]:
        """Yield the names in a directory, hidden ones too, and whether each is a directory."""
        opened = self.root.open_directory(path)
        try:
            with os.scandir(opened) as entries:
                found = [(each.name, each.is_dir(follow_symlinks=False)) for each in entries]
        finally:
            os.close(opened)
        yield from found


def facts_of(found: FileStat | None, state: Side) -> Facts:
    """Return what `found` is in `state`; a file is read only if git's id of it is not known."""
    if found is None:
        return Facts()
    if found.link_target is not None:
        return Facts("symlink", target=found.link_target)
    if not found.is_file:
        return Facts(found.kind, found.permissions)
    return Facts("file", found.permissions, found.size_bytes, state.blob_id(found))


def resembles(found: os.stat_result, facts: Facts) -> bool:
    """Return whether it can be what is expected, as far as metadata tell."""
    if _kind(found.st_mode) != facts.kind:
        return False
    if facts.kind == "symlink":
        return True
    if stat.S_IMODE(found.st_mode) != facts.mode:
        return False
    return facts.kind != "file" or found.st_size == facts.size


def matches(tree: Tree, path: str, facts: Facts) -> bool:
    """Return whether what is at `path` is exactly what is expected; a file is read.

    A file that its owner may not read is opened to him for that moment.
    """
    found = tree.stat(path)
    if found is None or not resembles(found, facts):
        return found is None and facts.kind == "absent"
    place = tree.place(path)
    if facts.kind == "symlink":
        return _target(place) == facts.target
    return facts.kind != "file" or _blob_id(place) == facts.blob


def has_writer(tree: Tree, path: str) -> bool | None:
    """Return whether some process has a file open for writing; None if that cannot be told.

    The kernel gives a lease for reading only while nobody writes, and only to the owner.
    """
    try:
        with _opened(tree.place(path)) as descriptor:
            # whoever opens it for writing meanwhile must not kill us: SIGIO would
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    except AttributeError:
        return None  # not on this system
    return False


def attributes_of(tree: Tree, path: str) -> dict[str, bytes]:
    """Return the extended attributes of a file that a new version of it keeps."""
    found: dict[str, bytes] = {}
    with suppress(OSError, AttributeError):
        parent, name = tree.place(path)
        pinned = os.open(name, _PINNING, dir_fd=parent)
        try:
            link = f"/proc/self/fd/{pinned}"
            for each in os.listxattr(link):
                if each not in _NOT_COPIED:
                    with suppress(OSError):
                        found[each] = os.getxattr(link, each)
        finally:
            os.close(pinned)
    return found


def set_attributes(descriptor: int, attributes: Mapping[str, bytes]) -> None:
    """Give an open file extended attributes; those of the system only where that is allowed."""
    for name, value in attributes.items():
        try:
            os.setxattr(descriptor, name, value)
        except OSError as error:
            if name.startswith("user.") or error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EIO}:
                raise


def write_sparse(descriptor: int, content: Content) -> None:
    """Write all of `content` to an empty file; blocks of zeros become holes."""
    for offset in range(0, content.size, _PIECE):
        piece = content.read(offset, _PIECE)
        if _ZEROS not in piece:
            write_all(descriptor, piece)
            continue
        for start in range(0, len(piece), _BLOCK):
            block = piece[start : start + _BLOCK]
            if block == _ZEROS:
                os.lseek(descriptor, _BLOCK, os.SEEK_CUR)
            else:
                write_all(descriptor, block)
    os.ftruncate(descriptor, content.size)


def _close_all(descriptors: dict[str, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "special"


def _target(place: Place) -> str | None:
    try:
        return os.readlink(place[1], dir_fd=place[0])
    except OSError:
        return None


def _blob_id(place: Place) -> str | None:
    """Return git's id of a file; None if it is no file any more."""
    with _opened(place) as descriptor:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        digest = hashlib.sha1(b"blob %d\0" % found.st_size, usedforsecurity=False)
        while piece := os.read(descriptor, _PIECE):
            digest.update(piece)
    return digest.hexdigest()


@contextmanager
def _opened(place: Place) -> Generator[int, None, None]:
    """Open a file for reading, closed as it may be to its owner."""
    parent, name = place
    try:
        descriptor = os.open(name, _READING, dir_fd=parent)
    except PermissionError:
        descriptor = _open_closed(parent, name)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_closed(parent: int, name: str) -> int:
    pinned = os.open(name, _PINNING, dir_fd=parent)
    try:
        link = Path(f"/proc/self/fd/{pinned}")
        mode = stat.S_IMODE(os.fstat(pinned).st_mode)
        link.chmod(mode | stat.S_IRUSR)
        try:
            return os.open(link, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            link.chmod(mode)
    finally:
        os.close(pinned)
