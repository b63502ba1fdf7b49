"""What the tools return to programs; what a model is told is the message beside it."""

from dataclasses import dataclass

from weakincentives.contrib.tools.edit import Grade
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
from weakincentives.prompt import Media


@dataclass(frozen=True, slots=True)
class LsResult:
    """The entries of a directory, directories first."""

    path: str
    entries: tuple[FileEntry, ...]
    truncated: bool = False


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


@dataclass(frozen=True, slots=True)
class FileChange:
    """What became of one file; `path` is where it is now, or was if it is gone."""

    path: str
    kind: ChangeKind
    source: str | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class WriteFileResult:
    """A file that was written."""

    path: str
    mode: WriteMode
    created: bool
    bytes_written: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class EditFileResult:
    """Files that were changed by replacing text, or would be (`applied` is False).

    Args:
        changes: What became of each file.
        diff: The difference, as a unified diff.
        added: How many lines are new.
        removed: How many lines are gone.
        grade: What had to be overlooked to find the places.
        replacements: How many places were changed.
        applied: Whether it was done.
        notes: What the caller should know.
    """

    changes: tuple[FileChange, ...]
    diff: str
    added: int
    removed: int
    grade: Grade
    replacements: int
    applied: bool = True
    notes: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True)
class GrepCount:
    """How many lines of a file match."""

    path: str
    count: int


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


@dataclass(frozen=True, slots=True)
class RmResult:
    """What was removed: one path, and how many files with it."""

    path: str
    kind: Kind
    files: int


@dataclass(frozen=True, slots=True)
class MoveResult:
    """What was moved."""

    source: str
    destination: str


@dataclass(frozen=True, slots=True)
class MkdirResult:
    """A directory that is there now."""

    path: str
    created: bool


@dataclass(frozen=True, slots=True)
class TreeResult:
    """A directory and what is below it, as indented lines."""

    path: str
    lines: tuple[str, ...]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class ReadManyResult:
    """Several files; those that could not be read have an error instead."""

    files: tuple[ReadFileResult, ...]
    errors: tuple[str, ...] = ()


StatResult = FileStat
"""What is at a path."""
