"""The directory of a snapshot store: made by us, ours alone, locked, and removed by us only.

A file that says so is written before anything else, so that what a killed process
left half-made is known to be ours. A directory without that file is never used. Who opens
or removes it locks the directory itself first, so that nobody sees it half-made or
half-removed.
"""

import errno
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from weakincentives.errors import SnapshotError
from weakincentives.posix import (
    AtomicFile,
    fault_point,
    is_temporary,
    read_regular,
    remove_leftovers,
    remove_tree,
    sync_directory,
    write_all,
)

MARKER = "wink.json"
FORMAT = 1
_LOCK = "wink.lock"
_USERS = "wink.users"
_EPOCH = "wink.epoch"
_MAX_MARKER = 64 * 1024
_MAX_EPOCH = 1024
_ATTEMPTS = 1_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOCK_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORIES = ("objects", "objects/info", "objects/pack", "refs", "refs/heads", "refs/wink")
_HEAD = b"ref: refs/heads/main\n"
# no hook, no maintenance of git's own, and nothing that would need care when we remove objects
_CONFIG = b"""[core]
\trepositoryFormatVersion = 0
\tbare = true
\tlogAllRefUpdates = false
\thooksPath = no-hooks
\tfsmonitor = false
\tbigFileThreshold = 16m
\tcommitGraph = false
\tmultiPackIndex = false
[gc]
\tauto = 0
\twriteCommitGraph = false
[maintenance]
\tauto = false
[repack]
\twriteBitmaps = false
[protocol]
\tallow = never
"""


@dataclass(frozen=True, slots=True)
class Marker:
    """What the file says that makes a directory ours."""

    root: str
    adopted: bool
    """The directory was there before, and empty."""


