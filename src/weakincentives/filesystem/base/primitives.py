"""What every backend must answer, and the errors when it has no answer.

A backend supplies three primitives to be read. It need not find out why something
failed: the shared code asks `_lookup` and raises the same error for every backend.
"""

import errno
from abc import ABC, abstractmethod
from typing import NoReturn

from weakincentives.filesystem.limits import DEFAULT_LIMITS, Limits
from weakincentives.filesystem.text import Content
from weakincentives.filesystem.types import Children, FileStat
from weakincentives.posix import display_path, os_error, parents_of

_PASSED_OVER = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EXDEV}
)


class Primitives(ABC):
    """The primitives of reading; paths are normalized, the root is the empty string."""

    def __init__(self, *, limits: Limits = DEFAULT_LIMITS) -> None:
        """Bound what is returned by `limits`."""
        self._limits = limits

    @property
    @abstractmethod
    def root(self) -> str:
        """Where the workspace is."""

    @property
    def limits(self) -> Limits:
        """What is allowed here."""
        return self._limits

    @abstractmethod
    def _lookup(self, path: str) -> FileStat | None:
        """Return what is at `path` without following links, or None."""

    @abstractmethod
    def _children(self, path: str) -> Children:
        """Return the names in a directory; OSError if it is none."""

    @abstractmethod
    def _open(self, path: str) -> Content:
        """Open a regular file; OSError if it is anything else."""

    def _blob_id(self, path: str) -> str | None:
        """Return the id that git gives to a file's content, if it is known without reading."""
        return None

    def _opened(self, path: str) -> Content:
        try:
            return self._open(path)
        except OSError:
            self._refuse_unless_file(path)
            raise

    def _refuse_missing(self, path: str) -> NoReturn:
        """Raise the reason why nothing is at `path`: a link on the way, or nothing there."""
        for parent in parents_of(path):
            found = self._lookup(parent)
            if found is None:
                break
            if found.is_symlink:
                raise link_error(found)
        raise os_error(errno.ENOENT, path)

    def _refuse_unless_file(self, path: str) -> None:
        found = self._lookup(path) or self._refuse_missing(path)
        if found.is_directory:
            raise os_error(errno.EISDIR, path)
        ensure_plain_entry(found)

    def _refuse_unless_directory(self, path: str) -> None:
        found = self._lookup(path) or self._refuse_missing(path)
        if found.is_symlink:
            raise link_error(found)
        if not found.is_directory:
            raise os_error(errno.ENOTDIR, path)


def is_skippable(error: OSError) -> bool:
    """Return whether a search goes on without what raised this: gone, replaced or forbidden."""
    return error.errno in _PASSED_OVER


def link_error(found: FileStat) -> OSError:
    """Return the refusal to follow a link."""
    target = display_path(found.link_target or "")
    text = f"Symbolic links are not followed, and this one points to {target!r}"
    return os_error(errno.EPERM, found.path, text)


def ensure_plain_entry(found: FileStat) -> None:
    """Raise PermissionError unless `found` is a file or a directory."""
    if found.is_symlink:
        raise link_error(found)
    if found.kind == "special":
        raise os_error(errno.EPERM, found.path, "Not a regular file (a pipe, socket or device)")
