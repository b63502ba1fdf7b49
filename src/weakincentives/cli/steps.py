"""Arguments that name steps of a run, and the recording in which they are."""

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

import click

from weakincentives.cli.runs import LAST, RunFiles, describe_missing_steps, find_run, read_run
from weakincentives.runtime.timeline import (
    Timeline,
    TimelineError,
    has_steps,
)

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


def parse_step(text: str) -> StepArgument | None:
    """Return the STEP that an argument names; None if it names a RUN."""
    match = _STEP.fullmatch(text)
    return None if match is None else StepArgument(match[1], match[2])


def split_arguments(
    words: Sequence[str], *, most: int, command: str
) -> tuple[str, list[StepArgument]]:
    """Return the RUN and the STEPs in the arguments of a command; the RUN comes first.

    A number is a STEP, and so is `@` with the name of a branch. Everything else is a RUN.

    Raises:
        UsageError: There are two runs, or more than `most` steps.
    """
    run, rest = LAST, list(words)
    if rest and parse_step(rest[0]) is None:
        run = rest.pop(0)
    steps: list[StepArgument] = []
    for word in rest:
        step = parse_step(word)
        if step is None:
            raise click.UsageError(
                f"Not a step: {word!r}; a step is a number, or @NAME for a branch; the run comes"
                " first"
            )
        steps.append(step)
    if len(steps) > most:
        raise click.UsageError(f"Too many steps: {len(steps)}; wink {command} takes {most}")
    return run, steps


def open_timeline(argument: str) -> Timeline:
    """Open the steps of the run that an argument names.

    Raises:
        ClickException: There are none, or they cannot be read.
    """
    return open_steps(find_run(argument, "steps"))


def open_steps(run: RunFiles) -> Timeline:
    """Open the steps of a run; raises as `open_timeline` does."""
    if not has_steps(run.steps):
        raise click.ClickException(describe_missing_steps(run))
    try:
        timeline = Timeline(run.steps)
    except TimelineError as error:
        raise _no_steps_error(run, str(error)) from error
    if not timeline.steps:
        timeline.close()
        raise _no_steps_error(run, timeline.problem or "it has no steps")
    return timeline


def _no_steps_error(run: RunFiles, problem: str) -> click.ClickException:
    record = None if run.place is None else read_run(run.place)
    if record is None:
        return click.ClickException(f"{problem}; wink review lists the runs")
    return click.ClickException(
        f"The steps of the run {run.name} cannot be read, because it was stopped before the first"
        f" was recorded or because of damage ({problem}); start it again:"
        f" wink run {shlex.quote(record.task)}"
    )


def step_hints(run: str, *, is_answered: bool = True) -> list[str]:
    """Return the lines at the end of a run that say how to look at its steps and continue.

    A run that was not answered is continued without a new instruction.
    """
    name = shlex.quote(run)
    instruction = ' "..."' if is_answered else ""
    return [
        f"Every step: wink log {name}",
        f"In the browser: wink debug {name}",
        f"To continue: wink resume {name}{instruction}",
    ]
