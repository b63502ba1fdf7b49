"""The state of a git repository: branch, commit and changes, read with the program `git`.

A workspace may be a repository that somebody else wrote, and git runs what a repository's
configuration names: besides what `GitRunner` switches off, no filters and no submodules.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from weakincentives.contrib.review.git import CommitError, GitRunner
from weakincentives.sandbox.system_paths import find_program

_SECONDS = 5.0  # for each command
_INHERITED = ("HOME", "XDG_CONFIG_HOME")  # the user's own configuration: which owners are safe
_SETTINGS = {"core.attributesFile": os.devnull}
_VARIABLES = {"GIT_OPTIONAL_LOCKS": "0"}
_FILTER_KEYS = ("clean", "smudge", "process")
_PATH_FIELD = {"1": 8, "u": 10}  # the number of the path among the fields of a line


@dataclass(frozen=True, slots=True)
class RepositoryState:
    """Where a repository is, and what differs from its last commit."""

    branch: str | None
    """None if no branch is checked out."""
    commit: str | None
    """The beginning of its id; None before the first commit."""
    changes: tuple[str, ...] | None
    """Two letters and a path for each, as `git status --short` prints them; None if unknown."""


def read_repository(directory: Path, environment: Mapping[str, str]) -> RepositoryState | None:
    """Return the state of the repository that a directory belongs to.

    None if it belongs to none, or git is missing, refuses or takes too long.

    Args:
        directory: The workspace; programs in it are not used.
        environment: The environment variables.
    """
    program = find_program("git", [directory])
    if program is None:
        return None
    own = {name: environment[name] for name in _INHERITED if name in environment}
    git = GitRunner(program, directory, own, _VARIABLES, _SETTINGS, _SECONDS)
    place = _run(git, "rev-parse", "--show-toplevel", "--show-prefix")
    if place is None:
        return None
    top, prefix = (*place.split("\n"), "", "")[:2]
    # a configuration may name another directory as the one that belongs to the repository
    if os.path.realpath(os.path.join(top, prefix)) != os.path.realpath(directory):  # noqa: PTH118 # the prefix may be empty
        return None
    filters = _filter_settings(git)
    status = None
    if filters is not None:
        status = _run(replace(git, settings={**_SETTINGS, **filters}), *_STATUS)
    return _read_head(git) if status is None else _parse_status(status, prefix)


_STATUS = (
    "status",
    "--porcelain=v2",
    "--branch",
    "-z",
    "--no-renames",
    "--untracked-files=normal",
    "--ignore-submodules=all",
    "--",
    ".",
)


def _run(git: GitRunner, *arguments: str) -> str | None:
    """Return the output of a command; None if it fails or takes too long."""
    try:
        return os.fsdecode(git.run(*arguments))
    except (CommitError, OSError, ValueError):
        return None


def _read_head(git: GitRunner) -> RepositoryState:
    """Return the state without the changes, which take long in a large repository."""
    branch = (_run(git, "rev-parse", "--abbrev-ref", "HEAD") or "HEAD").strip()
    commit = (_run(git, "rev-parse", "--short=7", "HEAD") or "").strip()
    return RepositoryState(None if branch == "HEAD" else branch, commit or None, None)


def _filter_settings(git: GitRunner) -> Mapping[str, str] | None:
    """Return settings that switch off every filter; None if they cannot be listed.

    A filter is a program that git would run on files that have changed.
    """
    # all settings: a pattern that finds nothing would be a failure
    listed = _run(git, "config", "--list", "--name-only", "-z")
    if listed is None:
        return None
    names = {
        each.split(".", 1)[1].rpartition(".")[0]
        for each in listed.split("\0")
        if each.startswith("filter.") and each.count(".") > 1
    }
    settings = {f"filter.{name}.{key}": "" for name in names for key in _FILTER_KEYS}
    return settings | {f"filter.{name}.required": "false" for name in names}


def _parse_status(text: str, prefix: str) -> RepositoryState:
    lines = text.split("\0")
    headers: dict[str, str] = {}
    for line in lines:
        if line.startswith("# "):
            name, _, value = line.removeprefix("# ").partition(" ")
            headers[name] = value
    branch, commit = headers.get("branch.head", ""), headers.get("branch.oid", "")
    return RepositoryState(
        None if branch in ("", "(detached)") else branch,
        None if commit in ("", "(initial)") else commit[:7],
        tuple(_changes(lines, prefix)),
    )


def _changes(lines: Sequence[str], prefix: str) -> Iterator[str]:
    for line in lines:
        kind, _, rest = line.partition(" ")
        if kind == "?":
            yield f"?? {rest.removeprefix(prefix)}"
        elif kind in _PATH_FIELD:
            fields = line.split(" ", _PATH_FIELD[kind])
            yield f"{fields[1].replace('.', ' ')} {fields[-1].removeprefix(prefix)}"
