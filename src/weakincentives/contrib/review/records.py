"""The record of a run and of its working copy, with which any process continues."""

import os
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeAlias

from weakincentives.contrib.review.merge import Merge
from weakincentives.contrib.review.views import Version
from weakincentives.errors import WinkError
from weakincentives.filesystem import FilesystemSnapshot, HostFilesystem, HostMount, SkippedEntry
from weakincentives.filesystem.mounts import MountFilter
from weakincentives.posix import read_regular, store_private
from weakincentives.serde import SerdeError, decode, encode

_RECORD = "run.json"
_VERSION = 3
_MAX_RECORD = 256 * 1024 * 1024


class CopyError(WinkError, ValueError):
    """The directory is not a working copy, or none can be created."""


class CopyInUseError(CopyError):
    """The copy is not removed: somebody saved in it meanwhile, or has a file open for writing."""


GitEntry: TypeAlias = tuple[str, str]
"""The mode and the object id of an entry in a tree or an index of git."""

IndexChange: TypeAlias = tuple[GitEntry | None, GitEntry | None]
"""An entry of an index before and after a change; None if there is none."""

Status: TypeAlias = Literal["copying", "running", "done", "failed", "cancelled"]
Displaced: TypeAlias = tuple[FilesystemSnapshot, FilesystemSnapshot]


@dataclass(frozen=True, slots=True)
class Application:
    """One apply: the state of the copy at that time, and the changed paths of the original."""

    after: FilesystemSnapshot
    paths: tuple[str, ...]
    merges: tuple[Merge, ...] = ()
    attributes: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])
    """The extended attributes of removed files."""
    accepted: tuple[str, ...] = ()
    """All paths that were applied, also where the original had the new state."""
    contents: dict[str, Version] = field(default_factory=dict[str, Version])
    """The files of which only some hunks were applied, as they are with these."""
    is_settled: bool = True
    """Whether it has ended; it is recorded before it begins."""
    commit: str = ""
    """The git commit that was made of it."""
    staged: dict[str, IndexChange] = field(default_factory=dict[str, IndexChange])
    """The entries of git's index that the commit changed, before and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFacts:
    """What is known of a copy since it was created."""

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
    size_bytes: int = 0
    """What the files took on the disk when their changes were last looked at; 0 before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What a run is and how it ended, its working copy, and the applies of its changes."""

    original: str
    """The directory that it works on."""
    created_at: datetime
    began_at: datetime
    """When it began, or was continued last."""
    copy: CopyFacts | None = None
    """The copy; None until it is complete, and once it is removed."""
    applied: tuple[Application, ...] = ()
    session_id: str = ""
    task: str = ""
    model: str = ""
    status: Status = "done"
    answer: str = ""
    """The last answer of the model."""
    changes: int | None = None
    """The paths that wait for a decision; None if that is not known."""
    seen: FilesystemSnapshot | None = None
    """The files at the last review."""
    since: FilesystemSnapshot | None = None
    """The files when the last instruction was given; None if that was the task."""
    displaced: dict[int, Displaced] = field(default_factory=dict[int, Displaced])
    """The files before and after the rollback of a command that displaced some, by its step."""
    version: int = _VERSION

    def with_applies(self, entries: tuple[Application, ...]) -> "RunRecord":
        """Return the record with these applies, and with what they leave to decide about."""
        more = _count_accepted(entries) - _count_accepted(self.applied)
        left = None if self.changes is None or more < 0 else max(0, self.changes - more)
        return replace(self, applied=entries, changes=left)


def _count_accepted(entries: tuple[Application, ...]) -> int:
    """Return how many paths were applied as a whole."""
    return sum(len({*each.accepted} - each.contents.keys()) for each in entries if each.is_settled)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingCopy(CopyFacts):
    """A copy of a directory to work in; changes in it do not reach the original."""

    original: Path
    """The directory that was copied."""
    place: Path
    """The directory of the copy, its history and its record; pass it to `open_copy`."""

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
    if record.copy is None:
        raise CopyError(f"The working copy was removed, or is not complete: {str(found)!r}")
    if not workspace_path(found).is_dir():
        raise CopyError(f"The files of the working copy are gone: {str(found)!r}")
    facts = {each.name: getattr(record.copy, each.name) for each in fields(CopyFacts)}
    return WorkingCopy(original=Path(record.original), place=found, **facts)


def workspace_path(place: Path) -> Path:
    """Return the directory of the files of a copy."""
    return place / "workspace"


def history_path(place: Path) -> Path:
    """Return the snapshot store of a copy; steps that are recorded there stay without the copy."""
    return place / "history"


def open_files(copy: WorkingCopy) -> HostFilesystem:
    """Open the files of a copy."""
    return HostFilesystem(copy.root, git_dir=copy.git_dir)


def exclusion_filter(globs: tuple[str, ...]) -> MountFilter:
    """Return a filter that excludes what one of `globs` matches."""
    return MountFilter(HostMount(".", exclude_glob=globs))


def record_path(place: Path) -> Path:
    """Return the record of a run, in the directory of its copy."""
    return place / _RECORD


def is_copy(place: Path) -> bool:
    """Return whether a working copy is at `place`, even if its record is damaged."""
    return record_path(place).is_file() and workspace_path(place).is_dir()


def read_record(place: Path) -> RunRecord:
    """Return the record at `place`."""
    try:
        # a link is not ours: we write regular files
        record = decode(read_regular(record_path(place), _MAX_RECORD), RunRecord)
    except (FileNotFoundError, NotADirectoryError):
        raise CopyError(f"Not a working copy: {str(place)!r}") from None
    except OSError as error:
        fact = f"{error.strerror}: {_RECORD!r}"
        raise CopyError(f"Not a working copy: {str(place)!r} ({fact})") from None
    except SerdeError as error:
        raise CopyError(f"The record of the working copy is damaged: {error}") from error
    if record.version != _VERSION:
        raise CopyError(
            f"The working copy was made by another version: its record has version"
            f" {record.version}, not {_VERSION}; its files are in {str(workspace_path(place))!r}"
        )
    return record


def find_record(place: Path) -> RunRecord | None:
    """Return the record at `place`; None without a readable one."""
    try:
        return read_record(place)
    except CopyError:
        return None


def write_record(place: Path, record: RunRecord) -> None:
    """Replace the record at `place` atomically."""
    data = encode(record)
    if len(data) > _MAX_RECORD:
        raise CopyError(f"The record of the working copy would exceed {_MAX_RECORD:,} bytes")
    store_private(record_path(place), data)
