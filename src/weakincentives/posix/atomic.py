"""Atomic, durable changes to files: write a temporary file, fsync it, rename it into place.

Removal is atomic too: a directory is renamed to a temporary name first, then emptied. Syncing
many files is batched, because `syncfs` waits for everybody's dirty pages and one fsync after
the other waits for the disk each time.
"""

import ctypes
import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from weakincentives.posix.descriptors import OpenDescriptor, open_directory, write_all
from weakincentives.posix.interrupts import fault_point
from weakincentives.posix.paths import is_leftover, is_temporary, os_error, temporary_name
from weakincentives.posix.permissions import set_permissions

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_COPY_BYTES = 1024 * 1024
_BLOCK = 4096  # holes in a sparse file are multiples of this
_ZEROS = bytes(_BLOCK)
_MAX_ATTEMPTS = 100
_MAX_OPEN = 256
_SYNC_THREADS = 64  # concurrent fsyncs share one flush of the disk
_MAX_SEQUENTIAL = 4  # files that are synced one after the other: starting threads takes longer
_SYNC_FILE_RANGE_WRITE = 2
_AT_FDCWD = -100  # stands for the working directory, with an absolute path for none
_libc = ctypes.CDLL(None, use_errno=True)
_log = logging.getLogger(__name__)
_NO_LOCK = nullcontext()
_NEW_SHARED_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def store_file(
    directory: int,
    name: str,
    fill: Callable[[int], None],
    *,
    permissions: int | None = None,
    exclusive: bool = False,
    durable: bool = False,
) -> None:
    """Create or replace a file; `fill` writes its content to a descriptor.

    Without `permissions` the file keeps those of the file it replaces. A hard link to the
    old file keeps the old content.

    Raises:
        FileExistsError: `exclusive`, and `name` exists.
    """
    temporary = temporary_name()
    target = os.open(temporary, _NEW_FILE, 0o666, dir_fd=directory)
    try:
        with OpenDescriptor(target):
            fault_point("store.created")
            # before the content, which others may not be allowed to read
            copy_ownership(target, directory, name, permissions)
            fill(target)
            fault_point("store.written")
            if durable:
                os.fsync(target)
        fault_point("store.closed")
        rename((directory, temporary), (directory, name), exclusive=exclusive)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise
    fault_point("store.renamed")


def store_private(path: Path, data: bytes) -> None:
    """Create or replace a file that survives power loss, and that only its owner can read."""
    with open_directory(path.parent) as directory:
        store_file(
            directory,
            path.name,
            lambda target: write_all(target, data),
            permissions=0o600,
            durable=True,
        )
        sync_directory(directory)


def remove(
    directory: int, name: str, listing_lock: AbstractContextManager[object] = _NO_LOCK
) -> None:
    """Remove a file or a directory; a directory disappears atomically.

    `listing_lock` is held for the rename: a listing under the same lock sees the whole
    directory or nothing.
    """
    try:
        os.unlink(name, dir_fd=directory)
    except (IsADirectoryError, PermissionError):
        hidden = temporary_name()
        with listing_lock:
            rename((directory, name), (directory, hidden))
        try:
            fault_point("remove.hidden")
        finally:
            _discard(directory, hidden, name)


def remove_if_empty(directory: int, name: str) -> bool:
    """Remove a directory if it is empty; return whether it was removed."""
    try:
        os.rmdir(name, dir_fd=directory)
    except OSError:
        return False
    return True


def remove_leftovers(directory: int, names: Iterable[str] | None = None) -> None:
    """Remove the temporary files among `names`, by default all, whose processes have ended."""
    for name in filter(is_temporary, os.listdir(directory) if names is None else names):
        with suppress(OSError):
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if is_leftover(name, time.time() - found.st_mtime):
                remove_entry(directory, name)


def write_piece(descriptor: int, piece: bytes) -> bool:
    """Write a part of a new file; return whether blocks of zeros in it became holes.

    After a hole at the end, the size of the file must be set.
    """
    if _ZEROS not in piece:
        write_all(descriptor, piece)
        return False
    for start in range(0, len(piece), _BLOCK):
        block = piece[start : start + _BLOCK]
        if block == _ZEROS:
            os.lseek(descriptor, _BLOCK, os.SEEK_CUR)
        else:
            write_all(descriptor, block)
    return True


def copy_all(source: int, target: int) -> None:
    """Copy the rest of one file to another, in the kernel where possible."""
    with suppress(OSError, AttributeError):
        while os.copy_file_range(source, target, _COPY_BYTES * 64):
            fault_point("store.copied")
        return
    while chunk := os.read(source, _COPY_BYTES):
        write_all(target, chunk)


def sync_filesystem(directory: int) -> None:
    """Flush everything that was written to this file system to the disk (`syncfs`)."""
    if _libc.syncfs(directory) != 0:
        raise os_error(ctypes.get_errno(), ".")


