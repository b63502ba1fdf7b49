"""Three-way merge of text files that changed on both sides in different places."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from weakincentives.contrib.review.views import Version
from weakincentives.filesystem.diff import Block, changed_blocks, hunks, split_lines
from weakincentives.posix import display_path

Versions: TypeAlias = tuple[Version, Version, Version]
"""A file in the common base, in the copy and in the original."""
LineEdit: TypeAlias = tuple[int, int, tuple[bytes, ...]]
"""The old lines from one index up to another, and the lines that they become."""

MAX_BYTES = 16 * 1024 * 1024
"""The size of a file that is merged."""
_CONTEXT_LINES = 3


@dataclass(frozen=True, slots=True)
class Merge:
    """A clean three-way merge of one file."""

    path: str
    original: Version
    """The file in the original."""
    merged: Version
    """The same file with the changes of the copy."""

    def patch(self) -> str:
        """Return the change of the original as unified diff hunks, for display."""
        old, new = split_lines(self.original.content), split_lines(self.merged.content)
        found = b"".join(hunks(old, new, changed_blocks(old, new), _CONTEXT_LINES))
        return found.decode(errors="replace")

    def __str__(self) -> str:
        """Return the path and the kind of conflict."""
        return f"{display_path(self.path)}: changed on both sides, in different places"


def merge_versions(path: str, versions: Versions) -> Merge | None:
    """Return the merge of a file, or None if it is not clean."""
    base, ours, theirs = versions
    content = merge_content(base.content, ours.content, theirs.content)
    changed = {each.permissions for each in (ours, theirs)} - {base.permissions}
    if content is None or len(changed) > 1:  # both changed the permissions, differently
        return None
    return Merge(path, theirs, Version(content, changed.pop() if changed else base.permissions))


def find_overlaps(versions: Versions) -> tuple[tuple[int, int], ...]:
    """Return the lines of the original, as first and last, that were changed on both sides.

    Lines count from 1; adjacent changes overlap too. A file that is no text has none.
    """
    if any(b"\0" in each.content for each in versions):
        return ()
    old, left, right = (split_lines(each.content) for each in versions)
    ours = changed_blocks(old, left)
    return tuple(
        (block.new_start + 1, max(block.new_start + 1, block.new_stop))
        for block in changed_blocks(old, right)
        if any(each.start <= block.stop and block.start <= each.stop for each in ours)
    )


def merge_content(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Return the content with both changes, or None if the merge is not clean.

    Adjacent or overlapping changes are not clean unless they are equal. Binary files that
    changed on both sides are never merged.
    """
    if base in {ours, theirs} or ours == theirs:
        return theirs if base == ours else ours
    if any(b"\0" in each for each in (base, ours, theirs)):
        return None
    old, left, right = map(split_lines, (base, ours, theirs))
    ours_and_theirs = line_edits(changed_blocks(old, left), left)
    ours_and_theirs |= line_edits(changed_blocks(old, right), right)
    edits = sorted(ours_and_theirs)
    is_clean = all(before[1] < after[0] for before, after in pairwise(edits))
    return apply_line_edits(old, edits) if is_clean else None


def line_edits(blocks: Iterable[Block], new: Sequence[bytes]) -> set[LineEdit]:
    """Return what changed blocks do."""
    return {(each.start, each.stop, tuple(new[each.new_start : each.new_stop])) for each in blocks}


def apply_line_edits(old: Sequence[bytes], edits: Iterable[LineEdit]) -> bytes:
    """Return the content that edits in order make of lines."""
    lines: list[bytes] = []
    at = 0
    for start, stop, new_lines in edits:
        lines += [*old[at:start], *new_lines]
        at = stop
    return b"".join([*lines, *old[at:]])
