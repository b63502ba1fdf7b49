"""Temporary names that tell whether their maker is still alive.

A write in progress has a name such as `.wink-tmp-<namespace>-<pid>-<start>-<n>`. If its
process was killed, anybody who meets the name later can tell that it is a leftover,
even when the process number has been given to somebody else.
"""

import os
import re
from functools import cache
from itertools import count
from pathlib import Path

from weakincentives.filesystem.paths import RESERVED_PREFIX

_FOREIGN_AGE = 3600.0  # seconds after which a name from another pid namespace is a leftover
_MADE = re.compile(re.escape(RESERVED_PREFIX) + r"([0-9a-f]+)-([0-9]+)-([0-9]+)-[0-9a-f]+")
_numbers = count()


def temporary_name() -> str:
    """Return a name that nobody else uses."""
    return f"{_own_prefix(os.getpid())}{next(_numbers):x}"


def is_temporary(name: str) -> bool:
    """Return whether `name` is ours."""
    return name.startswith(RESERVED_PREFIX)


def is_leftover(name: str, age: float) -> bool:
    """Return whether `name`, `age` seconds old, was made here by a process that is gone.

    A name that only begins like ours is somebody else's, and never a leftover.
    """
    made = _MADE.fullmatch(name)
    if made is None:
        return False
    namespace, pid, start = made.groups()
    if namespace != _namespace():
        return age > _FOREIGN_AGE
    identity = _identity(int(pid))
    if identity is None:
        return age > _FOREIGN_AGE
    return identity != f"{pid}-{start}"


@cache
def _own_prefix(pid: int) -> str:
    return f"{RESERVED_PREFIX}{_namespace()}-{_identity(pid) or f'{pid}-0'}-"


@cache
def _namespace() -> str:
    try:
        return format(Path("/proc/self/ns/pid").stat().st_ino, "x")
    except OSError:
        return "0"


def _identity(pid: int) -> str | None:
    """Return the process number with its start time.

    Empty if there is no such process, None if there is one that we may not look at.
    """
    for _ in range(2):  # it may end between the two questions
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            if not _can_be_signalled(pid):
                return ""
            continue
        # a killed process that nobody has waited for yet writes no more
        return "" if fields[0] in {b"Z", b"X"} else f"{pid}-{fields[19].decode()}"
    return None


def _can_be_signalled(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
