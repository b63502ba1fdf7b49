"""On-disk format of the undo journal: a directory with a file of checksummed records.

Each record describes a change and is written before the change is made. Reading stops at
the first damaged record: its change had not begun.
"""

import errno
import fcntl
import logging
import operator
import os
import re
import weakref
import zlib
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Literal, TypeAlias

from weakincentives import posix
from weakincentives.filesystem.paths import PathEscapeError, normalize_path
from weakincentives.history import EntryState, LiveTree, Place, exists
from weakincentives.serde import SerdeError, decode, encode

RecordKind: TypeAlias = Literal[
    "put", "again", "new", "removed", "made", "moved", "mode", "state",
    "undo", "released", "reported", "held",
]  # fmt: skip
SLOT_KINDS = frozenset({"put", "again", "removed"})
"""The records after whose change the slot has the entry before."""
PREFIX = f"{posix.RESERVED_PREFIX}journal-"
"""The beginning of the name of every journal."""
_MAGIC = b"*\n# wink-journal "
_HEADER = _MAGIC + b"4\n"
_COMMITS = re.compile(r"[0-9a-f]{40}:[0-9a-f]{40}")
_ABSENT = EntryState()
BESIDE = "beside"
"""The `other` of a record whose slot is in the parent of its path, on another file system."""
_RECORDS_NAME = ".gitignore"  # it begins with `*`: git neither removes nor stages the slots
_OLD_RECORDS_NAME = "records"  # up to version 3
_REPLACED_NAME = "replaced"  # exists once everything was replaced
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_log = logging.getLogger(__name__)


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
        """Return the record as a line on disk."""
        content = encode(self)
        return b"# %08x %b\n" % (zlib.crc32(content), content)


