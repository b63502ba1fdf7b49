"""The list of runs: their states, and how `wink review` and `wink clean` print them.

The state of a run follows from its lock, its record and its files.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

import click

from weakincentives.cli import runs
from weakincentives.cli.state import state_directory
from weakincentives.cli.terminal import echo, is_terminal, shorten
from weakincentives.cli.units import format_count, format_date, format_size, shorten_home
from weakincentives.contrib.review import (
    RunRecord,
    Status,
    find_record,
    is_interrupted,
    record_path,
    workspace_path,
)
from weakincentives.posix import is_locked

_Ended: TypeAlias = Literal["applied", "empty", "recorded", "incomplete"]
_Undecided: TypeAlias = Literal["pending", "partly applied", "apply interrupted"]
_Stopped: TypeAlias = Literal["failed", "interrupted", "damaged"]
State: TypeAlias = Literal["running", "in review", _Ended, _Undecided, _Stopped]
FINISHED: frozenset[State] = frozenset({"applied", "empty", "recorded", "incomplete"})
"""The states in which no changes wait for a decision."""
BUSY: frozenset[State] = frozenset({"running", "in review"})
"""The states in which a process works with the run."""
_PLAIN_WIDTH = 160
_MIN_TASK = 20
_INDENT = "  "


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A run in the list of runs, as `--json` prints it; each of its copies is listed."""

    id: str
    place: Path
    original: str | None
    state: State
    created_at: datetime
    changed_at: datetime
    size_bytes: int
    """What the copy and its history take on the disk; they may share blocks with the original."""
    changes: int | None
    """The paths that wait for a decision, if known."""
    task: str | None
    model: str | None
    session_id: str | None


def list_runs(*, is_measured: bool = True) -> list[Run]:
    """Return all runs, the newest first; sizes are 0 if they are not measured."""
    places = (describe_run(each, is_measured=is_measured) for each in runs.list_places())
    found = [each for each in places if each is not None]
    copies = [runs.run_directory(each.place) for each in found]
    shown = [each for each in found if each.state != "recorded" or copies.count(each.place) == 1]
    return sorted(shown, key=lambda each: each.created_at, reverse=True)


def describe_run(place: Path, *, is_measured: bool = True) -> Run | None:
    """Return the run whose copy is at `place`; None if it is gone."""
    if not place.is_dir():
        return None
    changed_at = max(map(_date, (place, record_path(place))))
    found = find_record(place)
    record = found or RunRecord(original="", created_at=changed_at, began_at=changed_at)
    size = 0
    if is_measured:  # without a walk through files that were measured
        size = 0 if record.copy is None else record.copy.size_bytes
        excluded = [*runs.find_copies(place), *((workspace_path(place),) if size else ())]
        size += runs.measure(place, without=excluded)
    return Run(
        runs.place_id(place),
        place,
        record.original or None,
        _find_state(place, found),
        record.created_at,
        changed_at,
        size,
        record.changes,
        record.task or None,
        record.model or None,
        record.session_id or None,
    )


def _find_state(place: Path, record: RunRecord | None) -> State:
    if is_locked(runs.run_directory(place)):
        is_running = record is None or record.status in {"copying", "running"}
        return "running" if is_running else "in review"
    if not workspace_path(place).is_dir() or record is None or record.copy is None:
        if runs.is_incomplete(place):
            return "incomplete"
        return "damaged" if workspace_path(place).is_dir() else "recorded"
    if is_interrupted(Path(record.original), place):
        return "apply interrupted"
    if any(each.is_settled and each.accepted for each in record.applied):
        return "applied" if record.changes == 0 else "partly applied"
    return "empty" if record.changes == 0 else _STATES[record.status]


_STATES: dict[Status, State] = {
    "copying": "interrupted",
    "running": "interrupted",  # the lock is free: it was killed
    "cancelled": "interrupted",
    "failed": "failed",
    "done": "pending",
}


def _date(path: Path) -> datetime:
    with suppress(OSError):
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return datetime.min.replace(tzinfo=UTC)


# --- printing ---


def print_runs(found: Sequence[Run], *, as_json: bool) -> None:
    """Print runs on standard output: two lines each, or one JSON object each."""
    if as_json:
        for run in found:
            click.echo(json.dumps(run_facts(run)))
        return
    width = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else _PLAIN_WIDTH
    ids = max((len(each.id) for each in found), default=0)
    for run in found:
        for line in _describe_lines(run, ids, width):
            echo(line, err=False)


def print_total(found: Sequence[Run]) -> None:
    """Print on standard error how many runs there are, and what can be done with them."""
    if not found:
        echo("No runs are kept.")
        return
    size = format_size(sum(each.size_bytes for each in found))
    echo(
        f"{format_count(len(found), 'run')}, {size} in {shorten_home(state_directory())};"
        " wink review ID shows one, wink clean removes old ones."
    )


def run_facts(run: Run) -> dict[str, object]:
    """Return a run as data."""
    dates = {"created_at": run.created_at.isoformat(), "changed_at": run.changed_at.isoformat()}
    return {**asdict(run), "place": str(run.place), **dates}


def _describe_lines(run: Run, ids: int, width: int) -> list[str]:
    files = f", {format_count(run.changes, 'file')}" if run.changes else ""
    date, size = format_date(run.created_at), format_size(run.size_bytes)
    lines = [_INDENT.join((f"{run.id:<{ids}}", f"{run.state}{files}", date, size))]
    original = shorten_home(Path(run.original)) if run.original else ""
    if len(lines[0]) + len(_INDENT) + len(original) <= width:
        lines[0] = _INDENT.join((lines[0], original)).rstrip()
    else:
        lines.append(f"{_INDENT}{original}")
    if run.task:
        lines.append(f"{_INDENT}{shorten(run.task, max(width - len(_INDENT), _MIN_TASK))}")
    return lines
