# the protocol dictates the signatures of methods that only raise
# ruff: noqa: ARG002
"""Reading over the primitives of any backend, and read-only mode for one caller.

Read-only mode is a context variable: it belongs to the caller and not to the filesystem, so other
threads keep writing. A filesystem that does not derive from our base classes does not check the
variable; it is wrapped in a read-only view instead.
"""

import errno
import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NoReturn

from weakincentives.errors import WinkError
from weakincentives.filesystem.base.searchable import SearchableFilesystem
from weakincentives.filesystem.limits import READ_ENTIRE_FILE
from weakincentives.filesystem.paths import InvalidPathError, normalize_path
from weakincentives.filesystem.protocol import CHANGING_METHODS, Filesystem
from weakincentives.filesystem.text import (
    BLOCK,
    BinaryContentError,
    Content,
    Page,
    load_part,
    read_page,
)
from weakincentives.filesystem.types import (
    FileEntry,
    FileStat,
    GlobMatch,
    GrepMatch,
    LineStart,
    ReadBytesResult,
    ReadResult,
    Results,
    WriteMode,
    WriteResult,
)
from weakincentives.posix import (
    TimeLimitError,
    check_time,
    display_path,
    early_time_limit,
    join,
    shorten_path,
)

_HASH_CHUNK = 1024 * 1024

read_only_filesystems: ContextVar[tuple[object, ...]] = ContextVar(
    "read_only_filesystems", default=()
)


class ReadOnlyError(WinkError, PermissionError):
    """The filesystem, or the tool call that uses it, is read-only."""


class _ReadOnlyMethods:
    """The methods of the protocol that change something; all of them raise ReadOnlyError."""

    def write(
        self, path: str, content: str, *, mode: WriteMode = "overwrite", create_parents: bool = True
    ) -> WriteResult:
        """Raise ReadOnlyError."""
        self._raise_read_only(path)

    def write_bytes(
        self,
        path: str,
        content: bytes,
        *,
        mode: WriteMode = "overwrite",
        create_parents: bool = True,
    ) -> WriteResult:
        """Raise ReadOnlyError."""
        self._raise_read_only(path)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Raise ReadOnlyError."""
        self._raise_read_only(path)

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Raise ReadOnlyError."""
        self._raise_read_only(path)

    def _raise_read_only(self, path: str) -> NoReturn:
        key = normalize_path(path)
        raise ReadOnlyError(errno.EROFS, "Filesystem is read-only", display_path(shorten_path(key)))


class ReadableFilesystem(_ReadOnlyMethods, SearchableFilesystem):
    """A filesystem that can be read and searched: the base class of a read-only backend."""

    @property
    def read_only(self) -> bool:
        """Whether writes raise ReadOnlyError."""
        return True

    def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, encoding: str = "utf-8"
    ) -> ReadResult:
        """Return a page of text: `limit` lines from line `offset`, which counts from 0.

        Lines after the page are counted in the next `max_count_bytes` only; if the file is
        longer, `total_is_exact` is False.

        Raises:
            LimitExceededError: The page is too large for memory; nothing was read.
            TimeLimitError: The page was not found in time.
        """
        check_time("Read")
        key = normalize_path(path)
        count = _check_page(offset, self._limits.default_read_limit if limit is None else limit)
        with self._open_file(key) as content:
            try:
                page = self._page(content, key, offset, count, encoding)
            except UnicodeError as error:
                raise BinaryContentError(
                    f"{display_path(key)!r} has binary content that is not {encoding} text"
                    f" ({error}); use read_bytes"
                ) from None
            except LookupError:
                raise ValueError(f"Unknown encoding: {encoding!r}") from None
        text, total, exact = page
        truncated = count != READ_ENTIRE_FILE and offset + count < total
        return ReadResult(text, key, total, offset, count, truncated, exact)

    def read_bytes(
        self, path: str, *, offset: int = 0, limit: int | None = None
    ) -> ReadBytesResult:
        """Return `limit` bytes from byte `offset`; no limit means to the end.

        Raises:
            LimitExceededError: The bytes do not fit into memory; nothing was read.
        """
        check_time("Read")
        key = normalize_path(path)
        count = _check_page(offset, READ_ENTIRE_FILE if limit is None else limit)
        with self._open_file(key) as content:
            size = content.size
            wanted = size - offset if count == READ_ENTIRE_FILE else min(count, size - offset)
            data = load_part(content, offset, wanted, key, self._limits) if wanted > 0 else b""
        return ReadBytesResult(data, key, size, offset, count, offset + len(data) < size)

    def line_start(self, path: str, line: int) -> LineStart:
        """Return the byte offset of `line`, counted from 0, and the number of lines.

        Past the last line it is the size. Reading bytes from there on shows a page without
        loading its lines, however long they are. Lines are counted as `read` counts them.

        Raises:
            TimeLimitError: The line was not found in time.
        """
        check_time("Read")
        _check_page(line, 0)
        key = normalize_path(path)
        with self._open_file(key) as content, early_time_limit(self._limits.max_read_seconds):
            index = content.line_index()
            try:
                start = index.find(line, content) or 0
            except TimeLimitError:
                raise page_timeout_error(key, line, content.size) from None
            return LineStart(start, *index.count(content, start + self._limits.max_count_bytes))

    def exists(self, path: str) -> bool:
        """Return whether the path exists; a link does, whatever it points to."""
        try:
            return self._lookup(normalize_path(path)) is not None
        except (InvalidPathError, PermissionError):
            return False

    def stat(self, path: str) -> FileStat:
        """Return the metadata of an entry; a link is not followed."""
        key = normalize_path(path)
        found = self._lookup(key) or self._raise_not_found(key)
        return found if key else replace(found, path=".")

    def content_hash(self, path: str) -> str:
        """Return the SHA-256 of a file's bytes in hexadecimal."""
        with self._open_file(normalize_path(path)) as content:
            return content_hash(content)

    def list(self, path: str = ".") -> Results[FileEntry]:
        """Return the entries of a directory, sorted by name."""
        check_time("List")
        key = normalize_path(path)
        try:
            return self._entries(key, self._limits.max_list_entries)
        except OSError:
            self._ensure_directory(key)
            raise

    def _page(self, content: Content, path: str, offset: int, limit: int, encoding: str) -> Page:
        if content.size <= BLOCK:
            return read_page(content, offset, limit, encoding, self._limits, path)
        try:
            with early_time_limit(self._limits.max_read_seconds):
                return read_page(content, offset, limit, encoding, self._limits, path)
        except TimeLimitError:
            raise page_timeout_error(path, offset, content.size) from None

    def _entries(self, path: str, limit: int) -> Results[FileEntry]:
        """Return up to `limit` sorted entries of a directory; OSError if it is not one."""
        files, directories, symlinks, specials = self._children(path)
        names = sorted([*files, *directories, *symlinks, *specials])
        found = ((name, self._lookup(join(path, name))) for name in names[:limit])
        entries = [_entry(name, stat) for name, stat in found if stat is not None]
        return Results(entries, reason="entry limit" if len(names) > limit else None)


