"""Output of `wink demo`: steps of styled lines, on a terminal or as an SVG image."""

import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from rich.console import Console
from rich.text import Text

from weakincentives.runtime.timeline import SUFFIX

Style: TypeAlias = Literal["plain", "quiet", "call", "said", "good", "bad", "added", "removed"]
SESSION = "session"
"""The directory of the session dump, below the kept directory."""
RECORDING = f"demo{SUFFIX}"
"""The recorded steps, in that directory."""


class StoryError(RuntimeError):
    """A step of the demo did not end as the script expects."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of styled pieces; `lead` is a column to the left of it."""

    pieces: tuple[tuple[str, Style], ...]
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the demo: its call, the lines to show, and the facts as data.

    Calls of the agent are shown among the lines; a library call (`is_ours`) in the heading.
    """

    name: str
    title: str
    call: str
    seconds: float
    lines: tuple[Line, ...]
    facts: Mapping[str, object] = field(default_factory=dict[str, object])
    is_ours: bool = False


def line(text: str, style: Style = "plain") -> Line:
    """Return a line of one piece."""
    return Line(((text, style),))


def speech(speaker: str, text: str) -> Line:
    """Return a line spoken by the user or the agent."""
    return Line(((text, "said"),), lead=f"{speaker:<7}")


def diff_lines(patch: Sequence[str]) -> tuple[Line, ...]:
    """Return the lines of a patch without the headers that only git needs."""
    lines = (each for each in patch if not each.startswith(("diff ", "index ", "--- ")))
    return tuple(line(each, _diff_style(each)) for each in lines)


def _diff_style(text: str) -> Style:
    if text.startswith(("+++", "@@")):
        return "quiet"
    return "added" if text.startswith("+") else "removed" if text.startswith("-") else "plain"


_WIDTH = 96
_MARGIN = 3
_COLUMN = 34
_GAP = 2
_STYLES: dict[Style, str] = {
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
    "An agent fixes a bug. Its model is a script, so it needs no key and no network; the agent"
    " loop, the tools, the files, the commands and their results are real."
)


def show(steps: Iterable[Step], *, keep: Path | None, svg: Path | None) -> None:
    """Print the steps as they happen; with `svg`, save an image too."""
    console = _create_console(is_recorded=svg is not None)
    started = time.perf_counter()
    _print_text(console, Text(_OPENING, "dim"))
    for number, step in enumerate(steps, start=1):
        _print_step(console, number, step)
    console.print()
    _print_footer(console, time.perf_counter() - started, keep)
    if svg:
        svg.write_text(_render_svg(console), encoding="utf-8")


def _create_console(*, is_recorded: bool) -> Console:
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
    duration = _format_seconds(step.seconds)
    room = console.width - head.cell_len - len(duration)
    if step.is_ours and room > len(step.call) + _GAP * 2:
        head.append(" " * _GAP + step.call, "cyan")
        room -= _GAP + len(step.call)
    console.print()
    console.print(Text.assemble(head, (" " * room + duration if room > 0 else "", "dim")))
    for line in step.lines:
        _print_line(console, line)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{max(seconds * 1000, 1):.0f} ms"


def _print_line(console: Console, line: Line) -> None:
    text = Text.assemble(*((text, _STYLES[style]) for text, style in line.pieces))
    _print_text(console, text, " " * _MARGIN + line.lead)


def _print_text(console: Console, text: Text, lead: str = "") -> None:
    """Print a wrapped text with a hanging indent to the right of `lead`."""
    for row in text.wrap(console, max(console.width - len(lead), 1)):
        padded = Text.assemble((lead, "cyan"), row)
        padded.rstrip()
        console.print(padded)
        lead = " " * len(lead)


def _print_footer(console: Console, seconds: float, keep: Path | None) -> None:
    note = "the temporary project and session were removed"
    if keep is not None:
        note = f"the fixed project is in {str(keep)!r}, its session in {str(keep / SESSION)!r}"
    _print_text(console, Text.assemble((f"Done in {seconds:.1f} s: ", "bold"), note))
    console.print("Try next:")
    for purpose, command in _suggest(keep):
        lead = f"{' ' * _MARGIN}{purpose:<{_COLUMN}}"
        if len(lead) + len(command) > console.width:
            console.print(Text(lead.rstrip(), "dim"))
            lead = " " * (_MARGIN + 2)
        # a command is never wrapped: it can be copied as it is
        console.print(Text.assemble((lead, "dim"), (command, "cyan")), soft_wrap=True)


def _suggest(keep: Path | None) -> Iterable[tuple[str, str]]:
    """Yield suggestions and their commands."""
    wink = shlex.quote(_find_program())
    if keep is None:
        yield "keep the project and the session", f"{wink} demo --keep {_new_name()}"
    else:
        yield (
            "run the tests of the project",
            f"(cd {shlex.quote(str(keep))} && python3 -m unittest)",
        )
        yield "look at every step", f"{wink} log {shlex.quote(str(keep / SESSION / RECORDING))}"
    yield "get ready for a real model", f"{wink} doctor"
    yield "see what a run can do", f"{wink} run -h"


def _find_program() -> str:
    """Return the name or path by which this program can be called from here."""
    program = Path(sys.argv[0]).absolute()
    found = shutil.which("wink")
    if program.name != "wink" or (found is not None and Path(found).absolute() == program):
        return "wink"
    here = Path.cwd()
    return str(program.relative_to(here) if program.is_relative_to(here) else program)


def _new_name() -> str:
    """Return the name of a directory that is new here."""
    names = ("wink-demo", *(f"wink-demo-{number}" for number in range(2, 100)))
    return next((each for each in names if not os.path.lexists(each)), names[0])


def _render_svg(console: Console) -> str:
    svg = console.export_svg(title="wink demo")
    # an image must not fetch fonts from the network; monospace remains as the fallback
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    return "".join(line.rstrip() + "\n" for line in svg.splitlines() if line.strip())
