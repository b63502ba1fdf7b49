"""The format of a dump: a text with the sessions, and an archive with the files.

The text is a header line, then one line with the snapshot of each session. The header lists
what follows, so a truncated file is never taken for a complete one. Nothing that the text
names is imported or called.

The two files are replaced one after the other, so the new text is first put beside the old
one. A reader whose text does not match the archive looks there: at every moment, also after
a crash, exactly one text matches.
"""

import errno
import fcntl
import hashlib
import os
import re
import stat
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from weakincentives.errors import WinkError
from weakincentives.filesystem.archive import ArchiveError, open_archive
from weakincentives.filesystem.snapshot_manager import ARCHIVE_SUFFIX, FileIdentity, read_identity
from weakincentives.posix import check_time, fault_point, open_regular, os_error, sync_directory
from weakincentives.runtime.session import snapshots
from weakincentives.runtime.session.snapshots import (
    NamedSlice,
    Snapshot,
    SnapshotFormatError,
    Types,
    Unknown,
    UnknownTypeError,
    find_imported_type,
    list_slices,
    read_snapshot,
)
from weakincentives.serde import SerdeError, convert, decode, encode

FORMAT = "wink-dump"
VERSION = 1
BEGINNING = b'{"format":"%s"' % FORMAT.encode()
_BATCH_SIZE = 64  # items encoded at once
_MAX_HEADER = 64 * 1024**2  # bytes; a file without line breaks is not read completely
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHOOSE_FILE = "pass the .jsonl file that dump_session_tree returned"
_COPY_AGAIN = "copy it again, or dump the session again"
WRITTEN, WAITING, ARCHIVED = "dump.written", "dump.waiting", "dump.archived"
NAMED, CLEARED = "dump.named", "dump.cleared"
FAULT_POINTS = (WRITTEN, WAITING, ARCHIVED, NAMED, CLEARED)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DUMP_AGAIN = "dump the session again, or put the two files of one dump together"


class DumpError(WinkError, ValueError):
    """A dump cannot be loaded, and nothing has changed."""


