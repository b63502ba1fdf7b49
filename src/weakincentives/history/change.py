"""The one engine that changes a live directory: all of a change happens or none of it.

A path is never overwritten after a look. New versions lie in slots; then each path is atomically
exchanged with its slot (RENAME_EXCHANGE), and what comes out is compared with what was expected.
So there is no TOCTOU gap: a save that somebody makes meanwhile is either left at its path or
comes out and is kept. What came out stays in its slot until the end of the change.
"""

import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Literal, TypeAlias

from weakincentives import posix
from weakincentives.errors import WinkError
from weakincentives.history.entries import (
    MISSING,
    EntryState,
    LiveTree,
    Readable,
    describe,
    matches,
    open_at,
    read_attributes,
    resembles,
    set_attributes,
    user_attributes,
    write_sparse,
)
from weakincentives.history.moves import find_differences, find_moves, list_paths
from weakincentives.history.records import ChangeRecord, Ending, ModeChange, PathOperation, Staging
from weakincentives.history.rollback import Kept, Rollback
from weakincentives.history.slots import create_file, swap

Policy: TypeAlias = Literal["refuse", "skip", "take"]
"""What to do with a path that is not as expected: roll everything back, leave that path alone, or
change it all the same and keep what came out."""
Attributes: TypeAlias = Mapping[str, Mapping[str, bytes]]
"""Extended attributes of files, by path."""

