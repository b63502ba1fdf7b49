"""Mount definitions and filters, progress events and reports."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import TypeAlias

from weakincentives.filesystem.glob import compile_filter
from weakincentives.filesystem.paths import InvalidPathError, VfsPath, normalize_path
from weakincentives.posix import RESERVED_PREFIX, display_path


@dataclass(frozen=True, slots=True)
class HostMount:
    """A folder or file of the host to copy into the workspace.

    Args:
        host_path: Relative to an allowed root, or absolute and below one.
        mount_path: Where it goes; by default the path relative to the allowed root.
        include_glob: Copy only files that match one of these; a pattern without `/` matches
            names.
        exclude_glob: Skip files that match one of these.
        max_bytes: Raise LimitExceededError if the files together are larger.
        follow_symlinks: Copy the targets of links, if they are below an allowed root;
            otherwise links are skipped.
        max_file_bytes: Skip files that are larger than this.
    """

    host_path: str
    mount_path: VfsPath | str | None = None
    include_glob: tuple[str, ...] = ()
    exclude_glob: tuple[str, ...] = ()
    max_bytes: int | None = None
    follow_symlinks: bool = False
    max_file_bytes: int | None = None


class MountFilter:
    """The include and exclude globs of a mount; false if there are none.

    A glob that ends in `/` means everything below that directory.
    """

    def __init__(self, mount: HostMount) -> None:
        """Compile the globs of `mount`."""
        include = _patterns(mount.include_glob)
        exclude = _patterns(mount.exclude_glob)
        self._include = [compile_filter(pattern) for pattern in include]
        self._exclude = [compile_filter(pattern) for pattern in exclude]
        # `a/**/` matches the directory `a` and every directory below it
        self._pruned = [
            compile_filter(pattern + "/")
            for pattern in exclude
            if pattern.endswith("/**") and "\\" not in pattern
        ]

    def __bool__(self) -> bool:
        """Whether there are globs."""
        return bool(self._include or self._exclude)

    def wants(self, path: str) -> bool:
        """Return whether to copy a file at `path` below the mount."""
        included = not self._include or any(matches(path) for matches in self._include)
        return included and not any(matches(path) for matches in self._exclude)

    def prunes(self, directory: str) -> bool:
        """Return whether everything below a directory is excluded, so that it can be skipped."""
        return any(matches(directory + "/") for matches in self._pruned)


def mount_target(mount: HostMount, default: str) -> str:
    """Return the normalized mount path; `default` if the mount has none.

    Raises:
        InvalidPathError: The path is reserved, or not a path.
        PathEscapeError: The path leaves the workspace with `..`.
    """
    normal = default if mount.mount_path is None else normalize_path(str(mount.mount_path))
    if any(segment.startswith(RESERVED_PREFIX) for segment in normal.split("/")):
        raise InvalidPathError(f"Mount path is reserved: {normal!r}")
    return normal


def _patterns(given: Sequence[str]) -> list[str]:
    if isinstance(given, str):
        raise TypeError(f"A mount's globs must be a sequence of patterns, not one: {given!r}")
    return [pattern + "**" if pattern.endswith("/") else pattern for pattern in given]


_MAX_SHOWN = 200  # characters of one path in a preview
_MAX_PROGRESS_EVENTS = 100  # progress events, at most


@dataclass(frozen=True, slots=True)
class MountProgress:
    """The progress of a mount; totals are from the plan, made before the first file is read."""

    done_files: int
    total_files: int
    done_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        """Return both counts."""
        files = f"{self.done_files} of {self.total_files} files"
        return f"{files}, {self.done_bytes} of {self.total_bytes} bytes"


ProgressListener: TypeAlias = Callable[[MountProgress], object]


@dataclass(frozen=True, slots=True)
class SkippedEntry:
    """A host entry that was not mounted, and why; the path is relative to the host path."""

    path: str
    reason: str

    def __str__(self) -> str:
        """Return the path and the reason."""
        return f"{display_path(self.path)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class MountReport:
    """What a mount copied into the workspace, and what it skipped."""

    mount_path: str
    file_count: int
    total_bytes: int
    skipped: tuple[SkippedEntry, ...] = ()
    """Skipped entries, sorted."""
    filtered_count: int = 0
    """Entries excluded by the globs; a directory that is excluded as a whole counts once."""
    binary_count: int = 0
    """Mounted files with a NUL, or with bytes that are not UTF-8, in their first 8 KiB."""
    changed: tuple[str, ...] = ()
    """Files whose originals changed while they were copied, sorted."""
    paths: tuple[str, ...] = field(default=(), repr=False)
    """The files in the workspace, sorted."""
    host_path: str = field(default="", repr=False)
    """The absolute host path that they were copied from."""

    def __str__(self) -> str:
        """Return the mount path and the totals."""
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        files = f"{self.file_count} file{'s' * (self.file_count != 1)}"
        sums = f"{files}, {self.total_bytes} byte{'s' * (self.total_bytes != 1)}{skipped}"
        return f"{display_path(self.mount_path)} ({sums})"

    def preview(self, limit: int = 20, *, with_host_path: bool = False) -> str:
        """Return a few lines for a prompt: the totals and the first files, the shallowest first.

        Names are escaped; each takes one line and at most 200 characters. The host path is
        included only on request.
        """
        first = nsmallest(limit, self.paths, key=lambda path: (path.count("/"), path))
        origin = f", copied from {_shorten(self.host_path)}" if with_host_path else ""
        lines = [f"{self}{origin}", *(f"- {_shorten(path)}" for path in first)]
        more = len(self.paths) - len(first)
        if more:
            lines.append(f"- ... and {more} more")
        return "\n".join(lines)


class ProgressMeter:
    """Counts progress, and calls a listener at every hundredth."""

    def __init__(self, listener: ProgressListener | None, files: int, size: int) -> None:
        """Count up to `files` and `size` bytes; the first event reports zero."""
        self._listener = listener
        self._files = files
        self._size = size
        self._done_files = 0
        self._done_size = 0
        self._last_step = -1
        self.add(0, 0)

    def add(self, files: int, size: int) -> None:
        """Add to the progress."""
        if self._listener is None:
            return
        self._done_files += files
        self._done_size += size
        done, total = self._done_files + self._done_size, self._files + self._size
        step = done * _MAX_PROGRESS_EVENTS // total if total else _MAX_PROGRESS_EVENTS
        if step > self._last_step:
            self._last_step = step
            self._listener(
                MountProgress(self._done_files, self._files, self._done_size, self._size)
            )


def _shorten(path: str) -> str:
    text = display_path(path)
    if len(text) <= _MAX_SHOWN:
        return text
    half = _MAX_SHOWN // 2
    return f"{text[: half - 3]}...{text[-half:]}"
