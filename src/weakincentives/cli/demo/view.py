"""What `wink demo` tells: steps, in lines whose pieces have a look."""

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from rich.console import Console
from rich.text import Text

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


_WIDTH = 96
_MARGIN = 3
_COLUMN = 34
_GAP = 2
_STYLES: dict[Look, str] = {
    "plain": "",
    "quiet": "dim",
    "call": "cyan",
    "said": "italic",
    "good": "bold green",
    "bad": "bold red",
    "added": "green",
    "removed": "red",
}
_OPENING = (
    "An agent fixes a bug. Its model is a script, so there is no key and no network; the loop,"
    " the tools, the files, the commands and their answers are real."
)


def show(steps: Iterable[Step], *, keep: Path | None, svg: Path | None) -> None:
    """Print the steps as they come; save a picture of it if `svg` says where."""
    console = _console(is_recorded=svg is not None)
    started = time.perf_counter()
    _print_text(console, Text(_OPENING, "dim"))
    for number, step in enumerate(steps, start=1):
        _print_step(console, number, step)
    console.print()
    _print_ending(console, time.perf_counter() - started, keep)
    if svg:
        svg.write_text(_picture(console), encoding="utf-8")


def _console(*, is_recorded: bool) -> Console:
    console = Console(
        record=is_recorded,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        emoji=False,
        markup=False,
    )
    is_fixed = is_recorded or not console.is_terminal
    console.width = _WIDTH if is_fixed else min(console.width, _WIDTH)
    return console


def _print_step(console: Console, number: int, step: Step) -> None:
    head = Text.assemble((f"{number:<{_MARGIN}}", "bold cyan"), (step.title, "bold"))
    took = _duration(step.seconds)
    room = console.width - head.cell_len - len(took)
    if step.is_ours and room > len(step.call) + _GAP * 2:
        head.append(" " * _GAP + step.call, "cyan")
        room -= _GAP + len(step.call)
    console.print()
    console.print(Text.assemble(head, (" " * room + took if room > 0 else "", "dim")))
    for line in step.lines:
        _print_line(console, line)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{max(seconds * 1000, 1):.0f} ms"


def _print_line(console: Console, line: Line) -> None:
    text = Text.assemble(*((text, _STYLES[look]) for text, look in line.pieces))
    _print_text(console, text, " " * _MARGIN + line.lead)


def _print_text(console: Console, text: Text, lead: str = "") -> None:
    """Print a text below its own beginning, to the right of `lead`."""
    for row in text.wrap(console, max(console.width - len(lead), 1)):
        shown = Text.assemble((lead, "cyan"), row)
        shown.rstrip()
        console.print(shown)
        lead = " " * len(lead)


def _print_ending(console: Console, seconds: float, keep: Path | None) -> None:
    place = "the temporary directory with project and session is removed"
    if keep is not None:
        place = f"the repaired project is in {str(keep)!r}, its session in {str(keep / SESSION)!r}"
    _print_text(console, Text.assemble((f"Done in {seconds:.1f} s: ", "bold"), place))
    console.print("What to try next:")
    for told, command in _next(keep):
        _print_line(console, Line(((f"{told:<{_COLUMN}}", "quiet"), (command, "call"))))


def _next(keep: Path | None) -> Iterable[tuple[str, str]]:
    """Yield what to try, and how."""
    if keep is None:
        yield "keep the project and the session", "wink demo --keep DIR"
    else:
        yield "run its tests there", "python -m unittest"
    yield "see what a model needs", "wink doctor"
    yield "do the same with a model", 'wink run "fix the failing test" --model openai:MODEL'


def _picture(console: Console) -> str:
    drawn = console.export_svg(title="wink demo")
    # a picture must not fetch fonts from the network; it says monospace besides
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    return "".join(line.rstrip() + "\n" for line in drawn.splitlines() if line.strip())
