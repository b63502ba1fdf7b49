"""Path strings: join, parents, display with invisible characters escaped, temporary names.

A temporary name identifies the process that owns it: a write in progress is named
`.wink-tmp-<namespace>-<pid>-<start>-<n>`. If its process was killed, any other process can tell
from the name that it is a leftover, even when the process id has been reused. The journal of a
savepoint is named `.wink-tmp-journal-...`: it is not a leftover to remove, but a journal to roll
back.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import count
from pathlib import Path

from weakincentives.characters import INVISIBLE

_UNPRINTABLE = re.compile("[\\\\\x00-\x1f\x7f]|[^\x00-\x7f]")
_ESCAPES = re.compile(
    r"\\(?:(?P<plain>[\\nrt])|x(?P<byte>[0-9a-f]{2})|u(?P<short>[0-9a-f]{4})|U(?P<long>[0-9a-f]{8}))"
)
MAX_DISPLAYED = 1_000  # characters of a path in an error message
RESERVED_PREFIX = ".wink-tmp-"
"""The prefix of our temporary names: writes in progress, and leftovers of killed writers."""
_MAX_FOREIGN_AGE = 3600.0  # seconds; an older name from another pid namespace is a leftover
_OWNER = re.compile(r"([0-9a-f]+)-([0-9]+)-([0-9]+)-[0-9a-f]+")
_numbers = count()


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    if character == "\\":
        return "\\\\"
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"  # a byte that is not UTF-8
    if character.isprintable() and not INVISIBLE.match(character):
        return character
    if code < 0x80:
        return character.encode("unicode_escape").decode()
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _unescape(match: re.Match[str]) -> str:
    plain, byte, short, long = match.group("plain", "byte", "short", "long")
    if plain:
        return {"n": "\n", "r": "\r", "t": "\t"}.get(plain, plain)
    code = int(byte or short or long, 16)
    if byte and code >= 0x80:
        code += 0xDC00  # a byte that is not UTF-8
    return chr(code) if code <= sys.maxunicode else match.group()


def parents_of(path: str) -> Iterator[str]:
    """Yield the directories above `path`, outermost first, without the root."""
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)


def is_within(path: str, parents: Iterable[str]) -> bool:
    """Return whether a path is at or below one of `parents`; the empty one is the root."""
    return any(not each or f"{path}/".startswith(f"{each}/") for each in parents)


def parent_of(path: str) -> str:
    """Return the parent directory of `path`; the root is the empty string."""
    return path.rpartition("/")[0]


def join(directory: str, name: str) -> str:
    """Return the path of `name` in `directory`."""
    return f"{directory}/{name}" if directory else name


def shorten_path(path: str) -> str:
    """Return `path` for an error message; a very long one loses its middle."""
    if len(path) <= MAX_DISPLAYED:
        return path
    half = MAX_DISPLAYED // 2
    return f"{path[:half]}...{path[-half:]}"


def parse_displayed_path(text: str) -> str:
    """Return the path that `display_path` renders as `text`."""
    return _ESCAPES.sub(_unescape, text)


def display_path(path: str) -> str:
    """Return `path` for people and models: the root as `.`, invisible characters escaped."""
    if not path:
        return "."
    if path.isascii() and path.isprintable() and "\\" not in path:
        return path
    return _UNPRINTABLE.sub(_escape, path)


def display_paths(paths: Sequence[str], most: int = 20) -> str:
    """Return the first paths in a line, and how many more there are."""
    more = len(paths) - most
    names = ", ".join(map(display_path, paths[:most]))
    return names if more <= 0 else f"{names} and {more:,} more"


def os_error(code: int, path: str, text: str = "") -> OSError:
    """Return the builtin error for an `errno` code; Python picks the class."""
    return OSError(code, text or os.strerror(code), display_path(shorten_path(path)))


def temporary_name() -> str:
    """Return a name that is unique on this machine."""
    return f"{_own_prefix(os.getpid())}{next(_numbers):x}"


def is_temporary(name: str) -> bool:
    """Return whether `name` has the reserved prefix."""
    return name.startswith(RESERVED_PREFIX)


def is_hidden(path: str) -> bool:
    """Return whether `path` is, or is below, a name with the reserved prefix."""
    return RESERVED_PREFIX in path and any(map(is_temporary, path.split("/")))


def is_leftover(name: str, age: float) -> bool:
    """Return whether the process that created `name`, `age` seconds old, has ended.

    A name that has the prefix but not our form is a user's file, never a leftover.
    """
    owner = owner_in(name, RESERVED_PREFIX)
    if not owner:
        return False
    gone = is_owner_gone(owner)
    return age > _MAX_FOREIGN_AGE if gone is None else gone


def owner_name() -> str:
    """Return a unique name that identifies this process, as in `temporary_name`."""
    return temporary_name().removeprefix(RESERVED_PREFIX)


def owner_in(name: str, prefix: str) -> str:
    """Return the `owner_name` that follows a prefix; empty if a name has another form."""
    owner = name.removeprefix(prefix)
    return owner if owner != name and _OWNER.fullmatch(owner) else ""


def is_own(owner: str) -> bool:
    """Return whether this process has made an `owner_name`."""
    return owner.startswith(_own_prefix(os.getpid()).removeprefix(RESERVED_PREFIX))


def is_owner_gone(owner: str) -> bool | None:
    """Return whether the process with this `owner_name` has ended; None if that is unknown."""
    match = _OWNER.fullmatch(owner)
    if match is None:
        return None
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
