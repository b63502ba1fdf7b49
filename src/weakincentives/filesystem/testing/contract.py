"""What every suite stands on: a fresh filesystem per test, and no test replaced in silence."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from weakincentives.filesystem import Filesystem

_HOME = __name__.rpartition(".")[0]


class ConformanceSuite:
    """A set of tests for one backend; a subclass says how to make it.

    A subclass may add tests. It may replace one of the suite only by a test that is
    marked `xfail` with a reason, so that every gap can be read in the source.
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
        """Refuse tests of the suite that were replaced without an excuse."""
        super().__init_subclass__()
        replaced = sorted(name for name in dir(cls) if _is_replaced(cls, name))
        if replaced:
            raise TypeError(
                f"{cls.__name__} replaces tests of the suite: {', '.join(replaced)};"
                " mark them pytest.mark.xfail(reason=...)"
            )


def _is_replaced(suite: type, name: str) -> bool:
    definitions = [owner for owner in suite.__mro__ if name in vars(owner)]
    ours = [owner for owner in definitions if owner.__module__.startswith(f"{_HOME}.")]
    if not name.startswith("test") or not ours or definitions[0] is ours[-1]:
        return False
    return not _is_excused(vars(definitions[0])[name])


def _is_excused(test: object) -> bool:
    marks: list[pytest.Mark] = getattr(test, "pytestmark", [])
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks)
