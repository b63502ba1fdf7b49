"""The changes of a run in words and as data: applied, in conflict, left, committed, in a patch."""

import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from weakincentives.cli.run.action import ActionKind
from weakincentives.cli.run.diff_view import describe_diff
from weakincentives.cli.run.selection import Choice, exclude_paths
from weakincentives.cli.terminal import echo, escape_controls, is_terminal
from weakincentives.cli.units import format_count, pick
from weakincentives.contrib.review import Applied, Committed, Conflict, Kept, Review
from weakincentives.contrib.review.commit import create_message
from weakincentives.contrib.review.records import find_record
from weakincentives.posix import display_path

_GIT = ".git"
_MAX_WITHHELD = 5
_MAX_COMPARED = 3
_MAX_NAMED = 20


def describe_changes(review: Review, conflicts: Sequence[Conflict]) -> dict[str, Any]:
    """Return the changes of a review as data."""
    return {
        **describe_diff(review.diff),
        "conflicts": describe_conflicts(conflicts),
        "withheld": [change.path for change in review.withheld],
    }


def describe_kept_paths(kept: Sequence[Kept]) -> list[dict[str, str]]:
    """Return as data the paths that a rollback left alone."""
    return [pick(each, "path", "fact", "other") for each in kept]


def describe_applied(applied: Applied) -> str:
    """Return how many files were changed, added and removed; the removed ones by name."""
    files = [path for path in applied.paths if path not in set(applied.directories)]
    created, removed = set(applied.created), sorted(set(applied.removed).intersection(files))
    added = len(created.intersection(files))
    numbers = {"changed": len(files) - added - len(removed), "added": added}
    parts = [f"{format_count(number, 'file')} {kind}" for kind, number in numbers.items() if number]
    if removed:
        names = ", ".join(map(display_path, removed))
        parts.append(f"{format_count(len(removed), 'file')} removed ({names})")
    return ", ".join(parts) or format_count(len(applied.paths), "directory", "directories")


def describe_conflicts(conflicts: Sequence[Conflict]) -> list[dict[str, Any]]:
    """Return conflicts as data."""
    return [
        pick(each, "path", "in_copy", "in_original", "can_merge", "lines") for each in conflicts
    ]


def is_git_index(path: str) -> bool:
    """Return whether it is git's index, which even `git status` rewrites."""
    return path == f"{_GIT}/index" or path.endswith(f"/{_GIT}/index")


def withheld_lines(review: Review) -> Iterator[str]:
    """Yield what was changed but is not offered."""
    changes = [each for each in review.withheld if not is_git_index(each.path)]
    inside = [each for each in changes if _GIT in each.path.split("/")]
    others = [each for each in changes if each not in inside]
    if inside:
        yield f"Not offered: {format_count(len(inside), 'change')} inside {_GIT}"
    if others:
        names = ", ".join(map(str, others[:_MAX_WITHHELD]))
        more = " and more" if len(others) > _MAX_WITHHELD else ""
        yield f"Not offered: {names}{more}"


def comparison_lines(review: Review, conflicts: Sequence[Conflict]) -> Iterator[str]:
    """Yield commands that compare both versions of files that cannot be merged."""
    left = [each.path for each in conflicts if not each.can_merge]
    for path in left[:_MAX_COMPARED]:
        both = (str(root / path) for root in (review.copy.original, review.copy.root))
        yield f"  {shlex.join(['diff', '-u', *both])}  to compare"


def conflict_commands(
    review: Review, conflicts: Sequence[Conflict], kind: ActionKind
) -> dict[str, str]:
    """Return the options that can follow a conflict, and what each is for."""
    paths = [each.path for each in conflicts]
    left = [each.path for each in conflicts if not each.can_merge]
    verb = "commit" if kind == "commit" else "apply"
    commands: dict[str, str] = {}
    if len(left) < len(conflicts):
        but = f", without {format_count(len(left), 'path')} in conflict" if left else ""
        commands[f"--{verb} --merge{_skip_options(left)}"] = (
            f"to merge what was changed in different places{but}"
        )
    if paths and exclude_paths(review.diff.entries, paths):
        commands[f"--{verb}{_skip_options(paths)}"] = f"to {verb} the rest"
    commands["--patch FILE"] = "to save all changes as a patch"
    commands["--discard"] = "to remove the copy"
    return commands


def _skip_options(paths: Sequence[str]) -> str:
    return "".join(f" --skip {shlex.quote(path)}" for path in paths)


# --- commits ---


def commit_message(review: Review) -> str:
    """Return the message for the changes of a run: its task, and the answer of the model."""
    record = find_record(review.copy.place)
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


# --- patches ---


def write_patch(review: Review, patch: Path, choice: Choice) -> str:
    """Save changes as a patch; return the command that applies it.

    Raises:
        FileExistsError: The file exists.
        ValueError: A patch cannot express any of the changes.
    """
    if patch.exists():
        raise FileExistsError(f"File exists already: {str(patch)!r}; choose another name")
    saved = review.save_patch(patch, paths=choice.paths, hunks=choice.hunks)
    return patch_command(review.copy.original, saved)


def print_patch(review: Review, choice: Choice) -> None:
    """Print changes as a patch on standard output."""
    with tempfile.TemporaryDirectory(prefix="wink-") as directory:
        file = Path(directory) / "patch"
        data = review.save_patch(file, paths=choice.paths, hunks=choice.hunks).read_bytes()
    if is_terminal(sys.stdout):
        echo(data.decode("utf-8", "replace"), err=False, newline=False)
    else:
        sys.stdout.buffer.write(data)  # a patch is bytes
        sys.stdout.flush()


def omission_lines(review: Review) -> Iterator[str]:
    """Yield what a patch of all changes leaves out; nothing if it has everything."""
    omitted = [each for each in review.omissions() if not is_git_index(each.path)]
    if omitted:
        yield "The patch leaves out:"
    yield from (f"  {each}" for each in omitted[:_MAX_NAMED])
    if len(omitted) > _MAX_NAMED:
        yield f"  and {len(omitted) - _MAX_NAMED} more"


def patch_command(original: Path, patch: Path) -> str:
    """Return the command that applies a patch from any directory.

    `git apply` silently skips a patch when it runs in a subdirectory of a repository.
    """
    top = next((each for each in (original, *original.parents) if (each / _GIT).exists()), original)
    option = (
        "" if top == original else f" --directory={shlex.quote(str(original.relative_to(top)))}"
    )
    return f"git -C {shlex.quote(str(top))} apply{option} {shlex.quote(str(patch))}"
