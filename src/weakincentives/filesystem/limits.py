"""Limits on paths, sizes, counts and time; the quota of a workspace; the memory check.

`Limits` bounds what is created and what is returned. `Quota` bounds the whole workspace.
`check_fits` raises before a file is loaded that does not fit into memory. The deadline of an
operation is not here: it is a context variable (`time_limit`), since it belongs to the caller.
"""

import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from weakincentives.errors import WinkError
from weakincentives.posix import display_path, remaining_time, shorten_path

MAX_PATH_DEPTH = 16
MAX_SEGMENT_LENGTH = 80
MAX_WRITE_LENGTH = 48_000
DEFAULT_READ_LIMIT = 2_000
MAX_GREP_MATCHES = 1_000
READ_ENTIRE_FILE = -1
"""A `limit` that means "to the end"."""


class LimitExceededError(WinkError, ValueError):
    """A size, depth or count exceeds the limits."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one filesystem; every field can be set.

    Path and content limits apply when an entry is created through the protocol. Existing
    entries can be read, overwritten and deleted at any depth. The quota (`max_total_bytes`,
    `max_files`) applies to everything that grows the workspace.
    """

    max_path_depth: int = MAX_PATH_DEPTH
    """Segments in the path of a new entry."""
    max_segment_length: int = MAX_SEGMENT_LENGTH
    """Characters in one segment of a new path."""
    max_write_length: int = MAX_WRITE_LENGTH
    """Characters (or bytes) in one write."""
    default_read_limit: int = DEFAULT_READ_LIMIT
    """Lines in a read without a limit."""
    max_list_entries: int = 50_000
    """Entries in one listing."""
    max_glob_matches: int = 200_000
    """Paths in one glob."""
    max_grep_matches: int = MAX_GREP_MATCHES
    """Matches in one search."""
    max_grep_characters: int = 256_000
    """Characters in all matched lines of one search."""
    max_line_length: int = 2_000
    """Characters kept of one matched line."""
    max_search_seconds: float = 10.0
    """Seconds for one glob or grep, with any pattern; then partial results are returned."""
    max_read_seconds: float = 10.0
    """Seconds to find one page of a large text file."""
    max_read_bytes: int = 1024 * 1024 * 1024
    """Bytes loaded into memory at once."""
    max_count_bytes: int = 256 * 1024 * 1024
    """Bytes after a page of text that are read to count the lines of the file."""
    max_pattern_length: int = 4_096
    """Characters in a glob or a regular expression."""
    max_total_bytes: int | None = None
    """Bytes in all files together; None for no quota."""
    max_files: int | None = None
    """Files, links and directories together; None for no quota."""


DEFAULT_LIMITS = Limits()
POSIX_LIMITS = Limits(max_path_depth=2_048, max_segment_length=255)
"""The default limits, but with all paths that the operating system can store."""
_RESERVED_SECONDS = 0.5  # reserved for the files after a large one


def limits_of(filesystem: object) -> Limits:
    """Return the limits of `filesystem`; the defaults if it has none."""
    limits = getattr(filesystem, "limits", None)
    return limits if isinstance(limits, Limits) else DEFAULT_LIMITS


def share_of_time(others: int) -> float:
    """Return the seconds that a search may spend on one large file.

    Half a second is reserved for the `others`, or a millisecond each if that is more, but at
    most half of the remaining time.
    """
    left = remaining_time()
    if left is None:
        return DEFAULT_LIMITS.max_search_seconds
    return left - min(left / 2, max(_RESERVED_SECONDS, others / 1_000))


