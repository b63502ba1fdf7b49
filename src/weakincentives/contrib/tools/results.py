"""What the tools return to programs; what a model is told is the message beside it.

`render()` of each is plain text that stands by itself: no limit on its length, and no
advice about tools, which only the message can give.
"""

from collections.abc import Iterable, Sized
from dataclasses import dataclass
from typing import Protocol

from weakincentives.contrib.tools.editing import MatchLevel
from weakincentives.contrib.tools.requests import GrepMode
from weakincentives.filesystem import (
    ChangeKind,
    Coverage,
    FileEntry,
    FileStat,
    GlobMatch,
    GrepMatch,
    Kind,
    TruncationReason,
    WriteMode,
)
from weakincentives.posix import display_path
from weakincentives.prompt import Media


@dataclass(frozen=True, slots=True)
class LsResult:
    """The entries of a directory, directories first."""

    path: str
    entries: tuple[FileEntry, ...]
    truncated: bool = False

    def render(self) -> str:
        """Return the directory, and a line for each entry."""
        lines = [f"{each}{_size(each.size_bytes)}" for each in self.entries]
        return _lines(
            f"{display_path(self.path)}: {_count(self.entries, 'entry', 'entries')}", lines, self
        )


@dataclass(frozen=True, slots=True)
class ReadFileResult:
    """A page of a file.

    Args:
        path: The file.
        content: The lines as they are in the file; for binary files the dump or the base64.
        offset: How many lines (bytes, cells) come before it.
        shown: How many lines (bytes, cells) it has.
        total: How many the file has; at least so many if the count is not exact.
        next_offset: Where the next page begins; None if this is the last.
        size_bytes: How large the file is.
        encoding: "utf-8" or "binary".
        media: The picture, if it is one.
        total_is_exact: Whether all lines were counted; those of a huge file are not.
    """

    path: str
    content: str
    offset: int
    shown: int
    total: int
    next_offset: int | None
    size_bytes: int
    encoding: str = "utf-8"
    media: Media | None = None
    total_is_exact: bool = True

    def render(self) -> str:
        """Return the file, which part of it this is, and the part."""
        more = "" if self.next_offset is None else f", more from offset {self.next_offset}"
        first = self.offset + 1 if self.shown else self.offset
        part = f"{first} to {self.offset + self.shown} of {self.total}{more}"
        return f"{display_path(self.path)} ({part})\n{self.content}"


@dataclass(frozen=True, slots=True)
class FileChange:
    """What became of one file; `path` is where it is now, or was if it is gone."""

    path: str
    kind: ChangeKind
    source: str | None = None
    size_bytes: int | None = None

    def render(self) -> str:
        """Return what became of the file."""
        source = "" if self.source is None else f"{display_path(self.source)} to "
        return f"{self.kind} {source}{display_path(self.path)}"


@dataclass(frozen=True, slots=True)
class WriteFileResult:
    """A file that was written."""

    path: str
    mode: WriteMode
    created: bool
    bytes_written: int
    size_bytes: int

    def render(self) -> str:
        """Return what was written."""
        done = "created" if self.created else f"written ({self.mode})"
        return f"{display_path(self.path)}: {done}, {self.size_bytes} bytes"


@dataclass(frozen=True, slots=True)
class EditFileResult:
    """Files that were changed by replacing text, or would be (`applied` is False).

    Args:
        changes: What became of each file.
        diff: The difference, as a unified diff.
        added: How many lines are new.
        removed: How many lines are gone.
        match_level: The differences that were ignored to find the text.
        replacements: How many places were changed.
        applied: Whether it was done.
        notes: What the caller should know.
    """

    changes: tuple[FileChange, ...]
    diff: str
    added: int
    removed: int
    match_level: MatchLevel
    replacements: int
    applied: bool = True
    notes: tuple[str, ...] = ()

    def render(self) -> str:
        """Return what became of each file, what the caller should know, and the difference."""
        head = "" if self.applied else "not applied:\n"
        lines = [*(each.render() for each in self.changes), *self.notes]
        return head + "\n".join([*lines, self.diff] if self.diff else lines)


