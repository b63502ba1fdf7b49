"""What a savepoint changed: reported to listeners before the replaced entries are discarded.

A replaced file is discarded only if no process has it open for writing. Otherwise it is held,
and compared again later: what was written to it meanwhile is reported too.
"""

import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from weakincentives.errors import SnapshotError
from weakincentives.filesystem.host.journal.records import BESIDE, JournalDirectory, Record
from weakincentives.filesystem.host.journal.rollback import Rollback
from weakincentives.filesystem.host.journal.slots import exists, stat_or_none
from weakincentives.history.entries import (
    MISSING,
    EntryState,
    PathChange,
    Place,
    has_writer_at,
    matches_at,
    open_nothing,
    read_state,
)
from weakincentives.posix import RootedDirectory, fault_point, join, parent_of, remove

_SLOT_KINDS = frozenset({"put", "again", "removed"})
_MAX_HELD_AGE = 3600.0  # seconds that a replaced file is held where writers cannot be detected
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_ABSENT = EntryState()
_log = logging.getLogger(__name__)


ChangeListener: TypeAlias = Callable[[Sequence[PathChange]], None]


class ReleasedChanges:
    """Reports the changes of released savepoints, then discards what they replaced."""

    def __init__(self, rollback: Rollback) -> None:
        """Share the places and the kept changes of `rollback`."""
        self._rollback = rollback
        self._waiting: list[JournalDirectory] = []
        self.listeners: list[ChangeListener] = []

    def __bool__(self) -> bool:
        """Whether a journal waits for a listener or for another program."""
        return bool(self._waiting)

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
            self._hold(journal)
            if _is_unreported(journal.records):
                if not self.listeners:
                    return False
                self._notify(list(collect_changes(self._rollback, journal)))
                journal.add(Record("reported"))
            with self._rollback.listing_lock:
                pass  # wait for listings that may be inside a removed directory
            if not self._discard_all(journal):
                return False
        except (OSError, SnapshotError) as error:
            _log.warning("Changes were made, but not reported yet: %s", error)
            return False
        journal.remove()
        return True

    def report(self, changes: Sequence[PathChange]) -> None:
        """Report what a restore outside of a savepoint changed; its content is stored."""
        try:
            self._notify(changes)
        except (OSError, SnapshotError) as error:
            _log.warning("Files were restored, but that could not be recorded: %s", error)

    def _notify(self, changes: Sequence[PathChange]) -> None:
        for listener in self.listeners if changes else ():
            listener(changes)

    def _hold(self, journal: JournalDirectory) -> None:
        """Note the state of each replaced file that a process may still write to.

        This happens before it is read: without a writer it can no longer change.
        """
        if any(each.kind == "reported" for each in journal.records):
            return
        held = {each.number for each in journal.records if each.kind == "held"}
        for record in list(journal.records):
            if record.kind in _SLOT_KINDS and record.number not in held:
                for path, place, _ in walk_slot(self._rollback.root, journal, record):
                    if _is_file(place) and has_writer_at(place) is not False:
                        self._hold_file(journal, record, path, place)

    def _hold_file(
        self, journal: JournalDirectory, record: Record, path: str, place: Place
    ) -> None:
        """Record a written file; one in a removed directory gets a slot of its own."""
        number, other = record.number, record.other
        if path != record.path:
            number, other = journal.new_number(), ""
            slot = journal.slot(number)
            with suppress(OSError):
                names = {"src_dir_fd": place[0], "dst_dir_fd": slot[0]}
                os.link(place[1], slot[1], **names, follow_symlinks=False)
        journal.add(Record("held", path, number, other, read_state(place)))

    def _discard_all(self, journal: JournalDirectory) -> bool:
        held = {each.number for each in journal.records if each.kind == "held"}
        is_done = True
        for record in list(journal.records):
            is_held = record.kind == "held"
            if is_held or (record.kind in _SLOT_KINDS and record.number not in held):
                with self._rollback.open_slot(journal, record) as slot:
                    if is_held and not self._settle(record, slot):
                        is_done = False
                    else:
                        with suppress(FileNotFoundError):
                            remove(*slot)
        return is_done

    def _settle(self, record: Record, slot: Place) -> bool:
        """Return whether a held file may go; report what was written to it."""
        found = stat_or_none(slot)
        if found is None:
            return True
        is_written = has_writer_at(slot)
        if is_written is None:
            is_written = time.time() - found.st_ctime < _MAX_HELD_AGE
        if is_written:
            return False
        if not matches_at(slot, record.after):
            late = read_state(slot)
            if self.listeners:
                change = PathChange(
                    record.path,
                    record.after,
                    late,
                    open_after=lambda: os.open(slot[1], _READ, dir_fd=slot[0]),
                    by_call=False,
                )
                self._notify([change])
            else:
                self._rollback.keep(slot, record.path, "was written to while it was replaced")
        return True


def _is_unreported(records: Sequence[Record]) -> bool:
    is_wanted = any(each.kind == "released" and each.number for each in records)
    return is_wanted and not any(each.kind == "reported" for each in records)


def collect_changes(rollback: Rollback, journal: JournalDirectory) -> Iterator[PathChange]:
    """Yield each path that the records changed, once; the slots are still there.

    If another program saved a path between two changes, that is a change of its own.
    """
    found = _Collector(rollback, journal)
    for record in journal.records:
        found.add(record)
    found.add_moved_entries()
    yield from found.by_others
    for path in sorted(found.before):
        before, opener = found.before[path]
        after = found.after[path]
        if before != after:
            yield PathChange(path, before, after, opener)


