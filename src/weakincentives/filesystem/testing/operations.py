"""Operations as data: drawn at random, done to any filesystem, with outcomes to compare.

Everything is drawn by choosing from sequences, so one table serves a seeded run of a
million operations and Hypothesis, which shrinks a choice towards the first: the
simple values come first.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from weakincentives.errors import WinkError
from weakincentives.filesystem import (
    BaseFilesystem,
    FileStat,
    Filesystem,
    Results,
    normalize_path,
)
from weakincentives.filesystem.testing.texts import AWKWARD_TEXTS

T = TypeVar("T")


class Choose(Protocol):
    """Picks one of several values, as `random.Random.choice` does."""

    def __call__(self, values: Sequence[T], /) -> T:
        """Return one of `values`."""
        ...


Draw: TypeAlias = Callable[[Choose], object]

# few and short, so that operations meet each other's files
_COMMON_NAMES = ("a", "b", "a.txt", "b.py", "é")
_RARE_NAMES = (
    "-rf", "a b", "*", "[x]", "a\\b", "日本", "😀", "CON", "a..", "...", "A", ".git", ".hidden",
    "e\u0301", "x\u200by", "\u202ex", "n\nl", "bell\a", " a", "a ", "\ufeffa", "a\ud800", "a\udcff",
    ".wink-tmp-0-1-2-3", "n" * 80, "n" * 81, "é" * 80, "😀" * 64, "n" * 255, "n" * 256,
)  # fmt: skip
_DEPTHS = (1, 1, 1, 1, 2, 2, 2, 3, 3, 4)
_HOSTILE_PATHS = (
    "", ".", "/", "..", "../a", "a/../..", "/..", "a\0", "\0", "a//b", "./a/./b", "a/", "/a/b/",
    "a/../b", "a/x/../../b", "///", "a/.", "/".join("d" * 16), "/".join("d" * 17),
    "/".join("d" * 40), "/".join(["n" * 80] * 16), "/".join(["n" * 200] * 30),
)  # fmt: skip
_CONTENTS = (
    "word", *AWKWARD_TEXTS.values(), "word\nWord\n", "a b\r\nword\r\n", "x" * 3_000,
    "*.py\n", "a\n", "b/\n!a\n", "/é\n", "*\n!*.txt\n",
)  # fmt: skip
_BINARIES = (
    b"", b"\0", b"\xff\xfe", b"word\n\0", b"caf\xe9 word\n", bytes(range(256)), b"\r\n" * 9,
    b"\xff" * 48_001,
)  # fmt: skip
_GLOBS = (
    "*", "**", "**/*", "*.py", "**/*.py", "a/*", "a/**", "*/a", "**/a", "?", "??", "[ab]", "[!a]*",
    "{a,b}", "{a,b}/{a,c}", "**/", "*/", "a/", ".*", "**/.*", "é", "*é*", "\\*", "[[]x]", "a\\\\b",
    "a/../b", "./a", "/a", "a//b", "../a", "**/..", "", "/", "{a,b}" * 20, "[", "{", "a**b",
    "b/**/a",
)  # fmt: skip
_REGEXES = (
    "word", "WORD", "(?i)word", "^", "$", "^word$", "", ".", "x+", "o.d", r"\bword\b", "[^a]", "é",
    r"\d", "a|b", "(", "[", r"(a)\1", "(?=a)", "(a+)+$", r"\x{1F600}", "\r", "\n", r"\s",
    r"\Aone\z", "one.two", r"\x00", "(?s).*",
)  # fmt: skip
_FILTERS = (None, None, None, None, "*", "*.py", "a/*", "**/a", "[ab]*", "é", "../x", "")
_TARGETS = ("a", "b/c", "gone", "/etc/passwd", "..", ".", "../..", "é", "a b")

_HALF = (False, True)
_IGNORE_FILES = (".gitignore", "a/.gitignore", ".ignore")
_KINDS_OF_PATH = (
    *[_COMMON_NAMES] * 16, (*_COMMON_NAMES, *_RARE_NAMES), (*_COMMON_NAMES, *_RARE_NAMES),
    _IGNORE_FILES, _HOSTILE_PATHS,
)  # fmt: skip
_KINDS_OF_TEXT = (*[_CONTENTS] * 49, ("x" * 48_000, "x" * 48_001, "é" * 48_000, "a\ud800"))


@dataclass(frozen=True, slots=True, repr=False)
class Operation:
    """One call of one method."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def made(self) -> str | None:
        """The path at which something is if this succeeded."""
        if self.name in {"write", "write_bytes", "mkdir", "link"}:
            return self.arguments["path"]
        return self.arguments.get("destination")

    def __repr__(self) -> str:
        """Return the call as it is written."""
        given = ", ".join(f"{name}={_short(value)}" for name, value in self.arguments.items())
        return f"{self.name}({given})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call returned, or the type of what it raised; comparable across backends."""

    value: object = None
    error: type[Exception] | None = None
    code: int | None = None


