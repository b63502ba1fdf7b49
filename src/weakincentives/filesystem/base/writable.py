"""Writing, written once: what changes a filesystem, from four more primitives.

A backend supplies `_store`, `_remove`, `_make_directory` and `_make_link`, each of
which changes one thing in one step. Checks, limits, quota, parents and events are
here. One lock per filesystem makes every operation whole for other threads.
"""

import errno
import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from weakincentives.filesystem.base.primitives import ensure_plain_entry, link_error
from weakincentives.filesystem.base.readable import ReadableFilesystem, ReadOnlyError
from weakincentives.filesystem.base.readonly import ensure_writable
from weakincentives.filesystem.events import (
    DirectoryCreated,
    FileDeleted,
    FileWritten,
    Listener,
    Listeners,
)
from weakincentives.filesystem.limits import DEFAULT_LIMITS, LimitExceededError, Limits, Quota
from weakincentives.filesystem.paths import check_new, normalize_path
from weakincentives.filesystem.savepoints import WriteLock
from weakincentives.filesystem.text import SNIFFED, is_binary, load
from weakincentives.filesystem.types import FileStat, WriteMode, WriteResult
from weakincentives.posix import (
    check_time,
    display_path,
    join,
    os_error,
    parent_of,
    parents_of,
    shorten_path,
)

_MODES = ("create", "overwrite", "append")


