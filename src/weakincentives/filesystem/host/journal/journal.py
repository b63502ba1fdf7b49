"""Write-ahead undo journal: every change of an open savepoint is an exchange with a slot.

New content is staged in a slot and recorded, then slot and path are exchanged: the slot then
has the entry before, whoever put it there. So nothing is overwritten, linked or copied.
"""

import errno
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from weakincentives.errors import SnapshotError
from weakincentives.filesystem.base import StaleContentError
from weakincentives.filesystem.host.journal.changes import (
    ChangeListener,
    ReleasedChanges,
    walk_tree,
)
from weakincentives.filesystem.host.journal.records import BESIDE, JournalDirectory, Record
from weakincentives.filesystem.host.journal.rollback import Rollback, set_entry_mode
from weakincentives.filesystem.host.journal.slots import (
    Fill,
    exists,
    is_ours,
    put_back,
    stage_file,
    stat_or_none,
    swap,
)
from weakincentives.filesystem.savepoints import SavepointError
from weakincentives.history.entries import (
    EntryState,
    Place,
    has_writer_at,
    read_state,
)
from weakincentives.posix import (
    copy_all,
    fault_point,
    is_hidden,
    os_error,
    remove,
    rename,
    temporary_name,
)

_MAX_ATTEMPTS = 2  # at a rollback, because an error may be transient
_MAX_RETRIES = 100  # of a change whose path another program changes at the same time
# a hard link is not allowed, not supported, one too many, or would cross file systems
_NO_LINK = frozenset({errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EMLINK, errno.EXDEV})
_SAVED = "was saved by another program and was left alone"


@dataclass(slots=True)
class SavepointScope:
    """One savepoint: the number of records before it, and the files that it has put."""

    start: int
    put: dict[str, EntryState] = field(default_factory=dict[str, EntryState])

    def forget(self, path: str) -> None:
        """Note that something else than the last put may be at and below `path`."""
        for each in [each for each in self.put if f"{each}/".startswith(f"{path}/")]:
            del self.put[each]


