"""Named snapshots of a filesystem, each a ZIP archive in one directory.

An archive is published atomically and only its owner can read it. It replaces an earlier
archive of the same name; a file that is not an archive is never replaced or removed.
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

from weakincentives import posix
from weakincentives.errors import SnapshotError
from weakincentives.filesystem.archive import ArchiveError
from weakincentives.filesystem.backend import export_state
from weakincentives.filesystem.paths import InvalidPathError
from weakincentives.filesystem.protocol import ArchivableFilesystem

ARCHIVE_SUFFIX = ".fs.zip"
EXPORTED = "manager.exported"
NAMED, REMOVED = "manager.named", "manager.removed"
FAULT_POINTS = (NAMED, REMOVED)
_ZIP_SIGNATURES = frozenset({b"PK\x03\x04", b"PK\x05\x06"})  # with entries, and empty
_DEFAULT_NAME = "wink-fs-snapshots"


class FileIdentity(NamedTuple):
    """The part of a stat that differs for another file, or after a change."""

    device: int
    inode: int
    size: int
    modified_ns: int


class ArchiveDirectory:
    """A private directory for archives, created on first use."""

    def __init__(self, path: Path | None, workspace: str) -> None:
        """Use `path`, or by default a private directory in the temporary directory.

        It must not be inside of `workspace`, the root of the archived files.
        """
        self._is_default = path is None
        self._path = Path(tempfile.gettempdir()) / _DEFAULT_NAME if path is None else Path(path)
        self._private = self._path / secrets.token_hex(8)
        self._workspace = workspace

    @contextmanager
    def stage(self, name: str) -> Generator[Path, None, None]:
        """Yield a hidden path to write a new archive to; it is removed unless published.

        Raises:
            SnapshotError: The directory cannot be used.
        """
        self._prepare()
        with posix.open_directory(self._path) as directory:
            posix.remove_leftovers(directory)
            hidden = posix.temporary_name()
            os.mkdir(hidden, 0o700, dir_fd=directory)
            try:
                yield self._path / hidden / (name + ARCHIVE_SUFFIX)
            finally:
                posix.remove_tree(directory, hidden)

    def publish(self, staged: Path) -> Path:
        """Publish a staged archive; return its path.

        In a directory that was given, it replaces an archive of that name, for example of
        an earlier process.

        Raises:
            FileExistsError: A file that is not an archive has that name.
        """
        path = self._path / staged.name
        try:
            return _move(staged, path, exclusive=True)
        except FileExistsError:
            if not self._is_default:
                if _is_archive(path):
                    return self.replace(staged, path)
                text = "A file that is not an archive has this name; remove it or choose another id"
                raise posix.os_error(errno.EEXIST, str(path), text) from None
        # other managers share the default directory, and may use the same id
        self._private.mkdir(0o700, exist_ok=True)
        return _move(staged, self._private / staged.name, exclusive=True)

    def replace(self, staged: Path, path: Path) -> Path:
        """Replace an earlier archive."""
        return _move(staged, path, exclusive=False)

    def sync(self, path: Path) -> None:
        """Sync the name of an archive."""
        posix.fault_point(NAMED)
        with posix.open_directory(path.parent) as directory:
            posix.sync_directory(directory)

    def remove(self, path: Path) -> None:
        """Remove an archive."""
        path.unlink(missing_ok=True)
        posix.fault_point(REMOVED)
        if path.parent == self._private:
            with suppress(OSError):  # not empty
                self._private.rmdir()

    def _prepare(self) -> None:
        """Create the directory if it is missing, or check it."""
        if self._is_default:
            with suppress(FileExistsError):
                self._path.mkdir(0o700)
            _check_private(self._path)
        else:
            self._path.mkdir(0o700, parents=True, exist_ok=True)
        if _is_inside(self._path, self._workspace):
            raise SnapshotError(
                "Snapshot directory is in the workspace, so a rollback would remove archives;"
                f" choose another snapshot_dir: {str(self._path)!r}"
            )


def seal(path: Path) -> FileIdentity:
    """Make an archive private and sync it; return its identity."""
    descriptor, _ = posix.open_regular(path)
    with posix.OpenDescriptor(descriptor):
        os.fchmod(descriptor, 0o600)
        os.fsync(descriptor)
        return _identity_of(os.fstat(descriptor))


def read_identity(path: Path) -> FileIdentity | None:
    """Return the identity of the file at `path`, or None."""
    try:
        return _identity_of(path.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_archive(path: Path) -> bool:
    """Return whether a regular file begins with a ZIP signature."""
    try:
        descriptor, _ = posix.open_regular(path)
    except OSError:  # a link, a pipe, or not readable
        return False
    with posix.OpenDescriptor(descriptor):
        return os.read(descriptor, 4) in _ZIP_SIGNATURES


def _identity_of(found: os.stat_result) -> FileIdentity:
    return FileIdentity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _move(source: Path, target: Path, *, exclusive: bool) -> Path:
    with posix.open_directory(source.parent) as old, posix.open_directory(target.parent) as new:
        posix.rename((old, source.name), (new, target.name), exclusive=exclusive)
    return target


def _check_private(path: Path) -> None:
    found = path.lstat()
    is_owned = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_owned or found.st_mode & 0o077:
        raise SnapshotError(
            "Snapshot directory must be a directory that you own and nobody else can enter;"
            f" chmod it to 700, remove it, or pass snapshot_dir: {str(path)!r}"
        )


def _is_inside(path: Path, workspace: str) -> bool:
    """Return whether `path` is below a workspace; `/` means one that is not on the host."""
    try:
        root = Path(workspace).stat()
    except (OSError, ValueError):
        return False
    real = path.resolve()
    return workspace != "/" and any(
        os.path.samestat(each.stat(), root) for each in (real, *real.parents)
    )


_MAX_ID_BYTES = 200  # with the suffix it is a valid name on any file system
_PUNCTUATION = frozenset(" !#$%&'()+,-.;=@[]^_`{}~")
_PORTS = "com", "lpt"
_DEVICES = frozenset(
    {"aux", "con", "nul", "prn"} | {port + digit for port in _PORTS for digit in "0123456789¹²³"}
)


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A named snapshot; `total_bytes` is the size of its archive."""

    snapshot_id: str
    archive_path: Path
    file_count: int
    total_bytes: int
    created_at: datetime


