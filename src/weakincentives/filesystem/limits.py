"""Limits: how large, how deep, how many and how long.

`Limits` bounds what is created and what is returned. The time limit is a
context-local value, because it belongs to the caller of an operation and not to
the filesystem: whoever runs a tool call sets it once, and every search and read
below it stops in time.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from weakincentives.errors import WinkError

MAX_PATH_DEPTH = 16
MAX_SEGMENT_LENGTH = 80
MAX_WRITE_LENGTH = 48_000
DEFAULT_READ_LIMIT = 2_000
MAX_GREP_MATCHES = 1_000

READ_ENTIRE_FILE = -1
"""A `limit` that means "to the end"."""


class LimitExceededError(WinkError, ValueError):
    """Something is larger, deeper or more than the limits allow."""


class TimeLimitError(WinkError, TimeoutError):
    """An operation was stopped because its time was up."""


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
_RETURN_SECONDS = 1.0  # kept for returning what was found

_Clock = Callable[[], float]
_deadline: ContextVar[tuple[float, _Clock] | None] = ContextVar("deadline", default=None)


@contextmanager
def time_limit(seconds: float, *, clock: _Clock | None = None) -> Generator[None, None, None]:
    """Stop filesystem work in this context after `seconds`; an outer, earlier limit stays.

    The time is taken from `clock`, else from that of the outer limit, else from the machine.
    """
    outer = _deadline.get()
    clock = clock or (time.monotonic if outer is None else outer[1])
    mine = (clock() + seconds, clock)
    if outer is not None and outer[0] - outer[1]() <= seconds:
        mine = outer
    token = _deadline.set(mine)
    try:
        yield
    finally:
        _deadline.reset(token)


@contextmanager
def no_time_limit() -> Generator[None, None, None]:
    """Let work in this context go on to its end, late as it may be: taking back what was done."""
    token = _deadline.set(None)
    try:
        yield
    finally:
        _deadline.reset(token)


def time_left() -> float | None:
    """Return how many seconds the time limit of this context leaves; None if there is none."""
    deadline = _deadline.get()
    return None if deadline is None else deadline[0] - deadline[1]()


@contextmanager
def early_time_limit(seconds: float) -> Generator[None, None, None]:
    """Stop after `seconds`, or so early that the caller can still tell what was found.

    A tenth of what an outer limit leaves, and at most a second, is kept for that.
    """
    left = time_left()
    if left is not None:
        seconds = min(seconds, left - min(left / 10, _RETURN_SECONDS))
    with time_limit(seconds):
        yield


def share_of_time(others: int) -> float:
    """Return the seconds that a large file may take of a search, so that others are searched too.

    For the `others` half a second is kept, a millisecond each if that is more, but never more
    than half of what is left.
    """
    left = time_left()
    if left is None:
        return DEFAULT_LIMITS.max_search_seconds
    return left - min(left / 2, max(_OTHERS_SECONDS, others / 1_000))


def is_time_up() -> bool:
    """Return whether the time limit of this context has passed."""
    deadline = _deadline.get()
    return deadline is not None and deadline[1]() >= deadline[0]


def check_time(what: str) -> None:
    """Return while there is time left.

    Raises:
        TimeLimitError: The time limit of this context has passed.
    """
    if is_time_up():
        raise TimeLimitError(f"{what} stopped: the time limit of this call has passed")