class WritableFilesystem(ReadableFilesystem):
    """A filesystem that can be written through the protocol."""

    def __init__(self, *, limits: Limits = DEFAULT_LIMITS, read_only: bool = False) -> None:
        """Bound what is created and returned by `limits`; refuse writes if `read_only`."""
        super().__init__(limits=limits)
        self._read_only = read_only
        self._lock = WriteLock()
        self._listeners = Listeners()
        self._quota = Quota(limits, self._usage)

    # --- what a backend supplies; the parent exists and is a directory ---

    @abstractmethod
    def _store(
        self, path: str, data: bytes, *, permissions: int | None = None, exclusive: bool = False
    ) -> None:
        """Create or replace a file in one step.

        `permissions` None keeps those of the file replaced. `exclusive` raises
        FileExistsError if anything is there.
        """

    @abstractmethod
    def _remove(self, path: str) -> None:
        """Remove an entry and all below it; afterwards nothing of it can be seen."""

    @abstractmethod
    def _make_directory(self, path: str) -> None:
        """Make one directory."""

    @abstractmethod
    def _make_link(self, path: str, target: str) -> None:
        """Make a symbolic link, whatever it points to."""

    # --- the protocol ---

    @property
    def read_only(self) -> bool:
        """Whether writing is refused."""
        return self._read_only

    def write(
        self,
        path: str,
        content: str,
        *,
        mode: WriteMode = "overwrite",
        create_parents: bool = True,
    ) -> WriteResult:
        """Write text, as UTF-8, in one step."""
        key = self._writable(path)
        if not isinstance(content, str):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may be untyped
            raise TypeError(f"Content must be text, not {type(content).__name__}; use write_bytes")
        self._refuse_long(len(content))
        return self._put(key, _encoded(content), mode, create_parents)

    def write_bytes(
        self,
        path: str,
        content: bytes,
        *,
        mode: WriteMode = "overwrite",
        create_parents: bool = True,
    ) -> WriteResult:
        """Write bytes in one step."""
        key = self._writable(path)
        data = bytes(memoryview(content))
        self._refuse_long(len(data))
        return self._put(key, data, mode, create_parents)

    def replace_content(self, path: str, content: bytes) -> WriteResult:
        """Replace the bytes of a file that exists, in one step, however many they are.

        For programs that change a part of a file: what they keep of it is not new, so the
        limit on one write does not bind. The quota does.

        Raises:
            FileNotFoundError: Nothing is there.
            IsADirectoryError: A directory is there.
            PermissionError: It may not be written, or a link is in the way.
            LimitExceededError: The workspace would grow beyond its quota.
        """
        key = self._writable(path)
        data = bytes(memoryview(content))
        with self._lock:
            before = self._lookup(key) or self._refuse_missing(key)
            ensure_overwritable(before, "overwrite")
            self._rewrite(before, data, "overwrite")
        return WriteResult(key, len(data), "overwrite")

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or link, or with `recursive` a directory and all below it."""
        key = normalize_path(path)
        self._refuse_read_only(key)
        with self._lock:
            if not key:
                self._empty(recursive)
                return
            found = self._lookup(key) or self._refuse_missing(key)
            if found.is_directory and not recursive:
                raise self._directory_error(key)
            gone = self._deletion(self._description(found))
            self._remove(key)
            self._listeners.tell(gone)

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Make a directory; the root always exists."""
        key = normalize_path(path)
        self._refuse_read_only(key)
        if not key:
            self._lookup(key)  # it raises if the backend is not available
            return
        with self._lock:
            found = self._lookup(key)
            if found is None:
                wanted = [*self._missing_parents(key, create=parents), key]
                check_new(key, len(wanted), self._limits)
                self._quota.admit(0, len(wanted))
                self._make_directories(wanted)
                self._listeners.tell(*map(DirectoryCreated, wanted))
            elif found.is_symlink:
                raise link_error(found)
            elif not (found.is_directory and exist_ok):
                raise os_error(errno.EEXIST, key)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` after every change; return a function that ends it.

        Listeners run in the writing thread, in order, before the next change. One
        that raises is logged; the change stands.
        """
        return self._listeners.add(listener)

    # --- shared steps that a backend may do better ---

    def _make_directories(self, paths: Sequence[str]) -> None:
        """Make a chain of directories, outermost first, or none of them."""
        made: list[str] = []
        try:
            for path in paths:
                self._make_directory(path)
                made.append(path)
        except BaseException:
            self._take_back(made)
            raise

    def _store_below(
        self, missing: Sequence[str], path: str, data: bytes, *, exclusive: bool
    ) -> None:
        """Create a file and the chain of `missing` directories above it, or nothing."""
        self._make_directories(missing)
        try:
            self._store(path, data, exclusive=exclusive)
        except BaseException:
            self._take_back(missing)
            raise

    def _has_directory(self, path: str) -> bool:
        """Return whether a directory is there."""
        found = self._lookup(path)
        return found is not None and found.is_directory

    def _remove_if_empty(self, path: str) -> bool:
        """Remove a directory that holds nothing; return whether that was so."""
        if any(self._children(path)):
            return False
        self._remove(path)
        return True

    def _append(self, path: str, data: bytes) -> None:
        """Add to the end of an existing file in one step."""
        with self._open(path) as content:
            old = load(content, path, self._limits)
        self._store(path, old + data)

    def _empty(self, recursive: bool) -> None:
        """Delete the root, or refuse to."""
        raise os_error(errno.EPERM, "", "Cannot delete root")

    def _usage(self) -> tuple[int, int]:
        """Return the bytes in all files, and how many entries there are without the root."""
        size, count = self._weight("")
        return size, count - 1

    # --- shared steps ---

    def _writable(self, path: str) -> str:
        key = normalize_path(path)
        self._refuse_read_only(key)
        if not key:
            raise ValueError(f"Cannot write to root: {path!r}")
        return key

    def _refuse_read_only(self, path: str) -> None:
        if self._read_only:
            raise ReadOnlyError(
                errno.EROFS, "Filesystem is read-only", display_path(shorten_path(path))
            )
        ensure_writable(self, path)

    def _refuse_long(self, length: int) -> None:
        if length > self._limits.max_write_length:
            raise LimitExceededError(
                f"Content exceeds maximum of {self._limits.max_write_length} in one write:"
                f" {length}; write the rest with mode='append'"
            )

    def _put(self, path: str, data: bytes, mode: WriteMode, create_parents: bool) -> WriteResult:
        if mode not in _MODES:
            raise ValueError(f"mode must be one of {', '.join(_MODES)}: {mode!r}")
        with self._lock:
            before = self._lookup(path)
            if before is None:
                missing = self._missing_parents(path, create=create_parents)
                check_new(path, len(missing) + 1, self._limits)
                self._quota.admit(len(data), len(missing) + 1)
                if missing:
                    self._store_below(missing, path, data, exclusive=mode == "create")
                    self._listeners.tell(*map(DirectoryCreated, missing))
                else:
                    self._store(path, data, exclusive=mode == "create")
                self._tell_written(path, len(data), mode, None, data)
            else:
                ensure_overwritable(before, mode)
                self._rewrite(before, data, mode)
        return WriteResult(path, len(data), mode, created=before is None)

    def _rewrite(self, before: FileStat, data: bytes, mode: WriteMode) -> None:
        appending = mode == "append"
        self._quota.admit(len(data) if appending else len(data) - before.size_bytes, 0)
        old = self._description(before)
        if appending:
            self._append(before.path, data)
        else:
            self._store(before.path, data)
        self._tell_written(before.path, len(data), mode, old, None if appending else data)

    def _weight(self, path: str) -> tuple[int, int]:
        """Return the bytes in all files at and below `path`, and how many entries there are."""
        found = list(self._tree(path))
        return sum(entry.size_bytes for entry in found if entry.is_file), len(found)

    def _tree(self, path: str) -> Iterator[FileStat]:
        """Yield what is at `path` and everything below it: depth first, sorted by name."""
        stack = [path]
        while stack:
            check_time("Walk")
            current = stack.pop()
            found = self._lookup(current)
            if found is None:
                continue
            yield found
            if found.is_directory:
                names = [name for group in self._children(current) for name in group]
                stack.extend(join(current, name) for name in sorted(names, reverse=True))

    def _missing_parents(
        self, path: str, *, create: bool = True, bounded: bool = True
    ) -> list[str]:
        """Return the directories above `path` that do not exist, outermost first.

        If `bounded`, the list ends where it is too long for the limits in any case.
        """
        if self._has_directory(parent_of(path)):
            return []
        missing: list[str] = []
        for parent in parents_of(path):
            if not missing and self._is_directory(parent, path):
                continue
            missing.append(parent)
            if not create:
                raise os_error(errno.ENOENT, parent, "Parent directory does not exist")
            if bounded and len(missing) > self._limits.max_path_depth:
                break
        return missing

    def _is_directory(self, path: str, wanted: str) -> bool:
        """Return whether a directory is there; refuse anything else that is."""
        found = self._lookup(path)
        if found is None:
            return False
        if found.is_symlink:
            raise link_error(found)
        if not found.is_directory:
            raise os_error(errno.ENOTDIR, wanted)
        return True

    def _take_back(self, made: Sequence[str]) -> None:
        """Remove directories that were made, innermost first, unless others use them."""
        for path in reversed(made):
            if self._lookup(path) is not None and not self._remove_if_empty(path):
                break

    def _directory_error(self, path: str) -> OSError:
        text = "Is a directory, delete it with recursive=True"
        with suppress(OSError):  # it may not be readable
            if any(self._children(path)):
                text = "Directory is not empty, delete it with recursive=True"
        return os_error(errno.EISDIR, path, text)

    # --- what is told; nothing is hashed unless somebody listens ---

    def _description(self, found: FileStat) -> FileStat:
        """Return `found` with its hash taken now, before the content changes."""
        if not self._listeners or not found.is_file:
            return found
        digest = self._hash_or_none(found.path)
        return replace(found, hasher=lambda: digest)

    def _hash_or_none(self, path: str) -> str | None:
        """Return the hash of what is at `path`; who listens must not make an operation fail."""
        try:
            return self.content_hash(path)
        except OSError:
            return None

    def _encoding_or_none(self, path: str) -> str | None:
        """Return how the bytes at `path` are to be taken, as far as their beginning tells."""
        try:
            with self._opened(path) as content:
                return "binary" if is_binary(content.read(0, SNIFFED)) else "utf-8"
        except OSError:
            return None

    def _deletion(self, found: FileStat) -> FileDeleted:
        size = found.size_bytes if found.is_file else None
        known = found.content_hash if self._listeners else None
        return FileDeleted(found.path, found.kind, known, size)

    def _tell_written(
        self,
        path: str,
        written: int,
        mode: WriteMode,
        before: FileStat | None,
        data: bytes | None = None,
    ) -> None:
        """Tell of a file that is now `data`, or, where that is not at hand, what is there."""
        if not self._listeners:
            return
        size_before = None if before is None else before.size_bytes
        if data is None:
            encoding = self._encoding_or_none(path)
            after_hash = self._hash_or_none(path)
            found = self._lookup(path)
            after_size = None if found is None else found.size_bytes
        else:
            after_hash, after_size = hashlib.sha256(data).hexdigest(), len(data)
            encoding = "binary" if is_binary(data) else "utf-8"
        event = FileWritten(
            path=path,
            bytes_written=written,
            mode=mode,
            created=before is None,
            before_hash=before and before.content_hash,
            after_hash=after_hash,
            before_size=size_before,
            after_size=after_size,
            encoding=encoding,
        )
        self._listeners.tell(event)


def _encoded(content: str) -> bytes:
    try:
        return content.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"Content holds a lone surrogate at character {error.start}, which UTF-8 cannot store"
        ) from None


def ensure_overwritable(before: FileStat, mode: WriteMode) -> None:
    """Raise the reason why `before` cannot be written over, if there is one."""
    if before.is_directory:
        raise os_error(errno.EISDIR, before.path)
    if mode == "create":
        raise os_error(errno.EEXIST, before.path)
    ensure_plain_entry(before)
