"""`wink undo`: undo one step of a run in its working copy; later steps are kept."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import click

from weakincentives.cli.activity import show_activity
from weakincentives.cli.completion import complete_run
from weakincentives.cli.run.continuation import copies_by_step, find_head
from weakincentives.cli.run.recovery import changed_paths, list_names, recover_undo
from weakincentives.cli.run.resolution import EXIT_CONFLICT
from weakincentives.cli.runs import (
    RunFiles,
    find_run,
    read_run,
    run_directory,
    update_run,
)
from weakincentives.cli.state import exclusive_lock
from weakincentives.cli.steps import open_steps, split_arguments
from weakincentives.cli.terminal import echo, shorten
from weakincentives.contrib.review import ConflictError, CopyError, WorkingCopy, open_copy
from weakincentives.contrib.review.apply import apply_steps
from weakincentives.contrib.review.conflicts import ChangeSet, Plan, select_changes
from weakincentives.contrib.review.records import open_files
from weakincentives.contrib.review.recovery import open_original
from weakincentives.filesystem import Change, HostFilesystem, ReadableFilesystem, diff
from weakincentives.filesystem.base import is_tool_output
from weakincentives.filesystem.derived import DerivedFiles
from weakincentives.filesystem.diff import Side
from weakincentives.posix import display_path
from weakincentives.runtime.timeline import SessionRecorder, Timeline

_MAX_TITLE = 60


@click.command(epilog="Exit codes: 0 done, 1 failed, 4 conflict, nothing was undone.")
@click.argument("words", nargs=-1, shell_complete=complete_run, metavar="[RUN] STEP")
@click.option(
    "--only", multiple=True, metavar="PATH", help="Undo only at and below PATH; repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, words: tuple[str, ...], only: tuple[str, ...], as_json: bool) -> None:
    """Undo a step of a run in its working copy; later steps are kept.

    A path is restored only if it still is as the step left it; else nothing changes, and the
    paths are named. Of a command that was rolled back, this restores what the rollback displaced.
    An undo is a step too: undo it to redo. RUN comes first; without it, this is the newest run.
    """
    run, steps = split_arguments(words, most=1, command="undo")
    if not steps:
        raise click.UsageError("STEP is missing; wink log shows the steps")
    found = find_run(run, "steps")
    with open_steps(found) as timeline, exclusive_lock(_directory(found)):
        timeline.refresh()
        number = steps[0].resolve(timeline)
        head = find_head(found, timeline)
        copy = _find_copy(found, timeline, head)
        with open_files(copy) as files:
            with show_activity("comparing the files", is_hidden=as_json):
                undo = StepUndo(copy, files, timeline, number, head)
                changes = undo.select(only)
            conflicts = undo.run(changes)
            step = None if conflicts else undo.record()
    paths = changed_paths(changes)
    if as_json:
        facts = [{"path": each.path, "changed_by": each.author} for each in conflicts]
        data = {"run": found.name, "step": number, "undo": step, "conflicts": facts}
        click.echo(json.dumps({**data, "paths": [] if conflicts else list(paths)}))
    elif conflicts:
        _print_conflicts(found, number, conflicts, paths)
    else:
        title = shorten(timeline.step(number).title, _MAX_TITLE)
        echo(f"Undid step {number} ({title}). Restored: {list_names(paths)}")
        echo(f"  wink undo {shlex.quote(found.name)} {step}  to redo it")
    if conflicts:
        raise click.exceptions.Exit(EXIT_CONFLICT)


@dataclass(frozen=True, slots=True)
class LaterChange:
    """A path that is not as the step left it, and who changed it."""

    path: str
    author: str
    step: int | None = None


class StepUndo:
    """The undo of one step in a working copy."""

    def __init__(
        self, copy: WorkingCopy, files: HostFilesystem, timeline: Timeline, number: int, head: int
    ) -> None:
        """Prepare it; `head` is the last step in the copy."""
        self._copy = copy
        self._files = files
        self._timeline = timeline
        self._number = number
        self._head = head
        self._before, self._after = self._find_states()

    def select(self, only: Sequence[str]) -> list[Change]:
        """Return the changes that undo the step, at and below the paths in `only`.

        Raises:
            ClickException: There are none.
        """
        found = diff(self._after, self._before, renames=False).entries
        changes = [each for each in found if not is_tool_output(each.path)]
        if not changes:
            raise click.ClickException(
                f"Step {self._number} changed no files; wink log shows those of each step"
            )
        paths = [each.strip("/").removeprefix("./") for each in only] or None
        try:
            return select_changes(changes, paths)
        except ValueError as error:
            raise click.ClickException(
                f"{error} in step {self._number}; it changed {list_names(changed_paths(changes))}"
            ) from error

    def run(self, changes: Sequence[Change]) -> list[LaterChange]:
        """Undo the changes, or return those paths that were changed since; then none is undone."""
        change_set = ChangeSet(
            changes, self._after, self._before, lambda path: not is_tool_output(path)
        )
        recover_undo(self._copy)
        with open_original(self._copy.root) as workspace:
            plan = change_set.plan(workspace)
            if plan.conflicts:
                return self._explain(plan)
            try:
                apply_steps(
                    workspace,
                    plan.steps,
                    (Side(self._after), Side(self._before)),
                    kind="undo",
                    place=self._copy.place,
                    number=self._number,
                    attributes=MappingProxyType({}),
                    on_end=lambda _, __: None,
                )
            except ConflictError as error:  # a save at this moment
                return [LaterChange(each.path, "you, just now") for each in error.conflicts]
        self._files.invalidate()
        return []

    def record(self) -> int:
        """Record the undo as a step; return its number."""
        update_run(self._copy.place, changes=None)
        recorder = SessionRecorder(
            self._timeline.session(self._head, unknown="data"),
            self._timeline.path,
            self._files,
            at=self._head,
            title=f"undo of step {self._number}",
            details={"undoes": self._number},
            leave_out=DerivedFiles(self._files),
        )
        recorder.close()
        return recorder.last

    def _find_states(self) -> tuple[ReadableFilesystem, ReadableFilesystem]:
        """Return the files before the step and after it."""
        record = read_run(self._copy.place)
        displaced = None if record is None else record.displaced.get(self._number)
        if displaced is not None:  # the step is a rollback
            return self._files.view(displaced.before), self._files.view(displaced.after)
        parent = self._timeline.step(self._number).parent
        if parent is None:
            raise click.ClickException(f"Step {self._number} is the start of the run")
        return self._timeline.files(parent), self._timeline.files(self._number)

    def _explain(self, plan: Plan) -> list[LaterChange]:
        later = [each for each in self._timeline.ancestors(self._head) if each > self._number]
        found: list[LaterChange] = []
        for path in [each.path for each in plan.conflicts]:
            steps = [each for each in later if path in self._timeline.step(each).files.paths]
            author = "you, outside of the steps"
            if steps:
                title = shorten(self._timeline.step(steps[-1]).title, _MAX_TITLE)
                author = f"step {steps[-1]} ({title})"
            found.append(LaterChange(path, author, steps[-1] if steps else None))
        return found


def _directory(run: RunFiles) -> Path:
    if run.place is None:
        raise click.ClickException(
            f"Only a run with a working copy can be undone: {str(run.steps)!r}; wink restore"
            " writes the files of any step"
        )
    return run_directory(run.place)


def _find_copy(run: RunFiles, timeline: Timeline, head: int) -> WorkingCopy:
    name = copies_by_step(timeline)[head]
    try:
        return open_copy(_directory(run) / (name or "."))
    except CopyError as error:
        raise click.ClickException(
            f"{error}; wink resume {run.name} continues the run in a new copy, and wink restore"
            " writes the files of any step"
        ) from error


def _print_conflicts(
    run: RunFiles, number: int, conflicts: Sequence[LaterChange], paths: Sequence[str]
) -> None:
    echo(f"Nothing was undone: files are not as step {number} left them.")
    for each in conflicts:
        echo(f"  {display_path(each.path)} was changed by {each.author}")
    command = f"wink undo {shlex.quote(run.name)}"
    for step in sorted({each.step for each in conflicts if each.step is not None}, reverse=True):
        echo(f"  {command} {step}  to undo that first")
    left = sorted(set(paths) - {each.path for each in conflicts})
    if left:
        options = " ".join(f"--only {shlex.quote(path)}" for path in left)
        echo(f"  {command} {number} {options}  to undo the rest")
