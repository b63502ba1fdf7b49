"""Runs: one directory and one ID for each, its record, and the finder that every command uses.

    runs/ID/
      run.json          what the run is and how it ended
      history/          its steps, and the snapshots of its files
      workspace/        its working copy, and review.json (applies)
      copy-2/           a further copy of a branch, with the same three and a run.json

The ID is the beginning of the session's ID. Whether a run is running is known from the lock on its
directory, so that a kill at any moment leaves no wrong state.
"""

import os
import re
import tempfile
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias, TypeGuard
from uuid import UUID, uuid4

import click
from click.shell_completion import CompletionItem

from weakincentives.cli.state import (
    ConfigError,
    create_directory,
    exclusive_lock,
    is_locked,
    own_directories,
    runs_directory,
)
from weakincentives.cli.terminal import shorten
from weakincentives.cli.units import list_names
from weakincentives.contrib.review import CopyError, Review
from weakincentives.contrib.review.copy import remove_copy, remove_place
from weakincentives.contrib.review.records import (
    Application,
    CopyRecord,
    has_record,
    read_record,
    workspace_path,
)
from weakincentives.filesystem import FilesystemSnapshot
from weakincentives.posix import read_regular, store_private
from weakincentives.runtime.timeline import has_steps
from weakincentives.serde import SerdeError, decode, encode

Status: TypeAlias = Literal["copying", "running", "done", "failed", "cancelled"]
Displaced: TypeAlias = tuple[FilesystemSnapshot, FilesystemSnapshot]
LAST = "last"
"""The argument that names the newest run."""
MCP_MODEL = "mcp"
"""What stands for the model in the record of a session of MCP clients."""
RUN_RECORD = "run.json"
"""The name of the record of a run."""
_MAX_RECORD = 16 * 1024 * 1024
_STEPS = "history"
_COPY = "copy-"
_ASIDE = "aside"  # the files of a copy that is about to be removed
_ID_LENGTH = 8
_NAME = re.compile(r"[0-9a-f]{8}(?:-\d+)?")  # of a run, which may have been killed at once
_MAX_COPIES = 1_000
_TEMPORARY = "wink-run-"  # where the library makes copies
_MAX_NAMES = 5
_MAX_HELP = 60
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a run was in one of its copies, and how it ended."""

    session_id: str
    task: str
    model: str
    created_at: datetime
    original: str = ""
    """The directory that it works on."""
    began_at: datetime = _LONG_AGO
    """When it began, or was continued last."""
    status: Status = "running"
    answer: str = ""
    """The last answer of the model."""
    changes: int | None = None
    """The paths that waited for a decision at the last review; None without one."""
    applies: int = 0
    """The number of applies at that time."""
    seen: FilesystemSnapshot | None = None
    """The files at that time."""
    since: FilesystemSnapshot | None = None
    """The files when the last instruction was given; None if that was the task."""
    displaced: dict[int, Displaced] = field(default_factory=dict[int, Displaced])
    """The files before and after the rollback of a command that displaced some, by its step."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """What an argument of the command line names."""

    steps: Path
    """The recorded steps, which need not exist."""
    place: Path | None = None
    """The copy, or where it was; None for a recording outside of the runs."""

    @property
    def name(self) -> str:
        """The short name that `find_run` understands."""
        return str(self.steps) if self.place is None else place_id(self.place)

    @property
    def record(self) -> RunRecord | None:
        """The record of the run; None without a readable one."""
        return None if self.place is None else read_run(self.place)


# --- the directory ---


def steps_path(directory: Path) -> Path:
    """Return where the steps of a run are recorded."""
    return directory / _STEPS


def run_directory(place: Path) -> Path:
    """Return the directory of the run that a copy belongs to."""
    is_inside = place.name.startswith(_COPY) and place.parent.parent == runs_directory()
    return place.parent if is_inside else place


def copy_name(place: Path) -> str:
    """Return the name of a copy in its run, as the steps record it."""
    return "." if run_directory(place) == place else place.name


def is_copy_name(name: object) -> TypeGuard[str]:
    """Return whether it is the name of a copy; steps may come from elsewhere."""
    return isinstance(name, str) and re.fullmatch(rf"\.|{_COPY}\d+", name) is not None


def place_id(place: Path) -> str:
    """Return the short name of a copy that `find_run` understands; its path if it has none."""
    run = run_directory(place)
    if run.parent == runs_directory():
        return run.name if place == run else f"{run.name}-{place.name.removeprefix(_COPY)}"
    if place.parent == Path(tempfile.gettempdir()) and place.name.startswith(_TEMPORARY):
        return place.name.removeprefix(_TEMPORARY)
    return str(place)


def list_places() -> list[Path]:
    """Return the copies of all runs, or where they were."""
    places: list[Path] = []
    for run in own_directories(runs_directory()):
        if _NAME.fullmatch(run.name) or has_record(run):
            places += map(_take_back, [run, *own_directories(run, _COPY)])
    # anyone may use such a name in the temporary directory: only what has a record is a copy
    temporary = own_directories(Path(tempfile.gettempdir()), _TEMPORARY)
    return sorted([*places, *filter(has_record, temporary)])


@contextmanager
def set_aside(place: Path) -> Generator[Path]:
    """Move the files of a copy away from their path; after an error they are moved back."""
    aside = place / _ASIDE
    workspace_path(place).rename(aside)
    try:
        yield aside
    except BaseException:
        aside.rename(workspace_path(place))
        raise


def _take_back(place: Path) -> Path:
    """Move the files of a copy back that a kill left aside."""
    aside = place / _ASIDE
    if aside.is_dir() and not is_locked(run_directory(place)):
        with suppress(OSError):  # another process was faster
            aside.rename(workspace_path(place))
    return place


def new_session_id() -> UUID:
    """Return a random ID; its beginning names no run, and is not the number of a step."""
    while True:
        found = uuid4()
        name = short_id(found)
        if not name.isdecimal() and not os.path.lexists(runs_directory() / name):
            return found


def short_id(session_id: UUID) -> str:
    """Return the beginning of a session's ID, which names its run."""
    return str(session_id)[:_ID_LENGTH]