@dataclass(frozen=True, slots=True)
class GlobResult:
    """Paths that matched, sorted; `total` counts those that are not shown too.

    If there may be more, `reason` says why and `coverage` how far the search got.
    """

    pattern: str
    path: str
    matches: tuple[GlobMatch, ...]
    total: int
    truncated: bool = False
    reason: TruncationReason | None = None
    coverage: Coverage = Coverage()  # noqa: RUF009 # it is frozen

    def render(self) -> str:
        """Return the pattern, and a line for each path."""
        head = f"{self.pattern!r} in {display_path(self.path)}: {self.total} found"
        return _lines(head, map(str, self.matches), self)


@dataclass(frozen=True, slots=True)
class GrepCount:
    """How many lines of a file match."""

    path: str
    count: int

    def render(self) -> str:
        """Return the path and the number."""
        return f"{display_path(self.path)}:{self.count}"


@dataclass(frozen=True, slots=True)
class GrepResult:
    """Lines that matched, and how many in each file.

    If there may be more, `reason` says why and `coverage` how far the search got.
    """

    pattern: str
    path: str
    mode: GrepMode
    matches: tuple[GrepMatch, ...]
    counts: tuple[GrepCount, ...]
    truncated: bool = False
    reason: TruncationReason | None = None
    coverage: Coverage = Coverage()  # noqa: RUF009 # it is frozen

    def render(self) -> str:
        """Return the pattern, and what the mode asks for: lines, paths or counts."""
        if self.mode == "content":
            lines = [str(each) for each in self.matches]
        elif self.mode == "count":
            lines = [each.render() for each in self.counts]
        else:
            lines = [display_path(each.path) for each in self.counts]
        found = _count(self.counts, "file matches", "files match")
        return _lines(f"{self.pattern!r} in {display_path(self.path)}: {found}", lines, self)


@dataclass(frozen=True, slots=True)
class RmResult:
    """What was removed: one path, and how many files with it."""

    path: str
    kind: Kind
    files: int

    def render(self) -> str:
        """Return what was removed."""
        files = f", {self.files} files" if self.kind == "directory" else ""
        return f"removed {display_path(self.path)} ({self.kind}{files})"


@dataclass(frozen=True, slots=True)
class MoveResult:
    """What was moved."""

    source: str
    destination: str

    def render(self) -> str:
        """Return what was moved where."""
        return f"moved {display_path(self.source)} to {display_path(self.destination)}"


@dataclass(frozen=True, slots=True)
class MkdirResult:
    """A directory that is there now."""

    path: str
    created: bool

    def render(self) -> str:
        """Return the directory."""
        return f"{display_path(self.path)}/ {'made' if self.created else 'was there'}"


@dataclass(frozen=True, slots=True)
class TreeResult:
    """A directory and what is below it, as indented lines."""

    path: str
    lines: tuple[str, ...]
    truncated: bool = False

    def render(self) -> str:
        """Return the directory, and the lines."""
        return _lines(f"{display_path(self.path)}:", self.lines, self)


@dataclass(frozen=True, slots=True)
class ReadManyResult:
    """Several files; those that could not be read have an error instead."""

    files: tuple[ReadFileResult, ...]
    errors: tuple[str, ...] = ()

    def render(self) -> str:
        """Return one file after the other, then the errors."""
        return "\n\n".join([*(each.render() for each in self.files), *self.errors])


StatResult = FileStat
"""What is at a path."""


class _Truncatable(Protocol):
    @property
    def truncated(self) -> bool: ...


def _lines(head: str, lines: Iterable[str], result: _Truncatable) -> str:
    return "\n".join([head, *lines, *(["[there is more]"] if result.truncated else [])])


def _count(items: Sized, one: str, several: str) -> str:
    return f"{len(items)} {one if len(items) == 1 else several}"


def _size(size: int | None) -> str:
    return "" if size is None else f" ({size} bytes)"
