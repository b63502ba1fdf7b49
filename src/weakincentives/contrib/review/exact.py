"""A directory of the host that takes over what another state has, exactly as it is."""

import os
from datetime import datetime

from weakincentives.contrib.review.entries import write_sparse
from weakincentives.filesystem import FileStat, HostFilesystem
from weakincentives.filesystem.hostfile import HostFile, Identity, has_settled
from weakincentives.filesystem.rooted import RootedDirectory
from weakincentives.filesystem.staging import store_file
from weakincentives.filesystem.states import State

_PLAIN_BITS = 0o777
_OPEN = 0o700


class ExactFilesystem(HostFilesystem):
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


class OriginalFilesystem(ExactFilesystem):
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
        if has_settled(opened.identity):
            self.seen[path] = opened.identity
        else:
            self.seen.pop(path, None)
        return opened
