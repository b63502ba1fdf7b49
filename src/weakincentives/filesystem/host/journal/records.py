"""On-disk format of the undo journal: a directory with a file of checksummed records.

Each record describes a change and is written before the change is made. Reading stops at
the first damaged record: its change had not begun.
"""

import errno
import fcntl
import logging
import os
import re
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

from weakincentives.filesystem.paths import PathEscapeError, normalize_path
from weakincentives.history.entries import EntryState, Place
from weakincentives.posix import (
    fault_point,
    is_hidden,
    journal_name,
    remove,
    sync_directory,
)

RecordKind: TypeAlias = Literal[
    "put", "again", "new", "removed", "made", "moved", "mode", "state",
    "undo", "released", "reported", "held",
]  # fmt: skip
_MAGIC = b"wink-journal "
_HEADER = _MAGIC + b"2\n"
_RECORD_HEAD = re.compile(rb"([0-9a-f]{8}) ([0-9a-f]{6}) ")
_RECORD_HEAD_SIZE = 16
_COMMITS = re.compile(rb"[0-9a-f]{40}:[0-9a-f]{40}")
_KINDS: dict[bytes, RecordKind] = {kind.encode(): kind for kind in get_args(RecordKind)}
_STATE_KINDS = frozenset({b"absent", b"file", b"symlink", b"directory", b"special"})
_FIELDS = 10
_SLOT_KINDS = frozenset({"put", "again", "new", "removed", "held"})
_ABSENT = EntryState()
BESIDE = "beside"
"""The `other` of a record whose slot is in the parent of its path, on another file system."""


@dataclass(frozen=True, slots=True)
class Record:
    """One change; `after` is the state that it leads to, `inode` that of the entry put there.

    put: slot `number` was exchanged with `path`, so that the slot has the entry before.
    again: the same, for a path that the savepoint has put before.
    new: slot `number` was renamed to `path`, where nothing was.
    removed: the entry at `path` was renamed to slot `number`.
    made: the directory with the inode `number` was created at `path`.
    moved: the entry with the inode `number` was renamed from `path` to `other`.
    mode: the permissions of `path` were `number`.
    state: a restore went from one commit to the other, `A:B`.
    undo: the record before is being undone; its slot had the inode `number`.
    released: all of it is kept; with `number` 1, a listener has to be notified.
    reported: the listeners know it.
    held: slot `number` was in the state `after`, and a process may still write to it.
    """

    kind: RecordKind
    path: str = ""
    number: int = 0
    other: str = ""
    after: EntryState = _ABSENT
    inode: int = 0

    def encode(self) -> bytes:
        """Return the record as bytes on disk."""
        after = self.after
        text = (
            f"{self.kind}\0{self.number}\0{self.path}\0{self.other}\0{after.kind}\0{after.mode}"
            f"\0{after.size}\0{after.blob}\0{after.target}\0{self.inode}"
        )
        content = os.fsencode(text)
        return b"%08x %06x %b\n" % (zlib.crc32(content), len(content), content)

    def as_kind(self, kind: RecordKind) -> "Record":
        """Return the same record of another kind."""
        return Record(kind, self.path, self.number, self.other, self.after, self.inode)


class RecordFile:
    """The records of one journal, in an open file and mirrored in memory."""

    def __init__(self, descriptor: int, *, durable: bool) -> None:
        """Use an open file; `start` or `read` it first."""
        self.records: list[Record] = []
        self._ends = [len(_HEADER)]
        self._descriptor = descriptor
        self._durable = durable

    def start(self) -> None:
        """Write the header of an empty file."""
        self._write(_HEADER, 0)

    def read(self) -> bool:
        """Read the records; return False if their version is unknown."""
        header = os.pread(self._descriptor, len(_HEADER), 0)
        if header != _HEADER:
            return not header.startswith(_MAGIC)
        for record, end in _read_records(self._descriptor):
            self.records.append(record)
            self._ends.append(end)
        return True

    def add(self, *records: Record) -> None:
        """Append records with one write."""
        data = [record.encode() for record in records]
        self._write(b"".join(data), self._ends[-1])
        for record, encoded in zip(records, data, strict=True):
            self.records.append(record)
            self._ends.append(self._ends[-1] + len(encoded))

    def drop_last(self, count: int = 1) -> None:
        """Truncate the last records, which have been undone."""
        os.ftruncate(self._descriptor, self._ends[-1 - count])
        if self._durable:
            os.fsync(self._descriptor)
        del self.records[-count:]
        del self._ends[-count:]

    def _write(self, data: bytes, end: int) -> None:
        """Write `data` at `end`; after an error, such as a full disk, truncate it again."""
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


