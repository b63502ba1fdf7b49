"""The rollback of changes in a directory in which a person works.

What to do is found out by looking: which of the two states is at the path, and which at the
hidden path. So it does not matter how far the changes came, or an earlier rollback that was
killed. A path goes back only if it has exactly what was put there. What somebody has saved
since stays; and nothing is deleted but what is exactly one of the two states, while
nobody writes to it. Everything else gets a name that can be seen.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import TypeVar

from weakincentives.contrib.review.conflicts import Kept
from weakincentives.contrib.review.entries import (
    MISSING,
    Facts,
    Tree,
    has_writer,
    matches,
    resembles,
)
from weakincentives.contrib.review.records import Mode, Operation, Phase, Record
from weakincentives.filesystem.host import Identity, identity_of
from weakincentives.posix import fault_point, join, parent_of, parents_of

T = TypeVar("T")

_OPEN = 0o700
_ATTEMPTS = 5
_MAX_NAME = 200  # bytes of a name that leave room for an addition
_SAVED = "was saved meanwhile and stays as it is"
_REMOVED = "was removed meanwhile and stays so"


class Rollback:
    """Takes back, or finishes, what a record says."""

    def __init__(self, tree: Tree, record: Record, lease: str) -> None:
        """Work on the `record`; `lease` is a file that nobody writes to, to try leases on."""
        self._tree = tree
        self._record = record
        self._compared: Mapping[str, Identity] = MappingProxyType({})
        self._has_leases = has_writer(tree, lease) is False
        self.undone: list[str] = []
        """The paths that went back."""
        self.kept: list[Kept] = []
        """What was left, and where the other states are."""
        self.failures: list[OSError] = []
        """What could not be settled: the record must stay."""

    def run(self, phase: Phase, compared: Mapping[str, Identity] = MappingProxyType({})) -> None:
        """Settle everything, whatever phase it was left in.

        What looks as `compared` says need not be read again.
        """
        self._compared = compared
        self._each(self._open, self._record.modes)  # nothing is found in a closed directory
        moves = self._look()
        for _ in range(_ATTEMPTS):  # somebody may rename or remove what is just looked at
            self.failures.clear()
            before = moves
            try:
                self._settle(phase, before)
                moves = self._look()
            finally:
                self._close_all(phase, before)
            if moves.moved == before.moved and not self.failures:
                break
        else:
            if not self.failures:
                self.failures.append(OSError(errno.EBUSY, "Directories are renamed all the time"))
        self.kept = list({each.path: each for each in reversed(self.kept)}.values())[::-1]

    def _look(self) -> "_Moves":
        self._tree.look_again()
        return _Moves(self._tree, self._record.directories)

    def _settle(self, phase: Phase, moves: "_Moves") -> None:
        operations = [moves.operation(each) for each in self._record.operations]
        modes = [moves.mode(each) for each in self._record.modes]
        self._each(self._open, modes)
        if phase == "done":
            self._each(self._finish, operations)
            return
        settle = self._unstage if phase == "staging" else self._undo
        self._each(settle, reversed(operations))
        self._each(self._sync, sorted(_directories(operations)))

    def _close_all(self, phase: Phase, moves: "_Moves") -> None:
        close = self._close_again if phase == "done" else self._close
        modes = [moves.mode(each) for each in self._record.modes]
        self._each(close, sorted(modes, key=_path, reverse=True))

    def is_written(self, path: str) -> bool:
        """Return whether a process has the file at `path` open for writing, if that can be told."""
        return self._has_leases and has_writer(self._tree, path) is True

    def _each(self, work: Callable[[T], None], items: Iterable[T]) -> None:
        for item in items:
            self._tree.look_again()
            try:
                work(item)
            except OSError as error:
                self.failures.append(error)

    # --- one operation ---

    def _unstage(self, operation: Operation) -> None:
        """Remove what was made out of sight; nobody else has seen it."""
        with suppress(FileNotFoundError):
            if operation.action == "make directory":
                self._tree.rmdir(operation.hidden)
            else:
                self._tree.unlink(operation.hidden)
        fault_point("rollback.unstaged")

    def _undo(self, operation: Operation) -> None:
        match operation.action:
            case "replace":
                self._undo_replace(operation)
            case "create":
                self._undo_create(operation)
            case "remove":
                self._undo_remove(operation)
            case "make directory":
                self._undo_make_directory(operation)
            case "remove directory":
                self._undo_remove_directory(operation)
        fault_point("rollback.undone")

    def _undo_replace(self, operation: Operation) -> None:
        tree, path, hidden = self._tree, operation.path, operation.hidden
        there = tree.stat(path)
        if tree.stat(hidden) is None:
            if there is not None and not matches(tree, path, operation.before):
                # settled, by a rollback that could not say so any more
                self.kept.append(Kept(path, _SAVED, self._find_kept(path)))
            return
        if matches(tree, hidden, operation.after):
            self._discard(operation)
            return
        if there is None:
            self._keep(operation, _REMOVED)
        elif self._is_half_kept(operation):
            tree.exchange(hidden, path)
            self._keep(operation, _SAVED)
        elif resembles(there, operation.after):
            self._exchange_back(operation)
        else:
            self._keep(operation, _SAVED)

    def _exchange_back(self, operation: Operation) -> None:
        """Put the old state back if what comes out is what was put there."""
        tree, path, hidden = self._tree, operation.path, operation.hidden
        tree.exchange(hidden, path)
        fault_point("rollback.exchanged")
        if self._is_ours(operation):
            self._remove(hidden)
            self.undone.append(path)
            return
        try:
            tree.exchange(hidden, path)
            fault_point("rollback.returned")
            self._keep(operation, _SAVED)
        except FileNotFoundError:
            self._keep(operation, _REMOVED)

    def _is_half_kept(self, operation: Operation) -> bool:
        """Return whether a killed rollback has taken a save away, and not returned it."""
        tree = self._tree
        return not matches(tree, operation.hidden, operation.before) and matches(
            tree, operation.path, operation.before
        )

    def _undo_create(self, operation: Operation) -> None:
        tree, path, hidden = self._tree, operation.path, operation.hidden
        self._part(operation)
        if tree.stat(hidden) is not None:
            if matches(tree, hidden, operation.after):
                self._discard(operation)
            elif self._return(operation):
                self.kept.append(Kept(path, _SAVED))
            return
        there = tree.stat(path)
        if there is None:
            return
        if resembles(there, operation.after):
            tree.rename(path, hidden)
            fault_point("rollback.renamed")
            if self._is_ours(operation):
                self._remove(hidden)
                self.undone.append(path)
                return
            if not self._return(operation):
                return
        self.kept.append(Kept(path, _SAVED))

    def _undo_remove(self, operation: Operation) -> None:
        self._part(operation)
        if self._tree.stat(operation.hidden) is not None and self._return(operation):
            self.undone.append(operation.path)

    def _undo_make_directory(self, operation: Operation) -> None:
        if self._tree.stat(operation.hidden) is not None:
            self._unstage(operation)
        elif self._tree.is_directory(operation.path):
            try:
                self._tree.rmdir(operation.path)
                self.undone.append(operation.path)
            except OSError as error:
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise
                self.kept.append(Kept(operation.path, "is in use meanwhile and stays"))

    def _undo_remove_directory(self, operation: Operation) -> None:
        if self._tree.is_directory(operation.path):
            return
        try:
            self._tree.mkdir(operation.path, _OPEN)
            parent, name = self._tree.place(operation.path)
            with suppress(PermissionError):
                os.chown(name, *operation.before.owner, dir_fd=parent, follow_symlinks=False)
            self._tree.set_mode(operation.path, operation.before.mode | _OPEN)
            self.undone.append(operation.path)
        except OSError as error:
            if error.errno not in MISSING | {errno.EEXIST}:
                raise
            self.kept.append(Kept(operation.path, "was replaced meanwhile and stays so"))

    def _finish(self, operation: Operation) -> None:
        """Remove what was replaced, unless somebody has gone on writing to it."""
        if operation.action in {"make directory", "remove directory"}:
            return
        self._part(operation)
        found = self._tree.stat(operation.hidden)
        if found is None:
            return
        is_compared = self._compared.get(operation.hidden) == identity_of(found)
        # somebody may have been about to open it for writing when it was replaced
        is_free = is_compared and not self.is_written(operation.hidden)
        if is_free or self._is_ours(operation, operation.before):
            self._remove(operation.hidden)
        else:
            self._keep(operation, "was written to while it was replaced")

    # --- steps ---

    def _is_ours(self, operation: Operation, facts: Facts | None = None) -> bool:
        """Return whether the hidden entry is exactly as expected, and nobody writes to it."""
        expected = operation.after if facts is None else facts
        if expected.kind == "file" and self.is_written(operation.hidden):
            return False
        return matches(self._tree, operation.hidden, expected)

    def _discard(self, operation: Operation) -> None:
        """Remove a new state that is out of sight, unless somebody is writing to it."""
        if operation.after.kind == "file" and self.is_written(operation.hidden):
            self._keep(operation, "is being written to by another program")
        else:
            self._remove(operation.hidden)

    def _remove(self, path: str) -> None:
        fault_point("rollback.removing")
        self._tree.unlink(path)

    def _return(self, operation: Operation) -> bool:
        """Put what is hidden back at its path; keep it elsewhere if something is there."""
        try:
            self._tree.rename(operation.hidden, operation.path, exclusive=True)
        except OSError as error:
            if error.errno not in MISSING | {errno.EEXIST}:
                raise
            is_there = error.errno == errno.EEXIST
            self._keep(operation, "was made anew meanwhile and stays" if is_there else _REMOVED)
            return False
        fault_point("rollback.returned")
        return True

    def _keep(self, operation: Operation, fact: str) -> None:
        """Give what is hidden a name that can be seen."""
        directory, _, name = operation.path.rpartition("/")
        if not self._tree.is_directory(directory):
            directory = parent_of(operation.hidden)
        for other in _kept_names(directory, name):
            with suppress(FileExistsError):
                self._tree.rename(operation.hidden, other, exclusive=True)
                fault_point("rollback.kept")
                self.kept.append(Kept(operation.path, fact, other))
                return

    def _find_kept(self, path: str) -> str:
        """Return where the other state of a path was kept last; nothing if it was not."""
        found = ""
        for each in _kept_names(parent_of(path), path.rpartition("/")[2]):
            if self._tree.stat(each) is None:
                break
            found = each
        return found

    def _part(self, operation: Operation) -> None:
        """Undo half a rename where it takes two steps: the entry has both names."""
        here, there = self._tree.stat(operation.hidden), self._tree.stat(operation.path)
        if here and there and (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
            self._remove(operation.hidden)

    def _open(self, mode: Mode) -> None:
        found = self._tree.stat(mode.path)
        if found is not None and stat.S_ISDIR(found.st_mode):
            bits = stat.S_IMODE(found.st_mode)
            if bits & _OPEN != _OPEN and bits in {mode.before, mode.after}:
                self._tree.set_mode(mode.path, bits | _OPEN)

    def _close_again(self, mode: Mode) -> None:
        """Give a directory the permissions that it is to have, if it was opened."""
        found = self._tree.stat(mode.path)
        if mode.after != -1 and found is not None and stat.S_ISDIR(found.st_mode):
            bits = stat.S_IMODE(found.st_mode)
            if bits != mode.after and bits == mode.after | _OPEN:
                self._tree.set_mode(mode.path, mode.after)

    def _close(self, mode: Mode) -> None:
        """Give a directory the permissions that it had, unless somebody has set others."""
        found = self._tree.stat(mode.path)
        if found is None or not stat.S_ISDIR(found.st_mode):
            return
        bits = stat.S_IMODE(found.st_mode)
        ours = {mode.before | _OPEN, mode.after, mode.after | _OPEN}
        if mode.before == -1:  # made by us, and in use by somebody
            self._close_again(mode)
        elif bits in ours:
            self._tree.set_mode(mode.path, mode.before)
        elif bits != mode.before:
            self.kept.append(Kept(mode.path, "got other permissions meanwhile and keeps them"))

    def _sync(self, path: str) -> None:
        """Bring a directory to the disk, without the leftovers of processes that are gone."""
        if self._tree.is_directory(path):
            self._tree.sweep(path)
            self._tree.sync(path)


def _kept_names(directory: str, name: str) -> Iterator[str]:
    """Yield the names under which a state of `name` can be kept."""
    short = os.fsdecode(os.fsencode(name)[:_MAX_NAME])
    yield join(directory, f"{short}.wink-kept")
    for number in count(2):
        yield join(directory, f"{short}.wink-kept-{number}")


def _path(mode: Mode) -> str:
    return mode.path


def _directories(operations: Iterable[Operation]) -> set[str]:
    return {parent_of(path) for each in operations for path in (each.path, each.hidden)}


class _Moves:
    """Where directories are now that somebody has renamed."""

    def __init__(self, tree: Tree, directories: Mapping[str, tuple[int, int]]) -> None:
        """Look for the `directories`, of which device and inode are known."""
        self._tree = tree
        lost = {key: path for path, key in directories.items() if self._identity(path) != key}
        self.moved = self._find(lost) if lost else {}

    def operation(self, operation: Operation) -> Operation:
        """Return the operation with the paths that it has now."""
        now = self.moved.get(parent_of(operation.hidden))
        if now is None or self._tree.stat(operation.hidden) is not None:
            return operation
        start = len(parent_of(operation.hidden)) + 1
        path, hidden = (join(now, each[start:]) for each in (operation.path, operation.hidden))
        return replace(operation, path=path, hidden=hidden)

    def mode(self, mode: Mode) -> Mode:
        """Return the permissions with the path that the directory has now."""
        for place in (mode.path, *reversed(list(parents_of(mode.path)))):
            if place in self.moved:
                return replace(mode, path=self.moved[place] + mode.path[len(place) :])
        return mode

    def _find(self, lost: Mapping[tuple[int, int], str]) -> dict[str, str]:
        found: dict[str, str] = {}
        pending = [""]
        while pending and len(found) < len(lost):
            path = pending.pop()
            with suppress(OSError):
                for name, is_directory in self._tree.names(path):
                    if is_directory:
                        pending.append(join(path, name))
            here = lost.get(self._identity(path))
            if here is not None:
                found[here] = path
        return found

    def _identity(self, path: str) -> tuple[int, int]:
        try:
            found = self._tree.stat(path) if path else None
        except PermissionError:
            found = None  # somebody has closed what is above it
        return (-1, -1) if found is None else (found.st_dev, found.st_ino)
