"""`wink demo`: watch a workspace at work on a small project.

The story is played with the real library on a real project, without a model, a key or
a network. This module only shows it.
"""

import json
import os
import re
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.text import Text

from weakincentives.cli.demo_story import Line, Step, Story, StoryError

_WIDTH = 96
_MARGIN = 3
_TITLE = 28
_STYLES = {
    "plain": "",
    "quiet": "dim",
    "call": "cyan",
    "good": "bold green",
    "bad": "bold red",
    "added": "green",
    "removed": "red",
}
_OPENING = (
    "The same calls go to a workspace in memory and to one on the disk.",
    "All of it is real but the agent: no model is called, its calls are written down.",
)


@click.command(
    epilog="Needs no key and no network, and leaves nothing behind unless you say --keep."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per step.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep the repaired project in DIR, a new or empty directory.",
)
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Save what is shown as a picture too.",
)
def command(as_json: bool, keep: Path | None, svg: Path | None) -> None:
    """Watch a workspace at work on a small project.

    A bug is found and fixed in memory and in a host directory at once, and attacks on
    both are refused.
    """
    if as_json and svg:
        raise click.UsageError("--json shows nothing to save; use --svg without it")
    with _workplace(keep) as directory:
        try:
            if as_json:
                _print_json(Story(directory).steps())
            else:
                _show(Story(directory).steps(), svg, keep)
        except StoryError as error:
            raise click.ClickException(f"{error}; please report it") from error


@contextmanager
def _workplace(keep: Path | None) -> Generator[Path, None, None]:
    """Give an empty directory, which is removed afterwards unless it is to be kept."""
    if keep is None:
        with TemporaryDirectory(prefix="wink-demo-") as directory:
            yield Path(directory)
        return
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise click.UsageError(
            f"--keep needs a new or empty directory, not {str(keep)!r}; name another"
        )
    yield keep


def _print_json(steps: Iterator[Step]) -> None:
    for step in steps:
        told = {"step": step.name, "title": step.title, "call": step.call, **step.facts}
        click.echo(json.dumps(told))


def _show(steps: Iterator[Step], svg: Path | None, keep: Path | None) -> None:
    console = Console(
        record=svg is not None,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        emoji=False,
        markup=False,
    )
    console.width = _WIDTH if svg or not console.is_terminal else min(console.width, _WIDTH)
    started = time.perf_counter()
    for line in _OPENING:
        console.print(line, style="dim")
    for number, step in enumerate(steps, start=1):
        console.print()
        title = (f"{step.title:<{_TITLE}}", "bold")
        console.print(Text.assemble((f"{number}  ", "bold cyan"), title, (step.call, "cyan")))
        for line in step.lines:
            _print_line(console, line)
    console.print()
    console.print(f"Done in {time.perf_counter() - started:.1f} s.", style="bold")
    console.print(_ending(keep))
    if svg:
        svg.write_text(_picture(console), encoding="utf-8")


def _print_line(console: Console, line: Line) -> None:
    text = Text.assemble(*((text, _STYLES[look]) for text, look in line.pieces))
    lead = " " * _MARGIN + line.lead
    for row in text.wrap(console, console.width - len(lead)):
        row.rstrip()
        console.print(Text.assemble((lead, "cyan"), row))
        lead = " " * len(lead)


def _picture(console: Console) -> str:
    drawn = console.export_svg(title="wink demo")
    # a picture must not fetch fonts from the network; it says monospace besides
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    return "".join(line.rstrip() + "\n" for line in drawn.splitlines() if line.strip())


def _ending(keep: Path | None) -> str:
    if keep is not None:
        return f"The repaired project is in {str(keep)!r}: go there and run python -m unittest"
    return "Next: wink demo --keep DIR leaves you the files, wink demo --json is for programs"
