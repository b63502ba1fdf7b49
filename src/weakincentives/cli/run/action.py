"""What the user asks for with options, what to do with the changes above all, and what was done."""

import functools
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import click

from weakincentives.cli.terminal import is_terminal
from weakincentives.cli.units import format_clock
from weakincentives.posix import display_path

F = TypeVar("F", bound=Callable[..., Any])

ActionKind: TypeAlias = Literal["apply", "commit", "branch", "patch", "discard", "keep", "ask"]
_KINDS: tuple[ActionKind, ...] = ("apply", "commit", "branch", "patch", "discard")
_APPLIES: frozenset[ActionKind] = frozenset({"apply", "commit"})
_SELECTS: frozenset[ActionKind] = frozenset({"apply", "commit", "branch", "patch"})


STANDARD_OUTPUT = Path("-")
"""The patch is printed instead of saved."""


@dataclass(frozen=True, slots=True)
class Action:
    """What to do with the changes, and with which of them."""

    kind: ActionKind = "ask"
    patch: Path | None = None
    """The file to save them to, or `STANDARD_OUTPUT`."""
    branch: str | None = None
    """The new branch to commit them to."""
    only: tuple[str, ...] = ()
    """The files and directories to which it is restricted."""
    skip: tuple[str, ...] = ()
    """The files and directories that are left out."""
    merge: bool = False
    """Whether files that were changed on both sides in different places are merged."""

    @property
    def options(self) -> str:
        """The options of `wink review` that repeat a commit or an apply."""
        words = [f"--{self.kind}"] if self.branch is None else ["--branch", self.branch]
        words += [word for path in self.only for word in ("--only", path)]
        words += [word for path in self.skip for word in ("--skip", path)]
        return shlex.join([*words, *(["--merge"] if self.merge else [])])


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What the user asked for with the options of `wink run` and `wink resume`."""

    settings: Mapping[str, object]
    """Options that are settings, by their names."""
    action: Action
    attach: tuple[str, ...] = ()
    config: str | None = None
    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    record: Path | None = None
    """Where the conversation is recorded, to be replayed."""

    @property
    def is_announced(self) -> bool:
        """Whether a person gets the first line before everything else is ready."""
        return not self.as_json and not self.quiet and is_terminal(sys.stderr)


def first_line(model: str, directory: Path, seconds: float | None, variable: str = "") -> str:
    """Return which model works where, and why it is this one if the user did not say."""
    limit = "" if seconds is None else f", for at most {format_clock(seconds)}"
    why = f" (as {variable} is set; --model chooses another)" if variable else ""
    return f"{model} works in a copy of {display_path(str(directory))}{limit}{why}"


def action_options(command: F) -> F:
    """Add `--apply` and the like to a command, which gets them as one `action`."""

    @functools.wraps(command)
    def parse(**options: Any) -> Any:
        chosen: list[ActionKind] = [kind for kind in _KINDS if options[kind] not in (None, False)]
        kind = _choose_kind(chosen)
        given = {name: options.pop(name) for name in ("patch", "branch", "only", "skip", "merge")}
        for name in ("apply", "commit", "discard"):
            del options[name]
        action = Action(kind, **given)
        _check(action, is_undo=bool(options.get("undo")))
        if action.patch == STANDARD_OUTPUT and options.get("as_json"):
            raise click.UsageError("--json and --patch - both use standard output; name a file")
        return command(action=action, **options)

    return add_options(parse, _OPTIONS)


def add_options(command: Any, options: Sequence[Callable[[Any], Any]]) -> Any:
    """Return a command with options, which its help lists in this order."""
    for option in reversed(options):
        command = option(command)
    return command


_OPTIONS = (
    click.option("--apply", is_flag=True, help="Apply the changes without asking."),
    click.option(
        "--commit",
        is_flag=True,
        help="Apply the changes and commit them; the task is the message.",
    ),
    click.option(
        "--branch",
        metavar="NAME",
        help="Commit the changes to a new branch; the directory stays as it is.",
    ),
    click.option(
        "--patch",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Save the changes as a patch without asking; - prints it.",
    ),
    click.option("--discard", is_flag=True, help="Discard the changes without asking."),
    click.option(
        "--only",
        multiple=True,
        metavar="PATH",
        help="Take only this file or directory; keep the rest for later. Repeatable.",
    ),
    click.option(
        "--skip",
        multiple=True,
        metavar="PATH",
        help="Take everything but this file or directory. Repeatable.",
    ),
    click.option(
        "--merge",
        is_flag=True,
        help="Merge files that you changed too, where the changes do not overlap.",
    ),
)


def _choose_kind(chosen: Sequence[ActionKind]) -> ActionKind:
    if "commit" in chosen:  # it applies them as well
        chosen = [each for each in chosen if each != "apply"]
    if len(chosen) > 1:
        names = [f"--{each}" for each in _KINDS]
        raise click.UsageError(
            f"{', '.join(names[:-1])} and {names[-1]} exclude each other; use one"
        )
    return chosen[0] if chosen else "ask"


def _check(action: Action, *, is_undo: bool) -> None:
    """Raise UsageError before the run for what would otherwise fail only after it."""
    if (action.only or action.skip) and action.kind not in _SELECTS:
        raise click.UsageError(f"--only and --skip need one of {_name(_SELECTS)}")
    if action.merge and action.kind not in _APPLIES and not is_undo:
        raise click.UsageError(f"--merge needs one of {_name(_APPLIES)}")
    if action.patch is None or action.patch == STANDARD_OUTPUT:
        return
    if action.patch.exists():
        raise click.UsageError(
            f"File exists already: {str(action.patch)!r}; choose another name for --patch"
        )
    if not action.patch.absolute().parent.is_dir():
        raise click.UsageError(
            f"The directory of the patch does not exist: {str(action.patch)!r}; create it first"
        )


def _name(kinds: frozenset[ActionKind]) -> str:
    return ", ".join(f"--{each}" for each in sorted(kinds))


Outcome: TypeAlias = Literal[
    "nothing",
    "applied",
    "applied-partly",
    "committed",
    "committed-partly",
    "branched",
    "branched-partly",
    "patched",
    "patched-partly",
    "discarded",
    "kept",
    "reply",
    "interrupted",
    "conflict",
    "failed",
]
EXIT_DONE, EXIT_FAILED, EXIT_KEPT, EXIT_CONFLICT = 0, 1, 3, 4
_EXIT_CODES: dict[str, int] = {
    "kept": EXIT_KEPT,
    "partly": EXIT_KEPT,
    "interrupted": EXIT_KEPT,
    "conflict": EXIT_CONFLICT,
    "failed": EXIT_FAILED,
}


@dataclass(frozen=True, slots=True)
class Resolution:
    """What was done with the changes, and the facts about them as data."""

    outcome: Outcome
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    reply: str | None = None
    """What the user told the model instead of deciding."""

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return _EXIT_CODES.get(self.outcome.rpartition("-")[2], EXIT_DONE)
