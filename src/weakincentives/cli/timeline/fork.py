"""`wink fork`: name a branch that begins at a step of a recorded run."""

import json
import shlex

import click

from weakincentives.cli.completion import complete_run
from weakincentives.cli.runs import find_run
from weakincentives.cli.steps import open_steps, split_arguments
from weakincentives.cli.terminal import echo
from weakincentives.runtime.timeline import TimelineError, fork_timeline


@click.command()
@click.argument("words", nargs=-1, shell_complete=complete_run, metavar="[RUN] STEP")
@click.option("--name", metavar="NAME", help="Name of the branch; by default branch- and a number.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, words: tuple[str, ...], name: str | None, as_json: bool) -> None:
    """Begin a branch after a step; wink resume RUN --at @NAME continues it.

    The steps that followed STEP stay as they are. A STEP is a number, or @NAME for the newest
    step of a branch. RUN comes first; without it, this is the newest run.
    """
    run, steps = split_arguments(words, most=1, command="fork")
    if not steps:
        raise click.UsageError("STEP is missing; wink log shows the steps")
    found = find_run(run, "steps")
    with open_steps(found) as timeline:
        path, number = timeline.path, steps[0].resolve(timeline)
    try:
        step = fork_timeline(path, number, name)
    except TimelineError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        data = {"timeline": str(path), "branch": step.branch, "step": step.number, "parent": number}
        click.echo(json.dumps(data))
    else:
        echo(
            f"Branch {step.branch!r} begins after step {number}. To continue it:"
            f" wink resume {shlex.quote(found.name)} --at @{step.branch} 'what to do'"
        )
