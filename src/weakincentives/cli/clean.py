"""`wink clean`: remove the working copies and dumps of earlier runs."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from weakincentives.cli.completion import complete_run
from weakincentives.cli.config import ConfigError
from weakincentives.cli.dumps import DumpPaths, default_directory, find_run_dump, list_dumps
from weakincentives.cli.listing import print_runs, run_facts, shorten_home
from weakincentives.cli.run.decision import can_ask
from weakincentives.cli.run.digest import cache_directory
from weakincentives.cli.run.lines import LinesView
from weakincentives.cli.runs import (
    BUSY,
    FINISHED,
    Run,
    describe_run,
    forget_removed_runs,
    list_runs,
)
from weakincentives.cli.state import (
    calls_path,
    describe_history,
    exclusive_lock,
    find_place,
    find_places,
    is_locked,
    list_histories,
    short_id,
)
from weakincentives.cli.terminal import describe_error, discard_typeahead, echo, read_line
from weakincentives.cli.units import format_count, format_size, parse_duration
from weakincentives.contrib.review.copy import remove_place
from weakincentives.contrib.review.records import record_path

EXIT_FAILED, EXIT_NOT_REMOVED = 1, 3
_KEPT = "apply interrupted"
_HISTORY = "history of "


@dataclass(frozen=True, slots=True)
class Selection:
    """Which runs to remove."""

    names: tuple[str, ...] = ()
    older_than: timedelta | None = None
    applied: bool = False
    everything: bool = False

    def runs(self) -> list[Run]:
        """Return the runs to remove; never one that a process works with.

        Raises:
            ClickException: There is no run of that name, or it cannot be removed.
        """
        if self.names:
            return [_find(name) for name in dict.fromkeys(self.names)]
        return [each for each in list_runs() if self._wants(each)]

    def is_old(self, date: datetime) -> bool:
        """Return whether something that changed last at `date` is old enough."""
        return self.older_than is None or datetime.now(UTC) - date > self.older_than

    def _wants(self, run: Run) -> bool:
        if run.state in BUSY or run.state == _KEPT or not self.is_old(run.changed_at):
            return False
        if self.applied:
            return run.state == "applied"
        return self.everything or run.state in FINISHED


@dataclass(frozen=True, slots=True)
class Item:
    """Something to remove that is not a run: a dump, or the cache of digests."""

    name: str
    size_bytes: int
    paths: tuple[Path, ...]


@click.command(
    epilog="Exit codes: 0 done, 1 something could not be removed, 3 nobody confirmed, so nothing"
    " was removed."
)
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=complete_run)
@click.option("--older-than", metavar="TIME", help="Only what is older, such as 12h, 14d or 2w.")
@click.option("--applied", is_flag=True, help="Only runs whose changes were applied.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Runs whose changes nobody has decided about too; those changes are lost.",
)
@click.option(
    "--dumps",
    is_flag=True,
    help="The dumps of removed runs, and of runs without a working copy, too; and what wink mcp"
    " --in-place keeps for undo.",
)
@click.option("--cache", is_flag=True, help="The cache of digests too.")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and never ask.")
def command(
    *,
    runs: tuple[str, ...],
    older_than: str | None,
    applied: bool,
    everything: bool,
    dumps: bool,
    cache: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove what earlier runs left behind, after asking.

    By default these are runs that nobody needs to decide about: their changes were applied, they
    changed nothing, or they were killed while the copy was made. RUN names runs to remove instead.
    A run that goes on is never removed. An applied run that is removed cannot be undone any more.
    """
    _check_options(runs, older_than, applied=applied, everything=everything)
    selection = Selection(runs, _parse_age(older_than), applied, everything)
    chosen = selection.runs()
    items = [
        *(_find_dumps(chosen, selection) if dumps else ()),
        *(_find_histories(selection) if dumps and not runs else ()),
        *(_find_cache() if cache else ()),
    ]
    cleaner = Cleaner(chosen, items)
    if not as_json:
        cleaner.print_list()
    code = 0
    if (chosen or items) and not dry_run:
        is_confirmed = yes or (not as_json and can_ask() and cleaner.confirm())
        code = cleaner.remove() if is_confirmed else EXIT_NOT_REMOVED
    if as_json:
        cleaner.print_json()
    else:
        cleaner.print_result(code)
    if code:
        raise click.exceptions.Exit(code)


def _check_options(
    runs: Sequence[str], older_than: str | None, *, applied: bool, everything: bool
) -> None:
    if applied and everything:
        raise click.UsageError("--applied and --all exclude each other; use one")
    if runs and (older_than or applied or everything):
        raise click.UsageError("RUN cannot be combined with --older-than, --applied or --all")


