"""W8: restore a host directory after one change through the protocol or by another program."""

from collections.abc import Iterator

from benchmarks.goals import at_most, faster_than, within_limit
from benchmarks.harness import Case, Workload
from benchmarks.ours import OurExclusiveUndo, OurSandboxUndo, OurUndo
from benchmarks.peer_git import git_or_absent
from benchmarks.stage import Stage
from benchmarks.undo import Ground


def cases(stage: Stage) -> Iterator[Case]:
    """The first snapshot is restored; ours keeps the state before as well."""
    for size in stage.sizes_or(1_000, 10_000, 100_000):
        makers, absent = git_or_absent()
        makers = (OurExclusiveUndo, OurUndo, OurSandboxUndo, *makers)
        known, unknown, sandboxed, *peers = [Ground(stage, size, make) for make in makers]
        told = (
            known.restorer("ours", known.change),
            *(peer.restorer("peer", peer.change) for peer in peers),
        )
        name = f"one file changed by the protocol, {size:,} files"
        yield Case(name, told, (at_most(2e-3),), absent, size, "a restore after one write")
        untold = (
            unknown.restorer("ours", unknown.change_outside),
            unknown.walk(),
            *(peer.restorer("peer", peer.change_outside) for peer in peers),
        )
        name = f"one file changed outside, {size:,} files"
        yield Case(
            name, untold, (within_limit(1.7),), absent, size, "a restore after somebody else"
        )
        reported = (
            sandboxed.restorer("ours", sandboxed.change_outside),
            *(peer.restorer("peer", peer.change_outside) for peer in peers),
        )
        name = f"one file changed by a confined command, {size:,} files"
        goals = (faster_than("git", 1.5),)
        yield Case(name, reported, goals, absent, size, "a restore after a confined command")


WORKLOAD = Workload("W8", "restore after one change, host", cases)
