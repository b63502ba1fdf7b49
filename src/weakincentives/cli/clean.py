"""`wink clean`: remove earlier runs.

By default only what is proven to be decided and not edited since. The rest is named, with the
command to decide about it.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import click

from weakincentives.cli import runs, state, status
from weakincentives.cli.activity import show_activity
from weakincentives.cli.answers import can_ask, confirm
from weakincentives.cli.digest import cache_directory
from weakincentives.cli.run.workspace import changed_paths, without_parents
from weakincentives.cli.terminal import describe_error, echo
from weakincentives.cli.units import format_count, format_size, parse_duration, pick
from weakincentives.contrib.review import (
    CopyError,
    CopyInUseError,
    Review,
    RunRecord,
    WorkingCopy,
    find_attributes,
    open_copy,
    open_files,
    read_record,
    remove_copy,
    remove_place,
    remove_unused,
    workspace_path,
)
from weakincentives.errors import WinkError
from weakincentives.posix import display_paths, fault_point

EXIT_FAILED, EXIT_NOT_REMOVED = 1, 3
_KEPT = "apply interrupted"
_HISTORY = "history of "
_MAX_KEPT = 10

Losses: TypeAlias = dict[status.Run, str]
"""Runs with what would be lost with each, in words; empty if it is proven to be nothing."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which runs to remove."""

    names: tuple[str, ...] = ()
    older_than: timedelta | None = None
    applied: bool = False
    everything: bool = False

    def runs(self) -> tuple[Losses, Losses]:
        """Return the runs to remove and those to keep, with what is lost with each.

        Raises:
            ClickException: There is no run of that name, or it cannot be removed.
        """
        if self.names:
            found = [_find(name) for name in dict.fromkeys(self.names)]
            return {run: find_loss(run) for run in found}, {}
        removed: Losses = {}
        kept: Losses = {}
        for run in status.list_runs():
            if run.state in status.BUSY or not self.is_old(run.changed_at):
                continue
            wanted = ("applied",) if self.applied else status.FINISHED
            is_checked = self.everything or run.state in (*wanted, "damaged")
            loss = find_loss(run) if is_checked else "not decided"
            is_wanted = run.state != _KEPT and (self.everything or not loss)
            (removed if is_wanted else kept)[run] = loss
        return removed, kept

    def is_old(self, date: datetime) -> bool:
        """Return whether something that changed last at `date` is old enough."""
        return self.older_than is None or datetime.now(UTC) - date > self.older_than


def find_loss(run: status.Run) -> str:
    """Return what would be lost with a run: undecided changes, or later edits."""
    if not workspace_path(run.place).is_dir() or runs.is_incomplete(run.place):
        return ""
    try:
        copy = open_copy(run.place)
        if run.state not in status.FINISHED:
            with Review(copy) as review:
                changes = (*review.diff.entries, *review.withheld)
                waiting = without_parents(each.path for each in changes)
            return f"not decided: {display_paths(waiting)}" if waiting else ""
        record = read_record(run.place)
        edited, displaced = _find_edits(copy, record), record.displaced
        marked = without_parents(find_attributes(copy.root))
    except (CopyError, WinkError, OSError) as error:
        files = workspace_path(run.place)
        return f"cannot be checked ({describe_error(error)}); its files are in {files}"
    if edited:
        return f"edited since the review: {display_paths(edited)}"
    if marked:
        return f"only the copy has the extended attributes of {display_paths(marked)}"
    if displaced:
        return f"what a command displaced; wink undo {run.id} {min(displaced)} restores it"
    return ""


def _find_edits(copy: WorkingCopy, record: RunRecord) -> tuple[str, ...]:
    """Return what was changed in a copy since its changes were last reviewed or applied."""
    seen = record.seen or (record.applied[-1].after if record.applied else copy.base)
    with open_files(copy) as files:
        now = files.snapshot(tag="before cleaning")
        return changed_paths(files.view(seen), files.view(now))


