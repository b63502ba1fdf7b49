"""W1: bring the standard library into memory."""

from collections.abc import Iterator

from benchmarks.goals import faster_than_peers, within_limit
from benchmarks.harness import Case, Contender, Workload, expect
from benchmarks.limits import read_all
from benchmarks.ours import OurMemory
from benchmarks.peers import memory_peers
from benchmarks.race import Fresh
from benchmarks.stage import Stage
from benchmarks.subject import Subject


def cases(stage: Stage) -> Iterator[Case]:
    """One case: everything below corpus A."""
    corpus = stage.library()
    root = str(corpus.root)
    makers, absent = memory_peers()

    def check(subject: Subject, answer: object) -> None:
        expect(subject.total(answer), (corpus.files, corpus.size_bytes), "files and bytes")

    def run(subject: Subject) -> object:
        return subject.hydrate(root)

    ours = stage.keep(Fresh(OurMemory)).contender("ours", run, check)
    peers = [stage.keep(Fresh(make)).contender("peer", run, check) for make in makers]
    limit = Contender(
        "read every file",
        "limit",
        lambda: read_all(corpus.root),
        lambda answer: expect(answer, corpus.size_bytes, "bytes"),
    )
    goals = (within_limit(1.8), faster_than_peers(2.5))
    yield Case(f"hydrate {corpus.name}", (ours, limit, *peers), goals, absent)


WORKLOAD = Workload("W1", "hydrate the standard library into memory", cases)
