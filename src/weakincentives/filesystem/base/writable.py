"""Writing, moving and copying over four more primitives of a backend.

A backend supplies `_store`, `_remove`, `_make_directory` and `_make_link`, each of which is one
atomic change. Checks, limits, quota, parent directories and events are here. One lock per
filesystem makes every operation atomic for other threads.
"""

import errno
import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from weakincentives import posix
from weakincentives.errors import WinkError
from weakincentives.filesystem import events
from weakincentives.filesystem.base.readable import (
    ReadableFilesystem,
    ReadOnlyError,
    read_only_error,
    read_only_filesystems,
)
from weakincentives.filesystem.base.searchable import ensure_plain_entry, link_error
from weakincentives.filesystem.limits import DEFAULT_LIMITS, LimitExceededError, Limits, Quota
from weakincentives.filesystem.paths import check_new_path, normalize_path
from weakincentives.filesystem.savepoints import WriteLock
from weakincentives.filesystem.text import SNIFF_LENGTH, is_binary, load
from weakincentives.filesystem.types import FileStat, WriteMode, WriteResult

_MODES = ("create", "overwrite", "append")


class StaleContentError(WinkError, OSError):
    """A file does not have the content that a change of it expected; it was left alone."""

    def __init__(self, path: str) -> None:
        """Name the file."""
        text = "Changed by another program since it was read; read it again"
        super().__init__(errno.ESTALE, text, posix.display_path(posix.shorten_path(path)))


