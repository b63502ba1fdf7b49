"""Hypothesis strategies for everything a filesystem can be asked."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from weakincentives.filesystem.testing.operations import (
    Choose,
    Operation,
    draw_bytes,
    draw_glob,
    draw_operation,
    draw_path,
    draw_regex,
    draw_text,
)

S = TypeVar("S")
T = TypeVar("T")


def paths() -> SearchStrategy[str]:
    """Paths: plain ones that meet often, strange names, and hostile ones."""
    return _drawn(draw_path) | st.text(max_size=20)


def texts() -> SearchStrategy[str]:
    """Texts with every kind of line end, empty, and too long."""
    return _drawn(draw_text) | st.text()


def contents() -> SearchStrategy[bytes]:
    """Bytes: text and binary, empty, and too long."""
    return _drawn(draw_bytes) | st.binary()


def globs() -> SearchStrategy[str]:
    """Globs, good and bad."""
    return _drawn(draw_glob) | st.text(alphabet="ab/*?[]{},!\\.", max_size=12)


def regexes() -> SearchStrategy[str]:
    """Regular expressions, good and bad."""
    return _drawn(draw_regex) | st.text(alphabet="ab.*+?()[]|^$\\dw{}1,", max_size=10)


def operations(
    *,
    known: Sequence[str] = (),
    without: frozenset[str] = frozenset(),
    states: bool = False,
) -> SearchStrategy[Operation]:
    """Operations with their arguments, many on `known` paths, those of `without` left out.

    With `states`, one in four keeps a whole state or brings one back.
    """
    often = (False, False, False, states)
    return _drawn(lambda choose: draw_operation(choose, known=known, without=without, states=often))


@st.composite
def _drawn(draw: st.DrawFn, by: Callable[[Choose], T]) -> T:
    def choose(values: Sequence[S]) -> S:
        return draw(st.sampled_from(values))

    return by(choose)
