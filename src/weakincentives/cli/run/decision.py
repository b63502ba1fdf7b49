"""What happens to the changes in a working copy: apply, save as a patch, keep or discard.

The user answers a question, or an option such as `--apply` answers it beforehand.
Only `apply` and `undo` touch the original. Whatever goes wrong, the copy stays.
"""

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import click

from weakincentives.cli.activity import show_activity
from weakincentives.cli.answers import can_ask, prompt, read_text
from weakincentives.cli.run import changes
from weakincentives.cli.run.action import STANDARD_OUTPUT, Action, Outcome, Resolution
from weakincentives.cli.run.changes import Choice
from weakincentives.cli.run.selection import ask_for_choice, select_paths
from weakincentives.cli.runs import place_id
from weakincentives.cli.terminal import describe_error, echo, is_terminal, wrap_words
from weakincentives.cli.units import format_count
from weakincentives.contrib.review import (
    Applied,
    Committed,
    Conflict,
    ConflictError,
    CopyInUseError,
    Kept,
    Review,
    commit_changes,
    commit_to_branch,
    is_in_repository,
)
from weakincentives.errors import WinkError
from weakincentives.posix import display_path

_COMMITS = frozenset({"commit", "branch"})
_UNRESOLVED: frozenset[Outcome] = frozenset({"conflict", "failed"})
_MAX_NAMED = 5


