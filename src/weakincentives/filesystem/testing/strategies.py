"""Random operations as data: Hypothesis strategies and seeded draws from one table.

Everything is drawn by choosing from sequences, so one table serves both a seeded run of
a million operations and Hypothesis, which shrinks a choice towards the first value:
simple values come first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from weakincentives.filesystem.testing.read import AWKWARD_TEXTS

T = TypeVar("T")


class Choose(Protocol):
    """Picks one of several values, as `random.Random.choice` does."""

    def __call__(self, values: Sequence[T], /) -> T:
        """Return one of `values`."""
        ...


Draw: TypeAlias = Callable[[Choose], object]
# few and short, so that operations often hit the same files
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
_COIN = (False, True)
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
    def created_path(self) -> str | None:
        """The path that exists if this succeeded."""
        if self.name in {"write", "write_bytes", "mkdir", "link"}:
            return self.arguments["path"]
        return self.arguments.get("destination")

    def __repr__(self) -> str:
        """Return the call as source code."""
        given = ", ".join(
            f"{name}={_format_literal(value)}" for name, value in self.arguments.items()
        )
        return f"{self.name}({given})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a call, or the type of its error; comparable across backends."""

    value: object = None
    error: type[Exception] | None = None
    code: int | None = None
    message: str = field(default="", compare=False)


def draw_path(choose: Choose) -> str:
    """Draw a path: mostly a common one, sometimes a hostile one."""
    names = choose(_KINDS_OF_PATH)
    if names is _HOSTILE_PATHS or names is _IGNORE_FILES:
        return choose(names)
    return "/".join(choose(names) for _ in range(choose(_DEPTHS)))


def draw_text(choose: Choose) -> str:
    """Draw a text: any line endings, empty, or longer than allowed."""
    return choose(choose(_KINDS_OF_TEXT))


def draw_bytes(choose: Choose) -> bytes:
    """Draw bytes: text, binary, or longer than allowed."""
    if choose(_COIN):
        return draw_text(choose).encode(errors="replace")
    return choose(_BINARIES)


def draw_glob(choose: Choose) -> str:
    """Draw a glob, valid or not."""
    return choose(_GLOBS)


def draw_regex(choose: Choose) -> str:
    """Draw a regular expression, valid or not."""
    return choose(_REGEXES)


def _draw_paths(choose: Choose) -> Sequence[str]:
    return [draw_path(choose) for _ in range(choose((1, 1, 1, 2, 3)))]


def _draw_some_paths(choose: Choose) -> Sequence[str] | None:
    return _draw_paths(choose) if choose(_COIN) else None


def _format_literal(value: object) -> str:
    """Return a literal for `value`; a long run of one character as a multiplication."""
    if isinstance(value, str | bytes) and len(value) > 60 and value == value[:1] * len(value):
        return f"{value[:1]!r} * {len(value)}"
    return repr(value)


def _one_of(*values: object) -> Draw:
    return lambda choose: choose(values)


_NUMBER = _one_of(0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 7, 100, 10**18, -1, -2)
_LIMIT = _one_of(*[None] * 12, 0, 1, 1, 2, 3, 100, 10**18, -1, -2)
_FLAG = _one_of(True, False)  # noqa: FBT003 # values to draw from
_RARE_FLAG = _one_of(False, False, True)  # noqa: FBT003 # values to draw from
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
    "glob": (4, {"pattern": draw_glob, "path": _BASE, "use_ignore_files": _RARE_FLAG}),
    "glob_at": (1, {"pattern": draw_glob, "path": draw_path}),
    "grep": (4, {
        "pattern": draw_regex,
        "path": _BASE,
        "glob": _one_of(*_FILTERS),
        "max_matches": _LIMIT,
        "use_ignore_files": _RARE_FLAG,
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
_KEPT_INDEX = _one_of(0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7)
_STATE_OPERATIONS: dict[str, tuple[int, dict[str, Draw]]] = {
    "snapshot": (5, {"tag": _one_of(None, "tag", "é\n")}),
    "restore": (4, {"number": _KEPT_INDEX}),
    "restore_paths": (4, {"number": _KEPT_INDEX, "paths": _draw_paths}),
    "preview": (2, {"number": _KEPT_INDEX, "paths": _draw_some_paths}),
    "view": (1, {"number": _KEPT_INDEX, "path": draw_path}),
    "export": (2, {}),
    "import": (2, {"number": _KEPT_INDEX, "across": _FLAG}),
}
_WEIGHTED, _STATE_WEIGHTED = (
    [name for name, (weight, _) in table.items() for _ in range(weight)]
    for table in (_OPERATIONS, _STATE_OPERATIONS)
)
_DRAWS = {name: draws for name, (_, draws) in {**_OPERATIONS, **_STATE_OPERATIONS}.items()}


def draw_operation(
    choose: Choose,
    *,
    known: Sequence[str] = (),
    without: frozenset[str] = frozenset(),
    states: Sequence[bool] = (False,),
) -> Operation:
    """Draw an operation with its arguments, half of the time on a `known` path.

    One of `states` is chosen: True stands for an operation that saves or restores a whole
    state, if there is one that is not in `without`.
    """
    whole = [name for name in _STATE_WEIGHTED if name not in without] if choose(states) else []
    name = choose(whole or [name for name in _WEIGHTED if name not in without])
    return Operation(name, _draw_arguments(choose, name, known))


def _draw_arguments(choose: Choose, name: str, known: Sequence[str]) -> dict[str, Any]:
    def pick_known(path: str) -> str:
        return choose(known) if choose(_COIN) else path

    arguments: dict[str, Any] = {key: draw(choose) for key, draw in _DRAWS[name].items()}
    if known and name not in {"glob", "grep"}:
        for key in ("path", "source"):
            if key in arguments:
                arguments[key] = pick_known(arguments[key])
        if arguments.get("paths"):
            arguments["paths"] = [pick_known(path) for path in arguments["paths"]]
    return arguments


S = TypeVar("S")


def paths() -> SearchStrategy[str]:
    """Paths: common ones that often collide, strange names, and hostile ones."""
    return _build_strategy(draw_path) | st.text(max_size=20)


def texts() -> SearchStrategy[str]:
    """Texts: any line endings, empty, and too long."""
    return _build_strategy(draw_text) | st.text()


def contents() -> SearchStrategy[bytes]:
    """Bytes: text and binary, empty, and too long."""
    return _build_strategy(draw_bytes) | st.binary()


def globs() -> SearchStrategy[str]:
    """Globs, valid and invalid."""
    return _build_strategy(draw_glob) | st.text(alphabet="ab/*?[]{},!\\.", max_size=12)


def regexes() -> SearchStrategy[str]:
    """Regular expressions, valid and invalid."""
    return _build_strategy(draw_regex) | st.text(alphabet="ab.*+?()[]|^$\\dw{}1,", max_size=10)


def operations(
    *, known: Sequence[str] = (), without: frozenset[str] = frozenset(), states: bool = False
) -> SearchStrategy[Operation]:
    """Operations with their arguments, many on `known` paths, except those in `without`.

    With `states`, one in four saves or restores a whole state.
    """
    often = (False, False, False, states)
    return _build_strategy(
        lambda choose: draw_operation(choose, known=known, without=without, states=often)
    )


@st.composite
def _build_strategy(draw: st.DrawFn, by: Callable[[Choose], T]) -> T:
    def choose(values: Sequence[S]) -> S:
        return draw(st.sampled_from(values))

    return by(choose)