def sync_directory(directory: int | Path) -> None:
    """Flush the names in a directory to the disk; it is given by descriptor or path."""
    if isinstance(directory, int):
        # a descriptor that was opened with O_PATH cannot be synced
        opened = os.open(".", _DIRECTORY, dir_fd=directory)
    else:
        opened = os.open(directory, _DIRECTORY)
    with OpenDescriptor(opened):
        os.fsync(opened)


def rename(source: tuple[int, str], target: tuple[int, str], *, exclusive: bool = False) -> None:
    """Rename an entry; source and target are each an open directory and a name in it.

    Raises:
        FileExistsError: `exclusive`, and the target exists.
    """
    if not exclusive:
        os.rename(source[1], target[1], src_dir_fd=source[0], dst_dir_fd=target[0])
        return
    code = _renameat2(source, target)
    if code in {errno.ENOSYS, errno.EINVAL}:
        _rename_exclusively(source, target)
    elif code:
        raise os_error(code, target[1])


def exchange(first: tuple[int, str], second: tuple[int, str]) -> None:
    """Exchange two entries atomically; each is an open directory and a name in it.

    Raises:
        FileNotFoundError: One of them does not exist.
        OSError: ENOSYS or EINVAL if the system or the file system does not support it.
    """
    code = _renameat2(first, second, _RENAME_EXCHANGE)
    if code:
        raise os_error(code, second[1])


def _discard(directory: int, hidden: str, name: str) -> None:
    """Remove an entry that has been renamed away already; a failure leaves it hidden."""
    try:
        remove_entry(directory, hidden)
    except OSError as error:
        _log.warning("%r was deleted, but part of it is still on disk: %s", name, error)


def remove_entry(directory: int, name: str) -> None:
    """Remove a file, or a directory with everything below it."""
    try:
        os.unlink(name, dir_fd=directory)
    except (IsADirectoryError, PermissionError):
        remove_tree(directory, name)


def remove_tree(directory: int, name: str) -> None:
    """Remove a directory and everything below it, without recursion.

    Each inner directory is first moved up beside `name`. So paths stay short and only one
    descriptor is open, however deep the tree is.
    """
    pending = [name]
    attempts = 0
    while pending:
        current = pending.pop()
        try:
            pending += _empty_directory(directory, current)
            os.rmdir(current, dir_fd=directory)
        except FileNotFoundError:
            continue  # another process is removing it too
        except OSError as error:
            attempts += 1
            if error.errno != errno.ENOTEMPTY or attempts > _MAX_ATTEMPTS:
                raise
            pending.append(current)  # a process that has it open has just added an entry


def _empty_directory(directory: int, name: str) -> list[str]:
    """Empty a directory; return the new names of the directories that were in it."""
    try:
        opened = os.open(name, _DIRECTORY, dir_fd=directory)
    except PermissionError:
        _grant_owner_access(directory, name)
        opened = os.open(name, _DIRECTORY, dir_fd=directory)
    with OpenDescriptor(opened):
        if stat.S_IMODE(os.fstat(opened).st_mode) & 0o700 != 0o700:
            _grant_owner_access(directory, name)
        return _unlink_entries(opened, directory)


def _unlink_entries(opened: int, directory: int) -> list[str]:
    """Unlink the files in `opened`; move its directories up and return their new names."""
    moved: list[str] = []
    with os.scandir(opened) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        try:
            if not is_directory:
                os.unlink(name, dir_fd=opened)
                continue
            moved.append(temporary_name())
            _move_up(name, opened, moved[-1], directory)
        except FileNotFoundError:
            continue  # another process is removing it too
    return moved


def _move_up(name: str, opened: int, target: str, directory: int) -> None:
    try:
        os.rename(name, target, src_dir_fd=opened, dst_dir_fd=directory)
    except PermissionError:
        # moving a directory to another parent needs write permission on it
        _grant_owner_access(opened, name)
        os.rename(name, target, src_dir_fd=opened, dst_dir_fd=directory)


def _grant_owner_access(directory: int, name: str) -> None:
    """Give the owner every permission on a directory, whatever it has now."""
    with suppress(OSError):
        set_permissions(directory, name, 0o700)


def _rename_exclusively(source: tuple[int, str], target: tuple[int, str]) -> None:
    """Rename without RENAME_NOREPLACE: link a file, which fails if the target exists."""
    if stat.S_ISDIR(os.stat(source[1], dir_fd=source[0], follow_symlinks=False).st_mode):
        try:
            rename(source, target)
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.ENOTDIR}:
                raise os_error(errno.EEXIST, target[1]) from None
            raise
        return
    try:
        os.link(
            source[1],
            target[1],
            src_dir_fd=source[0],
            dst_dir_fd=target[0],
            follow_symlinks=False,
        )
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _rename_if_absent(source, target)
        return
    os.unlink(source[1], dir_fd=source[0])


def _rename_if_absent(source: tuple[int, str], target: tuple[int, str]) -> None:
    """Check, then rename: not atomic, but all that is left without hard links."""
    try:
        os.stat(target[1], dir_fd=target[0], follow_symlinks=False)
    except FileNotFoundError:
        rename(source, target)
    else:
        raise os_error(errno.EEXIST, target[1])


