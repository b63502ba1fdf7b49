"""The record file: append-only, checksummed, shared by processes.

A file is a signature, a random token, and records. The checksums are keyed with the token and
cover the position, so bytes inside a payload never look like a record, and a record that was
copied elsewhere is not one either. A process that is killed leaves at most one torn record at the
end, which the next writer cuts off. A damaged record in the middle is skipped and reported. The
format is specified in `docs/reference/history.md`.
"""

import fcntl
import os
import secrets
import struct
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from threading import RLock
from typing import NamedTuple

from weakincentives.errors import WinkError
from weakincentives.posix import (
    AtomicFile,
    CloseOnExit,
    fault_point,
    lock,
    open_regular,
    read_range,
    sync_directory,
    write_all,
)

MAX_PAYLOAD = 64 * 1024 * 1024
"""Bytes of a payload before compression; a record that inflates to more is damaged."""
_MARKER = b"\x89rec"
_START = struct.Struct(">4s1sQI16s")  # marker, kind, number, stored length, checksum of the payload
_HEADER_CHECKSUM = 8
_HEADER = _START.size + _HEADER_CHECKSUM
_TOKEN = 16
_MAX_STORED = MAX_PAYLOAD + MAX_PAYLOAD // 1000 + 1024  # what zlib makes of random bytes
_LEVEL = 6
_SEARCH = 1024 * 1024  # bytes to look at in one read
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LogError(WinkError, ValueError):
    """A record file cannot be read, or a record cannot be stored in it."""


class LogRecord(NamedTuple):
    """One record: its kind, its number among those of the kind, and its content."""

    kind: bytes
    number: int
    payload: bytes
    offset: int


class Damage(NamedTuple):
    """Bytes that are not a good record; the number is known if at least the header is good."""

    offset: int
    size: int
    number: int | None
    reason: str

    def __str__(self) -> str:
        """Return the place and what is lost."""
        what = "unknown records" if self.number is None else f"record {self.number}"
        return f"{self.size} bytes at byte {self.offset} are damaged, {what} lost: {self.reason}"


