"""An archive as a read-only filesystem, for restoring, comparing and browsing."""

import errno
import os
from pathlib import Path
from threading import Lock

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
from weakincentives.filesystem.manifest import ArchiveManifest
from weakincentives.filesystem.text import BytesContent, Content, StreamedContent
from weakincentives.filesystem.types import Children, FileStat
from weakincentives.posix import CloseOnExit, os_error, shorten_path


class ArchiveFilesystem(ReadableFilesystem, CloseOnExit):
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

    def _lookup(self, path: str) -> FileStat | None:
        node = self._find(path)
        if node is None:
            return None
        digest = node.sha256 if isinstance(node, ArchivedFile) else ""
        return FileStat(
            path,
            is_file=isinstance(node, ArchivedFile),
            is_directory=isinstance(node, ArchivedFolder),
            size_bytes=node.member.size if isinstance(node, ArchivedFile) else 0,
            modified_at=self.manifest.created_at,
            permissions=0o777 if isinstance(node, ArchivedLink) else node.permissions,
            link_target=node.target if isinstance(node, ArchivedLink) else None,
            hasher=(lambda: digest) if isinstance(node, ArchivedFile) else None,
        )

    def _children(self, path: str) -> Children:
        node = self._find(path)
        if not isinstance(node, ArchivedFolder):
            raise os_error(errno.ENOTDIR, path)
        nodes = node.children.items()
        kinds = ArchivedFile, ArchivedFolder, ArchivedLink
        return Children(*([name for name, each in nodes if type(each) is kind] for kind in kinds))

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


class _CompressedContent(StreamedContent):
    """A file of an archive."""

    __slots__ = ("_descriptor", "_name")

    def __init__(self, descriptor: int, member: ZipMember, start: int) -> None:
        """Own `descriptor`."""
        super().__init__(MemberStream(descriptor, member, start), member.size)
        self._descriptor = descriptor
        self._name = member.name

    def close(self) -> None:
        os.close(self._descriptor)

    def _next_chunk(self) -> bytes:
        chunk = self._stream.read_chunk()
        if not chunk:
            raise ArchiveError(f"Entry is truncated: {shorten_path(self._name)!r}")
        return chunk


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns
