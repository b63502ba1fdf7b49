"""W7b: a snapshot of a host directory after nothing, or one file, changed through the protocol."""

from collections.abc import Iterator

from benchmarks.goals import at_most
from benchmarks.growth import cost_per_call
from benchmarks.harness import Case, Fact, Workload
from benchmarks.ours import OurExclusiveUndo
from benchmarks.peer_git import git_or_absent
from benchmarks.stage import Stage
from benchmarks.undo import Ground

MANY = 20
CALLS = 1_000


def cases(stage: Stage) -> Iterator[Case]:
    """Nothing and one file, at every size: the cost must be that of the changes."""
    for size in stage.sizes_or(1_000, 10_000, 100_000):
        makers, absent = git_or_absent()
        ours, *peers = [Ground(stage, size, make) for make in (OurExclusiveUndo, *makers)]
        after_nothing = (
            ours.snapshotter("ours", repeat=MANY),
            *(peer.snapshotter("peer") for peer in peers),
        )
        growth = "a snapshot after nothing"
        goals = (at_most(0.1e-3),)
        name = f"nothing changed, {size:,} files"
        yield Case(name, after_nothing, goals, absent, size, growth)
        after_one = (
            ours.snapshotter("ours", ours.change),
            *(peer.snapshotter("peer", peer.change) for peer in peers),
        )
        growth = "a snapshot after one write"
        name = f"one file changed, {size:,} files"
        yield Case(name, after_one, (at_most(3e-3),), absent, size, growth)


def facts(stage: Stage) -> Iterator[Fact]:
    """The thousandth snapshot costs what the first ones cost, however many are kept."""
    ours = Ground(stage, 1_000, OurExclusiveUndo)

    def write_and_keep() -> None:
        ours.change()
        ours.undo.snapshot()

    yield cost_per_call("write + snapshot on the host", write_and_keep, CALLS)


WORKLOAD = Workload("W7b", "snapshot after what the protocol knows of, host", cases, facts)