class WritableFilesystem(ReadableFilesystem):
    """A filesystem that can be written."""

    def __init__(self, *, limits: Limits = DEFAULT_LIMITS, read_only: bool = False) -> None:
        """Enforce `limits`; with `read_only`, writes raise ReadOnlyError."""
        super().__init__(limits=limits)
        self._read_only = read_only
        self._lock = WriteLock()
        self._listeners = events.Listeners()
        self._quota = Quota(limits, self._usage)

    # --- primitives of a backend; the parent exists and is a directory ---

    @abstractmethod
    def _store(
        self, path: str, data: bytes, *, permissions: int | None = None, exclusive: bool = False
    ) -> None:
        """Create or replace a file atomically.

        With `permissions` None, a replaced file keeps its own. `exclusive` raises
        FileExistsError if the path exists.
        """

    @abstractmethod
    def _remove(self, path: str) -> None:
        """Remove an entry with everything below it; nothing of it is visible afterwards."""

    @abstractmethod
    def _make_directory(self, path: str) -> None:
        """Create one directory."""

    @abstractmethod
    def _make_link(self, path: str, target: str) -> None:
        """Create a symbolic link to any target."""

    # --- the protocol ---

    @property
    def read_only(self) -> bool:
        """Whether writes raise ReadOnlyError."""
        return self._read_only

    def write(
        self, path: str, content: str, *, mode: WriteMode = "overwrite", create_parents: bool = True
    ) -> WriteResult:
        """Write text as UTF-8, atomically."""
        key = self._writable_path(path)
        if not isinstance(content, str):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may be untyped
            raise TypeError(f"Content must be text, not {type(content).__name__}; use write_bytes")
        self._check_length(len(content))
        return self._write_content(key, _encode(content), mode, create_parents=create_parents)

    def write_bytes(
        self,
        path: str,
        content: bytes,
        *,
        mode: WriteMode = "overwrite",
        create_parents: bool = True,
    ) -> WriteResult:
        """Write bytes atomically."""
        key = self._writable_path(path)
        data = bytes(memoryview(content))
        self._check_length(len(data))
        return self._write_content(key, data, mode, create_parents=create_parents)

    def replace_content(
        self, path: str, content: bytes, *, expected: bytes | None = None
    ) -> WriteResult:
        """Replace the bytes of an existing file atomically, at any size.

        For programs that change a part of a file: the rest of it is not new, so the limit on
        one write does not apply. The quota does. With `expected`, the file is replaced only if
        these are its bytes, whoever saves it at the same time.

        Raises:
            StaleContentError: The file does not have the `expected` bytes; it is unchanged.
            FileNotFoundError: The path does not exist.
            IsADirectoryError: The path is a directory.
            PermissionError: The file cannot be written, or a symbolic link is in the way.
            LimitExceededError: The workspace would grow beyond its quota.
        """
        key = self._writable_path(path)
        data = bytes(memoryview(content))
        with posix.defer_interrupts(), self._lock.mutex:
            self._lock.await_turn()
            before = self._lookup(key) or self._raise_not_found(key)
            ensure_overwritable(before, "overwrite")
            self._rewrite(before, data, "overwrite", expected)
        return WriteResult(key, len(data), "overwrite")

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or link, or with `recursive` a directory with everything below it."""
        key = normalize_path(path)
        self._ensure_writable(key)
        with posix.defer_interrupts(), self._lock.mutex:
            self._lock.await_turn()
            if not key:
                self._delete_root(recursive=recursive)
                return
            found = self._lookup(key) or self._raise_not_found(key)
            if found.is_directory and not recursive:
                raise self._directory_error(key)
            gone = self._deletion_event(self._with_hash(found))
            self._remove(key)
            self._listeners.notify(gone)

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Create a directory; the root always exists."""
        key = normalize_path(path)
        self._ensure_writable(key)
        if not key:
            self._lookup(key)  # raises if the backend is not available
            return
        with posix.defer_interrupts(), self._lock.mutex:
            self._lock.await_turn()
            found = self._lookup(key)
            if found is None:
                wanted = [*self._missing_parents(key, create=parents), key]
                check_new_path(key, len(wanted), self._limits)
                self._quota.admit(0, len(wanted))
                self._make_directories(wanted)
                self._listeners.notify(*map(events.DirectoryCreated, wanted))
            elif found.is_symlink:
                raise link_error(found)
            elif not (found.is_directory and exist_ok):
                raise posix.os_error(errno.EEXIST, key)

    def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        """Move a file, link or directory atomically; missing parents are created first.

        Raises:
            FileNotFoundError: `source` does not exist.
            FileExistsError: `destination` exists and `overwrite` is False.
            IsADirectoryError: `destination` is a directory.
            ValueError: A directory would move into itself.
        """
        self._transfer(source, destination, overwrite=overwrite, copying=False)

    def copy(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        """Copy a file, link or directory atomically; raises as `move` does."""
        self._transfer(source, destination, overwrite=overwrite, copying=True)

    def subscribe(self, listener: events.Listener) -> Callable[[], None]:
        """Call `listener` after every change; return a function that unsubscribes it.

        Listeners run in the writing thread, in order, before the next change. An exception
        in one is logged and does not undo the change.
        """
        return self._listeners.add(listener)

    # --- shared steps that a backend may override ---

    def _make_directories(self, paths: Sequence[str]) -> None:
        """Create a chain of directories, outermost first, all or none."""
        made: list[str] = []
        try:
            for path in paths:
                self._make_directory(path)
                made.append(path)
        except BaseException:
            self._remove_new_directories(made)
            raise

    def _store_below(
        self, missing: Sequence[str], path: str, data: bytes, *, exclusive: bool
    ) -> None:
        """Create a file and the `missing` directories above it, all or none."""
        self._make_directories(missing)
        try:
            self._store(path, data, exclusive=exclusive)
        except BaseException:
            self._remove_new_directories(missing)
            raise

    def _has_directory(self, path: str) -> bool:
        """Return whether `path` is a directory."""
        found = self._lookup(path)
        return found is not None and found.is_directory

    def _remove_if_empty(self, path: str) -> bool:
        """Remove a directory if it is empty; return whether it was."""
        if any(self._children(path)):
            return False
        self._remove(path)
        return True

    def _replace(self, path: str, data: bytes, expected: bytes) -> None:
        """Replace a file atomically, or raise StaleContentError if it has other bytes."""
        with self._open(path) as content:
            if content.size != len(expected) or content.read(0, content.size) != expected:
                raise StaleContentError(path)
        self._store(path, data)

    def _append(self, path: str, data: bytes) -> None:
        """Append to an existing file atomically."""
        with self._open(path) as content:
            old = load(content, path, self._limits)
        self._store(path, old + data)

    def _move(self, source: str, destination: str) -> None:
        """Move an entry to a free path, or a file or link over a file."""
        self._copy(source, destination)
        self._remove(source)

    def _copy(self, source: str, destination: str) -> None:
        """Copy an entry to a free path, or a file or link over a file."""
        found = None
        for found in self._walk_tree(source):
            target = destination + found.path[len(source) :]
            if found.is_directory:
                self._make_directory(target)
            elif found.link_target is not None:
                self._make_link(target, found.link_target)
            elif found.is_file:
                self._copy_file(found, target)
        if found is None:
            self._raise_not_found(source)  # it was removed since the lookup

    def _copy_file(self, found: FileStat, target: str) -> None:
        """Copy one file."""
        with self._open(found.path) as content:
            data = load(content, found.path, self._limits)
        self._store(target, data, permissions=found.permissions)

    def _copy_below(self, missing: Sequence[str], source: str, goal: str) -> None:
        """Create the `missing` directories and copy an entry into them, all or none."""
        self._transfer_below(missing, self._copy, source, goal)

    def _delete_root(self, *, recursive: bool) -> None:
        """Delete everything below the root; by default that is an error."""
        del recursive  # an error in any case
        raise posix.os_error(errno.EPERM, "", "Cannot delete root")

    def _usage(self) -> tuple[int, int]:
        """Return the bytes in all files, and the number of entries without the root."""
        size, count = self._measure("")
        return size, count - 1

    # --- shared steps ---

    def _writable_path(self, path: str) -> str:
        key = normalize_path(path)
        self._ensure_writable(key)
        if not key:
            raise ValueError(f"Cannot write to root: {path!r}")
        return key

    def _ensure_writable(self, path: str) -> None:
        if self._read_only:
            raise ReadOnlyError(
                errno.EROFS, "Filesystem is read-only", posix.display_path(posix.shorten_path(path))
            )
        if any(each is self for each in read_only_filesystems.get()):
            raise read_only_error(path)

    def _check_length(self, length: int) -> None:
        if length > self._limits.max_write_length:
            raise LimitExceededError(
                f"Content exceeds maximum of {self._limits.max_write_length} in one write:"
                f" {length}; write the rest with mode='append'"
            )

    def _write_content(
        self, path: str, data: bytes, mode: WriteMode, *, create_parents: bool
    ) -> WriteResult:
        if mode not in _MODES:
            raise ValueError(f"mode must be one of {', '.join(_MODES)}: {mode!r}")
        with posix.defer_interrupts(), self._lock.mutex:
            self._lock.await_turn()
            before = self._lookup(path)
            if before is None:
                missing = self._missing_parents(path, create=create_parents)
                check_new_path(path, len(missing) + 1, self._limits)
                self._quota.admit(len(data), len(missing) + 1)
                if missing:
                    self._store_below(missing, path, data, exclusive=mode == "create")
                    self._listeners.notify(*map(events.DirectoryCreated, missing))
                else:
                    self._store(path, data, exclusive=mode == "create")
                self._emit_write(path, len(data), mode, None, data)
            else:
                ensure_overwritable(before, mode)
                self._rewrite(before, data, mode)
        return WriteResult(path, len(data), mode, created=before is None)

    def _rewrite(
        self, before: FileStat, data: bytes, mode: WriteMode, expected: bytes | None = None
    ) -> None:
        appending = mode == "append"
        self._quota.admit(len(data) if appending else len(data) - before.size_bytes, 0)
        old = self._with_hash(before)
        if appending:
            self._append(before.path, data)
        elif expected is not None:
            self._replace(before.path, data, expected)
        else:
            self._store(before.path, data)
        self._emit_write(before.path, len(data), mode, old, None if appending else data)

    def _transfer_below(
        self, missing: Sequence[str], act: Callable[[str, str], None], source: str, goal: str
    ) -> None:
        """Create the missing parents of `goal`, then move or copy; undo both on failure."""
        try:
            self._make_directories(missing)
            act(source, goal)
        except BaseException:
            self._remove_new_directories(missing)
            raise

    def _transfer(self, source: str, destination: str, *, overwrite: bool, copying: bool) -> None:
        start, goal = normalize_path(source), self._writable_path(destination)
        if not start:
            raise posix.os_error(errno.EPERM, "", "Cannot move or copy root")
        with posix.defer_interrupts(), self._lock.mutex:
            self._lock.await_turn()
            found = self._lookup(start) or self._raise_not_found(start)
            if found.is_directory and f"{goal}/".startswith(f"{start}/"):
                verb = "copy" if copying else "move"
                raise ValueError(
                    f"Cannot {verb} a directory into itself: {posix.shorten_path(goal)!r}"
                )
            if goal == start and overwrite:
                return
            missing = self._prepare_destination(goal, found, overwrite=overwrite)
            size = count = 0
            if copying:
                _ensure_not_special(found)
                if self._quota:
                    size, count = self._copy_growth(start, goal)
            self._quota.admit(size, count + len(missing))
            self._apply_transfer(found, goal, missing, copying=copying)

    def _copy_growth(self, source: str, goal: str) -> tuple[int, int]:
        """Return how many bytes and entries a copy adds."""
        size, count = self._measure(source)
        replaced = self._lookup(goal)
        return (size, count) if replaced is None else (size - replaced.size_bytes, count - 1)

    def _prepare_destination(self, goal: str, found: FileStat, *, overwrite: bool) -> list[str]:
        """Check the destination; return its missing parents."""
        before = self._lookup(goal)
        if before is None:
            missing = self._missing_parents(goal)
            check_new_path(goal, len(missing) + 1, self._limits)
            return missing
        ensure_overwritable(before, "overwrite" if overwrite else "create")
        if found.is_directory:
            raise posix.os_error(errno.EEXIST, goal)
        return []

    def _apply_transfer(
        self, found: FileStat, goal: str, missing: Sequence[str], *, copying: bool
    ) -> None:
        before = self._lookup(goal)
        before = None if before is None else self._with_hash(before)
        if copying and missing:
            self._copy_below(missing, found.path, goal)
        else:
            self._transfer_below(missing, self._copy if copying else self._move, found.path, goal)
        self._listeners.notify(*map(events.DirectoryCreated, missing))
        if copying:
            self._emit_copy(goal, before)
            return
        if before is not None:
            self._listeners.notify(self._deletion_event(before))
        self._listeners.notify(events.EntryMoved(found.path, goal, found.kind))

    def _emit_copy(self, goal: str, before: FileStat | None) -> None:
        for found in self._walk_tree(goal) if self._listeners else ():
            if found.is_directory:
                self._listeners.notify(events.DirectoryCreated(found.path))
            elif found.link_target is not None:
                self._listeners.notify(events.LinkCreated(found.path, found.link_target))
            else:
                self._emit_write(found.path, found.size_bytes, "overwrite", before)

    def _measure(self, path: str) -> tuple[int, int]:
        """Return the bytes in all files at and below `path`, and the number of entries."""
        found = list(self._walk_tree(path))
        return sum(entry.size_bytes for entry in found if entry.is_file), len(found)

    def _walk_tree(self, path: str) -> Iterator[FileStat]:
        """Yield the entry at `path` and everything below it, depth first, sorted by name."""
        stack = [path]
        while stack:
            posix.check_time("Walk")
            current = stack.pop()
            found = self._lookup(current)
            if found is None:
                continue
            yield found
            if found.is_directory:
                names = [name for group in self._children(current) for name in group]
                stack.extend(posix.join(current, name) for name in sorted(names, reverse=True))

    def _missing_parents(self, path: str, *, create: bool = True) -> list[str]:
        """Return the directories above `path` that do not exist, outermost first.

        The list stops where it exceeds the limits anyway.
        """
        if self._has_directory(posix.parent_of(path)):
            return []
        missing: list[str] = []
        for parent in posix.parents_of(path):
            if not missing and self._is_directory(parent, path):
                continue
            missing.append(parent)
            if not create:
                raise posix.os_error(errno.ENOENT, parent, "Parent directory does not exist")
            if len(missing) > self._limits.max_path_depth:
                break
        return missing

    def _is_directory(self, path: str, wanted: str) -> bool:
        """Return whether `path` is a directory; raise if it is anything else."""
        found = self._lookup(path)
        if found is None:
            return False
        if found.is_symlink:
            raise link_error(found)
        if not found.is_directory:
            raise posix.os_error(errno.ENOTDIR, wanted)
        return True

    def _remove_new_directories(self, made: Sequence[str]) -> None:
        """Remove directories that were just created, innermost first, unless they are in use."""
        for path in reversed(made):
            if self._lookup(path) is not None and not self._remove_if_empty(path):
                break

    def _directory_error(self, path: str) -> OSError:
        text = "Is a directory, delete it with recursive=True"
        with suppress(OSError):  # the directory may be unreadable
            if any(self._children(path)):
                text = "Directory is not empty, delete it with recursive=True"
        return posix.os_error(errno.EISDIR, path, text)

    # --- events; nothing is hashed unless there are listeners ---

    def _with_hash(self, found: FileStat) -> FileStat:
        """Return `found` with its hash computed now, before the content changes."""
        if not self._listeners or not found.is_file:
            return found
        digest = self._hash_or_none(found.path)
        return replace(found, hasher=lambda: digest)

    def _hash_or_none(self, path: str) -> str | None:
        """Return the hash of a file, or None: an event must not make an operation fail."""
        try:
            return self.content_hash(path)
        except OSError:
            return None

    def _encoding_or_none(self, path: str) -> str | None:
        """Return "utf-8" or "binary" by the beginning of a file, or None if it is unreadable."""
        try:
            with self._open_file(path) as content:
                return "binary" if is_binary(content.read(0, SNIFF_LENGTH)) else "utf-8"
        except OSError:
            return None

    def _deletion_event(self, found: FileStat) -> events.FileDeleted:
        size = found.size_bytes if found.is_file else None
        known = found.content_hash if self._listeners else None
        return events.FileDeleted(found.path, found.kind, known, size)

    def _emit_write(
        self,
        path: str,
        written: int,
        mode: WriteMode,
        before: FileStat | None,
        data: bytes | None = None,
    ) -> None:
        """Emit the event for a file that now contains `data`; if None, the file is read."""
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
        event = events.FileWritten(
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
        self._listeners.notify(event)

    def _emit_replaced(
        self,
        reason: Literal["restore", "import", "rollback"],
        reference: str,
        rewritten: Iterable[str] | None = None,
        *,
        reversible: bool = True,
        partial: bool = False,
    ) -> None:
        self._quota.recount()
        paths = None if rewritten is None else frozenset(rewritten)
        self._listeners.notify(events.StateReplaced(reason, reference, paths, reversible, partial))


def _encode(content: str) -> bytes:
    try:
        return content.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"Content has a lone surrogate at character {error.start}, which UTF-8 cannot encode"
        ) from None


def ensure_overwritable(before: FileStat, mode: WriteMode) -> None:
    """Check that a write in `mode` may replace the entry `before`."""
    if before.is_directory:
        raise posix.os_error(errno.EISDIR, before.path)
    if mode == "create":
        raise posix.os_error(errno.EEXIST, before.path)
    ensure_plain_entry(before)


def _ensure_not_special(found: FileStat) -> None:
    if found.kind == "special":
        ensure_plain_entry(found)
