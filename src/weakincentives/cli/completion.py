"""Shell completion of the IDs of runs."""

from contextlib import suppress

import click
from click.shell_completion import CompletionItem

from weakincentives.cli.runs import LAST, list_places, place_id, read_run
from weakincentives.cli.terminal import shorten

_MAX_HELP = 60


def complete_run(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the IDs of runs that begin with what was typed, `last`, and paths."""
    del context, parameter  # click's signature
    found: list[CompletionItem] = []
    with suppress(OSError, click.ClickException):
        for place in list_places():
            if place_id(place).startswith(incomplete):
                record = read_run(place)
                task = "" if record is None else shorten(record.task, _MAX_HELP)
                found.append(CompletionItem(place_id(place), help=task))
    if incomplete and LAST.startswith(incomplete):
        found.append(CompletionItem(LAST))
    return found or [CompletionItem(incomplete, type="file")]
