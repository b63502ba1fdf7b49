"""The directory with the archives of named snapshots.

An archive appears in it whole or not at all, and only its owner may read it. An earlier
archive of the same name is replaced; what is no archive is never replaced or removed.
"""

import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from weakincentives.errors import SnapshotError
from weakincentives.filesystem.faults import reached
from weakincentives.filesystem.leftovers import is_temporary, temporary_name
from weakincentives.filesystem.paths import os_error
from weakincentives.filesystem.regular import open_regular
from weakincentives.filesystem.staging import remove_leftovers, remove_tree, rename, sync_directory

SUFFIX = ".fs.zip"
NAMED, REMOVED = "shelf.named", "shelf.removed"
FAULT_POINTS = (NAMED, REMOVED)

_ZIP_BEGINNINGS = frozenset({b"PK\x03\x04", b"PK\x05\x06"})  # with entries, and without
_DEFAULT_NAME = "wink-fs-snapshots"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Mark(NamedTuple):
    """What tells a file from another one, and from itself once it has been changed."""

    device: int
    inode: int
    size: int
    modified: int


class Shelf:
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
        reached(NAMED)
        with _opened(path.parent) as directory:
            sync_directory(directory)

    def remove(self, path: Path) -> None:
        """Remove an archive."""
        path.unlink(missing_ok=True)
        reached(REMOVED)
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


def sealed(path: Path) -> Mark:
    """Make an archive private and bring it to the disk, whoever wrote it."""
    descriptor, _ = open_regular(path)
    try:
        os.fchmod(descriptor, 0o600)
        os.fsync(descriptor)
        return _mark(os.fstat(descriptor))
    finally:
        os.close(descriptor)


def mark_at(path: Path) -> Mark | None:
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


def _mark(found: os.stat_result) -> Mark:
    return Mark(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


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
