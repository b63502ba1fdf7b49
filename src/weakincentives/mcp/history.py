"""The history of a workspace: the state before and after every call, checkpoints, and undo.

States are snapshots of the filesystem, so a call costs what it changes and a state costs no
memory. Undo restores what a call changed and nothing else: a path is restored only if it still
is what the call left. Otherwise nothing changes, and the error names the path and who changed it.
"""

import logging
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from threading import Lock
from typing import Protocol, runtime_checkable

from weakincentives.errors import SnapshotError, ToolValidationError
from weakincentives.filesystem import (
    Change,
    Diff,
    Filesystem,
    FilesystemEvent,
    FilesystemSnapshot,
    Observable,
    Pinnable,
    ReadableFilesystem,
    StateReplaced,
    diff,
    diff_since,
)
from weakincentives.filesystem.base import State, is_tool_output
from weakincentives.filesystem.paths import outermost
from weakincentives.history.log import LogError
from weakincentives.mcp.clients import McpClient
from weakincentives.mcp.steps import MAX_CHECKPOINTS, MAX_STEPS, Checkpoint, Step, StepLog
from weakincentives.posix import display_path, no_time_limit, parents_of

_MAX_CONFLICTS = 20
START = "start"
"""The name of the first checkpoint: the state when the server started."""
_log = logging.getLogger(__name__)


class UndoConflictError(ToolValidationError):
    """A call cannot be undone without losing a later change."""


@runtime_checkable
class _StateStore(Protocol):
    """Keeps states, shows them, and restores some of their paths."""

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot: ...

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Sequence[str] | None = None
    ) -> None: ...

    def view(self, snapshot: FilesystemSnapshot) -> Filesystem: ...


def has_history(filesystem: Filesystem) -> bool:
    """Return whether the states of a filesystem can be kept, compared and restored."""
    return isinstance(filesystem, ReadableFilesystem) and isinstance(filesystem, _StateStore)


