"""The history of a workspace: the state before and after every call, checkpoints, and undo.

States are snapshots of the filesystem, so a call costs what it changes and a state costs no
memory. Undo takes back what a call changed and nothing else: a path is restored only if it still
is what the call left. Otherwise nothing changes, and the error names the path and who changed it.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from threading import Lock

from weakincentives.errors import SnapshotError, ToolValidationError
from weakincentives.filesystem import (
    Change,
    Diff,
    Filesystem,
    FilesystemSnapshot,
    HostFilesystem,
    Observable,
    diff,
)
from weakincentives.filesystem.base import is_tool_output
from weakincentives.filesystem.paths import outermost
from weakincentives.mcp.clients import McpClient
from weakincentives.mcp.states import States, has_entry
from weakincentives.mcp.steps import (
    Checkpoint,
    Recording,
    Step,
    StepLog,
    find_undone,
    is_own,
    with_paths,
)
from weakincentives.posix import display_path, no_time_limit

MAX_STEPS = 10_000
"""Calls that can be undone; older ones are forgotten."""
MAX_CHECKPOINTS = 1_000
"""Checkpoints that are kept."""
_MAX_CONFLICTS = 20
START = "start"
"""The name of the first checkpoint: the state when the server started."""
_log = logging.getLogger(__name__)


class UndoConflictError(ToolValidationError):
    """A call cannot be undone without losing a later change."""


class History:
    """The steps and checkpoints of a workspace.

    Not thread-safe: calls that change something run one after the other.
    """

    def __init__(self, filesystem: Filesystem, log: StepLog | None = None) -> None:
        """Keep the history of `filesystem`, from the first call of `start` on.

        Args:
            filesystem: The workspace.
            log: Keeps the calls for later sessions, and has those of earlier ones.

        Raises:
            TypeError: The filesystem has no snapshots to compare and restore.
        """
        self._filesystem: Filesystem = filesystem
        self._states = States(filesystem)
        self._recording: Recording | None = None
        self._steps: OrderedDict[int, Step] = OrderedDict()
        self._undone: dict[int, int] = {}
        self._last_number = 0
        self._checkpoints: OrderedDict[str, Checkpoint] = OrderedDict()
        self._start_lock = Lock()
        self.problem: str | None = None
        """Why the last call cannot be undone, if its state could not be kept."""
        self._log: StepLog | None = None
        for step in () if log is None else log.load():
            self._add(step)
        self._log = log

    # --- recording ---

    def start(self) -> None:
        """Keep the present state as the start; does nothing if there is one."""
        with self._start_lock:  # calls that only read may come while the first state is taken
            if START not in self._checkpoints:
                state = self._states.take(START)
                self._add_interrupted(state)
                self._add_recovery(state)
                self._checkpoints[START] = Checkpoint(
                    name=START, snapshot=state, after=self._last_number
                )

    def _add_interrupted(self, present: FilesystemSnapshot) -> None:
        """Add the commands during which an earlier server was killed: they can be undone."""
        for step in () if self._log is None else self._log.interrupted():
            with suppress(SnapshotError, OSError):  # the state before it is gone
                step = replace(step, number=self._last_number + 1, after=present)
                changed = self._changed_paths(step)
                if changed:
                    self._add(with_paths(step, changed))

    def _add_recovery(self, present: FilesystemSnapshot) -> None:
        """Add the recovery from a kill during an undo: it replaced what was changed since."""
        files = self._filesystem
        found = files.recovered_from if isinstance(files, HostFilesystem) else None
        if found is None:
            return
        step = Step(
            number=self._last_number + 1,
            client=McpClient("wink", 0),
            tool="recovery",
            before=found,
            after=present,
        )
        changed = self._changed_paths(step)
        if changed:
            step = self._add(with_paths(step, changed))
            _log.warning(
                "An undo was interrupted, and the files are as before it. What was changed since is"
                " kept; to get it back: undo with call=%d and the paths",
                step.number,
            )

    def begin(
        self, client: McpClient, tool: str, *, bypasses_filesystem: bool = False
    ) -> Recording:
        """Keep the state before a call that may change something."""
        recording = self._recording = Recording(bypasses_filesystem=bypasses_filesystem)
        try:
            self.start()
            recording.before = self._states.present("before a call")
            self.problem = None
        except SnapshotError as error:
            self.problem = str(error)
        if bypasses_filesystem and recording.before is not None and self._log is not None:
            number = self._last_number + 1
            with suppress(OSError):  # as in _add
                self._log.begin(
                    Step(number=number, client=client, tool=tool, before=recording.before)
                )
        if isinstance(self._filesystem, Observable):
            recording.end = self._filesystem.subscribe(recording.add)
        return recording

    def finish(
        self, recording: Recording, client: McpClient, tool: str, *, success: bool
    ) -> Step | None:
        """Add a step for a call, if it changed something or failed; return it.

        A call that has ended is recorded even if it is cancelled now.
        """
        try:
            with no_time_limit():
                return self._finish(recording, client, tool, success=success)
        finally:
            if self._log is not None:
                self._log.end()

    def _finish(
        self, recording: Recording, client: McpClient, tool: str, *, success: bool
    ) -> Step | None:
        recording.end()
        self._recording = None
        before = recording.before
        if not success:
            failed = Step(number=self._last_number + 1, client=client, tool=tool)
            if recording.rolled_back is None:
                return self._add(failed)
            self._states.last = before  # which the rollback has restored
            self._add_rolled_back(replace(failed, before=before, after=recording.rolled_back))
            return None
        if before is None or not (recording.paths or recording.is_open_ended):
            return None
        try:
            after = self._states.take_if_changed(before, f"after {tool}")
        except SnapshotError as error:
            self.problem = str(error)
            return None
        if after is None:
            return None
        step = Step(
            number=self._last_number + 1,
            client=client,
            tool=tool,
            before=before,
            after=after,
            undoes=recording.undoes,
            own=None if recording.is_open_ended else frozenset(recording.paths),
        )
        # a comparison costs more than the rest, so it is only done if nothing else knows
        changed = self._changed_paths(step) if step.own is None else step.own
        return self._add(with_paths(step, changed))

    def keep_before_rollback(self) -> None:
        """Keep the present state, because the running call is about to be rolled back.

        A rollback of a command replaces all files, also those that a person changed meanwhile.
        """
        recording = self._recording
        if recording is None or recording.before is None:
            return
        with no_time_limit(), suppress(SnapshotError):
            recording.rolled_back = self._states.take_if_changed(
                recording.before, "before a rollback"
            )

    def _add_rolled_back(self, step: Step) -> None:
        """Add a call and the undo of it, so that what the rollback removed can be had again."""
        step = self._add(with_paths(step, self._changed_paths(step)))
        rollback = self._add(step.reverse())
        _log.warning(
            "%s did not end and was rolled back, with everything that changed while it ran; to get"
            " such a change back: undo with call=%d and its path",
            step,
            rollback.number,
        )

    def add_checkpoint(self, client: McpClient, name: str | None, note: str) -> Checkpoint:
        """Keep the present state under a name.

        Raises:
            ToolValidationError: The name is taken, or there are too many.
            SnapshotError: The state could not be kept.
        """
        if len(self._checkpoints) > MAX_CHECKPOINTS:
            raise ToolValidationError(f"There are {MAX_CHECKPOINTS:,} checkpoints already")
        name = (name or "").strip() or self._free_name()
        if name in self._checkpoints:
            raise ToolValidationError(
                f"There is a checkpoint {name!r} already; choose another name"
            )
        made = Checkpoint(
            name=name,
            note=note,
            client=client,
            after=self._last_number,
            snapshot=self._states.present(f"checkpoint {name}"),
        )
        self._checkpoints[name] = made
        return made

    # --- looking back ---

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """The checkpoints, the start first."""
        return tuple(self._checkpoints.values())

    @property
    def steps(self) -> Sequence[Step]:
        """The calls that changed something or failed, the oldest first."""
        return tuple(self._steps.values())

    @property
    def last_number(self) -> int:
        """The number of the last step."""
        return self._last_number

    def undone_by(self, step: Step) -> int | None:
        """Return the number of the call that took this one back; None if none did."""
        return self._undone.get(step.number)

    def find_step(self, number: int) -> Step:
        """Return a call that changed something.

        Raises:
            ToolValidationError: There is none with this number, or it failed.
        """
        step = self._steps.get(number)
        if step is None:
            forgotten = 0 < number <= self._last_number
            reason = "is too old" if forgotten else "did not change anything, or there is none"
            raise ToolValidationError(f"Call {number} {reason}; `review` lists the calls")
        if step.after is None:
            raise ToolValidationError(f"Call {number} failed and changed nothing")
        return step

    def find_checkpoint(self, name: str) -> Checkpoint:
        """Return a checkpoint.

        Raises:
            ToolValidationError: There is none with this name.
        """
        found = self._checkpoints.get(name)
        if found is None:
            known = ", ".join(list(self._checkpoints)[-20:])
            raise ToolValidationError(f"There is no checkpoint {name!r}; there are: {known}")
        return found

    def last_step_of(self, client: McpClient) -> Step | None:
        """Return the last call of a client that can be taken back: no undo, and not undone."""
        return next(
            (
                step
                for step in reversed(self._steps.values())
                if step.client == client
                and step.after is not None
                and not step.is_undo
                and step.number not in self._undone
            ),
            None,
        )

    def steps_since(self, checkpoint: Checkpoint) -> Sequence[Step]:
        """Return the calls after a checkpoint that changed something, the oldest first."""
        return [
            step
            for step in self._steps.values()
            if step.number > checkpoint.after and step.after is not None
        ]

    def diff(
        self, before: FilesystemSnapshot | None, after: FilesystemSnapshot | None = None
    ) -> Diff:
        """Return the changes between two states; None is the start, or the present state."""
        if before is None:
            self.start()
            before = self._checkpoints[START].snapshot
        return self._states.diff(before, after).only(_is_project_change)

    def changed_paths(self, steps: Sequence[Step], chosen: Sequence[str] | None = None) -> set[str]:
        """Return what calls have changed, including directories; only at and below `chosen`."""
        found = set[str]().union(*map(self._changed_paths, steps))
        return {path for path in found if chosen is None or _is_within(path, chosen)}

    # --- undo ---

    def undo(self, steps: Sequence[Step], *, paths: Sequence[str] | None = None) -> tuple[str, ...]:
        """Take back calls, the latest first; return the restored paths.

        It runs in a transaction, which rolls back if a later call conflicts.

        Args:
            steps: The calls, the oldest first.
            paths: Take back only what is at and below these.

        Raises:
            UndoConflictError: A path is not any more what the call left.
            SnapshotError: A state could not be restored.
        """
        restored: set[str] = set()
        if paths is None and self._is_gapless(steps):
            assert steps[0].before is not None
            restored |= self._states.differences(steps[0].before, [""])
            self._states.restore(steps[0].before)
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
            and all(one.after is other.before for one, other in pairwise(steps))
            and not self._states.differences(steps[-1].after, [""])
        )

    def _is_alone(self, step: Step) -> bool:
        """Return whether nothing else changed files at the same time as a call."""
        return step.own is None or all(is_own(step, each) for each in self._entries(step))

    def _undo_one(self, step: Step, chosen: Sequence[str] | None) -> set[str]:
        """Restore what one call changed, where it still is what the call left."""
        assert step.before is not None
        assert step.after is not None
        changed = self.changed_paths([step], chosen)
        before, live = self._states.view(step.before), self._states.live
        kept = {
            path for path in changed if _is_directory(before, path) and _is_directory(live, path)
        }
        # with its mode, a directory is restored with everything below it
        modes = {
            path for path in kept if live.stat(path).permissions != before.stat(path).permissions
        }
        places = outermost((changed - kept) | modes)
        wanted = [path for path in places if has_entry(before, path) or has_entry(live, path)]
        if not wanted:
            return set()
        effect = diff(live, before, path=wanted, renames=False).entries
        later = self._states.differences(step.after, wanted)
        conflicts = [
            each.path
            for each in effect
            if each.path in later or (each.path not in changed and not _is_new_parent(each, wanted))
        ]
        if conflicts:
            raise UndoConflictError(self._describe_conflicts(step, sorted(conflicts)))
        if effect:
            paths = [path for path in wanted if any(_is_within(e.path, [path]) for e in effect)]
            self._states.restore(step.before, paths=paths)
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
        for later in reversed(self._steps.values()):
            if later.number <= step.number:
                break
            if later.after is not None and path in self._changed_paths(later):
                return f"changed by {later}"
        return f"changed since call {step.number} by somebody else, outside this server"

    # --- steps ---

    def _add(self, step: Step) -> Step:
        self._last_number = step.number
        self._steps[step.number] = step
        if step.undoes:
            self._undone = find_undone(self._steps.values())
        if len(self._steps) > MAX_STEPS:
            number, _ = self._steps.popitem(last=False)
            self._undone.pop(number, None)
            self._release_states()
        if self._log is not None:
            with suppress(OSError):  # a full disk must not fail a call that has happened
                self._log.append(step)
        return step

    def _changed_paths(self, step: Step) -> set[str]:
        """Return what a call changed, including directories."""
        return {each.path for each in self._entries(step) if is_own(step, each)}

    def _entries(self, step: Step) -> Sequence[Change]:
        """Return what is different after a call."""
        assert step.before is not None
        assert step.after is not None
        before, after = self._states.view(step.before), self._states.view(step.after)
        return diff(before, after, renames=False).entries

    def _release_states(self) -> None:
        """Let states go that no step and no checkpoint needs."""
        needed = {each.snapshot.commit_ref for each in self._checkpoints.values()}
        for step in self._steps.values():
            needed |= {each.commit_ref for each in (step.before, step.after) if each is not None}
        self._states.release_others(needed)

    def close(self) -> None:
        """Let all states go."""
        self._states.close()

    def _free_name(self) -> str:
        number = len(self._checkpoints)
        while f"checkpoint-{number}" in self._checkpoints:
            number += 1
        return f"checkpoint-{number}"


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
