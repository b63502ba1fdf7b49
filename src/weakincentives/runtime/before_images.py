"""Before-images and undo logs for filesystems that have only the protocol's methods.

An undo log records what is at a path before it changes, and rolls back by writing it again.
Only what the protocol can express is restored: directories, files and their bytes, but no
links, permissions or dates.
"""

import errno
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem import (
    MAX_WRITE_LENGTH,
    DirectoryCreated,
    FileDeleted,
    FileEntry,
    Filesystem,
    FilesystemEvent,
    FileWritten,
    WriteMode,
    WriteResult,
    normalize_path,
)
from weakincentives.filesystem.base import CHANGING_METHODS, is_binary, open_savepoint
from weakincentives.posix import display_path, join, parents_of


@dataclass(frozen=True, slots=True)
class BeforeImage:
    """The content of a path before a change, with everything below it.

    Args:
        path: The path; empty for the whole filesystem.
        files: The bytes of every file.
        directories: Every directory, parents first.
        others: Entries that are neither, such as links: the protocol cannot create them.
    """

    path: str
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    directories: tuple[str, ...] = ()
    others: frozenset[str] = frozenset()

    def covers(self, path: str) -> bool:
        """Return whether `path` is part of the image."""
        return not self.path or path == self.path or path.startswith(f"{self.path}/")


def capture_image(filesystem: Filesystem, path: str = "") -> BeforeImage:
    """Return an image of a path as it is now.

    Raises:
        OSError: It cannot be read, or a directory is too large to list.
    """
    if path:
        if not filesystem.exists(path):
            return BeforeImage(path)
        found = filesystem.stat(path)
        if found.is_file:
            return BeforeImage(path, {path: read_entire_file(filesystem, path)})
        if not found.is_directory:
            return BeforeImage(path, others=frozenset({path}))
    files: dict[str, bytes] = {}
    directories, others = ([path] if path else []), set[str]()
    for entry_path, entry in walk(filesystem, path):
        if entry.is_directory:
            directories.append(entry_path)
        elif entry.is_file:
            files[entry_path] = read_entire_file(filesystem, entry_path)
        else:
            others.add(entry_path)
    return BeforeImage(path, files, tuple(directories), frozenset(others))


def walk(filesystem: Filesystem, path: str = "") -> Iterator[tuple[str, FileEntry]]:
    """Yield every entry below a directory with its path, directories before their entries.

    Raises:
        OSError: A directory cannot be listed completely.
    """
    pending = [path]
    while pending:
        directory = pending.pop()
        entries = filesystem.list(directory or ".")
        if getattr(entries, "truncated", False):
            reason = "Directory has too many entries to record for rollback"
            raise OSError(errno.EOVERFLOW, reason, display_path(directory))
        for entry in entries:
            entry_path = join(directory, entry.name)
            yield entry_path, entry
            if entry.is_directory:
                pending.append(entry_path)


def restore_image(filesystem: Filesystem, image: BeforeImage) -> None:
    """Restore the state of an image; what has not changed is not touched.

    Raises:
        OSError: Something could not be restored.
    """
    now = capture_image(filesystem, image.path)
    wanted = {*image.files, *image.directories, *image.others}
    kinds = {**dict.fromkeys(image.files, "file"), **dict.fromkeys(image.directories, "directory")}
    present = {**dict.fromkeys(now.files, "file"), **dict.fromkeys(now.directories, "directory")}
    for path in sorted({*present, *now.others}, key=lambda path: path.count("/")):
        is_in_the_way = path not in wanted or present.get(path) != kinds.get(path)
        if is_in_the_way and filesystem.exists(path):
            filesystem.delete(path, recursive=present.get(path) == "directory")
    for path in image.directories:
        if not filesystem.exists(path):
            filesystem.mkdir(path)
    for path, data in image.files.items():
        if now.files.get(path) != data or not filesystem.exists(path):
            write_entire_file(filesystem, path, data)


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


