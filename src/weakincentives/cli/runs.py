"""Runs that left a working copy: the record of each, and the state that follows from its facts.

The record, `run.json` in the place of the copy, says what the run was and how it ended. Whether it
still goes on is known from its lock, and whether its changes were applied from the record of the
copy, so that a kill at any moment leaves no wrong state.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Literal, TypeAlias

from weakincentives.cli.state import (
    create_directory,
    find_places,
    is_locked,
    place_id,
    state_directory,
)
from weakincentives.contrib.review import CopyError, Review
from weakincentives.contrib.review.records import (
    Application,
    CopyRecord,
    history_path,
    read_record,
    store_record,
    workspace_path,
)
from weakincentives.contrib.review.recovery import is_interrupted
from weakincentives.filesystem import FilesystemSnapshot
from weakincentives.posix import read_regular
from weakincentives.serde import SerdeError, decode, encode

Status: TypeAlias = Literal["running", "done", "failed", "cancelled"]
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
    "incomplete",
]
FINISHED: frozenset[State] = frozenset({"applied", "empty", "incomplete"})
"""The states in which a copy has no changes that wait for a decision."""
BUSY: frozenset[State] = frozenset({"running", "in review"})
"""The states in which a process works with the copy."""
MCP_MODEL = "mcp"
"""What stands for the model in the record of a session of MCP clients."""
_RECORD = "run.json"
_LAST = "last"  # in the state directory
_MAX_RECORD = 16 * 1024 * 1024
_MAX_SIZED = 20_000  # files whose sizes are added up


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a run was, and how it ended."""

    session_id: str
    task: str
    model: str
    created_at: datetime
    status: Status = "running"
    answer: str = ""
    """The last answer of the model."""
    changes: int | None = None
    """The paths that waited for a decision when somebody last looked; None if nobody did."""
    applies: int = 0
    """The number of applies at that time."""
    since: FilesystemSnapshot | None = None
    """The files when the last instruction was given; None if that was the task."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run in the list of runs."""

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


@dataclass(frozen=True, slots=True)
class LastRun:
    """Where the newest run on a directory was made, and where its steps are recorded."""

    original: str
    place: str
    timeline: str | None = None
    """None if they are not recorded."""

    @property
    def is_gone(self) -> bool:
        """Whether neither its copy nor its recording is left."""
        return not any(os.path.lexists(each) for each in (self.place, self.timeline or ""))


def note_last_run(original: Path, place: Path, timeline: Path | None) -> None:
    """Record that a run is the newest on a directory."""
    run = LastRun(str(original), str(place), None if timeline is None else str(timeline))
    store_record(create_directory(_LAST), _last_name(original), encode(run))


def read_last_run(original: Path) -> LastRun | None:
    """Return the newest run on a directory; None if it is not known, or gone."""
    found = _read_last(state_directory() / _LAST / _last_name(original))
    return None if found is None or found.is_gone or found.original != str(original) else found


def forget_removed_runs() -> None:
    """Remove the records about the newest runs on directories if these runs are gone."""
    for path in (state_directory() / _LAST).glob("*.json"):
        found = _read_last(path)
        if found is not None and found.is_gone:
            path.unlink(missing_ok=True)


def _last_name(original: Path) -> str:
    return f"{sha256(os.fsencode(original)).hexdigest()}.json"


def _read_last(path: Path) -> LastRun | None:
    try:
        return decode(read_regular(path, _MAX_RECORD), LastRun)
    except (OSError, SerdeError):
        return None


def begin_run(
    place: Path,
    *,
    session_id: str,
    task: str,
    model: str,
    since: FilesystemSnapshot | None = None,
) -> None:
    """Record that a run begins, or goes on, in the copy at `place`."""
    record = read_run(place)
    if record is None:
        record = RunRecord(session_id, task, model, datetime.now(UTC))
    record = replace(record, status="running", changes=None, since=since)
    store_record(place, _RECORD, encode(record))


