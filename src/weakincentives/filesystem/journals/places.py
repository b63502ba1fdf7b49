"""Where a journal is: a hidden directory at the root, which nobody else may look into.

In it are the records, and under a number each thing that is kept. As long as the records
are there the savepoint has not ended: removing them is the step that counts.
"""

import errno
import fcntl
import logging
import os
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TypeAlias

from weakincentives.filesystem import staging
from weakincentives.filesystem.faults import reached
from weakincentives.filesystem.journals.records import Record, RecordFile
from weakincentives.filesystem.leftovers import journal_name

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
            reached("journal.made")
            made = cls(root, name, durable=durable)
            made._open_file(os.O_CREAT | os.O_EXCL).start()
            reached("journal.started")
        except BaseException:
            with suppress(OSError):
                staging.remove(root, name)
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
        reached("journal.recorded")

    def cut(self) -> None:
        """Remove the last record: it has been undone."""
        self._written().cut()
        reached("journal.cut")

    def end(self) -> None:
        """Remove the records: from now on nothing is undone."""
        with suppress(FileNotFoundError):
            os.unlink(_RECORDS, dir_fd=self._opened[0])
        if self._durable:
            os.fsync(self._opened[0])
        _live.pop(self.name, None)
        reached("journal.ended")

    def clear(self) -> None:
        """Remove everything, which is needed no more; what resists stays hidden."""
        try:
            reached("journal.clearing")
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
        staging.sync_directory(self._root)

    def _names(self) -> list[str]:
        with os.scandir(self._opened[0]) as entries:
            return [entry.name for entry in entries]

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                staging.remove(self._opened[0], name)

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
