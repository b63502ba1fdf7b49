"""The arguments of the commands that look at the steps of a run.

What does their work is imported when one of them runs: help and errors of usage come at once.
"""

from functools import partial
from pathlib import Path
from typing import Any

import click

from weakincentives.cli.lazy import defer

_complete_run = defer("cli.runs", "complete_run")
_run = click.argument("run", default="last", shell_complete=_complete_run)
_words = partial(click.argument, "words", nargs=-1, shell_complete=_complete_run)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_file = click.Path(path_type=Path)


@click.command()
@_run
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the last N steps.")
@click.option(
    "--files", "path", metavar="PATH", help="Only steps that changed PATH or something below it."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per step.")
def log(**options: Any) -> None:
    """List the steps of a run: prompts, answers and tool calls.

    RUN is a run ID or its beginning, a path, or last (the default). A tool call marked ✗ failed
    and was rolled back.
    """
    defer("cli.timeline.log", "log")(**options)


@click.command()
@_words(metavar="[RUN] [STEP[:PATH]]")
@click.option("--file", "path", metavar="PATH", help="Print this file as it was after the step.")
@click.option("--full", is_flag=True, help="Do not shorten long texts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with everything.")
def show(**options: Any) -> None:
    """Show a step: parameters and result, messages, state, and the files that it changed.

    STEP is a number, or @NAME for the last step of a branch (default: the last step). STEP:PATH
    prints a file as it was after the step, byte for byte. RUN is a run ID or its beginning, a path,
    or last (the default).
    """
    defer("cli.timeline.log", "show")(**options)


@click.command()
@_words(metavar="[RUN] STEP")
@click.option("--name", metavar="NAME", help="Name of the branch (default: branch- and a number).")
@_json
def fork(**options: Any) -> None:
    """Start a branch after STEP. Continue it with `wink resume RUN --at @NAME`.

    Later steps are kept. STEP is a number, or @NAME for the last step of a branch. RUN is a run
    ID or its beginning, a path, or last (the default).
    """
    defer("cli.timeline.log", "fork")(**options)


@click.command()
@_words(metavar="[RUN] STEP")
@click.option(
    "--to",
    "directory",
    type=_file,
    metavar="DIR",
    help="Write the files to DIR, a new or empty directory.",
)
@click.option(
    "--archive",
    type=_file,
    metavar="FILE",
    help="Write the files to FILE, a new archive (.fs.zip).",
)
@_json
def restore(**options: Any) -> None:
    """Write the files as they were after STEP, byte for byte, with permissions and links.

    STEP is a number, or @NAME for the last step of a branch. RUN is a run ID or its beginning, a
    path, or last (the default). Nothing is overwritten: `wink resume` continues the run itself,
    and `wink review` applies changes to the original.
    """
    defer("cli.timeline.export", "restore")(**options)


@click.command()
@_run
@click.option(
    "--to",
    "target",
    type=_file,
    metavar="PATH",
    required=True,
    help="FILE.timeline for all steps, FILE.html for a page, or a directory for a dump.",
)
@click.option("--show-secrets", is_flag=True, help="Do not mask keys in FILE.html.")
def export(**options: Any) -> None:
    """Write a run to one file to send, or as a dump.

    RUN is a run ID or its beginning, a path, or last (the default). FILE.timeline has all steps:
    `wink log`, `show`, `diff`, `restore`, `resume` and `debug` read it. FILE.html is a page for any
    browser, with keys masked. A directory gets the session and the files at the end, ID.jsonl and
    ID.fs.zip. Reproducible and ignored files are left out unless they were recorded. Nothing is
    overwritten, except an earlier dump.
    """
    defer("cli.timeline.export", "export")(**options)


@click.command()
@_words(metavar="[RUN] [STEP [STEP]]")
@click.option(
    "--stat", is_flag=True, help="Print only the changed files and their numbers of lines."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with the patch.")
def diff(**options: Any) -> None:
    """Print changes of the files as a patch for `git apply`.

    One STEP: its changes. Two: the difference between them. None: all changes of the run. STEP is
    a number, or @NAME for the last step of a branch. RUN is a run ID or its beginning, a path, or
    last (the default).
    """
    defer("cli.timeline.export", "diff")(**options)


@click.command(epilog="Exit codes: 0 done, 1 failed, 4 conflict, nothing was undone.")
@_words(metavar="[RUN] STEP")
@click.option(
    "--only", multiple=True, metavar="PATH", help="Undo only at and below PATH. Repeatable."
)
@_json
def undo(**options: Any) -> None:
    """Undo a step of a run in its working copy; later steps are kept.

    A path is restored only if it is still as the step left it; otherwise nothing changes, and the
    paths are named. After a command that was rolled back, this restores what the rollback
    displaced. An undo is a step too: undo it to redo. STEP is a number, or @NAME for the last step
    of a branch. RUN is a run ID or its beginning, a path, or last (the default).
    """
    defer("cli.timeline.undo", "undo")(**options)
