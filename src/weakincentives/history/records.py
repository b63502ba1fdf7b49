"""The write-ahead record of a change, and the slots that hold the other versions of its paths.

Both are in a hidden staging directory in the root, so that every process sees a change that was
interrupted, even if whoever made it is gone. A file system that is mounted below the root has
a staging directory of its own, since nothing can be renamed across. Without a record, nothing has
been changed yet and the slots can go. With one, the change is going on until the record says
that it is done; the slots then hold what it displaced.
"""

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from weakincentives import posix
from weakincentives.errors import WinkError
from weakincentives.history.entries import EntryState, LiveTree
from weakincentives.serde import SerdeError, decode, encode

Action: TypeAlias = Literal[
    "replace", "create", "remove", "make directory", "remove directory", "move directory"
]
Phase: TypeAlias = Literal["staging", "changing", "reverting", "done"]
Ending: TypeAlias = Literal["committed", "rolled back"]

PREFIX = f"{posix.RESERVED_PREFIX}change-"
"""The beginning of the name of every staging directory."""
_RECORD, _NEW_RECORD, _IGNORE = "record", "record.new", ".gitignore"
_PHASES: dict[bytes, Phase] = {b"c": "changing", b"r": "reverting", b"d": "done"}
_VERSION = 1
_MAX_RECORD = 512 * 1024 * 1024
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_active: set[str] = set()  # the changes that this process makes now


class RecordError(WinkError, ValueError):
    """The record of an interrupted change is damaged, or belongs to another user."""


@dataclass(frozen=True, slots=True)
class PathOperation:
    """The change of one path, and the slot of its other version."""

    action: Action
    path: str
    slot: str
    before: EntryState
    after: EntryState
    attributes: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """The user's extended attributes, of a file before and after."""
    inode: int = 0
    """The directory that is moved from `slot`, its old name, to `path`."""
    inside: dict[str, EntryState] = field(default_factory=dict[str, EntryState])
    """What is expected in that directory, by path below it."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that it changes."""
        return (self.path, self.slot) if self.action == "move directory" else (self.path,)


@dataclass(frozen=True, slots=True)
class ModeChange:
    """The permissions of a directory before and after; -1 if it does not exist."""

    path: str
    before: int
    after: int
    kind: str = "directory"


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """What a change was for, and all that it does."""

    kind: str
    """What it was: an apply, an undo, a restore."""
    place: str
    """Whom it belongs to: the working copy, the snapshot store."""
    number: int
    """Which change of that place it is."""
    operations: tuple[PathOperation, ...]
    """In order of execution."""
    modes: tuple[ModeChange, ...]
    directories: dict[str, int]
    """The inode of each directory that it changes, to find it after a rename."""
    areas: tuple[str, ...] = ()
    """All staging directories, the one with the record first."""
    root_mode: int = -1
    """The permissions of the root, if it was made accessible to its owner."""
    rolls_forward: bool = False
    """Whether a recovery completes it; otherwise it is rolled back."""
    version: int = _VERSION


