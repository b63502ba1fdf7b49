"""Write-ahead undo journal: before-images of everything that an open savepoint changes.

A before-image is a hard link, a rename into the journal or, where neither is possible, a
copy. Each path is saved once per savepoint, before its first change.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from threading import Lock

from weakincentives.errors import SnapshotError
from weakincentives.filesystem.host.journal.records import JournalDirectory, Location, Record
from weakincentives.filesystem.host.journal.rollback import Rollback, copy_entry, set_entry_mode
from weakincentives.filesystem.savepoints import SavepointError
from weakincentives.posix import (
    RESERVED_PREFIX,
    RootedDirectory,
    fault_point,
    is_hidden,
    join,
    parent_of,
    rename,
)

# a hard link is not allowed, not supported, one too many, or would cross file systems
_NO_LINK = frozenset({errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EMLINK, errno.EXDEV})
_MAX_ATTEMPTS = 2  # at a rollback, because an error may be transient


class SavepointScope:
    """The paths that one savepoint covers; `start` is the number of records before it.

    A path is *covered* if undoing the records since brings back all of it, whatever is
    done to it and below it. A directory that was moved in is not covered: rollback moves
    it back, so its content must stay.
    """

    __slots__ = ("covered", "moved_in", "start")

    def __init__(self, start: int) -> None:
        """Start with nothing covered."""
        self.covered: set[str] = set()
        self.moved_in: set[str] = set()  # never many
        self.start: int = start

    def covers(self, path: str) -> bool:
        """Return whether the file or link at `path` may change without being saved."""
        if RESERVED_PREFIX in path and is_hidden(path):
            return True  # a temporary file, not yet visible
        while path not in self.covered:
            if path in self.moved_in or not path:
                return False
            path = parent_of(path)
        return True

    def covers_all(self, path: str) -> bool:
        """Return whether everything at and below `path` may go without being saved."""
        return self.covers(path) and not any(_below(path, self.moved_in))

    def cover(self, path: str) -> None:
        """Note that the file, link or absence at `path` is saved."""
        self.covered.add(path)
        self.moved_in.discard(path)

    def cover_all(self, path: str) -> None:
        """Note that everything at and below `path` is saved."""
        self.moved_in.difference_update(list(_below(path, self.moved_in)))
        self.cover(path)

    def uncover(self, path: str) -> None:
        """Note that `path` is not saved after all."""
        self.covered.discard(path)

    def add_move(self, path: str) -> None:
        """Note that a directory was moved to `path`."""
        for known in (self.covered, self.moved_in):
            known.difference_update(list(_below(path, known)))
        self.covered.discard(path)
        self.moved_in.add(path)

    def absorb(self, inner: "SavepointScope") -> None:
        """Take over what a released inner savepoint covers."""
        for path in sorted(inner.moved_in):  # parents first: each clears what is below it
            self.add_move(path)
        for path in inner.covered:
            self.cover(path)


def _below(path: str, known: Iterable[str]) -> Iterator[str]:
    prefix = f"{path}/" if path else ""
    return (each for each in known if each.startswith(prefix) and each != path)


class Journal:
    """The savepoints of one directory; true while one is open or a rollback is pending."""

    def __init__(self, root: RootedDirectory, listing_lock: Lock, rollback: Rollback) -> None:
        """Start with no savepoint open."""
        self._root = root
        self._listing_lock = listing_lock
        self._rollback = rollback
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
        try:
            if depth == 0:
                self._finish()
        finally:
            if depth or self._directory is None:  # otherwise it failed before the commit point
                for inner in self._scopes[depth:] if depth else ():
                    self._scopes[depth - 1].absorb(inner)
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
        if self._undo_from is None or self._directory is None:
            return
        self._root.check()  # in a removed directory, missing entries would look undone
        for attempt in range(_MAX_ATTEMPTS):
            try:
                self._rollback.run(self._directory, self._undo_from)
                if not self._scopes:
                    self._finish()
                break
            except (OSError, SnapshotError) as error:
                if attempt == _MAX_ATTEMPTS - 1:
                    raise SavepointError(
                        f"Failed to roll back all changes: {error}; the next change tries again"
                    ) from error
        self._undo_from = None

    def _finish(self) -> None:
        """Remove the journal; removing its records is the commit point."""
        directory = self._directory
        if directory is None:
            return
        directory.remove_records()
        self._directory = self._undo_from = None
        with self._listing_lock:
            pass  # wait for listings that may be inside a saved directory
        directory.remove()

    # --- before a change ---

    def save(self, path: str, location: Location) -> None:
        """Save the file, link or absence at `path`, which is about to be replaced."""
        scope = self._current_scope()
        if scope is not None and not scope.covers(path) and self._save_entry(path, location):
            scope.cover(path)

    def save_mode(self, path: str, location: Location) -> None:
        """Save the permissions at `path`, which are about to change."""
        if self._current_scope() is not None:
            mode = stat.S_IMODE(_stat(location).st_mode)
            self._open_directory().add(Record("mode", path, mode))

    def save_state(self, commit: str) -> None:
        """Note that the present state is `commit`, and about to be replaced as a whole."""
        scope = self._current_scope()
        if scope is not None:
            self._open_directory().add(Record("state", other=commit))
            scope.cover_all("")

    def retract(self, path: str) -> None:
        """Drop the record that `path` was absent: another process has just created it."""
        directory = self._directory
        if (
            self._scopes
            and directory is not None
            and directory.records[-1:] == [Record("absent", path)]
        ):
            directory.drop_last()
            self._scopes[-1].uncover(path)

    def move_aside(self, path: str, location: Location) -> bool:
        """Save the entry at `path` by moving it away; return False if it may be deleted."""
        scope = self._current_scope()
        if scope is None or scope.covers_all(path):
            return False
        moved = True
        try:
            self._move_into_journal(path, location)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._copy_tree(path)
            moved = False
        scope.cover_all(path)
        fault_point("journal.taken")
        return moved

    def move(self, source: str, start: Location, destination: str, goal: Location) -> None:
        """Move an entry; a directory that is not covered is recorded, to be moved back."""
        scope = self._current_scope()
        if scope is None or not _is_directory(start) or scope.covers_all(source):
            self.save(source, start)
            self.save(destination, goal)
            rename(start, goal)
            return
        self._open_directory().add(Record("moved", source, other=destination))
        scope.add_move(destination)  # before the rename: at worst something is saved twice
        rename(start, goal)
        scope.cover_all(source)  # after the rename: until then it is not covered

    def is_covered(self, path: str) -> bool:
        """Return whether everything at and below `path` may go without being saved."""
        scope = self._current_scope()
        return scope is None or scope.covers_all(path)

    # --- steps ---

    def _current_scope(self) -> SavepointScope | None:
        """Return the innermost savepoint, with no rollback pending."""
        self.finish_rollback()
        return self._scopes[-1] if self._scopes else None

    def _open_directory(self) -> JournalDirectory:
        if self._directory is None:
            durable = self._rollback.durable
            self._directory = JournalDirectory.create(self._root.descriptor, durable=durable)
        elif not self._directory.is_ours:
            raise SavepointError("Savepoint belongs to the process that this one was forked from")
        return self._directory

    def _save_entry(self, path: str, location: Location) -> bool:
        """Save the file, link or absence at `path`; return False if it is a directory."""
        journal, number = self._open_directory(), next(self._numbers)
        slot = journal.slot(number)
        try:
            if not self._link_or_copy(location, slot):
                return False
        except FileNotFoundError:
            journal.add(Record("absent", path))
            return True
        fault_point("journal.kept")
        try:
            journal.add(Record("kept", path, number))
        except BaseException:
            with suppress(OSError):
                os.unlink(slot[1], dir_fd=slot[0])
            raise
        return True

    def _link_or_copy(self, location: Location, slot: Location) -> bool:
        """Hard-link a file or link, or copy it; return False if it is a directory."""
        try:
            _hard_link(location, slot)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            if _is_directory(location):
                return False
            copy_entry(self._root, location, slot)
        return True

    def _move_into_journal(self, path: str, location: Location) -> None:
        journal, number = self._open_directory(), next(self._numbers)
        slot = journal.slot(number)
        kept = Record("kept", path, number)
        journal.add(kept)
        try:
            rename(location, slot)
        except PermissionError:
            # moving a directory to another parent needs write permission on the directory
            mode = stat.S_IMODE(_stat(location).st_mode)
            if not _is_directory(location) or mode & stat.S_IWUSR:
                raise
            journal.add(Record("mode", path, mode), kept)
            set_entry_mode(location, mode | stat.S_IRWXU)
            try:
                rename(location, slot)
            except BaseException:
                set_entry_mode(location, mode)
                raise

    def _copy_tree(self, top: str) -> None:
        """Save a tree on another file system: copy its files, record its directories."""
        pending, directories = [top], list[str]()
        while pending:
            path = pending.pop()
            parent, name = self._root.open_parent(path)
            try:
                if not self._save_entry(path, (parent, name)):
                    mode = stat.S_IMODE(_stat((parent, name)).st_mode)
                    self._open_directory().add(Record("mode", path, mode))
                    directories.append(path)
                    pending += [join(path, each) for each in self._list_names(path)]
            finally:
                os.close(parent)
        # undone in reverse: a directory exists before its content is put back
        self._open_directory().add(*(Record("made", path) for path in reversed(directories)))

    def _list_names(self, path: str) -> list[str]:
        opened = self._root.open_directory(path)
        try:
            with os.scandir(opened) as entries:
                return [entry.name for entry in entries]
        finally:
            os.close(opened)


def _hard_link(source: Location, target: Location) -> None:
    os.link(source[1], target[1], src_dir_fd=source[0], dst_dir_fd=target[0], follow_symlinks=False)


def _stat(location: Location) -> os.stat_result:
    return os.stat(location[1], dir_fd=location[0], follow_symlinks=False)


def _is_directory(location: Location) -> bool:
    return stat.S_ISDIR(_stat(location).st_mode)
