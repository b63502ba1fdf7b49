"""W7a: the first snapshot of a host directory."""

from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.corpus import Corpus, synthetic_files
from benchmarks.gitids import ExpectedTree
from benchmarks.goals import faster_than
from benchmarks.harness import Case, Contender, Role, Workload, expect
from benchmarks.limits import read_all
from benchmarks.ours import OurUndo, everything
from benchmarks.peer_git import git_or_absent
from benchmarks.stage import Stage
from benchmarks.undo import Undo

Maker = Callable[[Path, Path], Undo]


class ReadBack(OurUndo):
    """Ours, believed only after every file of the snapshot was read."""

    def tree_of(self, snapshot: object) -> str:
        """What we read in our store."""
        return ExpectedTree(everything(self.fs.view(snapshot))).id  # pyright: ignore[reportArgumentType] - our snapshot


def cases(stage: Stage) -> Iterator[Case]:
    """Everything is new: nothing is known, nothing is stored."""
    for size in stage.sizes_or(1_000, 10_000):
        corpus = stage.tree(size)
        expected = ExpectedTree(synthetic_files(size)).id
        peers, absent = git_or_absent()
        makers: list[tuple[Role, Maker]] = [("ours", ReadBack), *(("peer", p) for p in peers)]
        limit = Contender(
            "read every file",
            "limit",
            lambda corpus=corpus: read_all(corpus.root),
            lambda answer, corpus=corpus: expect(answer, corpus.size_bytes, "bytes"),
        )
        first, *others = [_contender(stage, corpus, role, m, expected) for role, m in makers]
        goals = (faster_than("git", 4),)
        name = f"first snapshot, {corpus.name}"
        yield Case(name, (first, limit, *others), goals, absent, size, "the first snapshot")


def _contender(stage: Stage, corpus: Corpus, role: Role, make: Maker, expected: str) -> Contender:
    """A new object and a new store for every sample."""
    fresh = stage.keep(_Fresh(stage, corpus.root, make))
    return Contender(
        fresh.undo.name,
        role,
        lambda: fresh.undo.snapshot(),
        lambda answer: expect(fresh.undo.tree_of(answer), expected, "state kept"),
        prepare=fresh.renew,
        threads=fresh.undo.threads,
    )


class _Fresh:
    """A history that starts anew before every sample."""

    def __init__(self, stage: Stage, root: Path, make: Maker) -> None:
        self._stage, self._root, self._make = stage, root, make
        self.undo = make(root, stage.scratch())

    def renew(self) -> None:
        self.undo.close()
        self.undo = self._make(self._root, self._stage.scratch())

    def close(self) -> None:
        self.undo.close()


WORKLOAD = Workload("W7a", "first snapshot, host", cases)
