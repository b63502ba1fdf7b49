"""The options that say beforehand what becomes of changes: `--apply`, `--patch`, `--discard`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from weakincentives.cli.run.decision import DecisionOptions

F = TypeVar("F", bound=Callable[..., Any])


def decision_options(command: F) -> F:
    """Give a command the options; `read_decision` reads them."""
    for option in (
        click.option("--discard", is_flag=True, help="Throw the changes away, and do not ask."),
        click.option(
            "--patch",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Save the changes as a patch, and do not ask.",
        ),
        click.option("--apply", is_flag=True, help="Apply the changes, and do not ask."),
    ):
        command = option(command)
    return command


def read_decision(*, apply: bool, patch: Path | None, discard: bool) -> DecisionOptions:
    """Return what is wanted.

    Raises:
        UsageError: Two things are, or the patch could not be saved.
    """
    if sum((apply, patch is not None, discard)) > 1:
        raise click.UsageError("--apply, --patch and --discard exclude each other; say one")
    if patch is not None:
        _check_place(patch)
        return DecisionOptions("patch", patch)
    return DecisionOptions("apply" if apply else "discard" if discard else "ask")


def _check_place(patch: Path) -> None:
    """Refuse what would fail only when the work is done."""
    if patch.exists():
        raise click.UsageError(f"There is a file already: {str(patch)!r}; give --patch another")
    if not patch.absolute().parent.is_dir():
        raise click.UsageError(f"No directory for the patch: {str(patch)!r}; make it first")