class UndoLog:
    """Before-images of what is about to change, and the events of what changed."""

    def __init__(self, filesystem: Filesystem) -> None:
        """Start an empty log for `filesystem`."""
        self.filesystem = filesystem
        self.events: list[FilesystemEvent] = []
        self._images: list[BeforeImage] = []

    def record(self, path: str) -> None:
        """Record the before-image of a path, including parent directories that do not exist yet.

        Raises:
            OSError: It cannot be recorded, so it must not be changed.
        """
        first = next(
            (each for each in (*parents_of(path), path) if not self.filesystem.exists(each or ".")),
            path,
        )
        if any(image.covers(first) for image in self._images):
            return
        image = capture_image(self.filesystem, first)
        if image.others:
            special = min(image.others)
            raise OSError(errno.EPERM, "Cannot change what could not be rolled back", special)
        self._images.append(image)

    def rollback(self) -> None:
        """Restore all images, the latest first.

        Raises:
            SnapshotRestoreError: Something could not be restored; everything else was.
        """
        failure: Exception | None = None
        while self._images:
            image = self._images.pop()
            try:
                restore_image(self.filesystem, image)
            except Exception as error:  # noqa: BLE001 # the other images are restored regardless
                failure = failure or error
        if failure is not None:
            raise SnapshotRestoreError(f"Rollback incomplete: {failure}") from failure


