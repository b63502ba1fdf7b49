"""The records of a journal: how to undo each change, written down before it is made.

A record is whole or it is not there: a checksum tells. What follows a damaged one is
not there either, for its change had not begun.
"""

import errno
import fcntl
import logging
import os
import re
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from weakincentives.filesystem.paths import PathEscapeError, normalize_path
from weakincentives.posix import (
    fault_point,
    is_hidden,
    journal_name,
    remove,
    sync_directory,
)

Kind: TypeAlias = Literal["kept", "absent", "moved", "mode", "made", "state"]
_NAME = b"wink-journal "
_TITLE = _NAME + b"1\n"
_HEAD = re.compile(rb"([0-9a-f]{8}) ([0-9a-f]{6}) ")
_HEAD_SIZE = 16
_COMMIT = re.compile(rb"[0-9a-f]{40}")
_KINDS: dict[bytes, Kind] = {kind.encode(): kind for kind in get_args(Kind)}


@dataclass(frozen=True, slots=True)
class Record:
    """How it was before a change.

    kept: what was at `path` is in the journal, under `number`.
    absent: nothing was at `path`.
    moved: the directory that was at `path` is at `other`.
    mode: what is at `path` had the permissions `number`.
    made: a directory was at `path`.
    state: everything was as the commit `other` of a snapshot says.
    """

    kind: Kind
    path: str = ""
    number: int = 0
    other: str = ""

    def encode(self) -> bytes:
        """Return the record as it is on disk."""
        paths = os.fsencode(self.path), os.fsencode(self.other)
        content = b"\0".join((self.kind.encode(), b"%d" % self.number, *paths))
        return b"%08x %06x %b\n" % (zlib.crc32(content), len(content), content)


class RecordFile:
    """The records of one journal, in memory and in an open file."""

    def __init__(self, descriptor: int, *, durable: bool) -> None:
        """Know nothing of what is in the file."""
        self.records: list[Record] = []
        self._ends = [len(_TITLE)]
        self._descriptor = descriptor
        self._durable = durable

    def start(self) -> None:
        """Begin a file that is empty."""
        self._write(_TITLE, 0)

    def read(self) -> bool:
        """Read what is there; return False if it is of a version that we do not know."""
        title = os.pread(self._descriptor, len(_TITLE), 0)
        if title != _TITLE:
            return not title.startswith(_NAME)
        for record, end in _read(self._descriptor):
            self.records.append(record)
            self._ends.append(end)
        return True

    def add(self, *records: Record) -> None:
        """Write records in one step."""
        data = [record.encode() for record in records]
        self._write(b"".join(data), self._ends[-1])
        for record, encoded in zip(records, data, strict=True):
            self.records.append(record)
            self._ends.append(self._ends[-1] + len(encoded))

    def cut(self) -> None:
        """Remove the last record: it has been undone."""
        os.ftruncate(self._descriptor, self._ends[-2])
        if self._durable:
            os.fsync(self._descriptor)
        self.records.pop()
        self._ends.pop()

    def _write(self, data: bytes, end: int) -> None:
        """Write `data` where the records end; nothing of it stays if the disk is full."""
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._descriptor, data[done:], end + done)
            if self._durable:
                os.fsync(self._descriptor)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._descriptor, end)
            raise


def _read(descriptor: int) -> Iterator[tuple[Record, int]]:
    """Yield the records of a file, each with the place where it ends."""
    offset = len(_TITLE)
    while head := _HEAD.fullmatch(os.pread(descriptor, _HEAD_SIZE, offset)):
        length = int(head[2], 16)
        content = os.pread(descriptor, length + 1, offset + _HEAD_SIZE)
        if content[length:] != b"\n" or zlib.crc32(content[:-1]) != int(head[1], 16):
            return
        record = _decoded(content[:-1])
        if record is None:
            return
        offset += _HEAD_SIZE + length + 1
        yield record, offset


def _decoded(content: bytes) -> Record | None:
    """Return the record, or None if it is none or leads to what is not in the workspace."""
    kind, number, path, other = content.split(b"\0") if content.count(b"\0") == 3 else [b""] * 4
    if kind not in _KINDS or not number.isdigit():
        return None
    record = Record(_KINDS[kind], os.fsdecode(path), int(number), os.fsdecode(other))
    if record.kind == "state":
        return record if _COMMIT.fullmatch(other) else None
    wanted = (record.path, record.other) if record.kind == "moved" else (record.path,)
    return record if all(map(_is_plain, wanted)) else None


def _is_plain(path: str) -> bool:
    try:
        return bool(path) and normalize_path(path) == path and not is_hidden(path)
    except PathEscapeError:
        return False


Place: TypeAlias = tuple[int, str]
"""An open directory and a name in it."""
_RECORDS = "records"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_log = logging.getLogger(__name__)


