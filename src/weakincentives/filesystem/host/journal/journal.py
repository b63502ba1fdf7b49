"""What one savepoint has kept: which paths may change without being kept again."""

import errno
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from threading import Lock

from weakincentives.errors import SnapshotError
from weakincentives.filesystem.host.journal.records import JournalDirectory, Place, Record
from weakincentives.filesystem.host.journal.rollback import Rollback, copy_entry, set_mode
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


class SavepointScope:
    """What one savepoint covers; the journal has `start` records from before it.

    A path is *covered* if undoing the records since brings back its whole former self,
    whatever is done to it and below it. What was moved there from elsewhere is not: it
    is still needed, to be moved back.
    """

    __slots__ = ("_brought", "_covered", "start")

    def __init__(self, start: int) -> None:
        """Begin with nothing covered."""
        self._covered: set[str] = set()
        self._brought: set[str] = set()  # what was moved there from elsewhere; there are few
        self.start: int = start

    def covers(self, path: str) -> bool:
        """Return whether the file or link at `path` may change without being kept."""
        if RESERVED_PREFIX in path and is_hidden(path):
            return True  # nobody sees it, and whoever made it is not done yet
        while path not in self._covered:
            if path in self._brought or not path:
                return False
            path = parent_of(path)
        return True

    def covers_all(self, path: str) -> bool:
        """Return whether everything at and below `path` may go without being kept."""
        return self.covers(path) and not any(_below(path, self._brought))

    def cover(self, path: str) -> None:
        """Take note that the file, link or nothing at `path` is kept."""
        self._covered.add(path)
        self._brought.discard(path)

    def cover_all(self, path: str) -> None:
        """Take note that everything at and below `path` is kept."""
        self._brought.difference_update(list(_below(path, self._brought)))
        self.cover(path)

    def uncover(self, path: str) -> None:
        """Take back that `path` is covered."""
        self._covered.discard(path)

    def bring_in(self, path: str) -> None:
        """Take note that something from elsewhere is at `path` now."""
        for known in (self._covered, self._brought):
            known.difference_update(list(_below(path, known)))
        self._covered.discard(path)
        self._brought.add(path)

    def absorb(self, inner: "SavepointScope") -> None:
        """Take over what a level above this one has kept."""
        for path in sorted(inner._brought):  # from the outside in: it makes forget what is below
            self.bring_in(path)
        for path in inner._covered:
            self.cover(path)


def _below(path: str, known: Iterable[str]) -> Iterator[str]:
    prefix = f"{path}/" if path else ""
    return (each for each in known if each.startswith(prefix) and each != path)


# why a second name is refused: not allowed, not supported, too many, another file system
_NO_LINK = frozenset({errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EMLINK, errno.EXDEV})
_ATTEMPTS = 2  # at undoing: what has failed once may work
_log = logging.getLogger(__name__)


