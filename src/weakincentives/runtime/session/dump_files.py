"""The two files of a dump: the text, and the archive whose hash the text names.

They are replaced one after the other, so the new text is put beside the old one first.
Whoever finds a text that does not fit the archive looks there: at every moment, also
after a crash, there is one text that fits.
"""

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from weakincentives.filesystem.archive import ArchiveError, open_archive
from weakincentives.filesystem.snapshot_manager import SUFFIX, FileIdentity, mark_at
from weakincentives.posix import fault_point, open_regular, os_error, sync_directory
from weakincentives.runtime.session.dump_format import (
    BEGINNING,
    DumpedArchive,
    DumpError,
    DumpHeader,
    dump_error,
    read_header,
)

WRITTEN, WAITING, ARCHIVED = "dump.written", "dump.waiting", "dump.archived"
NAMED, CLEARED = "dump.named", "dump.cleared"
FAULT_POINTS = (WRITTEN, WAITING, ARCHIVED, NAMED, CLEARED)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DUMP_BOTH = "dump the session again, or bring the two files of one dump together"


@dataclass(frozen=True, slots=True)
class DumpFiles:
    """Where the files of a dump are, or are to be."""

    text: Path

    @property
    def archive(self) -> Path:
        """The archive beside the text."""
        return self.text.with_suffix(SUFFIX)

    @property
    def waiting(self) -> Path:
        """The next text, while the archive is replaced."""
        return self.text.with_name(f".{self.text.name}.next")

    @property
    def marks(self) -> tuple[FileIdentity | None, FileIdentity | None]:
        """What the files look like now."""
        return mark_at(self.text), mark_at(self.archive)

    def publish(self, text: Path, archive: Path | None) -> None:
        """Put new files, which are on the disk already, in the place of the old ones.

        Raises:
            FileExistsError: What is there is not a file, or no dump.
        """
        with _alone(self.text.parent) as directory:
            self._refuse_others()
            self._finish()
            if archive is None:
                self._replace(text, directory)
            else:
                self._replace_both(text, archive, directory)

    def find(self, *, text_only: bool) -> tuple[Path, DumpHeader]:
        """Return the text of the dump, with its header.

        With `text_only` nobody asks for the archive.

        Raises:
            FileNotFoundError: There is no dump.
            DumpError: The text is none, or does not fit the archive.
        """
        header = _header_at(self.text)
        if header is not None and (text_only or self._fits(header)):
            return self.text, header
        waiting = self._waiting_header()
        if waiting is not None:
            return self.waiting, waiting
        if header is None:
            raise os_error(errno.ENOENT, str(self.text), "There is no dump")
        if mark_at(self.archive) is None:
            raise dump_error(
                self.archive, "Archive of the dump is missing", "put it there, or dump again"
            )
        raise dump_error(self.archive, f"Archive is not that of {self.text.name!r}", _DUMP_BOTH)

    def _replace(self, text: Path, directory: int) -> None:
        text.replace(self.text)
        sync_directory(directory)
        fault_point(NAMED)
        self.archive.unlink(missing_ok=True)
        fault_point(CLEARED)

    def _replace_both(self, text: Path, archive: Path, directory: int) -> None:
        text.replace(self.waiting)
        try:
            sync_directory(directory)
            fault_point(WAITING)
            archive.replace(self.archive)
        except BaseException:
            if archive.exists():  # else it is replaced, and only this text fits it
                self.waiting.unlink()
            raise
        sync_directory(directory)
        fault_point(ARCHIVED)
        self.waiting.replace(self.text)
        sync_directory(directory)
        fault_point(NAMED)

    def _refuse_others(self) -> None:
        """Refuse to replace what is somebody else's; a damaged dump is ours."""
        for path in (self.text, self.archive, self.waiting):
            with suppress(FileNotFoundError):
                if not stat.S_ISREG(path.lstat().st_mode):
                    raise os_error(
                        errno.EEXIST, str(path), "No regular file, in the place of a dump"
                    )
        with suppress(FileNotFoundError), open_dump(self.text) as file:
            start = file.read(len(BEGINNING))
            if start and start != BEGINNING[: len(start)]:
                text = "No dump, in the place of one (remove it, or give another target)"
                raise os_error(errno.EEXIST, str(self.text), text)

    def _finish(self) -> None:
        """Bring a dump to its end that was cut off after its archive was replaced."""
        if self._waiting_header() is not None:
            self.waiting.replace(self.text)
        self.waiting.unlink(missing_ok=True)

    def _waiting_header(self) -> DumpHeader | None:
        """Return the header of the next text, if that is the one that fits the archive."""
        try:
            header = _header_at(self.waiting)
            return header if header is not None and self._fits(header) else None
        except DumpError:
            return None

    def _fits(self, header: DumpHeader) -> bool:
        return header.archive is None or header.archive == _described(self.archive, header.archive)


@contextmanager
def open_dump(path: Path) -> Generator[BinaryIO, None, None]:
    """Open the text of a dump.

    Raises:
        DumpError: It is no regular file.
    """
    try:
        descriptor, _ = open_regular(path)
    except PermissionError as error:
        if error.errno != errno.EPERM:
            raise
        if path.is_symlink():
            raise dump_error(path, "Text of the dump is a link", "name the file itself") from None
        hint = "give the .jsonl file of the dump"
        raise dump_error(path, "Dump is not a regular file", hint) from None
    with os.fdopen(descriptor, "rb") as file:
        yield file


def write_text(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file that only its owner may read, and bring it to the disk."""
    with os.fdopen(os.open(path, _NEW, 0o600), "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        fault_point(WRITTEN)
        os.fsync(file.fileno())


def describe_archive(path: Path) -> DumpedArchive:
    """Return what tells an archive from any other file."""
    with os.fdopen(open_archive(path), "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return DumpedArchive(digest, file.tell())


def _described(path: Path, expected: DumpedArchive) -> DumpedArchive | None:
    """Return what is at `path`; None if that cannot be what is expected."""
    try:
        found = mark_at(path)
        return None if found is None or found.size != expected.size else describe_archive(path)
    except FileNotFoundError:
        return None
    except ArchiveError as error:
        raise dump_error(path, str(error), _DUMP_BOTH) from error


def _header_at(path: Path) -> DumpHeader | None:
    try:
        with open_dump(path) as file:
            return read_header(path, file)
    except FileNotFoundError:
        return None


@contextmanager
def _alone(path: Path) -> Generator[int, None, None]:
    """Open a directory; nobody else replaces dumps in it meanwhile."""
    directory = os.open(path, _DIRECTORY)
    try:
        with suppress(OSError):  # a disk without locks is used without
            fcntl.flock(directory, fcntl.LOCK_EX)
        try:
            yield directory
        finally:
            # said aloud: a child that was forked meanwhile has the descriptor too
            with suppress(OSError):
                fcntl.flock(directory, fcntl.LOCK_UN)
    finally:
        os.close(directory)
