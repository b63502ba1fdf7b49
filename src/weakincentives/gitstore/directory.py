"""The git directory of a snapshot store, created, locked and removed safely, and its refs.

A marker file is written before anything else, so a directory that a killed process left
incomplete is known to be ours. A directory without the marker is never used. To open or remove
the directory, a process first locks the directory itself, so no process sees it half-created or
half-removed.

We write one file for each ref. Git may have moved refs into `packed-refs`, so both are read.
A ref is an object id or it is damaged; symbolic refs are not followed.
"""

import errno
import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from weakincentives.errors import SnapshotError
from weakincentives.posix import (
    AtomicFile,
    OpenDescriptor,
    fault_point,
    is_temporary,
    lock,
    open_directory,
    open_regular,
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
_MAX_ATTEMPTS = 1_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOCK_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORIES = ("objects", "objects/info", "objects/pack", "refs", "refs/heads", "refs/wink")
_HEAD = b"ref: refs/heads/main\n"
MAIN = "refs/heads/main"
PINS = "refs/wink/"
_PACKED = "packed-refs"
_SHALLOW = "shallow"
_MAX_REF = 1024
_MAX_PACKED = 256 * 1024 * 1024
_LOOSE = re.compile(rb"([0-9a-f]{40})\n?")
_PACKED_LINE = re.compile(r"([0-9a-f]{40}) (refs/\S+)")
# no hooks, no automatic maintenance, and no files that would be stale when we remove objects
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
    """The content of the marker file."""

    root: str
    adopted: bool
    """The directory existed before, and was empty."""


class GitDirectory:
    """A bare git repository that this package created."""

    def __init__(self, path: Path, root: str | None = None) -> None:
        """Use `path`; create it if it is missing and the `root` of a workspace is given.

        Raises:
            SnapshotError: It was not made by this package, is open to other users, or belongs
                to another workspace.
        """
        self.path = path
        self._root = root
        self._is_locked = False
        self._epoch: str | None = None  # nobody changes it while the lock is held
        self.marker: Marker = self._ensure()

    @contextmanager
    def lock(self) -> Generator[None, None, None]:
        """Hold the exclusive write lock, across processes; waits for other writers.

        Raises:
            SnapshotError: The directory was removed, and no `root` is known to create it again.
        """
        with self._hold_lock(_LOCK, fcntl.LOCK_EX):
            # the configuration is created last and removed first
            if not (self._has(MARKER) and self._has("config")):
                if self._root is None and not self._has(MARKER):
                    raise _not_ours(self.path)
                with self._lock_directory():
                    self._initialize(self.marker.root, adopted=self.marker.adopted)
            self._is_locked = True
            try:
                yield
            finally:
                self._is_locked, self._epoch = False, None

    def prevent_removal(self) -> AbstractContextManager[None]:
        """Hold a shared lock that keeps other processes from removing the directory."""
        return self._hold_lock(_USERS, fcntl.LOCK_SH)

    def remove(self) -> bool:
        """Remove the directory unless it is in use; return whether it is gone.

        A directory without our marker is left alone.
        """
        if not os.path.lexists(self.path):
            return True
        try:
            # in this order: waiting for a writer must not block others from opening
            with self._hold_lock(_LOCK, fcntl.LOCK_EX), self._lock_directory():
                self._remove_if_unused()
        except (SnapshotError, BlockingIOError, FileNotFoundError):
            return not os.path.lexists(self.path)
        return True

    def _remove_if_unused(self) -> None:
        """Remove everything; the directory is locked.

        Raises:
            BlockingIOError: It is in use.
        """
        adopted = self._read_marker().adopted
        with OpenDescriptor(os.open(self.path / _USERS, _LOCK_FILE | os.O_CREAT, 0o600)) as users:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._empty()
            if not adopted:
                with suppress(OSError):  # another process added a file
                    self.path.rmdir()

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Create or replace the file `name` atomically."""
        with AtomicFile(self.path, data) as file:
            if durable:
                os.fsync(file.descriptor)
            self.publish(file, name, durable=durable)

    def publish(self, file: AtomicFile, name: str, *, durable: bool) -> None:
        """Rename a file that has been synced to `name`, atomically."""
        fault_point("gitdir.written")
        if name == MAIN:  # if a power failure damages it, the log or the next commit restores it
            file.swap(f"{self.path}/{name}")
        else:
            file.name(f"{self.path}/{name}")
        fault_point("gitdir.renamed")
        if durable:
            sync_directory((self.path / name).parent)

    def epoch(self) -> str:
        """Return a token that changes when the directory is created and at `begin_epoch`."""
        # always new if it cannot be read: nothing that was cached may be used
        return self.read_epoch() or secrets.token_hex(16)

    def read_epoch(self) -> str | None:
        """Return the token, None if it cannot be read."""
        if self._epoch is not None:
            return self._epoch
        try:
            found = read_regular(f"{self.path}/{_EPOCH}", _MAX_EPOCH).decode("ascii")
        except (OSError, ValueError):
            return None
        self._epoch = found if self._is_locked else None
        return found

    def begin_epoch(self) -> None:
        """Change the token, in place: this must work on a full disk, before space is freed."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._epoch = None
        with OpenDescriptor(os.open(self.path / _EPOCH, flags, 0o600)) as descriptor:
            # a partial write changes the token too
            write_all(descriptor, secrets.token_hex(16).encode())
            os.fsync(descriptor)
        fault_point("gitdir.begun")

    def sweep(self) -> None:
        """Remove temporary files of killed writers."""
        sweep_directory(self.path, os.listdir(self.path))  # noqa: PTH208 # only names

    def _ensure(self) -> Marker:
        """Create or complete the directory if needed; return its marker."""
        for _ in range(_MAX_ATTEMPTS):
            # another process may remove it at any moment; then it is created again
            with suppress(FileNotFoundError):
                created = self._root is not None and self._create()
                with self._lock_directory():
                    return self._complete(created=created)
        raise SnapshotError(
            f"Snapshot store keeps being removed; gave up after {_MAX_ATTEMPTS} attempts:"
            f" {str(self.path)!r}"
        )

    def _create(self) -> bool:
        """Create the directory; return whether it was missing."""
        try:
            self.path.mkdir(0o700, parents=True)
        except FileExistsError:
            return False
        fault_point("gitdir.made")
        return True

    def _complete(self, *, created: bool) -> Marker:
        """Complete the directory if needed, return its marker; the directory is locked."""
        root = self._root
        if root is not None and not self._has(MARKER):
            self._initialize(root, adopted=not created)
        marker = self._read_marker()
        if root is not None and marker.root != root:
            raise SnapshotError(f"Snapshot store belongs to another workspace: {marker.root!r}")
        if not self._is_complete():
            self._initialize(marker.root, adopted=marker.adopted)
        return marker

    @contextmanager
    def _lock_directory(self) -> Generator[None, None, None]:
        """Hold a lock that keeps other processes from opening or removing the directory.

        The lock is on the directory itself, which exists before any file in it.

        Raises:
            FileNotFoundError: It was removed, and may be created again.
            SnapshotError: It was not made by this package, or is missing and has no `root`.
        """
        while True:
            self._check_exists()
            descriptor = os.open(self.path, _DIRECTORY)
            try:
                lock(descriptor)
                if _is_at(self.path, descriptor):
                    yield
                    return
            finally:
                _unlock(descriptor)

    def _check_exists(self) -> None:
        try:
            _check_owner(self.path)
        except _MissingStoreError:
            if self._root is not None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
            raise

    def _initialize(self, root: str, *, adopted: bool) -> None:
        """Create the files that are missing: the marker first, the configuration last."""
        if not self._has(MARKER):
            self._check_empty()
            self.path.chmod(0o700)
            text = json.dumps({"format": FORMAT, "root": root, "adopted": adopted}, indent=2)
            self.replace(MARKER, text.encode() + b"\n")
        if not self._is_complete():
            for name in _DIRECTORIES:
                (self.path / name).mkdir(0o700, exist_ok=True)
            self.replace("HEAD", _HEAD)
            for name in (_USERS, _LOCK):
                (self.path / name).touch(0o600)  # never replaced: a process may hold its lock
            self.begin_epoch()
            self.replace("config", _CONFIG)

    def _is_complete(self) -> bool:
        return self._has("config") and self._has(_USERS) and self._has(_LOCK)

    def _has(self, name: str) -> bool:
        return os.path.exists(f"{self.path}/{name}")  # noqa: PTH110 # for every lock

    def _check_empty(self) -> None:
        _check_owner(self.path)
        for path in self.path.iterdir():
            if path.name not in {_LOCK, _USERS, MARKER} and not is_temporary(path.name):
                raise _not_ours(self.path)

    def _read_marker(self) -> Marker:
        """Return the marker; check that the directory is ours and private."""
        found = _check_owner(self.path)
        try:
            with OpenDescriptor(os.open(self.path / MARKER, _OLD_FILE)) as descriptor:
                values: object = json.loads(os.read(descriptor, _MAX_MARKER))
        except (OSError, ValueError, RecursionError):
            raise _not_ours(self.path) from None
        match values:
            case {"format": 1, "root": str(root), "adopted": bool(adopted)}:
                marker = Marker(root, adopted)
            case {"format": int(number)} if number != FORMAT:
                text = f"Snapshot store has format {number}; this version reads {FORMAT}"
                raise SnapshotError(f"{text}: {str(self.path)!r}")
            case _:
                raise _not_ours(self.path)
        if found.st_mode & 0o077:
            raise SnapshotError(f"Snapshot store is open to other users: {str(self.path)!r}")
        return marker

    @contextmanager
    def _hold_lock(self, name: str, operation: int) -> Generator[None, None, None]:
        descriptor = self._acquire(f"{self.path}/{name}", operation)
        try:
            yield
        finally:
            _unlock(descriptor)

    def _acquire(self, path: str, operation: int) -> int:
        """Lock the file at `path`; if it was replaced while waiting, lock the new one."""
        while True:
            try:
                descriptor = os.open(path, _LOCK_FILE)
            except FileNotFoundError:
                self._ensure()
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
        """Remove everything, in an order that is safe to interrupt anywhere.

        Without its configuration the next process completes the store, without refs it has no
        snapshots, and without the marker nothing but lock files is left.
        """
        order = {"config": -2, "refs": -1, MARKER: 1, _USERS: 2, _LOCK: 3}
        with OpenDescriptor(os.open(self.path, _DIRECTORY)) as directory:
            with os.scandir(directory) as entries:
                names = [entry.name for entry in entries]
            for name in sorted(names, key=lambda each: (order.get(each, 0), each)):
                fault_point("gitdir.removing")
                try:
                    os.unlink(name, dir_fd=directory)
                except (IsADirectoryError, PermissionError):
                    remove_tree(directory, name)


class Refs:
    """The refs of a repository; hold its lock to change them."""

    def __init__(self, directory: GitDirectory, *, durable: bool = True) -> None:
        """Read and write the refs in `directory`."""
        self._directory = directory
        self._durable = durable

    def read(self, name: str) -> str | None:
        """Return the object id of a ref, or None if there is no such ref.

        Raises:
            SnapshotError: The ref is damaged, or symbolic.
        """
        data = self._read_file(name)
        if data is None:
            return self._read_packed_refs().get(name)
        match = _LOOSE.fullmatch(data)
        if match is None:
            raise SnapshotError(f"Ref is damaged: {name!r}")
        return match[1].decode()

    def read_all(self, prefix: str = "refs/") -> dict[str, str | None]:
        """Return the ids of all refs below `prefix` by name; None for a damaged one."""
        found: dict[str, str | None] = {}
        for name in self._iter_loose(prefix.rstrip("/")):
            data = self._read_file(name)
            if data is not None:  # else it was removed since it was listed
                match = _LOOSE.fullmatch(data)
                found[name] = match[1].decode() if match else None
        # last: git writes packed-refs before it removes the files
        for name, ref in self._read_packed_refs().items():
            if name.startswith(prefix):
                found.setdefault(name, ref)
        return found

    def write(self, name: str, ref: str) -> None:
        """Create or change a ref atomically."""
        with self.prepare(ref) as file:
            if self._durable:
                os.fsync(file.descriptor)
            self.publish(file, name)

    def prepare(self, ref: str) -> AtomicFile:
        """Return a file for `publish`; the caller syncs it first."""
        return AtomicFile(self._directory.path, ref.encode() + b"\n")

    def publish(self, file: AtomicFile, name: str, *, durable: bool = True) -> None:
        """Create or change a ref atomically; its file has been synced if `durable`."""
        durable = durable and self._durable and name != MAIN
        try:
            self._directory.publish(file, name, durable=durable)
        except FileNotFoundError:  # git removes directories that become empty
            (self._directory.path / name).parent.mkdir(0o700, parents=True)
            self._directory.publish(file, name, durable=durable)

    def delete(self, names: Collection[str]) -> None:
        """Remove refs; idempotent."""
        packed = self._read_packed_refs()
        if not packed.keys().isdisjoint(names):
            # first: otherwise the packed value would reappear when the file is gone
            lines = [f"{ref} {name}\n" for name, ref in sorted(packed.items()) if name not in names]
            self._directory.replace(_PACKED, "".join(lines).encode(), durable=self._durable)
        paths = [self._directory.path / name for name in names]
        for path in paths:
            path.unlink(missing_ok=True)
            fault_point("refs.deleted")
        if self._durable:
            for parent in {path.parent for path in paths}:
                sync_directory(parent)

    def read_detached_head(self) -> str | None:
        """Return the commit of a detached HEAD, or None if HEAD is on a branch."""
        match = _LOOSE.fullmatch(self._read_file("HEAD") or b"")
        return match[1].decode() if match else None

    def is_head_on_main(self) -> bool:
        """Return whether HEAD points to the main branch."""
        return (self._read_file("HEAD") or b"").strip() == b"ref: " + MAIN.encode()

    def write_shallow(self, commits: Collection[str]) -> None:
        """Record in `shallow` the commits whose parents git must not look for."""
        path = self._directory.path / _SHALLOW
        data = "".join(f"{ref}\n" for ref in sorted(commits)).encode()
        if not commits:
            path.unlink(missing_ok=True)
        elif not has_content(path, data):
            self._directory.replace(_SHALLOW, data, durable=self._durable)

    def _read_file(self, name: str) -> bytes | None:
        """Return the beginning of a file: None if missing, empty if it is not a regular file."""
        try:
            descriptor, _ = open_regular(f"{self._directory.path}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            return b""
        with OpenDescriptor(descriptor):
            return os.read(descriptor, _MAX_REF)

    def _iter_loose(self, prefix: str) -> Iterator[str]:
        pending = [prefix]
        while pending:
            directory = pending.pop()
            try:
                entries = list(os.scandir(self._directory.path / directory))
            except (FileNotFoundError, NotADirectoryError):
                continue
            for entry in entries:
                name = f"{directory}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    pending.append(name)
                elif not entry.name.startswith(".") and not entry.name.endswith(".lock"):
                    yield name

    def _read_packed_refs(self) -> dict[str, str]:
        try:
            data = read_regular(self._directory.path / _PACKED, _MAX_PACKED)
            lines = data.decode().splitlines()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise SnapshotError(f"Refs file is damaged: {_PACKED!r}: {error}") from error
        found: dict[str, str] = {}
        for line in lines:
            match = _PACKED_LINE.fullmatch(line)
            if match is not None:
                found[match[2]] = match[1]
            elif not line.startswith(("#", "^")):
                raise SnapshotError(f"Refs file is damaged: {_PACKED!r}")
        return found


class _MissingStoreError(SnapshotError):
    """The directory is missing; whether it exists by now says nothing about that moment."""


def _check_owner(path: Path) -> os.stat_result:
    try:
        found = path.lstat()
    except FileNotFoundError:
        raise _MissingStoreError(f"Snapshot store is missing: {str(path)!r}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise _not_ours(path)
    return found


def _not_ours(path: Path) -> SnapshotError:
    return SnapshotError(f"Snapshot store was not made by this package: {str(path)!r}")


def _is_at(path: str | Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _unlock(descriptor: int) -> None:
    """Release a lock explicitly: a forked child may have the descriptor open too."""
    lock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def sweep_directory(path: Path, names: Iterable[str]) -> None:
    """Remove temporary files of killed writers among the `names` in a directory."""
    hidden = list(filter(is_temporary, names))
    if hidden:
        with open_directory(path) as directory:
            remove_leftovers(directory, hidden)


def has_content(path: Path, data: bytes) -> bool:
    """Return whether a file exists and has exactly this content."""
    try:
        return read_regular(path, len(data)) == data
    except OSError:
        return False  # missing, larger, or not a regular file