@dataclass(frozen=True, slots=True)
class DumpedArchive:
    """The hash and size that identify the archive of a dump."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class DumpedSession:
    """A session in the tree; `parent` is the index of its parent."""

    session_id: UUID
    snapshot_id: UUID
    parent: int | None
    created_at: datetime
    tags: dict[str, str]


@dataclass(frozen=True, slots=True)
class DumpHeader:
    """The first line: the contents of the dump."""

    format: str
    version: int
    created_at: datetime
    archive: DumpedArchive | None
    sessions: list[DumpedSession]


def dump_error(path: Path, fact: str, remedy: str = _COPY_AGAIN) -> DumpError:
    """Return an error with a fact, the path, and what to do."""
    return DumpError(f"{fact}: {str(path)!r} ({remedy})")


def encode_dump(header: DumpHeader, taken: Iterable[Snapshot]) -> Iterator[bytes]:
    """Yield the text of a dump in pieces.

    Raises:
        SerdeError: A value cannot be read back from JSON.
    """
    line = encode(header)
    decode(line, DumpHeader)
    yield line + b"\n"
    for snapshot in taken:
        yield from _snapshot_line(snapshot)


def read_header(path: Path, file: BinaryIO) -> DumpHeader:
    """Return the header of the dump in `file`, which is at `path`.

    Raises:
        DumpError: It is not a dump, has another version, or is damaged.
    """
    line = file.readline(_MAX_HEADER)
    try:
        data = decode(line, object)
    except SerdeError as error:
        if not line.endswith(b"\n"):
            raise dump_error(path, "Not a session dump, or truncated in its first line") from None
        raise dump_error(path, f"Not a session dump: {error}", _CHOOSE_FILE) from error
    _check_version(path, data)
    try:
        header = convert(data, DumpHeader)
    except SerdeError as error:
        raise dump_error(path, f"Header of the dump is damaged: {error}") from error
    flaw = _find_flaw(header)
    if flaw is not None:
        raise dump_error(path, f"Header of the dump is damaged: {flaw}")
    return header


def read_snapshots(
    path: Path, file: BinaryIO, header: DumpHeader, types: Types, unknown: Unknown
) -> list[Snapshot]:
    """Return the snapshots that follow the header.

    Raises:
        DumpError: The dump is truncated or damaged, or has a slice whose type is neither in
            `types` nor a dataclass of an imported module.
    """
    found: list[Snapshot] = []
    size = os.fstat(file.fileno()).st_size  # no line is longer, even if the file grows
    for expected in header.sessions:
        line = file.readline(size)
        if not line.endswith(b"\n"):
            count = len(header.sessions)
            raise dump_error(path, f"Dump is truncated after {len(found)} of {count} sessions")
        number = len(found) + 2
        snapshot = _snapshot(path, number, line, types, unknown)
        if (snapshot.session_id, snapshot.snapshot_id) != (
            expected.session_id,
            expected.snapshot_id,
        ):
            raise dump_error(path, f"Line {number} of the dump belongs to another dump")
        found.append(snapshot)
    if file.read(1):
        raise dump_error(path, f"Dump continues after its last session, line {len(found) + 1}")
    return found


def _snapshot(path: Path, number: int, line: bytes, types: Types, unknown: Unknown) -> Snapshot:
    try:
        return read_snapshot(line, types, find=find_imported_type, unknown=unknown)
    except SnapshotFormatError as error:
        raise dump_error(path, f"Line {number} of the dump: {error}", _remedy(error)) from error


def _remedy(error: SnapshotFormatError) -> str:
    if isinstance(error, UnknownTypeError):
        moved = f"if it has moved, under this name: types={{{error.type_name!r}: ...}}"
        if error.type_name.partition(":")[0] in sys.modules:  # importing it would not help
            return f"pass the type in types=; {moved}; or load it as data: unknown='data'"
        return (
            f"pass the type in types=, or import its module; {moved};"
            " or load it as data: unknown='data'"
        )
    if "this program reads" in str(error):
        return "load it with a newer weakincentives"
    return _COPY_AGAIN


def _check_version(path: Path, data: object) -> None:
    match data:
        case {"format": str(name), "version": int(version)} if name == FORMAT:
            if version != VERSION:
                fact = f"Dump has version {version!r}, this program reads {VERSION!r}"
                raise dump_error(
                    path, fact, "load it with the weakincentives that wrote it, or newer"
                )
        case _:
            raise dump_error(
                path, f"Not a session dump: no format {FORMAT!r} and version", _CHOOSE_FILE
            )


def _find_flaw(header: DumpHeader) -> str | None:
    """Return what is wrong with a header, or None."""
    archive = header.archive
    if archive is not None and (archive.size < 0 or not _SHA256.fullmatch(archive.sha256)):
        return f"invalid hash or size of the archive: {archive!r}"
    if not header.sessions:
        return "no sessions"
    for date in (header.created_at, *(each.created_at for each in header.sessions)):
        if date.tzinfo is None:
            return f"a date has no time zone: {date.isoformat()!r}"
    for place, each in enumerate(header.sessions):
        if (each.parent is None) != (place == 0) or not -1 < (each.parent or 0) < max(place, 1):
            return f"session {place} does not follow its parent: {each.parent!r}"
    return None


def _snapshot_line(snapshot: Snapshot) -> Iterator[bytes]:
    """Yield the JSON of `Snapshot.to_json` and a line break, in pieces."""
    head = {
        "format": snapshots.FORMAT,
        "version": snapshots.VERSION,
        "snapshot_id": snapshot.snapshot_id,
        "session_id": snapshot.session_id,
        "created_at": snapshot.created_at,
        "tag": snapshot.tag,
    }
    yield encode(head)[:-1] + b',"slices":['
    comma = b""
    for each in list_slices(snapshot.slices, snapshot.logs):
        start = {"type": each.name, "log": each.is_log}
        yield comma + encode(start)[:-1] + b',"items":['
        yield from _items(each)
        yield b"]}"
        comma = b","
    yield b"]}\n"


def _items(stored: NamedSlice) -> Iterator[bytes]:
    items = stored.check()
    for start in range(0, len(items), _BATCH_SIZE):
        check_time("Dump")
        try:
            data = encode(items[start : start + _BATCH_SIZE])
        except SerdeError as error:
            raise SerdeError(f"Slice {stored.name!r}: {error}") from error
        yield (b"," if start else b"") + data[1:-1]


@dataclass(frozen=True, slots=True)
class DumpFiles:
    """The paths of a dump's files, and their atomic replacement."""

    text: Path

    @property
    def archive(self) -> Path:
        """The archive beside the text."""
        return self.text.with_suffix(ARCHIVE_SUFFIX)

    @property
    def pending(self) -> Path:
        """The new text, while the archive is being replaced."""
        return self.text.with_name(f".{self.text.name}.next")

    @property
    def identities(self) -> tuple[FileIdentity | None, FileIdentity | None]:
        """The identities of both files now, to detect replacement."""
        return read_identity(self.text), read_identity(self.archive)

    def publish(self, text: Path, archive: Path | None) -> None:
        """Replace the old files by new ones, which are already synced to disk.

        Raises:
            FileExistsError: An existing file is not a regular file or not a dump.
        """
        with _lock_directory(self.text.parent) as directory:
            self._check_replaceable()
            self._finish_interrupted()
            if archive is None:
                self._replace(text, directory)
            else:
                self._replace_both(text, archive, directory)

    def find(self, *, text_only: bool) -> tuple[Path, DumpHeader]:
        """Return the text of the dump and its header.

        With `text_only` the archive is not checked.

        Raises:
            FileNotFoundError: There is no dump.
            DumpError: The text is not a dump, or does not match the archive.
        """
        header = _header_at(self.text)
        if header is not None and (text_only or self._matches(header)):
            return self.text, header
        pending = self._pending_header()
        if pending is not None:
            return self.pending, pending
        if header is None:
            raise os_error(errno.ENOENT, str(self.text), "No such dump")
        if read_identity(self.archive) is None:
            raise dump_error(
                self.archive, "The dump's archive is missing", "put it there, or dump again"
            )
        fact = f"Archive does not belong to {self.text.name!r}"
        raise dump_error(self.archive, fact, _DUMP_AGAIN)

    def _replace(self, text: Path, directory: int) -> None:
        text.replace(self.text)
        sync_directory(directory)
        fault_point(NAMED)
        self.archive.unlink(missing_ok=True)
        fault_point(CLEARED)

    def _replace_both(self, text: Path, archive: Path, directory: int) -> None:
        text.replace(self.pending)
        try:
            sync_directory(directory)
            fault_point(WAITING)
            archive.replace(self.archive)
        except BaseException:
            if archive.exists():  # otherwise it is in place, and only the new text matches it
                self.pending.unlink()
            raise
        sync_directory(directory)
        fault_point(ARCHIVED)
        self.pending.replace(self.text)
        sync_directory(directory)
        fault_point(NAMED)

    def _check_replaceable(self) -> None:
        """Check that existing files are a dump, which may be damaged."""
        for path in (self.text, self.archive, self.pending):
            with suppress(FileNotFoundError):
                if not stat.S_ISREG(path.lstat().st_mode):
                    raise os_error(
                        errno.EEXIST, str(path), "Cannot replace what is not a regular file"
                    )
        with suppress(FileNotFoundError), open_dump(self.text) as file:
            start = file.read(len(BEGINNING))
            if start and start != BEGINNING[: len(start)]:
                text = "Existing file is not a dump (remove it, or choose another target)"
                raise os_error(errno.EEXIST, str(self.text), text)

    def _finish_interrupted(self) -> None:
        """Finish a dump that was interrupted after its archive was replaced."""
        if self._pending_header() is not None:
            self.pending.replace(self.text)
        self.pending.unlink(missing_ok=True)

    def _pending_header(self) -> DumpHeader | None:
        """Return the header of the new text, if that matches the archive."""
        try:
            header = _header_at(self.pending)
            return header if header is not None and self._matches(header) else None
        except DumpError:
            return None

    def _matches(self, header: DumpHeader) -> bool:
        return header.archive is None or header.archive == _describe_if_same_size(
            self.archive, header.archive
        )


