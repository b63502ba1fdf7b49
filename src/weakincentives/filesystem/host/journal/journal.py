"""Write-ahead undo journal: every change of an open savepoint is an exchange with a slot.

New content is staged in a slot and recorded, then slot and path are exchanged: the slot then
has the entry before, whoever put it there. So nothing is overwritten, linked or copied.
"""

import errno
import os
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import NamedTuple

from weakincentives.errors import SnapshotError
from weakincentives.filesystem.base import StaleContentError
from weakincentives.filesystem.host.journal.completion import ChangeListener, SavepointCompletion
from weakincentives.filesystem.host.journal.records import BESIDE, JournalDirectory, Record
from weakincentives.filesystem.savepoints import SavepointError
from weakincentives.history import (
    EntryState,
    Fill,
    Kept,
    Place,
    StagedFile,
    carry_attributes,
    exists,
    give_back,
    has_writer_at,
    is_ours,
    kind_of,
    read_state,
    set_mode_at,
    stage_file,
    stat_at,
    stat_or_none,
    swap,
)
from weakincentives.posix import (
    OpenDescriptor,
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
_SAVED = "was saved in the meantime and was left alone"


class Journal:
    """The savepoints of one directory; true while one is open or a rollback is pending."""

    def __init__(self, completion: SavepointCompletion) -> None:
        """Start with no savepoint open."""
        self._root = completion.root
        self._device = os.fstat(self._root.descriptor).st_dev
        self._completion = completion
        self._starts: list[int] = []  # for each savepoint, the number of records before it
        self._directory: JournalDirectory | None = None  # created at the first change
        self._put: dict[str, int] = {}  # the index of the record that put the file at a path
        self._undo_from: int | None = None  # index of the first record of a pending rollback

    def __bool__(self) -> bool:
        """Whether changes must be recorded before they are made."""
        return bool(self._starts) or self._undo_from is not None

    # --- savepoints ---

    @property
    def depth(self) -> int:
        """How many savepoints are open."""
        return len(self._starts)

    def begin(self) -> None:
        """Open a savepoint."""
        self._root.check()
        self.finish_rollback()
        if self._completion and not self._starts:
            self._completion.retry()
        self._starts.append(0 if self._directory is None else len(self._directory.records))

    def has_changed(self, depth: int) -> bool:
        """Return whether anything was recorded since that savepoint."""
        directory = self._directory
        return directory is not None and len(directory.records) > self._starts[depth]

    def release(self, depth: int) -> None:
        """End a savepoint and those inside it; the one around it takes over the records."""
        self.finish_rollback()
        directory = self._directory
        if not depth and directory is not None:
            try:
                self._completion.commit(directory)
            finally:
                if directory.is_released:  # also if an interrupt came too late
                    self._end_directory()
                    self._starts.clear()
            self._completion.finish(directory)
        del self._starts[depth:]

    def rollback(self, depth: int) -> Sequence[Kept]:
        """End a savepoint and those inside it, and undo the changes made since."""
        if self._directory is not None:
            start = self._undo_from = self._starts[depth]
            self._put = {path: at for path, at in self._put.items() if at < start}
        del self._starts[depth:]
        known = list(map(id, self._completion.kept))
        self.finish_rollback()
        return [each for each in self._completion.kept if id(each) not in known]

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
                self._completion.run(directory, self._undo_from)
                break
            except (OSError, SnapshotError) as error:
                if attempt == _MAX_ATTEMPTS - 1:
                    raise SavepointError(
                        f"Failed to roll back all changes: {error}; the next change tries again"
                    ) from error
        self._undo_from = None
        if not self._starts:
            self._end_directory()
            directory.remove()

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        """Report changes to `listener`, and those that an interrupted process did not report."""
        self._completion.listeners.append(listener)
        self._completion.retry()

        def unsubscribe() -> None:
            with suppress(ValueError):
                self._completion.listeners.remove(listener)

        return unsubscribe

    # --- changes ---

    @contextmanager
    def change(self) -> Generator[None, None, None]:
        """Make changes in the open savepoint, or in one of its own that ends with the block."""
        self.finish_rollback()
        with nullcontext() if self._starts else self._inner():
            yield

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
        durable = self._completion.durable
        stage = partial(
            stage_file, target=target, fill=fill, permissions=permissions, durable=durable
        )
        if expected is None and self._is_direct(path):
            slot = target[0], temporary_name()
            staged = stage(slot, hashed=False)
            self._place_directly(path, slot, target, is_there=staged.replaces, exclusive=exclusive)
            fault_point("store.renamed")
            return
        with self.change():
            slot = self._new_slot(target)
            staged = stage(slot.place)
            self._place(path, slot, staged, target, exclusive=exclusive, expected=expected)

    def make_link(self, path: str, target: Place, link: str) -> None:
        """Create a symbolic link, or replace a file with one."""
        self._put_entry(path, target, lambda slot: os.symlink(link, slot[1], dir_fd=slot[0]))

    def make_directory(self, path: str, target: Place) -> None:
        """Create a directory."""
        if self._is_direct(path):
            os.mkdir(target[1], dir_fd=target[0])
            return
        with self.change():
            hidden = target[0], temporary_name()
            os.mkdir(hidden[1], dir_fd=hidden[0])
            try:
                self._rename_tree([_made(path, stat_at(hidden))], hidden, target)
            except BaseException:
                with suppress(OSError):
                    os.rmdir(hidden[1], dir_fd=hidden[0])
                raise

    def place_tree(self, hidden_path: str, hidden: Place, path: str, target: Place) -> None:
        """Rename a new entry, with all below it, into place.

        Raises:
            FileExistsError: `path` exists, and a directory is to be placed.
        """
        if not stat.S_ISDIR(stat_at(hidden).st_mode):
            self._put_entry(path, target, lambda slot: rename(hidden, slot))
        elif self._is_direct(path):
            rename(hidden, target, exclusive=True)
        else:
            with self.change():
                records = self._list_tree(hidden_path, path, target)
                self._rename_tree(records, hidden, target)

    def remove(self, path: str, target: Place) -> None:
        """Remove an entry with everything below it."""
        if not self._is_direct(path):
            with self.change():
                self._take_out(path, target)
        elif stat.S_ISREG(stat_at(target).st_mode) and not is_hidden(path):
            hidden = target[0], temporary_name()
            rename(target, hidden)
            self._discard_replaced(path, hidden, target)
        else:
            remove(*target, self._completion.listing_lock)

    def move(self, source: str, start: Place, destination: str, goal: Place) -> None:
        """Move an entry, or a file over another one."""
        if self._is_direct(source) and not exists(goal):
            with suppress(FileExistsError):
                rename(start, goal, exclusive=True)
                return
        with self.change():
            for _ in range(_MAX_RETRIES):
                if exists(goal):
                    with suppress(StaleContentError), self._inner():
                        self._move_over((source, start), (destination, goal))
                        break
                    continue
                if self._move_to_free_path((source, start), (destination, goal)):
                    break
            else:
                raise _busy_error(destination, start[0], goal[0])
            self._forget(source)

    def save_state(self, commits: str) -> None:
        """Note that what differs between two commits, `A:B`, is about to go from A to B."""
        self.finish_rollback()
        if self._starts:
            self._open_directory().forget_inodes()
            self._open_directory().add(Record("state", other=commits))
            self._put.clear()

    def drop_state(self) -> None:
        """Forget the restore that was just noted: it was refused, and nothing has changed."""
        directory = self._directory
        if directory is not None and directory.records and directory.records[-1].kind == "state":
            directory.drop_last()

    # --- steps ---

    @contextmanager
    def _inner(self) -> Generator[None, None, None]:
        """Undo the changes of the block if it fails."""
        depth = len(self._starts)
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
        return not self._starts and not self._completion.listeners

    def _open_directory(self) -> JournalDirectory:
        if self._directory is None:
            durable = self._completion.durable
            self._directory = JournalDirectory.create(self._root.descriptor, durable=durable)
        elif not self._directory.is_ours:
            raise SavepointError("Savepoint belongs to the process that this one was forked from")
        return self._directory

    def _end_directory(self) -> None:
        self._directory = None
        self._put.clear()

    def _forget(self, path: str) -> None:
        """Note that something else than the last put may be at and below `path`."""
        for each in [each for each in self._put if f"{each}/".startswith(f"{path}/")]:
            del self._put[each]

    def _new_slot(self, target: Place) -> "_Slot":
        """Return a slot on the file system of a path."""
        journal = self._open_directory()
        number, place = journal.new_slot()
        if os.fstat(target[0]).st_dev == self._device:
            return _Slot(number, "", place)
        return _Slot(number, BESIDE, (target[0], f"{journal.name}-{number}"))

    def _put_entry(self, path: str, target: Place, stage: Callable[[Place], None]) -> None:
        """Put a link, or a file that is ready, at a path."""
        if self._is_direct(path):
            place = target[0], temporary_name()
            stage(place)
            self._place_directly(path, place, target, is_there=exists(target))
            return
        with self.change():
            slot = self._new_slot(target)
            stage(slot.place)
            self._place(path, slot, _examine(slot.place, target), target)

    def _place(
        self,
        path: str,
        slot: "_Slot",
        staged: StagedFile,
        target: Place,
        *,
        exclusive: bool = False,
        expected: str | None = None,
    ) -> None:
        """Put a staged entry at its path; the slot then has the entry before."""
        is_fixed = exclusive or expected is not None
        is_there = not exclusive and (staged.replaces or expected is not None)
        for _ in range(1 if is_fixed else _MAX_RETRIES):
            is_again = self._put.get(path, -1) >= self._starts[-1]
            kind = "new" if not is_there else "again" if is_again else "put"
            record = Record(kind, path, slot.number, slot.other, staged.state, staged.inode)
            new = partial(rename, slot.place, target, exclusive=True)
            if self._try(record, partial(swap, slot.place, target) if is_there else new):
                if is_there:
                    self._check_out(record, slot.place, target, expected)
                fault_point("journal.placed")
                self._put[path] = len(self._open_directory().records) - 1
                return
            is_there = not is_there
        with suppress(OSError):
            remove(*slot.place)
        if exclusive:
            raise os_error(errno.EEXIST, path)
        raise StaleContentError(path) if is_fixed else _busy_error(path, target[0])

    def _try(self, record: Record, act: Callable[[], None]) -> bool:
        """Record and make a change; return False if the path exists, or does not, meanwhile."""
        journal = self._open_directory()
        journal.add(record)
        try:
            act()
        except OSError as error:
            journal.drop_last()
            if isinstance(error, FileExistsError | FileNotFoundError):
                return False
            raise
        return True

    def _check_out(self, record: Record, slot: Place, target: Place, expected: str | None) -> None:
        """Check what came out; put it back if it is a directory or not as expected."""
        journal = self._open_directory()
        is_directory = stat.S_ISDIR(stat_at(slot).st_mode)
        if is_directory or (expected is not None and read_state(slot).blob != expected):
            give_back(slot, target, record.after)
            journal.drop_last()
            if is_ours(slot, record.after):
                remove(*slot)
            else:
                self._completion.keep(journal, record, _SAVED)
            if is_directory:
                raise os_error(errno.EISDIR, record.path)
            raise StaleContentError(record.path)
        carry_attributes(slot, target)
        # what the savepoint itself has put there need not be kept
        if record.kind == "again":
            before = journal.records[self._put[record.path]].after
            if is_ours(slot, before):
                os.unlink(slot[1], dir_fd=slot[0])

    def _list_tree(self, hidden_path: str, path: str, target: Place) -> list[Record]:
        """Return the records of a new directory with all below it."""
        records: list[Record] = []
        tree, journal = self._completion.tree, self._open_directory()
        beside = "" if os.fstat(target[0]).st_dev == self._device else BESIDE
        for each, found in tree.walk(hidden_path):
            made = _made(path + each[len(hidden_path) :], found)
            if made.after.kind != "directory":
                state = read_state(tree.open_parent(each), found)
                made = Record("new", made.path, journal.new_slot()[0], beside, state)
            records.append(made)
        tree.close()
        return records

    def _rename_tree(self, records: Sequence[Record], hidden: Place, target: Place) -> None:
        """Record a new directory with all below it, and rename it into place."""
        journal = self._open_directory()
        journal.add(*records)
        try:
            rename(hidden, target, exclusive=True)
        except OSError:
            journal.drop_last(len(records))
            raise
        fault_point("journal.placed")

    def _take_out(self, path: str, target: Place) -> Place:
        """Rename an entry into a slot, which is returned."""
        journal, slot = self._open_directory(), self._new_slot(target)
        record = Record("removed", path, slot.number, slot.other)
        mode = stat.S_IMODE(stat_at(target).st_mode)
        journal.add(record)
        try:
            rename(target, slot.place)
        except PermissionError:
            # moving a directory to another parent needs write permission on the directory
            if mode & stat.S_IWUSR:
                raise
            open_mode = mode | stat.S_IRWXU
            after = EntryState("directory", open_mode)
            journal.add(Record("mode", path, mode, after=after), record)
            set_mode_at(target, open_mode)
            try:
                rename(target, slot.place)
            except BaseException:
                set_mode_at(target, mode)
                raise
        except OSError:
            journal.drop_last()
            raise
        fault_point("journal.taken")
        self._forget(path)
        return slot.place

    def _move_to_free_path(self, source: tuple[str, Place], goal: tuple[str, Place]) -> bool:
        found = stat_at(source[1])
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

    def _move_over(self, source: tuple[str, Place], goal: tuple[str, Place]) -> None:
        """Move a file over another: put a second name of it there, then take out the first."""
        slot = self._new_slot(goal[1])
        moved = self._link_or_copy(source[1], slot.place)
        self._place(goal[0], slot, _examine(slot.place, goal[1]), goal[1])
        if stat_at(self._take_out(*source)).st_ino != moved:
            raise StaleContentError(source[0])

    def _link_or_copy(self, source: Place, slot: Place) -> int:
        """Put a hard link, or a copy, of a file into a slot; return the inode of the file."""
        found = stat_at(source)
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
            with OpenDescriptor(opened):
                mode, durable = stat.S_IMODE(found.st_mode), self._completion.durable
                fill = partial(copy_all, opened)
                stage_file(slot, slot, fill, permissions=mode, durable=durable)
        return found.st_ino

    def _place_directly(
        self, path: str, slot: Place, target: Place, *, is_there: bool, exclusive: bool = False
    ) -> None:
        """Put a staged entry at its path without a record; nobody can undo it."""
        try:
            for _ in range(_MAX_RETRIES):
                try:
                    if exclusive or not is_there:
                        rename(slot, target, exclusive=True)
                    else:
                        swap(slot, target)
                        self._discard_replaced(path, slot, target)
                except (FileExistsError, FileNotFoundError):
                    if exclusive:
                        raise
                    is_there = not is_there
                else:
                    return
            if not exists(slot):  # what removes the directory has removed it as well
                raise os_error(errno.ENOENT, path)
            raise _busy_error(path, target[0])
        except BaseException:
            with suppress(OSError):
                os.unlink(slot[1], dir_fd=slot[0])
            raise

    def _discard_replaced(self, path: str, slot: Place, target: Place) -> None:
        """Remove a replaced entry, unless a process may still write to it."""
        found = stat_at(slot)
        if stat.S_ISDIR(found.st_mode):
            swap(slot, target)
            raise os_error(errno.EISDIR, path)
        carry_attributes(slot, target)
        if is_hidden(path) or not stat.S_ISREG(found.st_mode) or has_writer_at(slot) is False:
            os.unlink(slot[1], dir_fd=slot[0])
            return
        journal = JournalDirectory.create(self._root.descriptor, durable=self._completion.durable)
        number, held = journal.new_slot()
        journal.add(Record("removed", path, number))
        rename(slot, held)
        journal.release(notify=False)
        self._completion.finish(journal)


class _Slot(NamedTuple):
    """A slot for the entry of a path, by its number; `other` as in `Record`."""

    number: int
    other: str
    place: Place


def _examine(place: Place, target: Place) -> StagedFile:
    """Return the state of what is in a slot, and whether something is at its path."""
    found = stat_at(place)
    return StagedFile(read_state(place, found), found.st_ino, exists(target))


def _made(path: str, found: os.stat_result) -> Record:
    after = EntryState(kind_of(found), stat.S_IMODE(found.st_mode))
    return Record("made", path, found.st_ino, after=after)


def _busy_error(path: str, *parents: int) -> OSError:
    """Return the error of a change that keeps failing; ENOENT if one of its parents is removed."""
    if any(os.fstat(parent).st_nlink == 0 for parent in parents):
        return os_error(errno.ENOENT, path)
    text = f"Path keeps changing; gave up after {_MAX_RETRIES} attempts"
    return os_error(errno.EBUSY, path, text)