class RecordLog(CloseOnExit):
    """An append-only file of records; safe to share between threads and processes."""

    def __init__(
        self, path: Path, signature: bytes, *, durable: bool = False, read_only: bool = False
    ) -> None:
        """Open the file; create it unless `read_only`.

        Args:
            path: The file.
            signature: Its first bytes: a name, a space, the version and a line feed.
            durable: Whether `append` returns only when the record is on the disk.
            read_only: Whether to open an existing file for reading only.

        Raises:
            LogError: It is another kind of file, or has another version.
            OSError: It cannot be opened.
        """
        self.path: Path = path
        self.damage: list[Damage] = []
        """What was found damaged so far, in the order of the file."""
        self._signature = signature
        self._durable = durable
        self._read_only = read_only
        self._mutex = RLock()
        self._is_locked = False
        self._last: dict[bytes, int] = {}
        self._known: dict[bytes, int] = {}  # in the file that this one replaced
        self._unread: deque[LogRecord] = deque()
        self._torn = 0  # bytes at the end that are not a whole record
        self.written_at: int = 0
        """The offset of the last record that was appended here."""
        self._open()

    @property
    def problem(self) -> str | None:
        """What cannot be read of the file, as far as it was read; None if all can."""
        found = [str(each) for each in self.damage]
        if self._torn:
            found.append(
                f"the last {self._torn} bytes are not a whole record: the one in flight when"
                " writing stopped, or damage"
            )
        return "; ".join(found) or None

    def last(self, kind: bytes) -> int:
        """Return the number of the last record of this kind that was read or appended, or 0."""
        return max(self._last.get(kind, 0), self._known.get(kind, 0))

    def append(self, kind: bytes, make: Callable[[int], bytes]) -> int:
        """Append a record; return its number, which is one more than the last of its kind.

        `make` gets the number and returns the payload. It is called under the lock, when
        everything that other processes have appended can be had from `read_new`.

        Raises:
            LogError: The payload is too large.
            OSError: It could not be written; the file is as before.
        """
        with self._lock():
            number = self.last(kind) + 1
            stored = _compress(make(number), self.path)
            self._write(kind, number, stored)
            return number

    def read_new(self) -> Iterator[LogRecord]:
        """Yield the records that other writers have appended since the last call.

        After `compact` of another process, records that were read before are not read again.
        """
        with self._mutex:
            if not self._is_locked and self._was_replaced():
                self._reopen()
        while True:
            with self._mutex:
                found = self._unread.popleft() if self._unread else self._read_next()
                if found is None:
                    self._torn = self._measure_torn()
                    return
            yield found

    def read(self, offset: int) -> LogRecord:
        """Return the record at an offset, which `read_new` told.

        Raises:
            LogError: It is damaged, or another process has compacted the file.
        """
        size = os.fstat(self._descriptor).st_size
        header = self._read_header(offset, size)
        if header is not None:
            stored = read_range(self._descriptor, offset + _HEADER, header.length)
            payload, reason = _inflate(stored)
            if not reason and _digest(self._token, stored) == header.digest:
                return LogRecord(header.kind, header.number, payload, offset)
        raise LogError(f"Record at byte {offset} is damaged: {str(self.path)!r}")

    def compact(self, keep: Callable[[LogRecord], bool]) -> None:
        """Replace the file by one with the records for which `keep` is true, atomically.

        Numbers stay, and the last record of each kind is always kept, so that they go on. What is
        damaged is gone afterwards.

        Raises:
            OSError: The new file could not be written; the file is as before.
        """
        with self._lock():
            token = secrets.token_bytes(_TOKEN)
            with AtomicFile(self.path.parent, self._signature + token) as file:
                self._copy(keep, file.descriptor, token)
                os.fsync(file.descriptor)
                fault_point("record.compacted")
                file.name(self.path)
            sync_directory(self.path.parent)
            fault_point("record.replaced")
            self._reopen()
            self._read_rest()

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # --- the file ---

    @property
    def _first(self) -> int:
        """The offset of the first record."""
        return len(self._signature) + _TOKEN

    def _open(self) -> None:
        """Open the file, which is created if it may be."""
        if self._read_only:
            self._descriptor = open_regular(self.path)[0]
        else:
            self._descriptor = os.open(self.path, _FLAGS, 0o600)
        try:
            if not self._read_only and os.fstat(self._descriptor).st_size < self._first:
                self._create()
            self._token = self._read_token()
        except BaseException:
            self.close()
            raise
        self._end = self._first

    def _create(self) -> None:
        """Write the start of a new file, or of one whose creator was killed."""
        lock(self._descriptor, fcntl.LOCK_EX)
        try:
            found = os.pread(self._descriptor, self._first, 0)
            if len(found) == self._first or not (
                self._signature.startswith(found) or found.startswith(self._signature)
            ):
                return  # another process was faster, or it is no file of ours
            os.ftruncate(self._descriptor, 0)
            write_all(self._descriptor, self._signature + secrets.token_bytes(_TOKEN))
            fault_point("record.created")
            if self._durable:
                os.fsync(self._descriptor)
                sync_directory(self.path.parent)
        finally:
            lock(self._descriptor, fcntl.LOCK_UN)

    def _read_token(self) -> bytes:
        found = os.pread(self._descriptor, self._first, 0)
        if found.startswith(self._signature) and len(found) == self._first:
            return found[len(self._signature) :]
        name, _, version = self._signature.partition(b" ")
        if found.startswith(name + b" ") and not found.startswith(self._signature):
            other = found[len(name) + 1 :].split(b"\n")[0].decode("ascii", "replace")
            raise LogError(
                f"Record file has version {other!r}, this program reads version"
                f" {version.decode().strip()!r}: {str(self.path)!r}"
                " (read it with the weakincentives that wrote it)"
            )
        raise LogError(f"Not a {name.decode()} file: {str(self.path)!r}")

    def _was_replaced(self) -> bool:
        """Return whether another process has compacted the file; a removed one is as it was."""
        try:
            present = self.path.lstat()
        except FileNotFoundError:
            return False
        return not os.path.samestat(present, os.fstat(self._descriptor))

    def _reopen(self) -> None:
        """Open the file that has replaced this one; what was read before is not read again."""
        self.close()
        for kind in self._last:
            self._known[kind] = self.last(kind)
        self._last.clear()
        self.damage.clear()
        self._open()

    @contextmanager
    def _lock(self) -> Generator[None, None, None]:
        """Hold the lock of the file, with everything read and a torn record cut off."""
        with self._mutex:
            if self._is_locked:
                raise LogError(f"A record is being appended already: {str(self.path)!r}")
            try:
                lock(self._descriptor, fcntl.LOCK_EX)
                while self._was_replaced():
                    self._reopen()  # which releases the lock
                    lock(self._descriptor, fcntl.LOCK_EX)
                self._is_locked = True
                fault_point("record.locked")
                self._read_rest()
                if os.fstat(self._descriptor).st_size > self._end:
                    os.ftruncate(self._descriptor, self._end)
                    fault_point("record.cut")
                self._torn = 0
                yield
            finally:
                self._is_locked = False
                if self._descriptor >= 0:
                    lock(self._descriptor, fcntl.LOCK_UN)

    # --- records ---

    def _write(self, kind: bytes, number: int, stored: bytes) -> None:
        start = self._end
        fault_point("record.writing")
        try:
            write_all(self._descriptor, _encode(self._token, start, kind, number, stored))
            fault_point("record.written")
            if self._durable:
                os.fdatasync(self._descriptor)
                fault_point("record.synced")
        except BaseException:
            with suppress(OSError):  # then the next writer cuts it off
                os.ftruncate(self._descriptor, start)
            raise
        self.written_at, self._end = start, start + _HEADER + len(stored)
        self._last[kind] = number

    def _copy(self, keep: Callable[[LogRecord], bool], target: int, token: bytes) -> None:
        """Write the records to keep to a new file, which has its own token."""
        position = self._first
        with RecordLog(self.path, self._signature, read_only=True) as source:
            for record in source.read_new():
                if keep(record) or record.number == self.last(record.kind):
                    stored = _compress(record.payload, self.path)
                    data = _encode(token, position, record.kind, record.number, stored)
                    write_all(target, data)
                    position += len(data)

    def _read_rest(self) -> None:
        """Read everything that is in the file, to be had from `read_new`."""
        while (found := self._read_next()) is not None:
            self._unread.append(found)

    def _read_next(self) -> LogRecord | None:
        """Return the next record in the file that is new; None at the end."""
        while (header := self._next_header()) is not None:
            self._end = header.end
            stored = read_range(self._descriptor, header.offset + _HEADER, header.length)
            last = self._last.get(header.kind, 0)
            payload, reason = b"", "its number is out of order"
            if _digest(self._token, stored) != header.digest:
                reason = "its checksum does not match"
            elif header.number > last:
                payload, reason = _inflate(stored)
            self._last[header.kind] = max(header.number, last)
            if reason:
                size = header.end - header.offset
                self.damage.append(Damage(header.offset, size, header.number, reason))
            elif header.number > self._known.get(header.kind, 0):
                return LogRecord(header.kind, header.number, payload, header.offset)
        return None

    def _next_header(self) -> "_Header | None":
        """Return the next valid header, and note what lies before it; None at the end."""
        size = os.fstat(self._descriptor).st_size
        header = self._read_header(self._end, size)
        if header is not None or self._end >= size:
            return header
        found = self._search(self._end + 1, size)
        if found is None:
            return None  # torn, or in flight
        gap = found.offset - self._end
        self.damage.append(Damage(self._end, gap, None, "its header is damaged"))
        return found

    def _search(self, start: int, size: int) -> "_Header | None":
        """Return the header of the next record that is whole, if there is one."""
        while block := os.pread(self._descriptor, _SEARCH, start):
            at = block.find(_MARKER)
            while at >= 0:
                header = self._read_header(start + at, size)
                if header is not None:
                    return header
                at = block.find(_MARKER, at + 1)
            start += max(1, len(block) - len(_MARKER) + 1)
        return None

    def _read_header(self, offset: int, size: int) -> "_Header | None":
        """Return the header at an offset of a file with `size` bytes; None if it is not valid."""
        data = os.pread(self._descriptor, _HEADER, offset)
        start, checksum = data[: _START.size], data[_START.size :]
        if checksum != _header_checksum(self._token, offset, start):
            return None
        _, kind, number, length, digest = _START.unpack(start)
        header = _Header(offset, kind, number, length, digest)
        return header if length <= _MAX_STORED and header.end <= size else None

    def _measure_torn(self) -> int:
        """Return how many bytes at the end are not a whole record, unless one is in flight."""
        if self._is_locked or os.fstat(self._descriptor).st_size == self._end:
            return 0
        if not lock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB):
            return 0
        try:
            size = os.fstat(self._descriptor).st_size
            is_whole = self._read_header(self._end, size) is not None  # by now
            return 0 if is_whole else size - self._end
        finally:
            lock(self._descriptor, fcntl.LOCK_UN)


