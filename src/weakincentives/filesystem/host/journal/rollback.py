"""Rollback of a host directory that a person may be editing: undoes records, newest first.

A path is rolled back only if what comes out is what the savepoint put there, by content; a
later save of somebody else stays at its path, and the entry before is kept beside it. What to
do follows from the disk alone, so a rollback that was killed can start again.
"""

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import Lock

from weakincentives.filesystem.host.journal.records import BESIDE, JournalDirectory, Record
from weakincentives.filesystem.host.journal.slots import (
    exists,
    finish_swap,
    is_ours,
    keep,
    put_back,
    stat_or_none,
    swap_if,
)
from weakincentives.filesystem.host.snapshots.store import SnapshotStore
from weakincentives.history.entries import MISSING, EntryState, Place, read_state, resembles
from weakincentives.posix import (
    RootedDirectory,
    display_path,
    fault_point,
    join,
    parent_of,
    pin,
    remove,
    remove_leftovers,
    rename,
    set_mode,
    sync_filesystem,
)

_SAVED = "was saved by another program and was left alone"
_REMOVED = "was removed by another program and was not restored"
_CREATED = "was created again by another program and was left alone"
_PUT_KINDS = frozenset({"put", "again", "new"})


@dataclass(frozen=True, slots=True)
class KeptChange:
    """A path with a change of another program that a rollback left alone."""

    path: str
    fact: str
    """What happened to it."""
    where: str = ""
    """The path of the other version, if there is one."""

    def __str__(self) -> str:
        """Return a sentence."""
        tail = f"; the other version is {display_path(self.where)!r}" if self.where else ""
        return f"{display_path(self.path)!r} {self.fact}{tail}"


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
        self.root = root
        self.listing_lock = listing_lock
        self.snapshots = snapshots
        self.durable: bool = durable
        self.kept: list[KeptChange] = []
        """What was left alone, and where the other versions are."""

    def run(self, journal: JournalDirectory, start: int) -> None:
        """Undo all records from index `start` on."""
        states: dict[str, set[EntryState]] = {}
        for each in journal.records:
            if each.kind in _PUT_KINDS:
                states.setdefault(each.path, set()).add(each.after)
        while len(journal.records) > start:
            hint = journal.records[-1] if journal.records[-1].kind == "undo" else None
            record = journal.records[-1 if hint is None else -2]
            if not journal.keeps_inodes and record.kind in {"made", "moved"}:
                record = replace(record, number=0)
            is_free = self._undo(journal, record, states.get(record.path, set()), hint)
            if self.durable:
                sync_filesystem(self.root.descriptor)
            fault_point("journal.undone")
            journal.drop_last(2 if journal.records[-1].kind == "undo" else 1)
            if is_free:
                self._discard(journal, record)

    def _undo(
        self, journal: JournalDirectory, record: Record, ours: set[EntryState], hint: Record | None
    ) -> bool:
        """Undo a record; return whether its slot has what the savepoint put at the path.

        `hint` is the note of an earlier attempt that was interrupted.
        """
        match record.kind:
            case "put":
                return self._undo_put(journal, record, ours, hint)
            case "again":
                return self._undo_again(journal, record, ours, hint)
            case "new":
                return self._undo_new(journal, record, ours)
            case "moved":
                self._move_back(record)
            case "state":
                self.snapshots.return_to(record.other)
            case _:
                self._undo_simple(journal, record)
        return False

    def _undo_simple(self, journal: JournalDirectory, record: Record) -> None:
        with self.open_places(journal, record) as (slot, target):
            if record.kind == "removed":
                self._return(slot, target, record.path, _CREATED)
            elif target is not None and record.kind == "made":
                self._undo_made(target, record)
            elif target is not None and record.kind == "mode":
                self._undo_mode(target, record)

    def _undo_again(
        self, journal: JournalDirectory, record: Record, ours: set[EntryState], hint: Record | None
    ) -> bool:
        """Undo all that was put at the path, unless somebody else saved it in between."""
        with self.open_places(journal, record) as (slot, _):
            found = stat_or_none(slot)
            is_other = found is not None and found.st_ino != record.inode
            if hint is not None and hint.other == str(record.number):
                return self._undo_put(journal, record, ours, hint)
            if is_other and not is_ours(slot, ours):
                return self._undo_put(journal, record, ours, None)
            if found is not None and not is_other:
                return True  # not done
        firsts = (each for each in reversed(journal.records) if each.path == record.path)
        first = next((each for each in firsts if each.kind in {"put", "new"}), None)
        # at once, because later nobody knows that what is at the path is ours
        if first is not None and self._undo(journal, first, ours, hint):
            self._discard(journal, first)
        return found is not None

    def _undo_put(
        self, journal: JournalDirectory, record: Record, ours: set[EntryState], hint: Record | None
    ) -> bool:
        """Exchange the slot back; the number of `hint` is its inode before."""
        with self.open_places(journal, record) as (slot, target):
            if target is not None:
                finish_swap(slot, target)
            found = stat_or_none(slot)
            if found is None:
                return False  # undone together with a later record
            if hint is None and found.st_ino == record.inode:
                return True  # not done
            if hint is not None and found.st_ino != hint.number:
                return self._finish_put(record, slot, target, ours, hint.number)
            there = None if target is None else stat_or_none(target)
            if target is not None and there and any(resembles(there, each) for each in ours):
                if hint is None:
                    number = str(record.number)
                    journal.add(Record("undo", record.path, found.st_ino, number))
                with suppress(FileNotFoundError):
                    if swap_if(slot, target, lambda: is_ours(slot, ours)):
                        return True
            is_there = target is not None and exists(target)
            self.keep(slot, record.path, _SAVED if is_there else _REMOVED)
            return False

    def _finish_put(
        self, record: Record, slot: Place, target: Place | None, ours: set[EntryState], inode: int
    ) -> bool:
        """Go on after an exchange: the slot has what came out of the path."""
        if is_ours(slot, ours):
            return True
        there = None if target is None else stat_or_none(target)
        if target is not None and there is not None and there.st_ino == inode:
            put_back(slot, target, read_state(target))
        self.keep(slot, record.path, _REMOVED if there is None else _SAVED)
        return False

    def _undo_new(self, journal: JournalDirectory, record: Record, ours: set[EntryState]) -> bool:
        with self.open_places(journal, record) as (slot, target):
            if exists(slot):  # not done, or taken out by a rollback that was killed
                if is_ours(slot, ours):
                    return True
                self._return(slot, target, record.path, _SAVED)
                return False
            found = None if target is None else stat_or_none(target)
            if target is None or found is None:
                return False
            if any(resembles(found, each) for each in ours):
                rename(target, slot)
                fault_point("journal.exchanged")
                if is_ours(slot, ours):
                    return True
                self._return(slot, target, record.path, _SAVED)
            self._note(record.path, _SAVED)
            return False

    def _return(self, slot: Place, target: Place | None, path: str, fact: str) -> None:
        """Rename a slot back to its path; if the path is taken, keep it beside."""
        if not exists(slot):
            return
        try:
            if target is None:
                raise FileNotFoundError
            rename(slot, target, exclusive=True)
        except FileExistsError:
            self.keep(slot, path, fact)
        except FileNotFoundError:
            self.keep(slot, path, _REMOVED)
        fault_point("journal.returned")

    def _undo_made(self, target: Place, record: Record) -> None:
        found = stat_or_none(target)
        if found is None or not stat.S_ISDIR(found.st_mode) or not _is_same(found, record):
            return
        try:
            _remove_directory(target)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
            self._note(record.path, "is in use and was not removed")

    def _undo_mode(self, target: Place, record: Record) -> None:
        found = stat_or_none(target)
        mode = -1 if found is None else stat.S_IMODE(found.st_mode)
        if mode == record.after.mode:
            set_entry_mode(target, record.number)
        elif mode not in {-1, record.number}:
            self._note(record.path, "got other permissions and keeps them")

    def _move_back(self, record: Record) -> None:
        """Move an entry back to where it was, if it is still the one that was moved."""
        with (
            self.open_parent(record.other) as moved,
            self.open_parent(record.path) as target,
        ):
            found = None if moved is None else stat_or_none(moved)
            if moved is None or found is None or not _is_same(found, record):
                return self._check_moved(record, moved, target)
            if target is None:
                return self._note(record.path, _REMOVED, record.other)
            try:
                rename(moved, target, exclusive=True)
            except FileExistsError:
                return self._note(record.path, _CREATED, record.other)
            fault_point("journal.returned")
            return self._check_moved(record, moved, target)

    def _check_moved(self, record: Record, moved: Place | None, target: Place | None) -> None:
        """Put back what somebody put in the place of a moved entry."""
        found = None if target is None else stat_or_none(target)
        if found is not None and _is_same(found, record):
            return
        if moved is not None and exists(moved):
            self._note(record.other, _SAVED)
        elif moved is not None and target is not None and found is not None:
            with suppress(FileExistsError):
                rename(target, moved, exclusive=True)
            self._note(record.other, _SAVED)

    # --- steps ---

    def keep(self, slot: Place, path: str, fact: str) -> None:
        """Keep an entry in a slot under a visible name, beside its path or above."""
        folder, name = parent_of(path), path.rpartition("/")[2]
        while folder and not self.root.is_directory(folder):
            folder = parent_of(folder)
        parent, _ = self.root.open_parent(join(folder, name))
        try:
            where = join(folder, keep(slot, (parent, name)))
        finally:
            os.close(parent)
        self.snapshots.touch_undone(where)
        self._note(path, fact, where)

    def _note(self, path: str, fact: str, where: str = "") -> None:
        self.kept = [each for each in self.kept if (each.path, each.where) != (path, where)]
        self.kept.append(KeptChange(path, fact, where))

    def _discard(self, journal: JournalDirectory, record: Record) -> None:
        with self.open_slot(journal, record) as slot, suppress(FileNotFoundError):
            remove(*slot)

    @contextmanager
    def open_slot(self, journal: JournalDirectory, record: Record) -> Generator[Place, None, None]:
        """Yield the slot of a record."""
        if record.other == BESIDE:
            with self.open_places(journal, record) as (slot, _):
                yield slot
        else:
            yield journal.slot(record.number)

    @contextmanager
    def open_places(
        self, journal: JournalDirectory, record: Record
    ) -> Generator[tuple[Place, Place | None], None, None]:
        """Yield the slot and the path of a record; None for a path whose parent is gone."""
        with self.open_parent(record.path) as target:
            if record.other == BESIDE:
                parent = -1 if target is None else target[0]
                yield (parent, f"{journal.name}-{record.number}"), target
            else:
                yield journal.slot(record.number), target

    @contextmanager
    def open_parent(self, path: str) -> Generator[Place | None, None, None]:
        """Yield the place of a path; None if the directory above it is gone."""
        try:
            place = self.root.open_parent(path)
        except OSError as error:
            if error.errno not in MISSING:
                raise
            yield None
            return
        self.snapshots.touch_undone(path)
        try:
            yield place
        finally:
            os.close(place[0])


def set_entry_mode(target: Place, mode: int) -> None:
    """Set the permissions of a file or directory; a link has none."""
    with pin(*target) as descriptor:
        if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
            set_mode(descriptor, mode)


def _is_same(found: os.stat_result, record: Record) -> bool:
    """Return whether an entry has the inode of a record; 0 stands for any."""
    return record.number in {0, found.st_ino}


def _remove_directory(place: Place) -> None:
    """Remove a directory that is empty, except for leftovers of dead processes."""
    try:
        os.rmdir(place[1], dir_fd=place[0])
    except OSError:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        opened = os.open(place[1], flags, dir_fd=place[0])
        try:
            with os.scandir(opened) as entries:
                names = [each.name for each in entries]
            remove_leftovers(opened, names)
        finally:
            os.close(opened)
        os.rmdir(place[1], dir_fd=place[0])
