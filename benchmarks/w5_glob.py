"""W5: glob `**/*.py` on the host."""

from collections.abc import Callable, Iterator

from benchmarks.corpus import Corpus
from benchmarks.goals import AGENTS, faster_than, within_limit
from benchmarks.harness import Case, Contender, Workload, expect
from benchmarks.limits import scandir_walk
from benchmarks.ours import OurHost
from benchmarks.peers import host_peers
from benchmarks.race import race
from benchmarks.stage import Stage
from benchmarks.subject import Subject

PATTERN = "**/*.py"


def cases(stage: Stage) -> Iterator[Case]:
    """Corpus A, then the synthetic trees."""
    yield _case(stage, stage.library(), 40, None)
    for size in stage.sizes_or(1_000, 10_000, 100_000):
        yield _case(stage, stage.tree(size), 25, size)


def _case(stage: Stage, corpus: Corpus, faster: float, size: int | None) -> Case:
    every = corpus.paths()
    expected = [path for path in every if path.endswith(".py")]

    def check(subject: Subject, answer: object) -> None:
        expect(subject.paths(answer), expected, "paths")

    def ask(subject: Subject) -> Callable[[], object]:
        return lambda: subject.glob(PATTERN)

    makers, absent = host_peers()
    peers = [stage.keep(make(corpus.root)) for make in makers]
    ours = race("ours", [stage.keep(OurHost(corpus.root))], ask, check)
    limit = Contender(
        "scandir walk",
        "limit",
        lambda: scandir_walk(corpus.root),
        lambda answer: expect(len(answer), len(every), "files"),  # pyright: ignore[reportArgumentType] - a list of names
    )
    goals = (within_limit(2.5), faster_than(AGENTS, faster))
    contenders = (*ours, limit, *race("peer", peers, ask, check))
    return Case(
        f"glob {PATTERN}, {corpus.name}", contenders, goals, absent, size, "glob on the host"
    )


WORKLOAD = Workload("W5", "glob **/*.py, host", cases)
