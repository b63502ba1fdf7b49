"""Rollback of a host directory: undoes journal records, newest first.

Undoing a record twice is harmless, so a rollback that is interrupted can start again.
"""

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from threading import Lock

from weakincentives.filesystem.host.journal.records import JournalDirectory, Location, Record
from weakincentives.filesystem.host.snapshots.store import SnapshotStore
from weakincentives.posix import (
    RootedDirectory,
    copy_all,
    fault_point,
    make_link,
    os_error,
    parents_of,
    pin,
    remove,
    rename,
    set_mode,
    store_file,
    sync_filesystem,
)

_NO_PARENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_IN_THE_WAY = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST})


class Rollback:
    """Undoes records in one directory."""

    def __init__(
        self,
        root: RootedDirectory,
        listing_lock: Lock,
        snapshots: SnapshotStore,
        *,
        durable: bool,
    ) -> None:
        """Undo changes below `root`.

        Args:
            root: The workspace.
            listing_lock: Held while a directory is hidden, so that listings stay complete.
            snapshots: Holds the states of `state` records, and tracks changed paths.
            durable: Sync each undone record before the next.
        """
        self._root = root
        self._listing_lock = listing_lock
        self._snapshots = snapshots
        self.durable: bool = durable

    def run(self, journal: JournalDirectory, start: int) -> None:
        """Undo all records from index `start` on."""
        while len(journal.records) > start:
            self._undo(journal, journal.records[-1])
            if self.durable:
                sync_filesystem(self._root.descriptor)
            fault_point("journal.undone")
            journal.drop_last()

    def _undo(self, journal: JournalDirectory, record: Record) -> None:
        match record.kind:
            case "kept":
                self._put_back(journal.slot(record.number), record.path)
            case "absent":
                self._remove(record.path)
            case "moved":
                self._move_back(record.other, record.path)
            case "mode":
                self._set_mode(record.path, record.number)
            case "made":
                self._make_directory(record.path)
            case "state":
                self._snapshots.return_to(record.other)

    def _put_back(self, saved: Location, path: str) -> None:
        """Put a saved entry back in place; if it is not saved, that is already done."""
        if not _exists(saved):
            return
        with self._open_parent(path, make=True) as target:
            try:
                self._rename_over(saved, target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                copy_entry(self._root, saved, target)
        # a rename between two hard links of one file leaves both
        with suppress(FileNotFoundError):
            os.unlink(saved[1], dir_fd=saved[0])

    def _move_back(self, moved: str, path: str) -> None:
        """Move a directory back; if it is not there, that is already done."""
        with suppress(FileNotFoundError), self._open_parent(moved, make=False) as source:
            if _exists(source):
                with self._open_parent(path, make=True) as target:
                    self._rename_over(source, target)

    def _rename_over(self, source: Location, target: Location) -> None:
        try:
            rename(source, target)
        except OSError as error:
            if error.errno not in _IN_THE_WAY:
                raise
            remove(*target, self._listing_lock)
            rename(source, target)

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError), self._open_parent(path, make=False) as target:
            remove(*target, self._listing_lock)

    def _set_mode(self, path: str, mode: int) -> None:
        with suppress(FileNotFoundError), self._open_parent(path, make=False) as target:
            set_entry_mode(target, mode)

    def _make_directory(self, path: str) -> None:
        with self._open_parent(path, make=True) as (parent, name), suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)

    @contextmanager
    def _open_parent(self, path: str, *, make: bool) -> Generator[Location, None, None]:
        """Open the directory that holds `path`.

        With `make` a missing one is created: it may have been removed by another process.
        Otherwise FileNotFoundError is raised.
        """
        try:
            descriptor, name = self._root.open_parent(path)
        except OSError as error:
            if error.errno not in _NO_PARENT:
                raise
            if not make:
                raise FileNotFoundError(path) from None
            for parent in parents_of(path):
                self._make_parent(parent)
            descriptor, name = self._root.open_parent(path)
        self._snapshots.touch_undone(path)
        try:
            yield descriptor, name
        finally:
            os.close(descriptor)

    def _make_parent(self, path: str) -> None:
        parent, name = self._root.open_parent(path)
        try:
            with suppress(FileNotFoundError):
                found = os.stat(name, dir_fd=parent, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    return
                remove(parent, name)
            self._snapshots.touch_undone(path)
            os.mkdir(name, dir_fd=parent)
        finally:
            os.close(parent)


def copy_entry(root: RootedDirectory, source: Location, target: Location) -> None:
    """Copy a file or link over `target`, where neither a hard link nor a rename is possible.

    Raises:
        OSError: The source is another kind of entry, or the disk failed.
    """
    directory, name = source
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        make_link(*target, os.readlink(name, dir_fd=directory))
        return
    if not stat.S_ISREG(found.st_mode):
        raise os_error(errno.EPERM, name, "Only files and links can be kept on this file system")
    opened, _ = root.open_entry(directory, name)
    try:
        store_file(
            *target,
            lambda descriptor: copy_all(opened, descriptor),
            permissions=found.st_mode & 0o777,
        )
    finally:
        os.close(opened)
    times = (found.st_atime_ns, found.st_mtime_ns)
    os.utime(target[1], ns=times, dir_fd=target[0], follow_symlinks=False)


def set_entry_mode(target: Location, mode: int) -> None:
    """Set the permissions of a file or directory; a link has none."""
    with pin(*target) as descriptor:
        if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
            set_mode(descriptor, mode)


def _exists(location: Location) -> bool:
    try:
        os.stat(location[1], dir_fd=location[0], follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
