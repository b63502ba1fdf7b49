"""Shell completion of the IDs of runs and dumps."""

from contextlib import suppress

import click
from click.shell_completion import CompletionItem

from weakincentives.cli.dumps import list_dumps
from weakincentives.cli.runs import read_run
from weakincentives.cli.state import LAST, find_places, place_id, short_id
from weakincentives.cli.terminal import shorten

_MAX_HELP = 60


def complete_run(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the IDs of runs with a working copy that begin with what was typed, and paths."""
    del context, parameter  # click's signature
    found: list[CompletionItem] = []
    with suppress(OSError, click.ClickException):
        for place in find_places():
            if place_id(place).startswith(incomplete):
                record = read_run(place)
                task = "" if record is None else shorten(record.task, _MAX_HELP)
                found.append(CompletionItem(place_id(place), help=task))
    return found or [CompletionItem(incomplete, type="dir")]


def complete_dump(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the IDs of recorded runs that begin with what was typed, `last`, and paths."""
    del context, parameter  # click's signature
    with suppress(OSError, click.ClickException):
        names = [LAST, *dict.fromkeys(map(short_id, list_dumps()))]
        found = [CompletionItem(each) for each in names if each.startswith(incomplete)]
        if found:
            return found
    return [CompletionItem(incomplete, type="file")]
