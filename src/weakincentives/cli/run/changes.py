"""The changes of a run in words and as data: what was changed, applied, in conflict or left."""

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from weakincentives.cli.run.action import ActionKind
from weakincentives.cli.run.diff_view import describe_diff
from weakincentives.cli.run.selection import exclude_paths
from weakincentives.cli.units import format_count
from weakincentives.contrib.review import Applied, Conflict, Kept, Review
from weakincentives.posix import display_path

_GIT = ".git"
_MAX_WITHHELD = 5
_MAX_COMPARED = 3


def describe_changes(review: Review, conflicts: Sequence[Conflict]) -> dict[str, Any]:
    """Return the changes of a review as data."""
    return {
        **describe_diff(review.diff),
        "conflicts": describe_conflicts(conflicts),
        "withheld": [change.path for change in review.withheld],
    }


def describe_kept_paths(kept: Sequence[Kept]) -> list[dict[str, str]]:
    """Return as data the paths that a rollback left alone."""
    return [{"path": each.path, "fact": each.fact, "other": each.other} for each in kept]


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
        {
            "path": each.path,
            "in_copy": each.in_copy,
            "in_original": each.in_original,
            "can_merge": each.can_merge,
            "lines": [list(lines) for lines in each.lines],
        }
        for each in conflicts
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
