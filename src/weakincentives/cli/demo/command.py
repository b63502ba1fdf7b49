"""`wink demo`: watch an agent fix a bug in a small project.

The story is played with the real library on a real project, without a model, a key or
a network.
"""

import json
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from weakincentives.cli.demo.story import told_steps
from weakincentives.cli.demo.view import SESSION, Step, StoryError, show


@click.command(
    epilog="Needs no key and no network, and leaves nothing behind unless you say --keep."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per step.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep the repaired project in DIR, a new or empty directory, and the session too.",
)
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Save what is shown as a picture too.",
)
def command(as_json: bool, keep: Path | None, svg: Path | None) -> None:
    """Watch an agent fix a bug in a small project.

    It looks around, runs the tests, makes a mistake that is taken back, and fixes the
    bug. Its model is a script; everything else is real.
    """
    if as_json and svg:
        raise click.UsageError("--json shows nothing to save; use --svg without it")
    with _steps(keep) as steps:
        try:
            if as_json:
                _print_json(steps)
            else:
                show(steps, keep=keep, svg=svg)
        except StoryError as error:
            raise click.ClickException(f"{error}; please report it") from error


@contextmanager
def _steps(keep: Path | None) -> Generator[Iterator[Step], None, None]:
    """Give the steps of a story whose files are removed afterwards, unless they are to be kept."""
    if keep is not None:
        _check_empty(keep)
    with TemporaryDirectory(prefix="wink-demo-") as directory:
        place = Path(directory)
        project = place / "project"
        project.mkdir()
        dump = (keep or place) / SESSION
        with told_steps(project, store=place / "store", dump=dump) as steps:
            yield steps
        if keep is not None:
            shutil.copytree(project, keep, symlinks=True, dirs_exist_ok=True)


def _check_empty(keep: Path) -> None:
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise click.UsageError(
            f"--keep needs a new or empty directory, not {str(keep)!r}; name another"
        )


def _print_json(steps: Iterator[Step]) -> None:
    for step in steps:
        told = {
            "step": step.name,
            "title": step.title,
            "call": step.call,
            "seconds": round(step.seconds, 4),
            **step.facts,
        }
        click.echo(json.dumps(told))
