"""`wink review`: decide about the changes that an earlier run left in its working copy."""

import json
import os
import shlex
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from weakincentives.cli import runs
from weakincentives.cli.activity import show_activity
from weakincentives.cli.lazy import defer
from weakincentives.cli.run.action import (
    EXIT_CONFLICT,
    EXIT_KEPT,
    Action,
    Resolution,
    RunRequest,
    action_options,
)
from weakincentives.cli.run.changes import describe_kept_paths
from weakincentives.cli.run.decision import Decision
from weakincentives.cli.run.workspace import name_copy_on_error
from weakincentives.cli.state import exclusive_lock
from weakincentives.cli.status import list_runs, print_runs, print_total
from weakincentives.cli.terminal import describe_error, echo
from weakincentives.cli.units import format_count, pick
from weakincentives.contrib.review import (
    Applied,
    CommitError,
    Conflict,
    ConflictError,
    CopyError,
    Kept,
    Review,
    find_record,
    is_copy,
    open_copy,
    redo_commit,
    undo_commit,
)
from weakincentives.contrib.review import recover as recover_original
from weakincentives.posix import display_path
from weakincentives.runtime.timeline import has_steps

_resume = defer("cli.run.rounds", "resume")


@click.command(
    epilog="Exit codes: 0 done, 1 failed, 3 changes kept for later, 4 conflict, nothing applied."
)
@click.argument("run", required=False, shell_complete=runs.complete_run)
@action_options
@click.option("--undo", is_flag=True, help="Undo the last apply.")
@click.option("--recover", is_flag=True, help="Roll back an apply or undo that was interrupted.")
@click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="List only the runs of this directory.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON objects and never ask.")
def command(
    *,
    run: str | None,
    action: Action,
    undo: bool,
    recover: bool,
    workspace: Path | None,
    as_json: bool,
) -> None:
    """Review the changes that a run left in its working copy.

    RUN is a run ID or its beginning, a path, or last. Without RUN, lists the runs, newest first:
    ID, state, date, size, directory and task.
    """
    if run is None:
        if action.kind != "ask" or undo or recover:
            raise click.UsageError(f"RUN is missing; {runs.LIST_HINT}")
        _list_runs(workspace, as_json=as_json)
        return
    if sum((undo, recover, action.kind != "ask")) > 1:
        option = "undo" if undo else "recover"
        raise click.UsageError(f"--{option} cannot be combined with another action; use one")
    found = runs.find_run(run, "copy")
    place = found.steps if found.place is None else found.place
    if recover and not is_copy(place):
        _recover_without_copy(place, as_json=as_json)
        return
    with _open_review(place) as review:
        if undo or recover:
            code, reply = _revert(review, undo=undo, merge=action.merge, as_json=as_json), None
            review.refresh()
            runs.note_changes(review)
        else:
            resolution = _resolve(review, action, as_json=as_json)
            code, reply = resolution.exit_code, resolution.reply
    if reply is not None:
        echo(f"Continuing the run {runs.place_id(review.copy.place)}")
        code = _resume(str(review.copy.place), reply, RunRequest({}, Action()))
    if code:
        raise click.exceptions.Exit(code)


@contextmanager
def _open_review(place: Path) -> Generator[Review]:
    """Review the changes in a copy, whose run is locked meanwhile."""
    try:
        copy = open_copy(place)
    except CopyError as error:
        raise click.ClickException(f"{error}; {runs.LIST_HINT}") from error
    with (
        exclusive_lock(runs.run_directory(copy.place)),
        Review(copy) as review,
        name_copy_on_error(copy.place, KeyboardInterrupt),
    ):
        yield review


def _resolve(review: Review, action: Action, *, as_json: bool) -> Resolution:
    runs.note_changes(review)
    decision = Decision(
        review, is_silent=as_json, is_end=False, can_reply=_can_continue(review.copy.place)
    )
    resolution = decision.resolve(action)
    if as_json:
        _print_json(review, resolution.outcome, **resolution.facts)
    return resolution


def _can_continue(place: Path) -> bool:
    """Return whether the run of a copy can go on: it was recorded, and is one of a model."""
    record = find_record(place)
    is_of_model = record is not None and record.model != runs.MCP_MODEL
    return is_of_model and has_steps(runs.steps_path(runs.run_directory(place)))


