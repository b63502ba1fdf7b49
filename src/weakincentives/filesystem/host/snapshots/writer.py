"""Fill a new directory and capture it in the same pass: each file is read and written once.

Nothing is atomic or synced, because nobody else sees the directory before it is complete, and
because it can be filled again. Small files are copied by another process, so that a large copy
keeps two processors busy. It gets names and open directories, never a path. What it does not
copy, and everything that it was asked to copy when it ended early, is left to the caller.
"""

import os
import select
import socket
import stat
import subprocess
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from weakincentives.filesystem.host.files import Identity, identity_of, outlast_timestamp
from weakincentives.filesystem.host.snapshots.nodes import (
    Captured,
    CapturedDirectory,
    CapturedFile,
    sort_as_git,
    store_directory,
)
from weakincentives.filesystem.text import Content
from weakincentives.gitstore import PackTransaction
from weakincentives.posix import (
    RECORD,
    CloseOnExit,
    OpenDescriptor,
    RootedDirectory,
    create_small,
    encode_names,
    join,
    read_small,
    remove_partial,
    set_permissions,
    start_worker,
    worker_command,
    write_piece,
)

_CHUNK_SIZE = 1024 * 1024
_OWNER_ACCESS = 0o700
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SCRIPT = worker_command("weakincentives.posix.small_files")
_MAX_PENDING = 2  # requests: one that is worked on, and the next
_MAX_SECONDS = 60.0  # without a part of a response
_BUFFER = 256 * 1024


class CopiedFile(NamedTuple):
    """A file that the worker has copied."""

    identity: Identity
    blob: bytes
    """Git's object id of the content."""
    size: int
    deflated: bytes
    """The content as a zlib stream."""


@dataclass(slots=True)
class FileBatch:
    """Files of one directory to copy, and what was copied so far; None for what was not."""

    directory: str
    names: list[str]
    copied: list[CopiedFile | None] = field(default_factory=list[CopiedFile | None])


