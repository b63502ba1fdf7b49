"""Crash recovery of savepoints: rolls back the journals of processes that are gone."""

import logging
import os
import stat
import time
from collections.abc import Sequence
from contextlib import closing
from threading import Lock

from weakincentives.errors import SnapshotError
from weakincentives.filesystem.host.journal.changes import ReleasedChanges
from weakincentives.filesystem.host.journal.records import (
    JournalDirectory,
    Record,
    is_live,
    live_records,
)
from weakincentives.filesystem.host.journal.rollback import Rollback
from weakincentives.filesystem.host.snapshots.store import SnapshotStore
from weakincentives.filesystem.savepoints import SavepointError
from weakincentives.posix import RootedDirectory, is_journal, is_orphan

_FOREIGN_AGE = 60.0  # seconds after which an idle journal of another pid namespace is taken over
_LOCK_TIMEOUT = 30.0  # seconds to wait for another process that recovers the same journal
_POLL_INTERVAL = 0.01  # seconds between two attempts to lock it
_log = logging.getLogger(__name__)
_recovery_lock = Lock()


class SavepointRecovery:
    """Rolls back abandoned savepoints of one directory."""

    def __init__(
        self, rollback: Rollback, released: ReleasedChanges, snapshots: SnapshotStore
    ) -> None:
        """Recover the root of `rollback`."""
        self._root = rollback.root
        self._rollback = rollback
        self._released = released
        self._snapshots = snapshots

    def run(self) -> None:
        """Roll back every journal whose process is gone, the latest first.

        Raises:
            SavepointError: The disk failed, and some changes are not undone.
        """
        names = _journal_names(self._root)
        if not names:
            return
        with _recovery_lock:
            for name in sorted(names, key=self._modified_at, reverse=True):
                try:
                    self._recover(name)
                except (OSError, SnapshotError) as error:
                    raise SavepointError(
                        f"Failed to roll back a savepoint whose process is gone: {error};"
                        " fix that, or open the directory with read_only=True"
                    ) from error

    def _recover(self, name: str) -> None:
        is_gone = is_orphan(name, live=is_live(name))
        if is_gone is False:
            return
        durable = self._rollback.durable
        try:
            journal = JournalDirectory.open(self._root.descriptor, name, durable=durable)
        except OSError as error:
            _log.warning("Ignored %r, which looks like a journal: %s", name, error)
            return
        is_waiting = False
        try:
            if not _is_private(journal.stats):
                _log.warning("Ignored %r, a journal that another user can write", name)
            elif _lock_if_unused(journal, is_gone=is_gone) and journal.read():
                is_waiting = journal.is_released
                self._finish(journal)
        finally:
            if not is_waiting:
                journal.close()

    def _finish(self, journal: JournalDirectory) -> None:
        if journal.is_released:
            self._released.finish(journal)
            return
        if not journal.is_ended and journal.records:
            _log.warning("Rolling back a savepoint whose process is gone: %r", journal.name)
            self._rollback.run(journal, 0)
        journal.remove()

    def _modified_at(self, name: str) -> float:
        try:
            return os.stat(name, dir_fd=self._root.descriptor, follow_symlinks=False).st_mtime
        except OSError:
            return 0.0


def pinned_commits(root: RootedDirectory) -> set[str]:
    """Return the commits that any open or abandoned savepoint of the directory may go back to.

    The result stays complete while the lock of the snapshot store is held.
    """
    return {
        commit
        for name in _journal_names(root)
        for record in _read_records(root, name)
        if record.kind == "state"
        for commit in record.other.split(":")
    }


def _journal_names(root: RootedDirectory) -> list[str]:
    return [name for name in _list_names(root, "") if is_journal(name)]


def _list_names(root: RootedDirectory, path: str) -> list[str]:
    opened = root.open_directory(path)
    try:
        with os.scandir(opened) as entries:
            return [entry.name for entry in entries]
    finally:
        os.close(opened)


def _read_records(root: RootedDirectory, name: str) -> Sequence[Record]:
    if is_live(name):  # closing its file again would release our POSIX lock on it
        return live_records(name)
    try:
        with closing(JournalDirectory.open(root.descriptor, name, durable=False)) as journal:
            return tuple(journal.records) if journal.read() else ()
    except OSError:
        return ()  # it has just ended, or is unreadable


def _is_private(stats: Sequence[os.stat_result]) -> bool:
    """Return whether no other user can have created or written the directory and the file."""
    return all(
        each.st_uid == os.geteuid()
        and not each.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        and (stat.S_ISDIR(each.st_mode) or stat.S_ISREG(each.st_mode))
        for each in stats
    )


def _lock_if_unused(journal: JournalDirectory, *, is_gone: bool | None) -> bool:
    """Lock a journal that nobody uses; wait for another process that is recovering it.

    `is_gone` is None if its process belongs to another pid namespace.
    """
    if len(journal.stats) == 1:
        return is_gone is True
    if is_gone is None and time.time() - journal.stats[1].st_mtime < _FOREIGN_AGE:
        return False
    end = time.monotonic() + (_LOCK_TIMEOUT if is_gone else 0)
    while not journal.lock():
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_INTERVAL)
    return True
