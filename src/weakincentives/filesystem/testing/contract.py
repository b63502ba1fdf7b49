"""What every suite stands on: a fresh filesystem per test, and no test silenced."""

from abc import ABCMeta
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias, cast

import pytest

from weakincentives.filesystem import BaseFilesystem, Filesystem, Kind, Limits, ReadableFilesystem

_HOME = __name__.rpartition(".")[0]
_SILENCING = ("skip", "skipif", "xfail")


# of ABCMeta, so that suites mix with abstract classes
class _Checked(ABCMeta):
    """Checks a mark that is put on a finished class, as a decorator does."""

    def __setattr__(cls, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "pytestmark":
            _refuse_class_marks(cls)


class ConformanceSuite(metaclass=_Checked):
    """A set of tests for one backend; a subclass says how to make it.

    A subclass may add tests. It may replace one of the suite only by a test that is
    marked `xfail` with a reason, so that every gap can be read in the source: no
    condition other than `True`, no `run=False`, no `strict=False`. Fixtures of the suite
    cannot be replaced, and a whole class cannot be marked `skip`, `skipif` or `xfail`.
    """

    def make_filesystem(self, tmp_path: Path) -> Filesystem:
        """Return a new, empty, writable filesystem with the default limits."""
        raise NotImplementedError(f"{type(self).__name__} must define make_filesystem(tmp_path)")

    @pytest.fixture
    def fs(self, tmp_path: Path) -> Iterator[Filesystem]:
        """The filesystem under test, closed afterwards if it can be."""
        fs = self.make_filesystem(tmp_path)
        yield fs
        close = getattr(fs, "close", None)
        if close is not None:
            close()

    def __init_subclass__(cls) -> None:
        """Refuse what would hide a failure: replaced tests, replaced fixtures, marks."""
        super().__init_subclass__()
        _refuse_class_marks(cls)
        _refuse_replaced_fixtures(cls)
        _refuse_replaced_tests(cls)


def _refuse_class_marks(suite: type) -> None:
    held = [mark for owner in suite.__mro__ for mark in _marks(vars(owner).get("pytestmark", []))]
    names = sorted({mark.name for mark in held if mark.name in _SILENCING})
    if names:
        raise TypeError(
            f"{suite.__name__} is marked {', '.join(names)} as a whole;"
            " leave out the suite of what the backend cannot do"
        )


def _refuse_replaced_fixtures(suite: type) -> None:
    replaced = sorted(
        name for name in dir(suite) if _is_fixture(name) and _is_replaced(suite, name)
    )
    if replaced or _has_another_fs(suite):
        raise TypeError(
            f"{suite.__name__} replaces fixtures of the suite: {', '.join(replaced or ['fs'])};"
            " define make_filesystem(tmp_path) and the like instead"
        )


def _refuse_replaced_tests(suite: type) -> None:
    replaced = sorted(
        name
        for name in dir(suite)
        if name.startswith("test") and _is_replaced(suite, name) and not _is_excused(suite, name)
    )
    if replaced:
        raise TypeError(
            f"{suite.__name__} replaces tests of the suite: {', '.join(replaced)}; mark them"
            " pytest.mark.xfail(reason=...), without skip, false condition, run=False,"
            " strict=False"
        )


def _is_fixture(name: str) -> bool:
    # what a suite defines is a test, a hook or a fixture
    return not name.startswith(("test", "make_", "_"))


def _is_replaced(suite: type, name: str) -> bool:
    definitions = [owner for owner in suite.__mro__ if name in vars(owner)]
    ours = [owner for owner in definitions if owner.__module__.startswith(f"{_HOME}.")]
    return bool(ours) and definitions[0] is not ours[-1]


def _has_another_fs(suite: type) -> bool:
    # @pytest.fixture(name="fs") on a method of any name takes the place of ours
    members = [(name, value) for owner in suite.__mro__ for name, value in vars(owner).items()]
    return any(
        name != "fs" and callable(value) and getattr(value, "name", None) == "fs"
        for name, value in members
    )


def _is_excused(suite: type, name: str) -> bool:
    test = next(vars(owner)[name] for owner in suite.__mro__ if name in vars(owner))
    marks = _marks(getattr(test, "pytestmark", []))
    silencing = [mark for mark in marks if mark.name in _SILENCING]
    return bool(silencing) and all(_is_excuse(mark) for mark in silencing)


def _is_excuse(mark: pytest.Mark) -> bool:
    reason = mark.kwargs.get("reason")
    conditions = (*mark.args, mark.kwargs.get("condition", True))
    return (
        mark.name == "xfail"
        and isinstance(reason, str)
        and reason.strip() != ""
        and mark.kwargs.get("strict") in (None, True)
        and bool(mark.kwargs.get("run", True))
        and all(condition is True for condition in conditions)
    )


def _marks(held: object) -> list[pytest.Mark]:
    """Return what pytest reads from a `pytestmark`: one mark or a list, called or not."""
    several = cast("list[object]", held) if isinstance(held, list) else [held]
    return [cast("pytest.Mark", getattr(each, "mark", each)) for each in several]


class TickingClock:
    """A clock that moves whenever somebody looks: time limits without waiting."""

    def __init__(self, step: float = 1.0) -> None:
        """Begin at zero, and move by `step` seconds."""
        self._now = 0.0
        self._step = step

    def __call__(self) -> float:
        """Return the time, later than before."""
        self._now += self._step
        return self._now


class PlantingSuite(ConformanceSuite):
    """A suite that needs what the protocol shows and cannot make."""

    def make_link(self, fs: BaseFilesystem, path: str, target: str) -> None:
        """Make a symbolic link at `path`; by default with the backend's own primitive."""
        fs._make_link(path, target)  # pyright: ignore[reportPrivateUsage] # the protocol makes no links

    def make_file(
        self, fs: BaseFilesystem, path: str, content: bytes, permissions: int = 0o644
    ) -> None:
        """Make or replace a file of any name; by default with the backend's own primitive."""
        fs._store(path, content, permissions=permissions)  # pyright: ignore[reportPrivateUsage] # the protocol sets no bits


class LimitedSuite(ConformanceSuite):
    """A suite that needs limits of its own."""

    def make_limited(self, tmp_path: Path, limits: Limits) -> BaseFilesystem:
        """Return a new, empty, writable filesystem with these limits."""
        raise NotImplementedError(f"{type(self).__name__} must define make_limited(...)")


class ReadOnlySuite(ConformanceSuite):
    """A suite that needs a filesystem which refuses writes."""

    def make_read_only(self, filled: Filesystem) -> Filesystem:
        """Return the files of `filled` as a filesystem that refuses writes."""
        raise NotImplementedError(f"{type(self).__name__} must define make_read_only(filled)")


EVERY_BYTE = bytes(range(256)) * 20
NAMES = (
    ".git", ".GIT", "git~1", ".gitignore", ".gitattributes", ".gitmodules", "HEAD", "manifest.json",
    "files", "-rf", "--", "a b", "a\\b", "a:b", "%41", "%", "CON", "...", "..a", "a.", "*", "[x]",
    "~", "$HOME", "'", '"', "é", "日本語", "😀.txt", "n" * 80,
)  # fmt: skip
"""Names that the protocol creates, and that git, ZIP or a shell could take for something else."""
STRANGE_NAMES = (
    "bell\a", "new\nline", " blank", "blank ", "e\u0301", "zero\u200bwidth", "\u202eright",
    "\ufeffmark", "byte\udcff", "n" * 200,
)  # fmt: skip
"""Names that the protocol does not create, and that a disk can hold."""
State: TypeAlias = dict[str, tuple[Kind, int, bytes | str | None]]


def state_of(fs: Filesystem | ReadableFilesystem) -> State:
    """Return everything in `fs`: kind, permissions, and bytes or the target, by path."""
    found: State = {}
    pending = ["."]
    while pending:
        for entry in fs.list(pending.pop()):
            stat = fs.stat(entry.path)
            content = fs.read_bytes(entry.path).content if entry.is_file else stat.link_target
            found[entry.path] = (entry.kind, stat.permissions, content)
            if entry.is_directory:
                pending.append(entry.path)
    return found


def tree_in(state: State) -> dict[str, object]:
    """Return a state without its permissions."""
    return {path: (kind, content) for path, (kind, _, content) in state.items()}


def plant(fs: Filesystem) -> None:
    """Lay out a state with something of everything."""
    fs.write("README.md", "# Read me")
    fs.write("src/main.py", "print()\r\n")
    fs.write_bytes("src/data.bin", EVERY_BYTE)
    fs.write("src/nothing", "")
    fs.write(".gitignore", "*\n")
    fs.write(".gitattributes", "* text eol=crlf filter=none\n")
    fs.write("vendor/.git/HEAD", "ref: refs/heads/main")
    fs.mkdir("empty/below")


def spoil(fs: Filesystem) -> None:
    """Change what `plant` laid out: content, kinds, what is there and what is not."""
    fs.write("README.md", "# Red me?")
    fs.write("src/main.py", "exit()\n", mode="append")
    fs.delete("src/data.bin")
    fs.mkdir("src/data.bin")
    fs.delete("vendor", recursive=True)
    fs.write("vendor", "a file now")
    fs.delete("empty", recursive=True)
    fs.delete(".gitignore")
    fs.write("new/deep/file", "new")
    fs.mkdir("new/empty")
