"""Result types of filesystem operations: frozen values that include their path."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Literal, NamedTuple, Self, TypeVar
from uuid import UUID

from weakincentives.posix import display_path

Kind = Literal["file", "directory", "symlink", "special"]
WriteMode = Literal["create", "overwrite", "append"]

T = TypeVar("T")


TruncationReason = Literal["time limit", "match limit", "size limit", "entry limit"]
"""Why a search or a listing is incomplete."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How far a search got.

    Args:
        searched: Files searched completely; for a glob, directories listed.
        missed_files: Files not searched, or only in part.
        missed_directories: Directories not listed; their content is unknown.
        missed_paths: The first few of both, sorted; a directory ends in `/`.
    """

    searched: int = 0
    missed_files: int = 0
    missed_directories: int = 0
    missed_paths: tuple[str, ...] = ()


_NO_SEARCH = Coverage()


class Results(tuple[T, ...]):
    """A tuple of results with `truncated`: whether there are more, and the `reason`.

    For a search, `coverage` says how far it got.
    """

    truncated: bool
    reason: TruncationReason | None
    coverage: Coverage

    def __new__(
        cls,
        items: Iterable[T] = (),
        *,
        truncated: bool = False,
        reason: TruncationReason | None = None,
        coverage: Coverage = _NO_SEARCH,
    ) -> Self:
        """Hold `items`; they are incomplete if `truncated` is set or a `reason` is given."""
        results = super().__new__(cls, items)
        results.truncated = truncated or reason is not None
        results.reason = reason
        results.coverage = coverage
        return results


class Children(NamedTuple):
    """The names in one directory, by kind, in any order."""

    files: Sequence[str] = ()
    directories: Sequence[str] = ()
    symlinks: Sequence[str] = ()
    specials: Sequence[str] = ()

    @classmethod
    def of(cls, entries: Mapping[str, "FileStat"]) -> Self:
        """Return the names of entries, in order."""
        kinds: dict[str, list[str]] = {"file": [], "directory": [], "symlink": [], "special": []}
        for name in sorted(entries):
            kinds[entries[name].kind].append(name)
        return cls(*kinds.values())


@dataclass(frozen=True, slots=True, init=False)
class FileStat:
    """Metadata of a file, directory, symbolic link or special file."""

    path: str
    is_file: bool
    is_directory: bool
    size_bytes: int = 0
    created_at: datetime | None = None
    modified_at: datetime | None = None
    permissions: int = 0o644
    link_target: str | None = None
    hasher: Callable[[], str | None] | None = field(default=None, repr=False, compare=False)

    def __init__(
        self,
        path: str,
        is_file: bool,  # noqa: FBT001  a field, positional in the specification
        is_directory: bool,  # noqa: FBT001  the same
        size_bytes: int = 0,
        created_at: datetime | None = None,
        modified_at: datetime | None = None,
        permissions: int = 0o644,
        link_target: str | None = None,
        hasher: Callable[[], str | None] | None = None,
    ) -> None:
        """Set the fields through their slots; a walk makes thousands of these."""
        _set_stat_path(self, path)
        _set_stat_is_file(self, is_file)
        _set_stat_is_directory(self, is_directory)
        _set_stat_size_bytes(self, size_bytes)
        _set_stat_created_at(self, created_at)
        _set_stat_modified_at(self, modified_at)
        _set_stat_permissions(self, permissions)
        _set_stat_link_target(self, link_target)
        _set_stat_hasher(self, hasher)

    @property
    def is_symlink(self) -> bool:
        """Whether this is a symbolic link."""
        return self.link_target is not None

    @property
    def kind(self) -> Kind:
        """The kind of the entry."""
        return _kind(
            is_file=self.is_file, is_directory=self.is_directory, is_symlink=self.is_symlink
        )

    @property
    def content_hash(self) -> str | None:
        """The SHA-256 of the file's bytes, computed on demand.

        None for anything but a file, and for a file that has changed since.
        """
        return None if self.hasher is None else self.hasher()

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle the values without the hasher, which is bound to the filesystem."""
        values = (getattr(self, each.name) for each in fields(self) if each.name != "hasher")
        return FileStat, tuple(values)

    def __str__(self) -> str:
        """Return the path, its kind and its size."""
        size = f", {self.size_bytes} bytes" if self.is_file else ""
        return f"{display_path(self.path)} ({self.kind}{size})"

    def render(self) -> str:
        """Return the text for a model."""
        return str(self)


@dataclass(frozen=True, slots=True, init=False)
class FileEntry:
    """One entry of a directory listing; `size_bytes` is None for anything but a file."""

    name: str
    path: str
    is_file: bool
    is_directory: bool
    size_bytes: int | None = None
    is_symlink: bool = False

    def __init__(
        self,
        name: str,
        path: str,
        is_file: bool,  # noqa: FBT001  a field, positional in the specification
        is_directory: bool,  # noqa: FBT001  the same
        size_bytes: int | None = None,
        is_symlink: bool = False,  # noqa: FBT001, FBT002  the same
    ) -> None:
        """Set the fields through their slots; listings make thousands of these."""
        _set_name(self, name)
        _set_path(self, path)
        _set_is_file(self, is_file)
        _set_is_directory(self, is_directory)
        _set_size_bytes(self, size_bytes)
        _set_is_symlink(self, is_symlink)

    @property
    def kind(self) -> Kind:
        """The kind of the entry."""
        return _kind(
            is_file=self.is_file, is_directory=self.is_directory, is_symlink=self.is_symlink
        )

    def __str__(self) -> str:
        """Return the path; a directory's ends in a slash."""
        return display_path(self.path) + ("/" if self.is_directory else "")

    def render(self) -> str:
        """Return the text for a model."""
        return str(self)


