"""The changes of a run in words and as data: what was changed, applied, in conflict or left."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weakincentives.cli.run.diff_view import describe_diff
from weakincentives.cli.units import format_count
from weakincentives.contrib.review import Applied, Conflict, Kept, Review
from weakincentives.posix import display_path

_GIT = ".git"


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


def patch_command(original: Path, patch: Path) -> str:
    """Return the command that applies a patch from any directory.

    `git apply` silently skips a patch when it runs in a subdirectory of a repository.
    """
    top = next((each for each in (original, *original.parents) if (each / _GIT).exists()), original)
    option = (
        "" if top == original else f" --directory={shlex.quote(str(original.relative_to(top)))}"
    )
    return f"git -C {shlex.quote(str(top))} apply{option} {shlex.quote(str(patch))}"
