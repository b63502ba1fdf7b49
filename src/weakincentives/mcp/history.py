"""The history of a workspace: the state before and after every call, checkpoints, and undo.

States are snapshots of the filesystem, so a call costs what it changes and a state costs no
memory. Undo restores what a call changed and nothing else: a path is restored only if it still
is what the call left. Otherwise nothing changes, and the error names the path and who changed it.
"""

import logging
import posixpath
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import count, pairwise, product, takewhile
from pathlib import Path
from threading import Lock
from typing import Protocol, runtime_checkable

from weakincentives.errors import (
    SnapshotError,
    StaleRestoreError,
    ToolValidationError,
    UnfinishedRestoreError,
)
from weakincentives.filesystem import (
    Diff,
    Filesystem,
    FilesystemSnapshot,
    PathChange,
    ReadableFilesystem,
    ReportsChanges,
    Reversible,
    SnapshotableFilesystem,
    SnapshotHistory,
    diff,
    diff_since,
)
from weakincentives.filesystem.base import is_tool_output
from weakincentives.filesystem.host import CallStates
from weakincentives.history import LogError
from weakincentives.mcp.steps import (
    MAX_STEPS,
    OTHER_PROGRAM,
    USER,
    Checkpoint,
    KeptState,
    Step,
    StepLog,
    find_undone,
)
from weakincentives.posix import (
    display_path,
    display_paths,
    is_within,
    join,
    no_time_limit,
    parent_of,
    parents_of,
)
from weakincentives.prompt import ToolContext
from weakincentives.runtime import transaction

_MAX_CONFLICTS = 20
_MAX_COMPARED = 16  # pairs of states
MAX_LISTED = 100
"""Paths in one sentence."""
START = "start"
"""The name of the first checkpoint: the state when the server started."""
_BY_CALL = "changed by "
_REPLACED = ("before restore", "saved during a restore")  # tags of what a restore replaced
_log = logging.getLogger(__name__)


class UndoConflictError(ToolValidationError):
    """A call cannot be undone without losing a later change."""


@runtime_checkable
class _StateStore(SnapshotableFilesystem, Protocol):
    """Keeps states, shows them, and restores some of their paths."""

    def restore(
        self,
        snapshot: FilesystemSnapshot,
        *,
        paths: Sequence[str] | None = None,
        expect: FilesystemSnapshot | None = None,
    ) -> None: ...

    def view(self, snapshot: FilesystemSnapshot) -> ReadableFilesystem: ...


@runtime_checkable
class _ChangeStore(ReportsChanges, Reversible, Protocol):
    """Reports what a call changed, and puts that into the last state that it knows."""

    @property
    def history(self) -> SnapshotHistory: ...

    def record_changes(self, changes: Sequence[PathChange]) -> CallStates: ...


@dataclass(slots=True, eq=False)
class RecordedCall:
    """A call that runs."""

    draft: Step
    """Its step as far as it is known; the state before only if its changes do not tell it."""
    bypasses_filesystem: bool = False
    success: bool = False
    step: Step | None = None
    """Its step in the history, once it has changed something or failed."""
    replaced: list[CallStates] = field(default_factory=list[CallStates])
    """What a command replaced through the filesystem; if it fails, its rollback is the last."""
    notes: list[str] = field(default_factory=list[str])
    is_cut_off: bool = False
    """Whether it has left a mix of two states, which the next start rolls back and lists."""


