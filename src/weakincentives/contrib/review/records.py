"""A working copy and the record of it on the disk, so that another process can go on."""

import errno
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from weakincentives.contrib.review.entries import Facts, Tree
from weakincentives.contrib.review.merge import Merge
from weakincentives.contrib.review.views import PreservingFilesystem
from weakincentives.errors import WinkError
from weakincentives.filesystem import FilesystemSnapshot, HostMount, SkippedEntry
from weakincentives.filesystem.mounts import MountFilter
from weakincentives.posix import (
    RESERVED_PREFIX,
    fault_point,
    is_owner_gone,
    join,
    owner_name,
    read_regular,
    store_file,
    sync_directory,
    write_all,
)
from weakincentives.serde import SerdeError, decode, encode

_RECORD = "review.json"
_VERSION = 1
_MAX_RECORD = 256 * 1024 * 1024
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class CopyError(WinkError, ValueError):
    """What is there is no working copy, or none can be made."""


@dataclass(frozen=True, slots=True)
class Application:
    """What was applied once: the state of the copy then, and the paths of the original."""

    after: FilesystemSnapshot
    paths: tuple[str, ...]
    merges: tuple[Merge, ...] = ()
    attributes: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])
    """The extended attributes of files that were removed."""


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """What has to be known about a copy besides its files."""

    original: str
    base: FilesystemSnapshot
    exclude: tuple[str, ...] = ()
    skipped: tuple[SkippedEntry, ...] = ()
    external_links: tuple[str, ...] = ()
    git_dirs: tuple[str, ...] = ()
    applied: tuple[Application, ...] = ()
    version: int = _VERSION


@dataclass(frozen=True, slots=True)
class WorkingCopy:
    """A copy of a directory to work on; nothing that is done in it reaches the original."""

    original: Path
    """The directory that was copied."""
    place: Path
    """Holds the copy, its history and the record; `open_copy` takes it."""
    base: FilesystemSnapshot
    """The state of the copy when it was made."""
    exclude: tuple[str, ...] = ()
    """The globs of what was left out."""
    skipped: tuple[SkippedEntry, ...] = ()
    """What could not be copied, and why; sorted."""
    external_links: tuple[str, ...] = ()
    """The links in the copy that lead out of it, to the original for instance; sorted."""
    git_dirs: tuple[str, ...] = ()
    """Where repositories have their data, if not in `.git`, and links that lead there; sorted."""

    @property
    def root(self) -> Path:
        """The directory to work in."""
        return workspace_in(self.place)

    @property
    def git_dir(self) -> Path:
        """Where the snapshots of the copy are; a filesystem that uses it need not begin anew."""
        return history_in(self.place)

    def __str__(self) -> str:
        """Return where it is, and of what."""
        return f"{self.root} (a copy of {self.original})"


def open_copy(place: str | os.PathLike[str]) -> WorkingCopy:
    """Return the working copy that was made at `place`, by whichever process.

    Raises:
        CopyError: None is there, or its record is damaged.
    """
    found = Path(place).absolute()
    record = read_record(found)
    if not workspace_in(found).is_dir():
        raise CopyError(f"Working copy has no files any more: {str(found)!r}")
    return WorkingCopy(
        original=Path(record.original),
        place=found,
        base=record.base,
        exclude=record.exclude,
        skipped=record.skipped,
        external_links=record.external_links,
        git_dirs=record.git_dirs,
    )


def workspace_in(place: Path) -> Path:
    """Return where the files of a copy are."""
    return place / "workspace"


def history_in(place: Path) -> Path:
    """Return where the snapshots of a copy are."""
    return place / "history"


def open_files(copy: WorkingCopy) -> PreservingFilesystem:
    """Open the files of a copy."""
    return PreservingFilesystem(copy.root, git_dir=copy.git_dir)


def exclusion(globs: tuple[str, ...]) -> MountFilter:
    """Return the filter that leaves out what one of `globs` matches."""
    return MountFilter(HostMount(".", exclude_glob=globs))


def has_record(place: Path) -> bool:
    """Return whether a working copy is at `place`, be its record damaged or not."""
    return (place / _RECORD).is_file()


def read_record(place: Path) -> CopyRecord:
    """Return the record of the copy at `place`.

    Raises:
        CopyError: There is none, or it is damaged.
    """
    try:
        # a link would be somebody else's: we write a file
        record = decode(read_regular(place / _RECORD, _MAX_RECORD), CopyRecord)
    except (FileNotFoundError, NotADirectoryError):
        raise CopyError(f"No working copy is at {str(place)!r}") from None
    except OSError as error:
        fact = f"{error.strerror}: {_RECORD!r}"
        raise CopyError(f"No working copy is at {str(place)!r} ({fact})") from None
    except SerdeError as error:
        raise CopyError(f"Record of the working copy is damaged: {error}") from error
    if record.version != _VERSION:
        raise CopyError(f"Record of the working copy has version {record.version}, not {_VERSION}")
    return record


def write_record(place: Path, record: CopyRecord) -> None:
    """Make `record` the record of the copy at `place`, in one step."""
    data = encode(record)
    if len(data) > _MAX_RECORD:
        raise CopyError(f"Record of the working copy would be larger than {_MAX_RECORD:,} bytes")
    directory = os.open(place, _DIRECTORY)
    try:
        store_file(
            directory,
            _RECORD,
            lambda target: write_all(target, data),
            permissions=0o600,
            durable=True,
        )
        os.fsync(directory)
    finally:
        os.close(directory)


Action: TypeAlias = Literal["replace", "create", "remove", "make directory", "remove directory"]
Kind: TypeAlias = Literal["apply", "undo"]
Phase: TypeAlias = Literal["staging", "changing", "done"]

_PREFIX = f"{RESERVED_PREFIX}apply-"
_PHASES: tuple[Phase, ...] = ("staging", "changing", "done")
_NAME = re.compile(re.escape(_PREFIX) + r"([0-9a-f]+-[0-9]+-[0-9]+-[0-9a-f]+)\.([a-z]+)")
_JOURNAL_VERSION = 1
_MAX_JOURNAL = 512 * 1024 * 1024


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
    version: int = _JOURNAL_VERSION


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
        return is_owner_gone(self.maker) is not True


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
        if record.version != _JOURNAL_VERSION:
            raise CopyError(
                _damaged(tree, pending, f"version {record.version}, not {_JOURNAL_VERSION}")
            )
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
    return owner_name()


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
        if found.st_size > _MAX_JOURNAL or not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), name)
        if found.st_uid not in {os.geteuid(), 0}:
            raise OSError(errno.EPERM, "It belongs to another user", name)
        return file.read(_MAX_JOURNAL)


def _damaged(tree: Tree, pending: Pending, fact: str) -> str:
    return (
        f"Record of an interrupted apply cannot be used: {pending.name!r} ({fact});"
        " the hidden files beside it hold what was there before"
    )
