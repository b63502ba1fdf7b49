"""A directory of the host that takes over what another state has, exactly as it is."""

import os
from collections.abc import Iterator
from datetime import datetime

from weakincentives.filesystem import FileStat, HostFilesystem
from weakincentives.filesystem.states import State
from weakincentives.filesystem.text import Content

_PIECE = 1024 * 1024
_PLAIN_BITS = 0o777
_OPEN = 0o700


class ExactFilesystem(HostFilesystem):
    """A host directory; names, sizes and permissions of what is put into it are not bound."""

    def put(self, found: FileStat, source: State, *, is_new: bool = False) -> None:
        """Make a file, link or directory what `found` is in `source`; its parent is there.

        A directory is open to its owner until `set_permissions` closes it. A file or link
        takes the place of another, unless it `is_new`.

        Raises:
            FileExistsError: It `is_new`, and somebody has just put something there.
        """
        with self._lock:
            if found.is_directory:
                self._make_directory(found.path)
                self._set_permissions(found.path, found.permissions | _OPEN)
            elif found.link_target is not None:
                self._make_link(found.path, found.link_target)
            else:
                self._put_file(found, source, is_new)

    def set_time(self, path: str, when: datetime) -> None:
        """Set when a file was changed last."""
        with self._lock, self._changing(path, keep=False) as (parent, name):
            seconds = when.timestamp()
            os.utime(name, (seconds, seconds), dir_fd=parent, follow_symlinks=False)

    def take_away(self, path: str) -> None:
        """Remove what is at `path`."""
        with self._lock:
            self._remove(path)

    def set_permissions(self, path: str, permissions: int) -> None:
        """Set the permissions of a file or directory."""
        with self._lock:
            self._set_permissions(path, permissions)

    def _put_file(self, found: FileStat, source: State, is_new: bool) -> None:
        plain = found.permissions & _PLAIN_BITS
        with source.open(found.path) as content:
            if content.size <= _PIECE:
                data = content.read(0, content.size)
                self._store(found.path, data, permissions=plain, exclusive=is_new)
            else:
                self._store_pieces(found.path, _pieces(content), permissions=plain)
        if plain != found.permissions:
            self._set_permissions(found.path, found.permissions)


def _pieces(content: Content) -> Iterator[bytes]:
    for offset in range(0, content.size, _PIECE):
        yield content.read(offset, _PIECE)