class History:
    """The steps and checkpoints of a workspace.

    Not thread-safe: calls that change something run one after the other.
    """

    def __init__(self, filesystem: _StateStore, directory: Path | None = None) -> None:
        """Keep the history of `filesystem`, from the first call of `start` on.

        Args:
            filesystem: The workspace.
            directory: Where the steps are kept for later sessions; None keeps them in memory.
        """
        self._store = filesystem
        self._changes = filesystem if isinstance(filesystem, _ChangeStore) else None
        self.log: StepLog = StepLog(directory)
        """The steps and checkpoints, except for the start."""
        self._start: KeptState | None = None
        self._start_lock = Lock()
        self._unsubscribe: Callable[[], None] = lambda: None
        self._unrecorded: dict[frozenset[str], RecordedCall] = {}
        self._recording: RecordedCall | None = None
        # an undo asks for its paths several times: for policies, for the plan, for the restore
        self._compared: dict[tuple[str, str], AbstractSet[str]] = {}

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
            state = self._store.snapshot(tag=START)
            for step in self.log.interrupted():
                with suppress(SnapshotError):  # the state before it is gone
                    self._add_interrupted(step, state)
            if self._changes is not None:
                self._unsubscribe = self._changes.subscribe_changes(self._on_changes)
            if self.log.problem is not None:
                _log.warning("Some calls cannot be listed and undone: %s", self.log.problem)
            start = Checkpoint(name=START, call=self.log.last_number)
            self._start = KeptState(start, state, self.log.session)

    def _add_interrupted(self, step: Step, present: FilesystemSnapshot) -> None:
        """Add a command or an undo during which an earlier server was killed."""
        replaced = None if step.is_undo else self._find_replaced(step)
        if step.is_rolled_back:
            self._add_rollback(step, present)
        elif replaced is not None:  # the rollback of a command was not recorded
            self._add_rolled_back(step, replaced, present)
        elif not step.is_undo:
            added = None if step.before is None else self._add(step, step.before, present)
            if added is not None:
                _log.warning("The server was killed during %s; undo it to go back", added)
        elif step.after is not None and not any(
            is_within(each, step.paths) for each in self._compare(present, step.after)
        ):
            self.log.add(replace(step, is_interrupted=False))  # it had done everything
        else:
            step = self.log.add(step.as_failed())
            _log.warning("%s was interrupted and rolled back; to try again, undo the call", step)

    def _find_replaced(self, command: Step) -> FilesystemSnapshot | None:
        """Return what the rollback of a command replaced; the filesystem has stored it."""
        if self._changes is None or command.before is None:
            return None
        begun = command.before.commit_ref  # the order decides: a clock may have been set back
        kept = reversed(self._changes.history.list())
        later = takewhile(lambda each: each.commit_ref != begun, kept)
        return next((each for each in later if (each.tag or "").startswith(_REPLACED)), None)

    @contextmanager
    def record(self, call: RecordedCall) -> Generator[None, None, None]:
        """Record a call that may change something, and runs in this block.

        Raises:
            ToolValidationError: There is no room to record it, so it must not begin.
        """
        try:
            self.log.check_room()
        except OSError as error:
            raise ToolValidationError(
                f"It could not be undone, because the disk with its history is full: {error};"
                " make room there, and try again"
            ) from error
        self._recording = call
        try:
            self.start()
            if call.bypasses_filesystem or self._changes is None:
                before = self._store.snapshot(tag="before a call")
                call.draft = replace(call.draft, before=before)
        except (OSError, LogError, SnapshotError) as error:
            call.notes.append(f"[This call cannot be undone: {error}]")
        else:
            if call.bypasses_filesystem:
                self._note_start(call, call.draft)
        try:
            yield
        finally:
            self._finish(call)

    def _note_start(self, call: RecordedCall, note: Step) -> None:
        """Note a call that is not recovered by itself, for the start after a kill."""
        try:
            call.draft = replace(call.draft, command=self.log.begin(note))
        except (OSError, LogError) as error:
            call.notes.append(
                f"[This call cannot be undone if the server is killed while it runs: {error}]"
            )

    def _finish(self, call: RecordedCall) -> None:
        """Add a step for a call, if it changed something or failed.

        A call that has ended is recorded even if it is cancelled now.
        """
        self._recording = None
        try:
            with no_time_limit():
                if call.step is None and not call.is_cut_off:
                    call.step = self._record(call)
        except (OSError, LogError, SnapshotError) as error:
            call.notes.append(_explain(error))
            call.is_cut_off = True  # the next start adds the call
        self.log.end(is_cut_off=call.is_cut_off)

    def _record(self, call: RecordedCall) -> Step | None:
        """Add the step of a call that has not reported its changes."""
        if not call.success:
            return self._record_failure(call)
        if call.draft.before is None:
            return None
        for each in call.replaced:
            if each.known is not None:
                self._add_foreign(each.known, each.before)
        after = self._store.snapshot(tag=f"after {call.draft.tool}")
        return self._add(call.draft, call.draft.before, after)

    def _record_failure(self, call: RecordedCall) -> Step | None:
        """Add a call that failed; if it was a command, with the rollback of its changes.

        The rollback of a command replaces what changed while it ran, whoever changed it.
        """
        unrecorded = [key for key, each in self._unrecorded.items() if each is call]
        if call.draft.command and unrecorded:
            for key in unrecorded:
                del self._unrecorded[key]  # a rollback is not reported again
            raise SnapshotError("what its rollback replaced is listed after the next start")
        if not call.replaced or call.draft.before is None:
            return self.log.add(call.draft.as_failed())
        last = call.replaced[-1]
        call.notes.append(self._add_rolled_back(call.draft, last.before, last.after))
        return None

    def _add_rolled_back(
        self, step: Step, replaced: FilesystemSnapshot, after: FilesystemSnapshot
    ) -> str:
        """Add a command and its rollback; return how to get something back."""
        assert step.before is not None
        added = self._add(replace(step, is_rolled_back=True), step.before, replaced)
        return "" if added is None else self._add_rollback(added, after)

    def _add_rollback(self, added: Step, after: FilesystemSnapshot) -> str:
        """Add the rollback of a command that was added; return how to get something back."""
        undo = self.log.add(replace(added.reverse(), after=after))
        text = (
            f"Rolled back: {display_paths(added.paths, MAX_LISTED)}. If the user saved one of these"
            f" meanwhile, restore it: undo with call={undo.number} and its path in paths."
        )
        _log.warning("%s did not end. %s", added, text)
        return text

    def _add(
        self, step: Step, before: FilesystemSnapshot, after: FilesystemSnapshot
    ) -> Step | None:
        """Add a step that led from one state to another; None if they are the same."""
        changed = self._compare(before, after)
        step = replace(step, before=before, after=after).with_paths(changed)
        return self.log.add(step) if changed else None

    def _on_changes(self, changes: Sequence[PathChange]) -> None:
        """Add the steps of what was just changed through the filesystem.

        If that raises, the filesystem keeps what was replaced, and reports it again.
        """
        key = frozenset(each.path for each in changes)
        call = self._unrecorded.pop(key, self._recording)
        if call is None:  # of a server that was killed, or of a program with the filesystem
            call = RecordedCall(Step(client=OTHER_PROGRAM, tool="change"))
        try:
            assert self._changes is not None
            self._add_changes(self._changes.record_changes(changes), call)
        except (OSError, LogError, SnapshotError) as error:
            if call.draft.client != OTHER_PROGRAM:
                self._unrecorded[key] = call
            call.notes.append(_explain(error))
            raise SnapshotError(str(error)) from error

    def _add_changes(self, states: CallStates, call: RecordedCall) -> None:
        """Add a call, between what others did before and after it at its paths."""
        if call.bypasses_filesystem:
            call.replaced.append(states)  # the whole call is compared when it ends
            return
        if states.known is not None:
            self._add_foreign(states.known, states.before)
        if states.paths:
            step = replace(call.draft, before=states.before, after=states.after)
            call.step = self.log.add(step.with_paths(frozenset(states.paths)))
        if states.later is not None:
            self._add_foreign(states.after, states.later)
        for saved in states.saved:  # the user saved it, and the call replaced it
            step = Step(client=USER, tool="replaced save")
            added = self._add(step, saved, states.later or states.after)
            if added is not None:
                _log.warning(
                    "The user saved %s while a call replaced it; to restore that: undo with"
                    " call=%d",
                    display_paths(added.paths, MAX_LISTED),
                    added.number,
                )

    def _add_foreign(self, known: FilesystemSnapshot, found: FilesystemSnapshot) -> None:
        """Add what was changed outside of this server, if no step of another one explains it."""
        changed = {path for path in self._compare(known, found) if not self._is_known(path, found)}
        if not all(map(is_tool_output, changed)):
            step = Step(client=USER, tool="change", before=known, after=found)
            self.log.add(step.with_paths(changed))

    def _is_known(self, path: str, state: FilesystemSnapshot) -> bool:
        """Return whether a path is as the last step left it that changed it."""
        for step in reversed(self.log.steps):
            if step.after is not None and path in step.paths:
                return path not in self._compare(step.after, state)
        return False

    def add_checkpoint(self, client: str, name: str | None, note: str) -> Checkpoint:
        """Keep the present state under a name; one of an earlier session is replaced.

        Raises:
            ToolValidationError: This session has a checkpoint with the name, or it is not kept.
            SnapshotError: The state could not be kept.
        """
        taken = {each.checkpoint.name: each for each in self.checkpoints}
        free = (free for n in count(1) if (free := f"checkpoint-{n}") not in taken)
        name = (name or "").strip() or next(free)
        found = taken.get(name)
        if found is not None and found.session == self.log.session:
            raise ToolValidationError(f"Checkpoint {name!r} exists already; choose another name")
        made = Checkpoint(name=name, note=note, client=client, call=self.log.last_number)
        state = self._store.snapshot(tag=f"checkpoint {name}")
        try:
            self.log.add_checkpoint(KeptState(made, state, self.log.session))
        except (OSError, LogError) as error:
            raise ToolValidationError(f"The checkpoint could not be recorded: {error}") from error
        return made

    def close(self) -> None:
        """Close the record file."""
        self._unsubscribe()
        self.log.close()

    # --- looking back ---

    @property
    def checkpoints(self) -> Sequence[KeptState]:
        """The checkpoints, the start of this session first."""
        self.start()
        assert self._start is not None
        return (self._start, *self.log.checkpoints)

    @property
    def current(self) -> Step | None:
        """The step of the call that runs, as far as it is known; None if none runs."""
        call = self._recording
        return None if call is None else call.step or call.draft

    def find_step(self, number: int) -> Step:
        """Return a call that changed something.

        Raises:
            ToolValidationError: There is none with this number, it failed, or it was pruned.
        """
        step = next((each for each in self.log.steps if each.number == number), None)
        if step is None and 0 < number <= self.log.last_number:
            raise ToolValidationError(
                f"Call {number} is too old: only the last {MAX_STEPS:,} can be undone"
            )
        if step is None:
            raise ToolValidationError(f"Unknown call: {number}; `review` lists the calls")
        if step.after is None:
            raise ToolValidationError(f"Call {number} failed and changed nothing")
        if not self.has_states(step):
            raise ToolValidationError(f"Call {number} cannot be undone or shown: it was pruned")
        return step

    def has_states(self, step: Step) -> bool:
        """Return whether the states before and after a call are still there."""
        try:
            return all(each is not None and self.view(each) for each in (step.before, step.after))
        except SnapshotError:
            return False

    def find_checkpoint(self, name: str) -> KeptState:
        """Return a checkpoint.

        Raises:
            ToolValidationError: There is none with this name.
        """
        checkpoints = {each.checkpoint.name: each for each in self.checkpoints}
        found = checkpoints.get(name)
        if found is None:
            known = ", ".join(list(checkpoints)[-20:])
            raise ToolValidationError(f"Unknown checkpoint: {name!r}; checkpoints: {known}")
        return found

    def last_step_of(self, client: str) -> Step | None:
        """Return the last call of a client that can be undone: no undo, and not undone."""
        steps, ours = self.log.steps, (client, self.log.session)
        undone = find_undone(steps)
        for step in reversed(steps):
            is_done = step.after is not None and not step.is_undo
            if is_done and (step.client, step.session) == ours and step.number not in undone:
                return step
        return None

    def steps_since(self, state: KeptState) -> Sequence[Step]:
        """Return the calls after a checkpoint that changed something, the oldest first."""
        later = (step for step in self.log.steps if step.number > state.checkpoint.call)
        return [step for step in later if step.after is not None and step.client != USER]

    def diff(
        self, before: FilesystemSnapshot | None, after: FilesystemSnapshot | None = None
    ) -> Diff:
        """Return the changes between two states; None is the start, or the present state."""
        if before is None:
            before = self.checkpoints[0].snapshot
        if after is not None:
            found = diff(self.view(before), self.view(after))
        else:
            found = diff_since(self._store, before)
            assert found is not None  # it has snapshots
        return found.only(lambda each: not is_tool_output(each.path))

    def changed_paths(self, steps: Sequence[Step], chosen: Sequence[str] | None = None) -> set[str]:
        """Return what calls have changed, including directories; only at and below `chosen`."""
        # where somebody replaced what a call wrote at once, its states do not differ
        found = {path for step in steps for path in (*step.paths, *self._compare(*step.states))}
        return {path for path in found if chosen is None or is_within(path, chosen)}

    # --- undo ---

    def undo(
        self, steps: Sequence[Step], context: ToolContext, *, paths: Sequence[str] | None = None
    ) -> Sequence[str]:
        """Undo calls in the call that runs, the latest first; return the restored paths.

        Args:
            steps: The calls, the oldest first.
            context: The context of the call that runs.
            paths: Undo only what is at and below these. If all of it is gone, it is created again.

        Raises:
            UndoConflictError: A path is not any more what the call left.
            SnapshotError: A state could not be restored.
        """
        overwritten = [(step, self._find_overwritten(step, paths)) for step in steps]
        parts, call = self._plan(steps, paths), self._recording
        self._check_chosen(parts, paths or ())
        assert call is not None
        numbers = tuple(each.number for each in steps if self._is_whole(each, paths))
        planned = set[str]().union(*(each for _, each in parts))
        note = call.draft = replace(call.draft, undoes=numbers).with_paths(planned)
        together: AbstractContextManager[object] = nullcontext()
        # one restore is all or nothing by itself
        if len(parts) == 1 and not any(gone for _, gone in overwritten):
            step = parts[0][0]
            note = replace(note, before=step.after, after=step.before)
        else:
            together = transaction(context.session, self._store)
        self._note_start(call, note)
        try:
            with together:
                self._reverse(parts, overwritten, planned, is_chosen=paths is not None)
        except UnfinishedRestoreError:
            call.is_cut_off = True
            raise
        return self._find_restored(call, context)

    def _reverse(
        self,
        parts: Sequence[tuple[Step, AbstractSet[str]]],
        overwritten: Sequence[tuple[Step, AbstractSet[str]]],
        planned: AbstractSet[str],
        *,
        is_chosen: bool,
    ) -> None:
        """Restore what steps changed, or raise if something would be lost."""
        for step, gone in overwritten:
            is_done = not gone or (is_chosen and self._create_again(step.states[0], gone))
            self._check_done(step, () if is_done else gone, planned)
        for step, affected in parts:
            found = self._restore(step, affected, is_chosen=is_chosen)
            self._check_done(step, found, planned)

    def _find_restored(self, call: RecordedCall, context: ToolContext) -> Sequence[str]:
        """Return the paths that an undo has changed."""
        if context.reviews_changes:  # they are reported when the policies have agreed
            return call.draft.paths
        if self._changes is not None:
            return () if call.step is None else call.step.paths
        assert call.draft.before is not None
        changed = self._compare(call.draft.before, self._store.snapshot(tag="after an undo"))
        return call.draft.with_paths(changed).paths

    def _is_whole(self, step: Step, chosen: Sequence[str] | None) -> bool:
        """Return whether the chosen paths are all that a call changed."""
        if chosen is None:
            return True
        return self.changed_paths([step], chosen) == self.changed_paths([step])

    def _find_overwritten(self, step: Step, chosen: Sequence[str] | None) -> AbstractSet[str]:
        """Return where somebody replaced what a call wrote before it was stored.

        Its states do not differ there, so the undo would say that nothing is left to do.
        """
        found = {each for each in step.paths if chosen is None or is_within(each, chosen)}
        found -= self._compare(*step.states)
        later = diff_since(self._store, step.states[0], renames=False) if found else None
        return set() if later is None else found & {each.path for each in later.entries}

    def _plan(
        self, steps: Sequence[Step], chosen: Sequence[str] | None
    ) -> Sequence[tuple[Step, set[str]]]:
        """Return steps to reverse, at which paths: one for all, unless others came in between."""
        found = [(step, self.changed_paths([step], chosen)) for step in steps]
        paths = set[str]().union(*(each for _, each in found))
        if all(self._is_adjacent(one, other, paths) for one, other in pairwise(steps)):
            return [(replace(steps[-1], before=steps[0].before), paths)]
        return found[::-1]

    def _is_adjacent(self, one: Step, other: Step, paths: Collection[str]) -> bool:
        """Return whether nothing was changed at and below paths between two calls."""
        changed = self._compare(one.states[1], other.states[0])
        return {*changed, *(up for path in changed for up in parents_of(path))}.isdisjoint(paths)

    def _restore(
        self, step: Step, affected: AbstractSet[str], *, is_chosen: bool
    ) -> Collection[str]:
        """Restore some paths to the state before a step; return what is not what it left.

        If there is any such path, nothing is restored.
        """
        before, after = step.states
        changed = self._compare(before, after)
        paths = None if changed <= affected else sorted(changed & affected)
        if not changed or paths == []:
            return ()
        try:
            self._store.restore(before, paths=paths, expect=after)
        except StaleRestoreError as error:
            if is_chosen and self._create_again(before, changed & affected):
                return ()
            return frozenset(error.paths)
        return ()

    def _create_again(self, state: FilesystemSnapshot, paths: AbstractSet[str]) -> bool:
        """Restore paths that are all gone; return whether they were. Nothing is in their place."""
        present = self._store.snapshot(tag="before an undo")
        if any(map(self.view(present).exists, paths)):
            return False
        with suppress(StaleRestoreError):  # something is there by now
            self._store.restore(state, paths=sorted(paths), expect=present)
            return True
        return False

    def _check_done(self, step: Step, stale: Collection[str], planned: Collection[str]) -> None:
        """Refuse an undo if paths are not as expected; say what can be undone anyway."""
        if not stale:
            return
        found = diff_since(self._store, step.states[1], renames=False)
        later = {each.path for each in (() if found is None else found.entries)}
        # for a directory what is below it, if anything is
        below = {path for path in later if _is_in(path, stale)}
        paths = sorted(below | (set(stale) - {up for path in below for up in parents_of(path)}))
        blames = [self._blame(step, path) for path in paths[:_MAX_CONFLICTS]]
        shown = zip(paths, blames, strict=False)
        lines = [f"- {display_path(path)}: {blame}" for path, blame in shown]
        if len(paths) > len(blames):
            lines.append(f"- and {len(paths) - len(blames):,} more")
        lines += self._offer(step, {*planned, *paths}, {*paths, *later})
        if any(blame.startswith(_BY_CALL) for blame in blames):
            lines.append("To undo what later calls changed, undo those calls first.")
        raise UndoConflictError(
            "\n".join([f"Nothing was undone: undoing {step} would lose later changes of", *lines])
        )

    def _offer(self, step: Step, paths: Collection[str], later: AbstractSet[str]) -> Iterator[str]:
        """Yield what of `paths` can be undone, and created again, although others changed."""
        above = {up for path in later for up in parents_of(path)}
        free = {path for path in paths if path not in above and not _is_in(path, later)}
        rest = [path for path in free if self._link_above(step, path) is None]
        if rest:
            yield f"To undo the rest, choose it with `paths`: {_outermost(rest)}"
        before = self.view(step.states[0])
        found = [path for path in paths if path not in free and before.exists(path)]
        gone = [path for path in found if not self._store.exists(path)]
        if gone:
            yield f"To create again what is gone, choose it with `paths`: {_outermost(gone)}"

    def _link_above(self, step: Step, path: str) -> str | None:
        """Return what is a link in the state before a step, above a path; None if nothing is."""
        before = self.view(step.states[0])
        found = (up for up in parents_of(path) if before.exists(up))
        return next((up for up in found if before.stat(up).link_target is not None), None)

    def _check_chosen(self, parts: Sequence[tuple[Step, set[str]]], chosen: Sequence[str]) -> None:
        """Refuse a path below a link: what was saved there is where the link led."""
        for (step, _), path in product(parts, chosen):
            link = self._link_above(step, path)
            if link is not None:
                led = self.view(step.states[0]).stat(link).link_target or ""
                real = posixpath.normpath(join(parent_of(link), led) + path.removeprefix(link))
                raise ToolValidationError(
                    f"Nothing was undone: in the state before {step}, {display_path(link)} is a"
                    f" link, and this path is {display_path(real)}. Choose that, or the link, with"
                    " `paths`"
                )

    def _blame(self, step: Step, path: str) -> str:
        """Return who changed a path after a call, as far as that is known.

        The first that left it as it is: an undo and what it undid would take turns forever.
        """
        steps = [each for each in self.log.steps if each.number > step.number and each.after]
        steps = [each for each in steps if path in self._compare(*each.states)]
        for later in steps:
            if path not in self._compare(later.states[1], steps[-1].states[1]):
                return f"{_BY_CALL}{later}"
        return f"changed since call {step.number} by the user or another program"

    # --- states ---

    def view(self, snapshot: FilesystemSnapshot) -> ReadableFilesystem:
        """Return the files of a state."""
        return self._store.view(snapshot)

    def _compare(self, before: FilesystemSnapshot, after: FilesystemSnapshot) -> AbstractSet[str]:
        """Return what is different between two states, including directories."""
        key = before.commit_ref, after.commit_ref
        found = self._compared.get(key)
        if found is None:
            if self._changes is not None:
                found = frozenset(self._changes.compare(before, after))  # by the ids of trees
            else:
                changes = diff(self.view(before), self.view(after), renames=False)
                found = frozenset(each.path for each in changes.entries)
            if len(self._compared) >= _MAX_COMPARED:
                self._compared.clear()
            self._compared[key] = found
        return found


def open_history(filesystem: Filesystem, directory: Path | None) -> History | None:
    """Return the history of a filesystem; None if its states cannot be kept and compared."""
    if isinstance(filesystem, ReadableFilesystem) and isinstance(filesystem, _StateStore):
        return History(filesystem, directory)
    return None


def _is_in(path: str, parents: Collection[str]) -> bool:
    """Return whether a path is at or below one of many."""
    return path in parents or any(up in parents for up in parents_of(path))


def _outermost(paths: Collection[str]) -> str:
    """Return paths in a line, without those that are below others of them."""
    chosen = set(paths)
    found = [each for each in sorted(chosen) if chosen.isdisjoint(parents_of(each))]
    return display_paths(found, MAX_LISTED)


def _explain(error: Exception) -> str:
    return f"[Done, but this call cannot be undone, because it could not be recorded: {error}]"