def _read_records(descriptor: int) -> Iterator[tuple[Record, int]]:
    """Yield the records of a file, each with its end offset."""
    offset = len(_HEADER)
    while head := _RECORD_HEAD.fullmatch(os.pread(descriptor, _RECORD_HEAD_SIZE, offset)):
        length = int(head[2], 16)
        content = os.pread(descriptor, length + 1, offset + _RECORD_HEAD_SIZE)
        if content[length:] != b"\n" or zlib.crc32(content[:-1]) != int(head[1], 16):
            return
        record = _decode(content[:-1])
        if record is None:
            return
        offset += _RECORD_HEAD_SIZE + length + 1
        yield record, offset


def _decode(content: bytes) -> Record | None:
    """Decode a record; return None if it is invalid or its path leaves the workspace."""
    fields = content.split(b"\0")
    if len(fields) != _FIELDS:
        return None
    kind, number, path, other, state, mode, size, blob, target, inode = fields
    if kind not in _KINDS or state not in _STATE_KINDS:
        return None
    if not all(each.isdigit() for each in (number, mode, size, inode)):
        return None
    text = state.decode(), os.fsdecode(blob), os.fsdecode(target)
    after = EntryState(text[0], int(mode), int(size), *text[1:])
    paths = os.fsdecode(path), os.fsdecode(other)
    record = Record(_KINDS[kind], paths[0], int(number), paths[1], after, int(inode))
    return record if _is_valid(record) else None


def _is_valid(record: Record) -> bool:
    match record.kind:
        case "state":
            return _COMMITS.fullmatch(os.fsencode(record.other)) is not None
        case "undo" | "released" | "reported":
            return True
        case "moved":
            return _is_visible_path(record.path) and _is_visible_path(record.other)
        case _:
            return _is_visible_path(record.path)


def _is_visible_path(path: str) -> bool:
    try:
        return bool(path) and normalize_path(path) == path and not is_hidden(path)
    except PathEscapeError:
        return False


_RECORDS_NAME = "records"
_REPLACED_NAME = "replaced"  # exists once everything was replaced
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_log = logging.getLogger(__name__)