@contextmanager
def new_run(session_id: UUID, original: Path, name: str | None = None) -> Generator[Path]:
    """Create and lock the directory of a run; at the end it is removed if nothing is in it.

    Raises:
        ConfigError: It cannot be created.
    """
    run = create_directory("runs") / (name or short_id(session_id))
    try:
        run.mkdir(0o700)
    except FileExistsError:
        raise ConfigError(f"The run exists already: {run.name!r}; try again") from None
    with exclusive_lock(run):
        try:
            now = datetime.now(UTC)
            write_run(run, RunRecord(str(session_id), "", "", now, str(original), now, "copying"))
            yield run
        finally:
            _remove_empty(run)


@contextmanager
def new_copy(run: Path, record: RunRecord) -> Generator[Path]:
    """Return a place for a new copy of a run, whose directory is locked."""
    place = run
    for number in range(2, _MAX_COPIES):
        if not os.path.lexists(workspace_path(place)) or is_incomplete(place):
            remove_copy(place)  # what a kill left of it
            break
        place = run / f"{_COPY}{number}"
    place.mkdir(0o700, exist_ok=True)
    run_facts = record.session_id, record.task, record.model, record.created_at, record.original
    write_run(place, RunRecord(*run_facts, datetime.now(UTC), "copying"))
    try:
        yield place
    finally:
        if place != run:
            _remove_empty(place)


def is_incomplete(place: Path) -> bool:
    """Return whether a process was killed while it made a copy, so that nobody worked in it."""
    if not workspace_path(place).is_dir():
        return not has_steps(steps_path(place))
    record = read_run(place)
    return record is not None and record.status == "copying" and not has_record(place)


def _remove_empty(place: Path) -> None:
    """Remove a directory that has neither a copy nor steps; its record is of no use."""
    kept = {entry.name for entry in os.scandir(place)} - {RUN_RECORD}
    if not kept:
        remove_place(place)


# --- the record ---


def write_run(place: Path, record: RunRecord) -> None:
    """Replace the record of the run in a copy atomically."""
    store_private(place / RUN_RECORD, encode(record))


def read_run(place: Path) -> RunRecord | None:
    """Return the record of the run in the copy at `place`; None without a readable one."""
    try:
        return decode(read_regular(place / RUN_RECORD, _MAX_RECORD), RunRecord)
    except (OSError, SerdeError):
        return None