class JournalDirectory:
    """The directory of one journal: its records, mirrored in memory, and slots under numbers.

    Its own framing, not that of `history.log`: a record is one write of three microseconds, without
    a lock, a key or compression, because every file call pays for it and it lives as long.
    """

    def __init__(self, root: int, name: str, *, durable: bool, flags: int = 0) -> None:
        """Open the directory `name` in the open directory `root`; lock it before you read it.

        `flags` are to open its file of records, if it has one. Finalization closes it.
        """
        self.name: str = name
        self.records: list[Record] = []
        """The changes to undo, oldest first."""
        self._ends = [0]
        self._numbers = count()
        self._root = root
        self._durable = durable
        self._process = os.getpid()
        self.is_committed: bool = False
        """Whether the records are removed, so that only the slots are left."""
        self._opened = [os.open(name, _DIRECTORY_FLAGS, dir_fd=root)]
        self._finalizer = weakref.finalize(self, _close_all, self._opened)
        with suppress(FileNotFoundError):
            opened = os.open(_RECORDS_NAME, _FILE_FLAGS | flags, 0o600, dir_fd=self._opened[0])
            self._opened.append(opened)

    @classmethod
    def create(cls, root: int, *, durable: bool) -> "JournalDirectory":
        """Create a journal in `root`, and lock it."""
        name = PREFIX + posix.owner_name()
        os.mkdir(name, 0o700, dir_fd=root)
        try:
            posix.fault_point("journal.made")
            created = cls(root, name, durable=durable, flags=os.O_CREAT | os.O_EXCL)
            posix.fault_point("journal.started")
        except BaseException:
            with suppress(OSError):
                posix.remove(root, name)
            raise
        created.lock()
        created.adopt()
        if durable:
            os.fsync(created._opened[0])
            posix.sync_directory(root)
        return created

    def adopt(self) -> None:
        """Note that this process takes care of it."""
        _live[self.name] = self

    @property
    def is_closed(self) -> bool:
        """Whether it was closed or removed."""
        return not self._opened

    @property
    def is_released(self) -> bool:
        """Whether the changes are kept, so that nothing is undone."""
        return self.is_committed or self.has("released")

    @property
    def is_ours(self) -> bool:
        """Whether this process opened it, rather than the one it was forked from."""
        return self._process == os.getpid()

    @property
    def keeps_inodes(self) -> bool:
        """Whether an entry that was put somewhere can be recognized by its inode."""
        return not exists((self._opened[0], _REPLACED_NAME))

    def forget_inodes(self) -> None:
        """Note that entries get other inodes, because everything is replaced."""
        with suppress(FileExistsError):
            os.mkdir(_REPLACED_NAME, 0o700, dir_fd=self._opened[0])

    @property
    def stats(self) -> tuple[os.stat_result, ...]:
        """The stat of the directory and, if it exists, of the file of records."""
        return tuple(map(os.fstat, self._opened))

    def has(self, kind: RecordKind) -> bool:
        """Return whether there is a record of this kind."""
        return any(each.kind == kind for each in self.records)

    def lock(self) -> bool:
        """Lock the records against other processes; return False if one has the lock."""
        try:
            fcntl.lockf(self._opened[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # others: locks are not supported
            return error.errno not in {errno.EAGAIN, errno.EACCES}
        return True

    def read(self) -> bool:
        """Read the records, unless it has ended; return False if their version is unknown."""
        found = self.stats[-1]
        if len(self._opened) == 1:
            return not exists((self._opened[0], _OLD_RECORDS_NAME))
        content = posix.read_range(self._opened[1], 0, found.st_size if found.st_nlink else 0)
        if not content.startswith(_HEADER):
            return not content.startswith(_MAGIC)
        end = len(_HEADER)
        for line in content[end:].split(b"\n")[:-1]:  # the last one has no end
            record = _decode(line)
            if record is None:
                break
            end += len(line) + 1
            self.records.append(record)
            self._ends.append(end)
        slots = (each.number for each in self.records if each.kind in SLOT_KINDS | {"new", "held"})
        self._numbers = count(1 + max(slots, default=-1))
        return True

    def held_numbers(self) -> set[int]:
        """Return the numbers of the slots that processes may still write to."""
        return {each.number for each in self.records if each.kind == "held"}

    def new_slot(self) -> tuple[int, Place]:
        """Return the number of a slot that no record uses, and its place."""
        number = next(self._numbers)
        return number, (self._opened[0], str(number))

    def slot_path(self, record: Record) -> str:
        """Return the path of the slot of a record."""
        if record.other == BESIDE:
            return posix.join(posix.parent_of(record.path), f"{self.name}-{record.number}")
        return f"{self.name}/{record.number}"

    def slot(self, record: Record, tree: LiveTree) -> Place:
        """Return the place of the slot of a record."""
        if record.other == BESIDE:
            return tree.open_parent(self.slot_path(record))
        return self._opened[0], str(record.number)

    def add(self, *records: Record) -> None:
        """Append records; the changes they describe may be made afterwards."""
        self._append(*records)
        posix.fault_point("journal.recorded")

    def release(self, *, notify: bool) -> None:
        """Write the commit point, after which nothing is undone."""
        self._append(Record("released", number=int(notify)))

    def _append(self, *records: Record) -> None:
        """Append records with one write; an error, such as a full disk, cuts it off again."""
        lines = [record.encode() for record in records]
        start = end = self._ends[-1]
        data = b"".join(lines) if end else _HEADER + b"".join(lines)
        try:
            while end < start + len(data):
                end += os.pwrite(self._opened[1], data[end - start :], end)
            if self._durable:
                os.fsync(self._opened[1])
                os.fsync(self._opened[0])
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._opened[1], start)
            raise
        self.records += records
        ends = accumulate(map(len, lines[:0:-1]), operator.sub, initial=end)
        self._ends += [*ends][::-1]

    def drop_last(self, count: int = 1) -> None:
        """Truncate the last records, which have been undone."""
        os.ftruncate(self._opened[1], self._ends[-1 - count])
        if self._durable:
            os.fsync(self._opened[1])
        del self.records[-count:]
        del self._ends[-count:]
        posix.fault_point("journal.cut")

    def commit(self) -> None:
        """Remove the records: nothing is undone, and the slots are of no use any more."""
        with suppress(FileNotFoundError):
            os.unlink(_RECORDS_NAME, dir_fd=self._opened[0])
        self.is_committed = True

    def remove(self) -> None:
        """Remove the records, the slots and the directory; log what cannot be removed."""
        _live.pop(self.name, None)
        try:
            if not self.is_committed:
                self.commit()
            if self._durable:
                os.fsync(self._opened[0])
            posix.fault_point("journal.clearing")
            if not posix.remove_if_empty(self._root, self.name):
                posix.remove_tree(self._root, self.name)
        except OSError as error:
            _log.warning("Could not remove the finished journal %r: %s", self.name, error)
        finally:
            self.close()

    def close(self) -> None:
        """Close the descriptors; closing twice is harmless."""
        self._finalizer()


def _decode(line: bytes) -> Record | None:
    """Decode a record; return None if it is damaged or its path leaves the workspace."""
    content = line[11:]
    if line[:11] != b"# %08x " % zlib.crc32(content):
        return None
    try:
        record = decode(content, Record)
        return record if _is_valid(record) else None
    except (SerdeError, PathEscapeError):
        return None


def _is_valid(record: Record) -> bool:
    match record.kind:
        case "state":
            return _COMMITS.fullmatch(record.other) is not None
        case "undo" | "released" | "reported":
            return record.number >= 0
        case _:
            paths = (record.path, record.other) if record.kind == "moved" else (record.path,)
            return record.number >= 0 and all(map(_is_visible, paths))


def _is_visible(path: str) -> bool:
    return bool(path) and normalize_path(path) == path and not posix.is_hidden(path)


_live: "weakref.WeakValueDictionary[str, JournalDirectory]" = weakref.WeakValueDictionary()


def find_journals(root: posix.RootedDirectory) -> list[str]:
    """Return the names of all journals in a directory, of any process, the latest first."""
    with closing(LiveTree(root)) as tree:
        names = [name for name, _ in tree.names("") if posix.owner_in(name, PREFIX)]
        stats = [(tree.stat(name), name) for name in names]
        found = [(each.st_mtime, name) for each, name in stats if each is not None]
        return [name for _, name in sorted(found, reverse=True)]


def pinned_commits(root: posix.RootedDirectory) -> set[str]:
    """Return the commits that any open or abandoned savepoint of the directory may go back to.

    The result stays complete while the lock of the snapshot store is held.
    """
    return {
        commit
        for name in find_journals(root)
        for record in _read_journal(root, name)
        if record.kind == "state"
        for commit in record.other.split(":")
    }


def _read_journal(root: posix.RootedDirectory, name: str) -> Sequence[Record]:
    live = _live.get(name)
    if live is not None:  # closing its file again would release our POSIX lock on it
        return tuple(live.records)
    try:
        with closing(JournalDirectory(root.descriptor, name, durable=False)) as journal:
            return journal.records if journal.read() else ()
    except OSError:
        return ()  # it has just ended, or is unreadable


def is_gone(name: str) -> bool | None:
    """Return whether the process that uses a journal has ended; None if that is unknown."""
    owner = name.removeprefix(PREFIX)
    return name not in _live if posix.is_own(owner) else posix.is_owner_gone(owner)


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