def _renameat2(
    source: tuple[int, str], target: tuple[int, str], flags: int = _RENAME_NOREPLACE
) -> int:
    """Rename, by default without replacing; return 0 or the error number."""
    try:
        function = _libc.renameat2
    except AttributeError:
        return errno.ENOSYS
    names = os.fsencode(source[1]), os.fsencode(target[1])
    if function(source[0], names[0], target[0], names[1], flags) == 0:
        return 0
    return ctypes.get_errno()


def _may_write(found: os.stat_result) -> bool:
    """Return whether the file's own permissions allow a write in place."""
    user = os.geteuid()
    if user == 0:
        return True
    if found.st_uid == user:
        return bool(found.st_mode & 0o200)
    if found.st_gid in {os.getegid(), *os.getgroups()}:
        return bool(found.st_mode & 0o020)
    return bool(found.st_mode & 0o002)


def copy_ownership(target: int, directory: int, name: str, permissions: int | None) -> bool:
    """Give a new file the owner, and by default the permissions, of the one it replaces.

    Return whether there is one.
    """
    try:
        old = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        old = None
    if old is not None and stat.S_ISREG(old.st_mode):
        if not _may_write(old):
            raise os_error(errno.EACCES, name)
        permissions = old.st_mode & 0o777 if permissions is None else permissions
    if old is not None and (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(PermissionError):
            os.fchown(target, old.st_uid, old.st_gid)
    if permissions is not None:
        os.fchmod(target, permissions & 0o777)
    return old is not None


class AtomicFile:
    """A temporary file that the with block removes again, unless `name` published it."""

    def __init__(self, directory: Path, data: bytes = b"") -> None:
        """Write `data` to a new file in `directory`."""
        self._path = f"{directory}/{temporary_name()}"  # not a Path: they are slow
        self._is_named = False
        with _error_path(directory):
            self.descriptor: int = os.open(self._path, _NEW_SHARED_FILE, 0o600)
            try:
                write_all(self.descriptor, data)
            except BaseException:
                self.__exit__()
                raise

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file, and remove it unless it has a name."""
        try:
            os.close(self.descriptor)
        finally:
            if not self._is_named:
                with suppress(FileNotFoundError):
                    os.unlink(self._path)  # noqa: PTH108 # a string

    def name(self, target: Path | str) -> None:
        """Rename the file to `target`, replacing what is there."""
        with _error_path(target):
            os.rename(self._path, target)  # noqa: PTH104 # a string
        self._is_named = True

    def swap(self, target: str) -> None:
        """Exchange the file with the file `target`, which the end of the with block removes.

        That takes microseconds. A file system may write a file to the disk before it is renamed
        over another, so that a power failure leaves one of the two: here, it may leave neither.
        """
        try:
            if not stat.S_ISREG(os.lstat(target).st_mode):
                raise os_error(errno.EINVAL, target)
            exchange((_AT_FDCWD, self._path), (_AT_FDCWD, target))
        except OSError:  # nothing is there yet, or it is not supported
            self.name(target)


@contextmanager
def _error_path(path: Path | str) -> Generator[None, None, None]:
    """Let errors name `path` instead of the temporary file."""
    try:
        yield
    except OSError as error:
        raise os_error(error.errno or errno.EIO, str(path), error.strerror or "") from error


def sync_files(descriptors: Sequence[int]) -> None:
    """Flush files to the disk; the kernel starts to write all of them before the first wait."""
    for descriptor in descriptors:
        start_writeback(descriptor)
    for descriptor in descriptors:
        os.fsync(descriptor)


class SyncQueue:
    """A queue of open files and directories to fsync together, and close.

    The kernel starts to write each file when it is added; `flush` then waits for all of
    them. Use it in a with statement: leaving the block after an error only closes them.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._open: list[int] = []

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Flush everything, unless the block failed."""
        try:
            if kind is None:
                self.flush()
        finally:
            self._close()

    def add(self, descriptor: int) -> None:
        """Take ownership of an open file whose content is complete."""
        self._open.append(descriptor)
        start_writeback(descriptor)
        if len(self._open) >= _MAX_OPEN:
            self.flush()

    def flush(self) -> None:
        """Wait until everything that was added is on the disk.

        Raises:
            OSError: A file could not be written; the state on disk is unknown.
        """
        try:
            if len(self._open) <= _MAX_SEQUENTIAL:
                for descriptor in self._open:
                    os.fsync(descriptor)
                return
            with ThreadPoolExecutor(min(_SYNC_THREADS, len(self._open))) as pool:
                for _ in pool.map(os.fsync, self._open):
                    pass
        finally:
            self._close()

    def _close(self) -> None:
        descriptors, self._open = self._open, []
        for descriptor in descriptors:
            os.close(descriptor)


def start_writeback(descriptor: int) -> None:
    """Ask the kernel to start writing a file; an optimization, so failures are ignored."""
    with suppress(AttributeError):  # not every system has sync_file_range
        length = ctypes.c_int64(0)  # to the end
        _libc.sync_file_range(descriptor, ctypes.c_int64(0), length, _SYNC_FILE_RANGE_WRITE)
