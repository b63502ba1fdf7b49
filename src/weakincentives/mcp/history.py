"""The history of a workspace: the state before and after every call, checkpoints, and undo.

States are snapshots of the filesystem, so a call costs what it changes and a state costs no
memory. Undo restores what a call changed and nothing else: a path is restored only if it still
is what the call left. Otherwise nothing changes, and the error names the path and who changed it.
"""

import logging
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from threading import Lock
from typing import Protocol, runtime_checkable

from weakincentives.errors import SnapshotError, StaleRestoreError, ToolValidationError
from weakincentives.filesystem import (
    Change,
    Diff,
    Filesystem,
    FilesystemSnapshot,
    HostFilesystem,
    PathChange,
    Pinnable,
    ReadableFilesystem,
    diff,
    diff_since,
)
from weakincentives.filesystem.base import is_tool_output
from weakincentives.filesystem.host.snapshots.store import CallStates
from weakincentives.filesystem.paths import outermost
from weakincentives.history.log import LogError
from weakincentives.mcp.clients import McpClient
from weakincentives.mcp.steps import MAX_CHECKPOINTS, MAX_STEPS, USER, Checkpoint, Step, StepLog
from weakincentives.posix import display_path, no_time_limit

_MAX_CONFLICTS = 20
MAX_LISTED = 100
"""Paths in one sentence."""
START = "start"
"""The name of the first checkpoint: the state when the server started."""
_REPLACED = ("before restore", "saved during a restore")  # tags of what a restore replaced
_log = logging.getLogger(__name__)


class UndoConflictError(ToolValidationError):
    """A call cannot be undone without losing a later change."""


@runtime_checkable
class _StateStore(Protocol):
    """Keeps states, shows them, and restores some of their paths."""

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot: ...

    def restore(
        self,
        snapshot: FilesystemSnapshot,
        *,
        paths: Sequence[str] | None = None,
        expect: FilesystemSnapshot | None = None,
    ) -> None: ...

    def view(self, snapshot: FilesystemSnapshot) -> Filesystem: ...


@runtime_checkable
class _ChangeStore(Protocol):
    """Reports what a call changed, and puts that into the last state that it knows."""

    def subscribe_changes(
        self, listener: Callable[[Sequence[PathChange]], None]
    ) -> Callable[[], None]: ...

    def record_changes(self, changes: Sequence[PathChange]) -> CallStates: ...


def has_history(filesystem: Filesystem) -> bool:
    """Return whether the states of a filesystem can be kept, compared and restored."""
    return isinstance(filesystem, ReadableFilesystem) and isinstance(filesystem, _StateStore)


class Recording:
    """A call that runs."""

    def __init__(self, client: McpClient, tool: str, *, bypasses_filesystem: bool) -> None:
        """Record a call; one that bypasses the filesystem may change anything."""
        self.client = client
        self.tool = tool
        self.bypasses_filesystem = bypasses_filesystem
        self.before: FilesystemSnapshot | None = None
        """The state before it, if it is not known from its changes."""
        self.command: int = 0
        """The number of the record of its start."""
        self.undoes: tuple[int, ...] = ()
        self.replaced: list[CallStates] = []
        """What a command replaced through the filesystem; if it fails, its rollback is the last."""
        self.step: Step | None = None
        self.notes: list[str] = []

    def to_step(self) -> Step:
        """Return a step of this call, without states."""
        return Step(client=self.client, tool=self.tool, command=self.command, undoes=self.undoes)


_PERSON = Recording(USER, "change", bypasses_filesystem=False)
_OTHER_SESSION = McpClient("another session", 0)


