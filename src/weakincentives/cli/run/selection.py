"""Some of the changes of a run: by the options `--only` and `--skip`, or by questions.

A question is about what was typed after it was shown. Those about changes are those of
`git add --patch`: one for each hunk of a modified text file, and one for anything else.
"""

import os
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from weakincentives.cli.run.diff_view import show_diff, show_hunk
from weakincentives.cli.signals import TerminatedError
from weakincentives.cli.terminal import discard_typeahead, echo, read_line, read_pasted_lines
from weakincentives.contrib.review import Hunk, Review
from weakincentives.filesystem import Change
from weakincentives.posix import display_path, parents_of


def prompt(question: str, *, default: str = "") -> str:
    """Return an answer typed after the question was shown; Abort if there is none."""
    hint = f" [{default}]" if default else ""
    while True:
        if answer := read_text(f"{question}{hint}: ") or default:
            return answer


def wrap_options(options: Iterable[str]) -> str:
    """Return the options as lines that end between words, with room for an answer."""
    width = max(20, shutil.get_terminal_size().columns - len(": x "))
    return textwrap.fill(", ".join(options), width, break_long_words=False, break_on_hyphens=False)


def find_command(answer: str, names: Iterable[str]) -> str | None:
    """Return the command that an answer is, or begins; a typo is none, and must not decide."""
    return next((name for name in names if name.startswith(answer.lower())), None)


def read_text(question: str) -> str:
    """Return what is typed after the question was shown, and what was pasted with its words.

    Raises:
        Abort: The input has ended, or Ctrl-C was pressed.
    """
    discard_typeahead()
    try:
        echo(question, newline=False)  # here: somebody may press Ctrl-C as soon as it is shown
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


_HELP = {
    "y": "apply this",
    "n": "do not apply this",
    "a": "apply this and the rest of the file",
    "d": "do not apply this or the rest of the file",
    "s": "split this hunk into smaller ones",
    "q": "choose no more: neither this nor anything after it",
    "?": "print this help",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """The changes to apply: paths, all if None, and hunks of other files."""

    paths: tuple[str, ...] | None = None
    hunks: tuple[Hunk, ...] = ()

    def __bool__(self) -> bool:
        """Return whether anything is chosen."""
        return self.paths is None or bool(self.paths or self.hunks)


def select_paths(review: Review, only: Sequence[str], skip: Sequence[str]) -> Choice:
    """Return the changes that the options choose.

    Raises:
        ValueError: Nothing was changed at one of the paths.
    """
    entries = review.diff.entries
    paths = [path for each in entries for path in _names(each)]
    wanted = [_find_name(each, review.copy.original, paths) for each in only]
    unwanted = [_find_name(each, review.copy.original, paths) for each in skip]
    if not unwanted:
        return Choice(tuple(wanted) if wanted else None)
    chosen = [
        each
        for each in entries
        if not wanted or any(_is_within(path, name) for path in _names(each) for name in wanted)
    ]
    return Choice(exclude_paths(chosen, unwanted))


def exclude_paths(changes: Sequence[Change], excluded: Sequence[str]) -> tuple[str, ...]:
    """Return the changed paths without the excluded ones, those below, and those above."""
    return tuple(
        sorted(
            path
            for each in changes
            if not any(_is_within(one, name) for one in _names(each) for name in excluded)
            for path in _names(each)
            if not any(_is_within(name, path) for name in excluded)
        )
    )


def ask_for_choice(review: Review) -> Choice:
    """Ask about each change; a hunk at a time where a file has hunks."""
    chooser = _Chooser(review)
    chooser.run()
    return Choice(tuple(chooser.paths), tuple(chooser.hunks))


class _Chooser:
    def __init__(self, review: Review) -> None:
        self._review = review
        self._units = list(_units(review.diff.entries))
        self.paths: list[str] = []
        self.hunks: list[Hunk] = []

    def run(self) -> None:
        """Ask about every change until the user has enough; then add whole directories."""
        for number, change in enumerate(self._units, start=1):
            hunks = self._review.hunks(change.path)
            place = f"{number} of {len(self._units)}"
            is_ended = self._ask_hunks(hunks, place) if hunks else self._ask_whole(change, place)
            if is_ended:
                break
        self._add_directories()

    def _ask_whole(self, change: Change, place: str) -> bool:
        """Ask about a change that has no hunks; return whether the user has enough."""
        show_diff(self._review.diff.only(lambda each: each == change), with_pager=False)
        answer = _ask(f"{place}: apply {change}?", "ynq")
        if answer == "y":
            self.paths.append(change.path)
        return answer == "q"

    def _ask_hunks(self, hunks: Sequence[Hunk], place: str) -> bool:
        """Ask about the hunks of a file; return whether the user has enough."""
        path, chosen, pending = hunks[0].path, list[Hunk](), list(hunks)
        answer = ""
        count = 0
        while pending and answer not in {"a", "d", "q"}:
            count += 1
            parts = self._review.split(pending[0])
            show_hunk(pending[0].path, pending[0].content)
            keys = "ynadsq" if len(parts) > 1 else "ynadq"
            number = f"hunk {count} of {count + len(pending) - 1}"
            answer = _ask(f"{place}, {number}: apply this to {display_path(path)}?", keys)
            match answer:
                case "s":
                    pending[:1] = parts
                    count -= 1
                case "a":
                    chosen += pending
                case _:
                    chosen += pending[:1] if answer == "y" else ()
                    del pending[0]
        if sum(len(each.blocks) for each in chosen) == sum(len(each.blocks) for each in hunks):
            self.paths.append(path)  # with its permissions
        else:
            self.hunks += chosen
        return answer == "q"

    def _add_directories(self) -> None:
        """Add the directories below which every change is chosen."""
        chosen = set(self.paths)
        asked = {each.path for each in self._units}
        for each in self._review.diff.entries:
            below = [path for path in asked if path.startswith(f"{each.path}/")]
            if each.path not in asked and each.is_directory and below and chosen.issuperset(below):
                self.paths.append(each.path)


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
        if any(_is_within(each, found) for each in paths):
            return found
    raise ValueError(f"Nothing was changed at {display_path(argument)!r}")


def _is_within(path: str, place: str) -> bool:
    return not place or f"{path}/".startswith(f"{place}/")


def _names(change: Change) -> tuple[str, ...]:
    return (change.path,) if change.source is None else (change.path, change.source)
