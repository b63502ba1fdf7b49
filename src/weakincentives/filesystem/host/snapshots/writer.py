"""Fill a new directory and capture it in the same pass: each file is read and written once.

Nothing is atomic or synced, because nobody else sees the directory before it is complete, and
because it can be filled again.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from weakincentives.filesystem.host.files import Identity, identity_of, outlast_timestamp
from weakincentives.filesystem.host.snapshots.copy_worker import FileBatch, remove_uncertain
from weakincentives.filesystem.host.snapshots.tree import (
    Captured,
    CapturedDirectory,
    CapturedFile,
    CapturedLink,
    directory_entry,
    sort_as_git,
    tree_content,
)
from weakincentives.filesystem.text import Content
from weakincentives.gitstore import PackTransaction
from weakincentives.posix import (
    RootedDirectory,
    check_time,
    create_small,
    join,
    read_small,
    set_permissions,
    write_piece,
)

_CHUNK_SIZE = 1024 * 1024
_OWNER_ACCESS = 0o700
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


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
        if not outlast_timestamp(directory.descriptor, self.changed_ns):
            _forget_unstable(self.captured)


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
        encoded = os.fsencode(target)
        blob = self._batch.add("blob", encoded)
        self._children[self._parent][name] = CapturedLink.of(name, blob, encoded)

    def add_file(
        self, path: str, content: Content, permissions: int, modified_ns: int | None
    ) -> None:
        """Create a file; blocks of zeros become holes."""
        parent, name = self._enter(path)
        descriptor = os.open(name, _NEW_FILE, permissions & 0o777, dir_fd=parent)
        try:
            blob = self._write(descriptor, content)
            if modified_ns is not None:
                os.utime(descriptor, ns=(modified_ns, modified_ns))
            found = os.fstat(descriptor)
            if stat.S_IMODE(found.st_mode) != permissions:  # the umask, or a bit beyond the nine
                os.fchmod(descriptor, permissions)
                found = os.fstat(descriptor)
        finally:
            os.close(descriptor)
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
            self._add_file(directory, name, self._batch.add_small_blob(data), identity)
            yield True

    def add_copied(self, batch: FileBatch) -> list[bool]:
        """Add what a worker has copied; return for each name whether it was copied."""
        if len(batch.copied) < len(batch.names):
            remove_uncertain(batch, self.open_directory(batch.directory))
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
        tree = self._batch.add("tree", tree_content(children))
        entry = directory_entry(path.rpartition("/")[2], tree)
        return CapturedDirectory(entry, children, permissions, frozenset())

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
        size = content.size
        if size <= _CHUNK_SIZE:
            data = content.read(0, size)
            if write_piece(descriptor, data):
                os.ftruncate(descriptor, len(data))
            return self._batch.add("blob", data)
        try:
            return self._batch.add_blob(size, _copy_pieces(content, descriptor))
        except ValueError:
            return None


def _copy_pieces(content: Content, descriptor: int) -> Iterator[bytes]:
    """Yield a large file in pieces, each of which is written first."""
    written = 0
    for offset in range(0, content.size, _CHUNK_SIZE):
        check_time("Copy")
        piece = content.read(offset, _CHUNK_SIZE)
        write_piece(descriptor, piece)
        written += len(piece)
        yield piece
    # there may be a hole at its end; a file that was cut meanwhile gets no zeros
    os.ftruncate(descriptor, written)


def _forget_unstable(captured: CapturedDirectory) -> None:
    """Forget the stat of each file that could change without a visible change of its stat."""
    pending = [captured]
    while pending:
        for child in pending.pop().children.values():
            if isinstance(child, CapturedDirectory):
                pending.append(child)
            elif isinstance(child, CapturedFile) and child.identity is not None:
                child.update_identity(child.identity)