def _revert(review: Review, *, undo: bool, merge: bool, as_json: bool) -> int:
    """Undo the last apply, or roll back an interrupted one."""
    try:
        is_interrupted = review.interrupted is not None
        commit = undo_commit(review) if undo and not is_interrupted else ""
        with (
            _keep_commit(review, commit),
            show_activity("restoring the files", is_hidden=as_json),
        ):
            reverted = review.undo(partial=True, merge=merge) if undo else review.recover()
    except ConflictError as error:
        if as_json:
            conflicts = list(map(str, error.conflicts))
            _print_json(review, "conflict", error.kept, conflicts=conflicts)
        else:
            echo(f"wink: {error}")
            _print_undo_commands(review, (*error.conflicts, *error.kept) if undo else ())
        return EXIT_CONFLICT
    except (CommitError, ValueError, OSError) as error:
        raise _failure(error) from error
    is_partial = undo and bool(reverted.kept)
    if as_json:
        outcome = "undone-partly" if is_partial else "undone"
        facts = pick(reverted, "paths", "merged")
        _print_json(review, outcome, reverted.kept, **facts, commit=commit or None)
    elif undo and not is_interrupted:
        if commit:
            echo(f"The commit {commit[:10]} was removed from its branch.")
        _print_undo(review, reverted)
    else:
        _print_rollback(reverted.paths, review.copy.original, reverted.kept)
    return EXIT_KEPT if is_partial else 0


@contextmanager
def _keep_commit(review: Review, commit: str) -> Generator[None, None, None]:
    """Put a commit that was taken off its branch back if its files cannot be restored."""
    try:
        yield
    except BaseException:
        if commit:
            redo_commit(review, commit)
        raise


def _print_undo(review: Review, undone: Applied) -> None:
    files = set(undone.paths) - set(undone.directories)
    removed = files & set(undone.removed)
    restored = format_count(len(files - removed), "file")
    parts = [f"restored {restored}"] if files - removed else []
    if removed:
        parts.append(f"removed {format_count(len(removed), 'new file')}")
    if not files:
        parts.append(f"restored {format_count(len(undone.paths), 'directory', 'directories')}")
    if undone.kept:
        parts.append(f"left {len(undone.kept)}")
    echo(f"Undone in {display_path(str(review.copy.original))}: {', '.join(parts)}.")
    for each in undone.kept:
        echo(f"left: {each}")
    _print_undo_commands(review, undone.kept)


def _print_undo_commands(review: Review, left: Sequence[Conflict | Kept]) -> None:
    """Print what can be done after an undo that left these paths alone."""
    command = f"wink review {shlex.quote(runs.place_id(review.copy.place))}"
    if any(each.can_merge for each in left):
        echo(f"  {command} --undo --merge  to undo in files that were edited elsewhere since, too")
    elif not {each.path for each in left}.isdisjoint(review.applied):
        echo(f"  {command} --undo  to undo the rest when it is again as the apply left it")
    elif review.applied:
        echo(f"  {command} --undo  to undo the apply before it")
    if review.diff:
        echo(f"  {command} --apply  to apply the changes again")


def _recover_without_copy(original: Path, *, as_json: bool) -> None:
    """Roll back an interrupted apply in the original when its working copy is gone."""
    try:
        recoveries = recover_original(original)
    except (ValueError, OSError) as error:
        raise _failure(error) from error
    paths = [path for each in recoveries for path in each.paths]
    kept = [item for each in recoveries for item in each.kept]
    if as_json:
        data = {"result": "undone", "original": str(original), "paths": paths}
        click.echo(json.dumps({**data, "kept": describe_kept_paths(kept)}))
    else:
        _print_rollback(paths, original, kept)


def _print_rollback(paths: Sequence[str], original: Path, kept: Sequence[Kept]) -> None:
    echo(f"Rolled back {format_count(len(paths), 'path')} in {display_path(str(original))}.")
    for each in kept:
        echo(f"kept: {each}")


def _failure(error: BaseException) -> click.ClickException:
    notes = getattr(error, "__notes__", ())
    return click.ClickException("; ".join((describe_error(error), *notes)))


def _list_runs(workspace: Path | None, *, as_json: bool) -> None:
    found = [each for each in list_runs() if each.state != "recorded"]
    if workspace is not None:
        wanted = os.path.realpath(workspace)
        found = [each for each in found if each.original == wanted]
    print_runs(found, as_json=as_json)
    if not as_json:
        print_total(found)


def _print_json(
    review: Review, result: str, kept: Sequence[Kept] | None = None, **facts: object
) -> None:
    data = {"result": result, **pick(review.copy, "place", "original"), **facts}
    if kept is not None:
        data["kept"] = describe_kept_paths(kept)
    click.echo(json.dumps(data, default=str))
