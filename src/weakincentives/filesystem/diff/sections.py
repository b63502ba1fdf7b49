"""What git says about a change: a removal, an addition, other bytes, another mode, a rename."""

import re
from dataclasses import dataclass

from weakincentives.filesystem.diff.changes import Change, Side, mode_of
from weakincentives.filesystem.types import FileStat

MAX_TEXT = 16 * 1024 * 1024
"""Bytes in a file that is compared by line; a larger one counts as binary."""
# what git takes for its own directory on some file system, and so refuses on all
_IGNORED_BY_HFS = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_GIT_DIRECTORY = re.compile(r"(\.git|git~1)[ .]*([:\\].*)?", re.IGNORECASE | re.DOTALL)
_GIT_MODULES = re.compile(r"(\.gitmodules|gitmod~\d|gi[0-9a-f]+~\d)[ .]*(:.*)?", re.IGNORECASE)


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


def has_names_for_git(change: Change) -> bool:
    """Return whether git would take the names of a change."""
    return not any(_is_refused(side) for side in change.sides)


def _is_refused(found: FileStat) -> bool:
    names = [_IGNORED_BY_HFS.sub("", name) for name in found.path.split("/")]
    if any(map(_GIT_DIRECTORY.fullmatch, names)):
        return True
    return found.is_symlink and any(map(_GIT_MODULES.fullmatch, names))
