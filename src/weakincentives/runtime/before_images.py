"""Before-images: what was at a path before it changed, kept and put back on any filesystem.

Only the methods of the protocol are used, so only what they can say is put back: directories,
files and their bytes. Links, permissions and dates they cannot say.
"""

import errno
from collections.abc import Callable, Iterator, Mapping
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
from weakincentives.filesystem.protocol import CHANGING_METHODS
from weakincentives.filesystem.text import is_binary
from weakincentives.posix import display_path, join, parents_of


@dataclass(frozen=True, slots=True)
class BeforeImage:
    """What was at a path, with everything below it.

    Args:
        path: The path; empty for the whole filesystem.
        files: The bytes of every file.
        directories: Every directory, those above before those below.
        others: What is neither, such as a link: it can be seen, and not be made.
    """

    path: str
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    directories: tuple[str, ...] = ()
    others: frozenset[str] = frozenset()

    def covers(self, path: str) -> bool:
        """Whether what is at `path` is part of it."""
        return not self.path or path == self.path or path.startswith(f"{self.path}/")


def capture_image(filesystem: Filesystem, path: str = "") -> BeforeImage:
    """Return what is at a path now.

    Raises:
        OSError: It cannot be read, or there is too much to be listed.
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
    for place, entry in walk(filesystem, path):
        if entry.is_directory:
            directories.append(place)
        elif entry.is_file:
            files[place] = read_entire_file(filesystem, place)
        else:
            others.add(place)
    return BeforeImage(path, files, tuple(directories), frozenset(others))


def walk(filesystem: Filesystem, path: str = "") -> Iterator[tuple[str, FileEntry]]:
    """Yield everything below a directory with its path, directories before what is in them.

    Raises:
        OSError: A directory cannot be listed, or not to its end.
    """
    pending = [path]
    while pending:
        place = pending.pop()
        entries = filesystem.list(place or ".")
        if getattr(entries, "truncated", False):
            raise OSError(errno.EOVERFLOW, "Too many entries to keep them all", display_path(place))
        for entry in entries:
            below = join(place, entry.name)
            yield below, entry
            if entry.is_directory:
                pending.append(below)


def restore_image(filesystem: Filesystem, image: BeforeImage) -> None:
    """Make what is at a path what it was; what is the same is not touched.

    Raises:
        OSError: It cannot be done.
    """
    now = capture_image(filesystem, image.path)
    kept = {*image.files, *image.directories, *image.others}
    kinds = {**dict.fromkeys(image.files, "file"), **dict.fromkeys(image.directories, "directory")}
    present = {**dict.fromkeys(now.files, "file"), **dict.fromkeys(now.directories, "directory")}
    for path in sorted({*present, *now.others}, key=lambda path: path.count("/")):
        is_in_the_way = path not in kept or present.get(path) != kinds.get(path)
        if is_in_the_way and filesystem.exists(path):
            filesystem.delete(path, recursive=present.get(path) == "directory")
    for path in image.directories:
        if not filesystem.exists(path):
            filesystem.mkdir(path)
    for path, data in image.files.items():
        if now.files.get(path) != data or not filesystem.exists(path):
            write_entire_file(filesystem, path, data)


def read_entire_file(filesystem: Filesystem, path: str) -> bytes:
    """Return all of a file, also where a read without a limit returns only a part.

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
        raise OSError(
            errno.EIO, "Cannot be read to its end, so it cannot be kept", display_path(path)
        )
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_entire_file(filesystem: Filesystem, path: str, data: bytes) -> None:
    """Write a file in parts, if all at once is refused for its length."""
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
    """Keeps the before-images of what is about to change, and tells what has changed."""

    def __init__(self, filesystem: Filesystem) -> None:
        """Record changes of `filesystem`."""
        self.filesystem = filesystem
        self.events: list[FilesystemEvent] = []
        self._images: list[BeforeImage] = []

    def keep(self, path: str) -> None:
        """Keep what is at a path, and which directories on the way to it are missing.

        Raises:
            OSError: It cannot be kept, so it must not be changed.
        """
        first = next(
            (each for each in (*parents_of(path), path) if not self.filesystem.exists(each or ".")),
            path,
        )
        if any(image.covers(first) for image in self._images):
            return
        image = capture_image(self.filesystem, first)
        if image.others:
            strange = min(image.others)
            raise OSError(errno.EPERM, "Cannot be changed, for it could not be put back", strange)
        self._images.append(image)

    def rollback(self) -> None:
        """Put everything back, the latest first.

        Raises:
            SnapshotRestoreError: Something could not be put back; everything else was.
        """
        failure: Exception | None = None
        while self._images:
            image = self._images.pop()
            try:
                restore_image(self.filesystem, image)
            except Exception as error:  # noqa: BLE001 # the others are put back all the same
                failure = failure or error
        if failure is not None:
            raise SnapshotRestoreError(f"Failed to put everything back: {failure}") from failure


