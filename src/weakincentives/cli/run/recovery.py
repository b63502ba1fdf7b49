"""The copy of an earlier round: what differs from its last step, by whichever author.

The journal of the filesystem rolls back a file call that a kill interrupted. A command has no
known author: what differs may be its half-done work or a save of the user, so that it stays and
is named.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from weakincentives.filesystem import FilesystemSnapshot, HostFilesystem, ReadableFilesystem, diff
from weakincentives.filesystem.base import is_tool_output
from weakincentives.filesystem.reproducible import ReproducibleFiles, SourceFilesystem, is_cache
from weakincentives.posix import display_paths, parents_of


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
        return f"{fact} {display_paths(self.edited)}. Read them again before you rely on them."


def compare_copy(
    files: HostFilesystem,
    last: ReadableFilesystem,
    recorded: Iterable[str] | None = None,
    *,
    was_in_call: bool = False,
) -> CopyState:
    """Return the state of a copy, compared with an earlier one.

    Args:
        files: The files of the copy.
        last: The earlier state.
        recorded: The paths of a step; reproducible files that are not among them are left out.
        was_in_call: Whether the run was killed during a tool call.
    """
    snapshot = files.snapshot(tag="round began")
    now: ReadableFilesystem = files.view(snapshot)
    if recorded is not None:
        reproducible = ReproducibleFiles(files)
        for path in recorded:
            reproducible.keep(path)
        now = SourceFilesystem(now, reproducible)
    changes = diff(last, now, renames=False).entries
    return CopyState(snapshot, without_parents(each.path for each in changes), was_in_call)


def changed_paths(before: ReadableFilesystem, after: ReadableFilesystem) -> tuple[str, ...]:
    """Return what differs between two states of a copy, except for the output of tools."""
    found = (each.path for each in diff(before, after, renames=False).entries)
    return without_parents(each for each in found if not (is_tool_output(each) or is_cache(each)))


def without_parents(paths: Iterable[str]) -> tuple[str, ...]:
    """Return paths, sorted, without directories above others, which say nothing more."""
    found = set(paths)
    return tuple(sorted(found - {parent for each in found for parent in parents_of(each)}))
