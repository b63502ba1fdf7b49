"""The copy of an earlier round: what differs from its last step, by whichever author.

The journal of the filesystem rolls back a file call that a kill interrupted. A command has no
known author: what differs may be its half-done work or a save of the user, so that it stays and
is named.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weakincentives.cli.units import format_count
from weakincentives.contrib.review import WorkingCopy
from weakincentives.contrib.review.records import open_files
from weakincentives.contrib.review.recovery import open_original, recover_all
from weakincentives.filesystem import Change, FilesystemSnapshot, ReadableFilesystem, diff
from weakincentives.filesystem.derived import DerivedFiles, SourceFilesystem
from weakincentives.posix import display_path, parents_of

_MAX_NAMES = 20


@dataclass(frozen=True, slots=True)
class CopyState:
    """The copy when a round begins, and the paths that changed since the last one, sorted."""

    snapshot: FilesystemSnapshot
    edited: tuple[str, ...] = ()
    was_in_call: bool = False
    """Whether the run was killed during a call."""

    @property
    def author(self) -> str:
        """Who changed the paths, for the user."""
        return "by the interrupted call, or by you" if self.was_in_call else "by you"

    @property
    def note(self) -> str:
        """What the model is told; empty without changes."""
        if not self.edited:
            return ""
        fact = "The user changed these files since your last step:"
        if self.was_in_call:
            fact = "Your last call was interrupted; it or the user changed these files, which may"
            fact += " be half done:"
        return f"{fact} {list_names(self.edited)}. Read them again before you rely on them."


def list_names(paths: Sequence[str]) -> str:
    """Return the first paths in a line, and how many more there are."""
    more = len(paths) - _MAX_NAMES
    names = ", ".join(map(display_path, paths[:_MAX_NAMES]))
    return names if more <= 0 else f"{names} and {format_count(more, 'other')}"


def recover_undo(copy: WorkingCopy) -> None:
    """Roll back an undo of a step that was killed half-way in the copy."""
    with open_original(copy.root) as workspace:
        recover_all(workspace, copy.root, copy.place, lambda _, __: None)


def find_edits(copy: WorkingCopy, seen: FilesystemSnapshot) -> CopyState:
    """Return the state of a copy, compared with the one that the user has seen."""
    with open_files(copy) as files:
        now = files.snapshot(tag="round began")
        changes = diff(files.view(seen), files.view(now), renames=False).entries
        return CopyState(now, changed_paths(changes))


def compare_with_step(
    copy: WorkingCopy, last: ReadableFilesystem, recorded: Iterable[str], *, was_in_call: bool
) -> CopyState:
    """Return the state of a copy, compared with the files of its last step.

    Derived files that are not recorded are left out.

    Args:
        copy: The copy of a run that has ended; it is locked.
        last: The files of the last step.
        recorded: Their paths.
        was_in_call: Whether the run was killed during a tool call.
    """
    recover_undo(copy)
    with open_files(copy) as files:  # this rolls back a file call that was interrupted
        derived = DerivedFiles(files)
        for path in recorded:
            derived.keep(path)
        changes = diff(last, SourceFilesystem(files, derived), renames=False).entries
        snapshot = files.snapshot(tag="round began")
        return CopyState(snapshot, changed_paths(changes), was_in_call)


def changed_paths(changes: Sequence[Change]) -> tuple[str, ...]:
    """Return the changed paths; not directories above them, which say nothing more."""
    above = {parent for each in changes for parent in parents_of(each.path)}
    return tuple(sorted({each.path for each in changes} - above))
