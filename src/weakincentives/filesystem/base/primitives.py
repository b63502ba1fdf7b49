"""Abstract read primitives of a backend, and the errors derived from them.

A backend needs three primitives to be readable. It need not explain its failures: the shared
code calls `_lookup` and raises the same error for every backend.
"""

import errno
from abc import ABC, abstractmethod
from typing import NoReturn

from weakincentives.filesystem.limits import DEFAULT_LIMITS, Limits
from weakincentives.filesystem.text import Content
from weakincentives.filesystem.types import Children, FileStat, FilesystemSnapshot
from weakincentives.posix import display_path, join, os_error, parents_of

_SKIPPABLE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EXDEV}
)


class Primitives(ABC):
    """The read primitives; paths are normalized, and the root is the empty string."""

    def __init__(self, *, limits: Limits = DEFAULT_LIMITS) -> None:
        """Limit results by `limits`."""
        self._limits = limits

    @property
    @abstractmethod
    def root(self) -> str:
        """The directory of the workspace; `/` if it is not on disk."""

    @property
    def limits(self) -> Limits:
        """The limits of this filesystem."""
        return self._limits

    @abstractmethod
    def _lookup(self, path: str) -> FileStat | None:
        """Return the entry at `path`, without following links; None if there is none."""

    @abstractmethod
    def _children(self, path: str) -> Children:
        """Return the names in a directory; OSError if it is not one."""

    @abstractmethod
    def _open(self, path: str) -> Content:
        """Open a regular file; OSError if it is anything else."""

    def _stats(self, path: str) -> dict[str, FileStat]:
        """Return the entries of a directory by name; OSError if it is not one."""
        names = (name for group in self._children(path) for name in group)
        found = ((name, self._lookup(join(path, name))) for name in names)
        return {name: stat for name, stat in found if stat is not None}

    def _has_same_tree(self, path: str, other: "Primitives") -> bool:
        """Return whether the directory is known to be the same in `other`, with all below it."""
        del path, other  # for backends that know ids of directories
        return False

    def _tree_id(self) -> str | None:
        """Return an id of all names, contents and permissions, if it is known without a walk."""
        return None

    def _blob_id(self, path: str) -> str | None:
        """Return git's object id of a file's content, if it is known without reading the file."""
        del path  # for backends that know ids
        return None

    def _changed_since(self, snapshot: FilesystemSnapshot) -> list[str] | None:
        """Return the paths that may differ from a snapshot, if that is known without a diff.

        Everything at and below them is compared. None means everything.
        """
        del snapshot  # for backends that track changes
        return None

    def _open_file(self, path: str) -> Content:
        try:
            return self._open(path)
        except OSError:
            self._ensure_file(path)
            raise

    def _raise_not_found(self, path: str) -> NoReturn:
        """Raise the reason why `path` was not found: a link above it, or no such entry."""
        for parent in parents_of(path):
            found = self._lookup(parent)
            if found is None:
                break
            if found.is_symlink:
                raise link_error(found)
        raise os_error(errno.ENOENT, path)

    def _ensure_file(self, path: str) -> None:
        found = self._lookup(path) or self._raise_not_found(path)
        if found.is_directory:
            raise os_error(errno.EISDIR, path)
        ensure_plain_entry(found)

    def _ensure_directory(self, path: str) -> None:
        found = self._lookup(path) or self._raise_not_found(path)
        if found.is_symlink:
            raise link_error(found)
        if not found.is_directory:
            raise os_error(errno.ENOTDIR, path)


def is_skippable(error: OSError) -> bool:
    """Return whether a search skips the entry: it is gone, was replaced, or is not readable."""
    return error.errno in _SKIPPABLE


def link_error(found: FileStat) -> OSError:
    """Return the error for a symbolic link, which is never followed."""
    target = display_path(found.link_target or "")
    text = f"Symbolic links are not followed, and this one points to {target!r}"
    return os_error(errno.EPERM, found.path, text)


def ensure_plain_entry(found: FileStat) -> None:
    """Raise PermissionError unless `found` is a file or a directory."""
    if found.is_symlink:
        raise link_error(found)
    if found.kind == "special":
        raise os_error(errno.EPERM, found.path, "Not a regular file (a pipe, socket or device)")
