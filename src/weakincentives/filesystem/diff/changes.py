"""A change between two states of a workspace, its two sides, and its sections in a git diff."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from weakincentives.errors import WinkError
from weakincentives.filesystem.base.state import State
from weakincentives.filesystem.paths import encode_path
from weakincentives.filesystem.text import BytesContent, Content
from weakincentives.filesystem.types import FileStat
from weakincentives.history import hash_content
from weakincentives.posix import check_time, display_path

ChangeKind = Literal["added", "removed", "modified", "mode-changed", "renamed"]
MAX_TEXT = 16 * 1024 * 1024
"""Bytes in a file that is compared by line; a larger one counts as binary."""
# names that some file system maps to `.git`; git refuses them on all
_IGNORED_BY_HFS = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_GIT_DIRECTORY = re.compile(r"(\.git|git~1)[ .]*([:\\].*)?", re.IGNORECASE | re.DOTALL)
_GIT_MODULES = re.compile(r"(\.gitmodules|gitmod~\d|gi[0-9a-f]+~\d)[ .]*(:.*)?", re.IGNORECASE)

_CHUNK = 1024 * 1024


class StaleDiffError(WinkError, RuntimeError):
    """A file has changed since it was compared, so the diff is out of date."""


@dataclass(frozen=True, slots=True)
class Change:
    """A file, link or directory that differs between two states.

    `before` is None if it was added, `after` if it was removed. If it was renamed, `before`
    has the old path, and `similarity` is the percentage of content in common.
    """

    path: str
    kind: ChangeKind
    before: FileStat | None
    after: FileStat | None
    similarity: int | None = None

    @property
    def source(self) -> str | None:
        """The old path of a renamed entry."""
        return self.before.path if self.kind == "renamed" and self.before else None

    @property
    def type_changed(self) -> bool:
        """Whether its kind changed, for example from a file to a link."""
        return bool(self.before and self.after and self.before.kind != self.after.kind)

    @property
    def sides(self) -> Iterator[FileStat]:
        """The entries before and after, without None."""
        return (side for side in (self.before, self.after) if side is not None)

    @property
    def is_directory(self) -> bool:
        """Whether every side is a directory."""
        return all(side.is_directory for side in self.sides)

    def __str__(self) -> str:
        """Return what happened, and to which path."""
        name = display_path(self.path) + ("/" if self.is_directory else "")
        if self.source is not None:
            name = f"{display_path(self.source)} -> {name}"
        return f"{self.kind} {name}{self._detail()}"

    def _detail(self) -> str:
        if self.before is None or self.after is None:
            return ""
        if self.type_changed:
            return f" ({self.before.kind} -> {self.after.kind})"
        if self.kind == "mode-changed":
            return f" ({self.before.permissions:04o} -> {self.after.permissions:04o})"
        return "" if self.similarity is None else f" ({self.similarity} % the same)"


class Side(State):
    """A filesystem as one side of a comparison."""

    def blob_id(self, found: FileStat) -> str:
        """Return git's object id of a file or link; it is read if the id is not known."""
        known = self.known_id(found) if found.is_file else None
        if known is not None:
            return known
        with self.open_entry(found) as content:
            return hash_content(content.size, chunks(content))

    def open_entry(self, found: FileStat) -> Content:
        """Open an entry of the diff; a link is opened as its target.

        Raises:
            StaleDiffError: The entry has changed since it was compared.
        """
        if found.link_target is not None:
            return BytesContent(encode_path(found.link_target))
        try:
            content = self.open(found.path)
        except FileNotFoundError:
            raise _stale_error(found) from None
        # open content cannot change any more: files are replaced, not written in place
        if self.lookup(found.path) != found:
            content.close()
            raise _stale_error(found)
        return content

    def data(self, found: FileStat) -> bytes:
        """Return all bytes of a file; raises as `open_entry` does."""
        with self.open_entry(found) as content:
            return self.load(content, found.path)


def mode_of(found: FileStat) -> int | None:
    """Return git's mode for an entry; None if git does not track such entries."""
    if found.is_symlink:
        return 0o120000
    if found.is_file:
        return 0o100755 if found.permissions & 0o100 else 0o100644
    return None


def same_bytes(first: Content, second: Content) -> bool:
    """Return whether two contents are equal; reads no further than the first difference."""
    if first.size != second.size:
        return False
    pairs = zip(chunks(first), chunks(second), strict=False)
    return all(left == right for left, right in pairs)


def chunks(content: Content) -> Iterator[bytes]:
    """Yield the bytes of `content` in chunks."""
    for offset in range(0, content.size, _CHUNK):
        check_time("Diff")
        yield content.read(offset, _CHUNK)


def _stale_error(found: FileStat) -> StaleDiffError:
    return StaleDiffError(f"File has changed since it was compared: {display_path(found.path)!r}")


@dataclass(frozen=True, slots=True)
class GitSection:
    """One section of a git diff: an addition, a removal or a modification of one path."""

    before: FileStat | None
    after: FileStat | None
    same_content: bool = False

    @property
    def modes(self) -> tuple[int | None, int | None]:
        """Git's modes before and after."""
        return self.before and mode_of(self.before), self.after and mode_of(self.after)

    def texts(self, before: Side, after: Side) -> tuple[bytes, bytes] | None:
        """Return the bytes of both sides, or None if one is binary or too large."""
        if any(side and side.size_bytes > MAX_TEXT for side in (self.before, self.after)):
            return None
        old = before.data(self.before) if self.before else b""
        new = after.data(self.after) if self.after else b""
        return None if b"\0" in old or b"\0" in new else (old, new)


def sections_of(change: Change) -> list[GitSection]:
    """Return the sections of a change: none, one, or a removal and an addition."""
    before = change.before if change.before and mode_of(change.before) else None
    after = change.after if change.after and mode_of(change.after) else None
    if before and after and change.type_changed:
        return [GitSection(before, None), GitSection(None, after)]
    same = change.kind == "mode-changed" or change.similarity == 100
    section = GitSection(before, after, same)
    differs = section.modes[0] != section.modes[1] or not same or change.source is not None
    return [section] if (before or after) and differs else []


def has_git_names(change: Change) -> bool:
    """Return whether git accepts the names of a change."""
    return not any(_is_refused_by_git(side) for side in change.sides)


def _is_refused_by_git(found: FileStat) -> bool:
    names = [_IGNORED_BY_HFS.sub("", name) for name in found.path.split("/")]
    if any(map(_GIT_DIRECTORY.fullmatch, names)):
        return True
    return found.is_symlink and any(map(_GIT_MODULES.fullmatch, names))
