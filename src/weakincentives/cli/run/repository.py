"""The state of a git repository: branch, commit and changes, read with the program `git`.

A workspace may be a repository that somebody else wrote, and git runs what a repository's
configuration names. So nothing of it is obeyed that starts a program: no hooks, no file system
monitor, no filters, no submodules and no transport.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from weakincentives.sandbox.system_paths import find_program, trusted_search_path

_SECONDS = 5.0  # for each command
_INHERITED = ("HOME", "XDG_CONFIG_HOME")  # the user's own configuration: which owners are safe
_SETTINGS = {
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.hooksPath": os.devnull,
    "core.attributesFile": os.devnull,
    "safe.bareRepository": "explicit",
    "submodule.recurse": "false",
}
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    # a partial clone would fetch what is missing, with the program that its configuration names
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "LC_ALL": "C",
}
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
    git = _Git(program, directory, environment)
    place = git.run("rev-parse", "--show-toplevel", "--show-prefix")
    if place is None:
        return None
    top, prefix = (*place.split("\n"), "", "")[:2]
    # a configuration may name another directory as the one that belongs to the repository
    if os.path.realpath(os.path.join(top, prefix)) != os.path.realpath(directory):  # noqa: PTH118 # the prefix may be empty
        return None
    filters = git.filter_settings()
    status = None if filters is None else git.run(*_STATUS, settings=filters)
    return git.read_head() if status is None else _parse_status(status, prefix)


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


@dataclass(frozen=True, slots=True)
class _Git:
    """Runs git in a directory whose configuration is not trusted."""

    program: str
    directory: Path
    environment: Mapping[str, str]

    def run(self, *arguments: str, settings: Mapping[str, str] | None = None) -> str | None:
        """Return the output of a command; None if it fails or takes too long."""
        try:
            done = subprocess.run(
                [self.program, "--no-pager", *arguments],
                cwd=self.directory,
                env=self._variables({**_SETTINGS, **(settings or {})}),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SECONDS,
                check=True,
            )
        except (OSError, ValueError, subprocess.SubprocessError):
            return None
        return os.fsdecode(done.stdout)

    def read_head(self) -> RepositoryState:
        """Return the state without the changes, which take long in a large repository."""
        branch = (self.run("rev-parse", "--abbrev-ref", "HEAD") or "HEAD").strip()
        commit = (self.run("rev-parse", "--short=7", "HEAD") or "").strip()
        return RepositoryState(None if branch == "HEAD" else branch, commit or None, None)

    def filter_settings(self) -> Mapping[str, str] | None:
        """Return settings that switch off every filter; None if they cannot be listed.

        A filter is a program that git would run on files that have changed.
        """
        # all settings: a pattern that finds nothing would be a failure
        listed = self.run("config", "--list", "--name-only", "-z")
        if listed is None:
            return None
        names = {
            each.split(".", 1)[1].rpartition(".")[0]
            for each in listed.split("\0")
            if each.startswith("filter.") and each.count(".") > 1
        }
        settings = {f"filter.{name}.{key}": "" for name in names for key in _FILTER_KEYS}
        return settings | {f"filter.{name}.required": "false" for name in names}

    def _variables(self, settings: Mapping[str, str]) -> dict[str, str]:
        # not as options: a name may contain the character that ends a name there
        given = {"GIT_CONFIG_COUNT": str(len(settings))}
        for number, (name, value) in enumerate(settings.items()):
            given |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        own = {name: self.environment[name] for name in _INHERITED if name in self.environment}
        return {**own, "PATH": trusted_search_path([self.directory]), **_ENVIRONMENT, **given}


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
