"""What is asked for: a folder or file of the host, where it goes, and what of it is wanted."""

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
        include_glob: Keep only files that match one of these; without `/` by name.
        exclude_glob: Leave out files that match one of these.
        max_bytes: Refuse the mount if its files are larger together.
        follow_symlinks: Copy what links point to, as long as it is below an allowed
            root; otherwise links are skipped.
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
    """What the globs of a mount want; false while there are none.

    A glob that ends in `/` stands for everything below.
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
        """Whether anything is left out."""
        return bool(self._include or self._exclude)

    def wants(self, path: str) -> bool:
        """Return whether a file at `path` below the mount is to be copied."""
        included = not self._include or any(matches(path) for matches in self._include)
        return included and not any(matches(path) for matches in self._exclude)

    def prunes(self, directory: str) -> bool:
        """Return whether everything below a directory is left out, so that nobody need look."""
        return any(matches(directory + "/") for matches in self._pruned)


def mount_target(mount: HostMount, default: str) -> str:
    """Return where a mount goes, in normal form; to `default` if it does not say.

    Raises:
        InvalidPathError: The path is reserved, or no path.
        PathEscapeError: The path climbs out with `..`.
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
_STEPS = 100  # how often progress is told, at most


@dataclass(frozen=True, slots=True)
class MountProgress:
    """How far a mount has come; totals are what was found before the first file was read."""

    done_files: int
    total_files: int
    done_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        """Return both sums."""
        files = f"{self.done_files} of {self.total_files} files"
        return f"{files}, {self.done_bytes} of {self.total_bytes} bytes"


ProgressListener: TypeAlias = Callable[[MountProgress], object]


@dataclass(frozen=True, slots=True)
class SkippedEntry:
    """Something on the host that was not mounted, and why; the path is below the host path."""

    path: str
    reason: str

    def __str__(self) -> str:
        """Return the path and the reason."""
        return f"{display_path(self.path)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class MountReport:
    """What a mount brought into the workspace, and what it left out."""

    mount_path: str
    file_count: int
    total_bytes: int
    skipped: tuple[SkippedEntry, ...] = ()
    """What was left out by rule, sorted."""
    filtered_count: int = 0
    """What the globs left out; a directory that is left out whole counts once."""
    binary_count: int = 0
    """Files with NUL, or that are not UTF-8, in their first 8 KiB; they are mounted."""
    changed: tuple[str, ...] = ()
    """Files in the workspace whose originals changed while they were copied, sorted."""
    paths: tuple[str, ...] = field(default=(), repr=False)
    """The files in the workspace, sorted."""
    host_path: str = field(default="", repr=False)
    """Where they came from: an absolute path of the host."""

    def __str__(self) -> str:
        """Return the mount path and the sums."""
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        sums = f"{self.file_count} files, {self.total_bytes} bytes{skipped}"
        return f"{display_path(self.mount_path)} ({sums})"

    def preview(self, limit: int = 20, *, with_host_path: bool = False) -> str:
        """Return a few lines for a prompt: the sums and the first files, nearest the top first.

        Names are escaped, each takes one line and 200 characters at most. Where the files
        are on the host is said only if asked for.
        """
        first = nsmallest(limit, self.paths, key=lambda path: (path.count("/"), path))
        origin = f", copied from {_short(self.host_path)}" if with_host_path else ""
        lines = [f"{self}{origin}", *(f"- {_short(path)}" for path in first)]
        more = len(self.paths) - len(first)
        if more:
            lines.append(f"- ... and {more} more")
        return "\n".join(lines)


class ProgressMeter:
    """Counts what is done, and tells a listener at every hundredth of it."""

    def __init__(self, listener: ProgressListener | None, files: int, size: int) -> None:
        """Count up to so many files and bytes, and tell that nothing is done yet."""
        self._listener = listener
        self._files = files
        self._size = size
        self._done_files = 0
        self._done_size = 0
        self._told = -1
        self.add(0, 0)

    def add(self, files: int, size: int) -> None:
        """Count so much more."""
        if self._listener is None:
            return
        self._done_files += files
        self._done_size += size
        done, total = self._done_files + self._done_size, self._files + self._size
        step = done * _STEPS // total if total else _STEPS
        if step > self._told:
            self._told = step
            self._listener(
                MountProgress(self._done_files, self._files, self._done_size, self._size)
            )


def _short(path: str) -> str:
    text = display_path(path)
    if len(text) <= _MAX_SHOWN:
        return text
    half = _MAX_SHOWN // 2
    return f"{text[: half - 3]}...{text[-half:]}"
