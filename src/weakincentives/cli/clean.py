"""`wink clean`: remove earlier runs.

By default only what is proven to be decided and not edited since. The rest is named, with the
command to decide about it.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from weakincentives.cli.completion import complete_run
from weakincentives.cli.config import ConfigError
from weakincentives.cli.listing import print_runs, run_facts
from weakincentives.cli.run.decision import can_ask
from weakincentives.cli.run.digest import cache_directory
from weakincentives.cli.run.lines import LinesView
from weakincentives.cli.run.recovery import changed_paths, list_names
from weakincentives.cli.runs import find_run, is_incomplete, read_run, run_directory
from weakincentives.cli.state import (
    calls_path,
    describe_history,
    exclusive_lock,
    list_histories,
)
from weakincentives.cli.status import BUSY, FINISHED, Run, State, describe_run, list_runs
from weakincentives.cli.terminal import describe_error, discard_typeahead, echo, read_line
from weakincentives.cli.units import format_count, format_size, parse_duration
from weakincentives.contrib.review import CopyError, Review, WorkingCopy, open_copy
from weakincentives.contrib.review.copy import remove_copy, remove_place
from weakincentives.contrib.review.records import open_files, read_record, workspace_path
from weakincentives.errors import WinkError
from weakincentives.filesystem import diff
from weakincentives.filesystem.base import is_tool_output

EXIT_FAILED, EXIT_NOT_REMOVED = 1, 3
_KEPT = "apply interrupted"
_HISTORY = "history of "
_MAX_KEPT = 10


@dataclass(frozen=True, slots=True)
class Loss:
    """What would be lost with a run: text for the user, empty if it is proven to be nothing."""

    fact: str = ""

    def __bool__(self) -> bool:
        """Return whether anything would be lost."""
        return bool(self.fact)


_NOT_DECIDED = Loss("not decided")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which runs to remove."""

    names: tuple[str, ...] = ()
    older_than: timedelta | None = None
    applied: bool = False
    everything: bool = False

    def runs(self) -> tuple[dict[Run, Loss], dict[Run, Loss]]:
        """Return the runs to remove and those to keep, with what is lost with each.

        Raises:
            ClickException: There is no run of that name, or it cannot be removed.
        """
        if self.names:
            found = [_find(name) for name in dict.fromkeys(self.names)]
            return {run: find_loss(run) for run in found}, {}
        removed: dict[Run, Loss] = {}
        kept: dict[Run, Loss] = {}
        for run in list_runs():
            if run.state in BUSY or not self.is_old(run.changed_at):
                continue
            wanted: frozenset[State] = frozenset({"applied"}) if self.applied else FINISHED
            is_checked = self.everything or run.state in {*wanted, "damaged"}
            loss = find_loss(run) if is_checked else _NOT_DECIDED
            is_wanted = run.state != _KEPT and (self.everything or not loss)
            (removed if is_wanted else kept)[run] = loss
        return removed, kept

    def is_old(self, date: datetime) -> bool:
        """Return whether something that changed last at `date` is old enough."""
        return self.older_than is None or datetime.now(UTC) - date > self.older_than


def find_loss(run: Run) -> Loss:
    """Return what would be lost with a run: undecided changes, or later edits."""
    if not workspace_path(run.place).is_dir() or is_incomplete(run.place):
        return Loss()
    files = workspace_path(run.place)
    try:
        copy = open_copy(run.place)
        if run.state not in FINISHED:
            with Review(copy) as review:
                waiting = changed_paths([*review.diff.entries, *review.withheld])
            return Loss(f"not decided: {list_names(waiting)}" if waiting else "")
        edited = _find_edits(copy)
    except (CopyError, WinkError, OSError) as error:
        return Loss(f"cannot be checked ({describe_error(error)}); its files are in {files}")
    if edited:
        return Loss(f"edited since the review: {list_names(edited)}")
    record = read_run(run.place)
    if record is not None and record.displaced:
        return Loss(
            f"what a command displaced; wink undo {run.name} {min(record.displaced)} restores it"
        )
    return Loss()


def _find_edits(copy: WorkingCopy) -> tuple[str, ...]:
    """Return what was changed in a copy since its changes were last reviewed or applied."""
    record = read_run(copy.place)
    applied = read_record(copy.place).applied
    seen = None if record is None else record.seen
    if seen is None:
        seen = applied[-1].after if applied else copy.base
    with open_files(copy) as files:
        now = files.snapshot(tag="before cleaning")
        changes = diff(files.view(seen), files.view(now), renames=False).entries
        return changed_paths([each for each in changes if not is_tool_output(each.path)])


@dataclass(frozen=True, slots=True)
class Item:
    """Something to remove that is not a run: a history of MCP calls, or the cache of digests."""

    name: str
    size_bytes: int
    paths: tuple[Path, ...]