class RecordingFilesystem:
    """A proxy for any filesystem that records before-images in an undo log."""

    def __init__(self, undo_log: UndoLog) -> None:
        """Wrap the filesystem of `undo_log`."""
        self._undo_log = undo_log
        self._filesystem = undo_log.filesystem

    @property
    def original(self) -> Filesystem:
        """The wrapped filesystem."""
        return unwrap(self._filesystem)

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
    def root(self) -> str:
        """The root of the filesystem."""
        return self._filesystem.root

    @property
    def read_only(self) -> bool:
        """Whether writes are rejected."""
        return self._filesystem.read_only

    def read(self, path: str, **options: Any) -> Any:
        """Return a page of text."""
        return self._filesystem.read(path, **options)

    def read_bytes(self, path: str, **options: Any) -> Any:
        """Return a range of bytes."""
        return self._filesystem.read_bytes(path, **options)

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""
        return self._filesystem.exists(path)

    def stat(self, path: str) -> Any:
        """Return the metadata of a path."""
        return self._filesystem.stat(path)

    def list(self, path: str = ".") -> Any:
        """Return the entries of a directory."""
        return self._filesystem.list(path)

    def glob(self, pattern: str, **options: Any) -> Any:
        """Return the matching files."""
        return self._filesystem.glob(pattern, **options)

    def grep(self, pattern: str, **options: Any) -> Any:
        """Return the matching lines."""
        return self._filesystem.grep(pattern, **options)

    def write(
        self,
        path: str,
        content: str,
        *,
        mode: WriteMode = "overwrite",
        create_parents: bool = True,
    ) -> WriteResult:
        """Write text."""

        def write() -> WriteResult:
            return self._filesystem.write(path, content, mode=mode, create_parents=create_parents)

        return self._record_write(path, content.encode("utf-8", "surrogatepass"), mode, write)

    def write_bytes(
        self,
        path: str,
        content: bytes,
        *,
        mode: WriteMode = "overwrite",
        create_parents: bool = True,
    ) -> WriteResult:
        """Write bytes."""

        def write() -> WriteResult:
            return self._filesystem.write_bytes(
                path, content, mode=mode, create_parents=create_parents
            )

        return self._record_write(path, content, mode, write)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file or directory."""
        target = normalize_path(path)
        if target and self._filesystem.exists(target):
            self._undo_log.record(target)
        before = self._read_state(target)
        self._filesystem.delete(path, recursive=recursive)
        if isinstance(before, bytes):
            content_hash, size = sha256(before).hexdigest(), len(before)
            self._undo_log.events.append(FileDeleted(target, "file", content_hash, size))
        elif before == "directory":
            self._undo_log.events.append(FileDeleted(target, "directory"))

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Create a directory."""
        target = normalize_path(path)
        missing = self._find_missing(target)
        if missing:
            self._undo_log.record(missing[0])
        self._filesystem.mkdir(path, parents=parents, exist_ok=exist_ok)
        self._undo_log.events += map(DirectoryCreated, missing)

    def _record_write(
        self, path: str, data: bytes, mode: WriteMode, write: Callable[[], WriteResult]
    ) -> WriteResult:
        target = normalize_path(path)
        before = self._read_state(target)
        missing = self._find_missing(target)
        if isinstance(before, bytes) or missing:
            self._undo_log.record(missing[0] if missing else target)
        result = write()
        after = data
        if mode == "append" or self._filesystem.stat(target).size_bytes != len(data):
            after = read_entire_file(self._filesystem, target)
        self._undo_log.events += map(DirectoryCreated, missing[:-1])
        old = before if isinstance(before, bytes) else None
        self._undo_log.events.append(
            file_written_event(target, old, after, result.bytes_written, mode)
        )
        return result

    def _find_missing(self, path: str) -> tuple[str, ...]:
        """Return those of a path and its parents that do not exist, the topmost first."""
        return tuple(each for each in (*parents_of(path), path) if not self._exists(each))

    def _exists(self, path: str) -> bool:
        return not path or self._filesystem.exists(path)

    def _read_state(self, path: str) -> bytes | str | None:
        """Return the bytes of a file, the kind of any other entry, or None if missing."""
        if not self._exists(path):
            return None
        found = self._filesystem.stat(path or ".")
        if found.is_file:
            return read_entire_file(self._filesystem, path)
        return "directory" if found.is_directory else "other"

    def _record_everything(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method beyond the protocol, which may change anything."""

        def call(*arguments: Any, **options: Any) -> Any:
            before = capture_image(self._filesystem)
            self._undo_log.record("")
            result = method(*arguments, **options)
            self._undo_log.events += diff_images(before, capture_image(self._filesystem))
            return result

        return call


@contextmanager
def all_or_none(filesystem: Filesystem) -> Generator[Filesystem, None, None]:
    """Make several changes; if an exception leaves the block, all of them are undone.

    The changes must be made on the filesystem that the block gets. Meanwhile other threads
    cannot change anything, if the filesystem has savepoints.
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


def unwrap(filesystem: Filesystem) -> Filesystem:
    """Return the filesystem inside a recording proxy; any other filesystem as it is given."""
    return filesystem.original if isinstance(filesystem, RecordingFilesystem) else filesystem


def diff_images(before: BeforeImage, after: BeforeImage) -> Iterator[FilesystemEvent]:
    """Yield the events of a change from `before` to `after`."""
    for path in sorted({*before.files, *before.directories}, reverse=True):
        if path in before.files and path not in after.files:
            data = before.files[path]
            yield FileDeleted(path, "file", sha256(data).hexdigest(), len(data))
        elif path in before.directories and path not in after.directories:
            yield FileDeleted(path, "directory")
    for path in sorted(set(after.directories) - set(before.directories)):
        yield DirectoryCreated(path)
    for path, data in sorted(after.files.items()):
        old = before.files.get(path)
        if old != data:
            yield file_written_event(path, old, data, len(data), "overwrite")


def file_written_event(
    path: str, before: bytes | None, after: bytes, written: int, mode: WriteMode
) -> FileWritten:
    """Return the event of a file whose content was `before` and is `after`."""
    return FileWritten(
        path=path,
        bytes_written=written,
        mode=mode,
        created=before is None,
        before_hash=None if before is None else sha256(before).hexdigest(),
        after_hash=sha256(after).hexdigest(),
        before_size=None if before is None else len(before),
        after_size=len(after),
        encoding="binary" if is_binary(after) else "utf-8",
    )


_: type[Filesystem] = RecordingFilesystem  # the type checker verifies the protocol
