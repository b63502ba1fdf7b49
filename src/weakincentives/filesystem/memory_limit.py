"""What fits into memory: whoever loads a whole file asks here first."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from weakincentives.filesystem.limits import LimitExceededError, Limits
from weakincentives.posix import display_path, shorten_path

_ALWAYS_FITS = 32 * 1024 * 1024  # bytes for which nobody asks how much memory there is
_COPIES = 2  # bytes are put together from pieces
_TEXT_COPIES = 5  # bytes, and up to four for each character
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
    """Return if `wanted` bytes of a file of `size` bytes may be loaded at once.

    Raises:
        LimitExceededError: They exceed `max_read_bytes`, or the memory that is available;
            it says what to do `instead`.
    """
    if wanted > limits.max_read_bytes:
        limit = f"max_read_bytes of {limits.max_read_bytes:,}"
        raise _refusal(path, wanted, size, limit, instead)
    if wanted > _ALWAYS_FITS:
        memory = available_memory()
        if memory is not None and wanted * (_TEXT_COPIES if text else _COPIES) > memory:
            limit = f"the available memory of {memory:,} bytes"
            raise _refusal(path, wanted, size, limit, instead)


def out_of_memory(path: str, wanted: int, size: int) -> LimitExceededError:
    """Return the error for bytes that did not fit although it looked as if they would."""
    return _refusal(path, wanted, size, "the available memory", _IN_PARTS)


def available_memory() -> int | None:
    """Return how many bytes this process can still use; None if the system does not say."""
    found = (_of_the_machine(), _of_the_process(), _of_the_control_group())
    return min((each for each in found if each is not None), default=None)


def _refusal(path: str, wanted: int, size: int, limit: str, instead: str) -> LimitExceededError:
    return LimitExceededError(
        f"Reading {wanted:,} bytes at once exceeds {limit}:"
        f" {display_path(shorten_path(path))!r} has"
        f" {size:,} bytes; {instead}"
    )


def _of_the_machine() -> int | None:
    for line in _lines(Path("/proc/meminfo")):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _of_the_process() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = next(_lines(Path("/proc/self/statm")), None)
    if limit == resource.RLIM_INFINITY or used is None:
        return None
    return max(limit - int(used.split()[0]) * os.sysconf("SC_PAGE_SIZE"), 0)


def _of_the_control_group() -> int | None:
    """Return what the limits of this process's group, and of those above it, leave."""
    line = next((each for each in _lines(Path("/proc/self/cgroup")) if each[:3] == "0::"), None)
    if line is None:
        return None
    group = _CGROUPS / line[3:].strip().lstrip("/")
    left = (_left_in(each) for each in (group, *group.parents) if each.is_relative_to(_CGROUPS))
    return min((each for each in left if each is not None), default=None)


def _left_in(group: Path) -> int | None:
    limit = next(_lines(group / "memory.max"), "max").strip()
    used = next(_lines(group / "memory.current"), None)
    if limit == "max" or used is None:
        return None
    pairs = (line.split() for line in _lines(group / "memory.stat"))
    # what was read from disk is given back when memory is needed
    cached = sum(int(value) for name, value in pairs if name in {"active_file", "inactive_file"})
    return max(int(limit) - int(used) + cached, 0)


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text().splitlines()
    except OSError:
        return
