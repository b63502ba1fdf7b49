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

from weakincentives import posix
from weakincentives.errors import WinkError
from weakincentives.filesystem import ARCHIVE_SUFFIX, FileIdentity, read_identity
from weakincentives.filesystem.archive import ArchiveError, open_archive
from weakincentives.runtime.session import snapshots
from weakincentives.serde import SerdeError, convert, decode, encode

FORMAT = "wink-dump"
VERSION = 1
MAX_DUMP_BYTES = 1024**3
BEGINNING = b'{"format":"%s"' % FORMAT.encode()
_MAX_HEADER = 64 * 1024**2  # bytes; a file without line breaks is not read completely
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHOOSE_FILE = "pass the .jsonl file that dump_session_tree returned"
_COPY_AGAIN = "copy it again, or dump the session again"
WRITTEN, WAITING, ARCHIVED = "dump.written", "dump.waiting", "dump.archived"
NAMED, CLEARED = "dump.named", "dump.cleared"
FAULT_POINTS = (WRITTEN, WAITING, ARCHIVED, NAMED, CLEARED)
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


def encode_dump(header: DumpHeader, taken: Iterable[snapshots.Snapshot]) -> Iterator[bytes]:
    """Yield the text of a dump in pieces.

    Raises:
        SerdeError: A value cannot be read back from JSON.
    """
    line = encode(header)
    decode(line, DumpHeader)
    yield line + b"\n"
    for snapshot in taken:
        yield from snapshots.encode_snapshot(snapshot)
        yield b"\n"


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
    try:
        snapshots.check_version(data, FORMAT, VERSION, "Session dump")
        header = convert(data, DumpHeader)
    except snapshots.SnapshotFormatError as error:
        raise dump_error(path, str(error), _remedy(error, _CHOOSE_FILE)) from None
    except SerdeError as error:
        raise dump_error(path, f"Header of the dump is damaged: {error}") from error
    flaw = _find_flaw(header)
    if flaw is not None:
        raise dump_error(path, f"Header of the dump is damaged: {flaw}")
    return header


def read_dump(
    files: "DumpFiles", *, text_only: bool = False, max_bytes: int = MAX_DUMP_BYTES
) -> tuple[DumpHeader, list[snapshots.StoredSession]]:
    """Return the header and the sessions of a dump, parents first; no types are needed.

    With `text_only` the archive is not checked.

    Raises:
        FileNotFoundError: There is no dump.
        DumpError: It is not a dump, truncated, damaged, or of another version.
    """
    path, header = files.find(text_only=text_only)
    with open_dump(path) as file:
        if os.fstat(file.fileno()).st_size > max_bytes:
            fact = f"Dump is larger than {max_bytes} bytes"
            raise dump_error(path, fact, "allow more: max_bytes=")
        file.readline()
        return header, _read_sessions(path, file, header)


def _read_sessions(path: Path, file: BinaryIO, header: DumpHeader) -> list[snapshots.StoredSession]:
    """Return the sessions that follow the header."""
    found: list[snapshots.StoredSession] = []
    size = os.fstat(file.fileno()).st_size  # no line is longer, even if the file grows
    for number, each in enumerate(header.sessions, 2):
        line = file.readline(size)
        if not line.endswith(b"\n"):
            count = len(header.sessions)
            raise dump_error(path, f"Dump is truncated after {len(found)} of {count} sessions")
        try:
            document = snapshots.read_document(line)
        except snapshots.SnapshotFormatError as error:
            raise line_error(path, number, error) from error
        if (document.session_id, document.snapshot_id) != (each.session_id, each.snapshot_id):
            raise dump_error(path, f"Line {number} of the dump belongs to another dump")
        parent = None if each.parent is None else found[each.parent].session_id
        found.append(
            snapshots.StoredSession(
                each.session_id, parent, each.created_at, each.tags, document.stored
            )
        )
    if file.read(1):
        raise dump_error(path, f"Dump continues after its last session, line {len(found) + 1}")
    return found


