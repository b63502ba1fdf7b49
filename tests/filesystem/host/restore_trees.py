"""Takes snapshots of trees, damages the trees and restores them; reports differences.

`python -m tests.filesystem.host.restore_trees <first> <count> <directory> [<user>]` works in an
empty directory, as another user if asked to, and prints what it saw in JSON.
"""

import json
import os
import pickle
import random
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.filesystem.generated_trees import Repositories, Trees
from tests.filesystem.trees_on_disk import (
    State,
    clear,
    difference,
    lay_out,
    make_special,
    specials,
    spoil,
    state_of,
    without_specials,
)
from weakincentives.errors import WinkError
from weakincentives.filesystem import FilesystemSnapshot, HostFilesystem
from weakincentives.filesystem.host import files as hostfile
from weakincentives.posix import display_path

T = TypeVar("T")

WORKSPACE, STORE, OUTSIDE, CANARY = "workspace", "store", "outside", "canary"
# who restores; those who have looked at the same files before, long enough ago, themselves
# or by what an earlier one has left for them; and from an archive
SAME, ANOTHER_INSTANCE, ANOTHER_PROCESS = "same", "another instance", "another process"
REMEMBERED, TOLD, ARCHIVED = "remembered", "told", "archived"
WAYS = [SAME, ANOTHER_INSTANCE, ANOTHER_PROCESS, REMEMBERED, TOLD, ARCHIVED]
SETTLED_NS = 24_000_000


@dataclass
class Summary:
    """What was seen."""

    trees: int = 0
    entries: int = 0
    ways: Counter[str] = field(default_factory=Counter[str])
    defects: list[str] = field(default_factory=list[str])


class Rounds:
    """One workspace and its store, filled with one tree after the other."""

    def __init__(self, directory: Path) -> None:
        """Lay out what is beside the workspace."""
        self._root, self._store = directory / WORKSPACE, directory / STORE
        self._outside = directory / OUTSIDE
        self._archive = directory / "state.zip"
        self._root.mkdir()
        self._outside.mkdir()
        (self._outside / "secret").write_bytes(b"secret")
        made = directory / "made"
        made.mkdir()
        repositories = Repositories.made_in(made, directory / CANARY)
        self._trees = Trees(repositories, self._outside)
        self._fs = self._opened()
        self.summary = Summary()

    def run(self, seed: int) -> None:
        """Make a tree, keep it, spoil it, and get it back."""
        choice = random.Random(seed)
        clear(self._root)
        lay_out(self._root, self._trees.tree(choice))
        if choice.random() < 0.1:
            self._add_special(choice)
        before = state_of(self._root)
        way = choice.choices(WAYS, [50, 25, 5, 5, 5, 10])[0]
        if way == ARCHIVED and has_closed(before):
            way = SAME  # what may not be read is not archived
        kept = self._keep(way)
        spoil(self._root, self._trees, choice)
        spoiled = state_of(self._root)
        later = self._fs.snapshot() if choice.random() < 0.2 else None
        self._restore(kept, way)
        self._check(seed, way, before, spoiled)
        if later is not None:
            between = state_of(self._root)
            self._restore(later, "undo")
            self._check(seed, "undo", spoiled, between)
        self.summary.trees += 1
        self.summary.entries += len(before)

    def _opened(self) -> HostFilesystem:
        return HostFilesystem(self._root, git_dir=self._store)

    def _keep(self, way: str) -> FilesystemSnapshot:
        def snapshot_anew() -> FilesystemSnapshot:
            with self._opened() as fs:
                return fs.snapshot()

        if way == ANOTHER_PROCESS:
            return in_a_child(snapshot_anew)
        if way == ARCHIVED:
            self._fs.export_archive(self._archive)
        if way in {REMEMBERED, TOLD}:
            begun = time.monotonic_ns()
            while time.monotonic_ns() - begun < SETTLED_NS:
                pass
        if way == TOLD:
            snapshot_anew()
            return snapshot_anew()
        if way == REMEMBERED:
            self._fs.snapshot()
        return self._fs.snapshot()

    def _restore(self, kept: FilesystemSnapshot, way: str) -> None:
        def restore_anew() -> None:
            with self._opened() as fs:
                fs.restore(kept)

        self.summary.ways[way] += 1
        if way == ANOTHER_PROCESS:
            in_a_child(restore_anew)
        elif way in {ANOTHER_INSTANCE, TOLD}:
            restore_anew()
        elif way == ARCHIVED:
            self._fs.import_archive(self._archive)
        else:
            self._fs.restore(kept)

    def _add_special(self, choice: random.Random) -> None:
        descriptor = os.open(self._root, os.O_RDONLY)
        try:
            if not (self._root / "pipe").exists():
                make_special(descriptor, b"pipe", choice)
        finally:
            os.close(descriptor)

    def _check(self, seed: int, way: str, expected: State, spoiled: State) -> None:
        """Compare; a pipe that was there before and is there still stays, all others go."""
        found = state_of(self._root)
        pipes = specials(expected) & specials(spoiled) if way != ARCHIVED else set[bytes]()
        if way == ARCHIVED:
            expected = without_rights_of_others(expected)
        if without_specials(found) != without_specials(expected) or specials(found) != pipes:
            text = difference(found, expected)
            self.summary.defects.append(f"tree {seed}, {way}: {text}")
        if state_of(self._outside) != {b"secret": (0o100644, b"secret")}:
            self.summary.defects.append(f"tree {seed}, {way}: changed outside")


def has_closed(state: State) -> bool:
    """Return whether something is there that its owner may not read."""
    modes = [mode for mode, _ in state.values() if not stat.S_ISLNK(mode)]
    needed = {True: 0o500, False: 0o400}
    closed = any(mode & needed[stat.S_ISDIR(mode)] != needed[stat.S_ISDIR(mode)] for mode in modes)
    return closed and os.geteuid() != 0


def without_rights_of_others(state: State) -> State:
    """Return a state as an archive keeps it, which holds no right to run as somebody else."""
    return {path: (mode & ~0o7000, content) for path, (mode, content) in state.items()}


def in_a_child(work: Callable[[], T]) -> T:
    """Return what `work` returns in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, pickle.dumps(work()))
        except (WinkError, OSError) as error:
            os.write(writer, pickle.dumps(OSError(f"in another process: {error!r}")))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as results:
        data = results.read()
    os.waitpid(child, 0)
    result = pickle.loads(data)
    if isinstance(result, OSError):
        raise result
    return result


def become(user: int, directory: Path) -> None:
    """Give everything away and be somebody else; what may not be readable then is loaded."""
    root = directory / "first"
    root.mkdir()
    with HostFilesystem(root, git_dir=directory / "first.git") as fs:
        fs.restore(fs.snapshot())
        fs.export_archive(directory / "first.zip")
        fs.import_archive(directory / "first.zip")
        fs.cleanup()
    str(OSError(1, display_path("\0")))
    os.chown(directory, user, user)
    directory.chmod(0o755)
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def main(first: int, count: int, directory: Path) -> Summary:
    """Run so many rounds."""
    os.umask(0o022)
    hostfile._RACY_NS = SETTLED_NS // 2  # a tick of the clock is shorter, and we do not wait long
    rounds = Rounds(directory)
    for seed in range(first, first + count):
        try:
            rounds.run(seed)
        except (WinkError, OSError) as error:
            rounds.summary.defects.append(f"tree {seed}: {error!r}")
    return rounds.summary


if __name__ == "__main__":
    first, count, directory, *users = sys.argv[1:]
    for user in users:
        become(int(user), Path(directory))
    print(json.dumps(vars(main(int(first), int(count), Path(directory)))))
