"""Arguments that name steps of a run, the recording in which they are, and their copies."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import click

from weakincentives.cli import runs
from weakincentives.cli.terminal import echo, shorten
from weakincentives.contrib.review import RunRecord
from weakincentives.runtime.timeline import Timeline, TimelineError, has_steps

BY_USER = "by_user"
"""The detail of a step that the user made between two rounds: an undo, or edits before it."""
_MAX_STEPS = 5
_TITLE_WIDTH = 40
_STEP = re.compile(r"(\d+|@[^:/]+)(?::(.+))?", re.DOTALL)


class StepArgument(NamedTuple):
    """A STEP on the command line: a number, or a branch as `@NAME`; and a path, if it has one."""

    name: str
    path: str | None = None

    def resolve(self, timeline: Timeline) -> int:
        """Return the number of the step; a branch is its newest step.

        Raises:
            ClickException: There is no such step.
        """
        try:
            if self.name.startswith("@"):
                return timeline.branch(self.name[1:])
            return timeline.step(int(self.name)).number
        except TimelineError as error:
            raise click.ClickException(f"{error}; wink log shows the steps") from error


def parse_step(text: str, hint: str = "", *, with_path: bool = True) -> StepArgument:
    """Return the STEP that an argument names.

    Raises:
        UsageError: It names a RUN, or a path where none can be.
    """
    match = _STEP.fullmatch(text)
    if match is None or (match[2] and not with_path):
        fact = f"Not a step: {text!r}; a step is a number, or @NAME for a branch"
        raise click.UsageError(f"{fact}{hint}")
    return StepArgument(match[1], match[2])


def split_arguments(
    words: Sequence[str], *, most: int, command: str
) -> tuple[str, list[StepArgument]]:
    """Return the RUN and the STEPs in the arguments of a command; the RUN comes first.

    A number is a STEP, and so is `@` with the name of a branch. Everything else is a RUN.

    Raises:
        UsageError: There are two runs, or more than `most` steps.
    """
    run, rest = runs.LAST, list(words)
    if rest and _STEP.fullmatch(rest[0]) is None:
        run = rest.pop(0)
    steps = [parse_step(each, "; the run comes first") for each in rest]
    if len(steps) > most:
        raise click.UsageError(f"Too many steps: {len(steps)}; wink {command} takes {most}")
    return run, steps


def require_step(steps: Sequence[StepArgument], timeline: Timeline) -> int:
    """Return the number of the STEP in the arguments of a command that needs one.

    Raises:
        UsageError: It is missing; the error names the last steps that changed files.
    """
    if steps:
        return steps[0].resolve(timeline)
    changed = [each for each in timeline.steps if each.files and each.parent is not None]
    names = ", ".join(
        f"{each.number} ({shorten(each.title, _TITLE_WIDTH)})" for each in changed[-_MAX_STEPS:]
    )
    fact = f"the last that changed files: {names}; " if names else ""
    raise click.UsageError(f"STEP is missing; {fact}wink log shows the steps")


def find_head(run: runs.RunFiles, timeline: Timeline, after: int = 1) -> int:
    """Return the last step in the copy that was named, or else of all, that follows `after`.

    Raises:
        ClickException: That step is not in the copy that was named.
    """
    name = "." if run.place is None else runs.copy_name(run.place)
    copies, following = copies_by_step(timeline), {after}
    for step in timeline.steps:
        # a branch that nobody has continued yet has no copy
        is_empty = step.branch is not None and "run" not in step.details
        if step.parent in following and not (is_empty and after > 1):
            following.add(step.number)
    steps = [number for number in following if name in (".", copies[number])]
    if after > 1 and not steps:
        raise click.ClickException(f"Step {after} is not in the copy {name!r}; name its own copy")
    return max(steps, default=timeline.last)


def copies_by_step(timeline: Timeline) -> dict[int, str | None]:
    """Return the name of the working copy in which each step was recorded."""
    found: dict[int, str | None] = {}
    for step in timeline.steps:
        run: object = step.details.get("run") or step.details.get("mcp")
        above = None if step.parent is None else found.get(step.parent)
        if isinstance(run, Mapping):
            above = cast("Mapping[str, Any]", run).get("copy")
        found[step.number] = above if runs.is_copy_name(above) else None
    return found


def open_timeline(run: runs.RunFiles | str) -> Timeline:
    """Open the steps of a run, or of the run that an argument names.

    Raises:
        ClickException: There are none, or they cannot be read.
    """
    found = runs.find_run(run, "steps") if isinstance(run, str) else run
    check_steps(found)
    try:
        timeline = Timeline(found.steps)
        if timeline.steps:
            return timeline
        timeline.close()
        problem = timeline.problem or "it has no steps"
    except TimelineError as error:
        problem = str(error)
    if found.record is None:
        raise click.ClickException(f"{problem}; {runs.LIST_HINT}")
    raise click.ClickException(
        f"The steps of the run {found.name} cannot be read, because it was stopped before the first"
        f" was recorded or because of damage ({problem}); {_again(found.record)}"
    )


def check_steps(run: runs.RunFiles) -> None:
    """Raise a ClickException that says why and what to do if a run has no steps."""
    if has_steps(run.steps):
        return
    if run.place is None:
        raise click.ClickException(f"Run not found: {str(run.steps)!r}; {runs.LIST_HINT}")
    record = run.record
    if record is not None and record.status in {"copying", "running"}:
        fact = f"The run {run.name} was stopped before its first step was recorded"
        raise click.ClickException(f"{fact}; {_again(record)}")
    raise click.ClickException(
        f"The steps of the run {run.name} were not recorded; to decide about its changes:"
        f" wink review {run.name}"
    )


def _again(record: RunRecord) -> str:
    task = shlex.quote(record.task) if record.task else '"..."'
    return f"start it again: wink run {task}"


def print_problem(timeline: Timeline) -> None:
    """Print what is missing from a timeline that was cut off or damaged."""
    if timeline.problem is not None:
        echo(f"wink: {timeline.problem}")
