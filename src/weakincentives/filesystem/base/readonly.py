# the protocol dictates the signatures of methods that only raise
# ruff: noqa: ARG002
"""Read-only mode for one caller, as a context variable.

It belongs to the caller and not to the filesystem, so other threads keep writing. A filesystem
that does not derive from our base classes does not check the variable; it is wrapped in a
read-only view instead.
"""

import errno
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, NoReturn

from weakincentives.filesystem.base.readable import ReadableFilesystem, ReadOnlyError
from weakincentives.filesystem.protocol import CHANGING_METHODS, Filesystem
from weakincentives.filesystem.types import (
    FileEntry,
    FileStat,
    GlobMatch,
    GrepMatch,
    ReadBytesResult,
    ReadResult,
    WriteMode,
    WriteResult,
)
from weakincentives.posix import display_path, shorten_path

_read_only_filesystems: ContextVar[tuple[object, ...]] = ContextVar(
    "read_only_filesystems", default=()
)


def readonly(filesystem: Filesystem) -> AbstractContextManager[Filesystem]:
    """Make `filesystem` read-only in this context; yield it, or a read-only view of it."""
    if isinstance(filesystem, ReadableFilesystem):
        return _ReadOnlyScope(filesystem)
    return nullcontext(_ReadOnlyView(filesystem))


def read_only_view(filesystem: Filesystem) -> Filesystem:
    """Return a view of `filesystem` that is read-only for every caller."""
    return _ReadOnlyView(filesystem)


class _ReadOnlyScope:
    """A read-only `with` block; a class, because a generator is slower and every call pays."""

    __slots__ = ("_filesystem", "_token")

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem

    def __enter__(self) -> Filesystem:
        self._token = _read_only_filesystems.set((*_read_only_filesystems.get(), self._filesystem))
        return self._filesystem

    def __exit__(self, *_: object) -> None:
        _read_only_filesystems.reset(self._token)


def ensure_writable(filesystem: object, path: str) -> None:
    """Check that `filesystem` may be changed at `path` in this context.

    Raises:
        ReadOnlyError: This context is read-only.
    """
    for each in _read_only_filesystems.get():
        if each is filesystem:
            raise _read_only_error(path)


def _read_only_error(path: str) -> ReadOnlyError:
    return ReadOnlyError(errno.EROFS, "This call is read-only", display_path(shorten_path(path)))


class _ReadOnlyView:
    """A read-only view of any filesystem."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem

    def __getattr__(self, name: str) -> Any:
        return self._raise if name in CHANGING_METHODS else getattr(self._filesystem, name)

    @property
    def root(self) -> str:
        return self._filesystem.root

    @property
    def read_only(self) -> bool:
        return True

    def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, encoding: str = "utf-8"
    ) -> ReadResult:
        return self._filesystem.read(path, offset=offset, limit=limit, encoding=encoding)

    def read_bytes(
        self, path: str, *, offset: int = 0, limit: int | None = None
    ) -> ReadBytesResult:
        return self._filesystem.read_bytes(path, offset=offset, limit=limit)

    def exists(self, path: str) -> bool:
        return self._filesystem.exists(path)

    def stat(self, path: str) -> FileStat:
        return self._filesystem.stat(path)

    def list(self, path: str = ".") -> Sequence[FileEntry]:
        return self._filesystem.list(path)

    def glob(self, pattern: str, *, path: str = ".", **options: Any) -> Sequence[GlobMatch]:
        return self._filesystem.glob(pattern, path=path, **options)

    def grep(
        self,
        pattern: str,
        *,
        path: str = ".",
        glob: str | None = None,
        max_matches: int | None = None,
        **options: Any,
    ) -> Sequence[GrepMatch]:
        return self._filesystem.grep(
            pattern, path=path, glob=glob, max_matches=max_matches, **options
        )

    def write(
        self,
        path: str,
        content: str,
        *,
        mode: WriteMode = "overwrite",
        create_parents: bool = True,
    ) -> WriteResult:
        raise _read_only_error(path)

    def write_bytes(
        self,
        path: str,
        content: bytes,
        *,
        mode: WriteMode = "overwrite",
        create_parents: bool = True,
    ) -> WriteResult:
        raise _read_only_error(path)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        raise _read_only_error(path)

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        raise _read_only_error(path)

    def _raise(self, what: object = ".", *_: object, **__: object) -> NoReturn:
        raise _read_only_error(str(what))
