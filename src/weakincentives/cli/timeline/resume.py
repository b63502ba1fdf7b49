"""`wink resume`: continue from any step of a run, with its files, session and conversation."""

from pathlib import Path
from typing import Any

import click

from weakincentives.cli.completion import complete_run
from weakincentives.cli.run.action import Action
from weakincentives.cli.run.attachments import load_attachments
from weakincentives.cli.run.command import EPILOG, OutputOptions, resume_run, run_options
from weakincentives.cli.run.continuation import EarlierRun
from weakincentives.cli.runs import find_run
from weakincentives.cli.steps import open_steps


@click.command(epilog=EPILOG)
@click.argument("run", shell_complete=complete_run)
@click.argument("instruction", required=False)
@click.option("--at", "step", metavar="STEP", help="Continue from this step; by default the last.")
@click.option("--name", metavar="NAME", help="Name of the branch, if other steps follow already.")
@click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory to apply changes to; by default the one that the run worked on.",
)
@run_options
def command(
    *,
    run: str,
    instruction: str | None,
    attach: tuple[str, ...],
    step: str | None,
    name: str | None,
    workspace: Path | None,
    action: Action,
    config: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Continue a run, or begin again at any of its steps, with its session and conversation.

    RUN is the ID of a run or its beginning, a path, or last. INSTRUCTION is what the model shall
    do next; without it, an interrupted run is continued. The run continues in its working copy;
    with --at, or if that is gone, in a new one. Model and dialect are those of the run unless you
    choose others.
    """
    found = find_run(run, "steps")
    with open_steps(found) as timeline:
        earlier = EarlierRun(found, timeline, step=step, branch=name)
        output = OutputOptions(action, as_json=as_json, quiet=quiet)
        original = earlier.find_original(workspace)
        code = resume_run(
            earlier,
            instruction,
            original,
            output,
            config,
            options,
            attachments=load_attachments(attach),
        )
    raise click.exceptions.Exit(code)
