"""W5m: glob `**/*.py` in memory."""

import re
from collections.abc import Callable, Iterator, Mapping

from benchmarks.corpus import synthetic_files
from benchmarks.goals import within_limit
from benchmarks.harness import Case, Contender, Workload, expect
from benchmarks.limits import match_paths
from benchmarks.ours import OurMemory
from benchmarks.peers import memory_peers
from benchmarks.race import race
from benchmarks.stage import Stage
from benchmarks.subject import Subject

PATTERN = "**/*.py"
COMPILED = re.compile(r"(?:[^/]*/)*[^/]*\.py")


def cases(stage: Stage) -> Iterator[Case]:
    """Corpus A, then the synthetic trees."""
    library = stage.library()
    yield _case(library.name, library.contents(), None)
    for size in stage.sizes_or(1_000, 10_000, 100_000):
        yield _case(f"{size:,} files", dict(synthetic_files(size)), size)


def _case(name: str, files: Mapping[str, bytes], size: int | None) -> Case:
    expected = sorted(path for path in files if path.endswith(".py"))

    def check(subject: Subject, answer: object) -> None:
        expect(subject.paths(answer), expected, "paths")

    def ask(subject: Subject) -> Callable[[], object]:
        return lambda: subject.glob(PATTERN)

    makers, absent = memory_peers()
    ours, *peers = [make() for make in (OurMemory, *makers)]
    for subject in (ours, *peers):
        subject.load(files)
    every = list(files)
    limit = Contender(
        "one compiled expression over all paths",
        "limit",
        lambda: match_paths(every, COMPILED),
        lambda answer: expect(len(answer), len(expected), "paths"),  # pyright: ignore[reportArgumentType] - a list of paths
        repeat=0,
    )
    contenders = (*race("ours", [ours], ask, check, repeat=0), limit)
    contenders += race("peer", peers, ask, check, repeat=0, wall=10)
    return Case(
        f"glob {PATTERN}, {name}", contenders, (within_limit(3),), absent, size, "glob in memory"
    )


WORKLOAD = Workload("W5m", "glob **/*.py, memory", cases)
