"""File operations inside a container, for a host that shares no directory with it.

It runs as a part of the runner and imports only the standard library. No operation follows a
symbolic link: every path is resolved one segment at a time from the open workspace. Permissions
never keep the owner out.
"""

import errno
import json
import os
import stat
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from weakincentives.posix.descriptors import CloseOnExit, OpenDescriptor, write_all
from weakincentives.posix.frames import encode_frame, split_frame

FILE, DIRECTORY, LINK, SPECIAL = "f", "d", "l", "s"
"""Kinds of entries."""

TEMPORARY_PREFIX = ".wink-container-"
"""Names with it are hidden: files on their way to their place."""

INLINE = 1024 * 1024
"""Files up to this size are sent when they are opened; larger ones are read in pieces."""

LARGE_FILE = 16 * 1024 * 1024
"""Files up to this size are sent with others; larger ones are opened."""

UNREADABLE, LARGE = -1, -2
"""Instead of the size of a file that is not sent with others."""

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1024 * 1024
_WITH_DATA = ("stage", "batch", "store")


def pack(value: object, data: bytes = b"") -> bytes:
    """Return a request or a reply as bytes: a frame of JSON, then data."""
    return encode_frame(json.dumps(value).encode()) + data


def unpack(payload: bytes) -> tuple[Any, bytes]:
    """Return the value and the data of a request or a reply.

    Raises:
        ValueError: It is malformed.
    """
    found = split_frame(payload, len(payload))
    if found is None:
        raise ValueError("A message is too short")
    text, end = found
    return json.loads(text), payload[end:]