class _Header(NamedTuple):
    """The header of a record at an offset."""

    offset: int
    kind: bytes
    number: int
    length: int
    digest: bytes

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.offset + _HEADER + self.length


def _encode(token: bytes, offset: int, kind: bytes, number: int, stored: bytes) -> bytes:
    """Return a record as it is stored at an offset."""
    start = _START.pack(_MARKER, kind, number, len(stored), _digest(token, stored))
    return start + _header_checksum(token, offset, start) + stored


def _digest(token: bytes, stored: bytes) -> bytes:
    return blake2b(stored, digest_size=16, key=token).digest()


def _header_checksum(token: bytes, offset: int, start: bytes) -> bytes:
    data = offset.to_bytes(8, "big") + start
    return blake2b(data, digest_size=_HEADER_CHECKSUM, key=token).digest()


def _compress(payload: bytes, path: Path) -> bytes:
    if len(payload) > MAX_PAYLOAD:
        raise LogError(
            f"Record of {len(payload)} bytes is larger than {MAX_PAYLOAD}: {str(path)!r}"
        )
    return zlib.compress(payload, _LEVEL)


def _inflate(stored: bytes) -> tuple[bytes, str]:
    """Return a payload, and why it cannot be had, if so."""
    inflater = zlib.decompressobj()
    try:
        payload = inflater.decompress(stored, MAX_PAYLOAD + 1)
    except zlib.error as error:
        return b"", f"it cannot be inflated: {error}"
    if inflater.eof and len(payload) <= MAX_PAYLOAD:
        return payload, ""
    return b"", f"it is cut off, or inflates to more than {MAX_PAYLOAD // 1024**2} MiB"
