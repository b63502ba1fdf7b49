"""On-disk records: the record of a working copy, and the write-ahead journal of an apply.

The record of a copy lets another process continue with it. The journal says what each path of
the original was and becomes. It is in the root of the original under a hidden name, from
before the first change until the transaction has ended, so that every process sees an
interrupted apply, even if the working copy is gone. Its name holds the phase:

- `staging`: new files are created under hidden names; the original is unchanged.
- `changing`: paths are exchanged; if it ends here, everything is rolled back.
- `done`: the original has the new state; the replaced files still exist under hidden names.
"""

import errno
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from weakincentives.contrib.review.merge import Merge
from weakincentives.contrib.review.views import PreservingFilesystem, Version
from weakincentives.errors import WinkError
from weakincentives.filesystem import FilesystemSnapshot, HostMount, SkippedEntry
from weakincentives.filesystem.mounts import MountFilter
from weakincentives.history.entries import EntryState, LiveTree
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
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class CopyError(WinkError, ValueError):
    """The directory is not a working copy, or none can be created."""


@dataclass(frozen=True, slots=True)
class Application:
    """One apply: the state of the copy at that time, and the changed paths of the original."""

    after: FilesystemSnapshot
    paths: tuple[str, ...]
    merges: tuple[Merge, ...] = ()
    attributes: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])
    """The extended attributes of removed files."""
    accepted: tuple[str, ...] | None = None
    """All paths that were applied, also where the original had the new state; None: `paths`."""
    contents: dict[str, Version] = field(default_factory=dict[str, Version])
    """The files of which only some hunks were applied, as they are with these."""
    is_settled: bool = True
    """Whether it has ended; it is recorded before it begins."""
    commit: str = ""
    """The git commit that was made of it."""

    @property
    def accepted_paths(self) -> tuple[str, ...]:
        """All paths that were applied, also where the original already had the new state."""
        return self.paths if self.accepted is None else self.accepted


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """The metadata of a working copy."""

    original: str
    base: FilesystemSnapshot
    exclude: tuple[str, ...] = ()
    skipped: tuple[SkippedEntry, ...] = ()
    external_links: tuple[str, ...] = ()
    git_dirs: tuple[str, ...] = ()
    fixed_paths: tuple[str, ...] = ()
    applied: tuple[Application, ...] = ()
    size_bytes: int | None = None
    """The size of all files when they were copied."""
    version: int = _VERSION


@dataclass(frozen=True, slots=True)
class WorkingCopy:
    """A copy of a directory to work in; changes in it do not reach the original."""

    original: Path
    """The directory that was copied."""
    place: Path
    """The directory of the copy, its history and its record; pass it to `open_copy`."""
    base: FilesystemSnapshot
    """The state of the copy when it was created."""
    exclude: tuple[str, ...] = ()
    """The globs of excluded paths."""
    skipped: tuple[SkippedEntry, ...] = ()
    """The paths that could not be copied, and why; sorted."""
    external_links: tuple[str, ...] = ()
    """The links in the copy that lead out of it, for example to the original; sorted."""
    git_dirs: tuple[str, ...] = ()
    """Git directories outside `.git`, and the links that lead to them; sorted."""
    fixed_paths: tuple[str, ...] = ()
    """Caches of CMake and environments of conda: they name the original; sorted."""

    @property
    def root(self) -> Path:
        """The directory to work in."""
        return workspace_path(self.place)

    @property
    def git_dir(self) -> Path:
        """The snapshot store of the copy, for a filesystem that works in it."""
        return history_path(self.place)

    def __str__(self) -> str:
        """Return its path and its original."""
        return f"{self.root} (a copy of {self.original})"


def open_copy(place: str | os.PathLike[str]) -> WorkingCopy:
    """Return the working copy at `place`, whichever process created it.

    Raises:
        CopyError: There is none, or its record is damaged.
    """
    found = Path(place).absolute()
    record = read_record(found)
    if not workspace_path(found).is_dir():
        raise CopyError(f"The files of the working copy are gone: {str(found)!r}")
    return WorkingCopy(
        original=Path(record.original),
        place=found,
        base=record.base,
        exclude=record.exclude,
        skipped=record.skipped,
        external_links=record.external_links,
        git_dirs=record.git_dirs,
        fixed_paths=record.fixed_paths,
    )


def workspace_path(place: Path) -> Path:
    """Return the directory of the files of a copy."""
    return place / "workspace"