class Quota:
    """Checks growth against the quota without counting the workspace at every write.

    It keeps an upper bound of the usage, which only grows. The workspace is counted again
    only when that bound reaches the quota.
    """

    def __init__(self, limits: Limits, count: Callable[[], tuple[int, int]]) -> None:
        """Enforce the quota of `limits`; `count` returns the present bytes and entries."""
        self._max_bytes = limits.max_total_bytes
        self._max_files = limits.max_files
        self._count = count
        self._estimate: tuple[int, int] | None = None

    def __bool__(self) -> bool:
        """Whether there is a quota."""
        return self._max_bytes is not None or self._max_files is not None

    def check(self, size: int, files: int) -> None:
        """Check the size of a whole workspace.

        Raises:
            LimitExceededError: It exceeds the quota.
        """
        excess = self._excess((0, 0), size, files)
        if excess:
            raise LimitExceededError(excess)

    def recount(self) -> None:
        """Drop the estimate: everything may have changed."""
        self._estimate = None

    def admit(self, more_bytes: int, more_files: int) -> None:
        """Check that there is room for more, and add it to the estimate.

        Raises:
            LimitExceededError: It would exceed the quota.
        """
        if not self:
            return
        used = self._estimate or self._count()
        if self._excess(used, more_bytes, more_files):
            used = self._count()
            excess = self._excess(used, more_bytes, more_files)
            if excess:
                raise LimitExceededError(excess)
        self._estimate = (used[0] + max(0, more_bytes), used[1] + more_files)

    def _excess(self, used: tuple[int, int], more_bytes: int, more_files: int) -> str:
        size, files = used[0] + more_bytes, used[1] + more_files
        if self._max_bytes is not None and more_bytes > 0 and size > self._max_bytes:
            return f"Workspace quota exceeded: {size} of {self._max_bytes} bytes"
        if self._max_files is not None and more_files > 0 and files > self._max_files:
            return f"Workspace quota exceeded: {files} of {self._max_files} files and directories"
        return ""


_ALWAYS_FITS = 32 * 1024 * 1024  # bytes that are loaded without a look at the available memory
_COPIES = 2  # the pieces, and the bytes joined
_TEXT_COPIES = 5  # the bytes, and up to four bytes per character
_CGROUPS = Path("/sys/fs/cgroup")
_IN_PARTS = "read parts of it with offset and limit, by read_bytes if its lines are too long"


def check_fits(
    path: str,
    wanted: int,
    size: int,
    limits: Limits,
    *,
    text: bool = False,
    instead: str = _IN_PARTS,
) -> None:
    """Check that `wanted` bytes of a file of `size` bytes can be loaded at once.

    Raises:
        LimitExceededError: They exceed `max_read_bytes` or the available memory; the message
            says what to do `instead`.
    """
    if wanted > limits.max_read_bytes:
        limit = f"max_read_bytes of {limits.max_read_bytes:,}"
        raise _memory_error(path, wanted, size, limit, instead)
    if wanted > _ALWAYS_FITS:
        memory = available_memory()
        if memory is not None and wanted * (_TEXT_COPIES if text else _COPIES) > memory:
            limit = f"the available memory of {memory:,} bytes"
            raise _memory_error(path, wanted, size, limit, instead)


def out_of_memory(path: str, wanted: int, size: int) -> LimitExceededError:
    """Return the error for a MemoryError after `check_fits` passed."""
    return _memory_error(path, wanted, size, "the available memory", _IN_PARTS)


def available_memory() -> int | None:
    """Return the bytes of memory available to this process; None if the system does not say."""
    found = (_machine_memory(), _process_memory(), _cgroup_memory())
    return min((each for each in found if each is not None), default=None)


def _memory_error(
    path: str, wanted: int, size: int, limit: str, instead: str
) -> LimitExceededError:
    return LimitExceededError(
        f"Reading {wanted:,} bytes at once exceeds {limit}:"
        f" {display_path(shorten_path(path))!r} has"
        f" {size:,} bytes; {instead}"
    )


def _machine_memory() -> int | None:
    for line in _lines(Path("/proc/meminfo")):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _process_memory() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = next(_lines(Path("/proc/self/statm")), None)
    if limit == resource.RLIM_INFINITY or used is None:
        return None
    return max(limit - int(used.split()[0]) * os.sysconf("SC_PAGE_SIZE"), 0)


def _cgroup_memory() -> int | None:
    """Return the headroom of this process's control group and those above it."""
    line = next((each for each in _lines(Path("/proc/self/cgroup")) if each[:3] == "0::"), None)
    if line is None:
        return None
    group = _CGROUPS / line[3:].strip().lstrip("/")
    left = (
        _cgroup_headroom(each) for each in (group, *group.parents) if each.is_relative_to(_CGROUPS)
    )
    return min((each for each in left if each is not None), default=None)


def _cgroup_headroom(group: Path) -> int | None:
    limit = next(_lines(group / "memory.max"), "max").strip()
    used = next(_lines(group / "memory.current"), None)
    if limit == "max" or used is None:
        return None
    pairs = (line.split() for line in _lines(group / "memory.stat"))
    # the page cache is reclaimed when memory is needed
    cached = sum(int(value) for name, value in pairs if name in {"active_file", "inactive_file"})
    return max(int(limit) - int(used) + cached, 0)


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text().splitlines()
    except OSError:
        return
