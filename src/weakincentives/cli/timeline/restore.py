"""`wink restore`: the files of a step, written to a new directory or to an archive."""

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path

import click

from weakincentives.cli.activity import show_activity
from weakincentives.cli.completion import complete_run
from weakincentives.cli.steps import open_timeline, split_arguments
from weakincentives.cli.terminal import echo
from weakincentives.cli.timeline.log import print_problem
from weakincentives.cli.units import format_count
from weakincentives.contrib.review.copy import remove_place, write_tree
from weakincentives.contrib.review.views import PreservingFilesystem
from weakincentives.filesystem import ReadableFilesystem, SkippedEntry
from weakincentives.filesystem.backend import export_state
from weakincentives.posix import display_path, temporary_name
from weakincentives.runtime.timeline import Timeline


@click.command()
@click.argument("words", nargs=-1, shell_complete=complete_run, metavar="[RUN] STEP")
@click.option(
    "--to",
    "directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the files to DIR, a new or empty directory.",
)
@click.option(
    "--archive",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the files to FILE, a new archive (.fs.zip).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *, words: tuple[str, ...], directory: Path | None, archive: Path | None, as_json: bool
) -> None:
    """Write the files as they were after a step, byte by byte, with permissions and links.

    A STEP is a number, or @NAME for the newest step of a branch. RUN comes first; without it,
    this is the newest run. Nothing that exists is overwritten: wink resume continues the run
    itself, and wink review applies changes to the original.
    """
    run, steps = split_arguments(words, most=1, command="restore")
    target = directory or archive
    if not steps or target is None or (directory is not None and archive is not None):
        raise click.UsageError("Name a STEP, and either --to DIR or --archive FILE")
    with open_timeline(run) as timeline:
        number = steps[0].resolve(timeline)
        files = timeline.files(number)
        skipped: Sequence[SkippedEntry] = ()
        with show_activity(f"writing the files of step {number}", is_hidden=as_json):
            if directory is not None:
                skipped = write_directory(files, directory)
            else:
                _write_archive(files, target, timeline, number)
        count = sum(each.kind == "file" for each in timeline.entries(number).values())
        if as_json:
            names = [{"path": each.path, "reason": each.reason} for each in skipped]
            data = {"step": number, "target": str(target), "files": count, "skipped": names}
            click.echo(json.dumps(data))
        else:
            echo(
                f"Wrote {format_count(count, 'file')} of step {number} to"
                f" {display_path(str(target))}."
            )
            for each in skipped:
                echo(f"  not written: {each}")
        print_problem(timeline)


def write_directory(files: ReadableFilesystem, directory: Path) -> list[SkippedEntry]:
    """Write files to a new or empty directory, all of them or none; return what cannot be written.

    Raises:
        UsageError: The directory is not empty, or cannot be replaced.
    """
    target = Path(os.path.realpath(directory))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise _not_empty(directory)
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.parent / temporary_name()
    staged.mkdir()
    try:
        with PreservingFilesystem(staged) as written:
            skipped = write_tree(files, written)
        staged.rename(target)  # an empty directory is replaced, another one is an error
    except OSError as error:
        remove_place(staged)
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY}:
            raise _not_empty(directory) from error
        raise
    except BaseException:
        remove_place(staged)
        raise
    return skipped


def _not_empty(directory: Path) -> click.UsageError:
    return click.UsageError(
        f"--to needs a new or empty directory: {str(directory)!r}; name another"
    )


def _write_archive(files: ReadableFilesystem, path: Path, timeline: Timeline, number: int) -> None:
    if os.path.lexists(path):
        raise click.UsageError(f"File exists already: {str(path)!r}; name another for --archive")
    export_state(files, path, created_at=timeline.step(number).created_at)
