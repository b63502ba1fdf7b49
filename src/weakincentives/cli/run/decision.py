"""What becomes of changes in a working copy: a person decides, or options have decided.

The original is touched by `apply` and `undo` alone. Whatever goes wrong, the copy stays.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import click

from weakincentives.cli.keyboard import discard_typed, read_line
from weakincentives.cli.run.diff_view import show_diff
from weakincentives.cli.terminal import is_terminal, say, sentence
from weakincentives.cli.termination import TerminatedError
from weakincentives.cli.units import count_text
from weakincentives.contrib.review import Applied, Conflict, ConflictError, Kept, Review
from weakincentives.errors import WinkError
from weakincentives.posix import display_path

Action: TypeAlias = Literal["apply", "patch", "discard", "keep", "ask"]
Result: TypeAlias = Literal[
    "nothing",
    "applied",
    "applied-partly",
    "patched",
    "patched-partly",
    "discarded",
    "kept",
    "interrupted",
    "conflict",
    "failed",
]
DONE, FAILED, WAITING, CONFLICT = 0, 1, 3, 4
_CODES: dict[Result, int] = {
    "kept": WAITING,
    "applied-partly": WAITING,
    "patched-partly": WAITING,
    "interrupted": WAITING,
    "conflict": CONFLICT,
    "failed": FAILED,
}
_NOT_DONE: frozenset[Result] = frozenset({"conflict", "failed"})
_QUESTION = "[a]pply{but}, save as [p]atch, [v]iew again, [k]eep for later, [d]iscard"
_MAX_WITHHELD = 5
_MAX_OMITTED = 20
_GIT = ".git"


@dataclass(frozen=True, slots=True)
class DecisionOptions:
    """What is to be done with the changes; `patch` is where they are saved."""

    action: Action = "ask"
    patch: Path | None = None


@dataclass(frozen=True, slots=True)
class Resolution:
    """What was done with the changes."""

    result: Result
    facts: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def exit_code(self) -> int:
        """What a script is told."""
        return _CODES.get(self.result, DONE)


def can_ask() -> bool:
    """Say whether there is a person to ask."""
    return all(map(is_terminal, (sys.stdin, sys.stdout, sys.stderr)))


def facts_of(review: Review, conflicts: Sequence[Conflict]) -> dict[str, Any]:
    """Return what was changed, as data."""
    changes = review.diff
    numbers = changes.statistics
    return {
        "changes": [
            {
                "path": change.path,
                "kind": change.kind,
                "source": change.source,
                "insertions": count.insertions,
                "deletions": count.deletions,
                "binary": count.is_binary,
            }
            for change, count in zip(changes.entries, changes.line_counts, strict=True)
        ],
        "files_changed": numbers.files_changed,
        "insertions": numbers.insertions,
        "deletions": numbers.deletions,
        "conflicts": _described(conflicts),
        "withheld": [change.path for change in review.withheld],
    }


class Decision:
    """The changes of one review on their way to being settled."""

    def __init__(self, review: Review, *, is_silent: bool = False, is_end: bool = True) -> None:
        """Decide about `review`.

        Args:
            review: The changes.
            is_silent: Say nothing in words.
            is_end: The work has just ended: the changes are shown even where nothing is
                asked about them, and a copy without changes goes.
        """
        self._review = review
        self._is_silent = is_silent
        self._is_end = is_end
        self._told: frozenset[Conflict] = frozenset()
        self._found: dict[str, Any] = {}  # what turned up while it was done

    def settle(self, wish: DecisionOptions) -> Resolution:
        """Show the changes, find out what is wanted, and do it."""
        if not self._is_recovered(wish):
            facts = facts_of(self._review, ())
            return Resolution(self._found.pop("result"), facts | self._found)
        if not self._review.diff:
            return self._settle_nothing(wish)
        conflicts = self._conflicts()
        facts = facts_of(self._review, conflicts)
        if not self._is_silent:
            self._show(conflicts, in_full=self._is_end or wish.action == "ask")
        if wish.action == "ask":
            result = self._asked() if can_ask() and not self._is_silent else self._keep()
        else:
            result = self._done(wish.action, wish.patch, ())
            if result in _NOT_DONE:
                self._keep()
        return Resolution(result, facts | self._found)

    def _is_recovered(self, wish: DecisionOptions) -> bool:
        """Return whether nothing stands half-way; what does is rolled back if that is wanted."""
        try:
            found = self._review.interrupted
            if found is None:
                return True
            self._say(f"wink: {found}.")
            self._found = {"result": "interrupted", "interrupted": list(found.paths)}
            if wish.action == "ask":  # who looks changes nothing
                return False
            recovered = self._review.recover()
        except (FileNotFoundError, NotADirectoryError):
            return True  # there is no original: whoever needs it says so
        except (WinkError, OSError) as error:
            self._tell_error(error)
            self._found = {"result": "failed"}
            return False
        self._say(f"Rolled back: {recovered} in {self._review.copy.original}.")
        self._tell_kept(recovered.kept)
        self._found = self._found | {"result": "conflict"} if recovered.kept else {}
        return not recovered.kept

    def _conflicts(self) -> Sequence[Conflict]:
        """Return what is in conflict; without an original nothing is, and a patch can be saved."""
        try:
            return self._review.conflicts()
        except (FileNotFoundError, NotADirectoryError) as error:
            self._tell_error(error)
            return ()

    def _settle_nothing(self, wish: DecisionOptions) -> Resolution:
        """End a review in which nothing is offered; what is withheld is not thrown away unasked."""
        facts = facts_of(self._review, ())
        self._tell_withheld()
        is_empty = all(_is_index(each.path) for each in self._review.withheld)
        self._say("Nothing was changed." if is_empty else "Nothing else was changed.")
        if wish.action == "discard" or (self._is_end and is_empty):
            self._review.discard()
        elif not is_empty:
            self._say(f"What is not offered stays in {display_path(str(self._review.copy.root))}.")
            self._say(f"  {self._command('--discard')}  to remove it")
            return Resolution("kept", facts)
        return Resolution("nothing", facts)

    def _show(self, conflicts: Sequence[Conflict], *, in_full: bool) -> None:
        if in_full:
            show_diff(self._review.diff)
        self._say(str(self._review.diff))
        self._tell_withheld()
        self._tell_conflicts(conflicts)

    def _asked(self) -> Result:
        """Ask until something was done; no answer at all keeps the copy."""
        while True:
            conflicts = self._conflicts()
            but = f" all but {len(conflicts)} in conflict" if conflicts else ""
            try:
                answer = _ask(_QUESTION.format(but=but))
                result = self._chosen(answer.strip().lower()[:1], conflicts)
            except click.Abort:
                self._say("")
                return self._keep()
            if result is not None and result not in _NOT_DONE:
                return result

    def _chosen(self, letter: str, conflicts: Sequence[Conflict]) -> Result | None:
        match letter:
            case "a":
                return self._done("apply", None, conflicts)
            case "p":
                name = _ask("Save as", default="wink.patch")
                return self._done("patch", Path(name).expanduser(), ())
            case "v":
                show_diff(self._review.diff)
            case "k":
                return self._keep()
            case "d":
                return self._done("discard", None, ())
            case _:
                self._say("Answer with a letter: a, p, v, k or d.")
        return None

    def _done(self, action: Action, patch: Path | None, leave_out: Sequence[Conflict]) -> Result:
        """Do what is wanted; an error is told, and the copy stays."""
        try:
            match action:
                case "apply":
                    return self._apply(leave_out)
                case "patch":
                    return self._save(patch)
                case "discard":
                    self._review.discard()
                    self._say(f"Discarded{self._untouched()}.")
                    return "discarded"
                case _:
                    return self._keep()
        except ConflictError as error:
            self._tell_conflicts([each for each in error.conflicts if each not in self._told])
            self._found["conflicts"] = _described(error.conflicts)
            self._tell_kept(error.kept)
            self._say("Nothing was applied.")
            return "conflict"
        except (WinkError, OSError, ValueError) as error:
            self._tell_error(error)
            return "failed"
        except KeyboardInterrupt as error:
            self._tell_notes(error)
            raise

    def _apply(self, leave_out: Sequence[Conflict]) -> Result:
        if not leave_out:
            self._tell_applied(self._review.apply())
            return "applied"
        avoided = {each.path for each in leave_out}
        paths = _beside(
            [each.path for each in self._review.diff.entries]
            + [each.source for each in self._review.diff.entries if each.source],
            avoided,
        )
        if not paths:
            self._say("All of it is in conflict: nothing was applied.")
            return "conflict"
        self._tell_applied(self._review.apply(paths))
        self._keep(but="; what is in conflict is as it was")
        return "applied-partly"

    def _tell_applied(self, applied: Applied) -> None:
        original = display_path(str(self._review.copy.original))
        if applied.paths:
            self._say(f"Applied to {original}: {count_text(len(applied.paths), 'path')} changed.")
        else:
            self._say(f"Nothing to apply: {original} has all of it already.")
        self._tell_kept(applied.kept)
        self._say(f"To take it back: {self._command('--undo')}  (--discard removes the copy)")

    def _save(self, patch: Path | None) -> Result:
        assert patch is not None
        if patch.exists():
            raise FileExistsError(f"There is a file already: {str(patch)!r}; give another name")
        saved = self._review.save_patch(patch)
        self._say(f"Saved; to apply it: {_apply_command(self._review.copy.original, saved)}")
        omitted = [each for each in self._review.omissions() if not _is_index(each.path)]
        if not omitted:
            self._review.discard()
            return "patched"
        self._say("The patch leaves out:")
        for each in omitted[:_MAX_OMITTED]:
            self._say(f"  {each}")
        if len(omitted) > _MAX_OMITTED:
            self._say(f"  and {len(omitted) - _MAX_OMITTED} more")
        self._keep(but=", because of what the patch leaves out")
        return "patched-partly"

    def _untouched(self) -> str:
        """Say so of the original where it is known: after a run nobody has applied anything."""
        return "; the original is as it was" if self._is_end else ""

    def _keep(self, but: str | None = None) -> Result:
        but = self._untouched() if but is None else but
        self._say(f"The changes wait in {display_path(str(self._review.copy.root))}{but}.")
        for option, use in (
            ("--apply", "to apply them"),
            ("--patch FILE", "to save them as a patch"),
            ("--discard", "to remove them"),
        ):
            self._say(f"  {self._command(option)}  {use}")
        return "kept"

    def _command(self, option: str) -> str:
        return f"wink review {shlex.quote(str(self._review.copy.place))} {option}"

    def _tell_withheld(self) -> None:
        changes = [each for each in self._review.withheld if not _is_index(each.path)]
        inside = [each for each in changes if _GIT in each.path.split("/")]
        others = [each for each in changes if each not in inside]
        if inside:
            self._say(f"Not offered: {count_text(len(inside), 'change')} inside of {_GIT}")
        if others:
            names = ", ".join(map(str, others[:_MAX_WITHHELD]))
            more = " and more" if len(others) > _MAX_WITHHELD else ""
            self._say(f"Not offered: {names}{more}")

    def _tell_conflicts(self, conflicts: Sequence[Conflict]) -> None:
        self._told |= frozenset(conflicts)
        for each in conflicts:
            self._say(f"conflict: {each}")

    def _tell_kept(self, kept: Sequence[Kept]) -> None:
        if kept:
            self._found["kept"] = kept_facts(kept)
        for each in kept:
            self._say(f"kept: {each}")

    def _tell_error(self, error: BaseException) -> None:
        self._say(f"wink: {sentence(error)}")
        self._tell_notes(error)

    def _tell_notes(self, error: BaseException) -> None:
        """Tell what a rollback has left; it is no part of the error itself."""
        for note in getattr(error, "__notes__", ()):
            self._say(f"kept: {note}")

    def _say(self, sentence: str) -> None:
        if not self._is_silent:
            say(sentence)


def _ask(question: str, *, default: str = "") -> str:
    """Return what is answered after the question was seen; Abort if there is no answer."""
    discard_typed()
    hint = f" [{default}]" if default else ""
    while True:
        say(f"{question}{hint}: ", newline=False)
        try:
            line = read_line()
        except TerminatedError:
            raise
        except KeyboardInterrupt:
            raise click.Abort from None
        if not line:
            raise click.Abort
        if answer := line.strip() or default:
            return answer


def kept_facts(kept: Sequence[Kept]) -> list[dict[str, str]]:
    """Return what was left as somebody had made it, as data."""
    return [{"path": each.path, "fact": each.fact, "other": each.other} for each in kept]


def _described(conflicts: Sequence[Conflict]) -> list[dict[str, str]]:
    return [
        {"path": each.path, "in_copy": each.in_copy, "in_original": each.in_original}
        for each in conflicts
    ]


def _is_index(path: str) -> bool:
    """Say whether it is what git writes anew whenever somebody looks."""
    return path == f"{_GIT}/index" or path.endswith(f"/{_GIT}/index")


def _apply_command(original: Path, patch: Path) -> str:
    """Return the command that applies a patch, wherever it is typed.

    In a directory of a repository below its top, git passes over a patch without a word.
    """
    top = next((each for each in (original, *original.parents) if (each / _GIT).exists()), original)
    place = "" if top == original else f" --directory={shlex.quote(str(original.relative_to(top)))}"
    return f"git -C {shlex.quote(str(top))} apply{place} {shlex.quote(str(patch))}"


def _beside(paths: Sequence[str], avoided: set[str]) -> list[str]:
    """Return the paths that have nothing to do with those to be avoided, above or below."""
    return sorted(
        path
        for path in set(paths)
        if not any(f"{each}/".startswith(f"{path}/") for each in avoided)
        and not any(f"{path}/".startswith(f"{each}/") for each in avoided)
    )
