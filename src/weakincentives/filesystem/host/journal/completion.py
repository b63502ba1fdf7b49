"""Completion of savepoints: rolled back, or kept and reported; also after their process was killed.

What a released savepoint changed is reported to listeners before the replaced entries are
discarded. A replaced file is discarded only if no process has it open for writing. Otherwise it
is held, and compared again later: what was written to it meanwhile is reported too.
"""

import logging
import os
import stat
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from operator import itemgetter
from threading import Lock
from typing import TypeAlias

from weakincentives.errors import SnapshotError
from weakincentives.filesystem.host.journal.records import (
    SLOT_KINDS,
    JournalDirectory,
    Record,
    find_journals,
    is_gone,
)
from weakincentives.filesystem.host.snapshots.edits import is_same
from weakincentives.filesystem.host.snapshots.store import SnapshotStore
from weakincentives.filesystem.savepoints import SavepointError
from weakincentives.history import (
    MISSING,
    Action,
    EntryState,
    Kept,
    LiveTree,
    ModeChange,
    PathChange,
    PathOperation,
    Rollback,
    describe,
    exists,
    has_writer_at,
    open_nothing,
    read_state,
)
from weakincentives.posix import RootedDirectory, fault_point, remove, sync_filesystem

_FOREIGN_AGE = 60.0  # seconds after which an idle journal of another pid namespace is taken over
_LOCK_TIMEOUT = 30.0  # seconds to wait for another process that recovers the same journal
_POLL_INTERVAL = 0.01  # seconds between two attempts to lock it
_log = logging.getLogger(__name__)
_recovery_lock = Lock()
_ABSENT = EntryState()
_ACTIONS: dict[str, Action] = {"put": "replace", "again": "replace", "new": "create"}
_MAX_HELD_AGE = 3600.0  # seconds that a replaced file is held where writers cannot be detected

ChangeListener: TypeAlias = Callable[[Sequence[PathChange]], None]


