"""Entries of a live directory: their states, comparison by content, and writer detection.

A person may change the directory at any time. So an entry is compared by reading it, never by
its times: a store through a memory mapping changes neither of them.
"""

import errno
import fcntl
import hashlib
import os
import resource
import signal
import stat
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from weakincentives.posix import (
    OpenDescriptor,
    RootedDirectory,
    join,
    make_accessible,
    os_error,
    pin,
    remove_leftovers,
    rename,
    restore_mode,
    set_mode,
    write_piece,
)

Place: TypeAlias = tuple[int, str]
"""An open directory and a name in it."""
ReadFile: TypeAlias = Callable[[int], str | None]
"""Reads an open file and returns its git blob id; None if it is not a file."""

MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})

_CHUNK = 1024 * 1024
_MAX_PASSING = 8  # more than one operation needs
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DISK_ERRORS = frozenset({errno.EIO, getattr(errno, "EUCLEAN", errno.EIO)})
# they would give a changed program the privileges of the old one; writing in place drops them
_PRIVILEGED_ATTRIBUTES = frozenset({"security.capability", "security.ima", "security.evm"})


class Readable(Protocol):
    """Content of a known size."""

    @property
    def size(self) -> int:
        """The number of bytes."""
        ...

    def read(self, offset: int, size: int, /) -> bytes:
        """Return up to `size` bytes from `offset`."""
        ...


@dataclass(frozen=True, slots=True)
class EntryState:
    """The state of a path: kind, permissions and content; by default absent."""

    kind: str = "absent"
    mode: int = 0
    size: int = 0
    """The size of a file; -1 if it is not known."""
    blob: str = ""
    """The git blob id of a file."""
    target: str = ""
    """The target of a link."""


def open_nothing() -> int | None:
    """Open nothing: the entry is not a file."""
    return None


@dataclass(frozen=True, slots=True)
class PathChange:
    """One path that changed, with its entry before and after.

    `before` is what came out when the path was changed, whoever put it there. The functions
    open the content of a file; they work only while the listener runs.
    """

    path: str
    before: EntryState
    after: EntryState
    open_before: Callable[[], int | None] = open_nothing
    """Opens the file before; the caller closes the descriptor. None if it was no file."""
    open_after: Callable[[], int | None] = open_nothing
    """Opens the file after, if `by_call` is False."""
    by_call: bool = True
    """Whether the change was made through the filesystem, and not by another program."""


