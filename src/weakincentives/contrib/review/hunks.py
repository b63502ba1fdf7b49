"""Hunks of a modified text file, and the content that a file has with only some of them."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from weakincentives.contrib.review.merge import LineEdit, apply_line_edits, line_edits
from weakincentives.contrib.review.views import Version
from weakincentives.filesystem import Diff
from weakincentives.filesystem.diff import Block, changed_blocks, group_blocks, hunks, split_lines
from weakincentives.posix import display_path

_CONTEXT_LINES = 3
_HEADER = re.compile(rb"@@ -(\d+)(?:,(\d+))? ")
_NEW_RANGE = re.compile(rb"\+(\d+)(?:,\d+)? @@")


@dataclass(frozen=True, slots=True)
class Hunk:
    """A part of the changes of one file that can be applied without the rest."""

    path: str
    content: bytes
    """The lines in unified diff format, with a header and some lines of context."""
    blocks: tuple[Block, ...]
    """The changed lines in the old and the new file."""
    replacement: LineEdit | None = None
    """What an edited hunk does."""

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

    def edit(self, hunk: Hunk, content: bytes) -> Hunk | None:
        """Return a hunk with an edited `content`; None if that changes nothing."""
        texts = self._texts(hunk.path)
        if texts is None:
            raise _outdated_error(hunk.path)
        old = split_lines(texts[0])
        start, stop = _old_range(hunk.content)
        kept, lines = _parse_lines(content)
        if kept != old[start:stop]:
            raise ValueError(
                "Lines that begin with a space or - must stay: to keep a removed line, replace"
                " its - by a space; to drop an added line, delete it"
            )
        if lines == kept:
            return None
        header = _NEW_RANGE.sub(rb"+\1,%d @@" % len(lines), hunk.content.split(b"\n", 1)[0])
        body = [each for each in split_lines(content) if not each.startswith((b"@@", b"#"))]
        return replace(
            hunk,
            content=b"\n".join((header, b"".join(body))),
            replacement=(start, stop, tuple(lines)),
        )

    def select(self, chosen: Sequence[Hunk]) -> dict[str, Version]:
        """Return the files with only the chosen hunks; not those of which all are chosen."""
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
    """Return the `old` content with the `chosen` hunks."""
    before, after = split_lines(old), split_lines(new)
    known = set(changed_blocks(before, after))
    edits: set[LineEdit] = set()
    for hunk in chosen:
        if not known.issuperset(hunk.blocks):
            raise _outdated_error(hunk.path)
        edited = hunk.replacement
        edits |= line_edits(hunk.blocks, after) if edited is None else {edited}
    return apply_line_edits(before, sorted(edits))


def _old_range(content: bytes) -> tuple[int, int]:
    """Return the indexes of the old lines that a hunk shows."""
    found = _HEADER.match(content)
    assert found is not None
    length = 1 if found[2] is None else int(found[2])
    start = int(found[1]) - (length > 0)
    return start, start + length


def _parse_lines(content: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the old and the new lines of an edited hunk; its header counts for nothing."""
    old: list[bytes] = []
    new: list[bytes] = []
    last: Sequence[list[bytes]] = ()
    for line in split_lines(content):
        if line.startswith((b"@@", b"#")):
            continue
        if line.startswith(b"\\"):  # no newline at the end of the file
            for side in last:
                side[-1] = side[-1].removesuffix(b"\n")
            continue
        sign, text = (line[:1], line[1:]) if line.strip(b"\r\n") else (b" ", line)
        last = {b" ": (old, new), b"-": (old,), b"+": (new,)}.get(sign, ())
        if not last:
            raise ValueError("Every line of a hunk begins with a space, - or +")
        for side in last:
            side.append(text if text.endswith(b"\n") else text + b"\n")
    return old, new


def _outdated_error(path: str) -> ValueError:
    return ValueError(f"The file has changed since its hunks were listed: {path!r}")
