"""Crash recovery of an apply: find interrupted transactions, roll them back or finish them.

Also opens and locks the original, which every apply and every recovery does first.
"""

import fcntl
import logging
import os
import shlex
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from weakincentives.contrib.review.conflicts import Kept
from weakincentives.contrib.review.records import (
    ApplyJournal,
    CopyError,
    Ending,
    JournalRecord,
    TransactionKind,
    find_journals,
    has_record,
)
from weakincentives.contrib.review.rollback import Rollback
from weakincentives.contrib.review.views import OriginalFilesystem
from weakincentives.filesystem.host import Identity
from weakincentives.history.entries import LiveTree

_log = logging.getLogger(__name__)
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


OnEnd: TypeAlias = Callable[[JournalRecord, Ending], None]


@dataclass(frozen=True, slots=True)
class Interrupted:
    """An apply or undo that was interrupted in an original."""

    original: Path
    place: Path
    """The working copy it belongs to."""
    kind: TransactionKind
    """Whether it was an apply or an undo."""
    paths: tuple[str, ...]
    """All paths it was going to change, sorted."""

    def __str__(self) -> str:
        """Return what happened, and what to do."""
        fact = f"{self._title} was interrupted half-way in {str(self.original)!r}"
        if not has_record(self.place):
            return f"{fact}; to roll it back: {_command(self.original)} --recover"
        command = _command(self.place)
        return f"{fact}; to roll it back: {command} --recover, to retry it: {command} --{self.kind}"

    @property
    def _title(self) -> str:
        return "An apply" if self.kind == "apply" else "An undo"


class ApplyInterruptedError(CopyError):
    """The original is between two states; `recover`, `apply` or `undo` fixes that."""

    def __init__(self, interrupted: Interrupted) -> None:
        """Store the interrupted transaction."""
        self.interrupted: Interrupted = interrupted
        super().__init__(str(interrupted))


@dataclass(frozen=True, slots=True)
class Recovery:
    """The recovery of one interrupted transaction."""

    kind: TransactionKind
    is_done: bool
    """Whether it had committed and stays; otherwise it was rolled back."""
    paths: tuple[str, ...]
    """The paths that were changed or changed back."""
    kept: tuple[Kept, ...]
    """Concurrent changes that were left alone, and where the other versions are."""


def find_interrupted_apply(original: OriginalFilesystem, path: Path) -> Interrupted | None:
    """Return the interrupted transaction of an original, if there is one; read-only."""
    return next(
        (_describe(each, path) for each in _open_journals(original) if not _is_complete(each)), None
    )


def ensure_not_interrupted(original: OriginalFilesystem, path: Path) -> None:
    """Raise ApplyInterruptedError if an apply or undo was interrupted."""
    found = find_interrupted_apply(original, path)
    if found is not None:
        raise ApplyInterruptedError(found)


def has_pending(original: OriginalFilesystem, place: Path) -> bool:
    """Return whether the original has a journal of the copy at `place`."""
    return any(_is_same_path(Path(each.record.place), place) for each in _open_journals(original))


def _is_complete(journal: ApplyJournal) -> bool:
    """Return whether it committed, so that only hidden files are left to remove."""
    return journal.phase == "done"


def recover_all(
    original: OriginalFilesystem, path: Path, place: Path | None, on_end: OnEnd
) -> list[Recovery]:
    """Recover the transactions of the copy at `place`; with None, those whose copy is gone.

    A path is rolled back only if it still has exactly what the transaction put there.

    Raises:
        ApplyInterruptedError: The transaction belongs to another copy.
        OSError: Something could not be rolled back; the next recovery tries again.
    """
    LiveTree(original.directory).remove_leftovers("")
    found: list[Recovery] = []
    for journal in _open_journals(original):
        other = Path(journal.record.place)
        is_ours = not has_record(other) if place is None else _is_same_path(other, place)
        if is_ours:
            found.append(_recover_one(original, journal, on_end))
        elif not _is_complete(journal):
            raise ApplyInterruptedError(_describe(journal, path))
    return found