class SnapshotManager:
    """Takes named snapshots of a filesystem and restores them."""

    def __init__(
        self,
        filesystem: ArchivableFilesystem,
        snapshot_dir: Path | None = None,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Manage the snapshots of a filesystem.

        Args:
            filesystem: Its state is archived, and replaced by `rollback` and `restore`.
            snapshot_dir: Where the archives go; created on first use. By default
                `wink-fs-snapshots` in the temporary directory, which must be private.
            clock: Returns the creation time; the order of snapshots does not depend on it.
        """
        self._filesystem = filesystem
        self._archives = ArchiveDirectory(snapshot_dir, getattr(filesystem, "root", "/"))
        self._clock = clock
        self._lock = Lock()
        self._snapshots: dict[str, _Snapshot] = {}  # replaced, not mutated: read without the lock

    @property
    def filesystem(self) -> ArchivableFilesystem:
        """The managed filesystem."""
        return self._filesystem

    def snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """Archive the present state; an earlier snapshot with the id is replaced.

        If `snapshot_dir` was given, that includes snapshots of earlier processes. In the
        default directory, which all managers share, each replaces only its own.

        Raises:
            InvalidPathError: The id is not a portable file name.
            FileExistsError: A file that is not an archive has the name of the archive.
            SnapshotError: The directory is in the workspace, or the default one not private.
            OSError: The archive cannot be written.
        """
        _check_id(snapshot_id)
        created_at = self._clock()
        with self._archives.stage(snapshot_id) as staged:
            # without the lock: a listener of the filesystem may take snapshots too
            count = self._export(staged, created_at)
            identity = seal(staged)
            posix.fault_point(EXPORTED)
            with self._lock:
                path = self._publish(staged, self._snapshots.get(snapshot_id))
                info = SnapshotInfo(snapshot_id, path, count, identity.size, created_at)
                self._snapshots = {
                    **self._without(snapshot_id),
                    snapshot_id: _Snapshot(info, identity),
                }
                self._archives.sync(path)  # last: after an error the archive can be replaced
        return info

    def rollback(self, snapshot_id: str) -> int:
        """Restore a snapshot of this manager; return the number of files.

        Raises:
            KeyError: There is no such snapshot.
            FileNotFoundError: Its archive has been removed; nothing has changed.
            ArchiveError: Its archive has been changed or replaced; nothing has changed.
        """
        with self._lock:  # it must not be replaced meanwhile
            path = self._check_archive(snapshot_id)
        return self._filesystem.import_archive(path)

    def restore(self, archive_path: str | os.PathLike[str]) -> int:
        """Restore any archive; return the number of files.

        Raises:
            ArchiveError: It is damaged or unsafe; nothing has changed.
            OSError: It cannot be read; nothing has changed.
        """
        return self._filesystem.import_archive(Path(archive_path))

    def get(self, snapshot_id: str) -> SnapshotInfo | None:
        """Return a snapshot by its id, or None."""
        found = self._snapshots.get(snapshot_id)
        return None if found is None else found.info

    def list_snapshots(self) -> tuple[SnapshotInfo, ...]:
        """Return all snapshots, oldest first."""
        return tuple(found.info for found in self._snapshots.values())

    def delete(self, snapshot_id: str) -> bool:
        """Forget a snapshot and remove its archive; return whether there was one.

        A file that has replaced the archive is not removed.
        """
        with self._lock:
            found = self._snapshots.get(snapshot_id)
            if found is None:
                return False
            if found.is_unchanged:
                self._archives.remove(found.info.archive_path)
            self._snapshots = self._without(snapshot_id)
        return True

    def _export(self, path: Path, created_at: datetime) -> int:
        latest = next(reversed(self._snapshots.values()), None)
        previous = None if latest is None else latest.info.archive_path
        return export_state(self._filesystem, path, created_at=created_at, previous=previous)

    def _check_archive(self, snapshot_id: str) -> Path:
        """Return the archive of a snapshot, after checking that it is unchanged."""
        found = self._snapshots.get(snapshot_id)
        if found is None:
            raise KeyError(f"Snapshot not found: {snapshot_id}")
        path = found.info.archive_path
        if read_identity(path) is None:
            raise posix.os_error(
                errno.ENOENT, str(path), "Archive of the snapshot has been removed"
            )
        if not found.is_unchanged:
            raise ArchiveError(f"Archive has changed since the snapshot was taken: {str(path)!r}")
        return path

    def _publish(self, staged: Path, old: "_Snapshot | None") -> Path:
        if old is not None and old.is_unchanged:
            return self._archives.replace(staged, old.info.archive_path)
        return self._archives.publish(staged)

    def _without(self, snapshot_id: str) -> "dict[str, _Snapshot]":
        return {key: found for key, found in self._snapshots.items() if key != snapshot_id}


class _Snapshot(NamedTuple):
    """A snapshot and the identity of its archive."""

    info: SnapshotInfo
    identity: FileIdentity

    @property
    def is_unchanged(self) -> bool:
        """Whether the archive is still in place and unchanged."""
        return read_identity(self.info.archive_path) == self.identity


def _check_id(snapshot_id: str) -> None:
    """Check that an id is a valid file name, the same on every file system."""
    if not isinstance(snapshot_id, str):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may be untyped
        raise TypeError(f"Snapshot id must be a string, not {type(snapshot_id).__name__}")
    reason = _find_flaw(snapshot_id)
    if reason:
        raise InvalidPathError(f"Snapshot id {reason}: {posix.shorten_path(snapshot_id)!r}")


def _find_flaw(snapshot_id: str) -> str | None:
    """Return what is wrong with an id, if anything."""
    for character in snapshot_id:
        if character not in _PUNCTUATION and unicodedata.category(character)[0] not in "LMN":
            return f"contains {character!a}, which is not a letter, digit or plain punctuation"
    if not snapshot_id or len(snapshot_id.encode()) > _MAX_ID_BYTES:
        return f"must have 1 to {_MAX_ID_BYTES} bytes"
    if unicodedata.category(snapshot_id[0])[0] not in "LN" and snapshot_id[0] != "_":
        return "must begin with a letter, a digit or an underscore"
    if snapshot_id[-1] in " .":
        return "must not end with a space or a dot"
    if unicodedata.normalize("NFC", snapshot_id) != snapshot_id:
        return "is not in Unicode normal form C"
    if snapshot_id.partition(".")[0].strip().casefold() in _DEVICES:
        return "is a device name on some systems"
    return None