def begin_run(
    place: Path, *, task: str, model: str, since: FilesystemSnapshot | None = None
) -> None:
    """Record that a run begins, or is continued, in the copy at `place`."""
    record, now = read_run(place), datetime.now(UTC)
    first = {} if record is None or record.task else {"task": task, "model": model}
    update_run(place, **first, began_at=now, status="running", changes=None, since=since)


def update_run(place: Path, **facts: object) -> None:
    """Record facts of a run, if it has a record."""
    record = read_run(place)
    if record is not None:
        write_run(place, replace(record, **facts))  # pyright: ignore[reportArgumentType]


def note_changes(review: Review) -> None:
    """Record how many changes of a run wait for a decision now, and the files as they are."""
    place = review.copy.place
    update_run(
        place,
        changes=len(review.diff.entries),
        applies=len(settled_applies(read_record(place))),
        seen=review.state,
    )


def settled_applies(copy: CopyRecord) -> list[Application]:
    """Return the applies that have happened; one is recorded before it begins."""
    return [each for each in copy.applied if each.is_settled and each.accepted]


# --- the finder ---


def find_run(argument: str, needs: Literal["steps", "copy"] | None = None) -> RunFiles:
    """Return the run that an argument names: its ID or a prefix, a path, or `last`.

    A path is that of a run, of a copy or its workspace, or of recorded steps.

    Args:
        argument: The argument.
        needs: What the newest run must have to be `last`.

    Raises:
        ClickException: There is none, or several.
    """
    if argument not in {"", LAST} and (found := _find_path(Path(argument).expanduser())):
        return found
    places = list_places()
    if argument == LAST:
        if needs == "steps":
            places = [each for each in places if has_steps(steps_path(run_directory(each)))]
        elif needs == "copy":
            places = list(filter(has_record, places))
        fact = f"No runs are kept in {str(runs_directory())!r}; start one with wink run"
        return _find_newest(places, fact)
    found = {place_id(each): each for each in places}
    matches = _match_ids(argument, found)
    if len(matches) == 1:
        return _run_at(found[matches[0]])
    if matches:
        names = list_names(matches, _MAX_NAMES)
        raise click.ClickException(
            f"Several runs begin with {argument!r}: {names}; type more of it"
        )
    raise click.ClickException(
        f"There is no run {argument!r}; wink review lists the runs, and completes their IDs"
    )


def find_last_run(original: Path) -> RunFiles:
    """Return the newest run of a model on a directory.

    Raises:
        ClickException: There is none.
    """
    places = [
        place
        for place in list_places()
        if (record := read_run(place)) is not None
        and record.original == str(original)
        and record.model != MCP_MODEL
    ]
    fact = f"No run worked on {str(original)!r}, so there is none to continue; start one with"
    return _find_newest(places, f'{fact} wink run "..."')


def _match_ids(argument: str, names: Collection[str]) -> list[str]:
    """Return the names that an argument may mean: the same one, or those that begin with it.

    A whole session ID means the run that is called by its beginning. A run comes before its
    further copies, which have its name and a number.
    """
    with suppress(ValueError):
        argument = short_id(UUID(argument)) if len(argument) > _ID_LENGTH else argument
    if argument in names:
        return [argument]
    found = sorted(each for each in names if argument and each.startswith(argument))
    return found[:1] if len({each.partition("-")[0] for each in found}) == 1 else found


def _find_path(path: Path) -> RunFiles | None:
    if path.exists():
        for place in (path.absolute(), path.absolute().parent):
            if has_record(place) or read_run(place) is not None:
                return _run_at(place)
    return RunFiles(path) if path.exists() or "/" in str(path) else None


def _run_at(place: Path) -> RunFiles:
    return RunFiles(steps_path(run_directory(place)), place)


def _find_newest(places: Sequence[Path], problem: str) -> RunFiles:
    if not places:
        raise click.ClickException(problem)
    return _run_at(max((_began_at(each), each) for each in places)[1])


def _began_at(place: Path) -> datetime:
    record = read_run(place)
    if record is not None:
        return record.began_at
    with suppress(OSError, CopyError):
        return read_record(place).base.created_at
    return _LONG_AGO


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
