"""Crash recovery of an apply: find what was interrupted, roll it back or finish it.

Also opens and locks the original, which every apply and every recovery does first.
"""

import fcntl
import logging
import os
import shlex
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from weakincentives.contrib.review.apply import OnEnd
from weakincentives.contrib.review.records import CopyError, has_record
from weakincentives.contrib.review.views import OriginalFilesystem
from weakincentives.errors import WinkError
from weakincentives.history import (
    ChangeRecord,
    Ending,
    PendingChange,
    RecordError,
    Recovery,
    find_changes,
    recover_change,
    remove_abandoned,
)
from weakincentives.posix import RootedDirectory

_log = logging.getLogger(__name__)
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Interrupted:
    """An apply or undo that was interrupted in an original."""

    original: Path
    place: Path
    """The working copy it belongs to."""
    kind: str
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


def find_interrupted_apply(original: OriginalFilesystem, path: Path) -> Interrupted | None:
    """Return the interrupted transaction of an original, if there is one; read-only."""
    pending = (each for each in _find_changes(original) if not each.is_done)
    return next((_describe(each, path) for each in pending), None)


def ensure_not_interrupted(original: OriginalFilesystem, path: Path) -> None:
    """Raise ApplyInterruptedError if an apply or undo was interrupted."""
    found = find_interrupted_apply(original, path)
    if found is not None:
        raise ApplyInterruptedError(found)


def has_pending(original: OriginalFilesystem, place: Path) -> bool:
    """Return whether the original has a record of an apply of the copy at `place`."""
    return any(_is_same_path(Path(each.record.place), place) for each in _find_changes(original))


def is_interrupted(original: Path, place: Path) -> bool:
    """Return whether an apply from the copy at `place` was interrupted; read-only and cheap."""
    try:
        with closing(RootedDirectory(original)) as root:
            return any(each.record.place == str(place) for each in find_changes(root))
    except (OSError, WinkError):
        return False


def recover_all(
    original: OriginalFilesystem, path: Path, place: Path | None, on_end: OnEnd
) -> list[Recovery]:
    """Recover the transactions of the copy at `place`; with None, those whose copy is gone.

    A path is rolled back only if it still has exactly what the transaction put there.

    Raises:
        ApplyInterruptedError: The transaction belongs to another copy.
        OSError: Something could not be rolled back; the next recovery tries again.
    """
    remove_abandoned(original.directory)
    found: list[Recovery] = []
    for pending in _find_changes(original):
        other = Path(pending.record.place)
        is_ours = not has_record(other) if place is None else _is_same_path(other, place)
        if is_ours:
            found.append(recover_change(original.directory, pending, on_end))
        elif not pending.is_done:
            raise ApplyInterruptedError(_describe(pending, path))
    return found


def recover(original: str | os.PathLike[str]) -> tuple[Recovery, ...]:
    """Roll back the interrupted transactions of a directory whose working copies are gone.

    Raises:
        ApplyInterruptedError: The copy still exists; use `Review(copy).recover()`.
    """
    path = Path(os.path.realpath(original))
    with open_original(path) as opened:
        return tuple(recover_all(opened, path, None, _ignore))


def _find_changes(original: OriginalFilesystem) -> list[PendingChange]:
    try:
        return find_changes(original.directory)
    except RecordError as error:
        raise CopyError(str(error)) from error


def _describe(pending: PendingChange, path: Path) -> Interrupted:
    record = pending.record
    return Interrupted(path, Path(record.place), record.kind, pending.paths)


def _command(place: Path) -> str:
    return f"wink review {shlex.quote(str(place))}"


def _is_same_path(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _ignore(_record: ChangeRecord, _ending: Ending) -> None:
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
    if any(each.is_running for each in _find_changes(original)):
        raise _busy_error(path)


def _busy_error(path: Path) -> CopyError:
    return CopyError(
        f"Another process is applying changes to {str(path)!r}; try again when it has finished"
    )