class LiveTree:
    """The entries below a directory that other processes change; no path leads out of it.

    A parent directory stays open from its first use until `close`, so it is the same directory
    throughout, even if somebody renames it away, or away and back.
    """

    def __init__(self, root: RootedDirectory) -> None:
        """Work below `root`."""
        self.root: RootedDirectory = root
        self._parents: dict[str, int] = {}
        self._identities: dict[str, tuple[int, int]] = {}  # of parents that are not held
        self._passing: deque[str] = deque()  # those of them that are open now
        self._max_held = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        weakref.finalize(self, _close_all, self._parents)

    def close(self) -> None:
        """Close the parents."""
        _close_all(self._parents)

    def hold(self, directory: str, descriptor: int) -> None:
        """Use an open directory as the parent at this path; the tree closes it."""
        old = self._parents.pop(directory, None)
        if old is not None:
            os.close(old)
        self._parents[directory] = descriptor

    def open_parent(self, path: str) -> Place:
        """Return the open parent directory of `path`, and the name in it."""
        directory, _, name = path.rpartition("/")
        parent = self._parents.get(directory)
        if parent is None:
            parent = self.root.open_parent(path)[0]
            self._parents[directory] = parent
            if directory in self._identities or len(self._parents) > self._max_held:
                self._let_go(directory)
        return parent, name

    def _let_go(self, directory: str) -> None:
        """Hold fewer parents; one that is opened again must be the same directory."""
        found = os.fstat(self._parents[directory])
        identity = self._identities.setdefault(directory, (found.st_dev, found.st_ino))
        if identity != (found.st_dev, found.st_ino):
            os.close(self._parents.pop(directory))
            raise os_error(errno.ESTALE, directory, "The directory was replaced meanwhile")
        self._passing.append(directory)
        if len(self._passing) > _MAX_PASSING:
            os.close(self._parents.pop(self._passing.popleft()))

    def stat(self, path: str) -> os.stat_result | None:
        """Return the metadata of `path`, or None if it does not exist."""
        try:
            parent, name = self.open_parent(path)
            return os.stat(name, dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            if error.errno in MISSING:
                return None
            raise

    def is_directory(self, path: str) -> bool:
        """Return whether `path` is a directory."""
        found = self.stat(path) if path else os.fstat(self.root.descriptor)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def open_directory(self, path: str) -> int:
        """Open a directory; the caller closes it."""
        parent, name = self.open_parent(path or ".")
        return os.open(name, _DIRECTORY_FLAGS, dir_fd=parent)

    def set_mode(self, path: str, mode: int) -> None:
        """Set the permissions of an entry; a link is left alone."""
        set_mode_at(self.open_parent(path), mode)

    def rename(self, source: str, target: str, *, exclusive: bool = False) -> None:
        """Rename; with `exclusive`, raise FileExistsError if the target exists."""
        rename(self.open_parent(source), self.open_parent(target), exclusive=exclusive)

    def unlink(self, path: str) -> None:
        """Remove a file or link."""
        parent, name = self.open_parent(path)
        os.unlink(name, dir_fd=parent)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        parent, name = self.open_parent(path)
        os.rmdir(name, dir_fd=parent)

    def mkdir(self, path: str, mode: int) -> None:
        """Create a directory."""
        parent, name = self.open_parent(path)
        os.mkdir(name, mode, dir_fd=parent)

    def names(self, path: str) -> list[tuple[str, bool]]:
        """Return all names in a directory, and whether each is a directory."""
        with OpenDescriptor(self.open_directory(path)) as opened, os.scandir(opened) as entries:
            return [(each.name, each.is_dir(follow_symlinks=False)) for each in entries]

    def walk(self, top: str) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the path and metadata of an entry and of everything below it, parents first."""
        pending = [top]
        while pending:
            path = pending.pop()
            found = self.stat(path)
            if found is None:
                continue
            yield path, found
            if stat.S_ISDIR(found.st_mode):
                try:
                    names = sorted(self.names(path), reverse=True)
                except OSError as error:
                    if error.errno in MISSING | {errno.EACCES}:  # gone, or not accessible
                        continue
                    raise
                pending += [join(path, name) for name, _ in names]

    def remove_leftovers(self, path: str) -> None:
        """Remove the temporary files of dead processes from a directory."""
        with OpenDescriptor(self.open_directory(path)) as opened:
            remove_leftovers(opened)


def stat_at(place: Place) -> os.stat_result:
    """Return the metadata of an entry; a link is not followed."""
    return os.stat(place[1], dir_fd=place[0], follow_symlinks=False)


def set_mode_at(place: Place, mode: int) -> None:
    """Set the permissions of a file or directory; a link is left alone."""
    with pin(*place) as descriptor:
        if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
            set_mode(descriptor, mode)


def resembles(found: os.stat_result, facts: EntryState) -> bool:
    """Return whether the metadata of an entry matches an expected state."""
    if kind_of(found) != facts.kind:
        return False
    if facts.kind == "symlink":
        return True
    if facts.kind != "special" and stat.S_IMODE(found.st_mode) != facts.mode:
        return False
    return facts.kind != "file" or facts.size in (-1, found.st_size)


def describe(tree: LiveTree, path: str, read: ReadFile | None = None) -> EntryState:
    """Return the state of the entry at `path`; a file is read, as in `read_state`."""
    try:
        return read_state(tree.open_parent(path), read=read)
    except OSError as error:
        if error.errno in MISSING:
            return EntryState()
        raise


def matches(tree: LiveTree, path: str, facts: EntryState) -> bool:
    """Return whether the entry at `path` is exactly as expected; a file is read."""
    try:
        return matches_at(tree.open_parent(path), facts)
    except OSError as error:
        if error.errno in MISSING:
            return facts.kind == "absent"
        raise


def matches_at(place: Place, facts: EntryState) -> bool:
    """Return whether the entry at `place` is exactly as expected; a file is read."""
    try:
        found = stat_at(place)
    except FileNotFoundError:
        return facts.kind == "absent"
    if not resembles(found, facts):
        return False
    state = read_state(place, found)
    return (state.blob, state.target) == (facts.blob, facts.target)


def read_state(
    place: Place, found: os.stat_result | None = None, *, read: ReadFile | None = None
) -> EntryState:
    """Return the state of the entry at `place`, whose metadata may be known.

    A file is read by `read`, which returns its blob id; by default it is only hashed.
    """
    try:
        found = found or stat_at(place)
    except FileNotFoundError:
        return EntryState()
    kind, mode = kind_of(found), stat.S_IMODE(found.st_mode)
    if kind == "symlink":
        return EntryState(kind, target=_read_target(place) or "")
    if kind == "file":
        with open_file(place) as descriptor:
            return EntryState(kind, mode, found.st_size, (read or hash_file)(descriptor) or "")
    return EntryState(kind, mode)


def has_writer_at(place: Place) -> bool | None:
    """Return whether a process has a file open for writing; None if that is unknown."""
    try:
        with open_file(place) as descriptor:
            return is_written(descriptor)
    except OSError:
        return None


def is_written(descriptor: int) -> bool | None:
    """Return whether a process has an open file open for writing; None if that is unknown.

    The kernel grants a read lease only to the owner, and only while there is no writer: neither
    a descriptor nor a memory mapping whose descriptor is closed.
    """
    try:
        # a process that opens it for writing sends a signal, and SIGIO would kill us
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    except AttributeError:
        return None  # not supported by this system
    return False


def read_attributes(tree: LiveTree, path: str, *, strict: bool = False) -> dict[str, bytes]:
    """Return the extended attributes of a file that a new version keeps.

    Raises:
        OSError: `strict`, and the disk failed; otherwise what cannot be read counts as none.
    """
    with _ignore_errors(strict=strict):
        return read_attributes_at(tree.open_parent(path), strict=strict)
    return {}


def read_attributes_at(place: Place, *, strict: bool = False) -> dict[str, bytes]:
    """Return the extended attributes of a file, as `read_attributes` does."""
    found: dict[str, bytes] = {}
    parent, name = place
    with _ignore_errors(strict=strict), suppress(AttributeError):
        if not os.listxattr(f"/proc/self/fd/{parent}/{name}", follow_symlinks=False):
            return found  # most files have none
        with pin(parent, name) as pinned:
            link = f"/proc/self/fd/{pinned}"
            for each in os.listxattr(link):
                if each not in _PRIVILEGED_ATTRIBUTES:
                    with _ignore_errors(strict=strict):
                        found[each] = os.getxattr(link, each)
    return found


@contextmanager
def _ignore_errors(*, strict: bool) -> Generator[None, None, None]:
    """Ignore errors; if `strict`, not those of the disk."""
    try:
        yield
    except OSError as error:
        if strict and error.errno in _DISK_ERRORS:
            raise


def user_attributes(attributes: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the extended attributes that people and their programs set."""
    return {name: value for name, value in attributes.items() if name.startswith("user.")}


def set_attributes(descriptor: int, attributes: Mapping[str, bytes]) -> None:
    """Set extended attributes of an open file; system attributes only where permitted."""
    for name, value in attributes.items():
        try:
            os.setxattr(descriptor, name, value)
        except OSError as error:
            if name.startswith("user.") or error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EIO}:
                raise