def content_hash(content: Content) -> str:
    """Return the SHA-256 of `content` in hexadecimal."""
    digest = hashlib.sha256()
    for offset in range(0, content.size, _HASH_CHUNK):
        check_time("Read")
        digest.update(content.read(offset, _HASH_CHUNK))
    return digest.hexdigest()


def _check_page(offset: int, limit: int) -> int:
    if offset < 0:
        raise ValueError(f"offset must be non-negative: {offset}")
    if limit < 0 and limit != READ_ENTIRE_FILE:
        raise ValueError(f"limit must be non-negative, or -1 for all: {limit}")
    return limit


def page_timeout_error(path: str, line: int, size: int) -> TimeLimitError:
    """Return the error for a page that was not found in time."""
    return TimeLimitError(
        f"Read stopped: the time limit passed before the page at line {line:,} was found"
        f" in {display_path(shorten_path(path))!r}, which has {size:,} bytes; use a"
        " smaller offset, grep for the text, or read bytes from a byte offset"
    )


def _entry(name: str, stat: FileStat) -> FileEntry:
    size = stat.size_bytes if stat.is_file else None
    return FileEntry(name, stat.path, stat.is_file, stat.is_directory, size, stat.is_symlink)


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
        self._token = read_only_filesystems.set((*read_only_filesystems.get(), self._filesystem))
        return self._filesystem

    def __exit__(self, *_: object) -> None:
        read_only_filesystems.reset(self._token)


def read_only_error(path: str) -> ReadOnlyError:
    """Return the error of a change in a context that is read-only."""
    return ReadOnlyError(errno.EROFS, "This call is read-only", display_path(shorten_path(path)))


class ReadingProxy:
    """Passes what the protocol reads on to another filesystem; a subclass says what it writes."""

    def __init__(self, filesystem: Filesystem) -> None:
        """Read from `filesystem`."""
        self._filesystem = filesystem

    @property
    def root(self) -> str:
        """The root of the other filesystem."""
        return self._filesystem.root

    def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, encoding: str = "utf-8"
    ) -> ReadResult:
        """Return a page of text."""
        return self._filesystem.read(path, offset=offset, limit=limit, encoding=encoding)

    def read_bytes(
        self, path: str, *, offset: int = 0, limit: int | None = None
    ) -> ReadBytesResult:
        """Return a range of bytes."""
        return self._filesystem.read_bytes(path, offset=offset, limit=limit)

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""
        return self._filesystem.exists(path)

    def stat(self, path: str) -> FileStat:
        """Return the metadata of a path."""
        return self._filesystem.stat(path)

    def list(self, path: str = ".") -> Sequence[FileEntry]:
        """Return the entries of a directory."""
        return self._filesystem.list(path)

    def glob(self, pattern: str, *, path: str = ".", **options: Any) -> Sequence[GlobMatch]:
        """Return the matching files."""
        return self._filesystem.glob(pattern, path=path, **options)

    def grep(self, pattern: str, *, path: str = ".", **options: Any) -> Sequence[GrepMatch]:
        """Return the matching lines."""
        return self._filesystem.grep(pattern, path=path, **options)


class _ReadOnlyView(_ReadOnlyMethods, ReadingProxy):
    """A read-only view of any filesystem."""

    def __getattr__(self, name: str) -> Any:
        return (
            self._raise_read_only if name in CHANGING_METHODS else getattr(self._filesystem, name)
        )

    @property
    def read_only(self) -> bool:
        return True

    def _raise_read_only(self, path: object = ".", *_: object, **__: object) -> NoReturn:
        raise read_only_error(str(path))