def history_path(place: Path) -> Path:
    """Return the snapshot store of a copy."""
    return place / "history"


def open_files(copy: WorkingCopy) -> PreservingFilesystem:
    """Open the files of a copy."""
    return PreservingFilesystem(copy.root, git_dir=copy.git_dir)


def exclusion_filter(globs: tuple[str, ...]) -> MountFilter:
    """Return a filter that excludes what one of `globs` matches."""
    return MountFilter(HostMount(".", exclude_glob=globs))


def record_path(place: Path) -> Path:
    """Return the record of a copy; a copy without one is not complete."""
    return place / _RECORD


def has_record(place: Path) -> bool:
    """Return whether a working copy is at `place`, even if its record is damaged."""
    return record_path(place).is_file()


def read_record(place: Path) -> CopyRecord:
    """Return the record of the copy at `place`.

    Raises:
        CopyError: There is none, or it is damaged.
    """
    try:
        # a link is not ours: we write regular files
        record = decode(read_regular(place / _RECORD, _MAX_RECORD), CopyRecord)
    except (FileNotFoundError, NotADirectoryError):
        raise CopyError(f"Not a working copy: {str(place)!r}") from None
    except OSError as error:
        fact = f"{error.strerror}: {_RECORD!r}"
        raise CopyError(f"Not a working copy: {str(place)!r} ({fact})") from None
    except SerdeError as error:
        raise CopyError(f"The record of the working copy is damaged: {error}") from error
    if record.version != _VERSION:
        raise CopyError(
            f"The record of the working copy has version {record.version}, not {_VERSION}"
        )
    return record


def write_record(place: Path, record: CopyRecord) -> None:
    """Replace the record of the copy at `place` atomically."""
    data = encode(record)
    if len(data) > _MAX_RECORD:
        raise CopyError(f"The record of the working copy would exceed {_MAX_RECORD:,} bytes")
    store_record(place, _RECORD, data)


def store_record(place: Path, name: str, data: bytes) -> None:
    """Replace a file in the place of a copy atomically; only its owner can read it."""
    directory = os.open(place, _DIRECTORY_FLAGS)
    try:
        store_file(
            directory,
            name,
            lambda target: write_all(target, data),
            permissions=0o600,
            durable=True,
        )
        os.fsync(directory)
    finally:
        os.close(directory)


Action: TypeAlias = Literal["replace", "create", "remove", "make directory", "remove directory"]
TransactionKind: TypeAlias = Literal["apply", "undo"]
Phase: TypeAlias = Literal["staging", "changing", "done"]
Ending: TypeAlias = Literal["committed", "rolled back"]

_PREFIX = f"{RESERVED_PREFIX}apply-"
_PHASES: tuple[Phase, ...] = ("staging", "changing", "done")
_NAME = re.compile(re.escape(_PREFIX) + r"([0-9a-f]+-[0-9]+-[0-9]+-[0-9a-f]+)\.([a-z]+)")
_JOURNAL_VERSION = 1
_MAX_JOURNAL = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Operation:
    """The change of one path, and the hidden path of its other version."""

    action: Action
    path: str
    hidden: str
    before: EntryState
    after: EntryState


@dataclass(frozen=True, slots=True)
class ModeChange:
    """The permissions of a directory before and after; -1 if it does not exist."""

    path: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """The content of a journal: all changes of one transaction."""

    kind: TransactionKind
    place: str
    """The working copy it belongs to."""
    number: int
    """The index of this apply in the record of the copy."""
    operations: tuple[Operation, ...]
    """In order of execution."""
    modes: tuple[ModeChange, ...]
    directories: dict[str, tuple[int, int]]
    """Device and inode of each directory with hidden files, to find it after a rename."""
    version: int = _JOURNAL_VERSION


@dataclass(frozen=True, slots=True)
class JournalFile:
    """The name of a journal: the process that owns it, and its phase."""

    owner: str
    phase: Phase

    @property
    def name(self) -> str:
        """The file name in the root."""
        return f"{_PREFIX}{self.owner}.{self.phase}"

    @property
    def is_alive(self) -> bool:
        """Whether its process may still run."""
        return is_owner_gone(self.owner) is not True


