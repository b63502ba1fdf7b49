"""Changes brought into the original: all of them or none, whatever a person does meanwhile.

Everything new is made first, under hidden names. Then each path is exchanged with what was
made for it in one atomic step, and what comes out is compared with what was expected:
nothing is replaced that has not been compared. What was replaced is kept until the end.
"""

import errno
import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from weakincentives.contrib.review.conflicts import (
    ConflictError,
    Kept,
    Step,
    conflict_of,
    is_directory,
)
from weakincentives.contrib.review.entries import (
    MISSING,
    Facts,
    Place,
    Tree,
    attributes_of,
    facts_of,
    matches,
    resembles,
    set_attributes,
    write_sparse,
)
from weakincentives.contrib.review.records import (
    Kind,
    Ledger,
    Mode,
    Operation,
    Record,
    hidden_path,
    new_maker,
)
from weakincentives.contrib.review.recovery import finish, roll_back
from weakincentives.contrib.review.rollback import Rollback
from weakincentives.contrib.review.views import OriginalFilesystem
from weakincentives.filesystem.diff import Side
from weakincentives.filesystem.host import Identity, identity_of
from weakincentives.posix import fault_point, parent_of, temporary_name

Attributes: TypeAlias = Mapping[str, Mapping[str, bytes]]
"""The extended attributes of files, by path."""
_log = logging.getLogger(__name__)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = 0o700
_SMALL = 64 * 1024  # a file up to this size is always read again


