"""`wink restore`, `diff` and `export`: the files of steps, or a whole run, written elsewhere."""

import errno
import json
import os
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import click

from weakincentives.cli.activity import show_activity
from weakincentives.cli.run.changes import describe_diff, show_diff
from weakincentives.cli.runs import find_run
from weakincentives.cli.steps import open_timeline, print_problem, split_arguments
from weakincentives.cli.terminal import echo
from weakincentives.cli.units import format_count, shorten_home
from weakincentives.contrib.review import remove_place
from weakincentives.debug import SnapshotStore, export_page
from weakincentives.filesystem import HostFilesystem, SkippedEntry, export_state
from weakincentives.filesystem.host import SnapshotFilesystem
from weakincentives.posix import display_path, temporary_name
from weakincentives.runtime.session import dump_session_tree
from weakincentives.runtime.timeline import SUFFIX, Timeline, export_history

_PAGE = ".html"
_OCCUPIED = {errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY}


# --- restore ---


def restore(
    *, words: tuple[str, ...], directory: Path | None, archive: Path | None, as_json: bool
) -> None:
    """Write the files as they were after a step, byte by byte, with permissions and links."""
    run, steps = split_arguments(words, most=1, command="restore")
    target = directory or archive
    if not steps or target is None or (directory is not None and archive is not None):
        raise click.UsageError("Name a STEP, and either --to DIR or --archive FILE")
    if archive is not None and os.path.lexists(archive):
        raise click.UsageError(f"File exists already: {str(archive)!r}; name another for --archive")
    with open_timeline(run) as timeline:
        number = steps[0].resolve(timeline)
        files = timeline.files(number)
        with show_activity(f"writing the files of step {number}", is_hidden=as_json):
            if directory is not None:
                write_directory(files, directory)
            else:
                export_state(files, target, created_at=timeline.step(number).created_at)
        count = sum(each.kind == "file" for each in timeline.entries(number).values())
        skipped = [SkippedEntry(path, "not a regular file") for path in files.manifest.specials]
        if as_json:
            names = [{"path": each.path, "reason": each.reason} for each in skipped]
            data = {"step": number, "target": str(target), "files": count, "skipped": names}
            click.echo(json.dumps(data))
        else:
            place = display_path(str(target))
            echo(f"Wrote {format_count(count, 'file')} of step {number} to {place}.")
            for each in skipped:
                echo(f"  not written: {each}")
        print_problem(timeline)


def write_directory(files: SnapshotFilesystem, directory: Path) -> None:
    """Write files to a new or empty directory, all of them or none; special files cannot be.

    Raises:
        UsageError: The directory is not empty, or cannot be replaced.
    """
    target = Path(os.path.realpath(directory))
    problem = f"--to needs a new or empty directory: {str(directory)!r}; name another"
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise click.UsageError(problem)
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.parent / temporary_name()
    staged.mkdir()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="wink-restore-") as store,
            HostFilesystem(staged, git_dir=Path(store) / "store", exclusive=True) as written,
        ):
            written.restore(files)
        staged.rename(target)  # an empty directory is replaced, another one is an error
    except BaseException as error:
        remove_place(staged)
        if isinstance(error, OSError) and error.errno in _OCCUPIED:
            raise click.UsageError(problem) from error
        raise


# --- export ---


def export(*, run: str, target: Path, show_secrets: bool) -> None:
    """Write a run to one file to send, or as a session dump."""
    if show_secrets and target.suffix != _PAGE:
        raise click.UsageError(f"--show-secrets needs --to FILE{_PAGE}; nothing else is masked")
    found = find_run(run, "steps")
    with show_activity("writing the run"):
        if target.suffix == _PAGE:
            with closing(SnapshotStore(found.steps)) as store:
                export_page(store.session(), target, show_secrets=show_secrets)
        else:
            with open_timeline(found) as timeline:
                if target.suffix == SUFFIX:
                    export_history(timeline.path, target)
                else:
                    target = _write_dump(timeline, target)
    is_masked = target.suffix == _PAGE and not show_secrets
    masked = "; what looks like a key is masked" if is_masked else ""
    echo(f"Wrote {shorten_home(target)}{masked}; read it before you send it.")


def _write_dump(timeline: Timeline, directory: Path) -> Path:
    session = timeline.session(timeline.last, unknown="data")
    files = timeline.files(timeline.last)
    date = timeline.step(timeline.last).created_at
    path = dump_session_tree(session, directory, files, created_at=date)
    if path is None:
        raise click.ClickException("The run has neither items nor files; nothing was written")
    return path


# --- diff ---


def diff(*, words: tuple[str, ...], stat: bool, as_json: bool) -> None:
    """Print what changed in the files as a patch for git apply."""
    run, steps = split_arguments(words, most=2, command="diff")
    with open_timeline(run) as timeline:
        numbers = [each.resolve(timeline) for each in steps]
        with show_activity("comparing the files", is_hidden=as_json):
            if len(numbers) == 1:
                changes = timeline.changes(numbers[0])
            else:
                before, after = numbers or (1, timeline.last)
                changes = timeline.diff(before, after)
        if as_json:
            data = {"steps": numbers or [1, timeline.last], **describe_diff(changes)}
            click.echo(json.dumps({**data, "patch": changes.patch()}))
        elif stat:
            for change, count in zip(changes.entries, changes.line_counts, strict=True):
                echo(f"{change} {count}", err=False)
            echo(str(changes.statistics), err=False)
        elif not changes and sys.stdout.isatty():
            echo("Nothing was changed.")
        else:
            show_diff(changes)
            for each in changes.omissions:
                echo(f"wink: not in the patch: {each}")
        print_problem(timeline)