def rename_run(place: Path, task: str) -> None:
    """Record another task of a run, once it is known."""
    record = read_run(place)
    if record is not None:
        store_record(place, _RECORD, encode(replace(record, task=task)))


def end_run(place: Path, status: Status, answer: str = "") -> None:
    """Record how a run ended, and what the model answered."""
    record = read_run(place)
    if record is not None:
        store_record(place, _RECORD, encode(replace(record, status=status, answer=answer)))


def note_changes(review: Review) -> None:
    """Record how many changes of a run wait for a decision now."""
    place = review.copy.place
    record = read_run(place)
    if record is not None:
        applies = len(_settled(read_record(place)))
        store_record(
            place,
            _RECORD,
            encode(replace(record, changes=len(review.diff.entries), applies=applies)),
        )


def read_run(place: Path) -> RunRecord | None:
    """Return the record of the run in the copy at `place`; None if it has none."""
    try:
        return decode(read_regular(place / _RECORD, _MAX_RECORD), RunRecord)
    except (OSError, SerdeError):
        return None


def list_runs() -> list[Run]:
    """Return all runs, the newest first."""
    found = [run for place in find_places() if (run := describe_run(place)) is not None]
    return sorted(found, key=lambda each: each.created_at, reverse=True)


def describe_run(place: Path) -> Run | None:
    """Return the run whose copy is at `place`; None if it is gone."""
    try:
        changed_at = _date(place.stat().st_mtime)
    except OSError:
        return None
    record = read_run(place)
    try:
        copy = read_record(place)
    except CopyError:
        copy = None
    if copy is None or not workspace_path(place).is_dir():
        state = "running" if is_locked(place) else "incomplete"
        size = sum(_sizes(place))
        return Run(place_id(place), place, state, changed_at, changed_at, size)
    with suppress(OSError):
        changed_at = max(changed_at, _date((place / _RECORD).stat().st_mtime))
    return Run(
        name=place_id(place),
        place=place,
        state=_find_state(place, record, copy),
        created_at=copy.base.created_at if record is None else record.created_at,
        changed_at=changed_at,
        size_bytes=_measure(place, copy),
        original=Path(copy.original),
        task=None if record is None else record.task,
        model=None if record is None else record.model,
        session_id=None if record is None else record.session_id,
        changes=None if record is None else _count_waiting(record, copy),
    )


def _find_state(place: Path, record: RunRecord | None, copy: CopyRecord) -> State:
    if is_locked(place):
        return "running" if record is None or record.status == "running" else "in review"
    if is_interrupted(Path(copy.original), place):
        return "apply interrupted"
    waiting = None if record is None else _count_waiting(record, copy)
    if _settled(copy):
        return "partly applied" if waiting else "applied"
    if waiting == 0:
        return "empty"
    return "pending" if record is None else _STATES[record.status]


_STATES: dict[Status, State] = {
    "running": "interrupted",  # nobody has the lock: it was killed
    "cancelled": "interrupted",
    "failed": "failed",
    "done": "pending",
}


def _count_waiting(record: RunRecord, copy: CopyRecord) -> int | None:
    """Return how many paths wait for a decision; None if that is not known."""
    applies = _settled(copy)
    if record.changes is None or len(applies) < record.applies:
        return None  # it was killed, or an apply was undone since
    applied: set[str] = set()
    for each in applies[record.applies :]:
        applied.update(set(each.accepted_paths) - each.contents.keys())  # the latter only in part
    return max(0, record.changes - len(applied))


def _settled(copy: CopyRecord) -> list[Application]:
    """Return the applies that have happened; one is recorded before it begins."""
    return [each for each in copy.applied if each.is_settled and each.accepted_paths]


def _measure(place: Path, copy: CopyRecord) -> int:
    if copy.size_bytes is None:
        return sum(_sizes(place))
    return copy.size_bytes + sum(_sizes(history_path(place)))


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


def _date(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
