"""Guards: for as long as a call only reads, its workspace refuses to be changed.

A guard is a context-local value, because it belongs to the caller and not to the
filesystem: other threads go on writing. A filesystem that does not derive from our
classes cannot know of it, and is handed out behind a view.
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

_guarded: ContextVar[tuple[object, ...]] = ContextVar("guarded", default=())


def readonly(filesystem: Filesystem) -> AbstractContextManager[Filesystem]:
    """Refuse to change `filesystem` in this context; give it, or a view of it that refuses."""
    if isinstance(filesystem, ReadableFilesystem):
        return _Guard(filesystem)
    return nullcontext(_View(filesystem))


class _Guard:
    """A `with` block that only reads; many calls pay for it, so it is no generator."""

    __slots__ = ("_filesystem", "_token")

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem

    def __enter__(self) -> Filesystem:
        self._token = _guarded.set((*_guarded.get(), self._filesystem))
        return self._filesystem

    def __exit__(self, *_: object) -> None:
        _guarded.reset(self._token)


def ensure_writable(filesystem: object, path: str) -> None:
    """Return if `filesystem` may be changed at `path` in this context.

    Raises:
        ReadOnlyError: The caller only reads.
    """
    for each in _guarded.get():
        if each is filesystem:
            raise _refusal(path)


def _refusal(path: str) -> ReadOnlyError:
    return ReadOnlyError(
        errno.EROFS, "Only reading is allowed in this call", display_path(shorten_path(path))
    )


class _View:
    """Somebody else's filesystem, without what changes it."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem

    def __getattr__(self, name: str) -> Any:
        return self._refuse if name in CHANGING_METHODS else getattr(self._filesystem, name)

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

    def glob(self, pattern: str, *, path: str = ".", **more: Any) -> Sequence[GlobMatch]:
        return self._filesystem.glob(pattern, path=path, **more)

    def grep(
        self,
        pattern: str,
        *,
        path: str = ".",
        glob: str | None = None,
        max_matches: int | None = None,
        **more: Any,
    ) -> Sequence[GrepMatch]:
        return self._filesystem.grep(pattern, path=path, glob=glob, max_matches=max_matches, **more)

    def write(
        self,
        path: str,
        content: str,
        *,
        mode: WriteMode = "overwrite",
        create_parents: bool = True,
    ) -> WriteResult:
        raise _refusal(path)

    def write_bytes(
        self,
        path: str,
        content: bytes,
        *,
        mode: WriteMode = "overwrite",
        create_parents: bool = True,
    ) -> WriteResult:
        raise _refusal(path)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        raise _refusal(path)

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        raise _refusal(path)

    def _refuse(self, what: object = ".", *_: object, **__: object) -> NoReturn:
        raise _refusal(str(what))
