"""The copy of an earlier round: undo the call that a kill interrupted, find what the user edited.

A tool call is kept or undone as a whole. After `kill -9` in the middle of a call, the files of the
copy differ from the last recorded step. What differs is undone, except what was changed after the
run had died: the run sets the date of a file every second, so that this can be told.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from weakincentives.cli.background import run_beside
from weakincentives.cli.units import format_count
from weakincentives.contrib.review import WorkingCopy
from weakincentives.contrib.review.copy import write_changes
from weakincentives.contrib.review.records import open_files
from weakincentives.filesystem import (
    Change,
    FilesystemSnapshot,
    ReadableFilesystem,
    diff,
)
from weakincentives.filesystem.derived import DerivedFiles, SourceFilesystem
from weakincentives.posix import display_path, parents_of

_HEARTBEAT = "heartbeat"  # in the place of a working copy
_INTERVAL = 1.0  # seconds
_MARGIN = 2.0  # seconds: the last beat may be this old when a run dies
_MAX_NAMES = 20


@dataclass(frozen=True, slots=True)
class CopyState:
    """The copy when a round begins, and what changed in it since the last one.

    Args:
        snapshot: The state of the files.
        edited: The paths that were changed since the last step, sorted.
        undone: The paths that an interrupted call had changed, sorted.
    """

    snapshot: FilesystemSnapshot
    edited: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """What the model is told; empty if there is nothing to tell."""
        if not self.edited:
            return ""
        return (
            f"Since your last step, these paths were changed by somebody else:"
            f" {list_names(self.edited)}. Read them again before you rely on them."
        )


def list_names(paths: Sequence[str]) -> str:
    """Return the first paths in a line, and how many more there are."""
    more = len(paths) - _MAX_NAMES
    names = ", ".join(map(display_path, paths[:_MAX_NAMES]))
    return names if more <= 0 else f"{names} and {format_count(more, 'other')}"


def keep_heartbeat(place: Path) -> AbstractContextManager[None]:
    """Set the date of a file in the place of a copy every second while a round runs."""
    path = place / _HEARTBEAT

    def beat(stopped: Event) -> None:
        while True:
            with suppress(OSError):  # a full disk must not end the run
                path.touch(0o600)
            if stopped.wait(_INTERVAL):
                return

    return run_beside(beat, "wink-heartbeat")


def find_edits(copy: WorkingCopy, seen: FilesystemSnapshot) -> CopyState:
    """Return the state of a copy, compared with the one that the user has seen."""
    with open_files(copy) as files:
        now = files.snapshot(tag="round began")
        changes = diff(files.view(seen), files.view(now), renames=False).entries
        return CopyState(now, _paths(changes))


def recover_copy(
    copy: WorkingCopy, last: ReadableFilesystem, recorded: Iterable[str], *, was_in_call: bool
) -> CopyState:
    """Compare a copy with the files of its last step, and undo an interrupted call.

    Derived files that are not recorded are left alone.

    Args:
        copy: The copy of a run that has ended; it is locked.
        last: The files of the last step.
        recorded: Their paths.
        was_in_call: Whether the run died during a tool call.
    """
    with open_files(copy) as files:  # this rolls back what was in the journal
        derived = DerivedFiles(files)
        for path in recorded:
            derived.keep(path)
        sources = SourceFilesystem(files, derived)
        found = diff(last, sources, renames=False).entries
        changes = [each for each in found if not _is_special(each)]
        edited = _edited_paths(copy, changes) if was_in_call else {each.path for each in changes}
        above = {parent for path in edited for parent in parents_of(path)}
        undone = {each.path for each in changes} - edited - above
        if undone:
            files.snapshot(tag="interrupted call")  # nothing is lost, whoever wrote it
            write_changes(sources, last, files, undone.__contains__)
        return CopyState(
            files.snapshot(tag="round began"),
            _paths([each for each in changes if each.path in edited]),
            _paths([each for each in changes if each.path in undone]),
        )


def _is_special(change: Change) -> bool:
    """Return whether it is about a pipe or the like, which is not restored."""
    return any(
        each is not None and each.kind == "special" for each in (change.before, change.after)
    )


def _paths(changes: Sequence[Change]) -> tuple[str, ...]:
    """Return the changed paths; not directories above them, which say nothing more."""
    above = {parent for each in changes for parent in parents_of(each.path)}
    return tuple(sorted({each.path for each in changes} - above))


def _edited_paths(copy: WorkingCopy, changes: Sequence[Change]) -> set[str]:
    """Return the paths that were changed after the run had died."""
    try:
        end = (copy.place / _HEARTBEAT).stat().st_mtime + _MARGIN
    except OSError:
        return set()
    return {each.path for each in changes if _changed_at(copy.root, each.path) > end}


def _changed_at(root: Path, path: str) -> float:
    """Return when a path changed; of one that is gone, when its directory did."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return (root / path).lstat().st_ctime
    with suppress(OSError):
        return os.lstat(root / os.path.dirname(path)).st_ctime  # noqa: PTH120 # a workspace path
    return 0
