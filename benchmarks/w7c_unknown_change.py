"""W7c: a snapshot of a host directory after another program, a shell say, changed one file."""

from collections.abc import Iterator

from benchmarks.goals import faster_than, within_limit
from benchmarks.harness import Case, Workload
from benchmarks.ours import OurSandboxUndo, OurUndo
from benchmarks.peer_git import git_or_absent
from benchmarks.stage import Stage
from benchmarks.undo import Ground


def cases(stage: Stage) -> Iterator[Case]:
    """Whoever is not told has to look at everything; a sandbox tells."""
    for size in stage.sizes_or(1_000, 10_000, 100_000):
        makers, absent = git_or_absent()
        makers = [OurUndo, OurSandboxUndo, *makers]
        ours, sandboxed, *peers = [Ground(stage, size, make) for make in makers]
        contenders = (
            ours.snapshotter("ours", ours.change_outside),
            ours.walk(),
            *(peer.snapshotter("peer", peer.change_outside) for peer in peers),
        )
        yield Case(
            f"one file changed outside, {size:,} files",
            contenders,
            (within_limit(1.7),),
            absent,
            size,
            "a snapshot after somebody else",
        )
        yield Case(
            f"one file changed by a confined command, {size:,} files",
            (
                sandboxed.snapshotter("ours", sandboxed.change_outside),
                *(peer.snapshotter("peer", peer.change_outside) for peer in peers),
            ),
            (faster_than("git", 1.5),),
            absent,
            size,
            "a snapshot after a confined command",
        )


WORKLOAD = Workload("W7c", "snapshot after a change by somebody else, host", cases)
