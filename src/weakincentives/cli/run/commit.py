"""The git commit of a run: its message, and what is said about it."""

import shlex
from collections.abc import Iterator
from typing import Any

from weakincentives.cli.runs import read_run
from weakincentives.cli.terminal import escape_controls
from weakincentives.cli.units import format_count
from weakincentives.contrib.review import Committed, Review
from weakincentives.contrib.review.commit import create_message
from weakincentives.posix import display_path

_MAX_NAMED = 20


def commit_message(review: Review) -> str:
    """Return the message for the changes of a run: its task, and the answer of the model."""
    record = read_run(review.copy.place)
    if record is None:
        return create_message("Apply the changes of a run")
    return create_message(escape_controls(record.task), escape_controls(record.answer))


def describe_commit(made: Committed) -> dict[str, Any]:
    """Return a commit as data."""
    return {
        "commit": made.commit or None,
        "branch": made.branch or None,
        "not_committed": [
            {"path": path, "reason": reason} for path, reason in made.left_out.items()
        ],
    }


def commit_lines(made: Committed, *, is_new_branch: bool) -> Iterator[str]:
    """Yield what was committed and what was not, and what can be done with a new branch."""
    if made.commit:
        kind = "the new branch " if is_new_branch else ""
        where = f"on {kind}{made.branch}" if made.branch else "on no branch"
        yield f"Committed {format_count(len(made.paths), 'file')} {where} as {made.commit[:10]}."
    else:
        yield "Nothing was committed."
    for path, reason in list(made.left_out.items())[:_MAX_NAMED]:
        yield f"not committed: {display_path(path)} ({reason})"
    if len(made.left_out) > _MAX_NAMED:
        yield f"not committed: {len(made.left_out) - _MAX_NAMED} more"
    if made.hooks:
        yield f"Hooks of the repository were not run: {', '.join(made.hooks)}"
    if made.commit and is_new_branch:
        yield f"  git switch {shlex.quote(made.branch)}  to go there"
    if made.hooks:
        # the option leaves out what the user has staged
        there = ", there" if is_new_branch else ""
        yield f"  git commit --amend --only --no-edit  to run the hooks{there}"
    if made.commit and is_new_branch:
        yield f"  git branch -D {shlex.quote(made.branch)}  to remove it"
