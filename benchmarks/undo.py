"""What W7 and W8 share: a tree that may be changed, and a system that keeps its history."""

import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from benchmarks.corpus import synthetic_files
from benchmarks.gitids import ExpectedTree
from benchmarks.harness import Contender, Role, expect
from benchmarks.limits import WALK, walk_contents, walk_status
from benchmarks.stage import Stage

PATH = "d0003/f000321.py"
# A change within one tick of the clock after a look can hide from the next look; everybody
# has to look twice at such files, so the clock moves on before the rounds begin.
SETTLED = 0.1


def _nothing() -> None:
    """Change nothing."""


class Undo:
    """A system that keeps the history of a directory, ours or a peer's."""

    name = ""
    threads = False

    def snapshot(self) -> object:
        """Keep the present state."""
        raise NotImplementedError

    def restore(self, snapshot: object) -> object:
        """Make everything as it was then."""
        raise NotImplementedError

    def tree_of(self, snapshot: object) -> str:
        """Git's id of the files that a snapshot holds."""
        raise NotImplementedError

    def write(self, path: str, content: bytes) -> None:
        """Change a file through the system; a system without such a way lets the disk do it."""
        raise NotImplementedError

    def outside(self) -> AbstractContextManager[object]:
        """Surround a change by another program; most systems are not told."""
        return nullcontext()

    def close(self) -> None:
        """Give everything back."""


class Ground:
    """A tree of one's own with a first snapshot, and what must be in it now."""

    def __init__(self, stage: Stage, size: int, make: Callable[[Path, Path], Undo]) -> None:
        """Build the tree; `make` gets it and an empty directory for the history."""
        self.root = stage.own_tree(size)
        self.undo = stage.keep(make(self.root, stage.scratch()))
        self.expected = ExpectedTree(synthetic_files(size))
        self.before = self.expected.id
        self.size = size
        self.first = self.undo.snapshot()
        self._numbers = itertools.count()
        time.sleep(SETTLED)

    def change(self) -> None:
        """Change one file through the system."""
        self.undo.write(PATH, self._next())

    def change_outside(self) -> None:
        """Change one file as a shell would."""
        with self.undo.outside():
            (self.root / PATH).write_bytes(self._next())

    def snapshotter(
        self, role: Role, prepare: Callable[[], None] = _nothing, *, repeat: int = 1
    ) -> Contender:
        """Take a snapshot after `prepare`; it must hold everything that is there."""
        return Contender(
            self.undo.name,
            role,
            self.undo.snapshot,
            lambda answer: expect(self.undo.tree_of(answer), self.expected.id, "state kept"),
            prepare=prepare,
            repeat=repeat,
            threads=self.undo.threads,
        )

    def restorer(self, role: Role, prepare: Callable[[], None]) -> Contender:
        """Restore the first snapshot after `prepare`; the disk must be as it was."""
        return Contender(
            self.undo.name,
            role,
            lambda: self.undo.restore(self.first),
            lambda _: expect(ExpectedTree(walk_contents(self.root)).id, self.before, "state"),
            prepare=prepare,
            threads=self.undo.threads,
        )

    def walk(self) -> Contender:
        """The limit of who must look at everything: one walk with a `stat` of each entry."""
        return Contender(
            WALK, "limit", lambda: walk_status(self.root), lambda code: expect(code, 0, "status")
        )

    def _next(self) -> bytes:
        """The next content, always of the same size: only a time tells that it is another."""
        content = b"value = %08d\n" % next(self._numbers) * 5
        self.expected.write(PATH, content)
        return content
