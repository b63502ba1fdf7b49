"""Temporary file names that identify the process that owns them.

A write in progress is named `.wink-tmp-<namespace>-<pid>-<start>-<n>`. If its process was
killed, any other process can tell from the name that it is a leftover, even when the process id
has been reused. The journal of a savepoint is named `.wink-tmp-journal-...`: it is not a
leftover to remove, but a journal to roll back.
"""

import os
import re
from functools import cache
from itertools import count
from pathlib import Path

RESERVED_PREFIX = ".wink-tmp-"
"""The prefix of our temporary names: writes in progress, and leftovers of killed writers."""
_MAX_FOREIGN_AGE = 3600.0  # seconds; an older name from another pid namespace is a leftover
_OWNER = r"([0-9a-f]+)-([0-9]+)-([0-9]+)-[0-9a-f]+"
_TEMPORARY = re.compile(re.escape(RESERVED_PREFIX) + _OWNER)
_JOURNAL_PREFIX = f"{RESERVED_PREFIX}journal-"
_JOURNAL = re.compile(re.escape(_JOURNAL_PREFIX) + _OWNER)
_numbers = count()


def temporary_name() -> str:
    """Return a name that is unique on this machine."""
    return f"{_own_prefix(os.getpid())}{next(_numbers):x}"


def is_temporary(name: str) -> bool:
    """Return whether `name` has the reserved prefix."""
    return name.startswith(RESERVED_PREFIX)


def is_hidden(path: str) -> bool:
    """Return whether `path` is, or is below, a name with the reserved prefix."""
    return RESERVED_PREFIX in path and any(map(is_temporary, path.split("/")))


def journal_name() -> str:
    """Return a unique name for a journal."""
    return _JOURNAL_PREFIX + temporary_name().removeprefix(RESERVED_PREFIX)


def is_journal(name: str) -> bool:
    """Return whether `name` is the name of a journal."""
    return _JOURNAL.fullmatch(name) is not None


def is_orphan(journal: str, *, live: bool) -> bool | None:
    """Return whether no process will finish a journal; None if that is unknown.

    `live` says whether this process still uses it, which its name alone does not tell.
    """
    match = _JOURNAL.fullmatch(journal)
    if match is None or live:
        return False
    if journal.startswith(_JOURNAL_PREFIX + _own_prefix(os.getpid()).removeprefix(RESERVED_PREFIX)):
        return True
    return _is_gone(match)


def is_leftover(name: str, age: float) -> bool:
    """Return whether the process that created `name`, `age` seconds old, has ended.

    A name that has the prefix but not our form is a user's file, never a leftover.
    """
    match = _TEMPORARY.fullmatch(name)
    if match is None:
        return False
    gone = _is_gone(match)
    return age > _MAX_FOREIGN_AGE if gone is None else gone


def owner_name() -> str:
    """Return a unique name that identifies this process, as in `temporary_name`."""
    return temporary_name().removeprefix(RESERVED_PREFIX)


def is_owner_gone(owner: str) -> bool | None:
    """Return whether the process with this `owner_name` has ended; None if that is unknown."""
    match = _TEMPORARY.fullmatch(RESERVED_PREFIX + owner)
    return None if match is None else _is_gone(match)


def _is_gone(match: re.Match[str]) -> bool | None:
    """Return whether the process that owns a name has ended; None if that is unknown."""
    namespace, pid, start = match.groups()
    if namespace != _namespace():
        return None
    identity = _identity(int(pid))
    return None if identity is None else identity != f"{pid}-{start}"


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
    """Return the process id with its start time.

    Empty if there is no such process, None if there is one that we may not inspect.
    """
    for _ in range(2):  # it may end between the two checks
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            if not _can_be_signalled(pid):
                return ""
            continue
        # a zombie does not write any more
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
