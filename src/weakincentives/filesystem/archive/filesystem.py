"""An archive as a read-only filesystem, for restoring, comparing and browsing."""

import errno
import os
from bisect import bisect_right
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import Self

from weakincentives.filesystem.archive.format import (
    DEFAULT_ARCHIVE_LIMITS,
    ArchiveError,
    ArchiveLimits,
    ZipMember,
    error_context,
)
from weakincentives.filesystem.archive.tree import (
    ArchivedFile,
    ArchivedFolder,
    ArchivedLink,
    ArchivedNode,
)
from weakincentives.filesystem.archive.verify import read_archive
from weakincentives.filesystem.archive.zip_reader import MemberStream
from weakincentives.filesystem.base import ReadableFilesystem
from weakincentives.filesystem.limits import DEFAULT_LIMITS, Limits
from weakincentives.filesystem.manifest import (
    ArchiveManifest,
)
from weakincentives.filesystem.text import BytesContent, Content
from weakincentives.filesystem.types import Children, FileStat
from weakincentives.posix import os_error, shorten_path

_CHECKPOINT_INTERVAL = 8 * 1024 * 1024  # bytes between two positions that can be seeked to


class ArchiveFilesystem(ReadableFilesystem):
    """The content of an archive; it is fully verified when it is opened."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        archive_limits: ArchiveLimits = DEFAULT_ARCHIVE_LIMITS,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """Open an archive.

        Args:
            path: The ZIP file; symbolic links are not followed.
            archive_limits: Limits on its decompressed size.
            limits: How much one operation returns.

        Raises:
            ArchiveError: It is not an archive, or is damaged or unsafe.
        """
        super().__init__(limits=limits)
        self._path = Path(path)
        with error_context(self._path):
            state = read_archive(self._path, archive_limits)
        self.manifest: ArchiveManifest = state.manifest
        self._root_node = state.root
        self._last = ("", state.root)  # the directory of the last lookup
        self._descriptor = state.descriptor
        self._identity = _identity(state.descriptor)
        self._lock = Lock()
        self._is_closed = False

    @property
    def root(self) -> str:
        """The ZIP file."""
        return str(self._path)

    def close(self) -> None:
        """Close the file; nothing can be read afterwards."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._descriptor)

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _lookup(self, path: str) -> FileStat | None:
        node = self._find(path)
        date = self.manifest.created_at
        if node is None:
            return None
        if isinstance(node, ArchivedFolder):
            return FileStat(
                path,
                is_file=False,
                is_directory=True,
                modified_at=date,
                permissions=node.permissions,
            )
        if isinstance(node, ArchivedLink):
            return FileStat(
                path,
                is_file=False,
                is_directory=False,
                modified_at=date,
                permissions=0o777,
                link_target=node.target,
            )
        digest = node.sha256
        return FileStat(
            path,
            is_file=True,
            is_directory=False,
            size_bytes=node.member.size,
            modified_at=date,
            permissions=node.permissions,
            hasher=lambda: digest,
        )

    def _children(self, path: str) -> Children:
        node = self._find(path)
        if not isinstance(node, ArchivedFolder):
            raise os_error(errno.ENOTDIR, path)
        files: list[str] = []
        directories: list[str] = []
        links: list[str] = []
        for name, child in node.children.items():
            if isinstance(child, ArchivedFile):
                files.append(name)
            elif isinstance(child, ArchivedFolder):
                directories.append(name)
            else:
                links.append(name)
        return Children(files, directories, links)

    def _open(self, path: str) -> Content:
        node = self._find(path)
        if not isinstance(node, ArchivedFile):
            raise os_error(errno.ENOENT, path)
        if self._is_closed:
            raise os_error(errno.EBADF, path, "Archive is closed")
        if node.data is not None:
            return BytesContent(node.data)
        with self._lock:  # keeps other threads from closing it
            if self._is_closed:
                raise os_error(errno.EBADF, path, "Archive is closed")
            if _identity(self._descriptor) != self._identity:
                raise ArchiveError(f"Archive has changed since it was opened: {self.root!r}")
            return _CompressedContent(os.dup(self._descriptor), node.member, node.start)

    def _find(self, path: str) -> ArchivedNode | None:
        if not path:
            return self._root_node
        parent, _, name = path.rpartition("/")
        last, folder = self._last
        if last != parent:
            folder = self._folder(parent)
            if folder is None:
                return None
            self._last = (parent, folder)
        return folder.children.get(name)

    def _folder(self, path: str) -> ArchivedFolder | None:
        node: ArchivedNode | None = self._root_node
        for segment in path.split("/") if path else ():
            if not isinstance(node, ArchivedFolder):
                return None
            node = node.children.get(segment)
        return node if isinstance(node, ArchivedFolder) else None


class _CompressedContent(Content):
    """A file that is decompressed as it is read; a seek back starts at a checkpoint."""

    __slots__ = ("_at", "_buffer", "_checkpoints", "_descriptor", "_member", "_stream")

    def __init__(self, descriptor: int, member: ZipMember, start: int) -> None:
        """Own `descriptor`."""
        self._descriptor = descriptor
        self._member = member
        self._stream = MemberStream(descriptor, member, start)
        self._checkpoints = [(0, self._stream.copy())]
        self._at = 0
        self._buffer = b""

    @property
    def size(self) -> int:
        return self._member.size

    def read(self, offset: int, size: int) -> bytes:
        end = min(offset + size, self.size)
        if offset < self._at:
            self._rewind(offset)
        parts: list[bytes] = []
        while offset < end:
            skipped = offset - self._at
            part = self._buffer[skipped : skipped + end - offset]
            if part:
                parts.append(part)
                offset += len(part)
            else:
                self._advance()
        return b"".join(parts)

    def close(self) -> None:
        os.close(self._descriptor)

    def _advance(self) -> None:
        self._at += len(self._buffer)
        if self._at - self._checkpoints[-1][0] >= _CHECKPOINT_INTERVAL:
            self._checkpoints.append((self._at, self._stream.copy()))
        self._buffer = self._stream.read_chunk()
        if not self._buffer:
            raise ArchiveError(f"Entry is truncated: {shorten_path(self._member.name)!r}")

    def _rewind(self, offset: int) -> None:
        index = bisect_right(self._checkpoints, offset, key=itemgetter(0)) - 1
        self._at, stream = self._checkpoints[index]
        self._stream = stream.copy()
        self._buffer = b""


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns
