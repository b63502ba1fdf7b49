r"""W11: `(a+)+$` on 40 a's and a b, and on 1 MB of such lines: bounded, always."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.goals import at_most
from benchmarks.harness import Absent, Case, Contender, Goal, Workload, expect
from benchmarks.limits import RG, read_file, ripgrep_count
from benchmarks.ours import OurHost, OurMemory
from benchmarks.stage import Stage
from benchmarks.subject import Subject

PATTERN = "(a+)+$"
LINE = "a" * 40 + "b\n"
NAME = "lines.txt"
HANG = 5.0


def cases(stage: Stage) -> Iterator[Case]:
    """One line, then many; in memory and on the host."""
    for label, lines, bound in (("one line", 1, 10e-3), ("1 MB of lines", 25_000, 50e-3)):
        if stage.smallest:
            lines = min(lines, 100)
        folder = stage.scratch()
        (folder / NAME).write_text(LINE * lines)
        memory = OurMemory()
        memory.load({NAME: (LINE * lines).encode()})
        wall = 0.25 if stage.smallest else HANG  # 2**40 attempts end in neither
        yield _case(f"{label}, memory", memory, folder, at_most(bound), wall)
        yield _case(f"{label}, host", stage.keep(OurHost(folder)), folder, at_most(bound), wall)


def _case(name: str, ours: Subject, folder: Path, goal: Goal, wall: float) -> Case:
    place = str(folder / NAME)
    lines = (folder / NAME).read_text().count("\n")
    contenders = [
        Contender(
            ours.name,
            "ours",
            lambda: ours.grep(PATTERN),
            lambda raw: expect(ours.hits(raw), [], "hits"),
        ),
        Contender(
            "read + count lines",
            "limit",
            lambda: read_file(place).count(b"\n"),
            lambda answer: expect(answer, lines, "lines"),
        ),
        Contender(
            "Python re, line by line",
            "peer",
            partial(python_re, place),
            lambda answer: expect(answer, 0, "lines"),
            isolated=True,
            wall=wall,
        ),
    ]
    absent = (Absent("rg", "not on PATH: install ripgrep"),) if RG is None else ()
    if RG is not None:
        run = partial(ripgrep_count, folder, PATTERN)
        contenders.append(Contender("rg", "peer", run, lambda answer: expect(answer, {}, "counts")))
    return Case(name, tuple(contenders), (goal,), absent)


def python_re(path: str) -> int:
    """Count matching lines with backtracking; it does not come back."""
    search = re.compile(PATTERN).search
    return sum(1 for line in Path(path).read_text().splitlines() if search(line))


WORKLOAD = Workload("W11", "a pattern that makes backtracking explode", cases)
