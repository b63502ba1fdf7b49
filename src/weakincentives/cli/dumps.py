"""Dumps on the command line: where they are, and which one an argument names.

A dump has up to three files with one name: `.timeline` with every step, and at the end of a run
`.jsonl` with the session, and on request `.fs.zip` with the files.
"""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import click

from weakincentives.cli.config import load_settings
from weakincentives.cli.runs import MCP_MODEL, read_last_run, read_run
from weakincentives.cli.state import (
    LAST,
    describe_several,
    find_places,
    match_ids,
    place_id,
    short_id,
    state_directory,
)
from weakincentives.contrib.review import CopyError, open_copy
from weakincentives.contrib.review.records import has_record
from weakincentives.filesystem.snapshot_manager import ARCHIVE_SUFFIX
from weakincentives.runtime.timeline import SUFFIX, Timeline, TimelineError

_TEXT_SUFFIX = ".jsonl"
_SUFFIXES = (SUFFIX, _TEXT_SUFFIX, ARCHIVE_SUFFIX)
_LINK = "timeline"  # in the place of a working copy
_STEP = re.compile(r"(\d+|@[^:/]+)(?::(.+))?", re.DOTALL)
_HELP = f"pass a {SUFFIX} file, or {LAST!r} for the newest"


@dataclass(frozen=True, slots=True)
class DumpPaths:
    """The files of a dump; not all of them need to exist."""

    stem: Path

    def __iter__(self) -> Iterator[Path]:
        """Iterate over the three paths."""
        return iter((self.timeline, self.text, self.archive))

    @property
    def timeline(self) -> Path:
        """Every step of the session."""
        return self.stem.with_name(f"{self.stem.name}{SUFFIX}")

    @property
    def text(self) -> Path:
        """The session at the end."""
        return self.stem.with_name(f"{self.stem.name}{_TEXT_SUFFIX}")

    @property
    def archive(self) -> Path:
        """The files at the end."""
        return self.stem.with_name(f"{self.stem.name}{ARCHIVE_SUFFIX}")


class StepArgument(NamedTuple):
    """A STEP on the command line: a number, or a branch as `@NAME`; and a path, if it has one."""

    name: str
    path: str | None = None

    def resolve(self, timeline: Timeline) -> int:
        """Return the number of the step; a branch is its newest step.

        Raises:
            ClickException: There is no such step.
        """
        try:
            if self.name.startswith("@"):
                return timeline.branch(self.name[1:])
            return timeline.step(int(self.name)).number
        except TimelineError as error:
            raise click.ClickException(f"{error}; wink log shows the steps") from error


def parse_step(text: str) -> StepArgument | None:
    """Return the STEP that an argument names; None if it names a DUMP."""
    match = _STEP.fullmatch(text)
    return None if match is None else StepArgument(match[1], match[2])


def split_arguments(
    words: Sequence[str], *, most: int, command: str
) -> tuple[str, list[StepArgument]]:
    """Return the DUMP and the STEPs in the arguments of a command; the DUMP comes first.

    A number is a STEP, and so is `@` with the name of a branch. Everything else is a DUMP.

    Raises:
        UsageError: There are two dumps, or more than `most` steps.
    """
    dump, rest = LAST, list(words)
    if rest and parse_step(rest[0]) is None:
        dump = rest.pop(0)
    steps: list[StepArgument] = []
    for word in rest:
        step = parse_step(word)
        if step is None:
            raise click.UsageError(
                f"Not a step: {word!r}; a step is a number, or @NAME for a branch; the dump comes"
                " first"
            )
        steps.append(step)
    if len(steps) > most:
        raise click.UsageError(f"Too many steps: {len(steps)}; wink {command} takes {most}")
    return dump, steps


def dump_directory(setting: str | None) -> Path:
    """Return the directory for dumps: the setting, or one in the state directory."""
    if setting is not None:
        return Path(setting).expanduser().absolute()
    return state_directory() / "dumps"


def default_directory() -> Path:
    """Return the directory for dumps in the settings of the user."""
    settings = load_settings(Path.cwd(), environment=os.environ, options={})
    return dump_directory(settings["dump"])


