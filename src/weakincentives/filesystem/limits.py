"""Limits: how large, how deep, how many and how long.

`Limits` bounds what is created and what is returned. The time limit is a
context-local value, because it belongs to the caller of an operation and not to
the filesystem: whoever runs a tool call sets it once, and every search and read
below it stops in time.
"""

from collections.abc import Callable
from dataclasses import dataclass

from weakincentives.errors import WinkError
from weakincentives.posix import remaining_time

MAX_PATH_DEPTH = 16
MAX_SEGMENT_LENGTH = 80
MAX_WRITE_LENGTH = 48_000
DEFAULT_READ_LIMIT = 2_000
MAX_GREP_MATCHES = 1_000
READ_ENTIRE_FILE = -1
"""A `limit` that means "to the end"."""


class LimitExceededError(WinkError, ValueError):
    """Something is larger, deeper or more than the limits allow."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one filesystem allows; every field can be set.

    Path and content limits bind when something is created through the protocol.
    Reading, overwriting and deleting what exists never fails for its depth. The
    quota (`max_total_bytes`, `max_files`) binds everything that grows the workspace.
    """

    max_path_depth: int = MAX_PATH_DEPTH
    """Segments in the path of something new."""
    max_segment_length: int = MAX_SEGMENT_LENGTH
    """Characters in one segment of something new."""
    max_write_length: int = MAX_WRITE_LENGTH
    """Characters (or bytes) in one write."""
    default_read_limit: int = DEFAULT_READ_LIMIT
    """Lines in a read that names no limit."""
    max_list_entries: int = 50_000
    """Entries in one listing."""
    max_glob_matches: int = 200_000
    """Paths in one glob."""
    max_grep_matches: int = MAX_GREP_MATCHES
    """Matches in one search."""
    max_grep_characters: int = 256_000
    """Characters in all matched lines of one search."""
    max_line_length: int = 2_000
    """Characters shown of one matched line."""
    max_search_seconds: float = 10.0
    """Seconds for one glob or grep, whatever the pattern; then what was found is returned."""
    max_read_seconds: float = 10.0
    """Seconds for finding one page of a large text file."""
    max_read_bytes: int = 1024 * 1024 * 1024
    """Bytes that are loaded into memory at once."""
    max_count_bytes: int = 256 * 1024 * 1024
    """Bytes behind a page of text that are read to count the lines of the file."""
    max_pattern_length: int = 4_096
    """Characters in a glob or a regular expression."""
    max_total_bytes: int | None = None
    """Bytes in all files together; None is no quota."""
    max_files: int | None = None
    """Files, links and directories together; None is no quota."""


DEFAULT_LIMITS = Limits()
_OTHERS_SECONDS = 0.5  # kept for the files after a large one


def share_of_time(others: int) -> float:
    """Return the seconds that a large file may take of a search, so that others are searched too.

    For the `others` half a second is kept, a millisecond each if that is more, but never more
    than half of what is left.
    """
    left = remaining_time()
    if left is None:
        return DEFAULT_LIMITS.max_search_seconds
    return left - min(left / 2, max(_OTHERS_SECONDS, others / 1_000))


class Quota:
    """Growth against the limits, without counting the workspace at every write.

    The estimate only grows, so it is never below what went through the protocol.
    Only when it says that the quota is reached is the workspace counted again.
    """

    def __init__(self, limits: Limits, count: Callable[[], tuple[int, int]]) -> None:
        """Bound by `limits`; `count` returns bytes and entries now."""
        self._max_bytes = limits.max_total_bytes
        self._max_files = limits.max_files
        self._count = count
        self._estimate: tuple[int, int] | None = None

    def __bool__(self) -> bool:
        """Whether there is anything to keep to."""
        return self._max_bytes is not None or self._max_files is not None

    def check(self, size: int, files: int) -> None:
        """Return if a whole workspace may be so large.

        Raises:
            LimitExceededError: It may not.
        """
        excess = self._excess((0, 0), size, files)
        if excess:
            raise LimitExceededError(excess)

    def recount(self) -> None:
        """Forget the estimate: everything may have changed."""
        self._estimate = None

    def admit(self, more_bytes: int, more_files: int) -> None:
        """Return if there is room for so much more.

        Raises:
            LimitExceededError: There is not.
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
