"""The original of a working copy: opened under a lock, looked at as it is now, and recovered.

A crash recovery finds an apply that was interrupted, and rolls it back or finishes it.
"""

import fcntl
import logging
import os
import shlex
import stat
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from weakincentives.contrib.review.records import CopyError, is_copy
from weakincentives.contrib.review.views import Version
from weakincentives.errors import WinkError
from weakincentives.history import (
    ChangeRecord,
    Ending,
    EntryState,
    LiveTree,
    PendingChange,
    RecordError,
    Recovery,
    describe,
    find_changes,
    open_file,
    read_attributes,
    recover_change,
    remove_abandoned,
)
from weakincentives.posix import (
    RootedDirectory,
    is_temporary,
    make_accessible,
    parents_of,
    pin,
    read_range,
    restore_mode,
)

_log = logging.getLogger(__name__)


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
        fact = f"An {self.kind} was interrupted half-way in {str(self.original)!r}"
        if not is_copy(self.place):
            return f"{fact}; to roll it back: {_command(self.original)} --recover"
        command = _command(self.place)
        return f"{fact}; to roll it back: {command} --recover, to retry it: {command} --{self.kind}"


class ApplyInterruptedError(CopyError):
    """The original is between two states; `recover`, `apply` or `undo` fixes that."""

    def __init__(self, interrupted: Interrupted) -> None:
        """Store the interrupted transaction."""
        self.interrupted: Interrupted = interrupted
        super().__init__(str(interrupted))


@dataclass(frozen=True, slots=True)
class Original:
    """The directory that was copied, opened under a lock."""

    path: Path
    directory: RootedDirectory
    is_read_only: bool

    @contextmanager
    def look(self) -> Generator["Look", None, None]:
        """Compare with the entries as they are now."""
        with closing(LiveTree(self.directory)) as tree:
            look = Look(tree, read_only=self.is_read_only)
            try:
                yield look
            finally:
                look.restore_modes()

    @property
    def interrupted(self) -> Interrupted | None:
        """The apply or undo that was interrupted in it, if there is one; read-only."""
        return next((self._describe(each) for each in self._pending() if not each.is_done), None)

    def ensure_not_interrupted(self) -> None:
        """Raise ApplyInterruptedError if an apply or undo was interrupted."""
        if self.interrupted is not None:
            raise ApplyInterruptedError(self.interrupted)

    def has_pending(self, place: Path) -> bool:
        """Return whether it has a record of an apply of the copy at `place`."""
        return any(_is_same_path(Path(each.record.place), place) for each in self._pending())

    def recover(
        self, place: Path | None, on_end: Callable[[ChangeRecord, Ending], None]
    ) -> list[Recovery]:
        """Recover the transactions of the copy at `place`; with None, those whose copy is gone.

        A path is rolled back only if it still has exactly what the transaction put there.

        Raises:
            ApplyInterruptedError: The transaction belongs to another copy.
            OSError: Something could not be rolled back; the next recovery tries again.
        """
        remove_abandoned(self.directory)
        found: list[Recovery] = []
        for pending in self._pending():
            other = Path(pending.record.place)
            is_ours = not is_copy(other) if place is None else _is_same_path(other, place)
            if is_ours:
                found.append(recover_change(self.directory, pending, on_end))
            elif not pending.is_done:
                raise ApplyInterruptedError(self._describe(pending))
        return found

    def ensure_not_running(self) -> None:
        """Raise CopyError if a process is making an apply, where it holds no lock."""
        if any(each.is_running for each in self._pending()):
            raise _busy_error(self.path)

    def _pending(self) -> list[PendingChange]:
        try:
            return find_changes(self.directory)
        except RecordError as error:
            raise CopyError(str(error)) from error

    def _describe(self, pending: PendingChange) -> Interrupted:
        record = pending.record
        return Interrupted(self.path, Path(record.place), record.kind, pending.paths)


