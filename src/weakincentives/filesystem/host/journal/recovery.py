"""What journals need that is not in them: the commits of states to go back to."""

import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from threading import Lock

from weakincentives.errors import SnapshotError
from weakincentives.filesystem.host.journal.records import (
    JournalDirectory,
    Record,
    is_live,
    live_records,
)
from weakincentives.filesystem.host.journal.rollback import Rollback
from weakincentives.filesystem.savepoints import SavepointError
from weakincentives.posix import RootedDirectory, is_journal, is_orphan, join


def pinned_commits(root: RootedDirectory) -> set[str]:
    """Return the commits that a rollback in this directory, whoever's, may go back to.

    Who holds the lock of the store can rely on it: no other is added meanwhile.
    """
    return {
        record.other
        for name in _journals(root)
        for record in _records(root, name)
        if record.kind == "state"
    }


def _journals(root: RootedDirectory) -> list[str]:
    opened = root.open_directory("")
    try:
        with os.scandir(opened) as entries:
            return [entry.name for entry in entries if is_journal(entry.name)]
    finally:
        os.close(opened)


def _records(root: RootedDirectory, name: str) -> Sequence[Record]:
    if is_live(name):  # to open and close its file again would give up the lock on it
        return live_records(name)
    try:
        with closing(JournalDirectory.open(root.descriptor, name, durable=False)) as journal:
            return tuple(journal.records) if journal.read() else ()
    except OSError:
        return ()  # somebody has just ended it, or nobody can go back with it


_FOREIGN_AGE = 60.0  # seconds that a journal from another pid namespace has not changed for
_PATIENCE = 30.0  # seconds that somebody else may take for the same recovery
_LOOK = 0.01  # seconds between two looks whether he is done
_LATER = 1.0  # seconds after its record in which a change has been made
_log = logging.getLogger(__name__)
_one_at_a_time = Lock()


class Recovery:
    """Rolls back what was left in one directory.

    `keep` is called before something is taken back that has changed after the journal
    had ended: somebody has worked on it since.
    """

    def __init__(self, root: RootedDirectory, undo: Rollback, keep: Callable[[], object]) -> None:
        """Look into `root`."""
        self._root = root
        self._undo = undo
        self._keep = keep

    def run(self) -> None:
        """Roll back every journal that nobody will end.

        Raises:
            SavepointError: The disk failed, and some changes are not taken back.
        """
        names = [name for name in self._names("") if is_journal(name)]
        if not names:
            return
        with _one_at_a_time:
            for name in sorted(names, key=self._last_change, reverse=True):
                try:
                    self._recover(name)
                except (OSError, SnapshotError) as error:
                    raise SavepointError(
                        f"Failed to roll back a savepoint whose process is gone: {error};"
                        " mend that, or open the directory with read_only=True"
                    ) from error

    def _recover(self, name: str) -> None:
        gone = is_orphan(name, live=is_live(name))
        if gone is False:
            return
        try:
            journal = JournalDirectory.open(self._root.descriptor, name, durable=self._undo.durable)
        except OSError as error:
            _log.warning("Left %r alone, which looks like a journal: %s", name, error)
            return
        try:
            if not _is_safe(journal.status):
                _log.warning("Left %r alone, a journal that is somebody else's", name)
            elif _is_free(journal, gone) and journal.read():
                self._roll_back(journal)
        finally:
            journal.close()

    def _roll_back(self, journal: JournalDirectory) -> None:
        if not journal.is_ended and journal.records:
            _log.warning("Rolling back a savepoint whose process is gone: %r", journal.name)
            last = max(found.st_mtime for found in journal.status)
            if self._has_changed_after(last + _LATER, journal.records):
                self._keep()
            self._undo.run(journal, 0)
        journal.end()
        journal.clear()

    def _has_changed_after(self, when: float, records: Iterable[Record]) -> bool:
        """Return whether anything that is about to go is later than that."""
        pending = [each.other if each.kind == "moved" else each.path for each in records]
        pending = [path for path in pending if path]
        while pending:
            path = pending.pop()
            try:
                found, _ = self._root.lstat(path)
                if found.st_ctime > when:
                    return True
                if stat.S_ISDIR(found.st_mode):
                    pending += [join(path, name) for name in self._names(path)]
            except OSError:
                continue  # nothing is there
        return False

    def _last_change(self, name: str) -> float:
        try:
            return os.stat(name, dir_fd=self._root.descriptor, follow_symlinks=False).st_mtime
        except OSError:
            return 0.0

    def _names(self, path: str) -> list[str]:
        opened = self._root.open_directory(path)
        try:
            with os.scandir(opened) as entries:
                return [entry.name for entry in entries]
        finally:
            os.close(opened)


def _is_safe(found: Sequence[os.stat_result]) -> bool:
    """Return whether nobody else can have made the directory and the file."""
    return all(
        each.st_uid == os.geteuid()
        and not each.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        and (stat.S_ISDIR(each.st_mode) or stat.S_ISREG(each.st_mode))
        for each in found
    )


def _is_free(journal: JournalDirectory, gone: bool | None) -> bool:
    """Return whether nobody uses the journal; wait for one who is just rolling it back."""
    if len(journal.status) == 1:
        return gone is True
    if gone is None and time.time() - journal.status[1].st_mtime < _FOREIGN_AGE:
        return False
    end = time.monotonic() + (_PATIENCE if gone else 0)
    while not journal.lock():
        if time.monotonic() >= end:
            return False
        time.sleep(_LOOK)
    return True