class CopyWorker(CloseOnExit):
    """Copies batches of files in another process; one that fails does nothing more."""

    def __init__(self) -> None:
        """Start the process."""
        self._pending: deque[FileBatch] = deque()
        self._connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.settimeout(_MAX_SECONDS)
        self._process: subprocess.Popen[bytes] | None = None
        with other:
            try:
                self._process = start_worker(_SCRIPT, stdin=other.fileno())
            except OSError:
                self._connection.close()

    @property
    def has_room(self) -> bool:
        """Whether it takes another batch now."""
        return self._process is not None and len(self._pending) < _MAX_PENDING

    def submit(self, batch: FileBatch, source: int, target: int) -> bool:
        """Ask for a copy of files between open directories; return False if it is not possible."""
        try:
            socket.send_fds(self._connection, [encode_names(batch.names)], [source, target])
        except OSError:
            self.close()
            return False
        self._pending.append(batch)
        return True

    def receive(self, *, wait: bool = False) -> Iterator[FileBatch]:
        """Yield the batches that are done; with `wait`, all of them.

        After a failure, all are done, and those that are not complete have fewer results than
        names.
        """
        while self._pending and self._process is not None and (wait or self._is_readable()):
            batch = self._pending[0]
            if self._read(batch) and len(batch.copied) == len(batch.names):
                yield self._pending.popleft()
        if self._process is None:
            while self._pending:
                yield self._pending.popleft()

    def _is_readable(self) -> bool:
        return bool(select.select([self._connection], [], [], 0)[0])

    def _read(self, batch: FileBatch) -> bool:
        try:
            part = self._connection.recv(_BUFFER)
        except OSError:
            part = b""
        if not part:
            self.close()
            return False
        batch.copied += _decode(part)
        return True

    def close(self) -> None:
        """End the process, and wait until it changes nothing any more."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        self._connection.close()


def _decode(part: bytes) -> Iterator[CopiedFile | None]:
    offset = 0
    while offset < len(part):
        size, length, blob, *identity = RECORD.unpack_from(part, offset)
        start = offset + RECORD.size
        offset = start + length
        device, inode, file_size, modified, changed, mode = identity
        found = (device, inode, file_size, modified, changed, mode)
        yield CopiedFile(found, blob, size, part[start:offset]) if length else None


@dataclass(frozen=True, slots=True)
class WrittenTree:
    """The capture of what was written."""

    captured: CapturedDirectory
    missed: frozenset[str]
    """Files that are not in it, because they changed while they were read."""
    changed_ns: int
    """The timestamp of the last change of a file."""

    def settle(self, directory: RootedDirectory) -> None:
        """Let every later change of a file show in its stat, or else forget that stat."""
        if outlast_timestamp(directory.descriptor, self.changed_ns):
            return
        for each in self.captured.directories():
            for child in each.children.values():
                if isinstance(child, CapturedFile) and child.identity is not None:
                    child.update_identity(child.identity)


class TreeWriter:
    """Writes entries below an empty directory; each directory is added before its entries.

    The entries of one directory should follow each other: it is opened once for all of them.
    """

    def __init__(self, directory: RootedDirectory, batch: PackTransaction) -> None:
        """Write below `directory`; the objects of the capture are added to `batch`."""
        self._directory = directory
        self._batch = batch
        self._children: dict[str, dict[str, Captured]] = {"": {}}
        self._permissions: dict[str, int] = {}
        self._missed: set[str] = set()
        self._changed_ns = 0  # the timestamp of the last file
        self._parent: str = ""
        self._descriptor = directory.open_directory("")

    def close(self) -> None:
        """Close the directory that is open."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def add_directory(self, path: str, permissions: int) -> None:
        """Create a directory; until `finish`, its owner has access in any case."""
        parent, name = self._enter(path)
        os.mkdir(name, permissions & 0o777 | _OWNER_ACCESS, dir_fd=parent)
        self._children[path] = {}
        self._permissions[path] = permissions

    def add_link(self, path: str, target: str) -> None:
        """Create a symbolic link."""
        parent, name = self._enter(path)
        os.symlink(target, name, dir_fd=parent)
        blob = self._batch.add("blob", os.fsencode(target))
        self._children[self._parent][name] = CapturedFile.link(name, blob)

    def add_file(
        self, path: str, content: Content, permissions: int, modified_ns: int | None
    ) -> None:
        """Create a file; blocks of zeros become holes."""
        parent, name = self._enter(path)
        descriptor = os.open(name, _NEW_FILE, permissions & 0o777, dir_fd=parent)
        with OpenDescriptor(descriptor):
            blob = self._write(descriptor, content)
            if modified_ns is not None:
                os.utime(descriptor, ns=(modified_ns, modified_ns))
            found = os.fstat(descriptor)
            if stat.S_IMODE(found.st_mode) != permissions:  # the umask, or a bit beyond the nine
                os.fchmod(descriptor, permissions)
                found = os.fstat(descriptor)
        if blob is None:
            self._missed.add(path)
            return
        self._add_file(self._parent, name, bytes.fromhex(blob), identity_of(found))

    def copy_files(self, source: int, directory: str, names: Iterable[str]) -> Iterator[bool]:
        """Copy regular files from the open directory `source`, with permissions and times.

        Yield for each of `names` whether it was copied. One that is large, has holes, has just
        been changed or replaced, or cannot be read is left to `add_file`.
        """
        target = self.open_directory(directory)
        device = os.fstat(source).st_dev
        for name in names:
            read = read_small(source, name, device, _CHUNK_SIZE)
            if read is None:
                yield False
                continue
            data, found = read
            identity = create_small(target, name, data, found)
            self._add_file(directory, name, bytes.fromhex(self._batch.add("blob", data)), identity)
            yield True

    def add_copied(self, batch: FileBatch) -> list[bool]:
        """Add what a worker has copied; return for each name whether it was copied."""
        for name in batch.names[len(batch.copied) :]:
            # what a worker that failed may have left of a file that it did not report
            remove_partial(self.open_directory(batch.directory), name)
        done = [False] * len(batch.names)
        for number, copied in enumerate(batch.copied):
            if copied is not None:
                self._batch.add_deflated(copied.blob, copied.size, copied.deflated)
                name = batch.names[number]
                self._add_file(batch.directory, name, copied.blob, copied.identity)
                done[number] = True
        return done

    def finish(self) -> "WrittenTree":
        """Set the permissions of directories, and return the capture of everything."""
        root = os.fstat(self._directory.descriptor)
        for path, permissions in reversed(self._permissions.items()):  # children first
            parent, name = self._enter(path)
            set_permissions(parent, name, permissions)
            self._children[self._parent][name] = self._complete(path, permissions)
        top = self._complete("", stat.S_IMODE(root.st_mode))
        return WrittenTree(top, frozenset(self._missed), self._changed_ns)

    def open_directory(self, path: str) -> int:
        """Return the descriptor of a directory, until another one is entered."""
        return self._enter(join(path, "."))[0]

    def _add_file(self, directory: str, name: str, blob: bytes, identity: Identity) -> None:
        self._changed_ns = max(self._changed_ns, identity[4])
        # its identity counts, though it is new: see `settle`
        self._children[directory][name] = CapturedFile.settled(name, blob, identity)

    def _complete(self, path: str, permissions: int) -> CapturedDirectory:
        children = sort_as_git(self._children.pop(path))
        return store_directory(self._batch.add, path, children, permissions)

    def _enter(self, path: str) -> tuple[int, str]:
        """Return the open parent directory of `path`, and the name in it."""
        parent, _, name = path.rpartition("/")
        if parent != self._parent:
            opened = self._directory.open_directory(parent)
            os.close(self._descriptor)
            self._descriptor, self._parent = opened, parent
        return self._descriptor, name

    def _write(self, descriptor: int, content: Content) -> str | None:
        """Write the content; return its blob id, or None if its size has changed."""
        end = 0

        def copy_piece(offset: int, size: int) -> bytes:
            nonlocal end
            piece = content.read(offset, size)
            write_piece(descriptor, piece)
            end += len(piece)
            return piece

        try:
            return self._batch.add_file(content.size, copy_piece)
        except ValueError:
            return None
        finally:
            # there may be a hole at its end; a file that was cut meanwhile gets no zeros
            os.ftruncate(descriptor, end)
