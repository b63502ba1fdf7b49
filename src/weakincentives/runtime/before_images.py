"""Before-images and undo logs for filesystems that have only the protocol's methods.

An undo log records what is at a path before it changes, and rolls back by writing it again.
Only what the protocol can express is restored: directories, files and their bytes, but no
links, permissions or dates.
"""

import errno
from collections.abc import Callable, Generator
from contextlib import contextmanager
from hashlib import sha256
from threading import Lock
from typing import Any, Literal, TypeAlias
from weakref import WeakValueDictionary

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem import (
    MAX_WRITE_LENGTH,
    Change,
    FileEntry,
    FileStat,
    Filesystem,
    WriteMode,
    WriteResult,
    normalize_path,
)
from weakincentives.filesystem.base import (
    CHANGING_METHODS,
    ReadingProxy,
    WriteLock,
    hold_lock,
    open_savepoint,
    outermost,
)
from weakincentives.posix import display_path, join, parents_of

Image: TypeAlias = dict[str, bytes | Literal["directory", "special"]]
"""What is at and below a path: the bytes of each file, and the kind of everything else.

The protocol cannot create what is special, such as a link.
"""


def capture_image(filesystem: Filesystem, path: str = "") -> Image:
    """Return what is at a path and below it now, directories before their entries.

    Raises:
        OSError: It cannot be read, or a directory cannot be listed completely.
    """
    image: Image = {}
    pending: list[str] = [path]
    if path:
        if not filesystem.exists(path):
            return image
        found = filesystem.stat(path)
        image[path] = _capture_entry(filesystem, path, found)
        pending = [path] if found.is_directory else []
    while pending:
        directory = pending.pop()
        entries = filesystem.list(directory or ".")
        if getattr(entries, "truncated", False):
            reason = "Directory has too many entries to record for rollback"
            raise OSError(errno.EOVERFLOW, reason, display_path(directory))
        for entry in entries:
            entry_path = join(directory, entry.name)
            image[entry_path] = _capture_entry(filesystem, entry_path, entry)
            pending += [entry_path] if entry.is_directory else []
    return image


def _capture_entry(
    filesystem: Filesystem, path: str, found: FileStat | FileEntry
) -> bytes | Literal["directory", "special"]:
    if found.is_file:
        return read_entire_file(filesystem, path)
    return "directory" if found.is_directory else "special"


def _kind(found: bytes | str) -> str:
    return "file" if isinstance(found, bytes) else found


def read_entire_file(filesystem: Filesystem, path: str) -> bytes:
    """Return the bytes of a file, in several reads if one returns only a part.

    Raises:
        OSError: It cannot be read to its end.
    """
    page = filesystem.read_bytes(path)
    parts, length = [page.content], len(page.content)
    while page.content and length < page.size_bytes:
        page = filesystem.read_bytes(path, offset=length)
        parts.append(page.content)
        length += len(page.content)
    if length < page.size_bytes:
        reason = "File cannot be read to its end, so it cannot be recorded for rollback"
        raise OSError(errno.EIO, reason, display_path(path))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_entire_file(filesystem: Filesystem, path: str, data: bytes) -> None:
    """Write a file, in parts if it exceeds the limit of one write."""
    if len(data) <= MAX_WRITE_LENGTH:
        filesystem.write_bytes(path, data)
        return
    try:
        filesystem.write_bytes(path, data)
    except ValueError:
        filesystem.write_bytes(path, data[:MAX_WRITE_LENGTH])
        for start in range(MAX_WRITE_LENGTH, len(data), MAX_WRITE_LENGTH):
            filesystem.write_bytes(path, data[start : start + MAX_WRITE_LENGTH], mode="append")


_locks: WeakValueDictionary[int, WriteLock] = WeakValueDictionary()
_locks_mutex = Lock()


def hold(filesystem: Filesystem) -> Callable[[], None]:
    """Keep other threads from changes; return the function that ends it."""
    release = hold_lock(filesystem)
    if release is not None:
        return release
    with _locks_mutex:  # it has no lock of its own; ours lives as long as a hold
        lock = _locks.setdefault(id(unwrap(filesystem)), WriteLock())
    return lock.hold()


