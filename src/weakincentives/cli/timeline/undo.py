"""`wink undo`: undo one step of a run in its working copy; later steps are kept."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from weakincentives.cli import runs
from weakincentives.cli.activity import show_activity
from weakincentives.cli.run.action import EXIT_CONFLICT
from weakincentives.cli.run.workspace import compare_copy, without_parents
from weakincentives.cli.state import exclusive_lock
from weakincentives.cli.steps import (
    BY_USER,
    copies_by_step,
    find_head,
    open_timeline,
    require_step,
    split_arguments,
)
from weakincentives.cli.terminal import echo, shorten
from weakincentives.contrib.review import CopyError, WorkingCopy, open_copy, open_files, read_record
from weakincentives.errors import StaleRestoreError
from weakincentives.filesystem import Diff, HostFilesystem, ReproducibleFiles, diff
from weakincentives.filesystem.base import is_tool_output
from weakincentives.filesystem.host import SnapshotFilesystem, entry_state
from weakincentives.posix import display_path, display_paths, parents_of
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import SessionRecorder, Timeline

_MAX_TITLE = 60


def undo(*, words: tuple[str, ...], only: tuple[str, ...], as_json: bool) -> None:
    """Undo a step of a run in its working copy; later steps are kept."""
    run, steps = split_arguments(words, most=1, command="undo")
    found = runs.find_run(run, "steps")
    with open_timeline(found) as timeline:
        number = require_step(steps, timeline)
        if found.place is None:
            raise click.ClickException(
                f"Only a run with a working copy can be undone: {str(found.steps)!r}; wink restore"
                " writes the files of any step"
            )
        directory = runs.run_directory(found.place)
        with exclusive_lock(directory):
            timeline.refresh()
            head = find_head(found, timeline, number)
            copy = _open_copy(directory / (copies_by_step(timeline)[head] or "."), found.name)
            with open_files(copy) as files, show_activity("restoring the files", is_hidden=as_json):
                change = _StepUndo(copy, files, timeline, number, head)
                paths, stale, step = change.run(only)
        authors = {path: change.find_author(path) for path in stale}
    shown = without_parents(paths)
    if as_json:
        facts = [{"path": path, "changed_by": text} for path, (_, text) in authors.items()]
        data = {"run": found.name, "step": number, "undo": step, "conflicts": facts}
        click.echo(json.dumps({**data, "paths": [] if stale else shown}))
    elif not stale:
        title = shorten(timeline.step(number).title, _MAX_TITLE)
        echo(f"Undid step {number} ({title}). Restored: {display_paths(shown)}")
        echo(f"  wink undo {shlex.quote(found.name)} {step}  to redo it")
    else:
        _print_conflicts(f"wink undo {shlex.quote(found.name)}", number, authors, shown)
    if stale:
        raise click.exceptions.Exit(EXIT_CONFLICT)


def _open_copy(place: Path, name: str) -> WorkingCopy:
    try:
        return open_copy(place)
    except CopyError as error:
        raise click.ClickException(
            f"{error}; wink resume {name} continues the run in a new copy, and wink restore"
            " writes the files of any step"
        ) from error


@dataclass(slots=True)
class _StepUndo:
    """The undo of one step in a working copy; `head` is the last step in it."""

    copy: WorkingCopy
    files: HostFilesystem
    timeline: Timeline
    number: int
    head: int

    def run(self, only: Sequence[str]) -> tuple[set[str], Sequence[str], int | None]:
        """Undo the changes of the step at and below `only`, unless something was changed since.

        Return their paths, those that were changed since, and the step of the undo.
        """
        before, after = self._find_states()
        paths = self._select(diff(before, after, renames=False), only)
        now = compare_copy(
            self.files, self.timeline.files(self.head), self.timeline.entries(self.head)
        )
        here = self.files.view(now.snapshot)
        if all(entry_state(here, path) == entry_state(before, path) for path in paths):
            raise click.ClickException(
                f"Nothing is left to undo of step {self.number}; wink log shows the steps"
            )
        if now.edited and paths.isdisjoint(now.edited):  # not part of the undo, nor of its undo
            self.head = self._record("changed by you")
        try:
            self.files.restore(before, expect=after, paths=sorted(paths))
        except StaleRestoreError as error:
            return paths, error.paths, None
        runs.update_run(self.copy.place, changes=None)
        return paths, (), self._record(f"undo of step {self.number}", self.number)

    def find_author(self, path: str) -> tuple[int | None, str]:
        """Return the step that changed a path since, if it was one; and who did, in words.

        The first that left it as it is: an undo and what it undid would take turns forever.
        """
        steps = [each for each in self.timeline.ancestors(self.head) if each > self.number]
        steps = [
            each for each in steps if path in map(display_path, self.timeline.step(each).paths)
        ]
        states = [entry_state(self.timeline.files(each), path) for each in steps]
        if not steps:
            return None, "you, outside of the steps"
        number = steps[states.index(states[-1])]
        return number, f"step {number} ({shorten(self.timeline.step(number).title, _MAX_TITLE)})"

    def _find_states(self) -> tuple[SnapshotFilesystem, SnapshotFilesystem]:
        """Return the files before the step and after it."""
        displaced = read_record(self.copy.place).displaced
        if self.number in displaced:  # the step is a rollback
            before, after = displaced[self.number]
            return self.files.view(before), self.files.view(after)
        parent = self.timeline.step(self.number).parent
        if parent is None:
            raise click.ClickException(f"Step {self.number} is the start of the run")
        return self.timeline.files(parent), self.timeline.files(self.number)

    def _select(self, changes: Diff, only: Sequence[str]) -> set[str]:
        paths = {each.path for each in changes.entries if not is_tool_output(each.path)}
        if not paths:
            raise click.ClickException(
                f"Step {self.number} changed no files; wink log shows those of each step"
            )
        places = {each.strip("/").removeprefix("./") for each in only} or {""}
        above = {path: {"", path, *parents_of(path)} for path in paths}
        for place in places.difference(*above.values()):
            raise click.ClickException(
                f"Nothing was changed at {display_path(place) or '.'!r} in step {self.number};"
                f" it changed {display_paths(without_parents(paths))}"
            )
        return {path for path in paths if above[path] & places}

    def _record(self, title: str, undoes: int | None = None) -> int:
        session = Session()
        if not self.timeline.find_lost(self.head):
            session = self.timeline.session(self.head, unknown="data")
        recorder = SessionRecorder(
            session,
            self.timeline.path,
            self.files,
            at=self.head,
            title=title,
            details={BY_USER: True},
            undoes=undoes,
            leave_out=ReproducibleFiles(self.files),
        )
        recorder.close()
        self.timeline.refresh()
        return recorder.last


def _print_conflicts(
    command: str,
    number: int,
    authors: Mapping[str, tuple[int | None, str]],
    paths: Sequence[str],
) -> None:
    echo(f"Nothing was undone: files are not as step {number} left them.")
    for path, (_, author) in authors.items():
        echo(f"  {path} was changed by {author}")
    for step in sorted({each for each, _ in authors.values() if each is not None}, reverse=True):
        echo(f"  {command} {step}  to undo that first")
    left = sorted(set(paths) - authors.keys())
    if left:
        options = " ".join(f"--only {shlex.quote(path)}" for path in left)
        echo(f"  {command} {number} {options}  to undo the rest")
