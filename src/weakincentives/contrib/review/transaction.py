"""The record of changes on their way into the original: what each path was and becomes.

It lies in the root of the original under a hidden name, from before the first change until
everything is settled, so that whoever comes to the original sees that changes were
interrupted, even if the copy they came from is gone. Its name says how far they are:

- `staging`: new files are being made under hidden names; the original is as it was.
- `changing`: paths are being exchanged; all of it is rolled back if it ends here.
- `done`: the original has the new state; what was replaced is still there, hidden.
"""

import errno
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

from weakincentives.contrib.review.entries import Facts, Tree
from weakincentives.contrib.review.records import CopyError
from weakincentives.posix import (
    RESERVED_PREFIX,
    fault_point,
    is_maker_gone,
    join,
    maker_name,
    store_file,
    sync_directory,
    write_all,
)
from weakincentives.serde import SerdeError, decode, encode

Action: TypeAlias = Literal["replace", "create", "remove", "make directory", "remove directory"]
Kind: TypeAlias = Literal["apply", "undo"]
Phase: TypeAlias = Literal["staging", "changing", "done"]

_PREFIX = f"{RESERVED_PREFIX}apply-"
_PHASES: tuple[Phase, ...] = ("staging", "changing", "done")
_NAME = re.compile(re.escape(_PREFIX) + r"([0-9a-f]+-[0-9]+-[0-9]+-[0-9a-f]+)\.([a-z]+)")
_VERSION = 1
_MAX_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Operation:
    """One path that changes, and the hidden path at which the other state of it is."""

    action: Action
    path: str
    hidden: str
    before: Facts
    after: Facts


@dataclass(frozen=True, slots=True)
class Mode:
    """The permissions of a directory before and after; -1 if there is none."""

    path: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Record:
    """What is being done to the original, for which copy."""

    kind: Kind
    place: str
    """Where the copy is."""
    number: int
    """Which of the copy's applications this is."""
    operations: tuple[Operation, ...]
    """In the order in which they are done."""
    modes: tuple[Mode, ...]
    directories: dict[str, tuple[int, int]]
    """Device and inode of each directory with hidden names, to find it if it is renamed."""
    version: int = _VERSION


@dataclass(frozen=True, slots=True)
class Pending:
    """A record that is there: whose it is, and how far it has come."""

    maker: str
    phase: Phase

    @property
    def name(self) -> str:
        """The name of the record in the root."""
        return f"{_PREFIX}{self.maker}.{self.phase}"

    @property
    def is_alive(self) -> bool:
        """Whether its process can still be there."""
        return is_maker_gone(self.maker) is not True


class Ledger:
    """The record of one transaction on the disk."""

    def __init__(self, tree: Tree, pending: Pending, record: Record) -> None:
        """Hold the `record`, which is at `pending`."""
        self._tree = tree
        self._pending = pending
        self.record = record

    @classmethod
    def create(cls, tree: Tree, maker: str, record: Record) -> "Ledger":
        """Bring a new record to the disk."""
        pending = Pending(maker, "staging")
        data = encode(record)

        def fill(descriptor: int) -> None:
            write_all(descriptor, data)

        root, name = tree.place(pending.name)
        try:
            store_file(root, name, fill, permissions=0o600, exclusive=True, durable=True)
            sync_directory(root)
            fault_point("apply.recorded")
        except BaseException:
            with suppress(OSError):
                tree.unlink(name)
            raise
        return cls(tree, pending, record)

    @classmethod
    def open(cls, tree: Tree, pending: Pending) -> "Ledger":
        """Read a record that somebody has left.

        Raises:
            CopyError: It is damaged, or not ours.
        """
        try:
            record = decode(_read(tree, pending.name), Record)
        except (SerdeError, OSError) as error:
            raise CopyError(_damaged(tree, pending, str(error))) from error
        if record.version != _VERSION:
            raise CopyError(_damaged(tree, pending, f"version {record.version}, not {_VERSION}"))
        prefix = f"{_PREFIX}{pending.maker}."
        for each in record.operations:
            if not each.hidden.rpartition("/")[2].startswith(prefix):
                raise CopyError(_damaged(tree, pending, "a hidden name of somebody else"))
        return cls(tree, pending, record)

    @property
    def phase(self) -> Phase:
        """How far the transaction has come."""
        return self._pending.phase

    @property
    def name(self) -> str:
        """The name of the record in the root: a file that nobody writes to."""
        return self._pending.name

    def enter(self, phase: Phase) -> None:
        """Go on to a phase, or back to one; needs no space on the disk."""
        following = Pending(self._pending.maker, phase)
        self._tree.rename(self._pending.name, following.name)
        self._pending = following
        fault_point(f"apply.{phase}")
        self._sync()

    def look_again(self) -> None:
        """Find out the phase on the disk: whoever was interrupted may not know it."""
        for phase in reversed(_PHASES):
            pending = Pending(self._pending.maker, phase)
            if self._tree.stat(pending.name) is not None:
                self._pending = pending
                return

    def remove(self) -> None:
        """Forget the transaction: everything is settled."""
        self._tree.unlink(self.name)
        fault_point("apply.settled")
        self._sync()

    def _sync(self) -> None:
        sync_directory(self._tree.place(self.name)[0])


def new_maker() -> str:
    """Return what names a new transaction of this process."""
    return maker_name()


def hidden_path(directory: str, maker: str, number: int) -> str:
    """Return the path at which a transaction keeps something out of sight."""
    return join(directory, f"{_PREFIX}{maker}.{number}")


def pending_in(tree: Tree) -> list[Pending]:
    """Return the records that are in the root, of whoever; nothing is changed."""
    found = (_NAME.fullmatch(name) for name, is_directory in tree.names("") if not is_directory)
    made = [each for each in found if each is not None]
    records = [Pending(each[1], phase) for each in made for phase in _PHASES if each[2] == phase]
    return sorted(records, key=lambda each: each.maker)


def _read(tree: Tree, name: str) -> bytes:
    descriptor, found = tree.root.open_file(name)
    with os.fdopen(descriptor, "rb") as file:
        if found.st_size > _MAX_BYTES or not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), name)
        if found.st_uid not in {os.geteuid(), 0}:
            raise OSError(errno.EPERM, "It belongs to another user", name)
        return file.read(_MAX_BYTES)


def _damaged(tree: Tree, pending: Pending, fact: str) -> str:
    return (
        f"Record of an interrupted apply cannot be used: {pending.name!r} ({fact});"
        " the hidden files beside it hold what was there before"
    )