@contextmanager
def open_dump(path: Path) -> Generator[BinaryIO, None, None]:
    """Open the text of a dump.

    Raises:
        DumpError: It is not a regular file.
    """
    try:
        descriptor, _ = open_regular(path)
    except PermissionError as error:
        if error.errno != errno.EPERM:
            raise
        if path.is_symlink():
            raise dump_error(path, "Dump is a symbolic link", "pass the file itself") from None
        hint = "pass the .jsonl file of the dump"
        raise dump_error(path, "Dump is not a regular file", hint) from None
    with os.fdopen(descriptor, "rb") as file:
        yield file


def write_text(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file with mode 0600, and sync it to disk."""
    with os.fdopen(os.open(path, _NEW, 0o600), "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        fault_point(WRITTEN)
        os.fsync(file.fileno())


def describe_archive(path: Path) -> DumpedArchive:
    """Return the hash and size of an archive."""
    with os.fdopen(open_archive(path), "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return DumpedArchive(digest, file.tell())


def _describe_if_same_size(path: Path, expected: DumpedArchive) -> DumpedArchive | None:
    """Return the hash and size of an archive; None if its size differs from `expected`."""
    try:
        found = read_identity(path)
        return None if found is None or found.size != expected.size else describe_archive(path)
    except FileNotFoundError:
        return None
    except ArchiveError as error:
        raise dump_error(path, str(error), _DUMP_AGAIN) from error


def _header_at(path: Path) -> DumpHeader | None:
    try:
        with open_dump(path) as file:
            return read_header(path, file)
    except FileNotFoundError:
        return None


@contextmanager
def _lock_directory(path: Path) -> Generator[int, None, None]:
    """Open a directory and lock it against other writers of dumps."""
    directory = os.open(path, _DIRECTORY)
    try:
        with suppress(OSError):  # some filesystems have no locks
            fcntl.flock(directory, fcntl.LOCK_EX)
        try:
            yield directory
        finally:
            # explicitly: a child that was forked meanwhile has the descriptor too
            with suppress(OSError):
                fcntl.flock(directory, fcntl.LOCK_UN)
    finally:
        os.close(directory)
