"""Some of the changes of a run: by the options `--only` and `--skip`, or by questions.

The questions are those of `git add --patch`: one for each hunk of a modified text file, and one for
anything else.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import click

from weakincentives.cli.answers import prompt
from weakincentives.cli.run.changes import Choice, is_within, names_of, show_diff, show_hunk
from weakincentives.cli.terminal import echo
from weakincentives.contrib.review import Conflict, Hunk, Review
from weakincentives.filesystem import Change
from weakincentives.posix import display_path, parents_of

_HELP = {
    "y": "apply this",
    "n": "do not apply this",
    "a": "apply this and the rest of the file",
    "d": "do not apply this or the rest of the file",
    "s": "split this hunk into smaller ones",
    "e": "edit this hunk, then apply it",
    "b": "go back to the question before",
    "q": "choose no more: neither this nor anything after it",
    "?": "print this help",
}
_EDIT_HELP = b"""\
# To drop a removal, replace its - by a space. To drop an addition, delete its line.
# Lines that begin with # are ignored. A hunk without any change is not applied.
"""


def select_paths(review: Review, only: Sequence[str], skip: Sequence[str]) -> Choice:
    """Return the changes that the options choose.

    Raises:
        ValueError: Nothing was changed at one of the paths.
    """
    entries = review.diff.entries
    paths = [path for each in entries for path in names_of(each)]
    wanted = [_find_name(each, review.copy.original, paths) for each in only]
    unwanted = [_find_name(each, review.copy.original, paths) for each in skip]
    return Choice(tuple(wanted) if wanted else None).without(entries, unwanted)


def ask_for_choice(review: Review, conflicts: Sequence[Conflict]) -> Choice | None:
    """Ask about each change, a hunk at a time where a file has hunks; None if nothing is decided.

    The `conflicts` are shown above the questions that they concern.
    """
    chooser = _Chooser(review, {each.path: each for each in conflicts})
    chooser.run()
    return chooser.choice()


@dataclass(slots=True)
class _Question:
    """Whether to apply a change, or a hunk of it."""

    change: Change
    hunk: Hunk | None = None
    answer: bool | None = None


class _Chooser:
    """The questions so far, and their answers, which can be changed."""

    def __init__(self, review: Review, conflicts: Mapping[str, Conflict]) -> None:
        self._review = review
        self._conflicts = conflicts
        self._units = list(_units(review.diff.entries))
        self._questions: list[list[_Question]] = []  # of each unit that was reached

    def run(self) -> None:
        """Ask about every change until the user has enough."""
        unit, at = 0, 0
        while 0 <= unit < len(self._units):
            if unit == len(self._questions):
                change = self._units[unit]
                hunks = self._review.hunks(change.path) or (None,)
                self._questions.append([_Question(change, each) for each in hunks])
            asked = self._questions[unit]
            at = self._ask(unit, at % len(asked))
            if at < 0:  # back to the last question of the change before
                unit -= 1
            elif at == len(asked):
                unit, at = unit + 1, 0

    def choice(self) -> Choice | None:
        """Return what is chosen; None if no question was answered."""
        if all(each.answer is None for asked in self._questions for each in asked):
            return None
        paths, hunks = list[str](), list[Hunk]()
        for asked in self._questions:
            chosen = [each.hunk for each in asked if each.answer and each.hunk is not None]
            is_edited = any(each.replacement is not None for each in chosen)
            if all(each.answer for each in asked) and not is_edited:
                paths.append(asked[0].change.path)  # with its permissions
            else:
                hunks += chosen
        return Choice((*paths, *self._find_directories(set(paths))), tuple(hunks))

    def _ask(self, unit: int, at: int) -> int:
        """Ask about a hunk, or a change without any; return the index of the next question."""
        asked = self._questions[unit]
        question = asked[at]
        parts = self._show(question)
        keys = "yn"
        if question.hunk is not None:
            keys += "ads" if len(parts) > 1 else "ad"
            keys += "e"
        match _ask(self._describe(unit, at), keys + ("b" if unit or at else "") + "q"):
            case "y" | "n" as key:
                question.answer = key == "y"
            case "a" | "d" as key:
                for each in asked[at:]:
                    each.answer = key == "a"
                return len(asked)
            case "s":
                asked[at : at + 1] = [_Question(question.change, each) for each in parts]
                return at
            case "e":
                return at + self._edit(question)
            case "b":
                return at - 1
            case _:
                self._end(unit, at)
                return len(asked)
        return at + 1

    def _show(self, question: _Question) -> Sequence[Hunk]:
        """Show what a question is about; return the parts that it can be split into."""
        change, hunk = question.change, question.hunk
        if hunk is None:
            show_diff(self._review.diff.only(lambda each: each == change), with_pager=False)
        else:
            show_hunk(hunk.path, hunk.content)
        for name in names_of(change):
            if name in self._conflicts:
                echo(f"conflict: {self._conflicts[name]}")
        return () if hunk is None or hunk.replacement is not None else self._review.split(hunk)

    def _describe(self, unit: int, at: int) -> str:
        asked = self._questions[unit]
        place, change = f"{unit + 1} of {len(self._units)}", asked[at].change
        if asked[at].hunk is None:
            return f"{place}: apply {change}?"
        number = f"hunk {at + 1} of {len(asked)}"
        return f"{place}, {number}: apply this to {display_path(change.path)}?"

    def _edit(self, question: _Question) -> bool:
        """Let the user edit a hunk; return whether it is decided."""
        assert question.hunk is not None
        try:
            text = click.edit(question.hunk.content + _EDIT_HELP, extension=".diff")
            if text is None:
                echo("The hunk was not changed.")
                return False
            edited = self._review.edit(question.hunk, bytes(text))
        except (ValueError, click.ClickException) as error:
            echo(f"wink: {error}")
            return False
        question.hunk = edited or question.hunk
        question.answer = edited is not None
        return True

    def _end(self, unit: int, at: int) -> None:
        """Choose no more; before the first answer nothing is decided."""
        rest = [*self._questions[unit][at:], *chain(*self._questions[unit + 1 :])]
        if (unit, at) != (0, 0) or any(each.answer is not None for each in rest):
            for each in rest:
                each.answer = False
        del self._units[unit + 1 :]

    def _find_directories(self, chosen: set[str]) -> Iterator[str]:
        """Yield the directories below which every change is chosen."""
        asked = {each.path for each in _units(self._review.diff.entries)}
        for each in self._review.diff.entries:
            below = [path for path in asked if path.startswith(f"{each.path}/")]
            if each.path not in asked and each.is_directory and below and chosen.issuperset(below):
                yield each.path


def _units(changes: Sequence[Change]) -> Iterator[Change]:
    """Yield what is asked about: no directory with changes in it, nothing in what became a file."""
    above = {parent for each in changes for parent in parents_of(each.path)}
    replaced = {each.path for each in changes if each.type_changed}
    for each in changes:
        has_changes_inside = each.is_directory and each.path in above
        if not has_changes_inside and replaced.isdisjoint(parents_of(each.path)):
            yield each


def _ask(question: str, keys: str) -> str:
    """Ask until one of `keys` is the answer."""
    names = [*keys, "?"]
    while True:
        answer = prompt(f"{question} [{','.join(names)}]").lower()[:1]
        if answer in keys:
            return answer
        for name in names:
            echo(f"  {name} - {_HELP[name]}")


def _find_name(argument: str, original: Path, paths: Sequence[str]) -> str:
    """Return the name in the review that the user means.

    It is relative to the workspace, or else to the current directory; it may be absolute.
    """
    absolute = os.path.abspath(argument)  # noqa: PTH100 # links in it are names of the review
    for path in (argument, os.path.relpath(absolute, original)):
        name = os.path.normpath(path)
        found = "" if name == "." else name
        if any(is_within(each, found) for each in paths):
            return found
    raise ValueError(f"Nothing was changed at {display_path(argument)!r}")
