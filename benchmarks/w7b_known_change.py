"""W7b: a snapshot of a host directory after nothing, or one file, changed through the protocol."""

from collections.abc import Iterator

from benchmarks.goals import at_most
from benchmarks.harness import Case, Workload
from benchmarks.ours import OurExclusiveUndo
from benchmarks.peer_git import git_or_absent
from benchmarks.stage import Stage
from benchmarks.undo import Ground

MANY = 20


def cases(stage: Stage) -> Iterator[Case]:
    """Nothing and one file, at every size: the cost must be that of the changes."""
    for size in stage.sizes_or(1_000, 10_000, 100_000):
        makers, absent = git_or_absent()
        ours, *peers = [Ground(stage, size, make) for make in (OurExclusiveUndo, *makers)]
        yield Case(
            f"nothing changed, {size:,} files",
            (
                ours.snapshotter("ours", repeat=MANY),
                *(peer.snapshotter("peer") for peer in peers),
            ),
            (at_most(0.1e-3),),
            absent,
            size,
            "a snapshot after nothing",
        )
        yield Case(
            f"one file changed, {size:,} files",
            (
                ours.snapshotter("ours", ours.change),
                *(peer.snapshotter("peer", peer.change) for peer in peers),
            ),
            (at_most(3e-3),),
            absent,
            size,
            "a snapshot after one write",
        )


WORKLOAD = Workload("W7b", "snapshot after what the protocol knows of, host", cases)