@contextmanager
def open_original(path: Path, *, read_only: bool = False) -> Generator[Original, None, None]:
    """Open and lock the original; several processes may have it open `read_only`.

    Opening changes nothing.
    """
    with closing(RootedDirectory(path)) as directory:
        original = Original(path, directory, read_only)
        try:
            kind = fcntl.LOCK_SH if read_only else fcntl.LOCK_EX
            fcntl.flock(directory.descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _busy_error(path) from None
        except OSError as error:
            _log.info("No locks on the file system of %r: %s", str(path), error)
            original.ensure_not_running()
        yield original


def _busy_error(path: Path) -> CopyError:
    return CopyError(
        f"Another process is applying changes to {str(path)!r}; try again when it has finished"
    )


def is_interrupted(original: Path, place: Path) -> bool:
    """Return whether an apply from the copy at `place` was interrupted; read-only and cheap."""
    try:
        with closing(RootedDirectory(original)) as directory:
            return Original(original, directory, is_read_only=True).has_pending(place)
    except (OSError, WinkError):
        return False


def recover(original: str | os.PathLike[str]) -> tuple[Recovery, ...]:
    """Roll back the interrupted transactions of a directory whose working copies are gone.

    Raises:
        ApplyInterruptedError: The copy still exists; use `Review(copy).recover()`.
    """
    with open_original(Path(os.path.realpath(original))) as opened:
        # there is no copy whose record could be updated
        return tuple(opened.recover(None, lambda _, __: None))


def _command(place: Path) -> str:
    return f"wink review {shlex.quote(str(place))}"


def _is_same_path(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


class Look:
    """A look at the entries of an original.

    Applied changes may have removed all permissions of a path. Before an apply or undo, such
    paths are made accessible meanwhile; a read-only look changes nothing.
    """

    def __init__(self, tree: LiveTree, *, read_only: bool) -> None:
        """Look at the entries of `tree`."""
        self._tree = tree
        self._is_read_only = read_only
        self._modes: dict[str, int] = {}  # of directories that were made accessible
        self._seen: set[str] = set()  # directories that are accessible now

    def state(self, path: str) -> EntryState:
        """Return the state of a path with its real permissions; a file is read.

        A file that is not readable has no blob id in a read-only look.
        """
        self._make_accessible(path)
        found = self._tree.stat(path) if self._is_read_only else None
        if found is not None and stat.S_ISREG(found.st_mode) and not self._is_readable(path):
            return EntryState("file", stat.S_IMODE(found.st_mode), found.st_size)
        state = describe(self._tree, path)
        return replace(state, mode=self._modes.get(path, state.mode))

    def names(self, path: str) -> list[str]:
        """Return the names in a directory; none if it is gone."""
        try:
            self._make_accessible(path)
            found = self._tree.names(path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [name for name, _ in found if not is_temporary(name)]

    def attributes(self, path: str) -> dict[str, bytes]:
        """Return the extended attributes of a file."""
        return read_attributes(self._tree, path)

    def version(self, path: str, max_bytes: int) -> Version | None:
        """Return a file; None if it is too large, not readable, or not a file at this moment."""
        with suppress(OSError):
            if self._is_read_only and not self._is_readable(path):
                return None
            with open_file(self._tree.open_parent(path)) as descriptor:
                found = os.fstat(descriptor)
                if stat.S_ISREG(found.st_mode) and found.st_size <= max_bytes:
                    content = read_range(descriptor, 0, found.st_size)
                    return Version(content, stat.S_IMODE(found.st_mode))
        return None

    def restore_modes(self) -> None:
        """Give directories their permissions back, unless somebody has set others."""
        for path in sorted(self._modes, reverse=True):
            with suppress(OSError), pin(*self._tree.open_parent(path)) as descriptor:
                restore_mode(descriptor, self._modes[path])

    def _is_readable(self, path: str, access: int = os.R_OK) -> bool:
        parent, name = self._tree.open_parent(path)
        return os.access(name, access, dir_fd=parent, effective_ids=True)

    def _make_accessible(self, path: str) -> None:
        """Make a directory and those above it accessible, except in a read-only look."""
        for place in () if self._is_read_only else (*parents_of(path), path):
            if place in self._seen:
                continue
            found = self._tree.stat(place)
            if found is None or not stat.S_ISDIR(found.st_mode):
                break
            self._seen.add(place)
            if not self._is_readable(place, os.R_OK | os.X_OK):
                with suppress(PermissionError), pin(*self._tree.open_parent(place)) as descriptor:
                    self._modes[place] = make_accessible(descriptor)
