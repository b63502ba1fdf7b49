"""The list of runs, as `wink review` and `wink clean` print it: lines for people, or JSON."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from weakincentives.cli.state import state_directory
from weakincentives.cli.status import Run
from weakincentives.cli.terminal import echo, escape_controls, is_terminal
from weakincentives.cli.units import format_count, format_date, format_size
from weakincentives.posix import display_path

_PLAIN_WIDTH = 160
_MIN_TASK = 20
_INDENT = "  "


def print_runs(runs: Sequence[Run], *, as_json: bool) -> None:
    """Print runs on standard output: two lines each, or one JSON object each."""
    if as_json:
        for run in runs:
            click.echo(json.dumps(run_facts(run)))
        return
    width = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else _PLAIN_WIDTH
    ids = max((len(each.name) for each in runs), default=0)
    for run in runs:
        for line in _describe(run, ids, width):
            echo(line, err=False)


def print_total(runs: Sequence[Run]) -> None:
    """Print on standard error how many runs there are, and what can be done with them."""
    if not runs:
        echo("No runs are kept.")
        return
    size = format_size(sum(each.size_bytes for each in runs))
    echo(
        f"{format_count(len(runs), 'run')}, {size} in {shorten_home(state_directory())};"
        " wink review ID shows one, wink clean removes old ones."
    )


def run_facts(run: Run) -> dict[str, object]:
    """Return a run as data."""
    return {
        "id": run.name,
        "place": str(run.place),
        "original": None if run.original is None else str(run.original),
        "state": run.state,
        "created_at": run.created_at.isoformat(),
        "changed_at": run.changed_at.isoformat(),
        "size_bytes": run.size_bytes,
        "changes": run.changes,
        "task": run.task,
        "model": run.model,
        "session_id": run.session_id,
    }


def shorten_home(path: Path) -> str:
    """Return a path for people, with `~` for the home directory."""
    try:
        inside = path.relative_to(Path.home())
    except (ValueError, RuntimeError):
        return display_path(str(path))
    return display_path(f"~/{inside}" if inside.parts else "~")


def _describe(run: Run, ids: int, width: int) -> list[str]:
    files = f", {format_count(run.changes, 'file')}" if run.changes else ""
    facts = [
        f"{run.name:<{ids}}",
        f"{run.state}{files}",
        format_date(run.created_at),
        format_size(run.size_bytes),
    ]
    lines = [_INDENT.join(facts)]
    original = "" if run.original is None else shorten_home(run.original)
    if len(lines[0]) + len(_INDENT) + len(original) <= width:
        lines[0] = _INDENT.join((lines[0], original)).rstrip()
    else:
        lines.append(f"{_INDENT}{original}")
    if run.task:
        lines.append(f"{_INDENT}{_cut(run.task, width - len(_INDENT))}")
    return lines


def _cut(text: str, width: int) -> str:
    line = escape_controls(" ".join(text.split()))
    wanted = max(width, _MIN_TASK)
    return line if len(line) <= wanted else f"{line[: wanted - 1]}…"
