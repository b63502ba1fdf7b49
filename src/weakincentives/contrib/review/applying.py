"""Changes brought into the original: all of them or none, whatever happens meanwhile."""

import fcntl
import logging
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from weakincentives.contrib.review.conflicts import (
    ConflictError,
    Step,
    conflict_of,
    is_directory,
)
from weakincentives.contrib.review.exact import ExactFilesystem
from weakincentives.contrib.review.records import CopyError
from weakincentives.filesystem import FileStat
from weakincentives.filesystem.paths import parent_of
from weakincentives.filesystem.states import State

_log = logging.getLogger(__name__)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OWNER_WRITES = 0o200
_OPEN = 0o700


@contextmanager
def original_of(path: Path, *, looking: bool = False) -> Generator[ExactFilesystem, None, None]:
    """Open the original to change it; what somebody left half-applied is taken back.

    Several may be `looking` at the same time.

    Raises:
        CopyError: Somebody else is changing it in the same way.
    """
    descriptor = os.open(path, _DIRECTORY)
    try:
        _lock(descriptor, path, looking)
        with ExactFilesystem(path, durable=True) as original:
            yield original
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, looking: bool) -> None:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if looking else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CopyError(f"Somebody else is applying changes to {str(path)!r}") from None
    except OSError as error:
        _log.info("No locks on the file system of %r: %s", str(path), error)


def apply_steps(original: ExactFilesystem, steps: Sequence[Step], source: State) -> None:
    """Make every path of the original what its step wants, which `source` has, or none.

    Each path is looked at again immediately before it changes. If the process is killed,
    whoever opens the original next takes back what was done.

    Raises:
        ConflictError: Somebody has changed a path meanwhile; nothing was applied.
    """
    changed = [each for each in steps if not _is_kept(each)]
    with original.savepoint():
        work = _Work(original, source)
        work.open_up(steps)
        for step in reversed(changed):  # what is in a directory goes before it
            work.clear(step)
        for step in changed:
            work.make(step)
        work.close(steps)


class _Work:
    """Steps on their way: each is looked at again before it is done."""

    def __init__(self, original: ExactFilesystem, source: State) -> None:
        self._original = original
        self._now = State(original)
        self._source = source
        self._closing: dict[str, int] = {}

    def open_up(self, steps: Sequence[Step]) -> None:
        """Let closed directories be written to until all is done."""
        wanted = {parent_of(step.path) for step in steps}
        wanted |= {step.path for step in steps if is_directory(step.now)}
        for path in sorted(wanted - {""}):
            found = self._now.lookup(path)
            if is_directory(found) and found.permissions & _OPEN != _OPEN:
                self._original.set_permissions(path, found.permissions | _OPEN)
                self._closing[path] = found.permissions

    def clear(self, step: Step) -> None:
        """Remove what cannot be replaced in one step, or is not wanted any more."""
        if step.now is None or _is_replaced(step):
            return
        self._check(step, step.now)
        if step.now.is_directory and self._now.children(step.path):
            raise _meanwhile(step)
        self._original.take_away(step.path)

    def make(self, step: Step) -> None:
        """Put what is wanted."""
        if step.wanted is not None:
            expected = step.now if _is_replaced(step) else None
            self._check(step, expected)
            self._original.put(step.wanted, self._source, is_new=expected is None)

    def close(self, steps: Sequence[Step]) -> None:
        """Give directories the permissions that are wanted, or that they had."""
        gone = {step.path for step in steps if not is_directory(step.wanted)}
        wanted = {step.path: step.wanted for step in steps}
        modes = {path: mode for path, mode in self._closing.items() if path not in gone}
        modes |= {path: each.permissions for path, each in wanted.items() if is_directory(each)}
        for path in sorted(modes, reverse=True):
            self._original.set_permissions(path, modes[path])

    def _check(self, step: Step, expected: FileStat | None) -> None:
        """Raise ConflictError unless the path is what it was when it was compared."""
        found = self._now.lookup(step.path)
        if found != expected and not (is_directory(found) and is_directory(expected)):
            raise _meanwhile(step)


def _is_kept(step: Step) -> bool:
    """Return whether a directory stays, and gets other permissions."""
    return is_directory(step.now) and is_directory(step.wanted)


def _is_replaced(step: Step) -> bool:
    """Return whether a file or link takes the place of another in one step."""
    if step.now is None or step.wanted is None:
        return False
    if step.now.is_directory or step.wanted.is_directory:
        return False
    # a file that is closed to its owner cannot be written over, unless by root
    may_write = step.now.permissions & _OWNER_WRITES or os.geteuid() == 0
    return step.now.is_symlink or bool(may_write)


def _meanwhile(step: Step) -> ConflictError:
    return ConflictError([conflict_of(step.change, "changed at this moment")])