def write_sparse(descriptor: int, content: Readable) -> None:
    """Write `content` to an empty file; blocks of zeros become holes."""
    for offset in range(0, content.size, _CHUNK):
        write_piece(descriptor, content.read(offset, _CHUNK))
    os.ftruncate(descriptor, content.size)


def _close_all(descriptors: dict[str, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])


def kind_of(found: os.stat_result) -> str:
    """Return the kind of an entry, as in `EntryState`."""
    mode = found.st_mode
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "special"


def _read_target(place: Place) -> str | None:
    try:
        return os.readlink(place[1], dir_fd=place[0])
    except OSError:
        return None


def hash_file(descriptor: int) -> str | None:
    """Return the git blob id of an open file, read from here on; None if it is not a file."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        return None
    return hash_content(found.st_size, iter(lambda: os.read(descriptor, _CHUNK), b""))


def hash_content(size: int, chunks: Iterable[bytes]) -> str:
    """Return the git blob id of content that comes in chunks."""
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def open_file(place: Place) -> OpenDescriptor:
    """Open a file for reading, as `open_at` does, until the end of the block."""
    return OpenDescriptor(open_at(place))


def open_at(place: Place) -> int:
    """Open a file for reading, even if its permissions keep its owner from that."""
    parent, name = place
    with suppress(PermissionError):
        return os.open(name, _READ_FLAGS, dir_fd=parent)
    with pin(parent, name) as pinned:
        before = make_accessible(pinned)
        try:
            return os.open(f"/proc/self/fd/{pinned}", _READ_FLAGS & ~os.O_NOFOLLOW)
        finally:
            restore_mode(pinned, before)