def draw_path(choose: Choose) -> str:
    """Draw a path: mostly one that others use too, sometimes a hostile one."""
    names = choose(_KINDS_OF_PATH)
    if names is _HOSTILE_PATHS or names is _IGNORE_FILES:
        return choose(names)
    return "/".join(choose(names) for _ in range(choose(_DEPTHS)))


def draw_text(choose: Choose) -> str:
    """Draw a text: line ends of all kinds, nothing at all, or more than is allowed."""
    return choose(choose(_KINDS_OF_TEXT))


def draw_bytes(choose: Choose) -> bytes:
    """Draw bytes: text, what is no text, or more than is allowed."""
    if choose(_HALF):
        return draw_text(choose).encode(errors="replace")
    return choose(_BINARIES)


def draw_glob(choose: Choose) -> str:
    """Draw a glob, or what is none."""
    return choose(_GLOBS)


def draw_regex(choose: Choose) -> str:
    """Draw a regular expression, or what is none."""
    return choose(_REGEXES)


def _short(value: object) -> str:
    """Return a literal for `value`; a long run of one character as a product."""
    if isinstance(value, str | bytes) and len(value) > 60 and value == value[:1] * len(value):
        return f"{value[:1]!r} * {len(value)}"
    return repr(value)


def _one_of(*values: object) -> Draw:
    return lambda choose: choose(values)


_NUMBER = _one_of(0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 7, 100, 10**18, -1, -2)
_LIMIT = _one_of(*[None] * 12, 0, 1, 1, 2, 3, 100, 10**18, -1, -2)
_FLAG = _one_of(True, False)
_SELDOM = _one_of(False, False, True)
_MODE = _one_of("overwrite", "overwrite", "append", "create")
_BASE = _one_of(".", ".", ".", ".", "a", "a/b", "b")
_OPERATIONS: dict[str, tuple[int, dict[str, Draw]]] = {
    "read": (8, {
        "path": draw_path,
        "offset": _NUMBER,
        "limit": _LIMIT,
        "encoding": _one_of("utf-8", "utf-8", "utf-8", "utf-8", "latin-1", "utf-16", "nonsense"),
    }),
    "read_bytes": (5, {"path": draw_path, "offset": _NUMBER, "limit": _LIMIT}),
    "exists": (3, {"path": draw_path}),
    "stat": (5, {"path": draw_path}),
    "list": (5, {"path": draw_path}),
    "glob": (4, {"pattern": draw_glob, "path": _BASE, "use_ignore_files": _SELDOM}),
    "glob_at": (1, {"pattern": draw_glob, "path": draw_path}),
    "grep": (4, {
        "pattern": draw_regex,
        "path": _BASE,
        "glob": _one_of(*_FILTERS),
        "max_matches": _LIMIT,
        "use_ignore_files": _SELDOM,
    }),
    "grep_at": (1, {"pattern": draw_regex, "path": draw_path}),
    "write": (14, {
        "path": draw_path, "content": draw_text, "mode": _MODE, "create_parents": _FLAG,
    }),
    "write_bytes": (7, {
        "path": draw_path, "content": draw_bytes, "mode": _MODE, "create_parents": _FLAG,
    }),
    "delete": (5, {"path": draw_path, "recursive": _FLAG}),
    "mkdir": (6, {"path": draw_path, "parents": _FLAG, "exist_ok": _FLAG}),
    "move": (5, {"source": draw_path, "destination": draw_path, "overwrite": _FLAG}),
    "copy": (5, {"source": draw_path, "destination": draw_path, "overwrite": _FLAG}),
    "link": (3, {"path": draw_path, "target": _one_of(*_TARGETS)}),
    "content_hash": (1, {"path": draw_path}),
}  # fmt: skip
_WEIGHTED = [name for name, (weight, _) in _OPERATIONS.items() for _ in range(weight)]
_BEYOND_THE_PROTOCOL = {
    "move": "move",
    "copy": "copy",
    "link": "_make_link",
    "content_hash": "content_hash",
}


