"""Changes as a unified patch that `git apply` takes, byte for byte.

What git has no words for (empty directories, other permissions than 0644 and 0755,
pipes, names that git refuses) is written as a remark: a line that starts with
`# wink:`, which git skips.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from weakincentives.filesystem.diffs.binary import binary_patch
from weakincentives.filesystem.diffs.changes import Change, Side, encoded, mode_of
from weakincentives.filesystem.diffs.lines import Block, changed_blocks, split_lines
from weakincentives.filesystem.paths import parent_of, parents_of
from weakincentives.filesystem.text import BytesContent
from weakincentives.filesystem.types import FileStat

MAX_TEXT = 16 * 1024 * 1024
"""Bytes in a file that is compared by line; a larger one counts as binary."""

_NO_ID = "0" * 40
_SAYABLE = frozenset({0o644, 0o755})
_QUOTED = re.compile(rb'[\x00-\x1f"\\\x7f-\xff]')
_ESCAPES = {7: b"a", 8: b"b", 9: b"t", 10: b"n", 11: b"v", 12: b"f", 13: b"r", 34: b'"', 92: b"\\"}
# what git takes for its own directory on some file system, and so refuses on all
_IGNORED_BY_HFS = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_GIT_DIRECTORY = re.compile(r"(\.git|git~1)[ .]*([:\\].*)?", re.IGNORECASE | re.DOTALL)
_GIT_MODULES = re.compile(r"(\.gitmodules|gitmod~\d|gi[0-9a-f]+~\d)[ .]*(:.*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Style:
    """How a patch is written: lines of context, and whether it must be UTF-8 text."""

    context: int = 3
    utf8: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """What git says about one path: from nothing, to nothing, or from one mode to another."""

    before: FileStat | None
    after: FileStat | None
    same_content: bool = False

    @property
    def modes(self) -> tuple[int | None, int | None]:
        """What git says that it is on either side."""
        return self.before and mode_of(self.before), self.after and mode_of(self.after)

    def texts(self, before: Side, after: Side) -> tuple[bytes, bytes] | None:
        """Return the bytes of both sides, or None if one is no text."""
        if any(side and side.size_bytes > MAX_TEXT for side in (self.before, self.after)):
            return None
        old = before.data(self.before) if self.before else b""
        new = after.data(self.after) if self.after else b""
        return None if b"\0" in old or b"\0" in new else (old, new)


def sections_of(change: Change) -> list[Section]:
    """Return what git can say about a change: nothing, one thing, or a removal and an addition."""
    before = change.before if change.before and mode_of(change.before) else None
    after = change.after if change.after and mode_of(change.after) else None
    if before and after and change.type_changed:
        return [Section(before, None), Section(None, after)]
    same = change.kind == "mode-changed" or change.similarity == 100
    section = Section(before, after, same)
    said = section.modes[0] != section.modes[1] or not same or change.source is not None
    return [section] if (before or after) and said else []


class Patch:
    """The patch of some changes, a part for each."""

    def __init__(
        self, changes: Sequence[Change], before: Side, after: Side, emptied: Iterable[str]
    ) -> None:
        """Describe `changes`; `emptied` directories are still there, with nothing in them."""
        self._changes = changes
        self._before = before
        self._after = after
        said = [section for each in changes if _is_said(each) for section in sections_of(each)]
        self._left = _above(section.before for section in said)
        self._made = _above(section.after for section in said)
        self._emptied = _first_leaving(changes, set(emptied))

    def part(self, number: int, style: Style) -> Iterator[bytes]:
        """Yield the remarks and the sections of one change."""
        change = self._changes[number]
        yield from map(_remark, self._remarks(change))
        directory = self._emptied.get(number)
        if directory is not None:
            yield _remark(f"directory stays, empty: {_name(directory)}")
        if _is_said(change):
            for section in sections_of(change):
                yield _header(change, section)
                yield from self._content(section, style)

    def _remarks(self, change: Change) -> Iterator[str]:
        """Yield what the sections of a change leave out."""
        before, after = change.before, change.after
        if not _is_said(change):
            yield f"git refuses this name, so it is left out: {change.kind} {_name(change.path)}"
        if before and before.is_directory and after is None and change.path not in self._left:
            yield f"directory removed: {_name(change.path)}"
        if after and after.is_directory:
            yield from self._directory_remarks(change, after)
        for side, verb in ((before, "removed"), (after, "added")):
            if side and side.kind == "special" and change.kind != "mode-changed":
                yield f"special file {verb}: {_name(change.path)}"
        if after and not after.is_directory and _unsayable(before, after):
            yield f"permissions {after.permissions:04o}: {_name(change.path)}"

    def _directory_remarks(self, change: Change, after: FileStat) -> Iterator[str]:
        if change.kind == "mode-changed":
            yield f"permissions {after.permissions:04o}: {_name(change.path)}"
        elif change.path not in self._made or after.permissions != 0o755:
            yield f"directory added, permissions {after.permissions:04o}: {_name(change.path)}"

    def _content(self, section: Section, style: Style) -> Iterator[bytes]:
        if section.same_content:
            return
        old_id = self._before.blob_id(section.before) if section.before else _NO_ID
        new_id = self._after.blob_id(section.after) if section.after else _NO_ID
        mode = section.modes[0] if section.modes[0] == section.modes[1] else None
        end = f" {mode:o}" if mode else ""
        yield f"index {old_id}..{new_id}{end}\n".encode()
        texts = section.texts(self._before, self._after)
        if texts is None or (style.utf8 and not all(map(_is_utf8, texts))):
            yield from self._binary(section)
        else:
            old, new = map(split_lines, texts)
            if old or new:
                yield b"--- %b\n+++ %b\n" % _labels(section)
            yield from hunks(old, new, changed_blocks(old, new), style.context)

    def _binary(self, section: Section) -> Iterator[bytes]:
        nothing = BytesContent(b"")
        with (
            self._before.opened(section.before) if section.before else nothing as old,
            self._after.opened(section.after) if section.after else nothing as new,
        ):
            yield from binary_patch(old, new)


def hunks(
    old: Sequence[bytes], new: Sequence[bytes], blocks: Sequence[Block], context: int
) -> Iterator[bytes]:
    """Yield the blocks that differ as hunks, with `context` lines around them."""
    for group in _near(blocks, 2 * context):
        start = max(group[0].start - context, 0)
        new_start = group[0].new_start - (group[0].start - start)
        stop = min(group[-1].stop + context, len(old))
        new_stop = group[-1].new_stop + (stop - group[-1].stop)
        lines = [b"@@ -%b +%b @@\n" % (_range(start, stop), _range(new_start, new_stop))]
        at = start
        for block in group:
            lines += [_line(b" ", line) for line in old[at : block.start]]
            lines += [_line(b"-", line) for line in old[block.start : block.stop]]
            lines += [_line(b"+", line) for line in new[block.new_start : block.new_stop]]
            at = block.stop
        lines += [_line(b" ", line) for line in old[at:stop]]
        yield b"".join(lines)


def quoted(name: bytes) -> bytes:
    """Return a name as git writes it: in quotes if it holds anything but plain ASCII."""
    if not _QUOTED.search(name):
        return name
    return b'"%b"' % _QUOTED.sub(_escaped, name)


def _header(change: Change, section: Section) -> bytes:
    source = section.before.path if section.before else change.path
    names = _header_name(b"a/", source), _header_name(b"b/", change.path)
    lines = [b"diff --git %b %b" % names]
    old, new = section.modes
    if old is None:
        lines.append(b"new file mode %o" % (new or 0))
    elif new is None:
        lines.append(b"deleted file mode %o" % old)
    elif old != new:
        lines += [b"old mode %o" % old, b"new mode %o" % new]
    if change.source is not None:
        lines.append(b"similarity index %d%%" % (change.similarity or 0))
        lines.append(b"rename from " + quoted(encoded(change.source)))
        lines.append(b"rename to " + quoted(encoded(change.path)))
    return b"\n".join(lines) + b"\n"


def _header_name(prefix: bytes, path: str) -> bytes:
    name = quoted(prefix + encoded(path))
    # where a directory ends with a blank git cannot tell where the first name ends
    return b'"%b"' % name if " /" in path and not name.startswith(b'"') else name


def _labels(section: Section) -> tuple[bytes, bytes]:
    return _label(b"a/", section.before), _label(b"b/", section.after)


def _label(prefix: bytes, side: FileStat | None) -> bytes:
    if side is None:
        return b"/dev/null"
    # git ends a name with blanks by a tab, or the last word could be taken for a date
    return quoted(prefix + encoded(side.path)) + (b"\t" if " " in side.path else b"")


def _is_said(change: Change) -> bool:
    """Return whether git would take the names of a change."""
    return not any(_is_refused(side) for side in change.sides)


def _is_refused(found: FileStat) -> bool:
    names = found.path.split("/")
    if any(_GIT_DIRECTORY.fullmatch(_IGNORED_BY_HFS.sub("", name)) for name in names):
        return True
    return found.is_symlink and bool(_GIT_MODULES.fullmatch(_IGNORED_BY_HFS.sub("", names[-1])))


def _unsayable(before: FileStat | None, after: FileStat) -> bool:
    """Return whether git leaves a file with other permissions than `after` has."""
    if after.is_symlink:
        return False
    if after.permissions not in _SAYABLE:
        return True
    same_mode = before is not None and mode_of(before) == mode_of(after)
    return same_mode and before is not None and before.permissions != after.permissions


def _above(found: Iterable[FileStat | None]) -> set[str]:
    """Return the directories that git makes or removes with these files."""
    return {parent for each in found if each for parent in parents_of(each.path)}


def _first_leaving(changes: Sequence[Change], emptied: set[str]) -> dict[int, str]:
    """Return the number of the first change that took something out of each directory."""
    found: dict[int, str] = {}
    for number, change in enumerate(changes):
        if change.before and change.kind in {"removed", "renamed"}:
            parent = parent_of(change.before.path)
            if parent in emptied:
                emptied.discard(parent)
                found[number] = parent
    return found


def _near(blocks: Sequence[Block], distance: int) -> Iterator[list[Block]]:
    group: list[Block] = []
    for block in blocks:
        if group and block.start - group[-1].stop > distance:
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def _range(start: int, stop: int) -> bytes:
    length = stop - start
    if length == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + (length > 0), length)


def _line(sign: bytes, line: bytes) -> bytes:
    if line.endswith(b"\n"):
        return sign + line
    return sign + line + b"\n\\ No newline at end of file\n"


def _remark(text: str) -> bytes:
    return f"# wink: {text}\n".encode()


def _name(path: str) -> str:
    return quoted(encoded(path)).decode()


def _escaped(match: re.Match[bytes]) -> bytes:
    byte = match.group()[0]
    return b"\\" + (_ESCAPES.get(byte) or b"%03o" % byte)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
