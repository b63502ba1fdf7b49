"""Hunks of a modified text file, and the content that a file has with only some of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from weakincentives.contrib.review.views import Version
from weakincentives.filesystem import Diff
from weakincentives.filesystem.diff import Block, changed_blocks, group_blocks, hunks, split_lines
from weakincentives.posix import display_path

_CONTEXT_LINES = 3


@dataclass(frozen=True, slots=True)
class Hunk:
    """A part of the changes of one file that can be applied without the rest."""

    path: str
    content: bytes
    """The lines in unified diff format, with a header and some lines of context."""
    blocks: tuple[Block, ...]
    """The changed lines in the old and the new file."""

    def __str__(self) -> str:
        """Return the path and the lines that it replaces."""
        first, last = self.blocks[0].start + 1, self.blocks[-1].stop
        lines = f"line {first}" if last <= first else f"lines {first}-{last}"
        return f"{display_path(self.path)}, {lines}"


class HunkSource:
    """The hunks of a diff; what was added, removed or renamed, links and binary files have none."""

    def __init__(self, diff: Diff, is_renamed: Callable[[str], bool]) -> None:
        """Find hunks in `diff`; a file that `is_renamed`, for example swapped, is one change."""
        self._changes = {each.path: each for each in diff.entries}
        self._diff = diff
        self._is_renamed = is_renamed

    def hunks(self, path: str) -> tuple[Hunk, ...]:
        """Return the hunks of a file."""
        texts = self._texts(path)
        return () if texts is None else find_hunks(path, *texts)

    def split(self, hunk: Hunk) -> tuple[Hunk, ...]:
        """Return the smallest parts of a hunk."""
        texts = self._texts(hunk.path)
        found = () if texts is None else find_hunks(hunk.path, *texts, context=0)
        return tuple(each for each in found if set(hunk.blocks).issuperset(each.blocks))

    def select(self, chosen: Sequence[Hunk]) -> dict[str, Version]:
        """Return the files with only the chosen hunks; not those of which all are chosen.

        Raises:
            ValueError: A hunk is not one of this diff.
        """
        contents: dict[str, Version] = {}
        for path in sorted({each.path for each in chosen}):
            texts, change = self._texts(path), self._changes.get(path)
            if texts is None or change is None or change.before is None:
                raise _outdated_error(path)
            content = select_hunks([each for each in chosen if each.path == path], *texts)
            if content != texts[1]:
                contents[path] = Version(content, change.before.permissions)
        return contents

    def _texts(self, path: str) -> tuple[bytes, bytes] | None:
        change = self._changes.get(path)
        if change is None or self._is_renamed(path):
            return None
        return self._diff.texts(change)


def find_hunks(
    path: str, old: bytes, new: bytes, context: int = _CONTEXT_LINES
) -> tuple[Hunk, ...]:
    """Return the hunks that lead from the `old` content of a file to the `new` one."""
    before, after = split_lines(old), split_lines(new)
    groups = group_blocks(changed_blocks(before, after), 2 * context)
    return tuple(
        Hunk(path, b"".join(hunks(before, after, group, context)), tuple(group)) for group in groups
    )


def select_hunks(chosen: Iterable[Hunk], old: bytes, new: bytes) -> bytes:
    """Return the `old` content with the `chosen` hunks.

    Raises:
        ValueError: A hunk is not one of these changes.
    """
    before, after = split_lines(old), split_lines(new)
    known = set(changed_blocks(before, after))
    blocks = {block: hunk for hunk in chosen for block in hunk.blocks}
    for block, hunk in blocks.items():
        if block not in known:
            raise _outdated_error(hunk.path)
    lines: list[bytes] = []
    at = 0
    for block in sorted(blocks):
        lines += before[at : block.start] + after[block.new_start : block.new_stop]
        at = block.stop
    return b"".join(lines + before[at:])


def _outdated_error(path: str) -> ValueError:
    return ValueError(f"The file has changed since its hunks were listed: {path!r}")