class GitDirectory:
    """A bare git repository that is ours."""

    def __init__(self, path: Path, root: str | None = None) -> None:
        """Use `path`; with the `root` of a workspace it is made where it is missing.

        Raises:
            SnapshotError: It is not ours, not only ours, or of another workspace.
        """
        self.path = path
        self._root = root
        self.marker: Marker = self._ensured()

    @contextmanager
    def lock(self) -> Generator[None, None, None]:
        """Keep every other writer out, in any process; waits until they are done.

        Raises:
            SnapshotError: The directory has been removed, and may not be made again.
        """
        with self._held(_LOCK, fcntl.LOCK_EX):
            # its locks are there before its configuration: somebody may be making it again
            if not ((self.path / MARKER).exists() and self._is_complete()):
                if self._root is None and not (self.path / MARKER).exists():
                    raise _not_ours(self.path)
                with self._whole():
                    self._finish(self.marker.root, adopted=self.marker.adopted)
            yield

    @contextmanager
    def prevent_removal(self) -> Generator[None, None, None]:
        """Keep everybody from removing the directory."""
        with self._held(_USERS, fcntl.LOCK_SH):
            yield

    def remove(self) -> bool:
        """Remove the directory unless somebody uses it; return whether it is gone.

        What is not ours stays.
        """
        if not os.path.lexists(self.path):
            return True
        try:
            # in this order: who waits for a writer must not keep others from opening
            with self._held(_LOCK, fcntl.LOCK_EX), self._whole():
                self._remove_unused()
        except (SnapshotError, BlockingIOError, FileNotFoundError):
            return not os.path.lexists(self.path)
        return True

    def _remove_unused(self) -> None:
        """Remove all, while nobody can open the directory.

        Raises:
            BlockingIOError: Somebody uses it.
        """
        adopted = self._read_marker().adopted
        users = os.open(self.path / _USERS, _LOCK_FILE | os.O_CREAT, 0o600)
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._empty()
            if not adopted:
                with suppress(OSError):  # somebody has put something there
                    self.path.rmdir()
        finally:
            os.close(users)

    def replace(self, name: str, data: bytes, *, durable: bool = True, urgent: bool = True) -> None:
        """Create or replace the file `name` in one step.

        What is not `urgent` may be the old one after a power failure, but is never damaged.
        """
        with AtomicFile(self.path, data) as file:
            if durable:
                os.fsync(file.descriptor)
            self.publish(file, name, durable=durable and urgent)

    def publish(self, file: AtomicFile, name: str, *, durable: bool) -> None:
        """Make a file that is on the disk already the file `name`, in one step."""
        target = self.path / name
        fault_point("gitdir.written")
        file.name(target)
        fault_point("gitdir.renamed")
        if durable:
            sync_directory(target.parent)

    def epoch(self) -> str:
        """Return a token that is new when the directory is made, and when we say so."""
        try:
            return read_regular(self.path / _EPOCH, _MAX_EPOCH).decode("ascii")
        except (OSError, ValueError):
            return secrets.token_hex(16)  # never the same: nothing may be taken for granted

    def begin_epoch(self) -> None:
        """Change the token, in place: room is made by what comes next, on a full disk too."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self.path / _EPOCH, flags, 0o600)
        try:
            write_all(descriptor, secrets.token_hex(16).encode())  # half of it is new too
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fault_point("gitdir.begun")

    def sweep(self) -> None:
        """Remove what killed writers left."""
        with os.scandir(self.path) as entries:
            names = [entry.name for entry in entries if is_temporary(entry.name)]
        if names:
            directory = os.open(self.path, _DIRECTORY)
            try:
                remove_leftovers(directory, names)
            finally:
                os.close(directory)

    def _ensured(self) -> Marker:
        """Return the marker of a directory that is ours, private and complete."""
        for _ in range(_ATTEMPTS):
            # another process may remove it at any moment, and then it is made again
            with suppress(FileNotFoundError):
                made = self._root is not None and self._make()
                with self._whole():
                    return self._completed(made)
        raise SnapshotError(f"Snapshot store is removed again and again: {str(self.path)!r}")

    def _make(self) -> bool:
        """Make the directory; return whether it was not there."""
        try:
            self.path.mkdir(0o700, parents=True)
        except FileExistsError:
            return False
        fault_point("gitdir.made")
        return True

    def _completed(self, made: bool) -> Marker:
        """Return the marker of the directory, which nobody else opens or removes meanwhile."""
        root = self._root
        if root is not None and not (self.path / MARKER).exists():
            self._finish(root, adopted=not made)
        marker = self._read_marker()
        if root is not None and marker.root != root:
            raise SnapshotError(f"Snapshot store belongs to another workspace: {marker.root!r}")
        if not self._is_complete():
            self._finish(marker.root, adopted=marker.adopted)
        return marker

    @contextmanager
    def _whole(self) -> Generator[None, None, None]:
        """Keep everybody from opening and removing the directory, which is whole meanwhile.

        The lock is on the directory itself, so it is there before anything is in it.

        Raises:
            FileNotFoundError: It has been removed, and may be made again.
            SnapshotError: It is not ours, or not there and not to be made.
        """
        while True:
            self._refuse_missing()
            descriptor = os.open(self.path, _DIRECTORY)
            try:
                _flock(descriptor)
                if _is_at(self.path, descriptor):
                    yield
                    return
            finally:
                _unlock(descriptor)

    def _refuse_missing(self) -> None:
        try:
            _refuse_unless_own(self.path)
        except SnapshotError:
            if self._root is not None and not os.path.lexists(self.path):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
            raise

    def _finish(self, root: str, *, adopted: bool) -> None:
        """Make what is not there yet: the marker first, the configuration last."""
        if not (self.path / MARKER).exists():
            self._refuse_unless_empty()
            self.path.chmod(0o700)
            text = json.dumps({"format": FORMAT, "root": root, "adopted": adopted}, indent=2)
            self.replace(MARKER, text.encode() + b"\n")
        if not self._is_complete():
            for name in _DIRECTORIES:
                (self.path / name).mkdir(0o700, exist_ok=True)
            self.replace("HEAD", _HEAD)
            for name in (_USERS, _LOCK):
                (self.path / name).touch(0o600)  # not anew: somebody may hold it
            self.begin_epoch()
            self.replace("config", _CONFIG)

    def _is_complete(self) -> bool:
        return all((self.path / name).exists() for name in ("config", _USERS, _LOCK))

    def _refuse_unless_empty(self) -> None:
        _refuse_unless_own(self.path)
        for path in self.path.iterdir():
            if path.name not in {_LOCK, _USERS, MARKER} and not is_temporary(path.name):
                raise _not_ours(self.path)

    def _read_marker(self) -> Marker:
        """Return the marker of a directory that is ours and private."""
        found = _refuse_unless_own(self.path)
        try:
            descriptor = os.open(self.path / MARKER, _OLD_FILE)
            try:
                values: object = json.loads(os.read(descriptor, _MAX_MARKER))
            finally:
                os.close(descriptor)
        except (OSError, ValueError, RecursionError):
            raise _not_ours(self.path) from None
        match values:
            case {"format": 1, "root": str(root), "adopted": bool(adopted)}:
                marker = Marker(root, adopted)
            case {"format": int(number)} if number != FORMAT:
                text = f"Snapshot store has format {number}, this package reads {FORMAT}"
                raise SnapshotError(f"{text}: {str(self.path)!r}")
            case _:
                raise _not_ours(self.path)
        if found.st_mode & 0o077:
            raise SnapshotError(f"Snapshot store is open to other users: {str(self.path)!r}")
        return marker

    @contextmanager
    def _held(self, name: str, operation: int) -> Generator[None, None, None]:
        descriptor = self._flock(self.path / name, operation)
        try:
            yield
        finally:
            _unlock(descriptor)

    def _flock(self, path: Path, operation: int) -> int:
        """Lock the file that is at `path` when the lock is got."""
        while True:
            try:
                descriptor = os.open(path, _LOCK_FILE)
            except FileNotFoundError:
                self._ensured()
                continue
            try:
                fcntl.flock(descriptor, operation)
                if _is_at(path, descriptor):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _empty(self) -> None:
        """Remove all, in an order that leaves something usable wherever it ends.

        Without its configuration the rest is completed by whoever comes next, without
        refs there are no snapshots, and without the marker nothing but locks.
        """
        order = {"config": -2, "refs": -1, MARKER: 1, _USERS: 2, _LOCK: 3}
        directory = os.open(self.path, _DIRECTORY)
        try:
            with os.scandir(directory) as entries:
                names = [entry.name for entry in entries]
            for name in sorted(names, key=lambda each: (order.get(each, 0), each)):
                fault_point("gitdir.removing")
                try:
                    os.unlink(name, dir_fd=directory)
                except (IsADirectoryError, PermissionError):
                    remove_tree(directory, name)
        finally:
            os.close(directory)


def _refuse_unless_own(path: Path) -> os.stat_result:
    try:
        found = path.lstat()
    except FileNotFoundError:
        raise SnapshotError(f"Snapshot store is missing: {str(path)!r}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise _not_ours(path)
    return found


def _not_ours(path: Path) -> SnapshotError:
    return SnapshotError(f"Snapshot store was not made by this package: {str(path)!r}")


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _flock(directory: int) -> None:
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
    except OSError as error:  # not every network file system locks directories
        if error.errno not in {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP}:
            raise


def _unlock(descriptor: int) -> None:
    """Let go of a lock; said aloud, because a child that was forked has the descriptor too."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
