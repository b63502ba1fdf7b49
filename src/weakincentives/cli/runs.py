"""Runs: one directory and one ID for each, its record, and the finder that every command uses.

    runs/ID/
      run.json          what the run is, how it ended, and what was applied
      history/          its steps, and the snapshots of its files
      workspace/        its working copy
      copy-2/           a further copy of a branch, with the same three

The ID is the beginning of the session's ID. Whether a run is running is known from the lock on its
directory, so that a kill at any moment leaves no wrong state.
"""

import os
import re
import stat
import tempfile
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeGuard
from uuid import UUID, uuid4

import click
from click.shell_completion import CompletionItem

from weakincentives.cli.state import (
    ConfigError,
    create_directory,
    exclusive_lock,
    own_directories,
    runs_directory,
)
from weakincentives.cli.terminal import shorten
from weakincentives.contrib.review import (
    Review,
    RunRecord,
    find_record,
    is_copy,
    record_path,
    remove_copy,
    remove_place,
    take_back,
    workspace_path,
    write_record,
)
from weakincentives.filesystem import FilesystemSnapshot
from weakincentives.posix import display_paths, is_locked
from weakincentives.runtime.timeline import has_steps

LAST = "last"
"""The argument that names the newest run."""
LIST_HINT = "`wink review` lists the runs"
"""What to do about a run that is not there."""
MCP_MODEL = "mcp"
"""What stands for the model in the record of a session of MCP clients."""
_STEPS = "history"
_BLOCK = 512  # bytes in which st_blocks counts
_COPY = "copy-"
_ID_LENGTH = 8
_NAME = re.compile(r"[0-9a-f]{8}(?:-\d+)?")  # of a run, which may have been killed at once
_MAX_COPIES = 1_000
_TEMPORARY = "wink-run-"  # where the library makes copies
_MAX_NAMES = 5
_MAX_HELP = 60
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


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
        return None if self.place is None else find_record(self.place)


# --- the directory ---


def steps_path(directory: Path) -> Path:
    """Return where the steps of a run are recorded."""
    return directory / _STEPS


def run_directory(place: Path) -> Path:
    """Return the directory of the run that a copy belongs to."""
    is_inside = place.name.startswith(_COPY) and place.parent.parent == runs_directory()
    return place.parent if is_inside else place


def find_copies(run: Path) -> list[Path]:
    """Return the copies inside the directory of a run, besides its first."""
    return own_directories(run, _COPY)


def copy_name(place: Path) -> str:
    """Return the name of a copy in its run, as the steps record it."""
    return "." if run_directory(place) == place else place.name


def is_copy_name(name: object) -> TypeGuard[str]:
    """Return whether it is the name of a copy; steps may come from elsewhere."""
    return isinstance(name, str) and re.fullmatch(rf"\.|{_COPY}\d+", name) is not None


def measure(path: Path, *, without: Collection[Path] = ()) -> int:
    """Return how much of the disk a file or directory takes, as `du` counts it.

    Files that are the same are counted once, and what is in `without` is not.
    """
    pending, size = [os.fspath(path)], 0
    excluded, linked = {*map(os.fspath, without)}, set[tuple[int, int]]()
    while pending:
        name = pending.pop()
        with suppress(OSError):
            found = os.lstat(name)
            if stat.S_ISDIR(found.st_mode):
                with os.scandir(name) as entries:
                    pending += [each.path for each in entries if each.path not in excluded]
            elif found.st_nlink > 1:
                if (found.st_dev, found.st_ino) in linked:
                    continue
                linked.add((found.st_dev, found.st_ino))
            size += found.st_blocks * _BLOCK
    return size


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
        if _NAME.fullmatch(run.name) or is_copy(run):
            copies = [run, *find_copies(run)]
            if not is_locked(run):
                for each in copies:
                    take_back(each)  # a kill came while it was being removed
            places += copies
    # anyone may use such a name in the temporary directory: only what has a record is a copy
    temporary = own_directories(Path(tempfile.gettempdir()), _TEMPORARY)
    return sorted([*places, *filter(is_copy, temporary)])


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
            write_record(run, _new_record(str(original), str(session_id)))
            yield run
        finally:
            _remove_empty(run)