class SavepointCompletion:
    """Completes the savepoints of one directory."""

    def __init__(
        self, root: RootedDirectory, listing_lock: Lock, snapshots: SnapshotStore, *, durable: bool
    ) -> None:
        """Work below `root`.

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
        self.tree: LiveTree = LiveTree(root)
        """To close after each use: a path may mean another directory then."""
        self.kept: list[Kept] = []
        """What was left alone, and where the other versions are."""
        self._waiting: list[JournalDirectory] = []
        self.listeners: list[ChangeListener] = []
        self._told: dict[tuple[str, int], list[ChangeListener]] = {}  # while another one fails

    # --- rollback ---

    def run(self, journal: JournalDirectory, start: int) -> None:
        """Undo all records from index `start` on."""
        states: dict[str, set[EntryState]] = {}
        for each in journal.records:
            if each.kind in _ACTIONS:
                states.setdefault(each.path, set()).add(each.after)
        while len(journal.records) > start:
            hint = journal.records[-1] if journal.records[-1].kind == "undo" else None
            record = journal.records[-1 if hint is None else -2]
            with self._open_engine(journal) as engine:
                engine.ours = states
                self._undo(journal, engine, record, hint)
            if self.durable:
                sync_filesystem(self.root.descriptor)
            fault_point("journal.undone")
            journal.drop_last(2 if journal.records[-1].kind == "undo" else 1)

    def recover(self) -> None:
        """Roll back every journal whose process is gone, or finish it, the latest first.

        Raises:
            SavepointError: The disk failed, and some changes are not undone.
        """
        with _recovery_lock:
            for name in find_journals(self.root):
                try:
                    self._recover(name)
                except (OSError, SnapshotError) as error:
                    raise SavepointError(
                        f"Failed to roll back a savepoint whose process is gone: {error};"
                        " fix that, or open the directory with read_only=True"
                    ) from error

    def keep(self, journal: JournalDirectory, record: Record, fact: str) -> None:
        """Keep what is in the slot of a record under a visible name, beside its path or above."""
        with self._open_engine(journal) as engine:
            engine.keep(_operation(journal, record), fact)

    def _recover(self, name: str) -> None:
        has_ended = is_gone(name)
        if has_ended is False:
            return
        try:
            journal = JournalDirectory(self.root.descriptor, name, durable=self.durable)
        except OSError as error:
            _log.warning("Ignored %r, which looks like a journal: %s", name, error)
            return
        is_waiting = False
        try:
            if not _is_private(journal.stats):
                _log.warning("Ignored %r, a journal that another user can write", name)
            elif _lock_if_unused(journal, has_ended=has_ended) and journal.read():
                is_waiting = journal.is_released
                if is_waiting:
                    self.finish(journal)
                    return
                if journal.records:
                    _log.warning("Rolling back a savepoint whose process is gone: %r", name)
                    self.run(journal, 0)
                journal.remove()
        finally:
            if not is_waiting:
                journal.close()

    def _undo(
        self, journal: JournalDirectory, engine: Rollback, record: Record, hint: Record | None
    ) -> None:
        """Undo a record; `hint` is the note of an earlier attempt that was interrupted."""
        path, number = record.path, record.number
        self.snapshots.tracker.touch(path)
        if record.kind in {"made", "moved"} and not journal.keeps_inodes:
            number = 0  # for any
        match record.kind:
            case "put" | "again":
                self._undo_put(journal, engine, record, hint)
            case "new" | "removed":
                engine.undo(_operation(journal, record))
            case "made":
                engine.undo_mkdir(path, number)
            case "moved":
                self.snapshots.tracker.touch(record.other)
                engine.undo_move(path, record.other, number)
            case "mode":
                mode = ModeChange(path, number, record.after.mode, record.after.kind)
                engine.restore_mode(mode, exact=True)
            case "state":
                self.snapshots.return_to(record.other)
            case _:
                pass

    def _undo_put(
        self, journal: JournalDirectory, engine: Rollback, record: Record, hint: Record | None
    ) -> None:
        """Exchange a slot back; with a hint, that was begun, and its number is the inode before."""
        operation, number = _operation(journal, record), str(record.number)
        engine.finish_swap(operation)
        if record.kind == "again" and engine.tree.stat(operation.slot) is None:
            # all that was put at the path goes at once: later nobody knows that it is ours
            firsts = (each for each in reversed(journal.records) if each.path == record.path)
            first = next((each for each in firsts if each.kind in {"put", "new"}), None)
            if first is not None:
                self._undo(journal, engine, first, hint)
            return
        old = operation.slot
        if hint is not None and hint.other == number:
            engine.inodes = {operation.slot: (0, hint.number)}
            found = engine.tree.stat(old)
            old = old if found is not None and found.st_ino == hint.number else record.path
        else:
            engine.inodes = {operation.slot: (record.inode, 0)}
            engine.on_exchange = lambda inode: journal.add(
                Record("undo", record.path, inode, number)
            )
        # a new version got those of the old one
        engine.undo(replace(operation, attributes=engine.read_attributes(old)))

    @contextmanager
    def _open_engine(self, journal: JournalDirectory) -> Generator[Rollback, None, None]:
        engine = Rollback(self.tree, journal.name, "probe")
        try:
            yield engine
        finally:
            self.tree.close()
            for each in engine.kept:
                self.snapshots.tracker.touch(each.other or each.path)
                other = each.path, each.other
                self.kept = [old for old in self.kept if (old.path, old.other) != other] + [each]

    # --- release ---

    def __bool__(self) -> bool:
        """Whether a journal waits for a listener or for another program."""
        return bool(self._waiting)

    def commit(self, journal: JournalDirectory) -> None:
        """Keep the changes of a journal: from here on nothing is undone."""
        if self.listeners or self.durable or not _can_end(journal, self.tree):
            journal.release(notify=bool(self.listeners))
        else:
            journal.commit()

    def finish(self, journal: JournalDirectory) -> None:
        """Report and discard what can be; the rest waits for the next `retry`."""
        journal.adopt()
        self._waiting.append(journal)  # also if an interrupt ends this
        if self._finish(journal):
            self._waiting.remove(journal)

    def retry(self) -> None:
        """Try again what was waiting."""
        for journal in list(self._waiting):
            if self._finish(journal):
                self._waiting.remove(journal)

    def close(self) -> None:
        """Try once more, and leave the rest to the next instance."""
        self.retry()
        while self._waiting:
            self._waiting.pop().close()

    def _finish(self, journal: JournalDirectory) -> bool:
        """Return whether nothing of the journal is left."""
        if journal.is_closed:
            return True  # an interrupt came when it was being removed
        try:
            fault_point("journal.ended")
            if not journal.is_committed and not self._is_reported(journal):
                return False
            with self.listing_lock:
                pass  # wait for listings that may be inside a removed directory
            if not self._discard_all(journal):
                return False
        except (OSError, SnapshotError) as error:
            _log.warning("Changes were made, but not reported yet: %s", error)
            return False
        finally:
            self.tree.close()
        journal.remove()
        return True

    def report(self, changes: Sequence[PathChange]) -> None:
        """Report what a restore outside of a savepoint changed; its content is stored."""
        try:
            self._notify(changes, ("", 0))
        except (OSError, SnapshotError) as error:
            _log.warning("Files were restored, but that could not be recorded: %s", error)

    def _notify(self, changes: Sequence[PathChange], key: tuple[str, int]) -> None:
        """Tell each listener once, also if another one fails and this is tried again."""
        told = self._told.setdefault(key, []) if key[0] else []
        for listener in self.listeners if changes else ():
            if listener not in told:
                listener(changes)
                told.append(listener)
        self._told.pop(key, None)

    def _is_reported(self, journal: JournalDirectory) -> bool:
        """Report the changes if that is wanted; return False if nobody listens."""
        is_wanted = any(each.kind == "released" and each.number for each in journal.records)
        if journal.has("reported") or (is_wanted and not self.listeners):
            return journal.has("reported")
        if is_wanted:
            self._notify(_Collector(self, journal).collect(), (journal.name, -1))
            journal.add(Record("reported"))
            return True
        held = journal.held_numbers()
        for record in list(journal.records):
            for _ in _list_slot(self.tree, journal, record, held):
                pass
        return True

    def _discard_all(self, journal: JournalDirectory) -> bool:
        """Remove what was replaced; return False if something has to wait."""
        held = journal.held_numbers()
        is_done = True
        for record in list(journal.records):
            is_held = record.kind == "held"
            if is_held and not self._settle(journal, record):
                is_done = False
            elif is_held or (record.kind in SLOT_KINDS and record.number not in held):
                with suppress(FileNotFoundError):
                    remove(*journal.slot(record, self.tree))
        return is_done

    def _settle(self, journal: JournalDirectory, record: Record) -> bool:
        """Return whether a held file may go; report what was written to it."""
        tree, slot = self.tree, journal.slot_path(record)
        found = tree.stat(slot)
        if found is None:
            return True
        is_written = has_writer_at(tree.open_parent(slot))
        if is_written is None:
            is_written = time.time() - found.st_ctime < _MAX_HELD_AGE
        if is_written:
            return False
        late = describe(tree, slot)
        if late != record.after and self.listeners:
            opener = partial(_open_content, self.root, slot)
            change = PathChange(record.path, record.after, late, open_after=opener, by_call=False)
            self._notify([change], (journal.name, record.number))
        elif late != record.after:
            self.keep(journal, record, "was written to while it was replaced")
        return True


def _operation(journal: JournalDirectory, record: Record) -> PathOperation:
    """Return a record as an operation of the engine."""
    action = _ACTIONS.get(record.kind, "remove")
    return PathOperation(action, record.path, journal.slot_path(record), _ABSENT, record.after)


def _is_private(stats: Sequence[os.stat_result]) -> bool:
    """Return whether no other user can have created or written the directory and the file."""
    return all(
        each.st_uid == os.geteuid()
        and not each.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        and (stat.S_ISDIR(each.st_mode) or stat.S_ISREG(each.st_mode))
        for each in stats
    )


def _lock_if_unused(journal: JournalDirectory, *, has_ended: bool | None) -> bool:
    """Lock a journal that nobody uses; wait for another process that is recovering it.

    `has_ended` is None if its process belongs to another pid namespace.
    """
    if len(journal.stats) == 1:
        return has_ended is True
    if has_ended is None and time.time() - journal.stats[1].st_mtime < _FOREIGN_AGE:
        return False
    end = time.monotonic() + (_LOCK_TIMEOUT if has_ended else 0)
    while not journal.lock():
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_INTERVAL)
    return True


def _can_end(journal: JournalDirectory, tree: LiveTree) -> bool:
    """Return whether no slot has to wait for a process that may write to it."""
    slots = [each for each in journal.records if each.kind in SLOT_KINDS]
    if any(each.other for each in slots):
        return False
    places = [journal.slot(each, tree) for each in slots]
    return not any(has_writer_at(each) is not False and exists(each) for each in places)


def _list_slot(
    tree: LiveTree, journal: JournalDirectory, record: Record, held: Collection[int]
) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield each entry in a slot: the path it was at, where it is, and its metadata.

    Before, the state of a file that a process may still write to is recorded: without a writer
    it can no longer change. One in a removed directory gets a slot of its own.
    """
    if record.kind not in SLOT_KINDS:
        return
    slot = journal.slot_path(record)
    for each, found in tree.walk(slot):
        path, place = record.path + each[len(slot) :], tree.open_parent(each)
        is_file = stat.S_ISREG(found.st_mode) and record.number not in held
        if is_file and has_writer_at(place) is not False:
            number, other = record.number, record.other
            if path != record.path:
                number, (parent, name) = journal.new_slot()
                other = ""
                with suppress(OSError):
                    names = {"src_dir_fd": place[0], "dst_dir_fd": parent}
                    os.link(place[1], name, **names, follow_symlinks=False)
            journal.add(Record("held", path, number, other, read_state(place)))
        yield path, each, found


