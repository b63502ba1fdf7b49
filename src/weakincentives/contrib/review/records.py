"""A working copy and the record of it on the disk, so that another process can go on."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from weakincentives.contrib.review.merge import Merge
from weakincentives.contrib.review.views import PreservingFilesystem
from weakincentives.errors import WinkError
from weakincentives.filesystem import FilesystemSnapshot, HostMount, SkippedEntry
from weakincentives.filesystem.mounts import MountFilter
from weakincentives.posix import read_regular, store_file, write_all
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