def draw_operation(
    choose: Choose, *, known: Sequence[str] = (), without: frozenset[str] = frozenset()
) -> Operation:
    """Draw an operation with its arguments, half of them on a path that is `known`."""
    name = choose([name for name in _WEIGHTED if name not in without])
    arguments = {key: draw(choose) for key, draw in _OPERATIONS[name][1].items()}
    for key in ("path", "source") if known and name not in {"glob", "grep"} else ():
        if key in arguments and choose(_HALF):
            arguments[key] = choose(known)
    return Operation(name, arguments)


def missing_operations(fs: Filesystem) -> frozenset[str]:
    """Return the operations beyond the protocol that `fs` does not have."""
    return frozenset(
        name for name, method in _BEYOND_THE_PROTOCOL.items() if not hasattr(fs, method)
    )


def perform(fs: Filesystem, operation: Operation) -> Outcome:
    """Do `operation` and return what came of it.

    Raises:
        Exception: What is neither OSError, ValueError nor TypeError is a bug.
    """
    try:
        return Outcome(comparable(_call(fs, operation)))
    except (OSError, ValueError, TypeError, WinkError) as error:
        return Outcome(None, type(error), getattr(error, "errno", None))


def comparable(value: object) -> object:
    """Return a result without what may differ: the one place that says what that is.

    - Times and permissions of a stat: clocks and the umask of the process differ.
    - Everything else must be equal. `delete` of the root is dealt with in `perform`.
    """
    if isinstance(value, FileStat):
        return value.path, value.kind, value.size_bytes, value.link_target, value.content_hash
    if isinstance(value, Results):
        found: Results[object] = value  # pyright: ignore[reportUnknownVariableType] # of whatever
        return tuple(found), found.truncated
    return value


def tree_of(fs: Filesystem) -> dict[str, object]:
    """Return everything in a filesystem: bytes by path, None for what has none."""
    found: dict[str, object] = {}
    pending = ["."]
    while pending:
        for entry in fs.list(pending.pop()):
            found[entry.path] = (entry.kind, comparable(fs.stat(entry.path)))
            if entry.is_file:
                found[entry.path] = (entry.kind, fs.read_bytes(entry.path).content)
            elif entry.is_directory:
                pending.append(entry.path)
    return found


def _call(fs: Filesystem, operation: Operation) -> object:
    arguments = operation.arguments
    if operation.name == "link":
        return _link(fs, **arguments)
    if operation.name == "delete" and arguments["recursive"] and _is_root(arguments["path"]):
        # the one stated difference: memory empties, the host refuses; so do what both can
        return [fs.delete(entry.path, recursive=True) for entry in fs.list()]
    return getattr(fs, operation.name.removesuffix("_at"))(**arguments)


def _link(fs: Filesystem, path: str, target: str) -> bool:
    """Make a link where there is room for one, as another program would."""
    key = normalize_path(path)
    parent = key.rpartition("/")[0]
    if fs.exists(key) or not fs.stat(parent).is_directory or not _can_be_named(key):
        return False
    if isinstance(fs, BaseFilesystem):
        fs._make_link(key, target)  # pyright: ignore[reportPrivateUsage] # the protocol makes no links
    return True


def _can_be_named(key: str) -> bool:
    """Return whether an ordinary disk could hold the last segment of `key`."""
    name = key.rpartition("/")[2]
    with suppress(UnicodeEncodeError):
        return len(name.encode()) <= 255 and not name.startswith(".wink-tmp-")
    return False


def _is_root(path: str) -> bool:
    with suppress(WinkError):
        return normalize_path(path) == ""
    return False