def _open_content(root: RootedDirectory, path: str) -> int | None:
    """Open a file; None if it is something else, or gone."""
    try:
        return root.open_file(path)[0]
    except OSError as error:
        if error.errno in MISSING or not stat.S_ISREG(root.lstat(path)[0].st_mode):
            return None
        raise


class _Collector:
    """The first state before and the last state after of each path."""

    def __init__(self, completion: SavepointCompletion, journal: JournalDirectory) -> None:
        self._completion = completion
        self._tree = completion.tree
        self._journal = journal
        self._held = journal.held_numbers()
        self._moves: list[tuple[str, str]] = []
        self._before: dict[str, tuple[EntryState, Callable[[], int | None]]] = {}
        self._after: dict[str, EntryState] = {}
        self._by_others: list[PathChange] = []

    def collect(self) -> list[PathChange]:
        """Return each path that the records changed, once; the slots are still there.

        If another program saved a path between two changes, that is a change of its own.
        """
        for record in list(self._journal.records):
            self._add(record)
        for _, destination in self._moves:  # what is still at its new path
            for path, _ in self._tree.walk(destination):
                if path not in self._after:
                    state = describe(self._tree, path)
                    self._see(path, state, path)
                    self._after[path] = state
        changes = [
            PathChange(path, before, self._after[path], opener)
            for path, (before, opener) in sorted(self._before.items(), key=itemgetter(0))
            if not is_same(before, self._after[path])
        ]
        return self._by_others + changes

    def _add(self, record: Record) -> None:
        path = record.path
        for original, slot, found in _list_slot(self._tree, self._journal, record, self._held):
            self._see(original, read_state(self._tree.open_parent(slot), found), slot)
            self._after[original] = _ABSENT
        match record.kind:
            case "put" | "again" | "removed":
                self._after[path] = record.after
            case "new" | "made":
                self._see(path, _ABSENT)
                self._after[path] = record.after
            case "moved":
                self._move(path, record.other)
            case "mode":
                self._set_mode(record)
            case "state":
                for edit in self._completion.snapshots.list_edits(record.other):
                    self._see(edit.path, edit.before)
                    self._after[edit.path] = edit.after
            case _:
                pass

    def _set_mode(self, record: Record) -> None:
        path = record.path
        now = self._after.get(path) or describe(self._tree, path)
        if now != _ABSENT:
            if path not in self._after:
                self._see(path, replace(now, mode=record.number), path)
            self._after[path] = replace(now, mode=record.after.mode)

    def _see(self, path: str, state: EntryState, place: str = "") -> None:
        """Note what came out at a path; its content is at `place`."""
        opener = partial(_open_content, self._completion.root, place) if place else open_nothing
        known = self._after.get(path)
        if known is None:
            origin = self._origin(path)
            self._before[path] = _ABSENT, open_nothing
            self._before[origin] = state, opener
            self._after.setdefault(origin, _ABSENT)
        elif not is_same(known, state):  # a restore does not know the size of what it found
            first = self._before[path]
            change = PathChange(path, first[0], state, first[1], opener, by_call=False)
            self._by_others.append(change)
            self._before[path] = state, opener

    def _origin(self, path: str) -> str:
        """Return where an entry was before it, or a directory above it, was moved."""
        for source, destination in reversed(self._moves):
            if f"{path}/".startswith(f"{destination}/"):
                path = source + path[len(destination) :]
        return path

    def _move(self, source: str, destination: str) -> None:
        for path in [each for each in self._after if f"{each}/".startswith(f"{source}/")]:
            target = destination + path[len(source) :]
            self._before.setdefault(target, (_ABSENT, open_nothing))
            self._after[target] = self._after[path]
            self._after[path] = _ABSENT
        self._moves.append((source, destination))