_OWNER_ACCESS = 0o700
_NO_CHANGES: Mapping[str, EntryState] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Edit:
    """The change of one path: what is expected there, and what it becomes."""

    path: str
    before: EntryState
    after: EntryState
    attributes: Mapping[str, bytes] | None = None
    """The extended attributes that a file was seen with; None: those when the change is staged."""


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """What to change, and how.

    `kind`, `place` and `number` identify the change in its record, for a recovery.
    """

    edits: Sequence[Edit]
    open_content: Callable[[str], Readable]
    """Opens the new content of a path; it is closed if it can be."""
    kind: str = "restore"
    place: str = ""
    number: int = 0
    on_conflict: Policy = "refuse"
    attributes: Attributes = field(default_factory=dict[str, Mapping[str, bytes]])
    """The extended attributes of files that are created again."""
    durable: bool = True
    """Whether the change survives a power failure; otherwise only the death of the process."""

    @property
    def rolls_forward(self) -> bool:
        """Whether a recovery completes it: no later save can make it a conflict."""
        return self.on_conflict == "take"


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The outcome of a change."""

    kept: tuple[Kept, ...] = ()
    """Changes of others that were left alone or taken, and where the other versions are."""
    displaced: Mapping[str, EntryState] = field(default_factory=dict[str, EntryState])
    """What came out unexpectedly and was taken, by path."""
    skipped: tuple[str, ...] = ()
    """The paths that were left alone, because they were not as expected."""


class ChangeConflictError(WinkError, RuntimeError):
    """A path was not as expected; nothing was changed."""

    def __init__(self, path: str, fact: str = "changed just now") -> None:
        """Store the path and what happened to it."""
        self.path: str = path
        self.fact: str = fact
        self.kept: tuple[Kept, ...] = ()
        """What the rollback left alone."""
        super().__init__(f"{posix.display_path(path)}: {fact}")


Openers: TypeAlias = Mapping[str, Callable[[], int | None]]
"""Functions that open the files at some paths; the caller closes them."""
KeepDisplaced: TypeAlias = Callable[[Mapping[str, EntryState], Openers], None]
"""Stores what came out unexpectedly, by path."""


def change(
    root: posix.RootedDirectory,
    request: ChangeRequest,
    *,
    keep: KeepDisplaced = lambda _, __: None,
    on_end: Callable[[ChangeRecord, Ending], None] = lambda _, __: None,
) -> ChangeResult:
    """Change everything or nothing.

    Args:
        root: The directory.
        request: What to change.
        keep: Stores what came out unexpectedly, with the policy "take". What it raises is not
            raised again: then these entries are kept under visible names.
        on_end: Called before the record of the change is removed.

    Raises:
        ChangeConflictError: A path was not as expected, and the policy is "refuse"; everything
            was rolled back except for concurrent saves.
        OSError: The disk failed; everything was rolled back.
    """
    with closing(LiveTree(root)) as tree, accessible_root(root) as mode:
        return _Change(tree, request, keep, on_end).run(mode)


def find_stale(root: posix.RootedDirectory, edits: Sequence[Edit]) -> list[str]:
    """Return the paths that are not as edits expect them, as far as they can be read."""
    found: list[str] = []
    with closing(LiveTree(root)) as tree:
        for each in edits:
            with suppress(PermissionError):
                if not matches(tree, each.path, each.before):
                    found.append(each.path)
    return found


@contextmanager
def accessible_root(root: posix.RootedDirectory, before: int = -1) -> Generator[int, None, None]:
    """Make the root accessible to its owner in the with block; yield the permissions it had.

    `before` says which it had before a change that was interrupted.
    """
    found = stat.S_IMODE(os.fstat(root.descriptor).st_mode)
    mode = before if found == before | _OWNER_ACCESS else found
    if found & _OWNER_ACCESS != _OWNER_ACCESS:
        posix.set_mode(root.descriptor, found | _OWNER_ACCESS)
    try:
        yield mode
    finally:
        if mode & _OWNER_ACCESS != _OWNER_ACCESS:
            posix.set_mode(root.descriptor, mode)


class _Change:
    """One change: executes its operations, or rolls them back if they cannot complete."""

    def __init__(
        self,
        tree: LiveTree,
        request: ChangeRequest,
        keep: KeepDisplaced,
        on_end: Callable[[ChangeRecord, Ending], None],
    ) -> None:
        self._tree = tree
        self._request = request
        self._keep_displaced = keep
        self._on_end = on_end
        self._seen = {each.path: each.attributes for each in request.edits}
        self._attributes: dict[str, Mapping[str, bytes]] = {}
        self._displaced: dict[str, EntryState] = {}
        self._slots: dict[str, str] = {}  # of what was displaced
        self._skipped: list[str] = []
        self._moves: list[PathOperation] = []
        self._edits = request.edits  # the others
        self._renamed = {
            (each.before.blob, each.before.size): each.path
            for each in request.edits
            if each.before.kind == "file" and each.after.kind != "file" and each.before.size
        }

    def run(self, root_mode: int) -> ChangeResult:
        staging = Staging(self._tree, posix.owner_name())
        try:
            return self._run(staging, root_mode)
        finally:
            staging.release()  # even if it is interrupted: then a recovery goes on

    def _run(self, staging: Staging, root_mode: int) -> ChangeResult:
        wanted = self._request
        record = ChangeRecord(
            *(wanted.kind, wanted.place, wanted.number, (), ()),
            directories={},
            root_mode=root_mode,
            rolls_forward=wanted.rolls_forward,
        )
        try:
            # in a copy of its own, no program of a person comes meanwhile
            staging.create(hides=wanted.durable)
            self._find_moves()
            record = self._stage(staging, replace(record, areas=tuple(staging.areas)))
        except BaseException:
            with suppress(OSError):  # the next recovery removes it
                staging.remove()
            with suppress(OSError):
                self._on_end(record, "rolled back")
            raise
        rollback = Rollback(self._tree, staging.areas[0])
        try:
            record = self._move_directories(staging, record)
            self._execute_all(record, rollback)
            self._store_displaced()
            self._set_final_modes(record)  # last: it may make a directory unreadable
            staging.enter("done", durable=self._must_sync)
        except BaseException as error:
            self._roll_back(error, staging, record)
            raise
        finished = end_change(
            self._tree, staging, record, "committed", self._on_end, self._displaced
        )
        return ChangeResult(tuple(finished.kept), self._displaced, tuple(self._skipped))

    @property
    def _must_sync(self) -> bool:
        """Whether the end must be on disk before the answer: otherwise a recovery gets there."""
        return self._request.durable and not self._request.rolls_forward

    def _roll_back(self, error: BaseException, staging: Staging, record: ChangeRecord) -> None:
        """Roll back, and add to the error what was left alone."""
        with suppress(OSError):  # without it, a kill during the rollback completes the change
            staging.enter("reverting", durable=self._request.durable)
        rollback = end_change(self._tree, staging, record, "rolled back", self._on_end)
        if isinstance(error, ChangeConflictError):
            error.kept = tuple(rollback.kept)
        else:
            for each in rollback.kept:
                error.add_note(str(each))
        for each in rollback.failures:
            error.add_note(f"The rollback is incomplete: {each}")

    # --- staging ---

    def _stage(self, staging: Staging, record: ChangeRecord) -> ChangeRecord:
        """Make directories accessible, put new versions into slots, and write the record."""
        opened: dict[str, ModeChange] = {}
        try:
            while closed := self._find_closed(opened):
                opened |= closed
                unstaged = replace(record, modes=tuple(opened.values()), rolls_forward=False)
                with posix.SyncQueue() as queue:  # so that a kill does not leave them so
                    self._write_record(staging, unstaged, queue)
                staging.begin(durable=self._request.durable)
                for mode in closed.values():
                    self._change_mode(mode.path, mode.before, mode.before | _OWNER_ACCESS)
            modes = {each.path: each for each in self._find_modes()} | opened
            operations = [*self._moves, *_list_operations(self._edits, staging)]
            with posix.SyncQueue() as queue:
                for operation in operations:
                    posix.check_time("Change")
                    self._attempt(operation, lambda each: self._make(each, queue))
                posix.fault_point("change.staged")
                found = replace(
                    record,
                    operations=tuple(map(self._with_attributes, operations)),
                    modes=tuple(sorted(modes.values(), key=lambda each: each.path)),
                    directories=self._find_directories(operations),
                    areas=tuple(staging.areas),
                )
                self._write_record(staging, found, queue)
            staging.begin(durable=self._request.durable)
            posix.fault_point("change.changing")
        except BaseException:
            for mode in reversed(opened.values()):
                with suppress(OSError, ChangeConflictError):
                    self._change_mode(mode.path, mode.before | _OWNER_ACCESS, mode.before)
            raise
        return found

    def _write_record(self, staging: Staging, record: ChangeRecord, queue: posix.SyncQueue) -> None:
        """Write the record, to be synced with what it names in one round.

        It gets its name afterwards: a record without its slots would be a mix.
        """
        descriptor = staging.write(record)
        if not self._request.durable:
            os.close(descriptor)
            return
        queue.add(descriptor)
        for directory in sorted({*staging.areas, *map(posix.parent_of, staging.areas)}):
            queue.add(self._tree.open_directory(directory))

    def _make(self, operation: PathOperation, queue: posix.SyncQueue) -> None:
        """Put the new version of a path into its slot."""
        if operation.before.kind == "file" and operation.action in {"replace", "remove"}:
            seen = self._seen.get(operation.path)
            self._attributes[operation.path] = (
                read_attributes(self._tree, operation.path, strict=True) if seen is None else seen
            )
        if operation.action == "make directory":
            self._tree.mkdir(operation.slot, _OWNER_ACCESS)
            self._tree.set_mode(operation.slot, operation.after.mode | _OWNER_ACCESS)
            self._tree.hold(operation.path, self._tree.open_directory(operation.slot))
        elif operation.action in {"create", "replace"}:
            if operation.after.kind == "symlink":
                parent, name = self._tree.open_parent(operation.slot)
                os.symlink(operation.after.target, name, dir_fd=parent)
            else:
                self._make_file(operation, queue)
            posix.fault_point("change.written")

    def _make_file(self, operation: PathOperation, queue: posix.SyncQueue) -> None:
        parent = self._tree.open_parent(operation.path)[0]
        target = create_file(self._tree.open_parent(operation.slot), parent, 0o600)
        try:
            content = self._request.open_content(operation.path)
            try:
                write_sparse(target, content)
            finally:
                close: Callable[[], None] | None = getattr(content, "close", None)
                if close is not None:
                    close()
            self._copy_attributes(operation, target)
            os.fchmod(target, operation.after.mode)
        except BaseException:
            os.close(target)
            raise
        if self._request.durable:
            queue.add(target)
        else:
            os.close(target)

    def _copy_attributes(self, operation: PathOperation, target: int) -> None:
        """Copy owner and extended attributes of the replaced file to the new one."""
        if operation.before.kind == "file":
            old = self._tree.stat(operation.path)
            if old is not None and (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(PermissionError):
                    os.fchown(target, old.st_uid, old.st_gid)
        else:
            given = self._request.attributes.get(operation.path)
            self._attributes[operation.path] = (
                self._renamed_attributes(operation) if given is None else given
            )
        set_attributes(target, self._attributes[operation.path])

    def _with_attributes(self, operation: PathOperation) -> PathOperation:
        """Return an operation with the attributes that its file has before and after."""
        found = user_attributes(self._attributes.get(operation.path, {}))
        return replace(operation, attributes=found) if found else operation

    def _renamed_attributes(self, operation: PathOperation) -> Mapping[str, bytes]:
        """Return the attributes of a renamed file, found as a removed file with equal content."""
        source = self._renamed.get((operation.after.blob, operation.after.size))
        return {} if source is None else read_attributes(self._tree, source, strict=True)

    # --- moving directories ---

    def _find_moves(self) -> None:
        """Find directories that only get another name; a conflict could not skip a part of one."""
        edits = self._request.edits
        if self._request.on_conflict != "refuse":
            return
        gone = {each.path: each.before for each in edits if each.after.kind == "absent"}
        made = {each.path: each.after for each in edits if each.before.kind == "absent"}
        if gone and made:
            self._moves = find_moves(self._tree, gone, made)
        moved = {path for each in self._moves for path in list_paths(each)}
        self._edits = [each for each in edits if each.path not in moved]

    def _move_directories(self, staging: Staging, record: ChangeRecord) -> ChangeRecord:
        """Rename directories; where that is not possible, stage their files instead."""
        for count, move in enumerate(self._moves):
            try:
                self._tree.rename(move.slot, move.path, exclusive=True)
            except OSError as error:
                if error.errno in MISSING or isinstance(error, FileExistsError):
                    raise ChangeConflictError(move.slot) from error
                # on an overlay, or across file systems
                for each in reversed(self._moves[:count]):
                    self._tree.rename(each.path, each.slot, exclusive=True)
                self._moves, self._edits = [], self._request.edits
                return self._stage(staging, replace(record, operations=(), modes=()))
            posix.fault_point("change.moved")
        for move in self._moves:
            changed = find_differences(self._tree, move.path, move.inside)
            if changed:
                known = next((name for name in changed if move.inside.get(name)), "")
                raise ChangeConflictError(f"{move.slot}/{known}".rstrip("/"))
        return record

    # --- executing ---

    def _execute_all(self, record: ChangeRecord, rollback: Rollback) -> None:
        for operation in record.operations:
            self._attempt(operation, lambda each: self._execute(each, rollback))
        posix.fault_point("change.changed")
        if self._request.on_conflict != "take":
            self._check_all_displaced(record, rollback)
        if self._request.on_conflict == "refuse":
            self._check_directories(record)
        if self._must_sync:
            paths = {posix.parent_of(path) for each in record.operations for path in each.paths}
            for path in sorted(paths):
                with suppress(FileNotFoundError):
                    posix.sync_directory(self._tree.open_parent(f"{path}/x" if path else "x")[0])

    def _attempt(self, operation: PathOperation, work: Callable[[PathOperation], None]) -> None:
        """Work on an operation; a missing or occupied path is a conflict."""
        try:
            work(operation)
        except OSError as error:
            if error.errno in MISSING or isinstance(error, FileExistsError):
                raise ChangeConflictError(operation.path) from error
            raise posix.explain_error(error, operation.path) from error

    def _execute(self, operation: PathOperation, rollback: Rollback) -> None:
        tree, path, slot = self._tree, operation.path, operation.slot
        match operation.action:
            case "replace":
                if self._may_begin(operation):
                    self._exchange(operation)
                    posix.fault_point("change.exchanged")
                    self._check_displaced(operation, rollback)
            case "remove":
                if self._may_begin(operation):
                    tree.rename(path, slot)
                    posix.fault_point("change.removed")
                    self._check_displaced(operation, rollback)
            case "create" | "make directory":
                self._create(operation)
                posix.fault_point("change.created")
            case "remove directory":
                self._remove_directory(operation)
                posix.fault_point("change.removed")
            case "move directory":
                pass  # done before

    def _may_begin(self, operation: PathOperation) -> bool:
        """Return whether to change a path; a look at its metadata finds most conflicts."""
        found = self._tree.stat(operation.path)
        if self._request.on_conflict == "take":
            return found is not None or operation.action == "replace"
        if found is not None and resembles(found, operation.before):
            return True
        self._conflict(operation)
        return False

    def _exchange(self, operation: PathOperation) -> None:
        try:
            self._swap(operation)
        except FileNotFoundError:
            if self._request.on_conflict != "take":
                raise
            self._tree.rename(operation.slot, operation.path, exclusive=True)

    def _swap(self, operation: PathOperation) -> None:
        swap(self._tree.open_parent(operation.slot), self._tree.open_parent(operation.path))

    def _create(self, operation: PathOperation) -> None:
        """Put a new entry at its path, where nothing is expected."""
        try:
            self._tree.rename(operation.slot, operation.path, exclusive=True)
        except FileExistsError:
            is_new_directory = operation.action == "make directory"
            if is_new_directory and self._tree.is_directory(operation.path):
                if self._request.on_conflict == "refuse":
                    raise
                self._tree.hold(operation.path, self._tree.open_directory(operation.path))
                return
            if self._request.on_conflict != "take":
                self._conflict(operation)
                return
            self._swap(operation)
            self._take(operation)

    def _remove_directory(self, operation: PathOperation) -> None:
        """Move a directory to its slot if it is empty, except for leftovers of dead processes."""
        tree, path, slot = self._tree, operation.path, operation.slot
        if not tree.is_directory(path):
            if self._request.on_conflict != "take":
                self._conflict(operation)
            return
        tree.remove_leftovers(path)
        tree.rename(path, slot)
        posix.fault_point("change.directory")
        if tree.names(slot) or not self._has_expected_mode(operation):
            with suppress(FileExistsError):  # otherwise the rollback keeps it
                tree.rename(slot, path, exclusive=True)
            if self._request.on_conflict == "refuse":
                raise ChangeConflictError(path)
            self._skipped.append(path)

    def _has_expected_mode(self, operation: PathOperation) -> bool:
        """Return whether a directory that came out has its permissions, or those given here."""
        found, mode = self._tree.stat(operation.slot), operation.before.mode
        modes = (mode, mode | _OWNER_ACCESS)
        is_refused = self._request.on_conflict == "refuse"
        return not is_refused or found is None or stat.S_IMODE(found.st_mode) in modes

    def _change_mode(self, path: str, now: int, wanted: int) -> None:
        """Set the permissions of a directory if they still are `now`."""
        if now == wanted:
            return
        found = self._tree.stat(path)
        if found is None or not resembles(found, EntryState("directory", now)):
            if self._request.on_conflict == "refuse":
                raise ChangeConflictError(path)
            if found is None or not stat.S_ISDIR(found.st_mode):
                return
        self._tree.set_mode(path, wanted)
        posix.fault_point("change.mode")

    def _set_final_modes(self, record: ChangeRecord) -> None:
        """Give directories their new permissions, or those they had before."""
        for mode in reversed(record.modes):
            if mode.after != -1:
                now = mode.before if mode.before != -1 else mode.after
                is_opened = mode.before == -1 or mode.before & _OWNER_ACCESS != _OWNER_ACCESS
                self._change_mode(mode.path, now | _OWNER_ACCESS if is_opened else now, mode.after)

    # --- comparing ---

    def _check_displaced(self, operation: PathOperation, rollback: Rollback) -> None:
        """Compare what came out with what was expected."""
        if self._is_expected(operation):
            return
        if self._request.on_conflict == "take":
            self._take(operation)
            return
        if self._request.on_conflict == "skip":
            self._skip(operation, rollback)
            return
        raise ChangeConflictError(operation.path)

    def _is_expected(self, operation: PathOperation) -> bool:
        if not matches(self._tree, operation.slot, operation.before):
            return False
        attributes = self._attributes.get(operation.path)
        is_file = operation.before.kind == "file" and attributes is not None
        return not is_file or read_attributes(self._tree, operation.slot) == attributes

    def _check_all_displaced(self, record: ChangeRecord, rollback: Rollback) -> None:
        """Compare everything again: a process may write to a file that was displaced."""
        skipped = set(self._skipped)
        for operation in record.operations:
            if operation.before.kind != "file" or operation.path in skipped:
                continue
            if operation.action not in {"replace", "remove"}:
                continue
            if rollback.is_written(operation.slot):
                fact = "being written to by another program"
            elif not self._is_expected(operation):
                fact = "changed just now"
            else:
                continue
            if self._request.on_conflict == "refuse":
                raise ChangeConflictError(operation.path, fact)
            self._skip(operation, rollback)
        posix.fault_point("change.checked")

    def _check_directories(self, record: ChangeRecord) -> None:
        """Raise ChangeConflictError if somebody has renamed a directory, unless it is back."""
        removed = {each.path for each in record.operations if each.action == "remove directory"}
        for path, inode in record.directories.items():
            if path not in removed and not self._is_at(path, inode):
                raise ChangeConflictError(path, "renamed or removed just now")

    def _is_at(self, path: str, inode: int) -> bool:
        try:
            found, _ = self._tree.root.lstat(path)
        except OSError:
            return False
        return found.st_ino == inode

    def _conflict(self, operation: PathOperation) -> None:
        """Refuse the whole change, or skip a path at which nothing was done."""
        if self._request.on_conflict == "refuse":
            raise ChangeConflictError(operation.path)
        self._skipped.append(operation.path)

    def _skip(self, operation: PathOperation, rollback: Rollback) -> None:
        """Give a path back to whoever saved it."""
        if operation.action == "remove":
            with suppress(FileExistsError):  # somebody made it again: what came out is kept
                self._tree.rename(operation.slot, operation.path, exclusive=True)
        else:
            rollback.give_back(operation, operation.after)
        self._skipped.append(operation.path)

    def _take(self, operation: PathOperation) -> None:
        """Note what came out instead of the expected entry."""
        found = describe(self._tree, operation.slot)
        if found.kind != "absent":
            self._displaced[operation.path] = found
            self._slots[operation.path] = operation.slot

    def _store_displaced(self) -> None:
        """Let the caller store what came out; what it cannot store is kept under a visible name."""
        openers = {
            path: partial(open_at, self._tree.open_parent(slot))
            for path, slot in self._slots.items()
        }
        try:
            if openers:
                self._keep_displaced(self._displaced, openers)
        except (OSError, WinkError):
            self._displaced.clear()  # so that the end of the change keeps them

    # --- what to change ---

    def _find_closed(self, opened: Mapping[str, ModeChange]) -> dict[str, ModeChange]:
        """Return the next directories to make accessible, sorted.

        What is in a directory that is closed is found when that one is open.
        """
        closed = {
            each.path: each
            for each in self._find_modes()
            if each.before != -1 and each.before & _OWNER_ACCESS != _OWNER_ACCESS
        }
        return {path: closed[path] for path in sorted(closed.keys() - opened.keys())}

    def _find_modes(self) -> Iterator[ModeChange]:
        """Yield the directories whose permissions change, even if only temporarily."""
        edits = {each.path: each for each in self._edits}
        moved = (path for each in self._moves for path in each.paths)
        parents: set[str] = set()
        for path in (*edits, *moved):
            above = posix.parent_of(path)
            while above and above not in parents:  # those above a known one are known
                parents.add(above)
                above = posix.parent_of(above)
        known = {path for path, each in edits.items() if each.before.kind == "directory"}
        for path in parents | known:
            edit = edits.get(path)
            before = edit.before.mode if edit and path in known else self._directory_mode(path)
            after = before
            if edit is not None and path in known:
                after = edit.after.mode if edit.after.kind == "directory" else -1
            if before != -1 and (before != after or before & _OWNER_ACCESS != _OWNER_ACCESS):
                yield ModeChange(path, before, after)
        for path, edit in edits.items():
            if edit.after.kind == "directory" and path not in known:
                yield ModeChange(path, -1, edit.after.mode)

    def _directory_mode(self, path: str) -> int:
        try:
            found = self._tree.stat(path)
        except PermissionError:
            return -1
        is_there = found is not None and stat.S_ISDIR(found.st_mode)
        return stat.S_IMODE(found.st_mode) if found is not None and is_there else -1

    def _find_directories(self, operations: Iterable[PathOperation]) -> dict[str, int]:
        """Return the inodes of the directories that change; from now on they are held open."""
        found: dict[str, int] = {}
        paths = {posix.parent_of(path) for each in operations for path in each.paths}
        for path in sorted(paths - {""}):
            with suppress(OSError):
                found[path] = os.fstat(self._tree.open_parent(f"{path}/x")[0]).st_ino
        return found


def _list_operations(edits: Sequence[Edit], staging: Staging) -> list[PathOperation]:
    """Return edits as operations in executable order."""
    changed = (each for each in edits if not _is_kept(each))
    ordered = sorted(changed, key=lambda each: each.path.split("/"))  # as in the tree
    found: list[PathOperation] = []
    for edit in reversed(ordered):  # children are removed before their directory
        if edit.before.kind == "absent" or _is_replaced(edit):
            continue
        is_directory = edit.before.kind == "directory"
        action = "remove directory" if is_directory else "remove"
        slot = staging.new_slot(edit.path)
        found.append(PathOperation(action, edit.path, slot, edit.before, EntryState()))
    for edit in ordered:
        if edit.after.kind == "absent":
            continue
        slot = staging.new_slot(edit.path)
        if edit.after.kind == "directory":
            found.append(PathOperation("make directory", edit.path, slot, EntryState(), edit.after))
        else:
            action = "replace" if _is_replaced(edit) else "create"
            before = edit.before if edit.before.kind != "directory" else EntryState()
            found.append(PathOperation(action, edit.path, slot, before, edit.after))
    return found


def _is_kept(edit: Edit) -> bool:
    """Return whether a directory only changes its permissions."""
    return edit.before.kind == edit.after.kind == "directory"


def _is_replaced(edit: Edit) -> bool:
    """Return whether a file or link replaces another."""
    kinds = {edit.before.kind, edit.after.kind}
    return not kinds & {"absent", "directory"}


def end_change(
    tree: LiveTree,
    staging: Staging,
    record: ChangeRecord,
    ending: Ending,
    on_end: Callable[[ChangeRecord, Ending], None],
    stored: Mapping[str, EntryState] = _NO_CHANGES,
) -> Rollback:
    """Roll back a change, or finish it; its record stays if something failed.

    What is not done yet of a change to finish is carried out first.
    """
    rollback = Rollback(tree, staging.areas[0])
    is_done = ending == "committed"
    try:
        if is_done and staging.phase != "done":
            rollback.complete(record)
            if rollback.failures:
                return rollback
            staging.enter("done", durable=False)
        rollback.run(record, "done" if is_done else "changing", stored)
        if is_done or not rollback.failures:
            # that may fail if nothing has happened
            with nullcontext() if is_done or rollback.kept else suppress(OSError):
                on_end(record, ending)
        if not rollback.failures:
            staging.remove(durable=not is_done)
    except OSError as error:
        rollback.failures.append(error)
    return rollback