class Cleaner:
    """Removes runs and files, one after the other, and goes on after an error."""

    def __init__(self, runs: Sequence[Run], items: Sequence[Item]) -> None:
        """Begin with nothing removed."""
        self._runs = runs
        self._items = items
        self._freed: int = 0
        self._errors: dict[str, str] = {}
        self._done = 0

    def print_list(self) -> None:
        """Print what would be removed."""
        print_runs(self._runs, as_json=False)
        for each in self._items:
            echo(f"{each.name}  {format_size(each.size_bytes)}", err=False)
        if not self._runs and not self._items:
            echo(
                "Nothing to remove; --all removes runs too whose changes wait, --dumps dumps"
                f" (in {shorten_home(default_directory())})."
            )

    def confirm(self) -> bool:
        """Ask whether to remove it."""
        waiting = sum(each.state not in FINISHED for each in self._runs)
        size = format_size(sum(each.size_bytes for each in (*self._runs, *self._items)))
        lost = f"; the changes of {format_count(waiting, 'run')} are lost" if waiting else ""
        discard_typeahead()
        echo(f"Remove {self._count()}, {size}{lost}? [y/N]: ", newline=False)
        return read_line().strip().lower() in {"y", "yes"}

    def remove(self) -> int:
        """Remove everything, show how far it is, and return the exit code."""
        total = len(self._runs) + len(self._items)

        def describe() -> str:
            return f"removing, {self._done:,} of {total:,}, {format_size(self._freed)} freed"

        with LinesView().show_activity(describe):
            for run in self._runs:
                self._try(run.name, run.size_bytes, lambda run=run: _remove_run(run))
            for item in self._items:
                self._try(item.name, item.size_bytes, lambda item=item: _remove_files(item.paths))
        forget_removed_runs()
        return EXIT_FAILED if self._errors else 0

    def print_result(self, code: int) -> None:
        """Print what was removed."""
        if self._done:
            echo(f"Freed {format_size(self._freed)}.")
        elif code == EXIT_NOT_REMOVED:
            echo("Nothing was removed." if can_ask() else "Nothing was removed; --yes removes it.")

    def print_json(self) -> None:
        """Print what was or would be removed as one JSON object."""
        files = [{"name": each.name, "size_bytes": each.size_bytes} for each in self._items]
        data = {
            "removed": self._done > 0,
            "runs": [run_facts(each) for each in self._runs],
            "files": files,
            "freed_bytes": self._freed,
            "errors": self._errors,
        }
        click.echo(json.dumps(data))

    def _count(self) -> str:
        counts = [format_count(len(self._runs), "run")] if self._runs else []
        dumps = sum(each.name.startswith("dump ") for each in self._items)
        if dumps:
            counts.append(format_count(dumps, "dump"))
        histories = sum(each.name.startswith(_HISTORY) for each in self._items)
        if histories:
            counts.append(format_count(histories, "history", "histories"))
        if len(self._items) > dumps + histories:
            counts.append("the cache of digests")
        return " and ".join(counts)

    def _try(self, name: str, size: int, action: Callable[[], None]) -> None:
        try:
            action()
            self._freed += size
        except (OSError, click.ClickException) as error:
            text = error.message if isinstance(error, click.ClickException) else None
            self._errors[name] = text or describe_error(error)
            echo(f"wink: {name} was not removed: {self._errors[name]}")
        self._done += 1


def _remove_run(run: Run) -> None:
    with exclusive_lock(run.place):
        # a copy that is removed half has no record: it cannot be mistaken for a whole one
        record_path(run.place).unlink(missing_ok=True)
        remove_place(run.place)


def _remove_files(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _find(name: str) -> Run:
    place = find_place(name).absolute()
    run = describe_run(place)
    # half a copy is known only by its name
    if run is None or (run.original is None and place not in find_places()):
        raise click.ClickException(f"Not a run: {name!r}; wink review lists the runs")
    if run.state in BUSY:
        raise click.ClickException(f"The run {run.name} is {run.state}; wait until it has ended")
    if run.state == _KEPT:
        raise click.ClickException(
            f"An apply of the run {run.name} was interrupted;"
            f" roll it back first: wink review {run.name} --recover"
        )
    return run


def _find_dumps(removed: Sequence[Run], selection: Selection) -> Iterator[Item]:
    """Yield the dumps of the runs that are removed, and of those that are gone already."""
    gone = {each.place for each in removed}
    kept = {find_run_dump(each.place) for each in list_runs() if each.place not in gone}
    ours = {find_run_dump(each.place) for each in removed}
    for name, date in list_dumps().items():
        files = DumpPaths(default_directory() / name)
        if files in kept or (selection.names and files not in ours):
            continue
        is_old = files in ours or selection.is_old(datetime.fromtimestamp(date / 1e9, UTC))
        if is_old and not is_locked(files.timeline):
            yield _item(f"dump {short_id(name)}", *files)


def _find_histories(selection: Selection) -> Iterator[Item]:
    """Yield the snapshots of directories on which MCP clients worked in place, and do not now."""
    for store in list_histories():
        files = [each for each in store.rglob("*") if not each.is_dir()]
        date = max((each.lstat().st_mtime for each in files), default=0.0)
        if selection.is_old(datetime.fromtimestamp(date, UTC)):
            size = sum(each.lstat().st_size for each in files)
            paths = (calls_path(store), store)
            yield Item(f"{_HISTORY}{describe_history(store)}", size, paths)


def _find_cache() -> Iterator[Item]:
    directory = cache_directory(os.environ)
    # a link is not followed, and what is not a file is not ours
    if directory is not None and directory.is_dir() and not directory.is_symlink():
        files = (each for each in directory.iterdir() if each.is_file() and not each.is_symlink())
        yield _item("cache of digests", *files)


def _item(name: str, *paths: Path) -> Item:
    found = [each for each in paths if os.path.lexists(each)]
    size = 0
    for each in found:
        with suppress(OSError):
            size += each.lstat().st_size
    return Item(name, size, tuple(found))


def _parse_age(text: str | None) -> timedelta | None:
    if text is None:
        return None
    try:
        return timedelta(seconds=parse_duration(text))
    except ValueError as error:
        raise ConfigError(f"--older-than {error}") from error
