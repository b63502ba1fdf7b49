"""A write-ahead log of small commits: one sync of one file makes a commit durable.

A commit is a pack, its index and two refs, each a new file with a new name. To sync them takes six
waits for the disk. Instead, a copy of them is appended to the log, whose space is allocated, and
only that is synced. Without a power failure nobody reads the log: the files have been written, and
the kernel has them. After a restart of the machine, commits whose files did not reach the disk
are written again. A checkpoint syncs the files and empties the log.
"""

import hashlib
import logging
import os
import re
import secrets
import stat
import struct
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Self

import msgspec

from weakincentives import posix
from weakincentives.errors import SnapshotError
from weakincentives.gitstore.directory import MAIN, PINS, GitDirectory, Refs, has_content
from weakincentives.gitstore.objects import ObjectError, ObjectStore
from weakincentives.gitstore.pack_reader import PackError, index_ids
from weakincentives.gitstore.pack_writer import store_pack
from weakincentives.gitstore.trees import date_of_name, decode_commit

LOG = "wink-log"
_CAPACITY = 256 * 1024  # bytes of the file
_MAX_RECORD = _CAPACITY // 4  # a larger commit is synced file by file
_MIN_ROOM = 16 * 1024 * 1024  # bytes; on a smaller disk, snapshots need the space
_MAGIC = b"winklog1"
_HEADER = struct.Struct(">8s16s36s")  # magic number, token of this use of the log, boot id
_RECORD = struct.Struct(">I32s")  # size and digest of what follows
_COMMIT, _PIN = re.compile("[0-9a-f]{40}"), re.compile(rf"{PINS}[A-Za-z0-9][A-Za-z0-9_-]{{0,63}}")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UPDATE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_log = logging.getLogger(__name__)


class LoggedCommit(msgspec.Struct, array_like=True, frozen=True):
    """The files of a commit: pack and index as they are, refs by name."""

    commit: str
    pin: str
    pack: bytes
    index: bytes

    @property
    def is_valid(self) -> bool:
        """Whether it can be one of ours: somebody else may have written the log.

        Elsewhere a name would be a path, and a commit any text.
        """
        if not (_COMMIT.fullmatch(self.commit) and _PIN.fullmatch(self.pin)):
            return False
        try:
            return bool(index_ids(self.index))
        except PackError:
            return False

    @property
    def pack_name(self) -> str:
        """The name of both pack files, without suffix."""
        return f"pack-{self.index[-40:-20].hex()}"


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LoggedCommit)


