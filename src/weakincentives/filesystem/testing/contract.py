"""What every suite stands on: a fresh filesystem per test, and no test silenced."""

from abc import ABCMeta
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from weakincentives.filesystem import Filesystem

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
