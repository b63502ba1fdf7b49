"""An append-only file of checksummed records.

The file is a signature and then records: a header with kind, checksum and length, and the
payload. A record is written by one call, so a process that is killed leaves at most one torn
record at the end; the reader stops there and the next writer cuts it off. The format is
specified in `docs/reference/timeline-format.md`.
"""

import errno
import fcntl
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

from weakincentives.errors import WinkError
from weakincentives.posix import open_regular, sync_directory, write_all

SIGNATURE = b"wink-timeline 2\n"
"""The first bytes of the file; the number is the version of the format."""
_EARLIER = b"wink-timeline 1\n"  # a file without a base
_HEADER = struct.Struct(">cIQ")  # kind, CRC-32, length
_CHECKED = struct.Struct(">cQ")  # what the checksum covers besides the payload
HEADER, CHUNK, STEP, BASE = b"H", b"C", b"S", b"B"
_KINDS = frozenset({HEADER, CHUNK, STEP, BASE})
HEADER_SIZE = _HEADER.size
"""Bytes in front of the payload of a record."""
MAX_RECORD = 2**31
"""Bytes in a payload; a header that declares more is damaged."""


class TimelineError(WinkError, ValueError):
    """A timeline cannot be read or continued."""


class Record(NamedTuple):
    """The place of a record in the file."""

    offset: int
    kind: bytes
    length: int

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.offset + _HEADER.size + self.length


class RecordWriter:
    """Appends records to a file that no other process writes."""

    def __init__(self, path: Path, *, find_end: Callable[[], int] | None = None) -> None:
        """Create the file, or continue one after the record that ends at `find_end()`.

        `find_end` is called when no other process can write any more.

        Raises:
            FileExistsError: It exists, and `find_end` is None.
            TimelineError: Another process is writing it.
        """
        self._path = path
        flags = os.O_CREAT | os.O_EXCL if find_end is None else 0
        flags |= os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        try:
            self._lock()
            if find_end is None:
                write_all(self._descriptor, SIGNATURE)
                self._sync_name()
            else:
                os.ftruncate(self._descriptor, find_end())  # a torn record, if any
                _sign(path)
            self._end = os.fstat(self._descriptor).st_size
        except BaseException:
            os.close(self._descriptor)
            raise

    def append(self, kind: bytes, payload: bytes) -> int:
        """Append a record; return its offset.

        Raises:
            OSError: It could not be written; the file ends where it ended before.
        """
        start = self._end
        checksum = _checksum(kind, payload)
        try:
            write_all(self._descriptor, _HEADER.pack(kind, checksum, len(payload)) + payload)
        except BaseException:
            os.ftruncate(self._descriptor, start)
            raise
        self._end = start + _HEADER.size + len(payload)
        return start

    def sync(self) -> None:
        """Wait until everything is on disk."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TimelineError(
                f"Another process is recording to this timeline: {str(self._path)!r}"
                " (wait for it to end, or record to another file)"
            ) from None
        except OSError as error:
            if error.errno not in {errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS}:
                raise  # some file systems have no locks

    def _sync_name(self) -> None:
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync_directory(directory)
        finally:
            os.close(directory)


class RecordReader:
    """Reads the records of a file, which may still be growing."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            TimelineError: It is not a timeline of this version.
            OSError: It is not a regular file, or cannot be read.
        """
        self._path = path
        self._descriptor, _ = open_regular(path)
        try:
            self._check_signature()
        except BaseException:
            os.close(self._descriptor)
            raise

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def size(self) -> int:
        """The size of the file now."""
        return os.fstat(self._descriptor).st_size

    @property
    def is_locked(self) -> bool:
        """Whether a process is writing to it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # some file systems have no locks
            return False
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return False

    def scan(self, start: int = len(SIGNATURE)) -> Iterator[Record]:
        """Yield the whole records from offset `start` on; payloads are not verified."""
        end = self.size
        while start + _HEADER.size <= end:
            header = os.pread(self._descriptor, _HEADER.size, start)
            if len(header) < _HEADER.size:
                return
            kind, _, length = _HEADER.unpack(header)
            record = Record(start, kind, length)
            if kind not in _KINDS or length > MAX_RECORD or record.end > end:
                return
            yield record
            start = record.end

    def read_bytes(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes of the file, which are not verified."""
        return os.pread(self._descriptor, size, offset)

    def read(self, offset: int, kind: bytes) -> bytes:
        """Return the payload of the record at `offset`, verified.

        Raises:
            TimelineError: There is no such record, or it is damaged.
        """
        header = os.pread(self._descriptor, _HEADER.size, offset)
        if len(header) == _HEADER.size:
            found, checksum, length = _HEADER.unpack(header)
            if found == kind and length <= MAX_RECORD:
                payload = _pread_all(self._descriptor, length, offset + _HEADER.size)
                if len(payload) == length and _checksum(kind, payload) == checksum:
                    return payload
        raise TimelineError(f"Record at byte {offset} is damaged: {str(self._path)!r}")

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _check_signature(self) -> None:
        found = os.pread(self._descriptor, len(SIGNATURE), 0)
        if found in {SIGNATURE, _EARLIER}:
            return
        name, _, version = SIGNATURE.partition(b" ")
        if found.startswith(name + b" "):
            other = found[len(name) + 1 :].split(b"\n")[0].decode("ascii", "replace")
            raise TimelineError(
                f"Timeline has version {other!r}, this program reads versions up to"
                f" {version.decode().strip()!r}: {str(self._path)!r}"
                " (read it with the weakincentives that wrote it, or newer)"
            )
        raise TimelineError(f"Not a timeline: {str(self._path)!r}")


def _sign(path: Path) -> None:
    """Make a timeline one of this version, so that an older program does not misread it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, SIGNATURE, 0)
    finally:
        os.close(descriptor)


def _checksum(kind: bytes, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_CHECKED.pack(kind, len(payload))))


def _pread_all(descriptor: int, length: int, offset: int) -> bytes:
    """Return `length` bytes from `offset`, fewer only at the end of the file."""
    parts: list[bytes] = []
    while length > 0:
        part = os.pread(descriptor, length, offset)
        if not part:
            break
        parts.append(part)
        length -= len(part)
        offset += len(part)
    return b"".join(parts)