class History:
    """The steps and checkpoints of a workspace.

    Not thread-safe: calls that change something run one after the other.
    """

    def __init__(self, filesystem: Filesystem, directory: Path | None = None) -> None:
        """Keep the history of `filesystem`, from the first call of `start` on.

        Args:
            filesystem: The workspace.
            directory: Where the steps are kept for later sessions; None keeps them in memory.

        Raises:
            TypeError: The filesystem has no snapshots to compare and restore.
        """
        if not isinstance(filesystem, ReadableFilesystem) or not isinstance(
            filesystem, _StateStore
        ):
            raise TypeError(f"{type(filesystem).__name__} does not support undo")
        self._live: ReadableFilesystem = filesystem
        self._store: _StateStore = filesystem
        self._steps = StepLog(directory)
        self._start: Checkpoint | None = None
        self._start_lock = Lock()
        self._unsubscribe: Callable[[], None] | None = None
        self._unrecorded: dict[frozenset[str], Recording] = {}
        self._unpin: dict[str, Callable[[], None]] = {}
        self._recording: Recording | None = None

    # --- recording ---

    def start(self) -> None:
        """Keep the present state as the start; does nothing if there is one.

        Raises:
            SnapshotError: It could not be kept.
            OSError: The steps of earlier sessions cannot be read.
            LogError: The same.
        """
        with self._start_lock:  # calls that only read may come while the first state is taken
            if self._start is not None:
                return
            state = self._take(START)
            self._add_interrupted(state)
            if isinstance(self._live, _ChangeStore):
                self._unsubscribe = self._live.subscribe_changes(self._on_changes)
            if self._steps.problem is not None:
                _log.warning("Some calls cannot be listed and undone: %s", self._steps.problem)
            self._start = Checkpoint(name=START, snapshot=state, after=self._steps.last_number)

    def _add_interrupted(self, present: FilesystemSnapshot) -> None:
        """Add the commands during which an earlier server was killed: they can be undone."""
        for command in self._steps.interrupted():
            with suppress(SnapshotError):  # the state before it is gone
                replaced = self._find_replaced(command)
                if replaced is not None:  # its rollback was not recorded
                    self._add_rolled_back(command, replaced, present)
                    continue
                step = replace(command, after=present)
                changed = self._changed_paths(step)
                if changed:
                    step = self._steps.add(step.with_paths(changed))
                    _log.warning("The server was killed during %s; undo it to go back", step)

    def _find_replaced(self, command: Step) -> FilesystemSnapshot | None:
        """Return what the rollback of a command replaced; the filesystem has stored it."""
        files = self._live
        for each in reversed(files.history.list() if isinstance(files, HostFilesystem) else ()):
            if each.created_at < command.created_at:
                return None
            if (each.tag or "").startswith(_REPLACED):
                return each
        return None

    def begin(
        self, client: McpClient, tool: str, *, bypasses_filesystem: bool = False
    ) -> Recording:
        """Record a call that may change something."""
        recording = Recording(client, tool, bypasses_filesystem=bypasses_filesystem)
        self._recording = recording
        try:
            self.start()
            if bypasses_filesystem or not isinstance(self._live, _ChangeStore):
                recording.before = self._take("before a call")
            if bypasses_filesystem:
                recording.command = self._steps.begin(
                    replace(recording.to_step(), before=recording.before)
                )
        except SnapshotError as error:
            recording.notes.append(f"[This call cannot be undone: {error}]")
        except (OSError, LogError) as error:
            recording.notes.append(
                f"[This call cannot be undone if the server is killed while it runs: {error}]"
            )
        return recording

    def finish(self, recording: Recording, *, success: bool) -> None:
        """Add a step for a call, if it changed something or failed.

        A call that has ended is recorded even if it is cancelled now.
        """
        self._recording = None
        try:
            with no_time_limit():
                if recording.step is None:
                    recording.step = self._record(recording, success=success)
        except (OSError, LogError, SnapshotError) as error:
            recording.notes.append(_explain(error))
            self._steps.end()  # the next start finds the note of a command, and adds it
        else:
            self._steps.end(recording.command)

    def _record(self, recording: Recording, *, success: bool) -> Step | None:
        """Add the step of a call that has not reported its changes."""
        before, step = recording.before, recording.to_step()
        if not success:
            return self._record_failure(recording)
        if before is None:
            return None
        for each in recording.replaced:
            if each.known is not None:
                self._add_foreign(each.known, each.before)
        step = replace(step, before=before, after=self._take(f"after {step.tool}"))
        changed = self._changed_paths(step)
        return self._steps.add(step.with_paths(changed)) if changed else None

    def _record_failure(self, recording: Recording) -> Step | None:
        """Add a call that failed; if it was a command, with the rollback of its changes.

        The rollback of a command replaces what changed while it ran, whoever changed it.
        """
        step = replace(recording.to_step(), undoes=())
        unrecorded = [key for key, each in self._unrecorded.items() if each is recording]
        if recording.command and unrecorded:
            for key in unrecorded:
                del self._unrecorded[key]  # a rollback is not reported again
            raise SnapshotError("what its rollback replaced is listed after the next start")
        if not recording.replaced or recording.before is None:
            return self._steps.add(step)
        replaced = recording.replaced[-1]
        step = replace(step, before=recording.before)
        recording.notes.append(self._add_rolled_back(step, replaced.before, replaced.after))
        return None

    def _add_rolled_back(
        self, step: Step, replaced: FilesystemSnapshot, after: FilesystemSnapshot
    ) -> str:
        """Add a command and its rollback; return how to get something back."""
        step = replace(step, after=replaced)
        step = self._steps.add(step.with_paths(self._changed_paths(step)))
        undo = self._steps.add(replace(step.reverse(), after=after))
        text = (
            f"Rolled back: {join_paths(step.paths)}. If the user saved one of these meanwhile,"
            f" restore it: undo with call={undo.number} and its path in paths."
        )
        _log.warning("%s did not end. %s", step, text)
        return text

    def _on_changes(self, changes: Sequence[PathChange]) -> None:
        """Add the steps of what was just changed through the filesystem.

        If that raises, the filesystem keeps what was replaced, and reports it again.
        """
        key = frozenset(each.path for each in changes)
        recording = self._unrecorded.pop(key, self._recording)
        try:
            assert isinstance(self._live, _ChangeStore)
            self._add_changes(self._live.record_changes(changes), recording)
        except (OSError, LogError, SnapshotError) as error:
            if recording is not None:
                self._unrecorded[key] = recording
                recording.notes.append(_explain(error))
            raise SnapshotError(str(error)) from error

    def _add_changes(self, states: CallStates, recording: Recording | None) -> None:
        """Add a call, between what others did before and after it at its paths."""
        self._pin(states.before)
        self._pin(states.after)
        if recording is None:  # of a server that was killed, or of a program with the filesystem
            recording = Recording(_OTHER_SESSION, "change", bypasses_filesystem=False)
        if recording.bypasses_filesystem:
            recording.replaced.append(states)  # the whole call is compared when it ends
            return
        if states.known is not None:
            self._add_foreign(states.known, states.before)
        if states.paths:
            step = replace(recording.to_step(), before=states.before, after=states.after)
            recording.step = self._steps.add(step.with_paths(frozenset(states.paths)))
        if states.later is not None:
            self._add_foreign(states.after, states.later)
        for each in states.saved:
            self._add_displaced(each, states.later or states.after)

    def _add_displaced(self, saved: FilesystemSnapshot, present: FilesystemSnapshot) -> None:
        """Add what the user saved and a call replaced: undo this step to restore it."""
        step = replace(_PERSON.to_step(), tool="replaced save", before=saved, after=present)
        step = self._steps.add(step.with_paths(self._changed_paths(step)))
        _log.warning(
            "The user saved %s while a call replaced it; to restore that: undo with call=%d",
            join_paths(step.paths),
            step.number,
        )

    def _add_foreign(self, known: FilesystemSnapshot, found: FilesystemSnapshot) -> None:
        """Add what was changed outside of this server, if no step of another one explains it."""
        step = replace(_PERSON.to_step(), before=known, after=found)
        changed = {path for path in self._changed_paths(step) if not self._is_known(path, found)}
        if not all(map(is_tool_output, changed)):
            self._steps.add(step.with_paths(changed))

    def _is_known(self, path: str, state: FilesystemSnapshot) -> bool:
        """Return whether a path is as the last step left it that changed it."""
        for step in reversed(self.steps):
            if step.after is not None and path in step.paths:
                return not self._compare(step.after, state, [path])
        return False

    def add_checkpoint(self, client: McpClient, name: str | None, note: str) -> Checkpoint:
        """Keep the present state under a name; one of an earlier session is replaced.

        Raises:
            ToolValidationError: This session has a checkpoint with the name, or it is not kept.
            SnapshotError: The state could not be kept.
        """
        taken = {each.name: each for each in self.checkpoints}
        name = (name or "").strip() or _free_name(taken)
        found = taken.get(name)
        if found is not None and found.session in ("", self._steps.session):
            raise ToolValidationError(
                f"There is a checkpoint {name!r} already; choose another name"
            )
        made = Checkpoint(
            name=name,
            note=note,
            client=client,
            after=self._steps.last_number,
            snapshot=self._take(f"checkpoint {name}"),
        )
        try:
            self._steps.add_checkpoint(made)
        except (OSError, LogError) as error:
            raise ToolValidationError(f"The checkpoint could not be recorded: {error}") from error
        return made

    def close(self) -> None:
        """Let all states go, and close the record file."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._steps.close()
        for unpin in self._unpin.values():
            unpin()
        self._unpin.clear()

    # --- looking back ---

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """The checkpoints, the start of this session first."""
        self.start()
        assert self._start is not None
        return (self._start, *self._steps.checkpoints)

    @property
    def steps(self) -> Sequence[Step]:
        """The calls that changed something or failed, the oldest first."""
        return self._steps.steps

    def undone_by(self, step: Step) -> int | None:
        """Return the number of the call that undid this one; None if none did."""
        return self._steps.undone_by(step.number)

    def find_step(self, number: int) -> Step:
        """Return a call that changed something.

        Raises:
            ToolValidationError: There is none with this number, or it failed.
        """
        step = self._steps.find(number)
        if step is None and 0 < number <= self._steps.last_number:
            raise ToolValidationError(
                f"Call {number} is too old and was forgotten: the last {MAX_STEPS:,} can be undone"
            )
        if step is None:
            raise ToolValidationError(f"There is no call {number}; `review` lists the calls")
        if step.after is None:
            raise ToolValidationError(f"Call {number} failed and changed nothing")
        return step

    def find_checkpoint(self, name: str) -> Checkpoint:
        """Return a checkpoint.

        Raises:
            ToolValidationError: There is none with this name.
        """
        checkpoints = {each.name: each for each in self.checkpoints}
        found = checkpoints.get(name)
        if found is None:
            known = ", ".join(list(checkpoints)[-20:])
            raise ToolValidationError(f"There is no checkpoint {name!r}; there are: {known}")
        return found

    def last_step_of(self, client: McpClient) -> Step | None:
        """Return the last call of a client that can be undone: no undo, and not undone."""
        return next(
            (
                step
                for step in reversed(self.steps)
                if (step.client, step.session) == (client, self._steps.session)
                and step.after is not None
                and not step.is_undo
                and self.undone_by(step) is None
            ),
            None,
        )

    def steps_since(self, checkpoint: Checkpoint) -> Sequence[Step]:
        """Return the calls after a checkpoint that changed something, the oldest first."""
        return [
            step
            for step in self.steps
            if step.number > checkpoint.after and step.after is not None and not step.is_foreign
        ]

    def diff(
        self, before: FilesystemSnapshot | None, after: FilesystemSnapshot | None = None
    ) -> Diff:
        """Return the changes between two states; None is the start, or the present state."""
        if before is None:
            before = self.checkpoints[0].snapshot
        if after is not None:
            found = diff(self._view(before), self._view(after))
        else:
            found = diff_since(self._live, before)
            assert found is not None  # it has snapshots
        return found.only(_is_project_change)

    def changed_paths(self, steps: Sequence[Step], chosen: Sequence[str] | None = None) -> set[str]:
        """Return what calls have changed, including directories; only at and below `chosen`."""
        found = set[str]().union(*map(self._changed_paths, steps))
        return {path for path in found if chosen is None or _is_within(path, chosen)}

    # --- undo ---

    def undo(self, steps: Sequence[Step], *, paths: Sequence[str] | None = None) -> tuple[str, ...]:
        """Undo calls, the latest first; return the restored paths.

        It runs in a transaction, which rolls back if a later call conflicts.

        Args:
            steps: The calls, the oldest first.
            paths: Undo only what is at and below these.

        Raises:
            UndoConflictError: A path is not any more what the call left.
            SnapshotError: A state could not be restored.
        """
        restored: set[str] = set()
        if self._recording is not None and paths is None:
            self._recording.undoes = tuple(step.number for step in steps)
        for part in self._plan(steps, paths):
            restored |= self._restore(part)
        return tuple(sorted(path for path in restored if not is_tool_output(path)))

    def _plan(self, steps: Sequence[Step], chosen: Sequence[str] | None) -> Sequence["_Part"]:
        """Return what to restore: one part for all calls, unless others came in between."""
        found = [_Part(step, step, self.changed_paths([step], chosen)) for step in steps]
        paths = set[str]().union(*(each.paths for each in found))
        if all(self._is_adjacent(one, other, paths) for one, other in pairwise(steps)):
            return [_Part(steps[0], steps[-1], paths)]
        return found[::-1]

    def _is_adjacent(self, one: Step, other: Step, paths: Collection[str]) -> bool:
        """Return whether nothing changed paths between two calls."""
        assert one.after is not None
        assert other.before is not None
        return one.after == other.before or not self._compare(one.after, other.before, paths)

    def _restore(self, part: "_Part") -> set[str]:
        """Restore some paths, where they still are what the calls left."""
        target, expected = part.first.before, part.last.after
        assert target is not None
        assert expected is not None
        changed = self._compare(expected, target, part.paths)
        left = changed & self._differences(target, changed)
        if left:
            try:
                self._store.restore(target, paths=sorted(changed & part.paths), expect=expected)
            except StaleRestoreError as error:
                later = self._differences(expected, left)
                found = {each for each in later if each in left or _is_within(each, error.paths)}
                found |= {each for each in error.paths if not _has_below(each, found)}
                text = self._describe_conflicts(part.last, sorted(found))
                raise UndoConflictError(text) from error
        return left

    def _describe_conflicts(self, step: Step, paths: Sequence[str]) -> str:
        lines = [f"- {display_path(path)}: {self._blame(step, path)}" for path in paths]
        more = len(lines) - _MAX_CONFLICTS
        if more > 0:
            lines = [*lines[:_MAX_CONFLICTS], f"- and {more:,} more"]
        return "\n".join(
            [
                f"Nothing was undone: undoing {step} would lose later changes of",
                *lines,
                "Undo the later calls first, or choose other paths with `paths`.",
            ]
        )

    def _blame(self, step: Step, path: str) -> str:
        """Return who changed a path after a call, as far as that is known."""
        for later in reversed(self.steps):
            if later.number <= step.number:
                break
            if later.after is not None and path in self._changed_paths(later):
                return f"changed by {later}"
        return f"changed since call {step.number} by the user or another program"

    # --- states ---

    def _take(self, tag: str) -> FilesystemSnapshot:
        """Return a new snapshot of the present state."""
        return self._pin(self._store.snapshot(tag=tag))

    def _pin(self, state: FilesystemSnapshot) -> FilesystemSnapshot:
        """Keep a state from being pruned while a step or checkpoint needs it."""
        if isinstance(self._live, Pinnable) and state.commit_ref not in self._unpin:
            with suppress(NotImplementedError):
                self._unpin[state.commit_ref] = self._live.pin(state)
        if len(self._unpin) > 2 * MAX_STEPS + MAX_CHECKPOINTS:
            self._unpin_old()
        return state

    def _view(self, snapshot: FilesystemSnapshot) -> ReadableFilesystem:
        """Return the files of a state."""
        view = self._store.view(snapshot)
        assert isinstance(view, ReadableFilesystem)
        return view

    def _changed_paths(self, step: Step) -> set[str]:
        """Return what a call changed, including directories."""
        assert step.before is not None
        assert step.after is not None
        return self._compare(step.before, step.after)

    def _compare(
        self,
        before: FilesystemSnapshot,
        after: FilesystemSnapshot,
        paths: Collection[str] | None = None,
    ) -> set[str]:
        """Return what is different between two states, or only at and below `paths`."""
        if paths is None and isinstance(self._live, HostFilesystem):
            return {*self._live.compare(before, after)}  # by the ids of trees
        return _find_differences(self._view(before), self._view(after), paths)

    def _differences(self, snapshot: FilesystemSnapshot, paths: Collection[str]) -> set[str]:
        """Return what is different now from a state, at and below `paths`."""
        return _find_differences(self._view(snapshot), self._live, paths)

    def _unpin_old(self) -> None:
        """Let states go that no step and no checkpoint needs."""
        needed = {each.snapshot.commit_ref for each in self.checkpoints}
        for step in self.steps:
            needed |= {each.commit_ref for each in (step.before, step.after) if each is not None}
        for reference in self._unpin.keys() - needed:
            self._unpin.pop(reference)()


@dataclass(frozen=True, slots=True)
class _Part:
    """Paths to restore: from the state after the last of some calls to that before the first."""

    first: Step
    last: Step
    paths: AbstractSet[str]


def _explain(error: Exception) -> str:
    return f"[Done, but this call cannot be undone, because it could not be recorded: {error}]"


def _find_differences(
    before: ReadableFilesystem, after: ReadableFilesystem, paths: Collection[str] | None
) -> set[str]:
    """Return what is different, including directories, or only at and below `paths`."""
    wanted: Sequence[str] = ("",)
    if paths is not None:
        wanted = [
            path for path in outermost(paths) if _has_entry(before, path) or _has_entry(after, path)
        ]
    found = diff(before, after, path=wanted, renames=False).entries if wanted else ()
    return {each.path for each in found}


def join_paths(paths: Sequence[str]) -> str:
    """Return paths as text; bounded."""
    shown = ", ".join(map(display_path, paths[:MAX_LISTED]))
    more = len(paths) - MAX_LISTED
    return f"{shown} and {more:,} more" if more > 0 else shown


def _is_project_change(change: Change) -> bool:
    return not is_tool_output(change.path)


def _is_within(path: str, parents: Iterable[str]) -> bool:
    return any(not each or f"{path}/".startswith(f"{each}/") for each in parents)


def _has_below(path: str, paths: Iterable[str]) -> bool:
    return any(each.startswith(f"{path}/") for each in paths)


def _has_entry(filesystem: Filesystem, path: str) -> bool:
    try:
        filesystem.stat(path)
    except OSError:
        return False
    return True


def _free_name(taken: Container[str]) -> str:
    return next(name for n in count(1) if (name := f"checkpoint-{n}") not in taken)
