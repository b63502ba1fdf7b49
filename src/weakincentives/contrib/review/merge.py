"""Files that were changed on both sides in different places: both changes, if that is clean."""

from collections.abc import Sequence
from dataclasses import dataclass

from weakincentives.contrib.review.views import Version
from weakincentives.filesystem import Change, FileStat
from weakincentives.filesystem.diff import Block, Side, changed_blocks, hunks, split_lines
from weakincentives.posix import display_path

_MAX_BYTES = 16 * 1024 * 1024
_CONTEXT = 3


@dataclass(frozen=True, slots=True)
class Merge:
    """A file that was changed on both sides, in different places."""

    path: str
    original: Version
    """What the original has."""
    merged: Version
    """The same with what was changed in the copy."""

    def patch(self) -> str:
        """Return what a merge changes in the original, as hunks to look at."""
        old, new = split_lines(self.original.content), split_lines(self.merged.content)
        found = b"".join(hunks(old, new, changed_blocks(old, new), _CONTEXT))
        return found.decode(errors="replace")

    def __str__(self) -> str:
        """Return the path."""
        return f"{display_path(self.path)}: changed on both sides, in different places"


def merge_of(change: Change, now: FileStat | None, sides: tuple[Side, Side, Side]) -> Merge | None:
    """Return how a change and that in the original go together, or None if they do not.

    The `sides` are the state that both began with, the copy and the original.
    """
    found = (change.before, change.after, now)
    if not all(each is not None and each.is_file for each in found):
        return None
    if any(each is not None and each.size_bytes > _MAX_BYTES for each in found):
        return None
    base, ours, theirs = (
        Version(side.data(each), each.permissions)
        for side, each in zip(sides, found, strict=True)
        if each is not None
    )
    content = merged_content(base.content, ours.content, theirs.content)
    permissions = _one_of(base.permissions, ours.permissions, theirs.permissions)
    if content is None or permissions is None:
        return None
    return Merge(change.path, theirs, Version(content, permissions))


def merged_content(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Return the content with what both sides changed, or None unless that is clean.

    Changes that touch each other are not clean unless they are the same, and neither are
    two of a binary file.
    """
    if base in {ours, theirs} or ours == theirs:
        return theirs if base == ours else ours
    if any(b"\0" in each for each in (base, ours, theirs)):
        return None
    old, left, right = map(split_lines, (base, ours, theirs))
    edits = _edits(changed_blocks(old, left), left) | _edits(changed_blocks(old, right), right)
    merged: list[bytes] = []
    at = -1  # nothing ends there, so a change at the very beginning touches nothing
    for start, stop, lines in sorted(edits):
        if start <= at:
            return None
        merged += old[max(at, 0) : start] + list(lines)
        at = stop
    return b"".join(merged + old[max(at, 0) :])


def _edits(
    blocks: Sequence[Block], new: Sequence[bytes]
) -> set[tuple[int, int, tuple[bytes, ...]]]:
    return {(each.start, each.stop, tuple(new[each.new_start : each.new_stop])) for each in blocks}


def _one_of(base: int, ours: int, theirs: int) -> int | None:
    """Return what the side has that changed it; None if both have, and not in the same way."""
    if ours in {base, theirs}:
        return theirs
    return ours if theirs == base else None