@click.command(
    epilog="Exit codes: 0 done, 1 something could not be removed, 3 not confirmed, so nothing"
    " was removed."
)
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=complete_run)
@click.option("--older-than", metavar="TIME", help="Only what is older, such as 12h, 14d or 2w.")
@click.option("--applied", is_flag=True, help="Only runs whose changes were applied.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Runs with undecided changes too; those changes are lost.",
)
@click.option("--histories", is_flag=True, help="What wink mcp --in-place keeps for undo too.")
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
    histories: bool,
    cache: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove what earlier runs left behind, after asking.

    By default these are finished runs; a running one is never removed. A run is finished if its
    changes were applied, it changed nothing, or its copy was discarded, and the copy was not edited
    since. RUN names runs to remove instead. A removed run cannot be undone, shown or continued.
    """
    _check_options(runs, older_than, applied=applied, everything=everything)
    selection = Selection(runs, _parse_age(older_than), applied, everything)
    chosen, kept = selection.runs()
    items = [
        *(_find_histories(selection) if histories and not runs else ()),
        *(_find_cache() if cache else ()),
    ]
    cleaner = Cleaner(chosen, kept, items)
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
    """Removes runs and files, one after the other, and continues after an error."""

    def __init__(
        self, runs: Mapping[Run, Loss], kept: Mapping[Run, Loss], items: Sequence[Item]
    ) -> None:
        """Begin with nothing removed."""
        self._runs = runs
        self._kept = kept
        self._items = items
        self._freed: int = 0
        self._errors: dict[str, str] = {}
        self._done = 0

    def print_list(self) -> None:
        """Print what would be removed, what is lost with it, and what is kept."""
        for run, loss in self._runs.items():
            print_runs([run], as_json=False)
            if loss:
                echo(f"  lost with it: {loss.fact}", err=False)
        for each in self._items:
            echo(f"{each.name}  {format_size(each.size_bytes)}", err=False)
        if not self._runs and not self._items:
            echo("Nothing to remove.")
        for run, loss in list(self._kept.items())[:_MAX_KEPT]:
            advice = f"to decide: wink review {run.name}"
            if run.state == "damaged":
                advice = f"wink clean {run.name} removes it"
            echo(f"kept: {run.name} ({run.state}, {loss.fact}); {advice}")
        if len(self._kept) > _MAX_KEPT:
            echo(f"kept: {len(self._kept) - _MAX_KEPT} more; wink review lists them")

    def confirm(self) -> bool:
        """Ask whether to remove it."""
        waiting = sum(bool(each) for each in self._runs.values())
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
            for run, loss in _further_copies_first(self._runs):
                self._try(
                    run.name, run.size_bytes, lambda run=run, loss=loss: _remove_run(run, loss)
                )
            for item in self._items:
                self._try(item.name, item.size_bytes, lambda item=item: _remove_files(item.paths))
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
            "runs": [{**run_facts(run), "lost": loss.fact} for run, loss in self._runs.items()],
            "kept": [{**run_facts(run), "lost": loss.fact} for run, loss in self._kept.items()],
            "files": files,
            "freed_bytes": self._freed,
            "errors": self._errors,
        }
        click.echo(json.dumps(data))

    def _count(self) -> str:
        counts = [format_count(len(self._runs), "run")] if self._runs else []
        histories = sum(each.name.startswith(_HISTORY) for each in self._items)
        if histories:
            counts.append(format_count(histories, "history", "histories"))
        if len(self._items) > histories:
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


def _remove_run(run: Run, loss: Loss) -> None:
    directory = run_directory(run.place)
    if not directory.is_dir():
        return  # with the first copy of its run
    now = describe_run(run.place)
    is_same = now is not None and now.state == run.state
    with exclusive_lock(directory):
        # the user may have edited the copy, or decided something, since the list was printed
        if not is_same or find_loss(run) != loss:
            raise click.ClickException("it was changed meanwhile; try again")
        others = [each for each in list_runs() if run_directory(each.place) == directory]
        if run.place == directory and len(others) == 1:
            remove_place(directory)
        else:
            remove_copy(run.place)
            if run.place != directory:
                remove_place(run.place)


def _remove_files(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _further_copies_first(runs: Mapping[Run, Loss]) -> list[tuple[Run, Loss]]:
    """Return the runs so that the directory of one is removed after its further copies."""
    return sorted(runs.items(), key=lambda each: run_directory(each[0].place) == each[0].place)


def _find(name: str) -> Run:
    place = find_run(name).place
    run = None if place is None else describe_run(place)
    if run is None:
        raise click.ClickException(f"Not a run: {name!r}; wink review lists the runs")
    if run.state in BUSY:
        raise click.ClickException(f"The run {run.name} is {run.state}; wait until it has ended")
    if run.state == _KEPT:
        raise click.ClickException(
            f"An apply of the run {run.name} was interrupted;"
            f" roll it back first: wink review {run.name} --recover"
        )
    return run


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
