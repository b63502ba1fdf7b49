"""What is said about a mount: while it runs, and afterwards."""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import TypeAlias

from weakincentives.filesystem.paths import shown

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
        return f"{shown(self.path)}: {self.reason}"


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
        return f"{shown(self.mount_path)} ({sums})"

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


class Meter:
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
    text = shown(path)
    if len(text) <= _MAX_SHOWN:
        return text
    half = _MAX_SHOWN // 2
    return f"{text[: half - 3]}...{text[-half:]}"
