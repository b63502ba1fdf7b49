"""Temporary names that tell whether their maker is still alive.

A write in progress has a name such as `.wink-tmp-<namespace>-<pid>-<start>-<n>`. If its
process was killed, anybody who meets the name later can tell that it is a leftover,
even when the process number has been given to somebody else.
"""

import os
from functools import cache
from itertools import count
from pathlib import Path

from weakincentives.filesystem.paths import RESERVED_PREFIX

_FOREIGN_AGE = 3600.0  # seconds after which a name from another pid namespace is a leftover
_numbers = count()


def temporary_name() -> str:
    """Return a name that nobody else uses."""
    return f"{_own_prefix(os.getpid())}{next(_numbers):x}"


def is_temporary(name: str) -> bool:
    """Return whether `name` is ours."""
    return name.startswith(RESERVED_PREFIX)


def is_leftover(name: str, age: float) -> bool:
    """Return whether the maker of a temporary `name`, `age` seconds old, is gone."""
    parts = name.removeprefix(RESERVED_PREFIX).split("-")
    if len(parts) != 4 or not (parts[1].isascii() and parts[1].isdecimal()):
        return True
    namespace, pid, start, _ = parts
    if namespace != _namespace():
        return age > _FOREIGN_AGE
    return _identity(int(pid)) != f"{pid}-{start}"


@cache
def _own_prefix(pid: int) -> str:
    return f"{RESERVED_PREFIX}{_namespace()}-{_identity(pid)}-"


@cache
def _namespace() -> str:
    try:
        return format(Path("/proc/self/ns/pid").stat().st_ino, "x")
    except OSError:
        return "0"


def _identity(pid: int) -> str:
    """Return the process number with its start time; empty if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except FileNotFoundError:
        return _identity_by_signal(pid)
    # a killed process that nobody has waited for yet writes no more
    return "" if fields[0] in {b"Z", b"X"} else f"{pid}-{fields[19].decode()}"


def _identity_by_signal(pid: int) -> str:
    """Without /proc: whether the process can be signalled is all there is to know."""
    if Path("/proc/self/stat").exists():
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return f"{pid}-0"
    return f"{pid}-0"