class RecordingFilesystem:
    """A filesystem of anybody's, changed with a recorder at hand; the rest is passed on."""

    def __init__(self, recorder: UndoLog) -> None:
        """Change the filesystem of `recorder`."""
        self._recorder = recorder
        self._filesystem = recorder.filesystem

    @property
    def original(self) -> Filesystem:
        """The filesystem itself."""
        return unwrap(self._filesystem)

    def __getattr__(self, name: str) -> Any:
        """Return what the filesystem has beside the protocol."""
        if name == "savepoint":  # it would not undo what the recorder has recorded
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = getattr(self._filesystem, name)
        return self._with_everything_kept(found) if name in CHANGING_METHODS else found

    def __repr__(self) -> str:
        """Return what the filesystem says of itself."""
        return repr(self._filesystem)

    @property
    def root(self) -> str:
        """The root of the filesystem."""
        return self._filesystem.root

    @property
    def read_only(self) -> bool:
        """Whether writing is refused."""
        return self._filesystem.read_only

    def read(self, path: str, **options: Any) -> Any:
        """Return a page of text."""
        return self._filesystem.read(path, **options)

    def read_bytes(self, path: str, **options: Any) -> Any:
        """Return a range of bytes."""
        return self._filesystem.read_bytes(path, **options)

    def exists(self, path: str) -> bool:
        """Return whether something is there."""
        return self._filesystem.exists(path)

    def stat(self, path: str) -> Any:
        """Return the metadata of what is there."""
        return self._filesystem.stat(path)

    def list(self, path: str = ".") -> Any:
        """Return the entries of a directory."""
        return self._filesystem.list(path)

    def glob(self, pattern: str, **options: Any) -> Any:
        """Return the files that match."""
        return self._filesystem.glob(pattern, **options)

    def grep(self, pattern: str, **options: Any) -> Any:
        """Return the lines that match."""
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

        return self._written(path, content.encode("utf-8", "surrogatepass"), mode, write)

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

        return self._written(path, content, mode, write)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Remove what is there."""
        place = normalize_path(path)
        if place and self._filesystem.exists(place):
            self._recorder.keep(place)
        before = self._describe(place)
        self._filesystem.delete(path, recursive=recursive)
        if isinstance(before, bytes):
            hashed, size = sha256(before).hexdigest(), len(before)
            self._recorder.events.append(FileDeleted(place, "file", hashed, size))
        elif before == "directory":
            self._recorder.events.append(FileDeleted(place, "directory"))

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Make a directory."""
        place = normalize_path(path)
        missing = self._missing(place)
        if missing:
            self._recorder.keep(missing[0])
        self._filesystem.mkdir(path, parents=parents, exist_ok=exist_ok)
        self._recorder.events += map(DirectoryCreated, missing)

    def _written(
        self, path: str, data: bytes, mode: WriteMode, write: Callable[[], WriteResult]
    ) -> WriteResult:
        place = normalize_path(path)
        before = self._describe(place)
        missing = self._missing(place)
        if isinstance(before, bytes) or missing:
            self._recorder.keep(missing[0] if missing else place)
        done = write()
        after = data
        if mode == "append" or self._filesystem.stat(place).size_bytes != len(data):
            after = read_entire_file(self._filesystem, place)
        self._recorder.events += map(DirectoryCreated, missing[:-1])
        old = before if isinstance(before, bytes) else None
        self._recorder.events.append(
            file_written_event(place, old, after, done.bytes_written, mode)
        )
        return done

    def _missing(self, place: str) -> tuple[str, ...]:
        """Return what is not there of a path and those above it, the highest first."""
        return tuple(each for each in (*parents_of(place), place) if not self._exists(each))

    def _exists(self, place: str) -> bool:
        return not place or self._filesystem.exists(place)

    def _describe(self, place: str) -> bytes | str | None:
        """Return the bytes of a file, or the word for anything else."""
        if not self._exists(place):
            return None
        found = self._filesystem.stat(place or ".")
        if found.is_file:
            return read_entire_file(self._filesystem, place)
        return "directory" if found.is_directory else "other"

    def _with_everything_kept(self, change: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method beside the protocol, which may change anything."""

        def changed(*arguments: Any, **options: Any) -> Any:
            before = capture_image(self._filesystem)
            self._recorder.keep("")
            done = change(*arguments, **options)
            self._recorder.events += diff_images(before, capture_image(self._filesystem))
            return done

        return changed


def unwrap(filesystem: Filesystem) -> Filesystem:
    """Return the filesystem itself, if it is one that is recorded."""
    return filesystem.original if isinstance(filesystem, RecordingFilesystem) else filesystem


def diff_images(before: BeforeImage, after: BeforeImage) -> Iterator[FilesystemEvent]:
    """Yield what would have been told if `before` had become `after` step by step."""
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
    """Return what is told of a file that was `before` and is `after`."""
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


_: type[Filesystem] = RecordingFilesystem  # the type checker proves that it is one