def link_timeline(place: Path, timeline: Path) -> None:
    """Note in the place of a working copy where its run is recorded."""
    link = place / _LINK
    link.unlink(missing_ok=True)
    link.symlink_to(timeline.absolute())


def find_linked_timeline(place: Path) -> Path | None:
    """Return where the run in a working copy is recorded; None if it is not."""
    link = place / _LINK
    return Path(os.path.realpath(link)) if link.is_symlink() else None


def find_named_place(argument: str) -> Path | None:
    """Return the working copy that an argument names; None if it names a whole run or a dump."""
    path = Path(argument).expanduser().absolute()
    if has_record(path):
        return path
    if "-" not in argument:  # the ID of a run, which may have several copies
        return None
    return next((each for each in find_places() if place_id(each) == argument), None)


def find_last_run(original: Path, directory: Path) -> Path:
    """Return the timeline of the newest run that worked on a directory.

    Args:
        original: The directory.
        directory: The directory of dumps, for runs whose copy is gone.

    Raises:
        ClickException: There is none, or it did not record its steps.
    """
    last = read_last_run(original)
    if last is not None:
        place = Path(last.place)
        return _check_recorded(place if last.timeline is None else Path(last.timeline), place)
    # it was removed: another one may be left
    dates: dict[Path, int] = {}
    known: dict[Path, Path] = {}
    for place in find_places():
        with suppress(CopyError, OSError):
            if open_copy(place).original == original and not _is_mcp_session(place):
                path = find_linked_timeline(place) or place
                dates[path] = _date(path) or _date(place)
                known[path] = place
    for path in directory.glob(f"*{SUFFIX}"):
        dates.setdefault(Path(os.path.realpath(path)), _date(path))
    for path in sorted(dates, key=lambda each: dates[each], reverse=True):
        if path in known or _worked_on(path, original):
            return _check_recorded(path, known.get(path))
    raise click.ClickException(
        f"No run worked on {str(original)!r}, so there is none to continue; start one with"
        ' wink run "..."'
    )


def timeline_hints(timeline: Path, *, is_answered: bool = True) -> list[str]:
    """Return the lines at the end of a run that say how to look at its steps and to go on.

    A run that was not answered goes on without a new instruction.
    """
    name = shlex.quote(dump_id(timeline))
    instruction = ' "..."' if is_answered else ""
    return [
        f"Every step: wink log {name}",
        f"In the browser: wink debug {name}",
        f"To go on: wink resume {name}{instruction}",
    ]


def dump_id(timeline: Path) -> str:
    """Return the short name of a dump that `find_dump` understands; its path if it has none."""
    stem = _strip_suffix(timeline)
    if stem.stem.parent != default_directory():
        return str(timeline)
    return short_id(stem.stem.name)


def find_dump(argument: str) -> DumpPaths:
    """Return the dump that an argument of the command line names.

    That is one of its files, their common name without suffix, the working copy of a run, a
    directory of dumps (its newest), the beginning of a session ID, or `last`.

    Raises:
        ClickException: There is none, or several.
    """
    if argument == LAST:
        return _newest(default_directory())
    path = Path(argument).expanduser()
    if path.is_dir():
        return _find_in_directory(path)
    if path.exists():
        return _strip_suffix(path)
    found = DumpPaths(path)
    if any(each.exists() for each in (found.timeline, found.text, found.archive)):
        return found
    if "/" not in argument:
        return _find_by_prefix(argument)
    raise click.ClickException(f"There is no dump {argument!r}; {_HELP}")


def list_dumps() -> dict[str, int]:
    """Return the names of the dumps in the default directory with their dates, newest first."""
    dates = _dates(default_directory())
    return dict(sorted(dates.items(), key=lambda each: each[1], reverse=True))


def find_run_dump(place: Path) -> DumpPaths | None:
    """Return the dump of the run in a working copy; None if it has none."""
    return _find_in_directory(place) if (place / _LINK).is_symlink() else None


def find_folder(argument: str) -> Path | None:
    """Return the directory of dumps that an argument names; None if it names one dump or run."""
    path = Path(argument).expanduser()
    return path if path.is_dir() and not (path / _LINK).is_symlink() else None