class Recording:
    """A call that runs: the state before it, and what it changes."""

    def __init__(self, client: McpClient, tool: str, *, bypasses_filesystem: bool) -> None:
        """Record a call; one that bypasses the filesystem may change anything."""
        self.client = client
        self.tool = tool
        self.bypasses_filesystem = bypasses_filesystem
        self.before: FilesystemSnapshot | None = None
        self.paths: set[str] = set()
        self.is_open_ended: bool = bypasses_filesystem
        self.undoes: tuple[int, ...] = ()
        self.rolled_back: FilesystemSnapshot | None = None
        self.command: int = 0
        self.problem: str | None = None
        self.end: Callable[[], None] = _do_nothing

    def add(self, event: FilesystemEvent) -> None:
        """Record the paths of an event."""
        if isinstance(event, StateReplaced):
            if event.reason != "rollback":
                self.is_open_ended = True
            return
        self.paths.update(
            path for name in ("path", "source") if (path := getattr(event, name, None)) is not None
        )


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the history knows about a call that has ended.

    Args:
        step: Its step; None if it changed nothing.
        problem: What cannot be undone, and why; None if all can.
    """

    step: Step | None = None
    problem: str | None = None


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
        self._last: FilesystemSnapshot | None = None
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
            if self._steps.problem is not None:
                _log.warning("Some calls cannot be listed and undone: %s", self._steps.problem)
            self._start = Checkpoint(name=START, snapshot=state, after=self._steps.last_number)

    def _add_interrupted(self, present: FilesystemSnapshot) -> None:
        """Add the commands during which an earlier server was killed: they can be undone."""
        for command in self._steps.interrupted():
            step = replace(command, after=present)
            with suppress(SnapshotError):  # the state before it is gone
                changed = self._changed_paths(step)
                if changed:
                    step = self._steps.add(step.with_paths(changed))
                    _log.warning("The server was killed during %s; undo it to go back", step)

    def begin(
        self, client: McpClient, tool: str, *, bypasses_filesystem: bool = False
    ) -> Recording:
        """Keep the state before a call that may change something."""
        recording = Recording(client, tool, bypasses_filesystem=bypasses_filesystem)
        self._recording = recording
        try:
            self.start()
            recording.before = self._present("before a call")
            if bypasses_filesystem:
                step = Step(client=client, tool=tool, before=recording.before)
                recording.command = self._steps.begin(step)
        except SnapshotError as error:
            recording.problem = f"this call cannot be undone: {error}"
        except (OSError, LogError) as error:
            recording.problem = (
                f"this call cannot be undone if the server is killed while it runs: {error}"
            )
        if isinstance(self._live, Observable):
            recording.end = self._live.subscribe(recording.add)
        return recording

    def finish(self, recording: Recording, *, success: bool) -> Recorded:
        """Add a step for a call, if it changed something or failed.

        A call that has ended is recorded even if it is cancelled now.
        """
        recording.end()
        self._recording = None
        problem = recording.problem
        try:
            with no_time_limit():
                step = self._record(recording, success=success)
                return Recorded(step, problem)
        except SnapshotError as error:
            problem = f"this call cannot be undone: {error}"
        except (OSError, LogError) as error:
            problem = f"this call cannot be undone, because it could not be recorded: {error}"
        finally:
            self._steps.end(recording.command)
        return Recorded(None, problem)

    def _record(self, recording: Recording, *, success: bool) -> Step | None:
        before = recording.before
        step = Step(client=recording.client, tool=recording.tool, command=recording.command)
        if not success:
            if recording.rolled_back is None:
                return self._steps.add(step)
            self._last = before  # which the rollback has restored
            self._add_rolled_back(replace(step, before=before, after=recording.rolled_back))
            return None
        if before is None or not (recording.paths or recording.is_open_ended):
            return None
        after = self._take_if_changed(before, f"after {step.tool}")
        if after is None:
            return None
        own = None if recording.is_open_ended else frozenset(recording.paths)
        step = replace(step, before=before, after=after, undoes=recording.undoes, own=own)
        # a comparison costs more than the rest, so it is only done if nothing else knows
        changed = self._changed_paths(step) if step.own is None else step.own
        return self._steps.add(step.with_paths(changed))

    def keep_before_rollback(self) -> None:
        """Keep the present state, because the running call is about to be rolled back.

        A rollback of a command replaces all files, also those that a person changed meanwhile.
        """
        recording = self._recording
        if recording is None or recording.before is None:
            return
        with no_time_limit(), suppress(SnapshotError):
            recording.rolled_back = self._take_if_changed(recording.before, "before a rollback")

    def _add_rolled_back(self, step: Step) -> None:
        """Add a call and the undo of it, so that what the rollback removed can be had again."""
        step = self._steps.add(step.with_paths(self._changed_paths(step)))
        rollback = self._steps.add(step.reverse())
        _log.warning(
            "%s did not end and was rolled back, with everything that changed while it ran; to get"
            " such a change back: undo with call=%d and its path",
            step,
            rollback.number,
        )

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
            snapshot=self._present(f"checkpoint {name}"),
        )
        try:
            self._steps.add_checkpoint(made)
        except (OSError, LogError) as error:
            raise ToolValidationError(f"The checkpoint could not be recorded: {error}") from error
        return made

    def close(self) -> None:
        """Let all states go, and close the record file."""
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
            step for step in self.steps if step.number > checkpoint.after and step.after is not None
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
        if paths is None and self._is_gapless(steps):
            assert steps[0].before is not None
            restored |= self._differences(steps[0].before, [""])
            self._store.restore(steps[0].before)
        else:
            for step in reversed(steps):
                restored |= self._undo_one(step, paths)
        if self._recording is not None:
            self._recording.paths |= restored
            self._recording.is_open_ended = False
            if paths is None:
                self._recording.undoes = tuple(step.number for step in steps)
        return tuple(sorted(path for path in restored if not is_tool_output(path)))

    def _is_gapless(self, steps: Sequence[Step]) -> bool:
        """Return whether nothing but these calls has changed files since the first of them."""
        if len(steps) < 2 or steps[-1].after is None:
            return False
        return (
            all(map(self._is_alone, steps))
            and all(one.after == other.before for one, other in pairwise(steps))
            and not self._differences(steps[-1].after, [""])
        )

    def _is_alone(self, step: Step) -> bool:
        """Return whether nothing else changed files at the same time as a call."""
        return step.own is None or all(_is_own(step, each) for each in self._entries(step))

    def _undo_one(self, step: Step, chosen: Sequence[str] | None) -> set[str]:
        """Restore what one call changed, where it still is what the call left."""
        assert step.before is not None
        assert step.after is not None
        changed = self.changed_paths([step], chosen)
        before, live = self._view(step.before), self._live
        kept = {
            path for path in changed if _is_directory(before, path) and _is_directory(live, path)
        }
        # with its mode, a directory is restored with everything below it
        modes = {
            path for path in kept if live.stat(path).permissions != before.stat(path).permissions
        }
        places = outermost((changed - kept) | modes)
        wanted = [path for path in places if _has_entry(before, path) or _has_entry(live, path)]
        if not wanted:
            return set()
        effect = diff(live, before, path=wanted, renames=False).entries
        later = self._differences(step.after, wanted)
        conflicts = [
            each.path
            for each in effect
            if each.path in later or (each.path not in changed and not _is_new_parent(each, wanted))
        ]
        if conflicts:
            raise UndoConflictError(self._describe_conflicts(step, sorted(conflicts)))
        if effect:
            paths = [path for path in wanted if any(_is_within(e.path, [path]) for e in effect)]
            self._store.restore(step.before, paths=paths)
        return {each.path for each in effect}

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
        taken = self._store.snapshot(tag=tag)
        if isinstance(self._live, Pinnable):
            with suppress(NotImplementedError):
                self._unpin[taken.commit_ref] = self._live.pin(taken)
        if len(self._unpin) > 2 * MAX_STEPS + MAX_CHECKPOINTS:
            self._unpin_old()
        self._last = taken
        return taken

    def _present(self, tag: str) -> FilesystemSnapshot:
        """Return a snapshot of the present state; the last one if nothing has changed."""
        if self._last is not None:
            with suppress(SnapshotError, OSError):
                if not diff_since(self._live, self._last, renames=False):
                    return self._last
        return self._take(tag)

    def _take_if_changed(self, before: FilesystemSnapshot, tag: str) -> FilesystemSnapshot | None:
        """Return a snapshot of the present state; None if it is the same as `before`."""
        taken = self._take(tag)
        if not State(self._view(before)).has_same_tree("", State(self._view(taken))):
            return taken
        self._unpin.pop(taken.commit_ref, _do_nothing)()
        self._last = before
        return None

    def _view(self, snapshot: FilesystemSnapshot) -> ReadableFilesystem:
        """Return the files of a state."""
        view = self._store.view(snapshot)
        assert isinstance(view, ReadableFilesystem)
        return view

    def _differences(self, snapshot: FilesystemSnapshot, paths: Sequence[str]) -> set[str]:
        """Return what is different now from a state, at and below `paths`."""
        then = self._view(snapshot)
        existing = [
            each for each in paths if _has_entry(then, each) or _has_entry(self._live, each)
        ]
        if not existing:
            return set()
        return {each.path for each in diff(then, self._live, path=existing, renames=False).entries}

    def _changed_paths(self, step: Step) -> set[str]:
        """Return what a call changed, including directories."""
        return {each.path for each in self._entries(step) if _is_own(step, each)}

    def _entries(self, step: Step) -> Sequence[Change]:
        """Return what is different after a call."""
        assert step.before is not None
        assert step.after is not None
        return diff(self._view(step.before), self._view(step.after), renames=False).entries

    def _unpin_old(self) -> None:
        """Let states go that no step and no checkpoint needs."""
        needed = {each.snapshot.commit_ref for each in self.checkpoints}
        for step in self.steps:
            needed |= {each.commit_ref for each in (step.before, step.after) if each is not None}
        for reference in self._unpin.keys() - needed:
            self._unpin.pop(reference)()


def _is_own(step: Step, change: Change) -> bool:
    """Return whether a call made a change itself; a move or deletion covers everything below."""
    if step.own is None or change.path in step.own:
        return True
    if not step.own.isdisjoint(parents_of(change.path)):
        return True
    # a directory that was created or emptied for one of its paths
    is_parent = any(each.startswith(f"{change.path}/") for each in step.own)
    return change.is_directory and change.kind in ("added", "removed") and is_parent


def _is_project_change(change: Change) -> bool:
    return not is_tool_output(change.path)


def _is_within(path: str, parents: Iterable[str]) -> bool:
    return any(not each or f"{path}/".startswith(f"{each}/") for each in parents)


def _is_new_parent(change: Change, wanted: Sequence[str]) -> bool:
    """Return whether a change is a directory that a restored path needs above it."""
    is_new = change.before is None and change.is_directory
    return is_new and any(path.startswith(f"{change.path}/") for path in wanted)


def _is_directory(filesystem: Filesystem, path: str) -> bool:
    try:
        return filesystem.stat(path).is_directory
    except OSError:
        return False


def _has_entry(filesystem: Filesystem, path: str) -> bool:
    try:
        filesystem.stat(path)
    except OSError:
        return False
    return True


def _free_name(taken: Container[str]) -> str:
    return next(name for n in count(1) if (name := f"checkpoint-{n}") not in taken)


def _do_nothing() -> None:
    pass