class Journal:
    """The journal of one directory; true while there is something to keep or to undo."""

    def __init__(
        self, root: RootedDirectory, sight: Lock, undo: Rollback, *, durable: bool
    ) -> None:
        """Start with no savepoint open."""
        self._root = root
        self._sight = sight
        self._undo = undo
        self._durable = durable
        self._scopes: list[SavepointScope] = []
        self._directory: JournalDirectory | None = None
        self._numbers = count()
        self._undoing: int | None = None  # how many records stay; the others are to be undone

    def __bool__(self) -> bool:
        """Whether a change must be told before it is made."""
        return bool(self._scopes) or self._undoing is not None

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
            self._scopes.pop()  # nothing was changed: the usual case, and a cheap one
            return
        self.finish_rollback()
        try:
            if depth == 0:
                self._finish()
        finally:
            if depth or self._directory is None:  # else it failed before the commit point
                for inner in self._scopes[depth:] if depth else ():
                    self._scopes[depth - 1].absorb(inner)
                del self._scopes[depth:]

    def rollback(self, depth: int) -> None:
        """End a savepoint and those inside it, and undo the changes made since."""
        if self._directory is not None:
            self._undoing = self._scopes[depth].start
        del self._scopes[depth:]
        self.finish_rollback()

    def finish_rollback(self) -> None:
        """Finish a rollback that was begun.

        Raises:
            SavepointError: Not all could be undone; whatever comes next goes on with it.
            BackendUnavailableError: The directory has been removed, with all that was kept.
        """
        if self._undoing is None or self._directory is None:
            return
        self._root.check()  # else nothing kept would look like everything undone
        for attempt in range(_ATTEMPTS):
            try:
                self._undo.run(self._directory, self._undoing)
                if not self._scopes:
                    self._finish()
                break
            except (OSError, SnapshotError) as error:
                if attempt == _ATTEMPTS - 1:
                    raise SavepointError(
                        f"Failed to roll back all: {error}; the next change goes on with it"
                    ) from error
        self._undoing = None

    def _finish(self) -> None:
        """Forget everything; removing the records is the step that counts."""
        place = self._directory
        if place is None:
            return
        place.end()
        self._directory = self._undoing = None
        with self._sight:
            pass  # who was listing a directory that goes now has seen all of it
        place.clear()

    # --- before a change ---

    def keep(self, path: str, place: Place) -> None:
        """Keep the file, link or nothing that is at `path`, which is about to be replaced."""
        level = self._level()
        if level is not None and not level.covers(path) and self._kept(path, place):
            level.cover(path)

    def keep_mode(self, path: str, place: Place) -> None:
        """Keep the permissions of what is at `path`, which are about to change."""
        if self._level() is not None:
            self._opened().add(Record("mode", path, stat.S_IMODE(_status(place).st_mode)))

    def retract(self, path: str) -> None:
        """Take back that nothing was at `path`: somebody else has just put something there."""
        kept = self._directory
        if self._scopes and kept is not None and kept.records[-1:] == [Record("absent", path)]:
            kept.cut()
            self._scopes[-1].uncover(path)

    def take(self, path: str, place: Place) -> bool:
        """Move what is at `path` aside; return False if it may be deleted instead."""
        level = self._level()
        if level is None or level.covers_all(path):
            return False
        taken = True
        try:
            self._move_aside(path, place)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._keep_pieces(path)
            taken = False
        level.cover_all(path)
        fault_point("journal.taken")
        return taken

    def move(self, source: str, start: Place, destination: str, goal: Place) -> None:
        """Move an entry; a directory that is needed is noted, to be moved back."""
        level = self._level()
        noted = level is not None and _is_directory(start) and not level.covers_all(source)
        if level is None or not noted:
            self.keep(source, start)
            self.keep(destination, goal)
            rename(start, goal)
            return
        self._opened().add(Record("moved", source, other=destination))
        level.bring_in(destination)  # before: at worst something is kept twice
        rename(start, goal)
        level.cover_all(source)  # after: if it is still there it is not covered

    def keep_state(self, commit: str) -> None:
        """Take note that everything is as a commit says, and about to be replaced."""
        level = self._level()
        if level is not None:
            self._opened().add(Record("state", other=commit))
            level.cover_all("")

    def covers(self, path: str) -> bool:
        """Return whether what is at `path` may go without being kept."""
        level = self._level()
        return level is None or level.covers_all(path)

    # --- steps ---

    def _level(self) -> SavepointScope | None:
        """Return the innermost savepoint, with nothing left to undo."""
        self.finish_rollback()
        return self._scopes[-1] if self._scopes else None

    def _opened(self) -> JournalDirectory:
        if self._directory is None:
            self._directory = JournalDirectory.create(self._root.descriptor, durable=self._durable)
        elif not self._directory.is_ours:
            raise SavepointError("Savepoint was opened by the process that this one comes from")
        return self._directory

    def _kept(self, path: str, place: Place) -> bool:
        """Keep the file, link or nothing at `path`; return False if it is a directory."""
        journal, number = self._opened(), next(self._numbers)
        target = journal.place(number)
        try:
            if not self._doubled(place, target):
                return False
        except FileNotFoundError:
            journal.add(Record("absent", path))
            return True
        fault_point("journal.kept")
        try:
            journal.add(Record("kept", path, number))
        except BaseException:
            with suppress(OSError):
                os.unlink(target[1], dir_fd=target[0])
            raise
        return True

    def _doubled(self, place: Place, target: Place) -> bool:
        """Give a file a second name, or copy it; return False if it is a directory."""
        try:
            _link(place, target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            if _is_directory(place):
                return False
            copy_entry(self._root, place, target)
        return True

    def _move_aside(self, path: str, place: Place) -> None:
        journal, number = self._opened(), next(self._numbers)
        target = journal.place(number)
        kept = Record("kept", path, number)
        journal.add(kept)
        try:
            rename(place, target)
        except PermissionError:
            # moving a directory to another parent needs the right to write into it
            mode = stat.S_IMODE(_status(place).st_mode)
            if not _is_directory(place) or mode & stat.S_IWUSR:
                raise
            journal.add(Record("mode", path, mode), kept)
            set_mode(place, mode | stat.S_IRWXU)
            try:
                rename(place, target)
            except BaseException:
                set_mode(place, mode)
                raise

    def _keep_pieces(self, top: str) -> None:
        """Keep what is on another file system: a copy of each file, a note of each directory."""
        pending, directories = [top], list[str]()
        while pending:
            path = pending.pop()
            parent, name = self._root.open_parent(path)
            try:
                if not self._kept(path, (parent, name)):
                    mode = stat.S_IMODE(_status((parent, name)).st_mode)
                    self._opened().add(Record("mode", path, mode))
                    directories.append(path)
                    pending += [join(path, each) for each in self._names(path)]
            finally:
                os.close(parent)
        # undone from the last to the first: a directory is there before what is in it
        self._opened().add(*(Record("made", path) for path in reversed(directories)))

    def _names(self, path: str) -> list[str]:
        opened = self._root.open_directory(path)
        try:
            with os.scandir(opened) as entries:
                return [entry.name for entry in entries]
        finally:
            os.close(opened)


def _link(place: Place, target: Place) -> None:
    os.link(place[1], target[1], src_dir_fd=place[0], dst_dir_fd=target[0], follow_symlinks=False)


def _status(place: Place) -> os.stat_result:
    return os.stat(place[1], dir_fd=place[0], follow_symlinks=False)


def _is_directory(place: Place) -> bool:
    return stat.S_ISDIR(_status(place).st_mode)