@dataclass(frozen=True, slots=True)
class Item:
    """Something to remove that is not a run: a history of MCP calls, or the cache of digests."""

    name: str
    size_bytes: int
    paths: tuple[Path, ...]


@click.command(
    epilog="Exit codes: 0 done, 1 something could not be removed, 3 not confirmed, nothing removed."
)
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=runs.complete_run)
@click.option(
    "--older-than", metavar="TIME", help="Only what is older than TIME, such as 12h, 14d or 2w."
)
@click.option("--applied", is_flag=True, help="Only runs whose changes were applied.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also remove runs with undecided changes; the changes are lost.",
)
@click.option(
    "--histories", is_flag=True, help="Also remove what `wink mcp --in-place` keeps for undo."
)
@click.option("--cache", is_flag=True, help="Also remove the cache of digests.")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and never ask.")
def command(
    *,
    histories: bool,
    cache: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **wanted: Any,
) -> None:
    """Remove finished runs, after asking.

    A run is finished if its changes were applied, if it changed nothing, or if its copy was
    discarded, and the copy was not edited since. With RUN, removes those runs instead. A running
    run is never removed. A removed run cannot be undone, shown or continued.
    """
    selection = _parse_selection(**wanted)
    chosen, kept = selection.runs()
    items = [
        *(_find_histories(selection) if histories and not selection.names else ()),
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


def _parse_selection(
    *, runs: tuple[str, ...], older_than: str | None, applied: bool, everything: bool
) -> Selection:
    if applied and everything:
        raise click.UsageError("--applied and --all exclude each other; use one")
    if runs and (older_than or applied or everything):
        raise click.UsageError("RUN cannot be combined with --older-than, --applied or --all")
    age = None
    if older_than is not None:
        age = timedelta(seconds=state.parse_value("--older-than", parse_duration, older_than))
    return Selection(runs, age, applied, everything)


@dataclass(slots=True)
class Cleaner:
    """Removes runs and files, one after the other, and continues after an error."""

    runs: Losses
    kept: Losses
    items: Sequence[Item]
    _freed: int = 0
    _errors: dict[str, str] = field(default_factory=dict[str, str])
    _done: int = 0

    def print_list(self) -> None:
        """Print what would be removed, what is lost with it, and what is kept."""
        for run, loss in self.runs.items():
            status.print_runs([run], as_json=False)
            if loss:
                echo(f"  lost with it: {loss}", err=False)
        for each in self.items:
            echo(f"{each.name}  {format_size(each.size_bytes)}", err=False)
        if not self.runs and not self.items:
            echo("Nothing to remove.")
        for run, loss in list(self.kept.items())[:_MAX_KEPT]:
            advice = f"to decide: wink review {run.id}"
            if run.state == "damaged":
                advice = f"wink clean {run.id} removes it"
            echo(f"kept: {run.id} ({run.state}, {loss}); {advice}")
        if len(self.kept) > _MAX_KEPT:
            echo(f"kept: {len(self.kept) - _MAX_KEPT} more; wink review lists them")

    def confirm(self) -> bool:
        """Ask whether to remove it."""
        waiting = sum(bool(each) for each in self.runs.values())
        size = format_size(sum(each.size_bytes for each in (*self.runs, *self.items)))
        lost = f"; the changes of {format_count(waiting, 'run')} are lost" if waiting else ""
        return confirm(f"Remove {self._count()}, {size}{lost}?")

    def remove(self) -> int:
        """Remove everything, show how far it is, and return the exit code."""
        total = len(self.runs) + len(self.items)

        def describe() -> str:
            return f"removing, {self._done:,} of {total:,}, {format_size(self._freed)} freed"

        with show_activity(describe):
            # the directory of a run is removed after its further copies
            for run in sorted(
                self.runs, key=lambda each: runs.run_directory(each.place) == each.place
            ):
                loss = self.runs[run]
                self._try(run.id, run.size_bytes, lambda run=run, loss=loss: _remove_run(run, loss))
            for item in self.items:
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
        data = {
            "removed": self._done > 0,
            "runs": [{**status.run_facts(run), "lost": loss} for run, loss in self.runs.items()],
            "kept": [{**status.run_facts(run), "lost": loss} for run, loss in self.kept.items()],
            "files": [pick(each, "name", "size_bytes") for each in self.items],
            "freed_bytes": self._freed,
            "errors": self._errors,
        }
        click.echo(json.dumps(data))

    def _count(self) -> str:
        counts = [format_count(len(self.runs), "run")] if self.runs else []
        histories = sum(each.name.startswith(_HISTORY) for each in self.items)
        if histories:
            counts.append(format_count(histories, "history", "histories"))
        if len(self.items) > histories:
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


def _remove_run(run: status.Run, loss: str) -> None:
    directory = runs.run_directory(run.place)
    if not directory.is_dir():
        return  # with the first copy of its run
    now = status.describe_run(run.place, is_measured=False)
    is_same = now is not None and now.state == run.state
    with state.exclusive_lock(directory):
        if not is_same:
            raise _changed_error()
        _remove_files_of_copy(run, loss)
        listed = status.list_runs(is_measured=False)
        others = [each for each in listed if runs.run_directory(each.place) == directory]
        if run.place == directory and len(others) == 1:
            remove_place(directory)
        else:
            remove_copy(run.place)


def _remove_files_of_copy(run: status.Run, loss: str) -> None:
    """Remove the files of a copy unless somebody has changed them since the list was printed."""
    if not workspace_path(run.place).is_dir() or runs.is_incomplete(run.place):
        return
    try:
        copy = open_copy(run.place)
    except CopyError:  # nothing can be compared, which the list says
        _check_loss(run, loss)
        return
    with open_files(copy) as files:
        before, attributes = files.snapshot(tag="before cleaning"), find_attributes(copy.root)
        _check_loss(run, loss)
        fault_point("clean.checked")
        try:
            remove_unused(copy, files, before, attributes=attributes)
        except CopyInUseError as error:
            raise click.ClickException(f"{error}; try again") from error


def _check_loss(run: status.Run, loss: str) -> None:
    if find_loss(run) != loss:
        raise _changed_error()


def _changed_error() -> click.ClickException:
    return click.ClickException("it was changed meanwhile; try again")


def _remove_files(paths: Sequence[Path]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            remove_place(path)


def _find(name: str) -> status.Run:
    place = runs.find_run(name).place
    run = None if place is None else status.describe_run(place)
    if run is None:
        raise click.ClickException(f"Run not found: {name!r}; {runs.LIST_HINT}")
    if run.state in status.BUSY:
        raise click.ClickException(f"The run {run.id} is {run.state}; wait until it has ended")
    if run.state == _KEPT:
        raise click.ClickException(
            f"An apply of the run {run.id} was interrupted;"
            f" roll it back first: wink review {run.id} --recover"
        )
    return run


def _find_histories(selection: Selection) -> Iterator[Item]:
    """Yield the snapshots of directories on which MCP clients worked in place, and do not now."""
    for store in state.list_histories():
        files = [each for each in store.rglob("*") if not each.is_dir()]
        date = max((each.lstat().st_mtime for each in files), default=0.0)
        if selection.is_old(datetime.fromtimestamp(date, UTC)):
            name = f"{_HISTORY}{state.describe_history(store)}"
            yield Item(name, sum(map(runs.measure, files)), (state.calls_path(store), store))


def _find_cache() -> Iterator[Item]:
    directory = cache_directory(os.environ)
    # a link is not followed, and what is not a file is not ours
    if directory is not None and directory.is_dir() and not directory.is_symlink():
        files = [each for each in directory.iterdir() if each.is_file() and not each.is_symlink()]
        yield Item("cache of digests", sum(map(runs.measure, files)), tuple(files))