class _Collector:
    """The first state before and the last state after of each path."""

    def __init__(self, rollback: Rollback, journal: JournalDirectory) -> None:
        self._root = rollback.root
        self._snapshots = rollback.snapshots
        self._journal = journal
        self._moves: list[tuple[str, str]] = []
        self.before: dict[str, tuple[EntryState, Callable[[], int | None]]] = {}
        self.after: dict[str, EntryState] = {}
        self.by_others: list[PathChange] = []

    def add(self, record: Record) -> None:
        """Follow one record."""
        path = record.path
        match record.kind:
            case "put" | "again" | "removed":
                for each, place, name in walk_slot(self._root, self._journal, record):
                    self._see(each, read_state(place), self._opener(name))
                    self.after[each] = _ABSENT
                self.after[path] = record.after
            case "new" | "made":
                self._see(path, _ABSENT)
                self.after[path] = record.after
            case "moved":
                self._move(path, record.other)
            case "mode":
                self._set_mode(record)
            case "state":
                for edit in self._snapshots.list_edits(record.other):
                    self._see(edit.path, edit.before)
                    self.after[edit.path] = edit.after
            case _:
                pass

    def add_moved_entries(self) -> None:
        """Add what was moved and is still at its new path."""
        for _, destination in self._moves:
            for path, place, name in walk_tree(self._root, destination, destination):
                if path not in self.after:
                    state = read_state(place)
                    self._see(path, state, self._opener(name))
                    self.after[path] = state

    def _set_mode(self, record: Record) -> None:
        path, after = record.path, self.after.get(record.path)
        if after is None:
            for _, place, name in walk_tree(self._root, path, path):
                after = read_state(place)
                self._see(path, replace(after, mode=record.number), self._opener(name))
                break
        if after is not None:
            self.after[path] = replace(after, mode=record.after.mode)

    def _opener(self, path: str) -> Callable[[], int | None]:
        """Return a function that opens the file at a path below the root."""

        def open_content() -> int | None:
            try:
                return self._root.open_file(path)[0]
            except OSError as error:
                if error.errno in MISSING or not _is_regular(self._root, path):
                    return None
                raise

        return open_content

    def _see(
        self, path: str, state: EntryState, opener: Callable[[], int | None] = open_nothing
    ) -> None:
        """Note what came out at a path."""
        known = self.after.get(path)
        if known is None:
            origin = self._origin(path)
            if origin is not None:
                self._see(origin, state, opener)
                self.after[origin] = _ABSENT
                state, opener = _ABSENT, open_nothing
            self.before[path] = state, opener
        elif known != state:
            first = self.before[path]
            self.by_others.append(
                PathChange(path, first[0], state, first[1], opener, by_call=False)
            )
            self.before[path] = state, opener

    def _origin(self, path: str) -> str | None:
        """Return where an entry was before the directory above it, or itself, was moved."""
        for source, destination in reversed(self._moves):
            if path == destination or path.startswith(f"{destination}/"):
                return source + path[len(destination) :]
        return None

    def _move(self, source: str, destination: str) -> None:
        for path in [each for each in self.after if f"{each}/".startswith(f"{source}/")]:
            target = destination + path[len(source) :]
            self.before.setdefault(target, (_ABSENT, open_nothing))
            self.after[target] = self.after[path]
            self.after[path] = _ABSENT
        self._moves.append((source, destination))


def walk_slot(
    root: RootedDirectory, journal: JournalDirectory, record: Record
) -> Iterator[tuple[str, Place, str]]:
    """Yield what is in the slot of a record, as `walk_tree` does."""
    if record.other == BESIDE:
        name = join(parent_of(record.path), f"{journal.name}-{record.number}")
        yield from walk_tree(root, name, record.path)
        return
    name, slot = f"{journal.name}/{record.number}", journal.slot(record.number)
    found = stat_or_none(slot)
    if found is not None:
        yield record.path, slot, name
        if stat.S_ISDIR(found.st_mode):
            yield from _walk_below(root, name, record.path)


def walk_tree(root: RootedDirectory, top: str, path: str) -> Iterator[tuple[str, Place, str]]:
    """Yield an entry and everything below it, parents first.

    Each with the path that it has as if `top` were at `path`, its place, which is valid until
    the next one, and its path below the root.
    """
    try:
        parent, name = root.open_parent(top)
    except OSError as error:
        if error.errno in MISSING:
            return
        raise
    try:
        if not exists((parent, name)):
            return
        yield path, (parent, name), top
    finally:
        os.close(parent)
    yield from _walk_below(root, top, path)


def _walk_below(root: RootedDirectory, top: str, path: str) -> Iterator[tuple[str, Place, str]]:
    pending = [top]
    while pending:
        directory = pending.pop()
        try:
            opened = root.open_directory(directory)
        except OSError:
            continue  # not a directory, or not accessible
        try:
            with os.scandir(opened) as entries:
                names = sorted((each.name, each.is_dir(follow_symlinks=False)) for each in entries)
            for name, is_directory in names:
                below = join(directory, name)
                yield path + below[len(top) :], (opened, name), below
                if is_directory:
                    pending.append(below)
        finally:
            os.close(opened)


def _is_file(place: Place) -> bool:
    found = stat_or_none(place)
    return found is not None and stat.S_ISREG(found.st_mode)


def _is_regular(root: RootedDirectory, path: str) -> bool:
    return stat.S_ISREG(root.lstat(path)[0].st_mode)