class Staging:
    """The staging directories of one change."""

    def __init__(self, tree: LiveTree, owner: str) -> None:
        """Use the staging directories of `owner`, which `create` creates or `open` finds."""
        self._tree = tree
        self.owner: str = owner
        self.areas: list[str] = [f"{PREFIX}{owner}"]
        self._points: posix.MountPoints | None = None
        self._count = 0
        self._hides = True
        self.phase: Phase = "staging"

    def create(self, *, hides: bool) -> None:
        """Create the staging directory in the root: until `release`, no recovery touches it.

        If it `hides` from git, git neither adds nor cleans what is in it.
        """
        self._hides = hides
        _active.add(self.owner)
        self._make_area(self.areas[0])

    @classmethod
    def open(cls, tree: LiveTree, name: str) -> tuple["Staging", ChangeRecord | None]:
        """Open the staging directory of an interrupted change; None if it has no record.

        Raises:
            RecordError: The record is damaged, or belongs to another user.
        """
        staging = cls(tree, name.removeprefix(PREFIX))
        # those without a slot in the record too: it may have been killed before it was complete
        staging.areas += [posix.join(point, name) for point in posix.MountPoints(tree.root)]
        try:
            phase, data = _read_record(tree, name)
            record = decode(data, ChangeRecord)
        except FileNotFoundError:
            return staging, None
        except (SerdeError, OSError) as error:
            raise _damaged_error(name, str(error)) from error
        if record.version != _VERSION:
            raise _damaged_error(name, f"version {record.version}, not {_VERSION}")
        areas = [area for area in record.areas if area.rpartition("/")[2] == name]
        if len(areas) != len(record.areas) or name not in areas:
            raise _damaged_error(name, "a staging directory of another change")
        slots = [each.slot for each in record.operations if each.action != "move directory"]
        if any(slot.rpartition("/")[0] not in areas for slot in slots):
            raise _damaged_error(name, "a slot of another change")
        staging.areas = list(dict.fromkeys([*areas, *staging.areas]))
        staging.phase = phase
        return staging, record

    def new_slot(self, path: str) -> str:
        """Return a new slot on the file system of `path`."""
        if self._points is None:
            self._points = posix.MountPoints(self._tree.root)
        area = posix.join(self._points.filesystem_root(path), self.areas[0])
        if area not in self.areas:
            self._make_area(area)
            self.areas.append(area)
        self._count += 1
        return f"{area}/{self._count}"

    def write(self, record: ChangeRecord) -> int:
        """Write the record, which is not valid before `begin`; return it open, for a sync."""
        parent, _ = self._tree.open_parent(f"{self.areas[0]}/{_RECORD}")
        descriptor = os.open(_NEW_RECORD, _NEW_FILE, 0o600, dir_fd=parent)
        try:
            posix.write_all(descriptor, b"c\n" + encode(record))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def begin(self, *, durable: bool) -> None:
        """Make the record valid: from now on the change is going on."""
        parent, _ = self._tree.open_parent(f"{self.areas[0]}/{_RECORD}")
        os.rename(_NEW_RECORD, _RECORD, src_dir_fd=parent, dst_dir_fd=parent)
        self.phase = "changing"
        posix.fault_point("change.recorded")
        if durable:
            posix.sync_directory(parent)

    def enter(self, phase: Literal["reverting", "done"], *, durable: bool) -> None:
        """Change the phase in place, which needs no disk space."""
        parent, _ = self._tree.open_parent(f"{self.areas[0]}/{_RECORD}")
        descriptor = os.open(_RECORD, os.O_WRONLY | os.O_CLOEXEC, dir_fd=parent)
        with posix.OpenDescriptor(descriptor):
            os.pwrite(descriptor, phase[:1].encode(), 0)
            self.phase = phase
            posix.fault_point(f"change.{phase}")
            if durable:
                os.fdatasync(descriptor)

    def remove(self, *, durable: bool = False) -> None:
        """Remove the staging directories with everything in them: the change has ended."""
        if self.phase != "staging":
            parent, _ = self._tree.open_parent(f"{self.areas[0]}/{_RECORD}")
            with suppress(FileNotFoundError):
                os.unlink(_RECORD, dir_fd=parent)
            posix.fault_point("change.settled")
        for area in reversed(self.areas):
            with suppress(FileNotFoundError):
                posix.remove_tree(*self._tree.open_parent(area))
        if durable:
            posix.sync_directory(self._tree.root.descriptor)

    def release(self) -> None:
        """Leave what there is to a later recovery."""
        _active.discard(self.owner)

    def _make_area(self, area: str) -> None:
        self._tree.mkdir(area, 0o700)
        if self._hides:
            parent, name = self._tree.open_parent(f"{area}/{_IGNORE}")
            with posix.OpenDescriptor(os.open(name, _NEW_FILE, 0o600, dir_fd=parent)) as ignore:
                posix.write_all(ignore, b"*\n")


def find_staging(tree: LiveTree) -> list[str]:
    """Return the names of all staging directories in the root, of any process; read-only."""
    return sorted(
        name
        for name, is_directory in tree.names("")
        if is_directory and posix.owner_in(name, PREFIX)
    )


def is_abandoned(name: str) -> bool:
    """Return whether no process is making the change of this staging directory any more.

    A process in another pid namespace may be: then it is not.
    """
    owner = name.removeprefix(PREFIX)
    return owner not in _active if posix.is_own(owner) else posix.is_owner_gone(owner) is True


def _read_record(tree: LiveTree, name: str) -> tuple[Phase, bytes]:
    parent, record = tree.open_parent(f"{name}/{_RECORD}")
    descriptor, found = tree.root.open_entry(parent, record)
    with os.fdopen(descriptor, "rb") as file:
        if found.st_size > _MAX_RECORD or not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), name)
        if found.st_uid not in {os.geteuid(), 0}:
            raise OSError(errno.EPERM, "It belongs to another user", name)
        data = file.read(_MAX_RECORD)
    phase = _PHASES.get(data[:1])
    if phase is None:
        raise OSError(errno.EINVAL, "Its phase is unknown", name)
    return phase, data[2:]


def _damaged_error(name: str, fact: str) -> RecordError:
    return RecordError(
        f"The journal of an interrupted apply is damaged: {name!r} ({fact});"
        " the hidden files in it hold the previous versions"
    )
