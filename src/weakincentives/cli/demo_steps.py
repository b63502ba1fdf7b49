"""What `wink demo` tells: steps, in lines whose pieces have a look."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Look: TypeAlias = Literal["plain", "quiet", "call", "said", "good", "bad", "added", "removed"]

SESSION = "session"
"""Where the session is dumped, below the directory that is kept."""


class StoryError(RuntimeError):
    """Something came out differently from what the story tells."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of output in pieces, each with its look; `lead` is a column to the left of it."""

    pieces: tuple[tuple[str, Look], ...]
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was done: how it was called, what to show, and the facts as data.

    The calls of the agent are among the lines; one of ours is shown in the heading.
    """

    name: str
    title: str
    call: str
    seconds: float
    lines: tuple[Line, ...]
    facts: Mapping[str, object] = field(default_factory=dict[str, object])
    is_ours: bool = False


def line(text: str, look: Look = "plain") -> Line:
    """Return a line that is one piece."""
    return Line(((text, look),))


def said(who: str, text: str) -> Line:
    """Return what somebody says."""
    return Line(((text, "said"),), lead=f"{who:<7}")


def diff_lines(patch: Sequence[str]) -> tuple[Line, ...]:
    """Return lines of a patch as people are used to see them, without what git needs of it."""
    shown = (each for each in patch if not each.startswith(("diff ", "index ", "--- ")))
    return tuple(line(each, _diff_look(each)) for each in shown)


def _diff_look(text: str) -> Look:
    if text.startswith(("+++", "@@")):
        return "quiet"
    return "added" if text.startswith("+") else "removed" if text.startswith("-") else "plain"
