"""Copies of single entries, for where neither a hard link nor a rename is possible."""

import errno
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from weakincentives.filesystem.host.journal.records import JournalDirectory, Place, Record
from weakincentives.posix import (
    RootedDirectory,
    copy_all,
    fault_point,
    make_link,
    os_error,
    parents_of,
    remove,
    rename,
    store_file,
    sync_filesystem,
)


def copy_entry(root: RootedDirectory, source: Place, target: Place) -> None:
    """Copy a file or link; a file or link that is at the target goes.

    Raises:
        OSError: It is something else, or the disk failed.
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


_NO_PARENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_IN_THE_WAY = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST})
_PINNED = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC


class Rollback:
    """Undoes records in one directory.

    `sight` is held while a directory goes out of sight. `changed` is called with every
    path before it changes, `return_to` with the commit of a state to go back to.
    """

    def __init__(
        self,
        root: RootedDirectory,
        sight: Lock,
        *,
        durable: bool,
        changed: Callable[[str], None],
        return_to: Callable[[str], None],
    ) -> None:
        """Undo below `root`."""
        self._root = root
        self._sight = sight
        self.durable = durable
        self._changed = changed
        self._return_to = return_to

    def run(self, journal: JournalDirectory, count: int) -> None:
        """Undo all records but the first `count`."""
        while len(journal.records) > count:
            self._undo(journal, journal.records[-1])
            if self.durable:
                sync_filesystem(self._root.descriptor)
            fault_point("journal.undone")
            journal.cut()

    def _undo(self, journal: JournalDirectory, record: Record) -> None:
        match record.kind:
            case "kept":
                self._bring_back(journal.place(record.number), record.path)
            case "absent":
                self._take_away(record.path)
            case "moved":
                self._move_back(record.other, record.path)
            case "mode":
                self._set_mode(record.path, record.number)
            case "made":
                self._make(record.path)
            case "state":
                self._return_to(record.other)

    def _bring_back(self, kept: Place, path: str) -> None:
        """Put what is kept back in its place; if it is not there, that has been done."""
        if not _exists(kept):
            return
        with self._parent(path, make=True) as place:
            try:
                self._put(kept, place)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                copy_entry(self._root, kept, place)
        # of two names of one file, which has not changed yet, a rename leaves both
        with suppress(FileNotFoundError):
            os.unlink(kept[1], dir_fd=kept[0])

    def _move_back(self, moved: str, path: str) -> None:
        """Move a directory back; if it is not there, that has been done."""
        with suppress(FileNotFoundError), self._parent(moved, make=False) as source:
            if _exists(source):
                with self._parent(path, make=True) as place:
                    self._put(source, place)

    def _put(self, source: Place, place: Place) -> None:
        try:
            rename(source, place)
        except OSError as error:
            if error.errno not in _IN_THE_WAY:
                raise
            remove(*place, self._sight)
            rename(source, place)

    def _take_away(self, path: str) -> None:
        with suppress(FileNotFoundError), self._parent(path, make=False) as place:
            remove(*place, self._sight)

    def _set_mode(self, path: str, mode: int) -> None:
        with suppress(FileNotFoundError), self._parent(path, make=False) as place:
            set_mode(place, mode)

    def _make(self, path: str) -> None:
        with self._parent(path, make=True) as (parent, name), suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)

    @contextmanager
    def _parent(self, path: str, *, make: bool) -> Generator[Place, None, None]:
        """Open the directory that holds `path`.

        Where there is none it is made, in case somebody has removed it past us, or
        FileNotFoundError is raised.
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
        self._changed(path)
        try:
            yield descriptor, name
        finally:
            os.close(descriptor)

    def _make_parent(self, path: str) -> None:
        above, name = self._root.open_parent(path)
        try:
            with suppress(FileNotFoundError):
                found = os.stat(name, dir_fd=above, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    return
                remove(above, name)
            self._changed(path)
            os.mkdir(name, dir_fd=above)
        finally:
            os.close(above)


def set_mode(place: Place, mode: int) -> None:
    """Set the permissions of a file or directory; a link has none."""
    pinned = os.open(place[1], _PINNED, dir_fd=place[0])
    try:
        if not stat.S_ISLNK(os.fstat(pinned).st_mode):
            Path(f"/proc/self/fd/{pinned}").chmod(mode)
    finally:
        os.close(pinned)


def _exists(place: Place) -> bool:
    try:
        os.stat(place[1], dir_fd=place[0], follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