class UndoLog:
    """Before-images of what is about to change; until it ends, other threads cannot write."""

    def __init__(self, filesystem: Filesystem, *, everything: bool = False) -> None:
        """Start an empty log for `filesystem`, or one with an image of `everything`.

        What the protocol cannot express is then left as it is.

        Raises:
            OSError: The files cannot be read.
        """
        self.filesystem = filesystem
        self.has_everything: bool = everything
        self._paths: list[str] = []  # that are in the image, with all below them
        self._image: Image = {}
        self._release: Callable[[], None] | None = hold(filesystem)
        try:
            if everything:
                self._add("", capture_image(filesystem))
        except BaseException:
            self.release()
            raise

    @property
    def is_open(self) -> bool:
        """Whether it has neither been released nor rolled back."""
        return self._release is not None

    def release(self) -> None:
        """End the log and keep the changes; idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def record(self, path: str) -> None:
        """Record the before-image of a path, including parent directories that do not exist yet.

        Raises:
            OSError: It cannot be recorded, so it must not be changed.
        """
        first = next(
            (each for each in (*parents_of(path), path) if not self.filesystem.exists(each or ".")),
            path,
        )
        if self._covers(first):
            return
        image = capture_image(self.filesystem, first)
        special = min((each for each, found in image.items() if found == "special"), default=None)
        if special is not None:
            raise OSError(errno.EPERM, "Cannot change what could not be rolled back", special)
        self._add(first, image)

    def detect(self) -> list[Change]:
        """Return what differs from the images: first what is gone, inner entries before outer."""
        now: Image = {}
        for path in outermost(self._paths):
            now |= capture_image(self.filesystem, path)
        changed = {path for path in (self._image | now) if self._image.get(path) != now.get(path)}
        gone = sorted((path for path in changed if path not in now), reverse=True)
        return [
            Change(
                path,
                "modified",
                _describe(path, self._image.get(path)),
                _describe(path, now.get(path)),
            )
            for path in (*gone, *sorted(changed.difference(gone)))
        ]

    def rollback(self) -> tuple[()]:
        """End the log and restore all images.

        Raises:
            SnapshotRestoreError: Something could not be restored; everything else was.
        """
        failure: Exception | None = None
        for path in outermost(self._paths):
            try:
                self._restore(path)
            except Exception as error:  # noqa: BLE001 # the other images are restored regardless
                failure = failure or error
        self.release()
        if failure is not None:
            raise SnapshotRestoreError(f"Rollback incomplete: {failure}") from failure
        return ()

    def _restore(self, path: str) -> None:
        """Restore what was at a path and below it; what has not changed is not touched."""
        filesystem, now = self.filesystem, capture_image(self.filesystem, path)
        for each, found in sorted(now.items()):  # a directory goes with everything in it
            before = self._image.get(each)
            if (before is None or _kind(before) != _kind(found)) and filesystem.exists(each):
                filesystem.delete(each, recursive=found == "directory")
        for each, found in sorted(self._image.items()):
            if not _is_at(each, path):
                continue
            if isinstance(found, bytes):
                if now.get(each) != found:
                    write_entire_file(filesystem, each, found)
            elif found == "directory" and not filesystem.exists(each):
                filesystem.mkdir(each)

    def _add(self, path: str, image: Image) -> None:
        # of two images of a path, the first is valid
        new: Image = {each: found for each, found in image.items() if not self._covers(each)}
        self._image |= new
        self._paths.append(path)

    def _covers(self, path: str) -> bool:
        return any(_is_at(path, each) for each in self._paths)


def _is_at(path: str, place: str) -> bool:
    """Return whether a path is at a place or below it."""
    return not place or f"{path}/".startswith(f"{place}/")


def _describe(path: str, found: bytes | str | None) -> FileStat | None:
    """Return the metadata of a file or directory; nothing else has events."""
    if isinstance(found, bytes):
        return FileStat(
            path,
            is_file=True,
            is_directory=False,
            size_bytes=len(found),
            hasher=lambda: sha256(found).hexdigest(),
        )
    return FileStat(path, is_file=False, is_directory=True) if found == "directory" else None


class RecordingFilesystem(ReadingProxy):
    """A proxy for any filesystem that records before-images in an undo log."""

    def __init__(self, undo_log: UndoLog) -> None:
        """Wrap the filesystem of `undo_log`."""
        super().__init__(undo_log.filesystem)
        self._undo_log = undo_log

    @property
    def original(self) -> Filesystem:
        """The filesystem below this proxy and those that it wraps."""
        inner = self._filesystem
        return inner.original if isinstance(inner, RecordingFilesystem) else inner

    def __getattr__(self, name: str) -> Any:
        """Return an attribute beyond the protocol."""
        if name == "savepoint":  # its rollback would leave the undo log out of date
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = getattr(self._filesystem, name)
        return self._record_everything(found) if name in CHANGING_METHODS else found

    def __repr__(self) -> str:
        """Return what the filesystem says of itself."""
        return repr(self._filesystem)

    @property
    def read_only(self) -> bool:
        """Whether writes are rejected."""
        return self._filesystem.read_only

    def write(
        self, path: str, content: str, *, mode: WriteMode = "overwrite", create_parents: bool = True
    ) -> WriteResult:
        """Write text."""
        self._record_file(path)
        return self._filesystem.write(path, content, mode=mode, create_parents=create_parents)

    def write_bytes(
        self,
        path: str,
        content: bytes,
        *,
        mode: WriteMode = "overwrite",
        create_parents: bool = True,
    ) -> WriteResult:
        """Write bytes."""
        self._record_file(path)
        return self._filesystem.write_bytes(path, content, mode=mode, create_parents=create_parents)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file or directory."""
        target = normalize_path(path)
        if target and self._filesystem.exists(target):
            self._undo_log.record(target)
        self._filesystem.delete(path, recursive=recursive)

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Create a directory."""
        self._record_file(path)
        self._filesystem.mkdir(path, parents=parents, exist_ok=exist_ok)

    def _record_file(self, path: str) -> None:
        """Record a file, or that nothing is there; on anything else the change will fail."""
        target = normalize_path(path)
        if not target:
            return
        if not self._filesystem.exists(target) or self._filesystem.stat(target).is_file:
            self._undo_log.record(target)

    def _record_everything(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method beyond the protocol, which may change anything."""

        def call(*arguments: Any, **options: Any) -> Any:
            self._undo_log.record("")
            return method(*arguments, **options)

        return call


def unwrap(filesystem: Filesystem) -> Filesystem:
    """Return the filesystem inside a recording proxy; any other filesystem as it is given."""
    return filesystem.original if isinstance(filesystem, RecordingFilesystem) else filesystem


@contextmanager
def all_or_none(filesystem: Filesystem) -> Generator[Filesystem, None, None]:
    """Make several changes; if an exception leaves the block, all of them are undone.

    The changes must be made on the filesystem that the block gets. Meanwhile other threads
    that use savepoints or transactions cannot change anything.
    """
    savepoint = open_savepoint(filesystem)
    if savepoint is not None:
        with savepoint:
            yield filesystem
        return
    undo_log = UndoLog(filesystem)
    try:
        yield RecordingFilesystem(undo_log)
    except BaseException:
        undo_log.rollback()
        raise
    undo_log.release()


_: type[Filesystem] = RecordingFilesystem  # the type checker verifies the protocol
