"""Rollback of an apply in a directory that a person may be editing. Idempotent.

What to do follows from the disk alone: which of the two versions is at the path, and which at
the hidden path. So it does not matter how far the apply got, or an earlier rollback that was
killed. A path is rolled back only if it has exactly what the apply put there; later saves are
left alone. A file is deleted only if it is exactly one of the two versions and has no writer;
everything else is kept under a visible name.
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
from weakincentives.contrib.review.records import JournalRecord, ModeChange, Operation, Phase
from weakincentives.filesystem.host import Identity, identity_of
from weakincentives.history.entries import (
    MISSING,
    EntryState,
    LiveTree,
    has_writer,
    matches,
    resembles,
)
from weakincentives.posix import fault_point, join, parent_of, parents_of

T = TypeVar("T")

_OWNER_ACCESS = 0o700
_MAX_ATTEMPTS = 5
_MAX_NAME_BYTES = 200  # bytes of a name that leave room for an addition
_SAVED = "was saved in the meantime and was left alone"
_REMOVED = "was removed in the meantime and was not restored"


class Rollback:
    """Rolls back or finishes the transaction of a journal."""

    def __init__(self, tree: LiveTree, record: JournalRecord, lease: str) -> None:
        """Work on `record`; `lease` is a file without writers, to test whether leases work."""
        self._tree = tree
        self._record = record
        self._compared: Mapping[str, Identity] = MappingProxyType({})
        self._has_leases = has_writer(tree, lease) is False
        self.undone: list[str] = []
        """The paths that were rolled back."""
        self.kept: list[Kept] = []
        """What was left alone, and where the other versions are."""
        self.failures: list[OSError] = []
        """Errors; with any of them the journal must stay."""

    def run(self, phase: Phase, compared: Mapping[str, Identity] = MappingProxyType({})) -> None:
        """Roll back, or in phase "done" finish, all operations.

        A hidden file whose identity is in `compared` is not read again.
        """
        self._compared = compared
        self._for_each(
            self._make_accessible, self._record.modes
        )  # nothing is found in an inaccessible directory
        moves = self._find_moved_directories()
        for _ in range(_MAX_ATTEMPTS):  # another process may rename directories meanwhile
            self.failures.clear()
            before = moves
            try:
                self._process(phase, before)
                moves = self._find_moved_directories()
            finally:
                self._restore_modes(phase, before)
            if moves.moved == before.moved and not self.failures:
                break
        else:
            if not self.failures:
                self.failures.append(
                    OSError(
                        errno.EBUSY,
                        f"Directories keep being renamed; gave up after {_MAX_ATTEMPTS} attempts",
                    )
                )
        self.kept = list({each.path: each for each in reversed(self.kept)}.values())[::-1]

    def _find_moved_directories(self) -> "_RenamedDirectories":
        self._tree.refresh()
        return _RenamedDirectories(self._tree, self._record.directories)

    def _process(self, phase: Phase, moves: "_RenamedDirectories") -> None:
        operations = [moves.operation(each) for each in self._record.operations]
        modes = [moves.mode(each) for each in self._record.modes]
        self._for_each(self._make_accessible, modes)
        if phase == "done":
            self._for_each(self._finish, operations)
            return
        settle = self._unstage if phase == "staging" else self._undo
        self._for_each(settle, reversed(operations))
        self._for_each(self._sync, sorted(_directories(operations)))

    def _restore_modes(self, phase: Phase, moves: "_RenamedDirectories") -> None:
        close = self._set_final_mode if phase == "done" else self._restore_mode
        modes = [moves.mode(each) for each in self._record.modes]
        self._for_each(close, sorted(modes, key=_path, reverse=True))

    def is_written(self, path: str) -> bool:
        """Return whether a process is known to have `path` open for writing."""
        return self._has_leases and has_writer(self._tree, path) is True

    def _for_each(self, work: Callable[[T], None], items: Iterable[T]) -> None:
        for item in items:
            self._tree.refresh()
            try:
                work(item)
            except OSError as error:
                self.failures.append(error)

    # --- operations ---

    def _unstage(self, operation: Operation) -> None:
        """Remove a staged entry, which no other process has seen."""
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
                # handled by an earlier rollback that could not report it
                self.kept.append(Kept(path, _SAVED, self._find_kept_version(path)))
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
        """Restore the old version if what comes out is what the apply put there."""
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
        """Return whether a killed rollback has moved a save away without returning it."""
        tree = self._tree
        return not matches(tree, operation.hidden, operation.before) and matches(
            tree, operation.path, operation.before
        )

    def _undo_create(self, operation: Operation) -> None:
        tree, path, hidden = self._tree, operation.path, operation.hidden
        self._drop_second_name(operation)
        if tree.stat(hidden) is not None:
            if matches(tree, hidden, operation.after):
                self._discard(operation)
            elif self._put_back(operation):
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
            if not self._put_back(operation):
                return
        self.kept.append(Kept(path, _SAVED))

    def _undo_remove(self, operation: Operation) -> None:
        self._drop_second_name(operation)
        if self._tree.stat(operation.hidden) is not None and self._put_back(operation):
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
                self.kept.append(Kept(operation.path, "is in use and was not removed"))

    def _undo_remove_directory(self, operation: Operation) -> None:
        if self._tree.is_directory(operation.path):
            return
        try:
            self._tree.mkdir(operation.path, _OWNER_ACCESS)
            parent, name = self._tree.open_parent(operation.path)
            with suppress(PermissionError):
                os.chown(name, *operation.before.owner, dir_fd=parent, follow_symlinks=False)
            self._tree.set_mode(operation.path, operation.before.mode | _OWNER_ACCESS)
            self.undone.append(operation.path)
        except OSError as error:
            if error.errno not in MISSING | {errno.EEXIST}:
                raise
            self.kept.append(
                Kept(operation.path, "was replaced in the meantime and was left alone")
            )

    def _finish(self, operation: Operation) -> None:
        """Remove a replaced file, unless a process has written to it since."""
        if operation.action in {"make directory", "remove directory"}:
            return
        self._drop_second_name(operation)
        found = self._tree.stat(operation.hidden)
        if found is None:
            return
        is_compared = self._compared.get(operation.hidden) == identity_of(found)
        # a process may have opened it for writing just when it was replaced
        is_free = is_compared and not self.is_written(operation.hidden)
        if is_free or self._is_ours(operation, operation.before):
            self._remove(operation.hidden)
        else:
            self._keep(operation, "was written to while it was replaced")

    # --- steps ---

    def _is_ours(self, operation: Operation, facts: EntryState | None = None) -> bool:
        """Return whether the hidden entry is exactly as expected and has no writer."""
        expected = operation.after if facts is None else facts
        if expected.kind == "file" and self.is_written(operation.hidden):
            return False
        return matches(self._tree, operation.hidden, expected)

    def _discard(self, operation: Operation) -> None:
        """Remove a hidden new version, unless it has a writer."""
        if operation.after.kind == "file" and self.is_written(operation.hidden):
            self._keep(operation, "is being written to by another program")
        else:
            self._remove(operation.hidden)

    def _remove(self, path: str) -> None:
        fault_point("rollback.removing")
        self._tree.unlink(path)

    def _put_back(self, operation: Operation) -> bool:
        """Move a hidden entry back to its path; if the path is taken, keep it elsewhere."""
        try:
            self._tree.rename(operation.hidden, operation.path, exclusive=True)
        except OSError as error:
            if error.errno not in MISSING | {errno.EEXIST}:
                raise
            is_there = error.errno == errno.EEXIST
            self._keep(
                operation,
                "was created again in the meantime and was left alone" if is_there else _REMOVED,
            )
            return False
        fault_point("rollback.returned")
        return True

    def _keep(self, operation: Operation, fact: str) -> None:
        """Keep a hidden entry under a visible name."""
        directory, _, name = operation.path.rpartition("/")
        if not self._tree.is_directory(directory):
            directory = parent_of(operation.hidden)
        for other in _kept_names(directory, name):
            with suppress(FileExistsError):
                self._tree.rename(operation.hidden, other, exclusive=True)
                fault_point("rollback.kept")
                self.kept.append(Kept(operation.path, fact, other))
                return

    def _find_kept_version(self, path: str) -> str:
        """Return where the other version of a path was kept last; empty if it was not."""
        found = ""
        for each in _kept_names(parent_of(path), path.rpartition("/")[2]):
            if self._tree.stat(each) is None:
                break
            found = each
        return found

    def _drop_second_name(self, operation: Operation) -> None:
        """Complete a two-step rename (link, unlink) that left an entry with both names."""
        here, there = self._tree.stat(operation.hidden), self._tree.stat(operation.path)
        if here and there and (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
            self._remove(operation.hidden)

    def _make_accessible(self, mode: ModeChange) -> None:
        found = self._tree.stat(mode.path)
        if found is not None and stat.S_ISDIR(found.st_mode):
            bits = stat.S_IMODE(found.st_mode)
            if bits & _OWNER_ACCESS != _OWNER_ACCESS and bits in {mode.before, mode.after}:
                self._tree.set_mode(mode.path, bits | _OWNER_ACCESS)

    def _set_final_mode(self, mode: ModeChange) -> None:
        """Give a directory its final permissions if the apply made it accessible."""
        found = self._tree.stat(mode.path)
        if mode.after != -1 and found is not None and stat.S_ISDIR(found.st_mode):
            bits = stat.S_IMODE(found.st_mode)
            if bits != mode.after and bits == mode.after | _OWNER_ACCESS:
                self._tree.set_mode(mode.path, mode.after)

    def _restore_mode(self, mode: ModeChange) -> None:
        """Give a directory its old permissions, unless another process has set others."""
        found = self._tree.stat(mode.path)
        if found is None or not stat.S_ISDIR(found.st_mode):
            return
        bits = stat.S_IMODE(found.st_mode)
        ours = {mode.before | _OWNER_ACCESS, mode.after, mode.after | _OWNER_ACCESS}
        if mode.before == -1:  # created by the apply, and in use
            self._set_final_mode(mode)
        elif bits in ours:
            self._tree.set_mode(mode.path, mode.before)
        elif bits != mode.before:
            self.kept.append(
                Kept(mode.path, "got other permissions in the meantime and keeps them")
            )

    def _sync(self, path: str) -> None:
        """Remove leftovers of dead processes from a directory and flush it to disk."""
        if self._tree.is_directory(path):
            self._tree.remove_leftovers(path)
            self._tree.sync(path)


def _kept_names(directory: str, name: str) -> Iterator[str]:
    """Yield the names under which a version of `name` can be kept."""
    short = os.fsdecode(os.fsencode(name)[:_MAX_NAME_BYTES])
    yield join(directory, f"{short}.wink-kept")
    for number in count(2):
        yield join(directory, f"{short}.wink-kept-{number}")


def _path(mode: ModeChange) -> str:
    return mode.path


def _directories(operations: Iterable[Operation]) -> set[str]:
    return {parent_of(path) for each in operations for path in (each.path, each.hidden)}


class _RenamedDirectories:
    """The current paths of directories that another process has renamed."""

    def __init__(self, tree: LiveTree, directories: Mapping[str, tuple[int, int]]) -> None:
        """Find the `directories` by device and inode."""
        self._tree = tree
        lost = {key: path for path, key in directories.items() if self._identity(path) != key}
        self.moved = self._find(lost) if lost else {}

    def operation(self, operation: Operation) -> Operation:
        """Return the operation with its current paths."""
        now = self.moved.get(parent_of(operation.hidden))
        if now is None or self._tree.stat(operation.hidden) is not None:
            return operation
        start = len(parent_of(operation.hidden)) + 1
        path, hidden = (join(now, each[start:]) for each in (operation.path, operation.hidden))
        return replace(operation, path=path, hidden=hidden)

    def mode(self, mode: ModeChange) -> ModeChange:
        """Return the mode change with the current path of its directory."""
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
            found = None  # a parent directory is inaccessible
        return (-1, -1) if found is None else (found.st_dev, found.st_ino)
