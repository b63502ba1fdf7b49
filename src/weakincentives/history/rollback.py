"""Rollback in a directory that a person may be editing: of changes and of savepoints. Idempotent.

What to do follows from the disk alone: which of the two versions is at the path, and which in
its slot. So it does not matter how far the change got, or an earlier rollback that was
killed. A path is rolled back only if it has exactly what the change put there; later saves are
left alone. A file is deleted only if it is exactly one of the two versions and has no writer;
everything else is kept under a visible name.
"""

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

from weakincentives.history.entries import (
    MISSING,
    EntryState,
    LiveTree,
    Place,
    describe,
    has_writer_at,
    kind_of,
    matches,
    read_attributes,
    resembles,
    user_attributes,
)
from weakincentives.history.moves import find_differences
from weakincentives.history.records import Action, ChangeRecord, ModeChange, PathOperation, Phase
from weakincentives.history.slots import finish_swap, give_back, keep, kept_names, swap
from weakincentives.posix import OpenDescriptor, display_path, fault_point, join, parent_of

T = TypeVar("T")

_OWNER_ACCESS = 0o700
_MAX_SEARCHES = 3  # for a directory that somebody has renamed
_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_PROBE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_INVERSES: dict[Action, Action] = {
    "create": "remove",
    "remove": "create",
    "make directory": "remove directory",
    "remove directory": "make directory",
}
_SAVED = "was saved in the meantime and was left alone"
_REMOVED = "was removed in the meantime and was not restored"
_CREATED = "was created again in the meantime and was left alone"
_CARRIED = "was changed in the meantime, and went back with its directory"
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
    """Rolls back, completes or finishes operations."""

    def __init__(self, tree: LiveTree, area: str, probe: str = ".gitignore") -> None:
        """Work in `tree`; `area` has the slots, and `probe` is a file in it that nobody writes."""
        self.tree = tree
        self._probe = f"{area}/{probe}"
        self._stored: Mapping[str, EntryState] = MappingProxyType({})
        self._completes = False
        self.ours: Mapping[str, Collection[EntryState]] = MappingProxyType({})
        """All that was put at a path, by path, where that is more than the last version."""
        self.inodes: Mapping[str, tuple[int, int]] = MappingProxyType({})
        """The inodes of the new and the old version by slot, where one is known; the other is 0."""
        self.on_exchange: Callable[[int], None] = lambda _: None
        """Called with the inode of an old version before it is exchanged back."""
        self.undone: list[str] = []
        """The paths that were rolled back."""
        self.kept: list[Kept] = []
        """What was left alone, and where the other versions are."""
        self.failures: list[OSError] = []
        """Errors; with any of them the record must stay."""

    def run(
        self,
        record: ChangeRecord,
        phase: Phase,
        stored: Mapping[str, EntryState] = MappingProxyType({}),
    ) -> None:
        """Roll back, or in phase "done" finish, all operations.

        `stored` says what else than expected was displaced and is stored elsewhere, by path.
        """
        self._stored = stored
        is_done = phase == "done"
        try:
            # nothing is found in an inaccessible directory
            self._for_each(self._make_accessible, record.modes)
            if is_done:
                self._for_each(self._finish, record.operations)
            else:
                self._for_each(self.undo, reversed(record.operations))
        finally:
            modes = sorted(record.modes, key=lambda each: each.path, reverse=True)
            self._for_each(self._set_final_mode if is_done else self.restore_mode, modes)
        self.kept = list({each.path: each for each in reversed(self.kept)}.values())[::-1]

    def complete(self, record: ChangeRecord) -> None:
        """Carry out what an interrupted change has left to do, where nobody has saved since.

        That is to roll back its inverse; the new version of a path that somebody has saved is
        in the store, so it is not kept beside it.
        """
        self._completes = True
        self._for_each(self._make_accessible, record.modes)
        self._for_each(lambda each: self.undo(_invert(each)), record.operations)
        self._for_each(self._complete_mode, reversed(record.modes))
        self._completes = False

    def is_written(self, path: str) -> bool:
        """Return whether a process is known to have `path` open for writing."""
        return has_writer_at(self.tree.open_parent(path)) is True and self._has_leases

    @cached_property
    def _has_leases(self) -> bool:
        """Whether leases tell writers: some file systems grant none at all."""
        with suppress(OSError):
            parent, name = self.tree.open_parent(self._probe)
            os.close(os.open(name, _PROBE_FLAGS, 0o600, dir_fd=parent))
            return has_writer_at((parent, name)) is False
        return False

    def give_back(self, operation: PathOperation, placed: EntryState) -> bool:
        """Return what is in a slot to its path, where `placed` was put in its stead.

        Return False if the path was removed meanwhile.
        """
        try:
            return give_back(*self._places(operation), placed)
        except FileNotFoundError:
            return False

    def _for_each(self, work: Callable[[T], None], items: Iterable[T]) -> None:
        for item in items:
            try:
                work(item)
            except OSError as error:
                self.failures.append(error)

    # --- operations ---

    def undo(self, operation: PathOperation) -> None:
        """Roll back one operation, however far it got."""
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
            case "move directory":
                self._undo_move_directory(operation)
        fault_point("rollback.undone")

    def _undo_replace(self, operation: PathOperation) -> None:
        tree, path, slot = self.tree, operation.path, operation.slot
        self.finish_swap(operation)
        here, there = tree.stat(slot), tree.stat(path)
        if here is None:
            is_known = slot in self.inodes or there is None
            if not is_known and not matches(tree, path, operation.before):
                # handled by an earlier rollback that could not report it
                self.kept.append(Kept(path, _SAVED, self._find_kept_version(path)))
        elif self._is_new(operation, here.st_ino):
            self._discard(operation)
        elif there is None:
            self.keep(operation, _REMOVED)
        elif self._is_half_kept(operation, here.st_ino, there.st_ino):
            self._give_back_or_keep(operation, describe(tree, path))
        elif self._resembles(there, operation):
            self._exchange_back(operation, here.st_ino)
        else:
            self.keep(operation, _SAVED)

    def _exchange_back(self, operation: PathOperation, inode: int) -> None:
        """Restore the old version if what comes out is what the change put there."""
        old = describe(self.tree, operation.slot)
        self.on_exchange(inode)
        try:
            swap(*self._places(operation))
        except FileNotFoundError:
            self.keep(operation, _REMOVED)
            return
        fault_point("rollback.exchanged")
        if self._is_ours(operation):
            self._remove(operation.slot)
            self.undone.append(operation.path)
            return
        self._give_back_or_keep(operation, old)

    def _give_back_or_keep(self, operation: PathOperation, placed: EntryState) -> None:
        fact = _SAVED if self.give_back(operation, placed) else _REMOVED
        self.keep(operation, fact)

    def _is_new(self, operation: PathOperation, inode: int) -> bool:
        """Return whether a slot has the new version: not exchanged yet, or exchanged back."""
        known = self.inodes.get(operation.slot, (0, 0))
        if known[0]:
            return inode == known[0]
        return inode != known[1] and self._matches(operation)

    def _is_half_kept(self, operation: PathOperation, here: int, there: int) -> bool:
        """Return whether a killed rollback has moved a save away without returning it."""
        known = self.inodes.get(operation.slot)
        if known is not None:
            return here != known[1] and there == known[1]
        tree = self.tree
        return not matches(tree, operation.slot, operation.before) and matches(
            tree, operation.path, operation.before
        )

    def finish_swap(self, operation: PathOperation) -> None:
        """Finish or undo an exchange that was interrupted half-way."""
        try:
            name = finish_swap(*self._places(operation))
        except OSError as error:
            if error.errno not in MISSING:
                raise
            return
        if name:
            where = join(parent_of(operation.path), name)
            self.kept.append(Kept(operation.path, _SAVED, where))

    def _undo_create(self, operation: PathOperation) -> None:
        tree, path, slot = self.tree, operation.path, operation.slot
        self._drop_second_name(operation)
        if tree.stat(slot) is not None:
            if self._matches(operation):
                self._discard(operation)
            elif self._put_back(operation):
                self.kept.append(Kept(path, _SAVED))
            return
        there = tree.stat(path)
        if there is None:
            return
        if self._resembles(there, operation):
            tree.rename(path, slot)
            fault_point("rollback.renamed")
            if self._is_ours(operation):
                self._remove(slot)
                self.undone.append(path)
                return
            if not self._put_back(operation):
                return
        self.kept.append(Kept(path, _SAVED))

    def _undo_remove(self, operation: PathOperation) -> None:
        self._drop_second_name(operation)
        if self.tree.stat(operation.slot) is not None and self._put_back(operation):
            self.undone.append(operation.path)

    def _undo_make_directory(self, operation: PathOperation) -> None:
        if self.tree.stat(operation.slot) is not None:
            self._drop_directory(operation)
        else:
            self.undo_mkdir(operation.path)

    def undo_mkdir(self, path: str, inode: int = 0) -> None:
        """Remove a directory if it is empty, and has this inode; 0 stands for any."""
        if self.tree.is_directory(path) and self._has_inode(path, inode):
            if self._remove_directory(path):
                self.undone.append(path)
            else:
                self.kept.append(Kept(path, _IN_USE))

    def undo_move(self, path: str, moved: str, inode: int) -> None:
        """Move an entry back to `path`, if it is still the one that was moved.

        An inode of 0 stands for any.
        """
        tree = self.tree
        if self._has_inode(moved, inode):
            try:
                tree.rename(moved, path, exclusive=True)
            except OSError as error:
                if error.errno not in MISSING | _NOT_EMPTY:
                    raise
                fact = _CREATED if error.errno in _NOT_EMPTY else _REMOVED
                self.kept.append(Kept(path, fact, moved))
                return
            fault_point("rollback.returned")
        if self._has_inode(path, inode):
            return
        is_there = tree.stat(moved) is not None
        if not is_there and tree.stat(path) is not None:
            # somebody has put something else in its place just before it was moved back
            with suppress(FileExistsError):
                tree.rename(path, moved, exclusive=True)
                is_there = True
        if is_there:
            self.kept.append(Kept(moved, _SAVED))

    def _has_inode(self, path: str, inode: int) -> bool:
        found = self.tree.stat(path)
        return found is not None and inode in {0, found.st_ino}

    def _undo_remove_directory(self, operation: PathOperation) -> None:
        if self.tree.stat(operation.slot) is None:
            return
        try:
            self.tree.rename(operation.slot, operation.path, exclusive=True)
            self.undone.append(operation.path)
        except OSError as error:
            if error.errno not in MISSING | _NOT_EMPTY:
                raise
            self.kept.append(
                Kept(operation.path, "was replaced in the meantime and was left alone")
            )
            self._drop_directory(operation)

    def _undo_move_directory(self, operation: PathOperation) -> None:
        """Give a directory its old name; if nothing is there, whatever has its new name."""
        old, new = operation.slot, operation.path
        was_moved = self.tree.stat(new) is not None
        self.undo_move(old, new, 0 if self.tree.stat(old) is None else operation.inode)
        if was_moved and self.tree.stat(new) is None:
            self.undone += [old, new]
            for name in find_differences(self.tree, old, operation.inside):
                self.kept.append(Kept(f"{old}/{name}".rstrip("/"), _CARRIED))

    def _finish(self, operation: PathOperation) -> None:
        """Remove what was displaced, unless a process has written to it since."""
        if operation.action in {"make directory", "move directory"}:
            return
        if operation.action == "remove directory":
            self._drop_directory(operation)
            return
        self.finish_swap(operation)
        self._drop_second_name(operation)
        if self.tree.stat(operation.slot) is None:
            return
        if self._is_ours(operation, self._stored.get(operation.path, operation.before)):
            self._remove(operation.slot)
        else:
            self.keep(operation, "was written to while it was replaced")

    # --- steps ---

    def _places(self, operation: PathOperation) -> tuple[Place, Place]:
        """Return the slot and the path of an operation."""
        return self.tree.open_parent(operation.slot), self.tree.open_parent(operation.path)

    def _versions(self, operation: PathOperation) -> Collection[EntryState]:
        return self.ours.get(operation.path) or (operation.after,)

    def _resembles(self, found: os.stat_result, operation: PathOperation) -> bool:
        return any(resembles(found, each) for each in self._versions(operation))

    def _matches(self, operation: PathOperation) -> bool:
        """Return whether the entry in a slot is what was put at the path."""
        return self._is_one_of(operation, self._versions(operation))

    def _is_one_of(self, operation: PathOperation, versions: Collection[EntryState]) -> bool:
        is_same = any(matches(self.tree, operation.slot, each) for each in versions)
        return is_same and self._has_attributes(operation)

    def _has_attributes(self, operation: PathOperation) -> bool:
        """Return whether a file in a slot has the user's attributes that it was given.

        They are not lost with this name if the file has another one.
        """
        found = self.tree.stat(operation.slot)
        if found is None or not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            return True
        return self.read_attributes(operation.slot) == operation.attributes

    def read_attributes(self, path: str) -> dict[str, bytes]:
        """Return the extended attributes of a file that people and their programs set."""
        return user_attributes(read_attributes(self.tree, path))

    def _is_ours(self, operation: PathOperation, facts: EntryState | None = None) -> bool:
        """Return whether the entry in a slot is exactly as expected and has no writer."""
        found = self.tree.stat(operation.slot)
        is_file = found is not None and stat.S_ISREG(found.st_mode)
        if is_file and self.is_written(operation.slot):
            return False
        versions = self._versions(operation) if facts is None else (facts,)
        is_same = self._is_one_of(operation, versions)
        # again, since it may have been opened just when it was taken away
        return is_same and not (is_file and self.is_written(operation.slot))

    def _discard(self, operation: PathOperation) -> None:
        """Remove a new version in its slot, unless it has a writer."""
        if operation.after.kind == "file" and self.is_written(operation.slot):
            self.keep(operation, "is being written to by another program")
        else:
            self._remove(operation.slot)

    def _drop_directory(self, operation: PathOperation) -> None:
        """Remove a directory in its slot, unless somebody has put something into it."""
        try:
            self.tree.rmdir(operation.slot)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in _NOT_EMPTY:
                raise
            if self._put_back(operation):
                self.kept.append(Kept(operation.path, _IN_USE))

    def _remove_directory(self, path: str) -> bool:
        """Remove a directory if it is empty, except for leftovers of dead processes."""
        for _ in range(2):
            try:
                self.tree.rmdir(path)
            except OSError as error:
                if error.errno not in _NOT_EMPTY:
                    raise
            else:
                return True
            self.tree.remove_leftovers(path)
        return False

    def _remove(self, path: str) -> None:
        fault_point("rollback.removing")
        self.tree.unlink(path)

    def _put_back(self, operation: PathOperation) -> bool:
        """Move an entry in a slot back to its path; if the path is taken, keep it elsewhere."""
        try:
            self.tree.rename(operation.slot, operation.path, exclusive=True)
        except OSError as error:
            if error.errno not in MISSING | _NOT_EMPTY:
                raise
            self.keep(operation, _CREATED if error.errno in _NOT_EMPTY else _REMOVED)
            return False
        fault_point("rollback.returned")
        return True

    def keep(self, operation: PathOperation, fact: str) -> None:
        """Keep an entry in a slot under a visible name."""
        if self._completes and self._is_stored(operation):
            self._remove(operation.slot)
            self.kept.append(Kept(operation.path, fact))
            return
        directory, _, name = operation.path.rpartition("/")
        while directory and not self.tree.is_directory(directory):
            directory = parent_of(directory)
        slot = self.tree.open_parent(operation.slot)
        where = keep(slot, self.tree.open_parent(join(directory, name)))
        self.kept.append(Kept(operation.path, fact, join(directory, where)))

    def _is_stored(self, operation: PathOperation) -> bool:
        """Return whether a slot has the version of an inverse operation that is in the store."""
        is_entry = operation.before.kind in {"file", "symlink"}
        is_same = is_entry and matches(self.tree, operation.slot, operation.before)
        return is_same and not self.is_written(operation.slot)

    def _find_kept_version(self, path: str) -> str:
        """Return where the other version of a path was kept last; empty if it was not."""
        found = ""
        for name in kept_names(path.rpartition("/")[2]):
            each = join(parent_of(path), name)
            if self.tree.stat(each) is None:
                break
            found = each
        return found

    def _drop_second_name(self, operation: PathOperation) -> None:
        """Complete a two-step rename (link, unlink) that left an entry with both names."""
        here, there = self.tree.stat(operation.slot), self.tree.stat(operation.path)
        if here and there and (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
            self._remove(operation.slot)

    # --- permissions of directories ---

    def _find_mode(self, mode: ModeChange) -> int:
        found = self.tree.stat(mode.path)
        if found is None or kind_of(found) != mode.kind:
            return -1
        return stat.S_IMODE(found.st_mode)

    def _make_accessible(self, mode: ModeChange) -> None:
        bits = self._find_mode(mode)
        if bits & _OWNER_ACCESS != _OWNER_ACCESS and bits in {mode.before, mode.after}:
            self.tree.set_mode(mode.path, bits | _OWNER_ACCESS)

    def _set_final_mode(self, mode: ModeChange) -> None:
        """Give a directory its final permissions if the change made it accessible."""
        if mode.after != -1 and self._find_mode(mode) == mode.after | _OWNER_ACCESS:
            self.tree.set_mode(mode.path, mode.after)

    def _complete_mode(self, mode: ModeChange) -> None:
        """Give a directory its new permissions, unless another process has set others."""
        ours = {mode.before, mode.before | _OWNER_ACCESS, mode.after | _OWNER_ACCESS}
        if mode.after != -1 and self._find_mode(mode) in ours - {-1}:
            self.tree.set_mode(mode.path, mode.after)

    def restore_mode(self, mode: ModeChange, *, exact: bool = False) -> None:
        """Give an entry its old permissions, unless another process has set others.

        Unless `exact`, the change may have made it accessible to its owner.
        """
        if mode.before == -1:  # created by the change, and in use
            self._set_final_mode(mode)
            return
        ours = {mode.after}
        if not exact:
            ours |= {mode.before | _OWNER_ACCESS, mode.after | _OWNER_ACCESS}
        bits = self._find_mode(mode)
        if bits in ours - {-1}:
            self.tree.set_mode(mode.path, mode.before)
        elif bits not in {-1, mode.before}:
            fact = "got other permissions in the meantime and keeps them"
            self.kept.append(Kept(mode.path, fact))


def _invert(operation: PathOperation) -> PathOperation:
    """Return the operation whose rollback is to carry out this one."""
    action = _INVERSES.get(operation.action, operation.action)
    return replace(operation, action=action, before=operation.after, after=operation.before)


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
            with OpenDescriptor(opened), os.scandir(opened) as entries:
                listed = [each for each in entries if each.is_dir(follow_symlinks=False)]
                found = [(each.name, each.inode()) for each in listed]
            for name, inode in found:
                place = join(path, name)
                pending.append(place)
                if inode in lost and not _hold(tree, lost[inode], place, inode):
                    has_missed = True
    return has_missed