def find_timeline(argument: str) -> Path:
    """Return the timeline that an argument of the command line names, as `find_dump` does.

    Raises:
        ClickException: There is none.
    """
    found = find_dump(argument)
    if not found.timeline.is_file():
        raise click.ClickException(
            f"The steps were not recorded: {str(found.timeline)!r} does not exist;"
            " the dump has only the last state, which load_session reads"
        )
    return found.timeline


def open_timeline(argument: str) -> Timeline:
    """Open the timeline that an argument of the command line names.

    Raises:
        ClickException: There is none, or it cannot be read.
    """
    path = find_timeline(argument)
    try:
        timeline = Timeline(path)
    except TimelineError as error:
        raise click.ClickException(f"{error}; {_HELP}") from error
    if not timeline.steps:
        problem = timeline.problem or "it was killed before its first step"
        timeline.close()
        raise click.ClickException(f"The recording has no steps: {str(path)!r}; {problem}")
    return timeline


def _find_in_directory(path: Path) -> DumpPaths:
    link = path / _LINK
    if link.is_symlink():
        return _strip_suffix(Path(os.path.realpath(link)))
    return _newest(path)


def _strip_suffix(path: Path) -> DumpPaths:
    for suffix in _SUFFIXES:
        if path.name.endswith(suffix) and path.name != suffix:
            return DumpPaths(path.with_name(path.name.removesuffix(suffix)))
    raise click.ClickException(
        f"Not a dump: {str(path)!r}; pass a file with the suffix {', '.join(_SUFFIXES)}"
    )


def _newest(directory: Path) -> DumpPaths:
    found = _dates(directory)
    if not found:
        raise click.ClickException(
            f"There are no dumps in {str(directory)!r}; wink run writes them, wink demo --keep too"
        )
    return DumpPaths(directory / max(found, key=lambda name: found[name]))


def _find_by_prefix(argument: str) -> DumpPaths:
    directory = default_directory()
    dumps = {name: DumpPaths(directory / name) for name in _dates(directory)}
    for place in find_places():  # the dump of a run may be anywhere
        if (place / _LINK).is_symlink():
            dump = _find_in_directory(place)
            if place_id(place) == argument:
                return dump
            dumps.setdefault(dump.stem.name, dump)
    found = match_ids(argument, list(dumps))
    if len(found) == 1:
        return dumps[found[0]]
    if found:
        raise click.ClickException(describe_several("dumps", argument, found))
    raise click.ClickException(
        f"There is no dump {argument!r}: it is not a file, and no session in {str(directory)!r}"
        f" begins with it; {_HELP}"
    )


def _is_mcp_session(place: Path) -> bool:
    """Return whether MCP clients worked in a copy: no model can go on there."""
    record = read_run(place)
    return record is not None and record.model == MCP_MODEL


def _worked_on(timeline: Path, original: Path) -> bool:
    try:
        with Timeline(timeline) as found:
            run = found.steps[0].details.get("run") if found.steps else None
    except (TimelineError, OSError):
        return False
    return isinstance(run, dict) and cast("dict[str, Any]", run).get("workspace") == str(original)


def _check_recorded(path: Path, place: Path | None) -> Path:
    """Return the timeline of the newest run, whose copy may be at `place`.

    Raises:
        ClickException: It has none, or none with a step.
    """
    if path == place:
        raise click.ClickException(
            "The steps of the last run were not recorded, so it cannot go on; to decide about its"
            f" changes: wink review {shlex.quote(place_id(path))}"
        )
    with suppress(TimelineError, OSError), Timeline(path) as found:
        if found.steps:
            return path
    record = None if place is None else read_run(place)
    task = '"..."' if record is None else shlex.quote(record.task)
    raise click.ClickException(
        "The last run was stopped before its first step was recorded, so there is nothing to"
        f" continue; start it again: wink run {task}"
    )


def _date(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def _dates(directory: Path) -> dict[str, int]:
    """Return the names of the dumps in a directory, and when each was last changed."""
    found: dict[str, int] = {}
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            for suffix in _SUFFIXES:
                name = entry.name.removesuffix(suffix)
                if name not in ("", entry.name) and not name.startswith("."):
                    with suppress(OSError):
                        date = entry.stat(follow_symlinks=False).st_mtime_ns
                        found[name] = max(date, found.get(name, 0))
    return found
