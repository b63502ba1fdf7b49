"""W2a: the first page of a 1 MB file on the host, with the number of lines."""

from collections.abc import Iterator

from benchmarks.goals import AGENTS, faster_than
from benchmarks.harness import Case, Workload
from benchmarks.pages import page_cases
from benchmarks.stage import Stage


def cases(stage: Stage) -> Iterator[Case]:
    """Cold (a new filesystem object) and again (the same object)."""
    size = 100_000 if stage.smallest else 1_000_000
    yield from page_cases(
        stage,
        size,
        offset=0,
        limit=2_000,
        cold=(faster_than(AGENTS, 2),),
        again=(faster_than(AGENTS, 7),),
    )


WORKLOAD = Workload("W2a", "first page of a 1 MB file, host", cases)