class JournalDirectory:
    """The directory of one journal, and its records."""

    def __init__(self, root: int, name: str, *, durable: bool) -> None:
        """Open the directory `name` in the open directory `root`; it closes with this object."""
        self.name = name
        self._root = root
        self._durable = durable
        self._process = os.getpid()
        self._opened = [os.open(name, _DIRECTORY, dir_fd=root)]
        self._finalizer = weakref.finalize(self, _close_all, self._opened)
        self._file: RecordFile | None = None

    @classmethod
    def create(cls, root: int, *, durable: bool) -> "JournalDirectory":
        """Start a journal at the root."""
        name = journal_name()
        os.mkdir(name, 0o700, dir_fd=root)
        try:
            fault_point("journal.made")
            made = cls(root, name, durable=durable)
            made._open_file(os.O_CREAT | os.O_EXCL).start()
            fault_point("journal.started")
        except BaseException:
            with suppress(OSError):
                remove(root, name)
            raise
        made.lock()
        _live[name] = made
        if durable:
            made.sync()
        return made

    @classmethod
    def open(cls, root: int, name: str, *, durable: bool) -> "JournalDirectory":
        """Open a journal that somebody has left; it is read once it is locked."""
        found = cls(root, name, durable=durable)
        with suppress(FileNotFoundError):
            found._open_file(0)
        return found

    @property
    def records(self) -> Sequence[Record]:
        """What is to be undone."""
        return () if self._file is None else self._file.records

    @property
    def is_ended(self) -> bool:
        """Whether there are no records any more: nothing is to be undone."""
        return self._file is None or os.fstat(self._opened[1]).st_nlink == 0

    @property
    def is_ours(self) -> bool:
        """Whether this process has opened it, and not one that it was forked from."""
        return self._process == os.getpid()

    @property
    def status(self) -> tuple[os.stat_result, ...]:
        """What the directory and the file of the records are."""
        return tuple(map(os.fstat, self._opened))

    def lock(self) -> bool:
        """Return whether no other process uses the journal, and keep them out if so."""
        try:
            fcntl.lockf(self._opened[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in {errno.EAGAIN, errno.EACCES}  # else there are no locks
        return True

    def read(self) -> bool:
        """Read the records; return False if they are of a version that we do not know."""
        return self._file is None or self._file.read()

    def place(self, number: int) -> Place:
        """Return where something is kept."""
        return self._opened[0], str(number)

    def add(self, *records: Record) -> None:
        """Write records in one step; what they tell of may change afterwards."""
        self._written().add(*records)
        if self._durable:
            os.fsync(self._opened[0])
        fault_point("journal.recorded")

    def cut(self) -> None:
        """Remove the last record: it has been undone."""
        self._written().cut()
        fault_point("journal.cut")

    def end(self) -> None:
        """Remove the records: from now on nothing is undone."""
        with suppress(FileNotFoundError):
            os.unlink(_RECORDS, dir_fd=self._opened[0])
        if self._durable:
            os.fsync(self._opened[0])
        _live.pop(self.name, None)
        fault_point("journal.ended")

    def clear(self) -> None:
        """Remove everything, which is needed no more; what resists stays hidden."""
        try:
            fault_point("journal.clearing")
            self._remove(str(each.number) for each in self.records if each.kind == "kept")
            try:
                os.rmdir(self.name, dir_fd=self._root)
            except OSError:
                self._remove(self._names())
                os.rmdir(self.name, dir_fd=self._root)
        except FileNotFoundError:
            return  # somebody else has done it
        except OSError as error:
            _log.warning("Could not remove %r, which is needed no more: %s", self.name, error)
        finally:
            self.close()

    def close(self) -> None:
        """Close what is open; closing twice is harmless."""
        self._finalizer()

    def sync(self) -> None:
        """Bring the names to the disk."""
        os.fsync(self._opened[0])
        sync_directory(self._root)

    def _names(self) -> list[str]:
        with os.scandir(self._opened[0]) as entries:
            return [entry.name for entry in entries]

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                remove(self._opened[0], name)

    def _open_file(self, flags: int) -> RecordFile:
        self._opened.append(os.open(_RECORDS, _FILE | flags, 0o600, dir_fd=self._opened[0]))
        self._file = RecordFile(self._opened[1], durable=self._durable)
        return self._file

    def _written(self) -> RecordFile:
        if self._file is None:
            raise ValueError(f"Journal has no records: {self.name!r}")
        return self._file


_live: "weakref.WeakValueDictionary[str, JournalDirectory]" = weakref.WeakValueDictionary()


def live_records(name: str) -> Sequence[Record]:
    """Return the records of the journal `name`, which an instance in this process uses."""
    journal = _live.get(name)
    return () if journal is None else tuple(journal.records)


def is_live(name: str) -> bool:
    """Return whether an instance in this process uses the journal `name`."""
    return name in _live


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