@dataclass(frozen=True, slots=True, init=False)
class GlobMatch:
    """A path that matched a glob pattern."""

    path: str
    is_file: bool

    def __init__(self, path: str, is_file: bool) -> None:  # noqa: FBT001  a field, positional
        """Set the fields through their slots; searches make a hundred thousand of these."""
        _set_match_path(self, path)
        _set_match_is_file(self, is_file)

    def __str__(self) -> str:
        """Return the path."""
        return display_path(self.path)

    def render(self) -> str:
        """Return the text for a model."""
        return str(self)


@dataclass(frozen=True, slots=True)
class GrepMatch:
    """A line that matched a regular expression; lines count from 1."""

    path: str
    line_number: int
    line_content: str
    match_start: int
    match_end: int

    def __str__(self) -> str:
        """Return path, line number and line."""
        return f"{display_path(self.path)}:{self.line_number}: {self.line_content}"

    def render(self) -> str:
        """Return the text for a model."""
        return str(self)


@dataclass(frozen=True, slots=True)
class ReadResult:
    """A page of text; lines count from 0, `content` keeps its line endings.

    In a very large file not all lines are counted: then `total_is_exact` is False, and
    `total_lines` is a lower bound.
    """

    content: str
    path: str
    total_lines: int
    offset: int
    limit: int
    truncated: bool
    total_is_exact: bool = True

    def __str__(self) -> str:
        """Return the path and the lines shown."""
        more = f", more from offset {self.offset + self.limit}" if self.truncated else ""
        total = f"{'' if self.total_is_exact else 'at least '}{self.total_lines}"
        return f"{display_path(self.path)} (from line {self.offset} of {total}{more})"


class LineStart(NamedTuple):
    """The byte offset of a line, and the number of lines in the file or a lower bound of it."""

    offset: int
    total_lines: int
    total_is_exact: bool = True


@dataclass(frozen=True, slots=True)
class ReadBytesResult:
    """A page of bytes."""

    content: bytes
    path: str
    size_bytes: int
    offset: int
    limit: int
    truncated: bool

    def __str__(self) -> str:
        """Return the path and the bytes shown."""
        end = self.offset + len(self.content)
        return f"{display_path(self.path)} (bytes {self.offset} to {end} of {self.size_bytes})"


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Confirmation of a write; `bytes_written` of an append counts what was appended."""

    path: str
    bytes_written: int
    mode: WriteMode
    created: bool = False

    def __str__(self) -> str:
        """Return the path and what was written."""
        return f"{display_path(self.path)} ({self.bytes_written} bytes, {self.mode})"

    def render(self) -> str:
        """Return the text for a model."""
        return str(self)


@dataclass(frozen=True, slots=True)
class FilesystemSnapshot:
    """A state of a filesystem, as a value that can be stored.

    It names the state and does not contain it. On the host, `git_dir` is a git repository
    and `commit_ref` a commit in it. In memory, `commit_ref` is a number, and the filesystem
    keeps the state until the snapshot is forgotten.
    """

    snapshot_id: UUID
    created_at: datetime
    commit_ref: str
    root_path: str
    git_dir: str | None = None
    tag: str | None = None

    def __str__(self) -> str:
        """Return the tag, the reference and the root."""
        return (
            f"{self.tag or 'snapshot'} ({self.commit_ref[:12]} of {display_path(self.root_path)})"
        )


def _kind(*, is_file: bool, is_directory: bool, is_symlink: bool) -> Kind:
    if is_file:
        return "file"
    if is_directory:
        return "directory"
    return "symlink" if is_symlink else "special"


def _setter(owner: type, name: str) -> Callable[[object, object], None]:
    """Return the setter of a slot: a third faster than `object.__setattr__`."""
    return vars(owner)[name].__set__


_set_stat_path = _setter(FileStat, "path")
_set_stat_is_file = _setter(FileStat, "is_file")
_set_stat_is_directory = _setter(FileStat, "is_directory")
_set_stat_size_bytes = _setter(FileStat, "size_bytes")
_set_stat_created_at = _setter(FileStat, "created_at")
_set_stat_modified_at = _setter(FileStat, "modified_at")
_set_stat_permissions = _setter(FileStat, "permissions")
_set_stat_link_target = _setter(FileStat, "link_target")
_set_stat_hasher = _setter(FileStat, "hasher")
_set_name = _setter(FileEntry, "name")
_set_path = _setter(FileEntry, "path")
_set_is_file = _setter(FileEntry, "is_file")
_set_is_directory = _setter(FileEntry, "is_directory")
_set_size_bytes = _setter(FileEntry, "size_bytes")
_set_is_symlink = _setter(FileEntry, "is_symlink")
_set_match_path = _setter(GlobMatch, "path")
_set_match_is_file = _setter(GlobMatch, "is_file")
