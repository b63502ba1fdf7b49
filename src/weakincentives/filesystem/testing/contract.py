"""The base of every suite: a fresh filesystem per test, no silenced tests, and sample data."""

from abc import ABCMeta
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias, cast

import pytest

from weakincentives.filesystem import BaseFilesystem, Filesystem, Kind, Limits, ReadableFilesystem

_HOME = __name__.rpartition(".")[0]
_SILENCING = ("skip", "skipif", "xfail")


# a subclass of ABCMeta, so that suites can be combined with abstract classes
class _CheckedMeta(ABCMeta):
    """Checks marks that are set on a finished class, as a decorator does."""

    def __setattr__(cls, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "pytestmark":
            _check_class_marks(cls)


class ConformanceSuite(metaclass=_CheckedMeta):
    """A set of tests for one backend; a subclass defines how to create it.

    A subclass may add tests. It may replace a test of the suite only by one that is
    marked `xfail` with a reason, so that every gap shows in the source: no
    condition other than `True`, no `run=False`, no `strict=False`. Fixtures of the suite
    cannot be replaced, and a whole class cannot be marked `skip`, `skipif` or `xfail`.
    """

    def make_filesystem(self, tmp_path: Path) -> Filesystem:
        """Return a new, empty, writable filesystem with the default limits."""
        raise NotImplementedError(f"{type(self).__name__} must define make_filesystem(tmp_path)")

    @pytest.fixture
    def fs(self, tmp_path: Path) -> Iterator[Filesystem]:
        """The filesystem under test, closed afterwards if it has `close`."""
        fs = self.make_filesystem(tmp_path)
        yield fs
        close = getattr(fs, "close", None)
        if close is not None:
            close()

    def __init_subclass__(cls) -> None:
        """Reject whatever would hide a failure: replaced tests, replaced fixtures, marks."""
        super().__init_subclass__()
        _check_class_marks(cls)
        _check_fixtures(cls)
        _check_tests(cls)


def _check_class_marks(suite: type) -> None:
    held = [mark for owner in suite.__mro__ for mark in _marks(vars(owner).get("pytestmark", []))]
    names = sorted({mark.name for mark in held if mark.name in _SILENCING})
    if names:
        raise TypeError(
            f"{suite.__name__} is marked {', '.join(names)};"
            " do not inherit suites for capabilities that your backend lacks"
        )


def _check_fixtures(suite: type) -> None:
    replaced = sorted(
        name for name in dir(suite) if _is_fixture(name) and _is_replaced(suite, name)
    )
    if replaced or _has_another_fs(suite):
        raise TypeError(
            f"{suite.__name__} replaces fixtures of the suite: {', '.join(replaced or ['fs'])};"
            " define make_filesystem(tmp_path) or another make_ method instead"
        )


def _check_tests(suite: type) -> None:
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
    # a suite defines only tests, hooks and fixtures
    return not name.startswith(("test", "make_", "_"))


def _is_replaced(suite: type, name: str) -> bool:
    definitions = [owner for owner in suite.__mro__ if name in vars(owner)]
    ours = [owner for owner in definitions if owner.__module__.startswith(f"{_HOME}.")]
    return bool(ours) and definitions[0] is not ours[-1]


def _has_another_fs(suite: type) -> bool:
    # @pytest.fixture(name="fs") on a method of any name replaces the suite's fixture
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
    """Return the marks of a `pytestmark`: one mark or a list, called or not."""
    several = cast("list[object]", held) if isinstance(held, list) else [held]
    return [cast("pytest.Mark", getattr(each, "mark", each)) for each in several]


class TickingClock:
    """A clock that advances on every call, to test time limits without waiting."""

    def __init__(self, step: float = 1.0) -> None:
        """Start at zero, and advance by `step` seconds."""
        self._now = 0.0
        self._step = step

    def __call__(self) -> float:
        """Advance, and return the time."""
        self._now += self._step
        return self._now


class PlantingSuite(ConformanceSuite):
    """A suite that needs entries which the protocol can show but not create."""

    def make_link(self, fs: BaseFilesystem, path: str, target: str) -> None:
        """Create a symbolic link at `path`; by default with the backend's own primitive."""
        fs._make_link(path, target)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # the protocol creates no links

    def make_file(
        self, fs: BaseFilesystem, path: str, content: bytes, permissions: int = 0o644
    ) -> None:
        """Create or replace a file of any name; by default with the backend's own primitive."""
        fs._store(path, content, permissions=permissions)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # the protocol sets no permissions


class LimitedSuite(ConformanceSuite):
    """A suite that needs backends with given limits."""

    def make_limited(self, tmp_path: Path, limits: Limits) -> BaseFilesystem:
        """Return a new, empty, writable filesystem with these limits."""
        raise NotImplementedError(f"{type(self).__name__} must define make_limited(...)")


class ReadOnlySuite(ConformanceSuite):
    """A suite that needs a read-only filesystem."""

    def make_read_only(self, filled: Filesystem) -> Filesystem:
        """Return the files of `filled` as a read-only filesystem."""
        raise NotImplementedError(f"{type(self).__name__} must define make_read_only(filled)")


NAMES = (
    ".git", ".GIT", "git~1", ".gitignore", ".gitattributes", ".gitmodules", "HEAD", "manifest.json",
    "files", "-rf", "--", "a b", "a\\b", "a:b", "%41", "%", "CON", "...", "..a", "a.", "*", "[x]",
    "~", "$HOME", "'", '"', "é", "日本語", "😀.txt", "n" * 80,
)  # fmt: skip
"""Names that the protocol allows, but that git, ZIP or a shell could misread."""
STRANGE_NAMES = (
    "bell\a", "new\nline", " blank", "blank ", "e\u0301", "zero\u200bwidth", "\u202eright",
    "\ufeffmark", "byte\udcff", "n" * 200,
)  # fmt: skip
"""Names that the protocol does not create, but that a disk can hold."""
State: TypeAlias = dict[str, tuple[Kind, int, bytes | str | None]]


def read_state(fs: Filesystem | ReadableFilesystem) -> State:
    """Return kind, permissions, and bytes or link target of everything in `fs`, by path."""
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


def drop_permissions(state: State) -> dict[str, object]:
    """Return a state without its permissions."""
    return {path: (kind, content) for path, (kind, _, content) in state.items()}
