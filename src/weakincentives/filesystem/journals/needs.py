"""What journals need that is not in them: the commits of states to go back to."""

import os
from collections.abc import Sequence
from contextlib import closing

from weakincentives.filesystem.journals.places import JournalDirectory, is_live, live_records
from weakincentives.filesystem.journals.records import Record
from weakincentives.filesystem.leftovers import is_journal
from weakincentives.filesystem.rooted import RootedDirectory


def needed_commits(root: RootedDirectory) -> set[str]:
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