class Transaction:
    """Steps on their way into the original, and back if they cannot be completed."""

    def __init__(
        self,
        original: OriginalFilesystem,
        steps: Sequence[Step],
        sides: tuple[Side, Side],
        *,
        kind: Kind,
        place: Path,
        number: int,
        attributes: Attributes = MappingProxyType({}),
    ) -> None:
        """Prepare `steps`, which lead from one of the `sides` to the other.

        `kind`, `place` and `number` say for which copy it is, and which of its applications;
        `attributes` are the extended attributes of files that come back.
        """
        self._tree = Tree(original.directory)
        self._seen = original.seen
        self._source = sides[1]
        self._steps = {step.path: step for step in steps}
        self._maker = new_maker()
        planned = _Plan(self._tree, steps, sides, self._maker)
        self.record: Record = Record(
            kind,
            str(place),
            number,
            operations=tuple(planned.operations),
            modes=tuple(planned.modes),
            directories=planned.directories,
        )
        self._set_aside: dict[str, Identity] = {}
        self._attributes: dict[str, dict[str, bytes]] = {}
        self._given = attributes
        self._renamed = {
            (each.before.blob, each.before.size): each.path
            for each in self.record.operations
            if each.action == "remove" and each.before.size
        }

    def run(self, settle: Callable[[bool], None]) -> tuple[Kept, ...]:
        """Do all of it or nothing; return what turned up at the end and was kept.

        `settle` is called with whether it was done, before the record of it goes.

        Raises:
            ConflictError: Somebody has changed a path meanwhile; all was rolled back, but
                for what they have saved.
        """
        try:
            ledger = Ledger.create(self._tree, self._maker, self.record)
        except BaseException:
            with suppress(OSError):
                settle(False)
            raise
        try:
            self._stage()
            ledger.enter("changing")
            self._change()
            self._check_set_aside(Rollback(self._tree, self.record, ledger.name))
            self._sync()
            self._close()  # last: nothing can be looked at in a closed directory
            ledger.enter("done")
        except BaseException as error:
            self._roll_back(error, ledger, settle)
            raise
        return tuple(finish(self._tree, ledger, settle, self._set_aside).kept)

    def _roll_back(
        self, error: BaseException, ledger: Ledger, settle: Callable[[bool], None]
    ) -> None:
        """Roll back, and add to the error what was left."""
        ledger.look_again()
        if ledger.phase == "done":  # the disk failed us after the last step
            ledger.enter("changing")
        rollback = roll_back(self._tree, ledger, settle)
        if isinstance(error, ConflictError):
            error.kept = tuple(rollback.kept)
        else:
            for each in rollback.kept:
                error.add_note(str(each))
        for each in rollback.failures:
            error.add_note(f"Not all could be rolled back yet: {each}")

    # --- making ---

    def _stage(self) -> None:
        """Make everything new under hidden names, and open directories that are closed."""
        for mode in self.record.modes:
            if mode.before != -1 and mode.before & _OPEN != _OPEN:
                self._change_mode(mode.path, mode.before, mode.before | _OPEN)
        self._each(self._make)
        fault_point("apply.staged")

    def _make(self, operation: Operation) -> None:
        if operation.action in {"create", "replace"}:
            self._make_entry(operation)
        elif operation.action == "make directory":
            self._tree.mkdir(operation.hidden, _OPEN)
            self._tree.set_mode(operation.hidden, operation.after.mode | _OPEN)

    def _make_entry(self, operation: Operation) -> None:
        temporary = temporary_name()
        parent, name = self._tree.place(operation.hidden)
        try:
            if operation.after.kind == "symlink":
                os.symlink(operation.after.target, temporary, dir_fd=parent)
            else:
                self._write(operation, (parent, temporary))
            fault_point("apply.written")
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=parent)
            raise

    def _write(self, operation: Operation, place: Place) -> None:
        target = os.open(place[1], _NEW_FILE, 0o600, dir_fd=place[0])
        try:
            with self._source.open(operation.path) as content:
                write_sparse(target, content)
            self._dress(operation, target)
            os.fchmod(target, operation.after.mode)
            os.fsync(target)
        finally:
            os.close(target)

    def _dress(self, operation: Operation, target: int) -> None:
        """Give a new file what the file has that it replaces: owner and extended attributes."""
        if operation.before.kind == "file":
            old = self._tree.stat(operation.path)
            if old is not None and (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(PermissionError):
                    os.fchown(target, old.st_uid, old.st_gid)
            attributes = attributes_of(self._tree, operation.path)
            self._attributes[operation.path] = attributes
        else:
            attributes = self._given.get(operation.path) or self._renamed_attributes(operation)
        set_attributes(target, attributes)

    def _renamed_attributes(self, operation: Operation) -> dict[str, bytes]:
        """Return what a file has that was renamed: it is removed with the same content."""
        source = self._renamed.get((operation.after.blob, operation.after.size))
        return {} if source is None else attributes_of(self._tree, source)

    # --- changing ---

    def _change(self) -> None:
        """Bring every path from the old state to the new one."""
        self._each(self._do)
        fault_point("apply.changed")

    def _each(self, work: Callable[[Operation], None]) -> None:
        """Do something for each operation; what is missing or in the way is a conflict."""
        for operation in self.record.operations:
            self._tree.look_again()
            try:
                work(operation)
            except OSError as error:
                if error.errno in MISSING or isinstance(error, FileExistsError):
                    raise self._meanwhile(operation.path) from error
                raise

    def _close(self) -> None:
        """Give directories the permissions that are wanted, or that they had."""
        for mode in sorted(self.record.modes, key=lambda each: each.path, reverse=True):
            if mode.after != -1:
                now = mode.before if mode.before != -1 else mode.after
                is_opened = mode.before == -1 or mode.before & _OPEN != _OPEN
                self._change_mode(mode.path, now | _OPEN if is_opened else now, mode.after)

    def _do(self, operation: Operation) -> None:
        tree, path, hidden = self._tree, operation.path, operation.hidden
        match operation.action:
            case "replace":
                self._check_before(operation)
                tree.exchange(hidden, path)
                fault_point("apply.exchanged")
                self._check_replaced(operation)
            case "remove":
                self._check_before(operation)
                tree.rename(path, hidden)
                fault_point("apply.removed")
                self._check_replaced(operation)
            case "create" | "make directory":
                tree.rename(hidden, path, exclusive=True)
                fault_point("apply.created")
            case "remove directory":
                self._remove_directory(path)
                fault_point("apply.removed")

    def _remove_directory(self, path: str) -> None:
        """Remove a directory that is empty but for leftovers of processes that are gone."""
        self._tree.sweep(path)
        try:
            self._tree.rmdir(path)
        except OSError as error:
            if next(self._tree.names(path), None) is None:
                raise
            raise self._meanwhile(path) from error

    def _change_mode(self, path: str, now: int, wanted: int) -> None:
        """Set the permissions of a directory that still has those that are expected."""
        if now == wanted:
            return
        found = self._tree.stat(path)
        if found is None or not resembles(found, Facts("directory", now)):
            raise self._meanwhile(path)
        self._tree.set_mode(path, wanted)
        fault_point("apply.mode")

    # --- comparing ---

    def _check_before(self, operation: Operation) -> None:
        """Raise ConflictError if it can be seen that a path is not what it was."""
        found = self._tree.stat(operation.path)
        seen = self._seen.get(operation.path)
        if found is None or not resembles(found, operation.before):
            raise self._meanwhile(operation.path)
        if seen is not None and identity_of(found) != seen:
            del self._seen[operation.path]  # to be read again

    def _check_replaced(self, operation: Operation) -> None:
        """Raise ConflictError unless what was taken out is exactly what was expected."""
        found = self._tree.stat(operation.hidden)
        if found is None or not self._is_as_compared(operation, found):
            raise self._meanwhile(operation.path)
        attributes = self._attributes.get(operation.path)
        if attributes is not None and attributes_of(self._tree, operation.hidden) != attributes:
            raise self._meanwhile(operation.path)
        self._set_aside[operation.hidden] = identity_of(found)

    def _is_as_compared(self, operation: Operation, found: os.stat_result) -> bool:
        """Return whether it is what was compared; it is read again unless its times tell."""
        seen = self._seen.get(operation.path)
        now = identity_of(found)
        # the time of the change of its inode, the last but one, is that of the exchange
        if seen is not None and found.st_size > _SMALL and now[:4] == seen[:4]:
            return resembles(found, operation.before)
        return matches(self._tree, operation.hidden, operation.before)

    def _check_set_aside(self, rollback: Rollback) -> None:
        """Raise ConflictError if somebody writes, or has written, to what was replaced."""
        for operation in self.record.operations:
            before = self._set_aside.get(operation.hidden)
            if before is None or operation.before.kind != "file":
                continue
            self._tree.look_again()
            if rollback.is_written(operation.hidden):
                raise self._meanwhile(operation.path, "being written to by another program")
            found = self._tree.stat(operation.hidden)
            if found is None or not self._is_unchanged(operation, found, before):
                raise self._meanwhile(operation.path)
        fault_point("apply.checked")

    def _is_unchanged(self, operation: Operation, found: os.stat_result, before: Identity) -> bool:
        if operation.path in self._seen and found.st_size > _SMALL and identity_of(found) == before:
            return True
        return matches(self._tree, operation.hidden, operation.before)

    def _meanwhile(self, path: str, fact: str = "changed at this moment") -> ConflictError:
        step = self._steps.get(path)
        if step is None:  # a directory on the way
            step = next(each for each in self._steps.values() if each.path.startswith(f"{path}/"))
        return ConflictError([conflict_of(step.change, fact)])

    def _sync(self) -> None:
        paths = {parent_of(each.path) for each in self.record.operations}
        paths |= {parent_of(each.hidden) for each in self.record.operations}
        for path in sorted(paths):
            if self._tree.is_directory(path):
                self._tree.sync(path)


class _Plan:
    """Steps as operations in an order in which they can be done."""

    def __init__(
        self, tree: Tree, steps: Sequence[Step], sides: tuple[Side, Side], maker: str
    ) -> None:
        self._tree = tree
        self._sides = sides
        self._maker = maker
        self._moving = {
            step.path for step in steps if is_directory(step.now) != is_directory(step.wanted)
        }
        self._can_exchange = any(map(_is_replaced, steps)) and _can_exchange(tree)
        self.operations: list[Operation] = []
        changed = [step for step in steps if not _is_kept(step)]
        for step in reversed(changed):  # what is in a directory goes before it
            if step.now is not None and not self._is_exchanged(step):
                self._add_removal(step)
        for step in changed:
            if step.wanted is not None:
                self._add_new(step)
        self._known_modes = {
            step.path: step.now.permissions for step in steps if is_directory(step.now)
        }
        self.modes = sorted(self._find_modes(steps), key=lambda each: each.path)
        self.directories = self._find_directories()

    def _is_exchanged(self, step: Step) -> bool:
        return self._can_exchange and _is_replaced(step)

    def _add_removal(self, step: Step) -> None:
        assert step.now is not None
        if step.now.is_directory:
            found = self._stat(step.path)
            owner = (-1, -1) if found is None else (found.st_uid, found.st_gid)
            before = Facts("directory", step.now.permissions, owner=owner)
            self._add(Operation("remove directory", step.path, "", before, Facts()))
        else:
            self._add(Operation("remove", step.path, "", self._before(step), Facts()))

    def _add_new(self, step: Step) -> None:
        assert step.wanted is not None
        after = facts_of(step.wanted, self._sides[1])
        if step.wanted.is_directory:
            self._add(Operation("make directory", step.path, "", Facts(), after))
        elif self._is_exchanged(step):
            self._add(Operation("replace", step.path, "", self._before(step), after))
        else:
            self._add(Operation("create", step.path, "", self._before(step), after))

    def _add(self, operation: Operation) -> None:
        directory = parent_of(operation.path)
        while directory in self._moving:  # hidden names must outlive the directory
            directory = parent_of(directory)
        hidden = hidden_path(directory, self._maker, len(self.operations))
        self.operations.append(replace(operation, hidden=hidden))

    def _before(self, step: Step) -> Facts:
        if step.now is None or step.now.is_directory:
            return Facts()
        return facts_of(step.change.before, self._sides[0])

    def _find_modes(self, steps: Sequence[Step]) -> Iterator[Mode]:
        """Yield the directories whose permissions change, be it for the time it takes."""
        wanted = {step.path: step.wanted for step in steps}
        now = {step.path: step.now for step in steps if is_directory(step.now)}
        places = (parent_of(path) for each in self.operations for path in (each.path, each.hidden))
        for path in {*places, *now} - {""}:
            before = self._directory_mode(path)
            goal = wanted[path] if path in now else None
            after = before if path not in now else goal.permissions if is_directory(goal) else -1
            if before != -1 and (before != after or before & _OPEN != _OPEN):
                yield Mode(path, before, after)
        for path, goal in wanted.items():
            if is_directory(goal) and path not in now:
                yield Mode(path, -1, goal.permissions)

    def _find_directories(self) -> dict[str, tuple[int, int]]:
        paths = {parent_of(each.hidden) for each in self.operations} - {""}
        found = {path: self._stat(path) for path in paths}
        return {path: (each.st_dev, each.st_ino) for path, each in found.items() if each}

    def _stat(self, path: str) -> os.stat_result | None:
        """Return what is at `path`, or None: also where a closed directory hides it."""
        try:
            return self._tree.stat(path)
        except PermissionError:
            return None

    def _directory_mode(self, path: str) -> int:
        if path in self._known_modes:  # compared just now, also below closed directories
            return self._known_modes[path]
        found = self._stat(path)
        is_there = found is not None and stat.S_ISDIR(found.st_mode)
        return stat.S_IMODE(found.st_mode) if found is not None and is_there else -1


def lost_attributes(
    original: OriginalFilesystem, steps: Sequence[Step]
) -> dict[str, dict[str, bytes]]:
    """Return the extended attributes of files that go, so that they can come back."""
    tree = Tree(original.directory)
    going = [
        step.path
        for step in steps
        if step.now is not None and step.now.is_file and not (step.wanted and step.wanted.is_file)
    ]
    found = {path: attributes_of(tree, path) for path in going}
    return {path: attributes for path, attributes in found.items() if attributes}


def _is_kept(step: Step) -> bool:
    """Return whether a directory stays, and gets other permissions."""
    return is_directory(step.now) and is_directory(step.wanted)


def _is_replaced(step: Step) -> bool:
    """Return whether a file or link takes the place of another."""
    if step.now is None or step.wanted is None:
        return False
    return not (step.now.is_directory or step.wanted.is_directory)


def _can_exchange(tree: Tree) -> bool:
    """Return whether the file system exchanges two names in one step, by trying it."""
    names = temporary_name(), temporary_name()
    try:
        for name in names:
            root, _ = tree.place(name)
            os.close(os.open(name, _NEW_FILE, 0o600, dir_fd=root))
        tree.exchange(*names)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:
            raise
        return False
    finally:
        for name in names:
            with suppress(OSError):
                tree.unlink(name)
    return True