class CommitLog:
    """The log of one repository; hold its lock to use it."""

    def __init__(self, directory: GitDirectory, refs: Refs, objects: ObjectStore) -> None:
        """Log the commits of `directory`."""
        self._directory = directory
        self._refs = refs
        self._objects = objects
        self._path = directory.path / LOG
        self._packs = directory.path / "objects" / "pack"
        self._token = b""
        self._end = 0  # of the last record, as long as the log has this token

    @property
    def needs_replay(self) -> bool:
        """Whether the machine was restarted since commits were logged; needs no lock."""
        with self._open() as file:
            return file is not None and file.boot != boot_id() and bool(file.read_all())

    @property
    def is_used(self) -> bool:
        """Whether this process has logged commits."""
        return bool(self._token)

    def append(self, commit: LoggedCommit, *, wait: bool = True) -> bool:
        """Append a commit, synced unless nobody has to `wait`; False if it cannot be logged."""
        payload = _encoder.encode(commit)
        if len(payload) > _MAX_RECORD or boot_id() is None:
            return False
        is_logged = self._append(payload, wait=wait)
        if not is_logged:
            # the log is full, missing, or from before a restart
            self.checkpoint()
            if not self._path.exists() and not self._create():
                return False
            is_logged = self._append(payload, wait=wait)
        posix.fault_point("log.appended")
        return is_logged

    def withdraw(self, commit: str) -> None:
        """Drop a commit whose files could not be written, if it is the last in the log."""
        try:
            with self._open() as file:
                if file is not None and file.drop_last(commit):
                    self._token = b""  # the end is another one now
        except OSError as error:
            _log.warning("A failed snapshot may reappear after a power failure: %s", error)

    def checkpoint(self) -> None:
        """Sync the files of all logged commits, and empty the log.

        After a restart, files that are missing or incomplete are written again.

        Raises:
            OSError: A file cannot be written or synced; the log is unchanged.
        """
        with self._open() as file:
            if file is None:
                return
            commits = file.read_all()
            if commits and file.boot != boot_id():
                self._replay(commits)
            if commits:
                self._sync(commits)
                posix.fault_point("log.synced")
            file.reset()

    def trim(self) -> None:
        """Free the space after the last record; the next use allocates it again."""
        with self._open() as file:
            if file is not None:
                file.trim()

    def _append(self, payload: bytes, *, wait: bool) -> bool:
        with self._open() as file:
            if file is None or file.boot != boot_id() or not file.allocate():
                return False
            if file.token != self._token:
                self._token, self._end = file.token, _HEADER.size
            # another process may have added some
            self._end = file.find_end(self._end)
            record = file.encode(self._end, payload)
            if self._end + len(record) > _CAPACITY:
                return False
            file.write(self._end, record, wait=wait)
            self._end += len(record)
            return True

    def _replay(self, commits: list[LoggedCommit]) -> None:
        """Write the files that did not reach the disk before the machine stopped."""
        _log.warning("Completing snapshots after a restart: %r", str(self._directory.path))
        self._packs.mkdir(0o700, parents=True, exist_ok=True)
        self._objects.refresh(closely=True)
        for commit in commits:
            if not self._has_pack(commit):
                store_pack(self._packs, commit.pack, commit.index)
                self._objects.refresh(closely=True)
            if not self._has_pin(commit):
                self._refs.write(commit.pin, commit.commit)
            posix.fault_point("log.replayed")
        # another name of such a commit is a link to the incomplete ref
        found = self._refs.read_all(PINS).items()
        names = [name for name, ref in found if ref is None]
        self._refs.delete([each for each in names if date_of_name(each.removeprefix(PINS))])
        self._move_main(commits[-1].commit)

    def _has_pack(self, commit: LoggedCommit) -> bool:
        pack, index = (self._packs / f"{commit.pack_name}.{suffix}" for suffix in ("pack", "idx"))
        if not pack.exists():  # it may have been merged into another one
            return self._objects.has_all(index_ids(commit.index))
        return has_content(pack, commit.pack) and has_content(index, commit.index)

    def _has_pin(self, commit: LoggedCommit) -> bool:
        try:
            return self._refs.read(commit.pin) is not None
        except SnapshotError:
            return False

    def _move_main(self, latest: str) -> None:
        """Move the main branch to the latest commit, unless it is on a later one."""
        _, data = self._objects.read(latest)
        sequence = decode_commit(latest, data).sequence
        try:
            main = self._refs.read(MAIN) or ""
            _, data = self._objects.read(main)
        except (SnapshotError, ObjectError):
            self._refs.write(MAIN, latest)
            return
        with suppress(ObjectError):  # it was made with git
            if decode_commit(main, data).sequence < sequence:
                self._refs.write(MAIN, latest)

    def _sync(self, commits: list[LoggedCommit]) -> None:
        root = self._directory.path
        packs = [
            self._packs / f"{commit.pack_name}.{suffix}"
            for commit in commits
            for suffix in ("pack", "idx")
        ]
        pins = [root / commit.pin for commit in commits]
        with posix.SyncQueue() as queue:
            for path in (*packs, *pins, root / MAIN):
                with suppress(OSError):  # merged, or never completed
                    queue.add(posix.open_regular(path)[0])
        for directory in {self._packs, *(path.parent for path in pins)}:
            with suppress(FileNotFoundError):  # git removes directories that become empty
                posix.sync_directory(directory)

    @contextmanager
    def _open(self) -> "Generator[_LogFile | None, None, None]":
        """Open the log; None if there is no usable one."""
        epoch = self._directory.read_epoch()
        try:
            descriptor = os.open(self._path, _UPDATE)
        except OSError:
            yield None
            return
        with posix.OpenDescriptor(descriptor):
            yield None if epoch is None else _LogFile.read_header(descriptor, epoch)

    def _create(self) -> bool:
        """Allocate the file; return False if there is not plenty of room for it."""
        data = _new_header().ljust(_CAPACITY, b"\0")
        try:
            found = os.statvfs(self._directory.path)
            if found.f_bavail * found.f_frsize < _MIN_ROOM:
                return False
            with posix.AtomicFile(self._directory.path, data) as file:
                os.fsync(file.descriptor)
                file.name(self._path)
            posix.sync_directory(self._directory.path)
        except OSError:
            return False
        return True