class Journal:
    """The savepoints of one directory; true while one is open or a rollback is pending."""

    def __init__(self, rollback: Rollback, released: ReleasedChanges) -> None:
        """Start with no savepoint open."""
        self._root = rollback.root
        self._rollback = rollback
        self._released = released
        self._scopes: list[SavepointScope] = []
        self._directory: JournalDirectory | None = None  # created at the first change
        self._numbers = count()
        self._undo_from: int | None = None  # index of the first record of a pending rollback

    def __bool__(self) -> bool:
        """Whether changes must be recorded before they are made."""
        return bool(self._scopes) or self._undo_from is not None

    # --- savepoints ---

    @property
    def depth(self) -> int:
        """How many savepoints are open."""
        return len(self._scopes)

    def begin(self) -> None:
        """Open a savepoint."""
        self._root.check()
        self.finish_rollback()
        if self._released and not self._scopes:
            self._released.retry()
        start = 0 if self._directory is None else len(self._directory.records)
        self._scopes.append(SavepointScope(start))

    def has_changed(self, depth: int) -> bool:
        """Return whether anything was recorded since that savepoint."""
        directory = self._directory
        return directory is not None and len(directory.records) > self._scopes[depth].start

    def release(self, depth: int) -> None:
        """End a savepoint and those inside it; the one around it takes over the records."""
        if self._directory is None and depth == len(self._scopes) - 1:
            self._scopes.pop()  # nothing was changed: the common case, and cheap
            return
        self.finish_rollback()
        directory = self._directory
        if depth:
            for inner in self._scopes[depth:]:
                self._scopes[depth - 1].put.update(inner.put)
        elif directory is not None:
            try:
                directory.release(notify=bool(self._released.listeners))
            finally:
                if directory.is_released:  # also if an interrupt came too late
                    self._directory = None
                    self._scopes.clear()
            self._released.finish(directory)
        del self._scopes[depth:]

    def rollback(self, depth: int) -> None:
        """End a savepoint and those inside it, and undo the changes made since."""
        if self._directory is not None:
            self._undo_from = self._scopes[depth].start
        del self._scopes[depth:]
        self.finish_rollback()

    def finish_rollback(self) -> None:
        """Finish a pending rollback.

        Raises:
            SavepointError: Not everything could be undone; the next operation tries again.
            BackendUnavailableError: The directory was removed, with everything saved in it.
        """
        directory = self._directory
        if self._undo_from is None or directory is None:
            return
        self._root.check()  # in a removed directory, missing entries would look undone
        for attempt in range(_MAX_ATTEMPTS):
            try:
                self._rollback.run(directory, self._undo_from)
                break
            except (OSError, SnapshotError) as error:
                if attempt == _MAX_ATTEMPTS - 1:
                    raise SavepointError(
                        f"Failed to roll back all changes: {error}; the next change tries again"
                    ) from error
        self._undo_from = None
        if not self._scopes:
            self._directory = None
            directory.remove()

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        """Report changes to `listener`, and those that an interrupted process did not report."""
        self._released.listeners.append(listener)
        self._released.retry()

        def unsubscribe() -> None:
            with suppress(ValueError):
                self._released.listeners.remove(listener)

        return unsubscribe

    # --- changes ---

    @contextmanager
    def change(self) -> Generator[SavepointScope, None, None]:
        """Yield the innermost savepoint, or one of its own that ends with the block."""
        self.finish_rollback()
        if self._scopes:
            yield self._scopes[-1]
            return
        with self._inner():
            yield self._scopes[-1]

    def store(
        self,
        path: str,
        target: Place,
        fill: Fill,
        *,
        permissions: int | None = None,
        exclusive: bool = False,
        expected: str | None = None,
    ) -> None:
        """Create or replace a file; see `stage_file`.

        Raises:
            FileExistsError: `exclusive`, and `path` exists.
            StaleContentError: The content does not have the git blob id `expected`; it stays.
        """
        durable = self._rollback.durable
        if expected is None and self._is_direct(path):
            slot = target[0], temporary_name()
            stage_file(slot, target, fill, permissions=permissions, durable=durable, hashed=False)
            self._place_directly(path, slot, target, exclusive=exclusive)
            fault_point("store.renamed")
            return
        with self.change() as scope:
            record, slot = self._new_slot(path, target)
            staged = stage_file(slot, target, fill, permissions=permissions, durable=durable)
            record = Record("put", path, record.number, record.other, staged.state, staged.inode)
            if not self._place(
                scope,
                record,
                slot,
                target,
                is_there=not exclusive and (staged.replaces or expected is not None),
                is_fixed=exclusive or expected is not None,
                expected=expected,
            ):
                raise os_error(errno.EEXIST, path) if exclusive else StaleContentError(path)

    def make_link(self, path: str, target: Place, link: str) -> None:
        """Create a symbolic link, or replace a file with one."""
        if self._is_direct(path):
            slot = target[0], temporary_name()
            os.symlink(link, slot[1], dir_fd=slot[0])
            self._place_directly(path, slot, target)
            return
        with self.change() as scope:
            record, slot = self._new_slot(path, target)
            os.symlink(link, slot[1], dir_fd=slot[0])
            self._place(scope, _staged(record, slot), slot, target, is_there=exists(target))

    def make_directory(self, path: str, target: Place) -> None:
        """Create a directory."""
        if self._is_direct(path):
            os.mkdir(target[1], dir_fd=target[0])
            return
        with self.change():
            hidden = target[0], temporary_name()
            os.mkdir(hidden[1], dir_fd=hidden[0])
            try:
                self._rename_tree(hidden, "", path, target)
            except BaseException:
                with suppress(OSError):
                    os.rmdir(hidden[1], dir_fd=hidden[0])
                raise

    def place_tree(self, hidden_path: str, hidden: Place, path: str, target: Place) -> None:
        """Rename a new entry, with all below it, into place.

        Raises:
            FileExistsError: `path` exists, and a directory is to be placed.
        """
        found = os.stat(hidden[1], dir_fd=hidden[0], follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            if self._is_direct(path):
                rename(hidden, target, exclusive=True)
                return
            with self.change():
                self._rename_tree(hidden, hidden_path, path, target)
        elif self._is_direct(path):
            self._place_directly(path, hidden, target)
        else:
            with self.change() as scope:
                record, slot = self._new_slot(path, target)
                rename(hidden, slot)
                self._place(scope, _staged(record, slot), slot, target, is_there=exists(target))

    def remove(self, path: str, target: Place) -> None:
        """Remove an entry with everything below it."""
        if self._is_direct(path):
            self._remove_directly(path, target)
            return
        with self.change() as scope:
            record, slot = self._new_slot(path, target)
            self._take_out(record.as_kind("removed"), slot, target)
            for each in self._scopes:
                each.forget(path)
            del scope

    def move(self, source: str, start: Place, destination: str, goal: Place) -> None:
        """Move an entry, or a file over another one."""
        if self._is_direct(source) and not exists(goal):
            with suppress(FileExistsError):
                rename(start, goal, exclusive=True)
                return
        with self.change() as scope:
            for _ in range(_MAX_RETRIES):
                if exists(goal):
                    with suppress(StaleContentError), self._inner():
                        self._move_over(scope, (source, start), (destination, goal))
                        break
                    continue
                if self._move_to_free_path((source, start), (destination, goal)):
                    break
            else:
                raise _busy_error(destination, start[0], goal[0])
            for each in self._scopes:
                each.forget(source)

    def set_mode(self, path: str, target: Place, mode: int) -> None:
        """Set the permissions of a file or directory."""
        if not self._is_direct(path):
            with self.change():
                found = os.stat(target[1], dir_fd=target[0], follow_symlinks=False)
                kind = "directory" if stat.S_ISDIR(found.st_mode) else "file"
                now, after = stat.S_IMODE(found.st_mode), EntryState(kind, mode)
                self._open_directory().add(Record("mode", path, now, after=after))
                set_entry_mode(target, mode)
        else:
            set_entry_mode(target, mode)

    def save_state(self, commits: str) -> None:
        """Note that what differs between two commits, `A:B`, is about to go from A to B."""
        self.finish_rollback()
        if self._scopes:
            self._open_directory().forget_inodes()
            self._open_directory().add(Record("state", other=commits))
            for each in self._scopes:
                each.put.clear()

    def drop_state(self) -> None:
        """Forget the restore that was just noted: it was refused, and nothing has changed."""
        directory = self._directory
        if directory is not None and directory.records and directory.records[-1].kind == "state":
            directory.drop_last()

    # --- steps ---

    @contextmanager
    def _inner(self) -> Generator[None, None, None]:
        """Undo the changes of the block if it fails."""
        depth = len(self._scopes)
        self.begin()
        try:
            yield
        except BaseException:
            self.rollback(depth)
            raise
        self.release(depth)

    def _is_direct(self, path: str) -> bool:
        """Return whether a change needs no record: it is hidden, or nobody can undo or see it."""
        if is_hidden(path):
            return True
        self.finish_rollback()
        return not self._scopes and not self._released.listeners

    def _open_directory(self) -> JournalDirectory:
        if self._directory is None:
            durable = self._rollback.durable
            self._directory = JournalDirectory.create(self._root.descriptor, durable=durable)
        elif not self._directory.is_ours:
            raise SavepointError("Savepoint belongs to the process that this one was forked from")
        return self._directory

    def _new_slot(self, path: str, target: Place) -> tuple[Record, Place]:
        """Return a record to complete, and its slot on the file system of the path."""
        journal, number = self._open_directory(), next(self._numbers)
        if os.fstat(target[0]).st_dev == journal.device:
            return Record("put", path, number), journal.slot(number)
        slot = target[0], f"{journal.name}-{number}"
        return Record("put", path, number, BESIDE), slot

    def _place(
        self,
        scope: SavepointScope,
        record: Record,
        slot: Place,
        target: Place,
        *,
        is_there: bool,
        is_fixed: bool = False,
        expected: str | None = None,
    ) -> bool:
        """Put a staged entry at its path; the slot then has the entry before.

        `is_there` says whether something is at the path; if that is wrong and `is_fixed`, return
        False, with nothing done.
        """
        for _ in range(1 if is_fixed else _MAX_RETRIES):
            if not is_there:
                is_done = self._try(
                    record.as_kind("new"), lambda: rename(slot, target, exclusive=True)
                )
            else:
                is_done = self._try_exchange(scope, record, slot, target, expected)
            if is_done:
                fault_point("journal.placed")
                scope.put[record.path] = record.after
                return True
            is_there = not is_there
        with suppress(OSError):
            remove(*slot)
        if not is_fixed:
            raise _busy_error(record.path, target[0])
        return False

    def _try_exchange(
        self,
        scope: SavepointScope,
        record: Record,
        slot: Place,
        target: Place,
        expected: str | None,
    ) -> bool:
        record = record.as_kind("again" if record.path in scope.put else "put")
        is_done = self._try(record, lambda: swap(slot, target))
        if is_done:
            self._check_out(scope, record, slot, target, expected)
        return is_done

    def _try(self, record: Record, act: Callable[[], None]) -> bool:
        """Record and make a change; return False if the path exists, or does not, meanwhile."""
        journal = self._open_directory()
        journal.add(record)
        try:
            act()
        except (FileExistsError, FileNotFoundError):
            journal.drop_last()
            return False
        except OSError:
            journal.drop_last()
            raise
        return True

    def _check_out(
        self,
        scope: SavepointScope,
        record: Record,
        slot: Place,
        target: Place,
        expected: str | None,
    ) -> None:
        """Check what came out; put it back if it is a directory or not as expected."""
        found = os.stat(slot[1], dir_fd=slot[0], follow_symlinks=False)
        is_directory = stat.S_ISDIR(found.st_mode)
        if is_directory or (expected is not None and read_state(slot).blob != expected):
            put_back(slot, target, record.after)
            self._open_directory().drop_last()
            if is_ours(slot, {record.after}):
                remove(*slot)
            else:
                self._rollback.keep(slot, record.path, _SAVED)
            if is_directory:
                raise os_error(errno.EISDIR, record.path)
            raise StaleContentError(record.path)
        # what the savepoint itself has put there need not be kept
        if record.kind == "again" and is_ours(slot, {scope.put[record.path]}):
            os.unlink(slot[1], dir_fd=slot[0])

    def _rename_tree(self, hidden: Place, hidden_path: str, path: str, target: Place) -> None:
        """Record a new directory with all below it, and rename it into place."""
        records: list[Record] = []
        journal = self._open_directory()
        beside = "" if os.fstat(target[0]).st_dev == journal.device else BESIDE
        if not hidden_path:
            records.append(_made(path, hidden))
        else:
            for each, place, _ in walk_tree(self._root, hidden_path, path):
                made = _made(each, place)
                if made.after.kind != "directory":
                    state = read_state(place)
                    made = Record("new", each, next(self._numbers), beside, state)
                records.append(made)
        journal.add(*records)
        try:
            rename(hidden, target, exclusive=True)
        except OSError:
            journal.drop_last(len(records))
            raise
        fault_point("journal.placed")

    def _take_out(self, record: Record, slot: Place, target: Place) -> None:
        """Rename an entry into a slot."""
        journal = self._open_directory()
        mode = stat.S_IMODE(os.stat(target[1], dir_fd=target[0], follow_symlinks=False).st_mode)
        journal.add(record)
        try:
            rename(target, slot)
        except PermissionError:
            # moving a directory to another parent needs write permission on the directory
            if mode & stat.S_IWUSR:
                raise
            open_mode = mode | stat.S_IRWXU
            journal.add(Record("mode", record.path, mode, after=EntryState(mode=open_mode)), record)
            set_entry_mode(target, open_mode)
            try:
                rename(target, slot)
            except BaseException:
                set_entry_mode(target, mode)
                raise
        except OSError:
            journal.drop_last()
            raise
        fault_point("journal.taken")

    def _move_to_free_path(self, source: tuple[str, Place], goal: tuple[str, Place]) -> bool:
        found = os.stat(source[1][1], dir_fd=source[1][0], follow_symlinks=False)
        record = Record("moved", source[0], found.st_ino, goal[0])
        if not self._try(record, lambda: rename(source[1], goal[1], exclusive=True)):
            if not exists(source[1]):
                raise os_error(errno.ENOENT, source[0])
            return False
        fault_point("journal.placed")
        moved = stat_or_none(goal[1])
        if moved is None or moved.st_ino == found.st_ino:
            return True
        # somebody saved the source just before it was moved
        with suppress(OSError):
            rename(goal[1], source[1], exclusive=True)
        self._open_directory().drop_last()
        return False

    def _move_over(
        self, scope: SavepointScope, source: tuple[str, Place], goal: tuple[str, Place]
    ) -> None:
        """Move a file over another: put a second name of it there, then take out the first."""
        record, slot = self._new_slot(*goal)
        moved = self._link_or_copy(source[1], slot)
        self._place(scope, _staged(record, slot), slot, goal[1], is_there=True)
        record, slot = self._new_slot(*source)
        self._take_out(record.as_kind("removed"), slot, source[1])
        if os.stat(slot[1], dir_fd=slot[0], follow_symlinks=False).st_ino != moved:
            raise StaleContentError(source[0])

    def _link_or_copy(self, source: Place, slot: Place) -> int:
        """Put a hard link, or a copy, of a file into a slot; return the inode of the file."""
        found = os.stat(source[1], dir_fd=source[0], follow_symlinks=False)
        try:
            names = {"src_dir_fd": source[0], "dst_dir_fd": slot[0]}
            os.link(source[1], slot[1], **names, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            if stat.S_ISLNK(found.st_mode):
                os.symlink(os.readlink(source[1], dir_fd=source[0]), slot[1], dir_fd=slot[0])
                return found.st_ino
            opened, found = self._root.open_entry(*source)
            try:
                mode, durable = stat.S_IMODE(found.st_mode), self._rollback.durable
                fill = partial(copy_all, opened)
                stage_file(slot, slot, fill, permissions=mode, durable=durable)
            finally:
                os.close(opened)
        return found.st_ino

    def _place_directly(
        self, path: str, slot: Place, target: Place, *, exclusive: bool = False
    ) -> None:
        """Put a staged entry at its path without a record; nobody can undo it."""
        try:
            for _ in range(_MAX_RETRIES):
                try:
                    if exclusive or not exists(target):
                        rename(slot, target, exclusive=True)
                    else:
                        swap(slot, target)
                        self._discard_replaced(path, slot, target)
                    break
                except (FileExistsError, FileNotFoundError):
                    if exclusive:
                        raise
            else:
                raise _busy_error(path, target[0])
        except BaseException:
            with suppress(OSError):
                os.unlink(slot[1], dir_fd=slot[0])
            raise

    def _discard_replaced(self, path: str, slot: Place, target: Place) -> None:
        """Remove a replaced entry, unless a process may still write to it."""
        found = os.stat(slot[1], dir_fd=slot[0], follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            swap(slot, target)
            raise os_error(errno.EISDIR, path)
        if is_hidden(path) or not stat.S_ISREG(found.st_mode) or has_writer_at(slot) is False:
            os.unlink(slot[1], dir_fd=slot[0])
            return
        journal = JournalDirectory.create(self._root.descriptor, durable=self._rollback.durable)
        journal.add(Record("removed", path))
        rename(slot, journal.slot(0))
        journal.release(notify=False)
        self._released.finish(journal)

    def _remove_directly(self, path: str, target: Place) -> None:
        found = os.stat(target[1], dir_fd=target[0], follow_symlinks=False)
        if stat.S_ISREG(found.st_mode) and not is_hidden(path):
            hidden = target[0], temporary_name()
            rename(target, hidden)
            self._discard_replaced(path, hidden, target)
        else:
            remove(*target, self._rollback.listing_lock)


def _staged(record: Record, slot: Place) -> Record:
    """Return a record with the state and inode of what is in its slot."""
    found = os.stat(slot[1], dir_fd=slot[0], follow_symlinks=False)
    return replace(record, after=read_state(slot), inode=found.st_ino)


def _made(path: str, place: Place) -> Record:
    found = os.stat(place[1], dir_fd=place[0], follow_symlinks=False)
    kind = "directory" if stat.S_ISDIR(found.st_mode) else ""
    return Record("made", path, found.st_ino, after=EntryState(kind, stat.S_IMODE(found.st_mode)))


def _busy_error(path: str, *parents: int) -> OSError:
    """Return the error of a change that keeps failing; ENOENT if one of its parents is removed."""
    if any(os.fstat(parent).st_nlink == 0 for parent in parents):
        return os_error(errno.ENOENT, path)
    text = f"Path keeps changing; gave up after {_MAX_RETRIES} attempts"
    return os_error(errno.EBUSY, path, text)
