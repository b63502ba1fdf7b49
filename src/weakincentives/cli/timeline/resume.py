"""`wink resume`: continue from any step of a run, with its files, session and conversation."""

from pathlib import Path
from typing import Any

import click

from weakincentives.cli.completion import complete_dump
from weakincentives.cli.dumps import find_named_place, open_timeline
from weakincentives.cli.run.action import Action
from weakincentives.cli.run.attachments import load_attachments
from weakincentives.cli.run.command import EPILOG, OutputOptions, resume_run, run_options
from weakincentives.cli.run.continuation import EarlierRun


@click.command(epilog=EPILOG)
@click.argument("dump", metavar="PLACE", shell_complete=complete_dump)
@click.argument("instruction", required=False)
@click.option("--at", "step", metavar="STEP", help="Go on from this step; by default the last.")
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
    dump: str,
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

    PLACE is a working copy, a file of a dump, the ID of a run or its beginning, or last.
    INSTRUCTION is what the model shall do next; without it, an interrupted run is continued. The
    run goes on in its working copy; with --at, or if that is gone, in a new one. Model and dialect
    are those of the run unless you choose others.
    """
    with open_timeline(dump) as timeline:
        run = EarlierRun(timeline, step=step, place=find_named_place(dump), branch=name)
        output = OutputOptions(action, as_json=as_json, quiet=quiet)
        original = run.find_original(workspace)
        code = resume_run(
            run,
            instruction,
            original,
            output,
            config,
            options,
            attachments=load_attachments(attach),
        )
    raise click.exceptions.Exit(code)
