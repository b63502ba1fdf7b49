"""Rollback of a change in a directory that a person may be editing. Idempotent.

What to do follows from the disk alone: which of the two versions is at the path, and which in
its slot. So it does not matter how far the change got, or an earlier rollback that was
killed. A path is rolled back only if it has exactly what the change put there; later saves are
left alone. A file is deleted only if it is exactly one of the two versions and has no writer;
everything else is kept under a visible name.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType
from typing import TypeVar

from weakincentives.history.entries import (
    MISSING,
    EntryState,
    LiveTree,
    describe,
    has_writer,
    matches,
    resembles,
)
from weakincentives.history.records import ChangeRecord, ModeChange, Operation, Phase
from weakincentives.posix import display_path, fault_point, join, parent_of

T = TypeVar("T")

_OWNER_ACCESS = 0o700
_MAX_ATTEMPTS = 10  # to give a path back to somebody who keeps saving
_MAX_NAME_BYTES = 200  # bytes of a name that leave room for an addition
_MAX_SEARCHES = 3  # for a directory that somebody has renamed
_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_SAVED = "was saved in the meantime and was left alone"
_REMOVED = "was removed in the meantime and was not restored"
_IN_USE = "is in use and was not removed"


@dataclass(frozen=True, slots=True)
class Kept:
    """A path with a concurrent change that was left alone, or taken and kept."""

    path: str
    fact: str
    """What happened to it."""
    other: str = ""
    """Where the other version is kept, if there is one."""
    can_merge: bool = False
    """Whether an undo with `merge` restores it."""

    def __str__(self) -> str:
        """Return a sentence."""
        tail = f"; the other version is kept as {display_path(self.other)}" if self.other else ""
        return f"{display_path(self.path)} {self.fact}{tail}"


class Rollback:
    """Rolls back or finishes a change."""

    def __init__(self, tree: LiveTree, record: ChangeRecord, area: str) -> None:
        """Work on `record`; `area` has a file without writers, to test whether leases work."""
        self._tree = tree
        self._record = record
        self._stored: Mapping[str, EntryState] = MappingProxyType({})
        self._has_leases = has_writer(tree, f"{area}/.gitignore") is False
        self.undone: list[str] = []
        """The paths that were rolled back."""
        self.kept: list[Kept] = []
        """What was left alone, and where the other versions are."""
        self.failures: list[OSError] = []
        """Errors; with any of them the record must stay."""

    def run(self, phase: Phase, stored: Mapping[str, EntryState] = MappingProxyType({})) -> None:
        """Roll back, or in phase "done" finish, all operations.

        `stored` says what else than expected was displaced and is stored elsewhere, by path.
        """
        self._stored = stored
        is_done = phase == "done"
        try:
            # nothing is found in an inaccessible directory
            self._for_each(self._make_accessible, self._record.modes)
            if is_done:
                self._for_each(self._finish, self._record.operations)
            else:
                self._for_each(self._undo, reversed(self._record.operations))
        finally:
            modes = sorted(self._record.modes, key=lambda each: each.path, reverse=True)
            self._for_each(self._set_final_mode if is_done else self._restore_mode, modes)
        self.kept = list({each.path: each for each in reversed(self.kept)}.values())[::-1]

    def complete(self) -> None:
        """Carry out what an interrupted change has left to do, where nobody has saved since."""
        self._for_each(self._make_accessible, self._record.modes)
        self._for_each(self._redo, self._record.operations)
        self._for_each(self._complete_mode, reversed(self._record.modes))

    def is_written(self, path: str) -> bool:
        """Return whether a process is known to have `path` open for writing."""
        return self._has_leases and has_writer(self._tree, path) is True

    def give_back(self, operation: Operation, placed: EntryState) -> bool:
        """Return what is in a slot to its path, where `placed` was put in its stead.

        Somebody may save meanwhile, again and again: the path ends with the newest save, and
        the slot with what it replaced. Return False if the path was removed meanwhile.
        """
        for _ in range(_MAX_ATTEMPTS):
            saved = describe(self._tree, operation.slot)
            try:
                self._tree.exchange(operation.slot, operation.path)
            except FileNotFoundError:
                return False
            fault_point("rollback.returned")
            if matches(self._tree, operation.slot, placed):
                return True
            placed = saved
        return True

    def _for_each(self, work: Callable[[T], None], items: Iterable[T]) -> None:
        for item in items:
            try:
                work(item)
            except OSError as error:
                self.failures.append(error)

    # --- operations ---

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
        tree, path, slot = self._tree, operation.path, operation.slot
        there = tree.stat(path)
        if tree.stat(slot) is None:
            if there is not None and not matches(tree, path, operation.before):
                # handled by an earlier rollback that could not report it
                self.kept.append(Kept(path, _SAVED, self._find_kept_version(path)))
            return
        if matches(tree, slot, operation.after):
            self._discard(operation)
            return
        if there is None:
            self._keep(operation, _REMOVED)
        elif self._is_half_kept(operation):
            self._give_back_or_keep(operation, operation.before)
        elif resembles(there, operation.after):
            self._exchange_back(operation)
        else:
            self._keep(operation, _SAVED)

    def _exchange_back(self, operation: Operation) -> None:
        """Restore the old version if what comes out is what the change put there."""
        old = describe(self._tree, operation.slot)
        self._tree.exchange(operation.slot, operation.path)
        fault_point("rollback.exchanged")
        if self._is_ours(operation):
            self._remove(operation.slot)
            self.undone.append(operation.path)
            return
        self._give_back_or_keep(operation, old)

    def _give_back_or_keep(self, operation: Operation, placed: EntryState) -> None:
        fact = _SAVED if self.give_back(operation, placed) else _REMOVED
        self._keep(operation, fact)

    def _is_half_kept(self, operation: Operation) -> bool:
        """Return whether a killed rollback has moved a save away without returning it."""
        tree = self._tree
        return not matches(tree, operation.slot, operation.before) and matches(
            tree, operation.path, operation.before
        )

    def _undo_create(self, operation: Operation) -> None:
        tree, path, slot = self._tree, operation.path, operation.slot
        self._drop_second_name(operation)
        if tree.stat(slot) is not None:
            if matches(tree, slot, operation.after):
                self._discard(operation)
            elif self._put_back(operation):
                self.kept.append(Kept(path, _SAVED))
            return
        there = tree.stat(path)
        if there is None:
            return
        if resembles(there, operation.after):
            tree.rename(path, slot)
            fault_point("rollback.renamed")
            if self._is_ours(operation):
                self._remove(slot)
                self.undone.append(path)
                return
            if not self._put_back(operation):
                return
        self.kept.append(Kept(path, _SAVED))

    def _undo_remove(self, operation: Operation) -> None:
        self._drop_second_name(operation)
        if self._tree.stat(operation.slot) is not None and self._put_back(operation):
            self.undone.append(operation.path)

    def _undo_make_directory(self, operation: Operation) -> None:
        if self._tree.stat(operation.slot) is not None:
            self._tree.rmdir(operation.slot)
        elif self._tree.is_directory(operation.path):
            try:
                self._tree.rmdir(operation.path)
                self.undone.append(operation.path)
            except OSError as error:
                if error.errno not in _NOT_EMPTY:
                    raise
                self.kept.append(Kept(operation.path, _IN_USE))

    def _undo_remove_directory(self, operation: Operation) -> None:
        if self._tree.stat(operation.slot) is None:
            return
        try:
            self._tree.rename(operation.slot, operation.path, exclusive=True)
            self.undone.append(operation.path)
        except OSError as error:
            if error.errno not in MISSING | _NOT_EMPTY:
                raise
            self.kept.append(
                Kept(operation.path, "was replaced in the meantime and was left alone")
            )
            self._drop_directory(operation)

    def _redo(self, operation: Operation) -> None:
        match operation.action:
            case "replace":
                self._redo_replace(operation)
            case "remove" | "remove directory":
                self._redo_remove(operation)
            case "create" | "make directory":
                self._redo_create(operation)
        fault_point("rollback.completed")

    def _redo_replace(self, operation: Operation) -> None:
        tree, path, slot = self._tree, operation.path, operation.slot
        if not matches(tree, slot, operation.after):
            return  # it was exchanged already
        if tree.stat(path) is None:
            self._redo_create(operation)
        elif not matches(tree, path, operation.before):
            self._leave(operation)
        else:
            tree.exchange(slot, path)
            fault_point("rollback.exchanged")
            if not matches(tree, slot, operation.before):
                self.give_back(operation, operation.after)
                self._leave(operation)

    def _redo_create(self, operation: Operation) -> None:
        self._drop_second_name(operation)
        if self._tree.stat(operation.slot) is None:
            return
        try:
            self._tree.rename(operation.slot, operation.path, exclusive=True)
        except OSError as error:
            if error.errno not in MISSING | _NOT_EMPTY:
                raise
            self._leave(operation)

    def _redo_remove(self, operation: Operation) -> None:
        tree, path, slot = self._tree, operation.path, operation.slot
        if tree.stat(slot) is not None or tree.stat(path) is None:
            return
        is_directory = operation.action == "remove directory"
        if is_directory and not tree.is_directory(path):
            return
        if is_directory or matches(tree, path, operation.before):
            tree.rename(path, slot)
            if is_directory or matches(tree, slot, operation.before):
                return
            self._put_back(operation)
        self.kept.append(Kept(path, _SAVED))

    def _leave(self, operation: Operation) -> None:
        """Leave a path to whoever saved it; the new version in the slot is in the store."""
        if operation.action == "make directory":
            self._tree.rmdir(operation.slot)
            return
        self.kept.append(Kept(operation.path, _SAVED))
        if matches(self._tree, operation.slot, operation.after):
            self._discard(operation)
        else:
            self._keep(operation, _SAVED)

    def _finish(self, operation: Operation) -> None:
        """Remove what was displaced, unless a process has written to it since."""
        if operation.action == "make directory":
            return
        if operation.action == "remove directory":
            self._drop_directory(operation)
            return
        self._drop_second_name(operation)
        if self._tree.stat(operation.slot) is None:
            return
        if self._is_ours(operation, self._stored.get(operation.path, operation.before)):
            self._remove(operation.slot)
        else:
            self._keep(operation, "was written to while it was replaced")

    # --- steps ---

    def _is_ours(self, operation: Operation, facts: EntryState | None = None) -> bool:
        """Return whether the entry in a slot is exactly as expected and has no writer."""
        expected = operation.after if facts is None else facts
        if expected.kind == "file" and self.is_written(operation.slot):
            return False
        is_same = matches(self._tree, operation.slot, expected)
        # again, since it may have been opened just when it was taken away
        return is_same and not (expected.kind == "file" and self.is_written(operation.slot))

    def _discard(self, operation: Operation) -> None:
        """Remove a new version in its slot, unless it has a writer."""
        if operation.after.kind == "file" and self.is_written(operation.slot):
            self._keep(operation, "is being written to by another program")
        else:
            self._remove(operation.slot)

    def _drop_directory(self, operation: Operation) -> None:
        """Remove a directory in its slot, unless somebody has put something into it."""
        try:
            self._tree.rmdir(operation.slot)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in _NOT_EMPTY:
                raise
            if self._put_back(operation):
                self.kept.append(Kept(operation.path, _IN_USE))

    def _remove(self, path: str) -> None:
        fault_point("rollback.removing")
        self._tree.unlink(path)

    def _put_back(self, operation: Operation) -> bool:
        """Move an entry in a slot back to its path; if the path is taken, keep it elsewhere."""
        try:
            self._tree.rename(operation.slot, operation.path, exclusive=True)
        except OSError as error:
            if error.errno not in MISSING | _NOT_EMPTY:
                raise
            is_there = error.errno in _NOT_EMPTY
            self._keep(
                operation,
                "was created again in the meantime and was left alone" if is_there else _REMOVED,
            )
            return False
        fault_point("rollback.returned")
        return True

    def _keep(self, operation: Operation, fact: str) -> None:
        """Keep an entry in a slot under a visible name."""
        directory, _, name = operation.path.rpartition("/")
        while directory and not self._tree.is_directory(directory):
            directory = parent_of(directory)
        for other in (join(directory, each) for each in kept_names(name)):
            with suppress(FileExistsError):
                self._tree.rename(operation.slot, other, exclusive=True)
                fault_point("rollback.kept")
                self.kept.append(Kept(operation.path, fact, other))
                return

    def _find_kept_version(self, path: str) -> str:
        """Return where the other version of a path was kept last; empty if it was not."""
        found = ""
        for name in kept_names(path.rpartition("/")[2]):
            each = join(parent_of(path), name)
            if self._tree.stat(each) is None:
                break
            found = each
        return found

    def _drop_second_name(self, operation: Operation) -> None:
        """Complete a two-step rename (link, unlink) that left an entry with both names."""
        here, there = self._tree.stat(operation.slot), self._tree.stat(operation.path)
        if here and there and (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
            self._remove(operation.slot)

    # --- permissions of directories ---

    def _make_accessible(self, mode: ModeChange) -> None:
        found = self._tree.stat(mode.path)
        if found is not None and stat.S_ISDIR(found.st_mode):
            bits = stat.S_IMODE(found.st_mode)
            if bits & _OWNER_ACCESS != _OWNER_ACCESS and bits in {mode.before, mode.after}:
                self._tree.set_mode(mode.path, bits | _OWNER_ACCESS)

    def _set_final_mode(self, mode: ModeChange) -> None:
        """Give a directory its final permissions if the change made it accessible."""
        found = self._tree.stat(mode.path)
        if mode.after != -1 and found is not None and stat.S_ISDIR(found.st_mode):
            bits = stat.S_IMODE(found.st_mode)
            if bits != mode.after and bits == mode.after | _OWNER_ACCESS:
                self._tree.set_mode(mode.path, mode.after)

    def _complete_mode(self, mode: ModeChange) -> None:
        """Give a directory its new permissions, unless another process has set others."""
        found = self._tree.stat(mode.path)
        if mode.after != -1 and found is not None and stat.S_ISDIR(found.st_mode):
            ours = {mode.before, mode.before | _OWNER_ACCESS, mode.after | _OWNER_ACCESS}
            if stat.S_IMODE(found.st_mode) in ours:
                self._tree.set_mode(mode.path, mode.after)

    def _restore_mode(self, mode: ModeChange) -> None:
        """Give a directory its old permissions, unless another process has set others."""
        found = self._tree.stat(mode.path)
        if found is None or not stat.S_ISDIR(found.st_mode):
            return
        bits = stat.S_IMODE(found.st_mode)
        ours = {mode.before | _OWNER_ACCESS, mode.after, mode.after | _OWNER_ACCESS}
        if mode.before == -1:  # created by the change, and in use
            self._set_final_mode(mode)
        elif bits in ours:
            self._tree.set_mode(mode.path, mode.before)
        elif bits != mode.before:
            self.kept.append(
                Kept(mode.path, "got other permissions in the meantime and keeps them")
            )


def hold_directories(tree: LiveTree, directories: Mapping[str, int]) -> None:
    """Open the directories of an interrupted change; one that was renamed is found by its inode.

    From then on its path means this directory, whatever somebody renames it to.
    """
    for _ in range(_MAX_SEARCHES):
        lost = {
            inode: path for path, inode in directories.items() if not _hold(tree, path, path, inode)
        }
        if not lost or not _search(tree, lost):
            return


def _hold(tree: LiveTree, path: str, place: str, inode: int) -> bool:
    """Use the directory at `place` as the one at `path`, if it is the one with this inode."""
    try:
        opened = tree.root.open_directory(place)
    except OSError:
        return False
    if os.fstat(opened).st_ino != inode:
        os.close(opened)
        return False
    tree.hold(path, opened)
    return True


def _search(tree: LiveTree, lost: Mapping[int, str]) -> bool:
    """Look for directories anywhere; return whether one was found but moved again meanwhile."""
    has_missed = False
    pending = [""]
    while pending:
        path = pending.pop()
        with suppress(OSError):
            opened = tree.root.open_directory(path)
            try:
                with os.scandir(opened) as entries:
                    found = [
                        (each.name, each.inode())
                        for each in entries
                        if each.is_dir(follow_symlinks=False)
                    ]
            finally:
                os.close(opened)
            for name, inode in found:
                place = join(path, name)
                pending.append(place)
                if inode in lost and not _hold(tree, lost[inode], place, inode):
                    has_missed = True
    return has_missed


def kept_names(name: str) -> Iterator[str]:
    """Yield the names under which a version of `name` can be kept beside it."""
    short = os.fsdecode(os.fsencode(name)[:_MAX_NAME_BYTES])
    yield f"{short}.wink-kept"
    for number in count(2):
        yield f"{short}.wink-kept-{number}"