class FileServer:
    """Serves file operations below one directory."""

    def __init__(self, root: str) -> None:
        """Serve the files of `root`."""
        self._root = root
        self._open: dict[int, int] = {}
        self._staged: dict[int, str] = {}
        self._count = 0
        self._operations: dict[str, Callable[..., tuple[object, bytes]]] = {
            "stat": self._stat,
            "list": self._list,
            "walk": self._walk,
            "open": self._open_file,
            "read": self._read,
            "close": self._close,
            "load": self._load,
            "stage": self._stage,
            "batch": self._batch,
        }
        self._changes: dict[str, Callable[..., None]] = {
            "store": self._store,
            "mkdir": self._make_directory,
            "link": self._make_link,
            "remove": self._remove,
            "move": self._move,
            "copy": self._copy,
            "chmod": self._change_mode,
            "pipe": self._make_pipe,
        }

    def handle(self, payload: bytes) -> bytes:
        """Return the reply to a request; an OSError becomes its number."""
        request, data = unpack(payload)
        try:
            name = request.pop("op")
            if name in _WITH_DATA:
                request["data"] = data
            value, reply = self._operations[name](**request)
            return pack({"value": value}, reply)
        except OSError as error:
            return pack({"errno": error.errno or errno.EIO})
        except UnicodeEncodeError:  # no file has such a name
            return pack({"errno": errno.ENOENT})
        except KeyError:  # a handle of an earlier container
            return pack({"errno": errno.EBADF})

    def _open_directory(self, path: str) -> OpenDescriptor:
        return OpenDescriptor(open_directory(self._root, path))

    # --- reading ---

    def _stat(self, path: str) -> tuple[object, bytes]:
        try:
            with Parent(self._root, path) as parent:
                return describe(parent.directory, parent.name), b""
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}:
                return None, b""
            raise
        except UnicodeEncodeError:
            return None, b""

    def _list(self, path: str) -> tuple[object, bytes]:
        with self._open_directory(path) as directory:
            return list(scan(directory)), b""

    def _walk(self, path: str) -> tuple[object, bytes]:
        """Return the time, and everything below a directory, each before those below it."""
        now = time.time_ns()
        found: list[tuple[str, object]] = []
        pending = [path]
        while pending:
            current = pending.pop()
            with self._open_directory(current) as directory:
                for name, facts in scan(directory):
                    below = f"{current}/{name}" if current else name
                    found.append((below, facts))
                    if facts[0] == DIRECTORY:
                        pending.append(below)
        return {"now": now, "entries": found}, b""

    def _open_file(self, path: str) -> tuple[object, bytes]:
        with Parent(self._root, path) as parent:
            descriptor = open_readable(parent.directory, parent.name)
        size = os.fstat(descriptor).st_size
        if size > INLINE:
            self._count += 1
            self._open[self._count] = descriptor
            return {"size": size, "handle": self._count}, b""
        with OpenDescriptor(descriptor):
            content = os.read(descriptor, INLINE + 1)
        return {"size": len(content), "handle": 0}, content

    def _read(self, handle: int, offset: int, size: int) -> tuple[object, bytes]:
        return {}, os.pread(self._open[handle], size, offset)

    def _close(self, handle: int) -> tuple[object, bytes]:
        os.close(self._open.pop(handle))
        return {}, b""

    def _load(self, paths: list[str], limit: int) -> tuple[object, bytes]:
        """Return the contents of the first of `paths`, up to about `limit` bytes together.

        The size of a file that cannot be read is `UNREADABLE`, of a large one `LARGE`.
        """
        sizes: list[int] = []
        contents: list[bytes] = []
        for path in paths:
            if sum(map(len, contents)) > limit:
                break
            try:
                with Parent(self._root, path) as parent:
                    descriptor = open_readable(parent.directory, parent.name)
            except OSError:
                sizes.append(UNREADABLE)
                continue
            if os.fstat(descriptor).st_size > LARGE_FILE:
                os.close(descriptor)
                sizes.append(LARGE)
                continue
            contents.append(read_all(descriptor))
            sizes.append(len(contents[-1]))
        return sizes, b"".join(contents)

    # --- writing ---

    def _stage(self, token: int, data: bytes) -> tuple[object, bytes]:
        """Append to a staged file, which a later `store` moves into place."""
        if not token:
            self._count += 1
            token = self._count
            self._staged[token] = f"{TEMPORARY_PREFIX}{token}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with (
            self._open_directory("") as root,
            OpenDescriptor(os.open(self._staged[token], flags, 0o600, dir_fd=root)) as file,
        ):
            write_all(file, data)
        return token, b""

    def _batch(self, changes: list[dict[str, Any]], data: bytes) -> tuple[object, bytes]:
        """Apply changes in order; each takes its `size` bytes of the data."""
        offset = 0
        for change in changes:
            name, size = change.pop("op"), change.pop("size", 0)
            if name in _WITH_DATA:
                change["data"] = data[offset : offset + size]
                offset += size
            self._changes[name](**change)
        return {}, b""

    def _store(
        self, path: str, *, mode: int | None, exclusive: bool, staged: int, data: bytes
    ) -> None:
        with Parent(self._root, path) as parent:
            before = mode_of(parent.directory, parent.name)
            if exclusive and before is not None:
                raise OSError(errno.EEXIST, "The path exists")
            wanted = mode if mode is not None else before if before is not None else 0o644
            opened, name = self._prepare(parent.directory, staged, data)
            with OpenDescriptor(opened) as source:
                try:
                    change_mode(source, name, wanted)
                    os.rename(name, parent.name, src_dir_fd=source, dst_dir_fd=parent.directory)
                except OSError:
                    os.unlink(name, dir_fd=source)
                    raise

    def _prepare(self, directory: int, staged: int, data: bytes) -> tuple[int, str]:
        """Return the directory and the name of a temporary file with the content."""
        if staged:
            return open_directory(self._root, ""), self._staged.pop(staged)
        self._count += 1
        name = f"{TEMPORARY_PREFIX}{self._count}"
        create_file(directory, name, data)
        return os.dup(directory), name

    def _make_directory(self, path: str) -> None:
        with Parent(self._root, path) as parent:
            os.mkdir(parent.name, 0o755, dir_fd=parent.directory)
            change_mode(parent.directory, parent.name, 0o755)  # whatever the umask

    def _make_link(self, path: str, target: str) -> None:
        with Parent(self._root, path) as parent:
            os.symlink(target, parent.name, dir_fd=parent.directory)

    def _remove(self, path: str) -> None:
        with Parent(self._root, path) as parent:
            self._count += 1
            hidden = f"{TEMPORARY_PREFIX}{self._count}"
            with self._open_directory("") as root:
                os.rename(parent.name, hidden, src_dir_fd=parent.directory, dst_dir_fd=root)
                remove_tree(root, hidden)

    def _move(self, path: str, goal: str) -> None:
        with Parent(self._root, path) as old, Parent(self._root, goal) as new:
            os.rename(old.name, new.name, src_dir_fd=old.directory, dst_dir_fd=new.directory)

    def _copy(self, path: str, goal: str) -> None:
        with Parent(self._root, path) as old, Parent(self._root, goal) as new:
            self._count += 1
            hidden = f"{TEMPORARY_PREFIX}{self._count}"
            with self._open_directory("") as root:
                try:
                    copy_tree((old.directory, old.name), (root, hidden))
                    os.rename(hidden, new.name, src_dir_fd=root, dst_dir_fd=new.directory)
                except BaseException:
                    remove_tree(root, hidden)
                    raise

    def _make_pipe(self, path: str) -> None:
        """Create a named pipe, for tests."""
        with Parent(self._root, path) as parent:
            os.mkfifo(parent.name, dir_fd=parent.directory)

    def _change_mode(self, path: str, mode: int) -> None:
        with Parent(self._root, path) as parent:
            change_mode(parent.directory, parent.name, mode)


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