def line_error(path: Path, number: int, error: snapshots.SnapshotFormatError) -> DumpError:
    """Return the error for a session that cannot be read or loaded."""
    return dump_error(path, f"Line {number} of the dump: {error}", _remedy(error))


def _remedy(error: snapshots.SnapshotFormatError, otherwise: str = _COPY_AGAIN) -> str:
    if isinstance(error, snapshots.UnknownTypeError):
        moved = f"if it has moved, under this name: types={{{error.type_name!r}: ...}}"
        # importing it again would not help
        is_imported = error.type_name.partition(":")[0] in sys.modules
        types = "types=" if is_imported else "types=, or import its module"
        return f"pass the type in {types}; {moved}; or load it as data: unknown='data'"
    if isinstance(error, snapshots.VersionError):
        return "load it with a newer weakincentives"
    return otherwise


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
            raise posix.os_error(errno.ENOENT, str(self.text), "No such dump")
        if read_identity(self.archive) is None:
            raise dump_error(
                self.archive, "The dump's archive is missing", "put it there, or dump again"
            )
        fact = f"Archive does not belong to {self.text.name!r}"
        raise dump_error(self.archive, fact, _DUMP_AGAIN)

    def _replace(self, text: Path, directory: int) -> None:
        text.replace(self.text)
        posix.sync_directory(directory)
        posix.fault_point(NAMED)
        self.archive.unlink(missing_ok=True)
        posix.fault_point(CLEARED)

    def _replace_both(self, text: Path, archive: Path, directory: int) -> None:
        text.replace(self.pending)
        try:
            posix.sync_directory(directory)
            posix.fault_point(WAITING)
            archive.replace(self.archive)
        except BaseException:
            if archive.exists():  # otherwise it is in place, and only the new text matches it
                self.pending.unlink()
            raise
        posix.sync_directory(directory)
        posix.fault_point(ARCHIVED)
        self.pending.replace(self.text)
        posix.sync_directory(directory)
        posix.fault_point(NAMED)

    def _check_replaceable(self) -> None:
        """Check that existing files are a dump, which may be damaged."""
        for path in (self.text, self.archive, self.pending):
            with suppress(FileNotFoundError):
                if not stat.S_ISREG(path.lstat().st_mode):
                    raise posix.os_error(
                        errno.EEXIST, str(path), "Cannot replace what is not a regular file"
                    )
        with suppress(FileNotFoundError), open_dump(self.text) as file:
            start = file.read(len(BEGINNING))
            if start and start != BEGINNING[: len(start)]:
                text = "Existing file is not a dump (remove it, or choose another target)"
                raise posix.os_error(errno.EEXIST, str(self.text), text)

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
        """Return whether the archive is the one of a header."""
        wanted = header.archive
        if wanted is None:
            return True
        try:
            found = read_identity(self.archive)
            is_same_size = found is not None and found.size == wanted.size
            return is_same_size and describe_archive(self.archive) == wanted
        except FileNotFoundError:
            return False
        except ArchiveError as error:
            raise dump_error(self.archive, str(error), _DUMP_AGAIN) from error


@contextmanager
def open_dump(path: Path) -> Generator[BinaryIO, None, None]:
    """Open the text of a dump.

    Raises:
        DumpError: It is not a regular file.
    """
    try:
        descriptor, _ = posix.open_regular(path)
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
        posix.fault_point(WRITTEN)
        os.fsync(file.fileno())


def describe_archive(path: Path) -> DumpedArchive:
    """Return the hash and size of an archive."""
    with os.fdopen(open_archive(path), "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return DumpedArchive(digest, file.tell())


def _header_at(path: Path) -> DumpHeader | None:
    try:
        with open_dump(path) as file:
            return read_header(path, file)
    except FileNotFoundError:
        return None


@contextmanager
def _lock_directory(path: Path) -> Generator[int, None, None]:
    """Open a directory and lock it against other writers of dumps."""
    with posix.open_directory(path) as directory:
        posix.lock(directory)
        try:
            yield directory
        finally:  # explicitly: a child that was forked meanwhile has the descriptor too
            posix.lock(directory, fcntl.LOCK_UN)