def recover(original: str | os.PathLike[str]) -> tuple[Recovery, ...]:
    """Roll back the interrupted transactions of a directory whose working copies are gone.

    Raises:
        ApplyInterruptedError: The copy still exists; use `Review(copy).recover()`.
    """
    path = Path(os.path.realpath(original))
    with open_original(path) as opened:
        return tuple(recover_all(opened, path, None, _ignore))


def _recover_one(original: OriginalFilesystem, journal: ApplyJournal, on_end: OnEnd) -> Recovery:
    tree, record, was_done = LiveTree(original.directory), journal.record, _is_complete(journal)

    end = partial(on_end, record)
    rollback = (finish_apply if was_done else roll_back_apply)(tree, journal, end)
    if rollback.failures and not was_done:
        error = rollback.failures[0]
        for each in rollback.kept:
            error.add_note(str(each))
        raise error
    paths = [each.path for each in record.operations] if was_done else rollback.undone
    return Recovery(record.kind, was_done, tuple(sorted(set(paths))), tuple(rollback.kept))


def _open_journals(original: OriginalFilesystem) -> Iterator[ApplyJournal]:
    tree = LiveTree(original.directory)
    for pending in find_journals(tree):
        yield ApplyJournal.open(tree, pending)


def _describe(journal: ApplyJournal, path: Path) -> Interrupted:
    record = journal.record
    paths = {each.path for each in (*record.operations, *record.modes)}
    return Interrupted(path, Path(record.place), record.kind, tuple(sorted(paths)))


def _command(place: Path) -> str:
    return f"wink review {shlex.quote(str(place))}"


def _is_same_path(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _ignore(_record: JournalRecord, _ending: Ending) -> None:
    """Do nothing: there is no copy whose record could be updated."""


@contextmanager
def open_original(
    path: Path, *, read_only: bool = False
) -> Generator[OriginalFilesystem, None, None]:
    """Open and lock the original; several processes may have it open `read_only`.

    Opening changes nothing.

    Raises:
        CopyError: Another process is applying changes to it.
    """
    descriptor = os.open(path, _DIRECTORY_FLAGS)
    try:
        is_locked = _lock(descriptor, path, read_only=read_only)
        with OriginalFilesystem(path) as original:
            if not is_locked:
                _ensure_not_running(original, path)
            yield original
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, *, read_only: bool) -> bool:
    """Lock the original; return False if the file system does not support locks."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if read_only else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _busy_error(path) from None
    except OSError as error:
        _log.info("No locks on the file system of %r: %s", str(path), error)
        return False
    return True


def _ensure_not_running(original: OriginalFilesystem, path: Path) -> None:
    if any(each.is_alive for each in find_journals(LiveTree(original.directory))):
        raise _busy_error(path)


def _busy_error(path: Path) -> CopyError:
    return CopyError(
        f"Another process is applying changes to {str(path)!r}; try again when it has finished"
    )


def roll_back_apply(
    tree: LiveTree, journal: ApplyJournal, on_end: Callable[[Ending], None]
) -> Rollback:
    """Roll back a transaction; its journal is removed unless something failed."""
    rollback = Rollback(tree, journal.record, journal.name)
    rollback.run(journal.phase)
    if not rollback.failures:
        try:
            with suppress(OSError) if not rollback.kept else nullcontext():
                on_end("rolled back")  # may fail: `undo` skips what was never applied
            journal.remove()
        except OSError as error:
            rollback.failures.append(error)
    return rollback


def finish_apply(
    tree: LiveTree,
    journal: ApplyJournal,
    on_end: Callable[[Ending], None],
    compared: Mapping[str, Identity] = MappingProxyType({}),
) -> Rollback:
    """Remove the replaced files and the journal; a later recovery retries what fails."""
    rollback = Rollback(tree, journal.record, journal.name)
    rollback.run("done", compared)
    try:
        on_end("committed")
        if not rollback.failures:
            journal.remove()
    except OSError as error:
        rollback.failures.append(error)
    for failure in rollback.failures:
        _log.warning("Could not remove all replaced files: %s", failure)
    return rollback