class JournalDirectory:
    """The directory of one journal: its records, and the saved entries under numbers."""

    def __init__(self, root: int, name: str, *, durable: bool) -> None:
        """Open the directory `name` below the open directory `root`; finalization closes it."""
        self.name: str = name
        self._root = root
        self._durable = durable
        self._process = os.getpid()
        self._opened = [os.open(name, _DIRECTORY_FLAGS, dir_fd=root)]
        self._finalizer = weakref.finalize(self, _close_all, self._opened)
        self._file: RecordFile | None = None

    @classmethod
    def create(cls, root: int, *, durable: bool) -> "JournalDirectory":
        """Create a journal in `root`, and lock it."""
        name = journal_name()
        os.mkdir(name, 0o700, dir_fd=root)
        try:
            fault_point("journal.made")
            created = cls(root, name, durable=durable)
            created._open_file(os.O_CREAT | os.O_EXCL).start()
            fault_point("journal.started")
        except BaseException:
            with suppress(OSError):
                remove(root, name)
            raise
        created.lock()
        created.adopt()
        if durable:
            created.sync()
        return created

    def adopt(self) -> None:
        """Note that this process takes care of it."""
        _live[self.name] = self

    @classmethod
    def open(cls, root: int, name: str, *, durable: bool) -> "JournalDirectory":
        """Open an existing journal; lock it before you read it."""
        found = cls(root, name, durable=durable)
        with suppress(FileNotFoundError):
            found._open_file(0)
        return found

    @property
    def records(self) -> Sequence[Record]:
        """The changes to undo, oldest first."""
        return () if self._file is None else self._file.records

    @property
    def is_ended(self) -> bool:
        """Whether the records are removed, so that nothing is left to do."""
        return self._file is None or os.fstat(self._opened[1]).st_nlink == 0

    @property
    def is_closed(self) -> bool:
        """Whether it was closed or removed."""
        return not self._opened

    @property
    def is_released(self) -> bool:
        """Whether the changes are kept, so that nothing is undone."""
        return any(each.kind == "released" for each in self.records)

    @property
    def is_ours(self) -> bool:
        """Whether this process opened it, rather than the one it was forked from."""
        return self._process == os.getpid()

    @property
    def keeps_inodes(self) -> bool:
        """Whether an entry that was put somewhere can be recognized by its inode."""
        return not os.access(_REPLACED_NAME, os.F_OK, dir_fd=self._opened[0])

    def forget_inodes(self) -> None:
        """Note that entries get other inodes, because everything is replaced."""
        flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(_REPLACED_NAME, flags, 0o600, dir_fd=self._opened[0]))

    @cached_property
    def device(self) -> int:
        """The file system that it is on."""
        return os.fstat(self._opened[0]).st_dev

    @property
    def stats(self) -> tuple[os.stat_result, ...]:
        """The stat of the directory and, if it exists, of the file of records."""
        return tuple(map(os.fstat, self._opened))

    def lock(self) -> bool:
        """Lock the records against other processes; return False if one has the lock."""
        try:
            fcntl.lockf(self._opened[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in {
                errno.EAGAIN,
                errno.EACCES,
            }  # others: locks are not supported
        return True

    def read(self) -> bool:
        """Read the records; return False if their version is unknown."""
        return self._file is None or self._file.read()

    def new_number(self) -> int:
        """Return the number of a slot that no record uses."""
        numbers = [each.number for each in self.records if each.kind in _SLOT_KINDS]
        return max(numbers, default=-1) + 1

    def slot(self, number: int) -> Place:
        """Return the place of the slot with this number."""
        return self._opened[0], str(number)

    def add(self, *records: Record) -> None:
        """Append records; the changes they describe may be made afterwards."""
        self._open_records().add(*records)
        if self._durable:
            os.fsync(self._opened[0])
        fault_point("journal.recorded")

    def drop_last(self, count: int = 1) -> None:
        """Truncate the last records, which have been undone."""
        self._open_records().drop_last(count)
        fault_point("journal.cut")

    def release(self, *, notify: bool) -> None:
        """Write the commit point, after which nothing is undone."""
        self._open_records().add(Record("released", number=int(notify)))

    def remove(self) -> None:
        """Remove the records, the slots and the directory; log what cannot be removed."""
        _live.pop(self.name, None)
        try:
            with suppress(FileNotFoundError):
                os.unlink(_RECORDS_NAME, dir_fd=self._opened[0])
            if self._durable:
                os.fsync(self._opened[0])
            fault_point("journal.clearing")
            try:
                os.rmdir(self.name, dir_fd=self._root)
            except OSError:
                for name in self._names():
                    with suppress(FileNotFoundError):
                        remove(self._opened[0], name)
                os.rmdir(self.name, dir_fd=self._root)
        except FileNotFoundError:
            return  # another process has removed it
        except OSError as error:
            _log.warning("Could not remove the finished journal %r: %s", self.name, error)
        finally:
            self.close()

    def close(self) -> None:
        """Close the descriptors; closing twice is harmless."""
        self._finalizer()

    def sync(self) -> None:
        """Sync the names in the journal and in the root."""
        os.fsync(self._opened[0])
        sync_directory(self._root)

    def _names(self) -> list[str]:
        with os.scandir(self._opened[0]) as entries:
            return [entry.name for entry in entries]

    def _open_file(self, flags: int) -> RecordFile:
        self._opened.append(
            os.open(_RECORDS_NAME, _FILE_FLAGS | flags, 0o600, dir_fd=self._opened[0])
        )
        self._file = RecordFile(self._opened[1], durable=self._durable)
        return self._file

    def _open_records(self) -> RecordFile:
        if self._file is None:
            raise ValueError(f"Journal has no records: {self.name!r}")
        return self._file


_live: "weakref.WeakValueDictionary[str, JournalDirectory]" = weakref.WeakValueDictionary()


def live_records(name: str) -> Sequence[Record]:
    """Return the records of the journal `name`, in use by this process."""
    journal = _live.get(name)
    return () if journal is None else tuple(journal.records)


def is_live(name: str) -> bool:
    """Return whether this process uses the journal `name`."""
    return name in _live


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
