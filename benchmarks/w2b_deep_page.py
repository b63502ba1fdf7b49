"""W2b: a page at line 10,000 of a 100 MB file on the host."""

import tracemalloc
from collections.abc import Iterator

from benchmarks.goals import AGENTS, faster_than
from benchmarks.harness import Case, Fact, Workload
from benchmarks.ours import OurHost
from benchmarks.pages import NAME, page_cases, write_lines
from benchmarks.stage import Stage

MEMORY_GOAL = 8_000_000


def cases(stage: Stage) -> Iterator[Case]:
    """Cold (a new filesystem object) and again (the same object)."""
    size, offset = (2_000_000, 10_000) if stage.smallest else (100_000_000, 10_000)
    yield from page_cases(
        stage,
        size,
        offset=offset,
        limit=2_000,
        cold=(faster_than(AGENTS, 3.5),),
        again=(faster_than(AGENTS, 150),),
    )


def facts(stage: Stage) -> Iterator[Fact]:
    """Memory must be bounded by the page, not by the file."""
    folder = stage.scratch()
    write_lines(folder, 100_000_000)
    ours = stage.keep(OurHost(folder))
    tracemalloc.start()
    try:
        ours.read_page(NAME, 10_000, 2_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    text = f"{peak / 1e6:.2f} MB (goal <= {MEMORY_GOAL / 1e6:g} MB)"
    yield Fact("peak memory of a cold page of a 100 MB file", text, peak <= MEMORY_GOAL)


WORKLOAD = Workload("W2b", "page at line 10,000 of a 100 MB file, host", cases, facts)