class ApplyJournal:
    """The write-ahead journal of one transaction."""

    def __init__(self, tree: LiveTree, file: JournalFile, record: JournalRecord) -> None:
        """Represent the `record` stored in `file`."""
        self._tree = tree
        self._file = file
        self.record: JournalRecord = record

    @classmethod
    def create(cls, tree: LiveTree, owner: str, record: JournalRecord) -> "ApplyJournal":
        """Write a new journal to disk."""
        file = JournalFile(owner, "staging")
        data = encode(record)

        def fill(descriptor: int) -> None:
            write_all(descriptor, data)

        root, name = tree.open_parent(file.name)
        try:
            store_file(root, name, fill, permissions=0o600, exclusive=True, durable=True)
            sync_directory(root)
            fault_point("apply.recorded")
        except BaseException:
            with suppress(OSError):
                tree.unlink(name)
            raise
        return cls(tree, file, record)

    @classmethod
    def open(cls, tree: LiveTree, file: JournalFile) -> "ApplyJournal":
        """Read the journal of an interrupted transaction.

        Raises:
            CopyError: It is damaged, or belongs to another user.
        """
        try:
            record = decode(_read_journal(tree, file.name), JournalRecord)
        except (SerdeError, OSError) as error:
            raise _damaged_error(file, str(error)) from error
        if record.version != _JOURNAL_VERSION:
            fact = f"version {record.version}, not {_JOURNAL_VERSION}"
            raise _damaged_error(file, fact)
        prefix = f"{_PREFIX}{file.owner}."
        for each in record.operations:
            if not each.hidden.rpartition("/")[2].startswith(prefix):
                raise _damaged_error(file, "a hidden name of another transaction")
        return cls(tree, file, record)

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self._file.phase

    @property
    def name(self) -> str:
        """The file name in the root; no process writes to this file."""
        return self._file.name

    def enter(self, phase: Phase) -> None:
        """Change the phase by a rename, which needs no disk space."""
        target = JournalFile(self._file.owner, phase)
        self._tree.rename(self._file.name, target.name)
        self._file = target
        fault_point(f"apply.{phase}")
        self._sync()

    def refresh(self) -> None:
        """Read the phase from disk; after an interrupt the phase in memory may be stale."""
        for phase in reversed(_PHASES):
            file = JournalFile(self._file.owner, phase)
            if self._tree.stat(file.name) is not None:
                self._file = file
                return

    def remove(self) -> None:
        """Remove the journal: the transaction has ended."""
        self._tree.unlink(self.name)
        fault_point("apply.settled")
        self._sync()

    def _sync(self) -> None:
        sync_directory(self._tree.open_parent(self.name)[0])


def new_owner() -> str:
    """Return a unique name for a new transaction of this process."""
    return owner_name()


def hidden_path(directory: str, owner: str, number: int) -> str:
    """Return a hidden path of a transaction."""
    return join(directory, f"{_PREFIX}{owner}.{number}")


def find_journals(tree: LiveTree) -> list[JournalFile]:
    """Return the journals in the root, of any process; read-only."""
    found = (_NAME.fullmatch(name) for name, is_directory in tree.names("") if not is_directory)
    made = [each for each in found if each is not None]
    records = [
        JournalFile(each[1], phase) for each in made for phase in _PHASES if each[2] == phase
    ]
    return sorted(records, key=lambda each: each.owner)


def has_journal(original: Path, place: Path) -> bool:
    """Return whether an apply from the copy at `place` was interrupted; read-only and cheap."""
    try:
        names = [each for each in os.listdir(original) if _NAME.fullmatch(each)]  # noqa: PTH208 # names, as fast as can be
    except OSError:
        return False
    return any(_is_journal_of(original / name, place) for name in names)


def _is_journal_of(path: Path, place: Path) -> bool:
    try:
        record = decode(read_regular(path, _MAX_JOURNAL), JournalRecord)
    except (SerdeError, OSError):
        return False
    return record.place == str(place)


def _read_journal(tree: LiveTree, name: str) -> bytes:
    descriptor, found = tree.root.open_file(name)
    with os.fdopen(descriptor, "rb") as file:
        if found.st_size > _MAX_JOURNAL or not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), name)
        if found.st_uid not in {os.geteuid(), 0}:
            raise OSError(errno.EPERM, "It belongs to another user", name)
        return file.read(_MAX_JOURNAL)


def _damaged_error(file: JournalFile, fact: str) -> CopyError:
    return CopyError(
        f"The journal of an interrupted apply is damaged: {file.name!r} ({fact});"
        " the hidden files beside it hold the previous versions"
    )
