"""Changes brought into the original: all of them or none, whatever happens meanwhile."""

import fcntl
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
from weakincentives.filesystem.states import State

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OWNER_WRITES = 0o200
_OPEN = 0o700


@contextmanager
def original_of(path: Path) -> Generator[ExactFilesystem, None, None]:
    """Open the original to change it; what somebody left half-applied is taken back.

    Raises:
        CopyError: Somebody else is changing it in the same way.
    """
    descriptor = os.open(path, _DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CopyError(f"Somebody else is applying changes to {str(path)!r}") from None
        with ExactFilesystem(path, durable=True) as original:
            yield original
    finally:
        os.close(descriptor)


def apply_steps(original: ExactFilesystem, steps: Sequence[Step], source: State) -> None:
    """Make every path of the original what its step wants, which `source` has, or none.

    Each path is looked at again immediately before it changes. If the process is killed,
    whoever opens the original next takes back what was done.

    Raises:
        ConflictError: Somebody has changed a path meanwhile; nothing was applied.
    """
    kept = [each for each in steps if is_directory(each.now) and is_directory(each.wanted)]
    others = [each for each in steps if each not in kept]
    work = _Work(original, source)
    with original.savepoint():
        for step in steps:
            work.open_up(step)
        for step in reversed(others):  # what is in a directory goes before it
            work.clear(step)
        for step in others:
            work.make(step)
        for step in reversed(steps):
            work.close(step)


class _Work:
    """Steps on their way: each is looked at again before it is done."""

    def __init__(self, original: ExactFilesystem, source: State) -> None:
        self._original = original
        self._now = State(original)
        self._source = source

    def open_up(self, step: Step) -> None:
        """Let a directory be written to until its own turn comes."""
        if is_directory(step.now) and step.now.permissions & _OPEN != _OPEN:
            self._check(step, step.now)
            self._original.set_permissions(step.path, step.now.permissions | _OPEN)

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
            self._check(step, step.now if _is_replaced(step) else None)
            self._original.put(step.wanted, self._source)

    def close(self, step: Step) -> None:
        """Give a directory the permissions that are wanted."""
        if is_directory(step.wanted):
            self._original.set_permissions(step.path, step.wanted.permissions)

    def _check(self, step: Step, expected: FileStat | None) -> None:
        """Raise ConflictError unless the path is what it was when it was compared."""
        found = self._now.lookup(step.path)
        if found != expected and not (is_directory(found) and is_directory(expected)):
            raise _meanwhile(step)


def _is_replaced(step: Step) -> bool:
    """Return whether a file or link takes the place of another in one step."""
    if step.now is None or step.wanted is None:
        return False
    if step.now.is_directory or step.wanted.is_directory:
        return False
    # a file that is closed to its owner cannot be written over
    return step.now.is_symlink or bool(step.now.permissions & _OWNER_WRITES)


def _meanwhile(step: Step) -> ConflictError:
    return ConflictError([conflict_of(step.change, "changed at this moment")])
