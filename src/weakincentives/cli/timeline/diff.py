"""`wink diff`: what differs in the files between two steps of a recorded run."""

import json
import sys

import click

from weakincentives.cli.activity import show_activity
from weakincentives.cli.completion import complete_run
from weakincentives.cli.run.diff_view import describe_diff, show_diff
from weakincentives.cli.steps import open_timeline, split_arguments
from weakincentives.cli.terminal import echo
from weakincentives.cli.timeline.log import print_problem
from weakincentives.filesystem import Diff


@click.command()
@click.argument("words", nargs=-1, shell_complete=complete_run, metavar="[RUN] [STEP [STEP]]")
@click.option("--stat", is_flag=True, help="Only the changed files, with their numbers of lines.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with the patch.")
def command(*, words: tuple[str, ...], stat: bool, as_json: bool) -> None:
    """Print what changed in the files as a patch for git apply.

    With one STEP, what that step changed; with two, what differs between them; without, what
    the whole run changed. A STEP is a number, or @NAME for the newest step of a branch.
    RUN comes first; without it, this is the newest run.
    """
    run, steps = split_arguments(words, most=2, command="diff")
    with open_timeline(run) as timeline:
        numbers = [each.resolve(timeline) for each in steps]
        with show_activity("comparing the files", is_hidden=as_json):
            if len(numbers) == 1:
                diff = timeline.changes(numbers[0])
            else:
                before, after = numbers or (1, timeline.last)
                diff = timeline.diff(before, after)
        if as_json:
            data = {"steps": numbers or [1, timeline.last], **describe_diff(diff)}
            click.echo(json.dumps({**data, "patch": diff.patch()}))
        elif stat:
            _print_statistics(diff)
        else:
            _print_patch(diff)
        print_problem(timeline)


def _print_patch(diff: Diff) -> None:
    if not diff and sys.stdout.isatty():
        echo("Nothing was changed.")
        return
    show_diff(diff)
    for each in diff.omissions:
        echo(f"wink: not in the patch: {each}")


def _print_statistics(diff: Diff) -> None:
    for change, count in zip(diff.entries, diff.line_counts, strict=True):
        echo(f"{change} {count}", err=False)
    echo(str(diff.statistics), err=False)