def _new_record(original: str, session_id: str) -> RunRecord:
    now = datetime.now(UTC)
    record = RunRecord(original=original, created_at=now, began_at=now)
    return replace(record, session_id=session_id, status="copying")


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
    new = _new_record(record.original, record.session_id)
    new = replace(new, created_at=record.created_at, task=record.task, model=record.model)
    write_record(place, new)
    try:
        yield place
    finally:
        if place != run:
            _remove_empty(place)


def is_incomplete(place: Path) -> bool:
    """Return whether a process was killed while it made a copy, so that nobody worked in it."""
    if not workspace_path(place).is_dir():
        return not has_steps(steps_path(place))
    record = find_record(place)
    return record is not None and record.copy is None


def _remove_empty(place: Path) -> None:
    """Remove a directory that has neither a copy nor steps; its record is of no use."""
    if place.is_dir() and not {each.name for each in place.iterdir()} - {record_path(place).name}:
        remove_place(place)


def begin_run(
    place: Path, *, task: str, model: str, since: FilesystemSnapshot | None = None
) -> None:
    """Record that a run begins, or is continued, in the copy at `place`."""
    record, now = find_record(place), datetime.now(UTC)
    first = {} if record is None or record.task else {"task": task, "model": model}
    update_run(place, **first, began_at=now, status="running", changes=None, since=since)


def update_run(place: Path, **facts: object) -> None:
    """Record facts of a run, if it has a record."""
    record = find_record(place)
    if record is not None:
        write_record(place, replace(record, **facts))  # pyright: ignore[reportArgumentType]


def note_changes(review: Review) -> None:
    """Record the changes of a run that wait for a decision now, its files and their size."""
    place, record = review.copy.place, find_record(review.copy.place)
    copy = None if record is None else record.copy
    if copy is not None:
        copy = replace(copy, size_bytes=measure(workspace_path(place)))
    update_run(place, changes=len(review.diff.entries), seen=review.state, copy=copy)


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
            places = list(filter(is_copy, places))
        fact = f"No runs are kept in {str(runs_directory())!r}; start one with wink run"
        return _find_newest(places, fact)
    found = {place_id(each): each for each in places}
    matches = _match_ids(argument, found)
    if len(matches) == 1:
        return _run_at(found[matches[0]])
    if matches:
        names = display_paths(matches, _MAX_NAMES)
        raise click.ClickException(
            f"Several runs begin with {argument!r}: {names}; type more of it"
        )
    raise click.ClickException(f"Run not found: {argument!r}; {LIST_HINT}")


def find_last_run(original: Path) -> RunFiles:
    """Return the newest run of a model on a directory.

    Raises:
        ClickException: There is none.
    """
    records = {place: find_record(place) for place in list_places()}
    damaged = [place for place, record in records.items() if record is None and is_copy(place)]
    places = [
        place
        for place, record in records.items()
        if record is not None and record.original == str(original) and record.model != MCP_MODEL
    ]
    fact = f"No run to continue in {str(original)!r}; start one with"
    return _find_newest(places or damaged, f'{fact} wink run "..."')


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
            if is_copy(place) or find_record(place) is not None:
                return _run_at(place)
    return RunFiles(path) if path.exists() or "/" in str(path) else None


def _run_at(place: Path) -> RunFiles:
    return RunFiles(steps_path(run_directory(place)), place)


def _find_newest(places: Sequence[Path], problem: str) -> RunFiles:
    if not places:
        raise click.ClickException(problem)
    return _run_at(max((_began_at(each), each) for each in places)[1])


def _began_at(place: Path) -> datetime:
    record = find_record(place)
    return _LONG_AGO if record is None else record.began_at


def complete_run(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the IDs of runs that begin with what was typed, `last`, and paths."""
    del context, parameter  # click's signature
    found: list[CompletionItem] = []
    with suppress(OSError, click.ClickException):
        for place in list_places():
            if place_id(place).startswith(incomplete):
                record = find_record(place)
                task = "" if record is None else shorten(record.task, _MAX_HELP)
                found.append(CompletionItem(place_id(place), help=task))
    if incomplete and LAST.startswith(incomplete):
        found.append(CompletionItem(LAST))
    return found or [CompletionItem(incomplete, type="file")]
