"""The state of each run, which follows from its lock, its record and the record of its copy."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from weakincentives.cli.runs import (
    RUN_RECORD,
    RunRecord,
    Status,
    is_incomplete,
    list_places,
    place_id,
    read_run,
    run_directory,
    settled_applies,
)
from weakincentives.cli.state import is_locked
from weakincentives.contrib.review import CopyError
from weakincentives.contrib.review.records import (
    CopyRecord,
    history_path,
    read_record,
    workspace_path,
)
from weakincentives.contrib.review.recovery import is_interrupted

State: TypeAlias = Literal[
    "running",
    "in review",
    "pending",
    "applied",
    "partly applied",
    "apply interrupted",
    "failed",
    "interrupted",
    "empty",
    "recorded",
    "incomplete",
    "damaged",
]
FINISHED: frozenset[State] = frozenset({"applied", "empty", "recorded", "incomplete"})
"""The states in which no changes wait for a decision."""
BUSY: frozenset[State] = frozenset({"running", "in review"})
"""The states in which a process works with the run."""
_MAX_SIZED = 20_000  # files whose sizes are added up


@dataclass(frozen=True, slots=True)
class Run:
    """A run in the list of runs; each of its copies is listed."""

    name: str
    place: Path
    state: State
    created_at: datetime
    changed_at: datetime
    size_bytes: int
    """The size of the copy and its history; files may share blocks with the original."""
    original: Path | None = None
    task: str | None = None
    model: str | None = None
    session_id: str | None = None
    changes: int | None = None
    """The paths that wait for a decision, if known."""


def list_runs() -> list[Run]:
    """Return all runs, the newest first."""
    found = [run for place in list_places() if (run := describe_run(place)) is not None]
    copies = [run_directory(each.place) for each in found]
    shown = [each for each in found if each.state != "recorded" or copies.count(each.place) == 1]
    return sorted(shown, key=lambda each: each.created_at, reverse=True)


def describe_run(place: Path) -> Run | None:
    """Return the run whose copy is at `place`; None if it is gone."""
    if not place.is_dir():
        return None
    record, copy = read_run(place), _read_copy(place)
    changed_at = max(_date(each) for each in (place, place / RUN_RECORD))
    created_at = changed_at if record is None else record.created_at
    if record is None and copy is not None:
        created_at = copy.base.created_at
    original = copy.original if copy is not None else "" if record is None else record.original
    return Run(
        name=place_id(place),
        place=place,
        state=_find_state(place, record, copy),
        created_at=created_at,
        changed_at=changed_at,
        size_bytes=_measure(place, copy),
        original=Path(original) if original else None,
        task=None if record is None else record.task,
        model=None if record is None else record.model,
        session_id=None if record is None else record.session_id,
        changes=_count_waiting(record, copy),
    )


def _read_copy(place: Path) -> CopyRecord | None:
    try:
        return read_record(place) if workspace_path(place).is_dir() else None
    except CopyError:
        return None


def _find_state(place: Path, record: RunRecord | None, copy: CopyRecord | None) -> State:
    if is_locked(run_directory(place)):
        is_running = record is None or record.status in {"copying", "running"}
        return "running" if is_running else "in review"
    if copy is None:
        if is_incomplete(place):
            return "incomplete"
        return "damaged" if workspace_path(place).is_dir() else "recorded"
    if is_interrupted(Path(copy.original), place):
        return "apply interrupted"
    waiting = _count_waiting(record, copy)
    if settled_applies(copy):
        return "partly applied" if waiting else "applied"
    if waiting == 0:
        return "empty"
    return "pending" if record is None else _STATES[record.status]


_STATES: dict[Status, State] = {
    "copying": "interrupted",
    "running": "interrupted",  # the lock is free: it was killed
    "cancelled": "interrupted",
    "failed": "failed",
    "done": "pending",
}


def _count_waiting(record: RunRecord | None, copy: CopyRecord | None) -> int | None:
    """Return how many paths wait for a decision; None if that is not known."""
    if record is None or copy is None or record.changes is None:
        return None  # it was killed, or nobody has looked
    applies = settled_applies(copy)
    if len(applies) < record.applies:
        return None  # an apply was undone since
    applied: set[str] = set()
    for each in applies[record.applies :]:
        applied.update(set(each.accepted_paths) - each.contents.keys())  # the latter only in part
    return max(0, record.changes - len(applied))


def _measure(place: Path, copy: CopyRecord | None) -> int:
    if copy is None or copy.size_bytes is None:
        return _size(place)
    return copy.size_bytes + _size(history_path(place))


def _size(path: Path) -> int:
    return sum(_sizes(path)) if path.is_dir() else path.stat().st_size if path.exists() else 0


def _date(path: Path) -> datetime:
    with suppress(OSError):
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return datetime.min.replace(tzinfo=UTC)


def _sizes(directory: Path) -> Iterator[int]:
    """Yield the sizes of the files below a directory; of a bounded number of files."""
    pending, count = [directory], 0
    while pending and count < _MAX_SIZED:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))
                    else:
                        count += 1
                        yield entry.stat(follow_symlinks=False).st_size
