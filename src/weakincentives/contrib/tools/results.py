"""Tool results as typed values for programs; a model reads the message beside them.

`render()` returns plain text that is complete by itself: without a length limit, and
without hints about tools, which only the message can give.
"""

from collections.abc import Iterable, Sized
from dataclasses import dataclass

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
        """Return the directory and one line per entry."""
        lines = [
            str(each) if each.size_bytes is None else f"{each} ({each.size_bytes} bytes)"
            for each in self.entries
        ]
        return _lines(
            f"{display_path(self.path)}: {_count(self.entries, 'entry', 'entries')}",
            lines,
            truncated=self.truncated,
        )


@dataclass(frozen=True, slots=True)
class ReadFileResult:
    """A page of a file.

    Args:
        path: The file.
        content: The unchanged lines of the file; for binary files the hex dump or base64.
        offset: Number of lines (bytes, cells) before this page.
        shown: Number of lines (bytes, cells) on this page.
        total: Number of them in the file; a lower bound if the count is not exact.
        next_offset: Offset of the next page; None if this is the last.
        size_bytes: Size of the file.
        encoding: "utf-8" or "binary".
        media: The picture, if the file is one.
        total_is_exact: Whether all lines were counted; a huge file is not counted to its end.
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
        """Return the path, the range shown, and the content."""
        more = "" if self.next_offset is None else f", more from offset {self.next_offset}"
        first = self.offset + 1 if self.shown else self.offset
        part = f"{first} to {self.offset + self.shown} of {self.total}{more}"
        return f"{display_path(self.path)} ({part})\n{self.content}"


@dataclass(frozen=True, slots=True)
class FileChange:
    """A change of one file; `path` is its new path, or its old one if it was removed."""

    path: str
    kind: ChangeKind
    source: str | None = None
    size_bytes: int | None = None

    def render(self) -> str:
        """Return the kind of change and the path."""
        source = "" if self.source is None else f"{display_path(self.source)} to "
        return f"{self.kind} {source}{display_path(self.path)}"


@dataclass(frozen=True, slots=True)
class WriteFileResult:
    """The result of writing a file."""

    path: str
    mode: WriteMode
    created: bool
    bytes_written: int
    size_bytes: int

    def render(self) -> str:
        """Return the path, what was done, and the size."""
        done = "created" if self.created else f"written ({self.mode})"
        return f"{display_path(self.path)}: {done}, {self.size_bytes} bytes"


@dataclass(frozen=True, slots=True)
class EditFileResult:
    """Changed files, or with `applied` False, files that would be changed.

    Args:
        changes: The change of each file.
        diff: A unified diff.
        added: Number of added lines.
        removed: Number of removed lines.
        match_level: How exactly the old text matched.
        replacements: Number of replacements.
        applied: False after a dry run.
        notes: Further notes for the caller.
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
        """Return the changes, the notes and the diff."""
        head = "" if self.applied else "not applied:\n"
        lines = [*(each.render() for each in self.changes), *self.notes]
        return head + "\n".join([*lines, self.diff] if self.diff else lines)


@dataclass(frozen=True, slots=True)
class GlobResult:
    """Matching paths, sorted; `total` includes those that are not shown.

    If the search is incomplete, `reason` says why and `coverage` how far it got.
    """

    pattern: str
    path: str
    matches: tuple[GlobMatch, ...]
    total: int
    truncated: bool = False
    reason: TruncationReason | None = None
    coverage: Coverage = Coverage()  # noqa: RUF009 # it is frozen

    def render(self) -> str:
        """Return the pattern and one line per path."""
        head = f"{self.pattern!r} in {display_path(self.path)}: {self.total} found"
        return _lines(head, map(str, self.matches), truncated=self.truncated)


@dataclass(frozen=True, slots=True)
class GrepCount:
    """The number of matching lines in a file."""

    path: str
    count: int

    def render(self) -> str:
        """Return the path and the count."""
        return f"{display_path(self.path)}:{self.count}"


@dataclass(frozen=True, slots=True)
class GrepResult:
    """Matching lines, and their number in each file.

    If the search is incomplete, `reason` says why and `coverage` how far it got.
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
        """Return the pattern and, depending on the mode, lines, paths or counts."""
        if self.mode == "content":
            lines = [str(each) for each in self.matches]
        elif self.mode == "count":
            lines = [each.render() for each in self.counts]
        else:
            lines = [display_path(each.path) for each in self.counts]
        found = _count(self.counts, "file matches", "files match")
        return _lines(
            f"{self.pattern!r} in {display_path(self.path)}: {found}",
            lines,
            truncated=self.truncated,
        )


@dataclass(frozen=True, slots=True)
class RmResult:
    """A removed path, and the number of files removed with it."""

    path: str
    kind: Kind
    files: int

    def render(self) -> str:
        """Return the path and what it was."""
        files = f", {self.files} files" if self.kind == "directory" else ""
        return f"removed {display_path(self.path)} ({self.kind}{files})"


@dataclass(frozen=True, slots=True)
class MoveResult:
    """The old and the new path of a moved file or directory."""

    source: str
    destination: str

    def render(self) -> str:
        """Return both paths."""
        return f"moved {display_path(self.source)} to {display_path(self.destination)}"


@dataclass(frozen=True, slots=True)
class MkdirResult:
    """A directory; `created` is False if it existed already."""

    path: str
    created: bool

    def render(self) -> str:
        """Return the path, and whether the directory is new."""
        return f"{display_path(self.path)}/ {'created' if self.created else 'exists already'}"


@dataclass(frozen=True, slots=True)
class TreeResult:
    """A directory tree as indented lines."""

    path: str
    lines: tuple[str, ...]
    truncated: bool = False

    def render(self) -> str:
        """Return the directory and the lines."""
        return _lines(f"{display_path(self.path)}:", self.lines, truncated=self.truncated)


@dataclass(frozen=True, slots=True)
class ReadManyResult:
    """Several files, and an error for each that could not be read."""

    files: tuple[ReadFileResult, ...]
    errors: tuple[str, ...] = ()

    def render(self) -> str:
        """Return the files, then the errors."""
        return "\n\n".join([*(each.render() for each in self.files), *self.errors])


@dataclass(frozen=True, slots=True)
class RepoMapResult:
    """An outline of the most central source files.

    Args:
        path: The file or directory that it begins with.
        text: The map: paths, and the definitions below each with their line numbers.
        files: The files in the map, the most central first.
        source_files: Number of source files in the workspace.
        warnings: What was left out and why, each in one sentence.
    """

    path: str
    text: str
    files: tuple[str, ...]
    source_files: int
    warnings: tuple[str, ...] = ()

    def render(self) -> str:
        """Return the map and the warnings."""
        return "\n".join([self.text, *self.warnings])


StatResult = FileStat
"""The type, size and times of a file or directory."""


def _lines(head: str, lines: Iterable[str], *, truncated: bool) -> str:
    return "\n".join([head, *lines, *(["[truncated]"] if truncated else [])])


def _count(items: Sized, one: str, several: str) -> str:
    return f"{len(items)} {one if len(items) == 1 else several}"
