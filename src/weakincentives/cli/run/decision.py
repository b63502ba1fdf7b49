"""What happens to the changes in a working copy: apply, save as a patch, keep or discard.

The user answers a question, or `--apply`, `--patch` or `--discard` answers it beforehand.
Only `apply` and `undo` touch the original. Whatever goes wrong, the copy stays.
"""

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import click

from weakincentives.cli.run.diff_view import describe_diff, show_diff
from weakincentives.cli.signals import TerminatedError
from weakincentives.cli.state import place_id
from weakincentives.cli.terminal import (
    describe_error,
    discard_typeahead,
    echo,
    is_terminal,
    read_line,
    read_pasted_lines,
)
from weakincentives.cli.units import format_count
from weakincentives.contrib.review import Applied, Conflict, ConflictError, Kept, Review
from weakincentives.errors import WinkError
from weakincentives.posix import display_path

F = TypeVar("F", bound=Callable[..., Any])

ActionKind: TypeAlias = Literal["apply", "patch", "discard", "keep", "ask"]
Outcome: TypeAlias = Literal[
    "nothing",
    "applied",
    "applied-partly",
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
_EXIT_CODES: dict[Outcome, int] = {
    "kept": EXIT_KEPT,
    "applied-partly": EXIT_KEPT,
    "patched-partly": EXIT_KEPT,
    "interrupted": EXIT_KEPT,
    "conflict": EXIT_CONFLICT,
    "failed": EXIT_FAILED,
}
_UNRESOLVED: frozenset[Outcome] = frozenset({"conflict", "failed"})
_QUESTION = "[a]pply{but}, {reply}save as [p]atch, [v]iew again, [k]eep for later, [d]iscard"
_COMMANDS = ("apply", "patch", "view", "keep", "discard")
_REPLY = "[r]eply, "
_REPLY_HINT = "Your reply (empty: none): "
_REPLY_OR_END = "Your reply (empty: end): "
_MAX_WITHHELD = 5
_MAX_OMITTED = 20
_GIT = ".git"


@dataclass(frozen=True, slots=True)
class Action:
    """What to do with the changes; `patch` is the file to save them to."""

    kind: ActionKind = "ask"
    patch: Path | None = None


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
        return _EXIT_CODES.get(self.outcome, EXIT_DONE)


def action_options(command: F) -> F:
    """Add `--apply`, `--patch` and `--discard` to a command; `parse_action` reads them."""
    for option in (
        click.option("--discard", is_flag=True, help="Discard the changes without asking."),
        click.option(
            "--patch",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Save the changes as a patch without asking.",
        ),
        click.option("--apply", is_flag=True, help="Apply the changes without asking."),
    ):
        command = option(command)
    return command


def parse_action(*, apply: bool, patch: Path | None, discard: bool) -> Action:
    """Return the action that the options ask for.

    Raises:
        UsageError: They ask for two, or the patch could not be saved.
    """
    if sum((apply, patch is not None, discard)) > 1:
        raise click.UsageError("--apply, --patch and --discard exclude each other; use one")
    if patch is not None:
        _check_patch_path(patch)
        return Action("patch", patch)
    return Action("apply" if apply else "discard" if discard else "ask")


def _check_patch_path(patch: Path) -> None:
    """Raise before the run for what would otherwise fail only after it."""
    if patch.exists():
        raise click.UsageError(
            f"File exists already: {str(patch)!r}; choose another name for --patch"
        )
    if not patch.absolute().parent.is_dir():
        raise click.UsageError(
            f"The directory of the patch does not exist: {str(patch)!r}; create it first"
        )


def can_ask() -> bool:
    """Return whether a person can answer a question."""
    return all(map(is_terminal, (sys.stdin, sys.stdout, sys.stderr)))


def describe_changes(review: Review, conflicts: Sequence[Conflict]) -> dict[str, Any]:
    """Return the changes of a review as data."""
    return {
        **describe_diff(review.diff),
        "conflicts": _describe_conflicts(conflicts),
        "withheld": [change.path for change in review.withheld],
    }


def describe_kept_paths(kept: Sequence[Kept]) -> list[dict[str, str]]:
    """Return as data the paths that a rollback left alone."""
    return [{"path": each.path, "fact": each.fact, "other": each.other} for each in kept]


class Decision:
    """Resolves the changes of one review."""

    def __init__(
        self,
        review: Review,
        *,
        is_silent: bool = False,
        is_end: bool = True,
        can_reply: bool = False,
    ) -> None:
        """Decide about `review`.

        Args:
            review: The changes.
            is_silent: Print nothing and ask nothing.
            is_end: Whether this ends a run: the diff is always shown, and a copy without
                changes is removed.
            can_reply: Whether the user may tell the model something instead of deciding.
        """
        self._review = review
        self._is_silent = is_silent
        self._is_end = is_end
        self._can_reply = can_reply
        self._reply: str | None = None
        self._reported: frozenset[Conflict] = frozenset()
        self._facts: dict[str, Any] = {}  # what turned up while the changes were resolved

    def resolve(self, action: Action) -> Resolution:
        """Show the changes, ask if need be, and carry out the action."""
        blocked = self._recover(action)
        if blocked is not None:
            return Resolution(blocked, describe_changes(self._review, ()) | self._facts)
        if not self._review.diff:
            return self._resolve_empty(action)
        conflicts = self._find_conflicts()
        facts = describe_changes(self._review, conflicts)
        if not self._is_silent:
            self._show_changes(conflicts, with_diff=self._is_end or action.kind == "ask")
        if action.kind == "ask":
            outcome = self._ask() if can_ask() and not self._is_silent else self._keep()
        else:
            outcome = self._execute(action, ())
            if outcome in _UNRESOLVED:
                self._keep()
        return Resolution(outcome, facts | self._facts, self._reply)

    def _recover(self, action: Action) -> Outcome | None:
        """Roll back an interrupted apply; return why that prevents the action, if it does.

        With "ask" nothing is rolled back, because looking must not change the original.
        """
        try:
            interrupted = self._review.interrupted
            if interrupted is None:
                return None
            self._print(f"wink: {interrupted}.")
            self._facts = {"interrupted": list(interrupted.paths)}
            if action.kind == "ask":
                return "interrupted"
            recovered = self._review.recover()
        except (FileNotFoundError, NotADirectoryError):
            return None  # the original is gone; an action that needs it reports that
        except (WinkError, OSError) as error:
            self._print_error(error)
            self._facts = {}
            return "failed"
        original = self._review.copy.original
        self._print(f"Rolled back {format_count(len(recovered.paths), 'path')} in {original}.")
        if not recovered.kept:
            self._facts = {}
            return None
        self._print_kept_paths(recovered.kept)
        return "conflict"

    def _find_conflicts(self) -> Sequence[Conflict]:
        """Return the conflicts; none if the original is gone, since a patch can still be saved."""
        try:
            return self._review.conflicts()
        except (FileNotFoundError, NotADirectoryError) as error:
            self._print_error(error)
            return ()

    def _resolve_empty(self, action: Action) -> Resolution:
        """End a review without offered changes; withheld changes are not discarded unasked."""
        facts = describe_changes(self._review, ())
        self._print_withheld_changes()
        is_empty = all(_is_git_index(each.path) for each in self._review.withheld)
        has_applied = bool(self._review.applied)
        if action.kind == "apply" and has_applied:
            self._print(self._nothing_to_apply())
            return Resolution("applied", facts)
        if has_applied:
            self._print("All changes were applied.")
        else:
            self._print("Nothing was changed." if is_empty else "Nothing else was changed.")
        if action.kind == "ask" and self._can_reply and can_ask() and not self._is_silent:
            self._reply = self._ask_for_reply()
            if self._reply is not None:
                return Resolution("reply", facts, self._reply)
        if action.kind == "discard" or (self._is_end and is_empty and not has_applied):
            self._review.discard()
        elif not is_empty:
            root = display_path(str(self._review.copy.root))
            self._print(f"Changes that are not offered stay in {root}.")
            self._print(f"  {self._command('--discard')}  to remove them")
            return Resolution("kept", facts)
        return Resolution("nothing", facts)

    def _show_changes(self, conflicts: Sequence[Conflict], *, with_diff: bool) -> None:
        if with_diff:
            show_diff(self._review.diff)
        self._print(str(self._review.diff))
        self._print_withheld_changes()
        self._print_conflicts(conflicts)

    def _ask(self) -> Outcome:
        """Ask until an action succeeds; without an answer the copy is kept."""
        while True:
            conflicts = self._find_conflicts()
            but = f" all but {len(conflicts)} in conflict" if conflicts else ""
            question = _QUESTION.format(but=but, reply=_REPLY if self._can_reply else "")
            try:
                outcome = self._execute_answer(_prompt(question), conflicts)
            except click.Abort:
                self._print("")
                return self._keep()
            if outcome is not None and outcome not in _UNRESOLVED:
                return outcome

    def _execute_answer(self, answer: str, conflicts: Sequence[Conflict]) -> Outcome | None:
        if self._can_reply and len(answer.split()) > 1:  # only a person writes several words
            self._reply = answer
            return "reply"
        match _first_letter(answer, can_reply=self._can_reply):
            case "a":
                return self._execute(Action("apply"), conflicts)
            case "p":
                name = _prompt("Save as", default="wink.patch")
                return self._execute(Action("patch", Path(name).expanduser()), ())
            case "v":
                show_diff(self._review.diff)
            case "k":
                return self._keep()
            case "d":
                return self._execute(Action("discard"), ())
            case "r" if self._can_reply:
                self._reply = _read_text(_REPLY_HINT) or None
                return None if self._reply is None else "reply"
            case _:
                reply = ", r, or your reply in several words" if self._can_reply else ""
                self._print(f"Please answer a, p, v, k or d{reply}.")
        return None

    def _ask_for_reply(self) -> str | None:
        """Return what the user tells the model; None if that is nothing."""
        try:
            return _read_text(_REPLY_OR_END) or None
        except click.Abort:
            self._print("")
            return None

    def _execute(self, action: Action, leave_out: Sequence[Conflict]) -> Outcome:
        """Carry out an action; after an error, which is printed, the copy stays."""
        try:
            match action.kind:
                case "apply":
                    return self._apply(leave_out)
                case "patch":
                    return self._save_patch(action.patch)
                case "discard":
                    self._review.discard()
                    self._print(f"Discarded{self._untouched_note()}.")
                    return "discarded"
                case _:
                    return self._keep()
        except ConflictError as error:
            self._print_conflicts([each for each in error.conflicts if each not in self._reported])
            self._facts["conflicts"] = _describe_conflicts(error.conflicts)
            self._print_kept_paths(error.kept)
            self._print("Nothing was applied.")
            return "conflict"
        except (WinkError, OSError, ValueError) as error:
            self._print_error(error)
            return "failed"
        except KeyboardInterrupt as error:
            self._print_notes(error)
            raise

    def _apply(self, leave_out: Sequence[Conflict]) -> Outcome:
        if not leave_out:
            self._print_apply_result(self._review.apply())
            return "applied"
        paths = _exclude_paths(
            [each.path for each in self._review.diff.entries]
            + [each.source for each in self._review.diff.entries if each.source],
            {each.path for each in leave_out},
        )
        if not paths:
            self._print("All changes are in conflict; nothing was applied.")
            return "conflict"
        self._print_apply_result(self._review.apply(paths))
        self._keep(note="; files in conflict were not changed")
        return "applied-partly"

    def _print_apply_result(self, applied: Applied) -> None:
        original = display_path(str(self._review.copy.original))
        if applied.paths:
            count = format_count(len(applied.paths), "path")
            self._print(f"Applied to {original}: {count} changed.")
        else:
            self._print(self._nothing_to_apply())
        self._print_kept_paths(applied.kept)
        self._print(f"To undo: {self._command('--undo')}  (--discard removes the copy)")

    def _nothing_to_apply(self) -> str:
        original = display_path(str(self._review.copy.original))
        return f"Nothing to apply: {original} already has all the changes."

    def _save_patch(self, patch: Path | None) -> Outcome:
        assert patch is not None
        if patch.exists():
            raise FileExistsError(f"File exists already: {str(patch)!r}; choose another name")
        saved = self._review.save_patch(patch)
        command = _apply_command(self._review.copy.original, saved)
        self._print(f"Patch saved; to apply it: {command}")
        omitted = [each for each in self._review.omissions() if not _is_git_index(each.path)]
        if not omitted:
            self._review.discard()
            return "patched"
        self._print("The patch leaves out:")
        for each in omitted[:_MAX_OMITTED]:
            self._print(f"  {each}")
        if len(omitted) > _MAX_OMITTED:
            self._print(f"  and {len(omitted) - _MAX_OMITTED} more")
        self._keep(note=", because the patch leaves something out")
        return "patched-partly"

    def _untouched_note(self) -> str:
        """Return a note that the original is unchanged if that is certain: right after a run."""
        return "; the original is unchanged" if self._is_end else ""

    def _keep(self, note: str | None = None) -> Outcome:
        note = self._untouched_note() if note is None else note
        self._print(f"The changes are kept in {display_path(str(self._review.copy.root))}{note}.")
        for option, use in (
            ("--apply", "to apply them"),
            ("--patch FILE", "to save them as a patch"),
            ("--discard", "to remove them"),
        ):
            self._print(f"  {self._command(option)}  {use}")
        return "kept"

    def _command(self, option: str) -> str:
        return f"wink review {shlex.quote(place_id(self._review.copy.place))} {option}"

    def _print_withheld_changes(self) -> None:
        changes = [each for each in self._review.withheld if not _is_git_index(each.path)]
        inside = [each for each in changes if _GIT in each.path.split("/")]
        others = [each for each in changes if each not in inside]
        if inside:
            self._print(f"Not offered: {format_count(len(inside), 'change')} inside {_GIT}")
        if others:
            names = ", ".join(map(str, others[:_MAX_WITHHELD]))
            more = " and more" if len(others) > _MAX_WITHHELD else ""
            self._print(f"Not offered: {names}{more}")

    def _print_conflicts(self, conflicts: Sequence[Conflict]) -> None:
        self._reported |= frozenset(conflicts)
        for each in conflicts:
            self._print(f"conflict: {each}")

    def _print_kept_paths(self, kept: Sequence[Kept]) -> None:
        if kept:
            self._facts["kept"] = describe_kept_paths(kept)
        for each in kept:
            self._print(f"kept: {each}")

    def _print_error(self, error: BaseException) -> None:
        self._print(f"wink: {describe_error(error)}")
        self._print_notes(error)

    def _print_notes(self, error: BaseException) -> None:
        """Print what a rollback left alone; the error itself does not say it."""
        for note in getattr(error, "__notes__", ()):
            self._print(f"kept: {note}")

    def _print(self, line: str) -> None:
        if not self._is_silent:
            echo(line)


def _prompt(question: str, *, default: str = "") -> str:
    """Return an answer typed after the question was shown; Abort if there is none."""
    hint = f" [{default}]" if default else ""
    while True:
        if answer := _read_text(f"{question}{hint}: ") or default:
            return answer


def _first_letter(answer: str, *, can_reply: bool) -> str | None:
    """Return the letter of a command; None for anything else, since a typo must not decide."""
    names = (*_COMMANDS, "reply") if can_reply else _COMMANDS
    return next((name[0] for name in names if name.startswith(answer.lower())), None)


def _read_text(question: str) -> str:
    """Return what is typed after the question was shown, and what was pasted with its words.

    Raises:
        Abort: The input has ended, or Ctrl-C was pressed.
    """
    discard_typeahead()
    echo(question, newline=False)
    try:
        text = read_line()
        if len(text.split()) > 1:
            text += read_pasted_lines()
    except TerminatedError:
        raise
    except KeyboardInterrupt:
        raise click.Abort from None
    if not text:
        raise click.Abort
    return text.strip()


def _describe_conflicts(conflicts: Sequence[Conflict]) -> list[dict[str, str]]:
    return [
        {"path": each.path, "in_copy": each.in_copy, "in_original": each.in_original}
        for each in conflicts
    ]


def _is_git_index(path: str) -> bool:
    """Return whether it is git's index, which even `git status` rewrites."""
    return path == f"{_GIT}/index" or path.endswith(f"/{_GIT}/index")


def _apply_command(original: Path, patch: Path) -> str:
    """Return the command that applies a patch from any directory.

    `git apply` silently skips a patch when it runs in a subdirectory of a repository.
    """
    top = next((each for each in (original, *original.parents) if (each / _GIT).exists()), original)
    option = (
        "" if top == original else f" --directory={shlex.quote(str(original.relative_to(top)))}"
    )
    return f"git -C {shlex.quote(str(top))} apply{option} {shlex.quote(str(patch))}"


def _exclude_paths(paths: Sequence[str], excluded: set[str]) -> list[str]:
    """Return the paths that are neither above, below nor equal to an excluded one."""
    return sorted(
        path
        for path in set(paths)
        if not any(f"{each}/".startswith(f"{path}/") for each in excluded)
        and not any(f"{path}/".startswith(f"{each}/") for each in excluded)
    )
