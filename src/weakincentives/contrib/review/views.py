"""A state as a review sees it: some of it is hidden, and some files are others."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from weakincentives.contrib.review.entries import write_sparse
from weakincentives.filesystem import (
    BytesContent,
    Children,
    Content,
    FileStat,
    HostFilesystem,
    ReadableFilesystem,
)
from weakincentives.filesystem.host.files import HostFile, Identity, is_stable
from weakincentives.filesystem.state import State
from weakincentives.posix import RootedDirectory, join, store_file


@dataclass(frozen=True, slots=True)
class Version:
    """A file as it is on one side."""

    content: bytes
    permissions: int

    def stat(self, path: str) -> FileStat:
        """Return its metadata."""
        size = len(self.content)
        return FileStat(path, True, False, size_bytes=size, permissions=self.permissions)


class FilteredFilesystem(ReadableFilesystem):
    """A state without what is hidden, and without pipes, sockets and devices."""

    def __init__(
        self,
        whole: ReadableFilesystem,
        hides: Callable[[str], bool],
        shows: Callable[[FileStat], FileStat] = lambda found: found,
    ) -> None:
        """Show of `whole` what is not at or below a path that `hides` is true of.

        Metadata is what `shows` makes of it.
        """
        super().__init__(limits=whole.limits)
        self._root = whole.root
        self._whole = State(whole)
        self._hides = hides
        self._shows = shows

    @property
    def root(self) -> str:
        """Where the whole is."""
        return self._root

    def _lookup(self, path: str) -> FileStat | None:
        found = None if self._hides(path) else self._whole.lookup(path)
        return None if found is None or found.kind == "special" else self._shows(found)

    def _children(self, path: str) -> Children:
        kinds: dict[str, list[str]] = {"file": [], "directory": [], "symlink": [], "special": []}
        for name, found in self._whole.children(path).items():
            if not self._hides(join(path, name)):
                kinds[found.kind].append(name)
        return Children(kinds["file"], kinds["directory"], kinds["symlink"])

    def _open(self, path: str) -> Content:
        return self._whole.open(path)

    def _blob_id(self, path: str) -> str | None:
        found = self._lookup(path)
        return None if found is None else self._whole.known_id(found)


class ReplacedFilesystem(FilteredFilesystem):
    """A state in which some files are others."""

    def __init__(self, whole: ReadableFilesystem, replaced: Mapping[str, Version]) -> None:
        """Show `replaced` where `whole` has other files."""
        super().__init__(whole, lambda path: False)
        self._replaced = replaced

    def _lookup(self, path: str) -> FileStat | None:
        other = self._replaced.get(path)
        return super()._lookup(path) if other is None else other.stat(path)

    def _open(self, path: str) -> Content:
        other = self._replaced.get(path)
        return super()._open(path) if other is None else BytesContent(other.content)

    def _blob_id(self, path: str) -> str | None:
        return None if path in self._replaced else super()._blob_id(path)


_PLAIN_BITS = 0o777
_OPEN = 0o700


class PreservingFilesystem(HostFilesystem):
    """A host directory; names, sizes and permissions of what is put into it are not bound."""

    def put(self, found: FileStat, source: State) -> None:
        """Make a file, link or directory what `found` is in `source`; its parent is there.

        A directory is open to its owner until `set_permissions` closes it. Blocks of zeros
        in a file become holes.
        """
        with self._lock:
            if found.is_directory:
                self._make_directory(found.path)
                self._set_permissions(found.path, found.permissions | _OPEN)
            elif found.link_target is not None:
                self._make_link(found.path, found.link_target)
            else:
                self._put_file(found, source)

    def set_time(self, path: str, when: datetime) -> None:
        """Set when a file was changed last."""
        with self._lock, self._changing(path, keep=False) as (parent, name):
            seconds = when.timestamp()
            os.utime(name, (seconds, seconds), dir_fd=parent, follow_symlinks=False)

    def set_permissions(self, path: str, permissions: int) -> None:
        """Set the permissions of a file or directory."""
        with self._lock:
            self._set_permissions(path, permissions)

    def _put_file(self, found: FileStat, source: State) -> None:
        plain = found.permissions & _PLAIN_BITS
        with source.open(found.path) as content, self._changing(found.path) as (parent, name):
            store_file(
                parent, name, lambda target: write_sparse(target, content), permissions=plain
            )
        if plain != found.permissions:
            self._set_permissions(found.path, found.permissions)


class OriginalFilesystem(PreservingFilesystem):
    """The original, to look at: nothing is changed by it, and nothing recovered.

    It remembers what each file looked like when it was opened last, so that a file that
    has been compared need not be read again.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Open the directory for reading."""
        super().__init__(root, read_only=True)
        self.seen: dict[str, Identity] = {}
        """How a file looked that had been the same for long enough when it was opened."""

    @property
    def directory(self) -> RootedDirectory:
        """The directory itself."""
        return self._directory

    def _open(self, path: str) -> HostFile:
        opened = super()._open(path)
        if is_stable(opened.identity):
            self.seen[path] = opened.identity
        else:
            self.seen.pop(path, None)
        return opened
