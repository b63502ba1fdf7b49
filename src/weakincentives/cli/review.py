"""`wink review`: decide later about what a run has changed in its copy."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from weakincentives.cli.run.decision import CONFLICT, Decision, DecisionOptions, kept_facts
from weakincentives.cli.run.options import decision_options, read_decision
from weakincentives.cli.run.workspace import exclusive_lock, naming
from weakincentives.cli.terminal import say, sentence
from weakincentives.cli.units import count_text
from weakincentives.contrib.review import (
    Applied,
    ConflictError,
    CopyError,
    Review,
    WorkingCopy,
    open_copy,
)
from weakincentives.contrib.review import recover as roll_back
from weakincentives.contrib.review.records import has_record
from weakincentives.posix import display_path

_PATTERN = "wink-run-*"


@click.command(
    epilog="Exit codes: 0 done, 1 failed, 3 the changes still wait, 4 a conflict, nothing applied."
)
@click.argument("place", required=False, type=click.Path(path_type=Path))
@decision_options
@click.option("--undo", is_flag=True, help="Take back what was applied last.")
@click.option("--recover", is_flag=True, help="Roll back an apply that was interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and ask nothing.")
def command(
    place: Path | None,
    apply: bool,
    patch: Path | None,
    discard: bool,
    undo: bool,
    recover: bool,
    as_json: bool,
) -> None:
    """Decide about the changes that a run has left in its copy.

    PLACE is where the copy is; without it the copies that there are are listed.
    """
    wish = read_decision(apply=apply, patch=patch, discard=discard)
    if place is None:
        if wish.action != "ask" or undo or recover:
            raise click.UsageError("PLACE is missing; wink review lists the copies that there are")
        _list(as_json=as_json)
        return
    if (undo and (recover or wish.action != "ask")) or (recover and wish.action != "ask"):
        raise click.UsageError(f"--{'undo' if undo else 'recover'} goes alone; leave out the other")
    if recover and not has_record(place):
        _recover_without_copy(place, as_json=as_json)
        return
    copy = _opened(place)
    with exclusive_lock(copy.place), Review(copy) as review, naming(copy.place, KeyboardInterrupt):
        if undo or recover:
            code = _go_back(review, review.undo if undo else review.recover, as_json=as_json)
        else:
            code = _decide(review, wish, as_json=as_json)
    if code:
        raise click.exceptions.Exit(code)


def _opened(place: Path) -> WorkingCopy:
    try:
        return open_copy(place)
    except CopyError as error:
        hint = "wink review lists the copies that there are"
        raise click.ClickException(f"{error}; {hint}") from error


def _decide(review: Review, wish: DecisionOptions, *, as_json: bool) -> int:
    settled = Decision(review, is_silent=as_json, is_end=False).settle(wish)
    if as_json:
        _tell(review, settled.result, **settled.facts)
    return settled.exit_code


def _go_back(review: Review, work: Callable[[], Applied], *, as_json: bool) -> int:
    """Undo what was applied, or roll back what was interrupted."""
    try:
        taken_back = work()
    except ConflictError as error:
        if as_json:
            conflicts = [str(each) for each in error.conflicts]
            _tell(review, "conflict", conflicts=conflicts, kept=kept_facts(error.kept))
        else:
            say(f"wink: {error}")
        return CONFLICT
    except (ValueError, OSError) as error:
        raise click.ClickException("; ".join((sentence(error), *_notes(error)))) from error
    if as_json:
        kept = kept_facts(taken_back.kept)
        _tell(review, "undone", paths=list(taken_back.paths), kept=kept)
    else:
        say(f"Taken back: {taken_back} in {display_path(str(review.copy.original))}.")
        for each in taken_back.kept:
            say(f"kept: {each}")
    return 0


def _recover_without_copy(original: Path, *, as_json: bool) -> None:
    """Roll back in the original itself what was interrupted when its copy is gone."""
    try:
        found = roll_back(original)
    except (ValueError, OSError) as error:
        raise click.ClickException("; ".join((sentence(error), *_notes(error)))) from error
    paths = [path for each in found for path in each.paths]
    kept = [left for each in found for left in each.kept]
    if as_json:
        told = {"result": "undone", "original": str(original), "paths": paths}
        click.echo(json.dumps({**told, "kept": kept_facts(kept)}))
        return
    say(f"Taken back: {count_text(len(paths), 'path')} changed in {display_path(str(original))}.")
    for each in kept:
        say(f"kept: {each}")


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


def _list(*, as_json: bool) -> None:
    for place in sorted(Path(tempfile.gettempdir()).glob(_PATTERN)):
        try:
            found = open_copy(place)
        except (CopyError, OSError):
            continue  # another user's, or half of one
        if as_json:
            click.echo(json.dumps({"place": str(place), "original": str(found.original)}))
        else:
            # a record may be somebody else's: its text is one line, whatever it holds
            say(
                f"{display_path(str(place))}  a copy of {display_path(str(found.original))}",
                err=False,
            )


def _tell(review: Review, result: str, **facts: object) -> None:
    told = {
        "result": result,
        "place": str(review.copy.place),
        "original": str(review.copy.original),
        **facts,
    }
    click.echo(json.dumps(told))
