"""The directory with the archives of named snapshots.

An archive appears in it whole or not at all, and only its owner may read it. An earlier
archive of the same name is replaced; what is no archive is never replaced or removed.
"""

import errno
import os
import secrets
import stat
import tempfile
import unicodedata
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from weakincentives.errors import SnapshotError
from weakincentives.filesystem.archive import ArchiveError
from weakincentives.filesystem.backend import export_state
from weakincentives.filesystem.paths import InvalidPathError
from weakincentives.filesystem.protocol import ArchivableFilesystem
from weakincentives.posix import (
    fault_point,
    is_temporary,
    open_regular,
    os_error,
    remove_leftovers,
    remove_tree,
    rename,
    shorten_path,
    sync_directory,
    temporary_name,
)

SUFFIX = ".fs.zip"
NAMED, REMOVED = "shelf.named", "shelf.removed"
FAULT_POINTS = (NAMED, REMOVED)
_ZIP_BEGINNINGS = frozenset({b"PK\x03\x04", b"PK\x05\x06"})  # with entries, and without
_DEFAULT_NAME = "wink-fs-snapshots"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class FileIdentity(NamedTuple):
    """What tells a file from another one, and from itself once it has been changed."""

    device: int
    inode: int
    size: int
    modified: int


class ArchiveDirectory:
    """A directory that is made when it is needed."""

    def __init__(self, path: Path | None, workspace: str) -> None:
        """Use `path`, or a directory in the temporary one that is ours alone.

        `workspace` is where the files are that are archived: the shelf must not be in it.
        """
        self._is_default = path is None
        self._path = Path(tempfile.gettempdir()) / _DEFAULT_NAME if path is None else Path(path)
        self._own = self._path / secrets.token_hex(8)
        self._workspace = workspace

    @contextmanager
    def staged(self, name: str) -> Generator[Path, None, None]:
        """Yield a path for a new archive, where nobody else looks; what stays there is removed.

        Raises:
            SnapshotError: The directory cannot be used.
        """
        self._ready()
        with _opened(self._path) as directory:
            with os.scandir(directory) as entries:
                leftovers = [entry.name for entry in entries if is_temporary(entry.name)]
            remove_leftovers(directory, leftovers)
            hidden = temporary_name()
            os.mkdir(hidden, 0o700, dir_fd=directory)
            try:
                yield self._path / hidden / (name + SUFFIX)
            finally:
                remove_tree(directory, hidden)

    def put(self, staged: Path) -> Path:
        """Give an archive its place; return where it is.

        In a directory that was given, an archive of that name, of an earlier process for
        example, is replaced.

        Raises:
            FileExistsError: Something that is no archive has that name.
        """
        path = self._path / staged.name
        try:
            return _moved(staged, path, exclusive=True)
        except FileExistsError:
            if not self._is_default:
                if _is_archive(path):
                    return self.replace(staged, path)
                text = "Not an archive, in the place of one, so remove it or take another id"
                raise os_error(errno.EEXIST, str(path), text) from None
        # others use the default directory too, and the same ids
        self._own.mkdir(0o700, exist_ok=True)
        return _moved(staged, self._own / staged.name, exclusive=True)

    def replace(self, staged: Path, path: Path) -> Path:
        """Put an archive in the place of an earlier one."""
        return _moved(staged, path, exclusive=False)

    def settle(self, path: Path) -> None:
        """Bring the name of an archive to the disk."""
        fault_point(NAMED)
        with _opened(path.parent) as directory:
            sync_directory(directory)

    def remove(self, path: Path) -> None:
        """Remove an archive."""
        path.unlink(missing_ok=True)
        fault_point(REMOVED)
        if path.parent == self._own:
            with suppress(OSError):  # there are others
                self._own.rmdir()

    def _ready(self) -> None:
        """Make the directory if it is missing, or check the one that is there."""
        if self._is_default:
            with suppress(FileExistsError):
                self._path.mkdir(0o700)
            _refuse_unless_private(self._path)
        else:
            self._path.mkdir(0o700, parents=True, exist_ok=True)
        if _is_inside(self._path, self._workspace):
            raise SnapshotError(
                "Snapshot directory is in the workspace, so a rollback would remove archives"
                f" (give another snapshot_dir): {str(self._path)!r}"
            )


