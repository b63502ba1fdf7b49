"""`wink review`: decide later about what a run has changed in its copy."""

import json
import tempfile
from pathlib import Path

import click

from weakincentives.cli.deciding import CONFLICT, Decision, Wish
from weakincentives.cli.run_places import alone_in, naming
from weakincentives.cli.terminal import say
from weakincentives.cli.wishes import wish_of, wish_options
from weakincentives.contrib.review import ConflictError, CopyError, Review, WorkingCopy, open_copy
from weakincentives.filesystem.paths import shown

_PATTERN = "wink-run-*"


@click.command(
    epilog="Exit codes: 0 done, 1 failed, 3 the changes still wait, 4 a conflict, nothing applied."
)
@click.argument("place", required=False, type=click.Path(path_type=Path))
@wish_options
@click.option("--undo", is_flag=True, help="Take back what was applied last.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and ask nothing.")
def command(
    place: Path | None,
    apply: bool,
    patch: Path | None,
    discard: bool,
    undo: bool,
    as_json: bool,
) -> None:
    """Decide about the changes that a run has left in its copy.

    PLACE is where the copy is; without it the copies that there are are listed.
    """
    wish = wish_of(apply=apply, patch=patch, discard=discard)
    if place is None:
        if wish.action != "ask" or undo:
            raise click.UsageError("PLACE is missing; wink review lists the copies that there are")
        _list(as_json=as_json)
        return
    if undo and wish.action != "ask":
        raise click.UsageError("--undo goes alone; leave out the other")
    copy = _opened(place)
    with alone_in(copy.place), Review(copy) as review, naming(copy.place, KeyboardInterrupt):
        code = _undo(review, as_json=as_json) if undo else _decide(review, wish, as_json=as_json)
    if code:
        raise click.exceptions.Exit(code)


def _opened(place: Path) -> WorkingCopy:
    try:
        return open_copy(place)
    except CopyError as error:
        hint = "wink review lists the copies that there are"
        raise click.ClickException(f"{error}; {hint}") from error


def _decide(review: Review, wish: Wish, *, as_json: bool) -> int:
    settled = Decision(review, is_silent=as_json, is_end=False).settle(wish)
    if as_json:
        _tell(review, settled.result, **settled.facts)
    return settled.exit_code


def _undo(review: Review, *, as_json: bool) -> int:
    try:
        taken_back = review.undo()
    except ConflictError as error:
        if as_json:
            _tell(review, "conflict", conflicts=[str(each) for each in error.conflicts])
        else:
            say(f"wink: {error}")
        return CONFLICT
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        _tell(review, "undone", paths=list(taken_back.paths))
    else:
        say(f"Taken back: {taken_back} in {shown(str(review.copy.original))}.")
    return 0


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
            say(f"{shown(str(place))}  a copy of {shown(str(found.original))}", err=False)


def _tell(review: Review, result: str, **facts: object) -> None:
    told = {
        "result": result,
        "place": str(review.copy.place),
        "original": str(review.copy.original),
        **facts,
    }
    click.echo(json.dumps(told))