@dataclass(slots=True)
class Decision:
    """Resolves the changes of one review."""

    review: Review
    _: KW_ONLY
    is_silent: bool = False
    """Print nothing and ask nothing."""
    is_end: bool = True
    """Whether this ends a run: the diff is shown, and a copy without changes is removed."""
    can_reply: bool = False
    """Whether the user may tell the model something instead of deciding."""
    wanted: Action | None = None
    """What the user asked for, if `resolve` gets another action."""
    is_kept: bool = False
    """Whether a copy without changes is kept too, for what was rolled back in it."""
    _reply: str | None = field(default=None, init=False)
    _choice: Choice | None = field(default=None, init=False)  # of the user; no answer adds to it
    _reported: frozenset[Conflict] = field(default=frozenset(), init=False)
    _facts: dict[str, Any] = field(default_factory=dict[str, Any], init=False)  # that turned up

    def resolve(self, action: Action) -> Resolution:
        """Show the changes, ask if need be, and carry out the action."""
        self.wanted = self.wanted or action
        blocked = self._recover(action)
        if blocked is not None:
            return Resolution(blocked, changes.describe_changes(self.review, ()) | self._facts)
        with self._show_activity("comparing the files"):
            is_empty = not self.review.diff
        if is_empty and not (action.kind == "commit" and self.review.applied):
            return self._resolve_empty(action)
        conflicts = self._find_conflicts()
        facts = changes.describe_changes(self.review, conflicts)
        if not self.is_silent:
            shows_diff = self.is_end or action.kind == "ask"
            is_printed = action.patch == STANDARD_OUTPUT
            self._show_changes(conflicts, with_diff=shows_diff and not is_printed)
        if action.kind == "ask":
            outcome = self._ask() if can_ask() and not self.is_silent else self._keep()
        else:
            outcome = self._execute(action)
            if outcome == "failed":
                self._keep()
        return Resolution(outcome, facts | self._facts, self._reply)

    def _recover(self, action: Action) -> Outcome | None:
        """Roll back an interrupted apply; return why that prevents the action, if it does.

        With "ask" nothing is rolled back, because looking must not change the original.
        """
        try:
            interrupted = self.review.interrupted
            if interrupted is None:
                return None
            self._print(f"wink: {interrupted}.")
            self._facts = {"interrupted": list(interrupted.paths)}
            if action.kind == "ask":
                return "interrupted"
            recovered = self.review.recover()
        except (FileNotFoundError, NotADirectoryError):
            return None  # the original is gone; an action that needs it reports that
        except (WinkError, OSError) as error:
            self._print_error(error)
            self._facts = {}
            return "failed"
        original = self.review.copy.original
        self._print(f"Rolled back {format_count(len(recovered.paths), 'path')} in {original}.")
        if not recovered.kept:
            self._facts = {}
            return None
        self._print_kept_paths(recovered.kept)
        return "conflict"

    def _find_conflicts(self, choice: Choice | None = None) -> Sequence[Conflict]:
        """Return the conflicts; none if the original is gone, since a patch can still be saved."""
        paths, hunks = (None, ()) if choice is None else (choice.paths, choice.hunks)
        try:
            with self._show_activity("looking for conflicts"):
                return self.review.conflicts(paths, hunks=hunks)
        except (FileNotFoundError, NotADirectoryError) as error:
            self._print_error(error)
            return ()

    def _resolve_empty(self, action: Action) -> Resolution:
        """End a review without offered changes; withheld changes are not discarded unasked."""
        facts = changes.describe_changes(self.review, ())
        self._print(*changes.withheld_lines(self.review))
        is_empty = all(changes.is_git_index(each.path) for each in self.review.withheld)
        has_applied = bool(self.review.applied)
        if action.kind == "apply" and has_applied:
            self._print(self._nothing_to_apply())
            return Resolution("applied", facts)
        if has_applied:
            self._print("All changes were applied.")
        else:
            self._print("Nothing was changed." if is_empty else "Nothing else was changed.")
        can_reply = self.can_reply and self.is_end and action.kind == "ask"
        if can_reply and can_ask() and not self.is_silent:
            self._reply = self._ask_for_reply()
            if self._reply is not None:
                return Resolution("reply", facts, self._reply)
        is_removed = self.is_end and is_empty and not has_applied and not self.is_kept
        if action.kind == "discard":
            self._discard()
        elif is_removed:
            self._remove_unused()
        elif not is_empty:
            root = display_path(str(self.review.copy.root))
            self._print(f"Changes that are not offered stay in {root}.")
            self._print(f"  {self._command('--discard')}  to remove them")
            return Resolution("kept", facts)
        return Resolution("nothing", facts)

    def _show_changes(self, conflicts: Sequence[Conflict], *, with_diff: bool) -> None:
        self._print(str(self.review.diff))
        # at the end of a run standard output is for the answer, unless a person looks at it
        if with_diff and (is_terminal(sys.stdout) or not self.is_end):
            changes.show_diff(self.review.diff)
        self._print(*changes.withheld_lines(self.review))
        self._print_conflicts(conflicts)

    def _ask(self) -> Outcome:
        """Ask until an action succeeds; without an answer the copy is kept."""
        while True:
            conflicts = self._find_conflicts(self._choice)
            question = wrap_words(", ".join(self._options(conflicts).values()), room=len(": x "))
            try:
                outcome = self._execute_answer(prompt(question), conflicts)
            except click.Abort:
                self._print("")
                return self._keep()
            if outcome is not None and outcome not in _UNRESOLVED:
                return outcome

    def _options(self, conflicts: Sequence[Conflict]) -> dict[str, str]:
        """Return the possible answers, and how the question shows each."""
        left = [each for each in conflicts if not each.can_merge]
        has_repository = is_in_repository(self.review.copy.original)
        chosen = self._part_without(conflicts)
        applied = self.review.applied and self._choice is not None and not chosen
        commit = f"[c]ommit{self._scope(conflicts)}" if chosen else ""
        merge = f"[m]erge{'' if self._choice else ' and apply'}{self._scope(left)}"
        patch = f"save{self._scope(())} as [p]atch"
        options = {
            "apply": f"[a]pply{self._scope(conflicts)}" if chosen else "",
            "merge": merge if len(left) < len(conflicts) else "",
            "some": "[s]ome of it" if self._choice is None else "[s]ome of it, chosen again",
            "commit": ("[c]ommit what was applied" if applied else commit) * has_repository,
            "reply": "[r]eply" if self.can_reply else "",
            "patch": "" if self._choice is not None and not self._choice else patch,
            "view": "[v]iew again",
            "keep": "[k]eep for later",
            "discard": "[d]iscard",
        }
        return {name: text for name, text in options.items() if text}

    def _scope(self, left: Sequence[Conflict]) -> str:
        """Return what an answer is about, if not everything."""
        if self._choice is None:
            return f" all but {len(left)} in conflict" if left else ""
        return " what you chose" + (f" but {len(left)} in conflict" if left else "")

    def _part_without(self, left: Sequence[Conflict]) -> Choice:
        """Return what the user chose, by default everything, without these conflicts."""
        choice = Choice() if self._choice is None else self._choice
        return choice.without(self.review.diff.entries, [each.path for each in left])

    def _execute_answer(self, answer: str, conflicts: Sequence[Conflict]) -> Outcome | None:
        if self.can_reply and len(answer.split()) > 1:  # only a person writes several words
            self._reply = answer
            return "reply"
        options = self._options(conflicts)
        # the beginning of a command is enough; a typo is none, and must not decide
        command = next((name for name in options if name.startswith(answer.lower())), None)
        if command is not None:
            return self._commands(conflicts)[command]()
        letters = [each[0] for each in options]
        reply = ", or your reply in several words" if self.can_reply else ""
        self._print(f"Please answer {', '.join(letters[:-1])} or {letters[-1]}{reply}.")
        return None

    def _commands(self, conflicts: Sequence[Conflict]) -> dict[str, Callable[[], Outcome | None]]:
        """Return what each answer does."""
        left = [each for each in conflicts if not each.can_merge]
        return {
            "apply": lambda: self._apply_chosen(conflicts),
            "merge": lambda: self._apply_chosen(left, merge=True),
            "some": self._choose_some,
            "commit": lambda: self._commit_chosen(conflicts),
            "patch": self._ask_for_patch,
            "view": lambda: changes.show_diff(self.review.diff),
            "keep": self._keep,
            "discard": lambda: self._execute(Action("discard")),
            "reply": self._read_reply,
        }

    def _ask_for_patch(self) -> Outcome:
        name = prompt("Save as", default="wink.patch")
        return self._execute(Action("patch", Path(name).expanduser()), self._choice)

    def _read_reply(self) -> Outcome | None:
        self._reply = read_text("Your reply (empty: none): ") or None
        return None if self._reply is None else "reply"

    def _choose_some(self) -> Outcome | None:
        """Apply what the user chooses; None if something is left to decide about.

        With a conflict in it nothing is applied yet, and the choice stays.
        """
        choice = ask_for_choice(self.review, self._find_conflicts())
        self._choice = self._choice if choice is None else choice
        if not choice:
            self._print("Nothing was chosen.")
            return None
        conflicts = self._find_conflicts(choice)
        if not conflicts:
            return self._apply_chosen(())
        self._print_conflicts(conflicts)
        self._print("Nothing was applied yet; what you chose stays chosen.")
        return None

    def _apply_chosen(self, left: Sequence[Conflict], *, merge: bool = False) -> Outcome | None:
        """Apply all but what is `left`; None if the user decides about the rest."""
        choice = self._part_without(left)
        outcome = self._execute(Action("apply", merge=merge), choice, is_final=self._choice is None)
        if self._choice is None or outcome != "applied-partly":
            return outcome
        self._choice = self._choice.only([each.path for each in left])
        self._print(f"To decide:\n{self.review.diff}")
        return None

    def _commit_chosen(self, left: Sequence[Conflict]) -> Outcome | None:
        """Commit all but what is `left`, which the user has to confirm."""
        self._print(*(f"not in the commit: {each}" for each in left))
        if left and prompt("Commit the rest? [y,n]").lower()[:1] != "y":
            self._print("Nothing was committed.")
            return None
        return self._execute(Action("commit"), self._part_without(left))

    def _ask_for_reply(self) -> str | None:
        """Return what the user tells the model; None if that is nothing."""
        try:
            return read_text("Your reply (empty: end): ") or None
        except click.Abort:
            self._print("")
            return None

    def _execute(
        self, action: Action, choice: Choice | None = None, *, is_final: bool = True
    ) -> Outcome:
        """Carry out an action; after an error, which is printed, the copy stays.

        Unless it `is_final`, the user is asked about the rest.
        """
        try:
            if choice is None:
                choice = select_paths(self.review, action.only, action.skip)
            return self._carry_out(action, choice, is_final=is_final)
        except ConflictError as error:
            self._print_conflicts([each for each in error.conflicts if each not in self._reported])
            self._facts["conflicts"] = changes.describe_conflicts(error.conflicts)
            self._print_kept_paths(error.kept)
            self._print("Nothing was applied.")
            if self._choice is None:  # else the commands would apply what was not chosen
                self._print(*changes.comparison_lines(self.review, error.conflicts))
                options = changes.conflict_commands(self.review, error.conflicts, action.kind)
                self._print_commands(options)
            return "conflict"
        except (WinkError, OSError, ValueError) as error:
            self._print_error(error)
            return "failed"
        except KeyboardInterrupt as error:
            self._print_notes(error)
            raise

    def _carry_out(self, action: Action, choice: Choice, *, is_final: bool) -> Outcome:
        match action.kind:
            case "apply":
                return self._apply(choice, merge=action.merge, is_final=is_final)
            case "commit":
                return self._commit(choice, merge=action.merge)
            case "branch":
                return self._commit_to_branch(action.branch, choice)
            case "patch":
                return self._save_patch(action.patch, choice)
            case "discard":
                note = self._untouched_note()
                self._discard()
                self._print(f"Discarded{note}.")
                return "discarded"
            case _:
                return self._keep()

    def _apply(self, choice: Choice, *, merge: bool, is_final: bool) -> Outcome:
        if not choice:
            self._print("All changes are in conflict; nothing was applied.")
            return "conflict"
        paths = None if choice.paths is None else list(choice.paths)
        with self._show_activity("applying the changes"):
            applied = self.review.apply(paths, hunks=choice.hunks, merge=merge)
        self._print_apply_result(applied)
        return self._finish_apply("applied", "applied-partly", is_final=is_final)

    def _finish_apply(self, done: Outcome, partly: Outcome, *, is_final: bool = True) -> Outcome:
        """Return the outcome of an apply, after the message about what is left."""
        if not self.review.diff:
            return done
        if is_final:
            files = [each for each in self.review.diff.entries if not each.is_directory]
            names = ", ".join(display_path(each.path) for each in files[:_MAX_NAMED])
            more = ", ..." if len(files) > _MAX_NAMED else ""
            self._keep(f"The rest is kept: {names}{more}.")
        return partly

    def _commit(self, choice: Choice, *, merge: bool) -> Outcome:
        """Apply changes and commit them on the current branch."""
        message = changes.commit_message(self.review)
        with self._show_activity("committing the changes"):
            made = commit_changes(
                self.review, message, paths=choice.paths, hunks=choice.hunks, merge=merge
            )
        if made.applied is not None:
            self._print_apply_result(made.applied)
        self._print_commit(made, is_new_branch=False)
        return self._finish_apply("committed", "committed-partly")

    def _commit_to_branch(self, name: str | None, choice: Choice) -> Outcome:
        """Commit changes on a new branch; the copy is removed if the branch has everything."""
        assert name is not None
        message = changes.commit_message(self.review)
        made = commit_to_branch(self.review, name, message, paths=choice.paths, hunks=choice.hunks)
        self._print_commit(made, is_new_branch=True)
        if not made.commit:
            self.wanted = None  # it would be the same again
            return self._keep()
        if made.left_out or choice.paths is not None or self.review.applied:
            self._keep("The copy is kept.")
            return "branched-partly"
        self._remove_unused()
        return "branched"

    def _print_commit(self, made: Committed, *, is_new_branch: bool) -> None:
        self._facts |= changes.describe_commit(made)
        self._print(*changes.commit_lines(made, is_new_branch=is_new_branch))

    def _print_apply_result(self, applied: Applied) -> None:
        self._facts["applied"] = list(applied.paths)
        self._facts["merged"] = list(applied.merged)
        if applied.paths:
            original = display_path(str(self.review.copy.original))
            self._print(f"Applied to {original}: {changes.describe_applied(applied)}.")
        else:
            self._print(self._nothing_to_apply())
        self._print(*(f"merged: {display_path(path)}" for path in applied.merged))
        self._print_kept_paths(applied.kept)
        self._print(f"To undo: {self._command('--undo')}  (--discard removes the copy)")

    def _nothing_to_apply(self) -> str:
        original = display_path(str(self.review.copy.original))
        return f"Nothing to apply: {original} already has all the changes."

    def _save_patch(self, patch: Path | None, choice: Choice) -> Outcome:
        assert patch is not None
        if patch == STANDARD_OUTPUT:
            changes.print_patch(self.review, choice)
        else:
            with self._show_activity("writing the patch"):
                command = changes.write_patch(self.review, patch, choice)
            self._print(f"Patch saved; to apply it: {command}")
        if choice.paths is not None:
            self._keep("The copy is kept, because the patch has only a part of the changes.")
            return "patched-partly"
        omitted = list(changes.omission_lines(self.review))
        if not omitted:
            self._remove_unused()
            return "patched"
        self._print(*omitted)
        self._keep("The copy is kept, because the patch leaves something out.")
        return "patched-partly"

    def _discard(self, *, if_unused: bool = False) -> None:
        with self._show_activity("removing the working copy"):
            self.review.discard(if_unused=if_unused)

    def _remove_unused(self) -> None:
        """Remove a copy that is no longer needed, unless somebody works in it."""
        try:
            self._discard(if_unused=True)
        except CopyInUseError as error:
            self._print(f"The working copy is kept: {error}.")
            self._print(f"  {self._command('--discard')}  to remove it")

    def _show_activity(self, activity: str) -> AbstractContextManager[None]:
        return show_activity(activity, is_hidden=self.is_silent)

    def _untouched_note(self) -> str:
        """Return what is certain about the original: right after a run it is unchanged."""
        if self.review.applied:
            return "; what was applied stays"
        return "; the original is unchanged" if self.is_end else ""

    def _keep(self, sentence: str | None = None) -> Outcome:
        again: dict[str, str] = {}
        if sentence is None:
            if self.wanted is not None and self.wanted.kind in _COMMITS:
                again[self.wanted.options] = "to commit them"
            root = display_path(str(self.review.copy.root))
            sentence = f"The changes are kept in {root}{self._untouched_note()}."
        self._print(sentence)
        self._print_commands(
            {
                **again,
                "--apply": "to apply them",
                "--patch FILE": "to save them as a patch",
                "--discard": "to remove them",
            }
        )
        return "kept"

    def _print_commands(self, commands: dict[str, str]) -> None:
        self._print(*(f"  {self._command(option)}  {use}" for option, use in commands.items()))

    def _command(self, option: str) -> str:
        return f"wink review {shlex.quote(place_id(self.review.copy.place))} {option}"

    def _print_conflicts(self, conflicts: Sequence[Conflict]) -> None:
        self._reported |= frozenset(conflicts)
        self._print(*(f"conflict: {each}" for each in conflicts))

    def _print_kept_paths(self, kept: Sequence[Kept]) -> None:
        if kept:
            self._facts["kept"] = changes.describe_kept_paths(kept)
        self._print(*(f"kept: {each}" for each in kept))

    def _print_error(self, error: BaseException) -> None:
        self._print(f"wink: {describe_error(error)}")
        self._print_notes(error)

    def _print_notes(self, error: BaseException) -> None:
        """Print what a rollback left alone; the error itself does not say it."""
        self._print(*(f"kept: {note}" for note in getattr(error, "__notes__", ())))

    def _print(self, *lines: str) -> None:
        if not self.is_silent:
            for line in lines:
                echo(line)
