"""Changes to an original that were interrupted: seen by whoever looks, settled when asked to."""

import fcntl
import logging
import os
import shlex
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from weakincentives.contrib.review.conflicts import Kept
from weakincentives.contrib.review.entries import Tree
from weakincentives.contrib.review.records import (
    CopyError,
    Kind,
    Ledger,
    Record,
    has_record,
    pending_in,
)
from weakincentives.contrib.review.rollback import Rollback
from weakincentives.contrib.review.views import OriginalFilesystem
from weakincentives.filesystem.host import Identity

_log = logging.getLogger(__name__)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


Settle = Callable[[Record, bool], None]


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Changes to an original that were interrupted half-way."""

    original: Path
    place: Path
    """The copy that they come from."""
    kind: Kind
    """Whether they were being applied, or undone."""
    paths: tuple[str, ...]
    """What was to change, whether it was reached or not; sorted."""

    def __str__(self) -> str:
        """Return what happened, and what to do."""
        fact = f"Half of {self._title} was done in {str(self.original)!r} when it was interrupted"
        if not has_record(self.place):
            return f"{fact}; to roll it back: {_command(self.original)} --recover"
        command = _command(self.place)
        return (
            f"{fact}; to roll it back: {command} --recover, to do it again: {command} --{self.kind}"
        )

    @property
    def _title(self) -> str:
        return "an apply" if self.kind == "apply" else "an undo"


class ApplyInterruptedError(CopyError):
    """The original is half-way between two states: `recover`, `apply` or `undo` settle that."""

    def __init__(self, interrupted: Interrupted) -> None:
        """Hold what was interrupted."""
        self.interrupted = interrupted
        super().__init__(str(interrupted))


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was done about interrupted changes."""

    kind: Kind
    is_done: bool
    """Whether they had been made completely, and stay; else they were rolled back."""
    paths: tuple[str, ...]
    """The paths that have changed, or were changed back."""
    kept: tuple[Kept, ...]
    """What was left as somebody made it, and where the other states are."""


def interrupted_in(original: OriginalFilesystem, path: Path) -> Interrupted | None:
    """Return what was interrupted in an original; nothing is changed by looking."""
    return next(
        (_interrupted(each, path) for each in _ledgers(original) if not is_done(each)), None
    )


def refuse_interrupted(original: OriginalFilesystem, path: Path) -> None:
    """Raise ApplyInterruptedError if changes to the original were interrupted."""
    found = interrupted_in(original, path)
    if found is not None:
        raise ApplyInterruptedError(found)


def has_pending(original: OriginalFilesystem, place: Path) -> bool:
    """Return whether something is to be settled in the original for the copy at `place`."""
    return any(_same(Path(each.record.place), place) for each in _ledgers(original))


def is_done(ledger: Ledger) -> bool:
    """Return whether all changes were made, and only hidden files have to go."""
    return ledger.phase == "done"


def settle_all(
    original: OriginalFilesystem, path: Path, place: Path | None, settle: Settle
) -> list[Recovery]:
    """Settle what was interrupted for the copy at `place`, or if None for copies that are gone.

    A path goes back only if it has exactly what was put there; everything else stays.

    Raises:
        ApplyInterruptedError: It is the matter of another copy.
        OSError: Something could not be rolled back; it is tried again the next time.
    """
    Tree(original.directory).sweep("")
    found: list[Recovery] = []
    for ledger in _ledgers(original):
        other = Path(ledger.record.place)
        is_ours = not has_record(other) if place is None else _same(other, place)
        if is_ours:
            found.append(_settled(original, ledger, settle))
        elif not is_done(ledger):
            raise ApplyInterruptedError(_interrupted(ledger, path))
    return found


def recover(original: str | os.PathLike[str]) -> tuple[Recovery, ...]:
    """Roll back what was interrupted in a directory, of copies that are gone.

    Raises:
        ApplyInterruptedError: The copy is still there: `Review(copy).recover()` does it.
    """
    path = Path(os.path.realpath(original))
    with original_of(path) as opened:
        return tuple(settle_all(opened, path, None, _ignore))


def _settled(original: OriginalFilesystem, ledger: Ledger, settle: Settle) -> Recovery:
    tree, record, was_done = Tree(original.directory), ledger.record, is_done(ledger)

    def end(done: bool) -> None:
        settle(record, done)

    outcome = (finish if was_done else roll_back)(tree, ledger, end)
    if outcome.failures and not was_done:
        error = outcome.failures[0]
        for each in outcome.kept:
            error.add_note(str(each))
        raise error
    paths = [each.path for each in record.operations] if was_done else outcome.undone
    return Recovery(record.kind, was_done, tuple(sorted(set(paths))), tuple(outcome.kept))


def _ledgers(original: OriginalFilesystem) -> Iterator[Ledger]:
    tree = Tree(original.directory)
    for pending in pending_in(tree):
        yield Ledger.open(tree, pending)


def _interrupted(ledger: Ledger, path: Path) -> Interrupted:
    record = ledger.record
    paths = {each.path for each in (*record.operations, *record.modes)}
    return Interrupted(path, Path(record.place), record.kind, tuple(sorted(paths)))


def _command(place: Path) -> str:
    return f"wink review {shlex.quote(str(place))}"


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _ignore(_: Record, __: bool) -> None:
    """Settle nothing: the copy is gone."""


@contextmanager
def original_of(path: Path, *, looking: bool = False) -> Generator[OriginalFilesystem, None, None]:
    """Open the original to look at it, or to change it; opening changes nothing.

    Several may be `looking` at the same time.

    Raises:
        CopyError: Somebody else is changing it in the same way.
    """
    descriptor = os.open(path, _DIRECTORY)
    try:
        is_locked = _lock(descriptor, path, looking)
        with OriginalFilesystem(path) as original:
            if not is_locked:
                _refuse_while_alive(original, path)
            yield original
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, looking: bool) -> bool:
    """Lock the original; return False where the file system has no locks."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if looking else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _busy(path) from None
    except OSError as error:
        _log.info("No locks on the file system of %r: %s", str(path), error)
        return False
    return True


def _refuse_while_alive(original: OriginalFilesystem, path: Path) -> None:
    if any(each.is_alive for each in pending_in(Tree(original.directory))):
        raise _busy(path)


def _busy(path: Path) -> CopyError:
    return CopyError(
        f"Somebody else is applying changes to {str(path)!r}; try again when that has ended"
    )


def roll_back(tree: Tree, ledger: Ledger, settle: Callable[[bool], None]) -> Rollback:
    """Take back what a record says; the record goes if nothing is left to do."""
    rollback = Rollback(tree, ledger.record, ledger.name)
    rollback.run(ledger.phase)
    if not rollback.failures:
        try:
            with suppress(OSError) if not rollback.kept else nullcontext():
                settle(False)  # `undo` passes over what was never applied
            ledger.remove()
        except OSError as error:
            rollback.failures.append(error)
    return rollback


def finish(
    tree: Tree,
    ledger: Ledger,
    settle: Callable[[bool], None],
    compared: Mapping[str, Identity] = MappingProxyType({}),
) -> Rollback:
    """Remove what was replaced, and the record; what cannot be done now is done later."""
    rollback = Rollback(tree, ledger.record, ledger.name)
    rollback.run("done", compared)
    try:
        settle(True)
        if not rollback.failures:
            ledger.remove()
    except OSError as error:
        rollback.failures.append(error)
    for failure in rollback.failures:
        _log.warning("Could not remove all that was replaced: %s", failure)
    return rollback
