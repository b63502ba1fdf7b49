"""Temporary names that tell whether their maker is still alive.

A write in progress has a name such as `.wink-tmp-<namespace>-<pid>-<start>-<n>`. If its
process was killed, anybody who meets the name later can tell that it is a leftover,
even when the process number has been given to somebody else. The journal of a savepoint
has a name of its own, `.wink-tmp-journal-...`: it is no leftover, but to be rolled back.
"""

import os
import re
from functools import cache
from itertools import count
from pathlib import Path

RESERVED_PREFIX = ".wink-tmp-"
"""Names that start so are ours: writes in progress, and what a killed writer left."""
_FOREIGN_AGE = 3600.0  # seconds after which a name from another pid namespace is a leftover
_MAKER = r"([0-9a-f]+)-([0-9]+)-([0-9]+)-[0-9a-f]+"
_MADE = re.compile(re.escape(RESERVED_PREFIX) + _MAKER)
_JOURNAL_PREFIX = f"{RESERVED_PREFIX}journal-"
_JOURNAL = re.compile(re.escape(_JOURNAL_PREFIX) + _MAKER)
_numbers = count()


def temporary_name() -> str:
    """Return a name that nobody else uses."""
    return f"{_own_prefix(os.getpid())}{next(_numbers):x}"


def is_temporary(name: str) -> bool:
    """Return whether `name` is ours."""
    return name.startswith(RESERVED_PREFIX)


def is_hidden(path: str) -> bool:
    """Return whether `path` is, or lies below, something that is ours."""
    return RESERVED_PREFIX in path and any(map(is_temporary, path.split("/")))


def journal_name() -> str:
    """Return a name for a journal that nobody else uses."""
    return _JOURNAL_PREFIX + temporary_name().removeprefix(RESERVED_PREFIX)


def is_journal(name: str) -> bool:
    """Return whether `name` is that of a journal."""
    return _JOURNAL.fullmatch(name) is not None


def is_orphan(journal: str, *, live: bool) -> bool | None:
    """Return whether nobody will end a journal; None if that cannot be told.

    `live` says whether this process uses it: that it has made it is not enough.
    """
    made = _JOURNAL.fullmatch(journal)
    if made is None or live:
        return False
    if journal.startswith(_JOURNAL_PREFIX + _own_prefix(os.getpid()).removeprefix(RESERVED_PREFIX)):
        return True
    return _is_gone(made)


def is_leftover(name: str, age: float) -> bool:
    """Return whether `name`, `age` seconds old, was made here by a process that is gone.

    A name that only begins like ours is somebody else's, and never a leftover.
    """
    made = _MADE.fullmatch(name)
    if made is None:
        return False
    gone = _is_gone(made)
    return age > _FOREIGN_AGE if gone is None else gone


def owner_name() -> str:
    """Return what names this process in `temporary_name`, with a number that nobody else uses."""
    return temporary_name().removeprefix(RESERVED_PREFIX)


def is_owner_gone(maker: str) -> bool | None:
    """Return whether the process with this `owner_name` is gone; None if that cannot be told."""
    made = _MADE.fullmatch(RESERVED_PREFIX + maker)
    return None if made is None else _is_gone(made)


def _is_gone(made: re.Match[str]) -> bool | None:
    """Return whether the maker of a name is gone; None if that cannot be told."""
    namespace, pid, start = made.groups()
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