class _LogFile:
    """An open log: a header, then records without gaps; the first invalid one ends it.

    The digest of a record covers the token, the epoch and its position, so that nothing else in
    the file looks like one: neither a record from before the log was emptied, nor content of the
    workspace.
    """

    def __init__(self, descriptor: int, token: bytes, boot: bytes, epoch: str) -> None:
        self._descriptor = descriptor
        self._epoch = epoch
        self.token = token  # changes when the log is emptied
        self.boot = boot  # the run of the kernel that has the files of the commits

    @classmethod
    def read_header(cls, descriptor: int, epoch: str) -> Self | None:
        """Return the log in an open file, None if it is not one."""
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = os.pread(descriptor, _HEADER.size, 0)
        if len(data) < _HEADER.size:
            return None
        magic, token, boot = _HEADER.unpack(data)
        return cls(descriptor, token, boot, epoch) if magic == _MAGIC else None

    def read_all(self) -> list[LoggedCommit]:
        """Return the commits that are in the log completely, up to one that is not ours."""
        found: list[LoggedCommit] = []
        for _, payload in self._records(_HEADER.size):
            commit = _decode(payload)
            if commit is None:
                break
            found.append(commit)
        return found

    def find_end(self, start: int) -> int:
        """Return where the records end that begin at `start`."""
        end = start
        for position, payload in self._records(start):
            end = position + _RECORD.size + len(payload)
        return end

    def drop_last(self, commit: str) -> bool:
        """Make the last record invalid if it is that of `commit`; return whether it was."""
        records = list(self._records(_HEADER.size))
        last = _decode(records[-1][1]) if records else None
        if last is None or last.commit != commit:
            return False
        self.write(records[-1][0], bytes(_RECORD.size))
        return True

    def encode(self, position: int, payload: bytes) -> bytes:
        """Return the record of `payload` at `position`."""
        return _RECORD.pack(len(payload), self._digest(position, payload)) + payload

    def write(self, position: int, data: bytes, *, wait: bool = True) -> None:
        """Overwrite part of the file, synced unless nobody has to wait; its size stays."""
        os.lseek(self._descriptor, position, os.SEEK_SET)
        posix.write_all(self._descriptor, data)
        if wait:
            os.fdatasync(self._descriptor)
        else:
            posix.start_writeback(self._descriptor)

    def allocate(self) -> bool:
        """Make sure that a full log has room on the disk; return False if there is none."""
        try:
            if os.fstat(self._descriptor).st_size < _CAPACITY:
                os.posix_fallocate(self._descriptor, 0, _CAPACITY)
        except OSError:
            return False
        return True

    def trim(self) -> None:
        """Cut the file after the last record."""
        os.ftruncate(self._descriptor, self.find_end(_HEADER.size))

    def reset(self) -> None:
        """Empty the log; synced with the next record, because until then it does no harm."""
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        posix.write_all(self._descriptor, _new_header())

    def _records(self, position: int) -> Iterator[tuple[int, bytes]]:
        """Yield the position and content of each record from a position on."""
        while (payload := self._read(position)) is not None:
            yield position, payload
            position += _RECORD.size + len(payload)

    def _read(self, position: int) -> bytes | None:
        start = os.pread(self._descriptor, _RECORD.size, position)
        if len(start) < _RECORD.size:
            return None
        size, digest = _RECORD.unpack(start)
        if not 0 < size <= _MAX_RECORD:
            return None
        payload = os.pread(self._descriptor, size, position + _RECORD.size)
        return payload if digest == self._digest(position, payload) else None

    def _digest(self, position: int, payload: bytes) -> bytes:
        start = b"%s%s\n%d\n" % (self.token, self._epoch.encode(), position)
        return hashlib.sha256(start + payload).digest()


def _decode(payload: bytes) -> LoggedCommit | None:
    try:
        found = _decoder.decode(payload)
    except msgspec.MsgspecError:
        return None
    return found if found.is_valid else None


@cache
def boot_id() -> bytes | None:
    """Return an id of this run of the kernel, None if there is none."""
    try:
        return _BOOT_ID.read_bytes().strip()[:36].ljust(36, b"\0")
    except OSError:
        return None


def _new_header() -> bytes:
    return _HEADER.pack(_MAGIC, secrets.token_bytes(16), boot_id() or b"")