def seal(path: Path) -> FileIdentity:
    """Make an archive private and bring it to the disk, whoever wrote it."""
    descriptor, _ = open_regular(path)
    try:
        os.fchmod(descriptor, 0o600)
        os.fsync(descriptor)
        return _mark(os.fstat(descriptor))
    finally:
        os.close(descriptor)


def mark_at(path: Path) -> FileIdentity | None:
    """Return what is at `path` now, or None."""
    try:
        return _mark(path.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_archive(path: Path) -> bool:
    """Return whether a regular file begins as a ZIP file does."""
    try:
        descriptor, _ = open_regular(path)
    except OSError:  # a link, a pipe, or closed to us
        return False
    try:
        return os.read(descriptor, 4) in _ZIP_BEGINNINGS
    finally:
        os.close(descriptor)


def _mark(found: os.stat_result) -> FileIdentity:
    return FileIdentity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _moved(source: Path, target: Path, *, exclusive: bool) -> Path:
    with _opened(source.parent) as old, _opened(target.parent) as new:
        rename((old, source.name), (new, target.name), exclusive=exclusive)
    return target


@contextmanager
def _opened(path: Path) -> Generator[int, None, None]:
    descriptor = os.open(path, _DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _refuse_unless_private(path: Path) -> None:
    found = path.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_own or found.st_mode & 0o077:
        raise SnapshotError(
            "Snapshot directory must be a real directory of yours that nobody else may enter"
            f" (chmod it to 700, remove it, or give snapshot_dir): {str(path)!r}"
        )


def _is_inside(path: Path, workspace: str) -> bool:
    """Return whether `path` is below a workspace on the host; `/` is one that is nowhere."""
    try:
        root = Path(workspace).stat()
    except (OSError, ValueError):
        return False
    real = path.resolve()
    return workspace != "/" and any(
        os.path.samestat(each.stat(), root) for each in (real, *real.parents)
    )


EXPORTED = "manager.exported"
_LONGEST_ID = 200  # bytes: with a suffix it fits into a name on any disk
_PUNCTUATION = frozenset(" !#$%&'()+,-.;=@[]^_`{}~")
_PORTS = "com", "lpt"
_DEVICES = frozenset(
    {"aux", "con", "nul", "prn"} | {port + digit for port in _PORTS for digit in "0123456789¹²³"}
)


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot with a name; `total_bytes` is the size of its archive."""

    snapshot_id: str
    archive_path: Path
    file_count: int
    total_bytes: int
    created_at: datetime


class SnapshotManager:
    """Takes named snapshots of a filesystem and goes back to them."""

    def __init__(
        self,
        filesystem: ArchivableFilesystem,
        snapshot_dir: Path | None = None,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Manage the snapshots of a filesystem.

        Args:
            filesystem: What is kept, and changed by `rollback` and `restore`.
            snapshot_dir: Where the archives go; made when it is needed. By default
                `wink-fs-snapshots` in the temporary directory, which must be ours alone.
            clock: What time it is; the order of snapshots does not depend on it.
        """
        self._filesystem = filesystem
        self._shelf = ArchiveDirectory(snapshot_dir, getattr(filesystem, "root", "/"))
        self._clock = clock
        self._lock = Lock()
        self._kept: dict[str, _Kept] = {}  # replaced, never changed: read without the lock

    @property
    def filesystem(self) -> ArchivableFilesystem:
        """The managed filesystem."""
        return self._filesystem

    def snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """Keep the present state; an earlier snapshot with the id is replaced.

        That is so for a snapshot of an earlier process too, if `snapshot_dir` was given; in
        the default directory, which all managers share, each replaces only its own.

        Raises:
            InvalidPathError: The id is not a plain name.
            FileExistsError: A file that is no archive has the name of the archive.
            SnapshotError: The directory is in the workspace, or the default one not ours alone.
            OSError: The archive cannot be written.
        """
        _check_id(snapshot_id)
        created_at = self._clock()
        with self._shelf.staged(snapshot_id) as staged:
            # not under the lock: who listens to the filesystem may take snapshots too
            count = self._export(staged, created_at)
            made = seal(staged)
            fault_point(EXPORTED)
            with self._lock:
                path = self._put(staged, self._kept.get(snapshot_id))
                info = SnapshotInfo(snapshot_id, path, count, made.size, created_at)
                self._kept = {**self._without(snapshot_id), snapshot_id: _Kept(info, made)}
                self._shelf.settle(path)  # last: what fails from here on is there to be replaced
        return info

    def rollback(self, snapshot_id: str) -> int:
        """Make everything as it was in a snapshot; return the number of files.

        Raises:
            KeyError: There is no such snapshot.
            FileNotFoundError: Its archive has been removed; nothing has changed.
            ArchiveError: Its archive has been changed or replaced; nothing has changed.
        """
        with self._lock:  # while nobody replaces it
            path = self._unchanged(snapshot_id)
        return self._filesystem.import_archive(path)

    def restore(self, archive_path: str | os.PathLike[str]) -> int:
        """Make everything as it is in an archive, whoever made it; return the number of files.

        Raises:
            ArchiveError: It cannot be trusted; nothing has changed.
            OSError: It cannot be read; nothing has changed.
        """
        return self._filesystem.import_archive(Path(archive_path))

    def get(self, snapshot_id: str) -> SnapshotInfo | None:
        """Return a snapshot, or None if there is none of that name."""
        kept = self._kept.get(snapshot_id)
        return None if kept is None else kept.info

    def list_snapshots(self) -> tuple[SnapshotInfo, ...]:
        """Return all snapshots in the order in which they were taken."""
        return tuple(kept.info for kept in self._kept.values())

    def delete(self, snapshot_id: str) -> bool:
        """Forget a snapshot and remove its archive; return whether there was one.

        A file that has taken the archive's place stays.
        """
        with self._lock:
            kept = self._kept.get(snapshot_id)
            if kept is None:
                return False
            if kept.is_there:
                self._shelf.remove(kept.info.archive_path)
            self._kept = self._without(snapshot_id)
        return True

    def _export(self, path: Path, created_at: datetime) -> int:
        latest = next(reversed(self._kept.values()), None)
        previous = None if latest is None else latest.info.archive_path
        return export_state(self._filesystem, path, created_at=created_at, previous=previous)

    def _unchanged(self, snapshot_id: str) -> Path:
        """Return the archive of a snapshot, which is as it was left."""
        kept = self._kept.get(snapshot_id)
        if kept is None:
            raise KeyError(f"Snapshot not found: {snapshot_id}")
        path = kept.info.archive_path
        if mark_at(path) is None:
            raise os_error(errno.ENOENT, str(path), "Archive of the snapshot has been removed")
        if not kept.is_there:
            raise ArchiveError(f"Archive is not as the snapshot left it: {str(path)!r}")
        return path

    def _put(self, staged: Path, old: "_Kept | None") -> Path:
        if old is not None and old.is_there:
            return self._shelf.replace(staged, old.info.archive_path)
        return self._shelf.put(staged)

    def _without(self, snapshot_id: str) -> "dict[str, _Kept]":
        return {key: kept for key, kept in self._kept.items() if key != snapshot_id}


class _Kept(NamedTuple):
    """A snapshot, and what its archive looked like."""

    info: SnapshotInfo
    mark: FileIdentity

    @property
    def is_there(self) -> bool:
        """Whether the archive is still where it was put, and unchanged."""
        return mark_at(self.info.archive_path) == self.mark


def _check_id(snapshot_id: str) -> None:
    """Refuse what would not be the same plain file name on every disk."""
    if not isinstance(snapshot_id, str):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may be untyped
        raise TypeError(f"Snapshot id must be a string, not {type(snapshot_id).__name__}")
    reason = _flaw(snapshot_id)
    if reason:
        raise InvalidPathError(f"Snapshot id {reason}: {shorten_path(snapshot_id)!r}")


def _flaw(snapshot_id: str) -> str | None:
    """Return what is wrong with an id, if anything."""
    for character in snapshot_id:
        if character not in _PUNCTUATION and unicodedata.category(character)[0] not in "LMN":
            return f"holds {character!a}, which is no letter, digit or plain punctuation"
    if not snapshot_id or len(snapshot_id.encode()) > _LONGEST_ID:
        return f"must have 1 to {_LONGEST_ID} bytes"
    if unicodedata.category(snapshot_id[0])[0] not in "LN" and snapshot_id[0] != "_":
        return "must begin with a letter, a digit or an underscore"
    if snapshot_id[-1] in " .":
        return "must not end with a blank or a dot"
    if unicodedata.normalize("NFC", snapshot_id) != snapshot_id:
        return "is not in Unicode normal form C"
    if snapshot_id.partition(".")[0].strip().casefold() in _DEVICES:
        return "is the name of a device on some systems"
    return None
