"""Apply as one transaction: all changes reach the original or none, despite concurrent edits.

New files are staged under hidden names. Then each path is atomically exchanged with its staged
file (RENAME_EXCHANGE), and the file that comes out is compared with the expected one. So nothing
is replaced without a comparison, and there is no TOCTOU gap. Replaced files are kept until the
end of the transaction.
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
    create_conflict,
    is_directory,
)
from weakincentives.contrib.review.records import (
    ApplyJournal,
    Ending,
    JournalRecord,
    ModeChange,
    Operation,
    TransactionKind,
    hidden_path,
    new_owner,
)
from weakincentives.contrib.review.recovery import finish_apply, roll_back_apply
from weakincentives.contrib.review.rollback import Rollback
from weakincentives.contrib.review.views import OriginalFilesystem
from weakincentives.filesystem import FileStat
from weakincentives.filesystem.diff import Side
from weakincentives.filesystem.host import Identity, identity_of
from weakincentives.history.entries import (
    MISSING,
    EntryState,
    LiveTree,
    Place,
    matches,
    read_attributes,
    resembles,
    set_attributes,
    write_sparse,
)
from weakincentives.posix import fault_point, parent_of, temporary_name

Attributes: TypeAlias = Mapping[str, Mapping[str, bytes]]
"""Extended attributes of files, by path."""
_log = logging.getLogger(__name__)
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER_ACCESS = 0o700
_ALWAYS_READ_BYTES = 64 * 1024  # files up to this size are always read again


class Transaction:
    """One apply or undo: executes its steps, or rolls them back if they cannot complete."""

    def __init__(
        self,
        original: OriginalFilesystem,
        steps: Sequence[Step],
        sides: tuple[Side, Side],
        *,
        kind: TransactionKind,
        place: Path,
        number: int,
        attributes: Attributes = MappingProxyType({}),
    ) -> None:
        """Prepare `steps`, which lead from the first of the `sides` to the second.

        `place` and `number` identify the copy and its apply; `attributes` are the extended
        attributes of files that are created again.
        """
        self._tree = LiveTree(original.directory)
        self._seen = original.seen
        self._source = sides[1]
        self._steps = {step.path: step for step in steps}
        self._owner = new_owner()
        operation_list = _OperationList(self._tree, steps, sides, self._owner)
        self.record: JournalRecord = JournalRecord(
            kind,
            str(place),
            number,
            operations=tuple(operation_list.operations),
            modes=tuple(operation_list.modes),
            directories=operation_list.directories,
        )
        self._replaced: dict[str, Identity] = {}
        self._attributes: dict[str, dict[str, bytes]] = {}
        self._given_attributes = attributes
        self._renamed = {
            (each.before.blob, each.before.size): each.path
            for each in self.record.operations
            if each.action == "remove" and each.before.size
        }

    def run(self, on_end: Callable[[Ending], None]) -> tuple[Kept, ...]:
        """Execute everything or nothing; return concurrent changes that were left alone.

        `on_end` is called before the journal is removed.

        Raises:
            ConflictError: A path changed during the apply; everything was rolled back except
                for concurrent saves.
        """
        try:
            journal = ApplyJournal.create(self._tree, self._owner, self.record)
        except BaseException:
            with suppress(OSError):
                on_end("rolled back")
            raise
        try:
            self._stage()
            journal.enter("changing")
            self._change()
            self._check_all_replaced(Rollback(self._tree, self.record, journal.name))
            self._sync()
            self._set_final_modes()  # last: it may make a directory unreadable
            journal.enter("done")
        except BaseException as error:
            self._roll_back(error, journal, on_end)
            raise
        return tuple(finish_apply(self._tree, journal, on_end, self._replaced).kept)

    def _roll_back(
        self, error: BaseException, journal: ApplyJournal, on_end: Callable[[Ending], None]
    ) -> None:
        """Roll back, and add to the error what was left alone."""
        journal.refresh()
        if journal.phase == "done":  # the disk failed after the last step
            journal.enter("changing")
        rollback = roll_back_apply(self._tree, journal, on_end)
        if isinstance(error, ConflictError):
            error.kept = tuple(rollback.kept)
        else:
            for each in rollback.kept:
                error.add_note(str(each))
        for each in rollback.failures:
            error.add_note(f"The rollback is incomplete: {each}")

    # --- staging ---

    def _stage(self) -> None:
        """Create new entries under hidden names, and make directories accessible."""
        for mode in self.record.modes:
            if mode.before != -1 and mode.before & _OWNER_ACCESS != _OWNER_ACCESS:
                self._change_mode(mode.path, mode.before, mode.before | _OWNER_ACCESS)
        self._for_each(self._make)
        fault_point("apply.staged")

    def _make(self, operation: Operation) -> None:
        if operation.action in {"create", "replace"}:
            self._make_entry(operation)
        elif operation.action == "make directory":
            self._tree.mkdir(operation.hidden, _OWNER_ACCESS)
            self._tree.set_mode(operation.hidden, operation.after.mode | _OWNER_ACCESS)

    def _make_entry(self, operation: Operation) -> None:
        temporary = temporary_name()
        parent, name = self._tree.open_parent(operation.hidden)
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
            self._copy_attributes(operation, target)
            os.fchmod(target, operation.after.mode)
            os.fsync(target)
        finally:
            os.close(target)

    def _copy_attributes(self, operation: Operation, target: int) -> None:
        """Copy owner and extended attributes of the replaced file to the new one."""
        if operation.before.kind == "file":
            old = self._tree.stat(operation.path)
            if old is not None and (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(PermissionError):
                    os.fchown(target, old.st_uid, old.st_gid)
            attributes = read_attributes(self._tree, operation.path)
            self._attributes[operation.path] = attributes
        else:
            attributes = self._given_attributes.get(operation.path) or self._renamed_attributes(
                operation
            )
        set_attributes(target, attributes)

    def _renamed_attributes(self, operation: Operation) -> dict[str, bytes]:
        """Return the attributes of a renamed file, found as a removed file with equal content."""
        source = self._renamed.get((operation.after.blob, operation.after.size))
        return {} if source is None else read_attributes(self._tree, source)

    # --- changing ---

    def _change(self) -> None:
        """Change every path to its new state."""
        self._for_each(self._execute)
        fault_point("apply.changed")

    def _for_each(self, work: Callable[[Operation], None]) -> None:
        """Call `work` for each operation; a missing or occupied path is a conflict."""
        for operation in self.record.operations:
            self._tree.refresh()
            try:
                work(operation)
            except OSError as error:
                if error.errno in MISSING or isinstance(error, FileExistsError):
                    raise self._conflict(operation.path) from error
                raise

    def _set_final_modes(self) -> None:
        """Give directories their new permissions, or those they had before."""
        for mode in sorted(self.record.modes, key=lambda each: each.path, reverse=True):
            if mode.after != -1:
                now = mode.before if mode.before != -1 else mode.after
                is_opened = mode.before == -1 or mode.before & _OWNER_ACCESS != _OWNER_ACCESS
                self._change_mode(mode.path, now | _OWNER_ACCESS if is_opened else now, mode.after)

    def _execute(self, operation: Operation) -> None:
        tree, path, hidden = self._tree, operation.path, operation.hidden
        match operation.action:
            case "replace":
                self._check_before(operation)
                tree.exchange(hidden, path)
                fault_point("apply.exchanged")
                self._check_replaced_entry(operation)
            case "remove":
                self._check_before(operation)
                tree.rename(path, hidden)
                fault_point("apply.removed")
                self._check_replaced_entry(operation)
            case "create" | "make directory":
                tree.rename(hidden, path, exclusive=True)
                fault_point("apply.created")
            case "remove directory":
                self._remove_directory(path)
                fault_point("apply.removed")

    def _remove_directory(self, path: str) -> None:
        """Remove a directory that is empty except for leftovers of dead processes."""
        self._tree.remove_leftovers(path)
        try:
            self._tree.rmdir(path)
        except OSError as error:
            if next(self._tree.names(path), None) is None:
                raise
            raise self._conflict(path) from error

    def _change_mode(self, path: str, now: int, wanted: int) -> None:
        """Set the permissions of a directory if they still are `now`."""
        if now == wanted:
            return
        found = self._tree.stat(path)
        if found is None or not resembles(found, EntryState("directory", now)):
            raise self._conflict(path)
        self._tree.set_mode(path, wanted)
        fault_point("apply.mode")

    # --- comparing ---

    def _check_before(self, operation: Operation) -> None:
        """Raise ConflictError if the metadata of a path shows a change."""
        found = self._tree.stat(operation.path)
        seen = self._seen.get(operation.path)
        if found is None or not resembles(found, operation.before):
            raise self._conflict(operation.path)
        if seen is not None and identity_of(found) != seen:
            del self._seen[operation.path]  # forces a comparison of the content

    def _check_replaced_entry(self, operation: Operation) -> None:
        """Raise ConflictError unless the replaced entry is exactly the expected one."""
        found = self._tree.stat(operation.hidden)
        if found is None or not self._is_expected(operation, found):
            raise self._conflict(operation.path)
        attributes = self._attributes.get(operation.path)
        if attributes is not None and read_attributes(self._tree, operation.hidden) != attributes:
            raise self._conflict(operation.path)
        self._replaced[operation.hidden] = identity_of(found)

    def _is_expected(self, operation: Operation, found: os.stat_result) -> bool:
        """Return whether the replaced entry is the expected one.

        A large file is not read if its times are unchanged.
        """
        seen = self._seen.get(operation.path)
        now = identity_of(found)
        # without the ctime, which the exchange itself changed
        if seen is not None and found.st_size > _ALWAYS_READ_BYTES and now[:4] == seen[:4]:
            return resembles(found, operation.before)
        return matches(self._tree, operation.hidden, operation.before)

    def _check_all_replaced(self, rollback: Rollback) -> None:
        """Raise ConflictError if a process writes, or wrote, to a replaced file."""
        for operation in self.record.operations:
            before = self._replaced.get(operation.hidden)
            if before is None or operation.before.kind != "file":
                continue
            self._tree.refresh()
            if rollback.is_written(operation.hidden):
                raise self._conflict(operation.path, "being written to by another program")
            found = self._tree.stat(operation.hidden)
            if found is None or not self._is_unchanged(operation, found, before):
                raise self._conflict(operation.path)
        fault_point("apply.checked")

    def _is_unchanged(self, operation: Operation, found: os.stat_result, before: Identity) -> bool:
        if (
            operation.path in self._seen
            and found.st_size > _ALWAYS_READ_BYTES
            and identity_of(found) == before
        ):
            return True
        return matches(self._tree, operation.hidden, operation.before)

    def _conflict(self, path: str, fact: str = "changed just now") -> ConflictError:
        step = self._steps.get(path)
        if step is None:  # a parent directory
            step = next(each for each in self._steps.values() if each.path.startswith(f"{path}/"))
        return ConflictError([create_conflict(step.change, fact)])

    def _sync(self) -> None:
        paths = {parent_of(each.path) for each in self.record.operations}
        paths |= {parent_of(each.hidden) for each in self.record.operations}
        for path in sorted(paths):
            if self._tree.is_directory(path):
                self._tree.sync(path)


class _OperationList:
    """The steps of a transaction as operations in executable order."""

    def __init__(
        self, tree: LiveTree, steps: Sequence[Step], sides: tuple[Side, Side], owner: str
    ) -> None:
        self._tree = tree
        self._sides = sides
        self._owner = owner
        self._kind_changes = {
            step.path for step in steps if is_directory(step.now) != is_directory(step.wanted)
        }
        self._can_exchange = any(map(_is_replaced, steps)) and _can_exchange(tree)
        self.operations: list[Operation] = []
        changed = [step for step in steps if not _is_kept(step)]
        for step in reversed(changed):  # children are removed before their directory
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
            before = EntryState("directory", step.now.permissions, owner=owner)
            self._add(Operation("remove directory", step.path, "", before, EntryState()))
        else:
            self._add(Operation("remove", step.path, "", self._before(step), EntryState()))

    def _add_new(self, step: Step) -> None:
        assert step.wanted is not None
        after = describe_entry(step.wanted, self._sides[1])
        if step.wanted.is_directory:
            self._add(Operation("make directory", step.path, "", EntryState(), after))
        elif self._is_exchanged(step):
            self._add(Operation("replace", step.path, "", self._before(step), after))
        else:
            self._add(Operation("create", step.path, "", self._before(step), after))

    def _add(self, operation: Operation) -> None:
        directory = parent_of(operation.path)
        while directory in self._kind_changes:  # hidden files must outlive the directory
            directory = parent_of(directory)
        hidden = hidden_path(directory, self._owner, len(self.operations))
        self.operations.append(replace(operation, hidden=hidden))

    def _before(self, step: Step) -> EntryState:
        if step.now is None or step.now.is_directory:
            return EntryState()
        return describe_entry(step.change.before, self._sides[0])

    def _find_modes(self, steps: Sequence[Step]) -> Iterator[ModeChange]:
        """Yield the directories whose permissions change, even if only temporarily."""
        wanted = {step.path: step.wanted for step in steps}
        now = {step.path: step.now for step in steps if is_directory(step.now)}
        places = (parent_of(path) for each in self.operations for path in (each.path, each.hidden))
        for path in {*places, *now} - {""}:
            before = self._directory_mode(path)
            goal = wanted[path] if path in now else None
            after = before if path not in now else goal.permissions if is_directory(goal) else -1
            if before != -1 and (before != after or before & _OWNER_ACCESS != _OWNER_ACCESS):
                yield ModeChange(path, before, after)
        for path, goal in wanted.items():
            if is_directory(goal) and path not in now:
                yield ModeChange(path, -1, goal.permissions)

    def _find_directories(self) -> dict[str, tuple[int, int]]:
        paths = {parent_of(each.hidden) for each in self.operations} - {""}
        found = {path: self._stat(path) for path in paths}
        return {path: (each.st_dev, each.st_ino) for path, each in found.items() if each}

    def _stat(self, path: str) -> os.stat_result | None:
        """Return the metadata of `path`, or None if it is missing or inaccessible."""
        try:
            return self._tree.stat(path)
        except PermissionError:
            return None

    def _directory_mode(self, path: str) -> int:
        if path in self._known_modes:  # just compared, also below inaccessible directories
            return self._known_modes[path]
        found = self._stat(path)
        is_there = found is not None and stat.S_ISDIR(found.st_mode)
        return stat.S_IMODE(found.st_mode) if found is not None and is_there else -1


def collect_attributes(
    original: OriginalFilesystem, steps: Sequence[Step]
) -> dict[str, dict[str, bytes]]:
    """Return the extended attributes of files to be removed, so that an undo restores them."""
    tree = LiveTree(original.directory)
    removed = [
        step.path
        for step in steps
        if step.now is not None and step.now.is_file and not (step.wanted and step.wanted.is_file)
    ]
    found = {path: read_attributes(tree, path) for path in removed}
    return {path: attributes for path, attributes in found.items() if attributes}


def _is_kept(step: Step) -> bool:
    """Return whether a directory only changes its permissions."""
    return is_directory(step.now) and is_directory(step.wanted)


def _is_replaced(step: Step) -> bool:
    """Return whether a file or link replaces another."""
    if step.now is None or step.wanted is None:
        return False
    return not (step.now.is_directory or step.wanted.is_directory)


def _can_exchange(tree: LiveTree) -> bool:
    """Return whether the file system supports an atomic exchange, by trying it."""
    names = temporary_name(), temporary_name()
    try:
        for name in names:
            root, _ = tree.open_parent(name)
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


def describe_entry(found: FileStat | None, state: Side) -> EntryState:
    """Return the state of `found`; a file is read only if its blob id is unknown."""
    if found is None:
        return EntryState()
    if found.link_target is not None:
        return EntryState("symlink", target=found.link_target)
    if not found.is_file:
        return EntryState(found.kind, found.permissions)
    return EntryState("file", found.permissions, found.size_bytes, state.blob_id(found))
