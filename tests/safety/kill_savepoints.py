"""Kills processes in savepoints and in recovery, and checks what the next one finds.

`python -m tests.safety.kill_savepoints points <work> <directory>` dies at every fault point of
some work, and again at points of the recovery. `... random <rounds> <directory>` kills a
process that works without pause at any moment, and the openers after it. Both print a
summary in JSON.
"""

import json
import logging
import mmap
import os
import random
import shutil
import signal
import struct
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.safety.places import temporary_names, visible
from tests.safety.savepoints import WORKS, Expected, Stage, check_works, laid_out
from tests.sizes import size
from weakincentives.filesystem import (
    BaseFilesystem,
    InMemoryFilesystem,
    TransactionalFilesystem,
)
from weakincentives.posix import fault_hook

Work = Callable[[], object]

PATHS = ("a", "b", "a/x", "a/y", "b/x", "a/x/p", "a/d", "a/d/q", "b/x/r", "c", "c/x")


@dataclass
class Summary:
    """What was seen."""

    rounds: int = 0
    leftovers: int = 0
    openers: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    defects: list[str] = field(default_factory=list[str])

    def note(self, what: str, check: Work) -> None:
        """Count a round; take note of what is wrong in it."""
        self.rounds += 1
        try:
            check()
        except (AssertionError, OSError, ValueError, RuntimeError) as error:
            self.defects.append(f"{what}: {error!r}")


def in_a_child(work: Work) -> int:
    """Begin to work in a child; return its number."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def was_killed(child: int) -> bool:
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def open_and_close(stage: Stage) -> None:
    stage.opened().close()


# --- at every point ---


def dying_at(index: int, work: Work) -> None:
    """Work until the fault point `index`."""
    reached = 0

    def hook(_: str) -> None:
        nonlocal reached
        if reached == index:
            os.kill(os.getpid(), signal.SIGKILL)
        reached += 1

    with fault_hook(hook):
        work()


def walk(name: str, base: Path) -> Summary:
    """Die at every point of the work, and again at points of the recovery.

    The short run does that after every second death, early or late in turn.
    """
    summary = Summary()
    expected = Expected.found(base, name)
    choice = random.Random(name)
    for index, point in enumerate(expected.points):
        early, late = choice.sample(range(4), 2), choice.sample(range(4, 30), 3)
        for second in size([(None, early[0], None, late[0])[index % 4]], [None, *early, *late]):
            summary.note(
                f"{point} {index}, {second}",
                lambda index=index, second=second: die_twice(
                    laid_out(base, name), name, expected, index, second, summary
                ),
            )
    return summary


def die_twice(
    stage: Stage, name: str, expected: Expected, index: int, second: int | None, summary: Summary
) -> None:
    def work() -> None:
        with stage.opened() as fs:
            dying_at(index, lambda: WORKS[name](fs, stage))

    assert was_killed(in_a_child(work)), "did not die"
    summary.leftovers += bool(temporary_names(stage.root))
    if second is not None:
        opener = in_a_child(lambda: dying_at(second, lambda: open_and_close(stage)))
        summary.openers += was_killed(opener)
    open_and_close(stage)
    summary.outcomes[expected.check(stage.root, kept=expected.is_kept_at(index))] += 1
    check_works(stage)


# --- at any moment ---


def change(fs: BaseFilesystem, choice: random.Random) -> None:
    """Do anything to anything; what is refused is refused."""
    path, other = choice.choice(PATHS), choice.choice(PATHS)
    text, overwrite = str(choice.randrange(1_000)) * 200, choice.random() < 0.5
    changes: list[Work] = [
        lambda: fs.write(path, text),
        lambda: fs.write(path, text, mode="append"),
        lambda: fs.delete(path, recursive=True),
        lambda: fs.mkdir(path),
        lambda: fs.move(path, other, overwrite=overwrite),
        lambda: fs.copy(path, other, overwrite=overwrite),
    ]
    with suppress(OSError, ValueError):
        choice.choice(changes)()


def step(fs: TransactionalFilesystem, seed: int, number: int) -> None:
    """Do one piece of work, the same in every filesystem that has the same state."""
    choice = random.Random(seed * 10_000 + number)
    with suppress(ZeroDivisionError), fs.savepoint():
        for _ in range(choice.randrange(1, 6)):
            change(fs, choice)
        with suppress(ZeroDivisionError), fs.savepoint():
            for _ in range(choice.randrange(4)):
                change(fs, choice)
            _ = 1 // choice.choice([0, 1])
        change(fs, choice)
        _ = 1 // choice.choice([0, 1, 1])


def work_on(fs: TransactionalFilesystem, seed: int, progress: mmap.mmap) -> None:
    for number in range(1, 10_000):
        step(fs, seed, number)
        progress[:8] = struct.pack("Q", number)


def visible_state(fs: BaseFilesystem) -> dict[str, object]:
    """Return kind, permissions, and bytes or link target of everything, by path."""
    return {
        path: (fs.stat(path).kind, fs.stat(path).permissions, content)
        for path, content in visible(fs).items()
    }


def kill_at_random(child: int, choice: random.Random, longest: int) -> bool:
    """Kill a child anywhere; return whether it was still alive."""
    for _ in range(choice.randrange(longest)):
        pass
    os.kill(child, signal.SIGKILL)
    return was_killed(child)


def round_of(stage: Stage, seed: int, summary: Summary) -> None:
    choice = random.Random(seed)
    progress = mmap.mmap(-1, 8)
    worker = in_a_child(lambda: work_on(stage.opened(), seed, progress))
    wanted = choice.randrange(12)
    while struct.unpack("Q", progress[:8])[0] < wanted:
        if os.waitpid(worker, os.WNOHANG)[0]:
            raise AssertionError("the worker failed by itself")
    assert kill_at_random(worker, choice, 20_000), "the worker failed by itself"
    done: int = struct.unpack("Q", progress[:8])[0]
    summary.leftovers += bool(temporary_names(stage.root))
    for _ in range(choice.randrange(4)):
        opener = in_a_child(lambda: open_and_close(stage))
        summary.openers += kill_at_random(opener, choice, 60_000)
    with stage.opened() as fs:
        found = visible_state(fs)
        assert temporary_names(stage.root) == [], "not swept"
    model = InMemoryFilesystem()
    for number in range(1, done + 1):
        step(model, seed, number)
    before = visible_state(model)
    step(model, seed, done + 1)
    assert found in (before, visible_state(model)), f"neither after {done} nor {done + 1} steps"
    summary.outcomes["before" if found == before else "after"] += 1
    check_works(stage)


def kill_often(rounds: int, base: Path) -> Summary:
    """Kill somebody who works without pause, and those who clean up after him."""
    summary = Summary()
    for number in range(rounds):
        stage = Stage(base / str(number))
        stage.root.mkdir(parents=True)
        summary.note(
            f"round {number}",
            lambda stage=stage, number=number: round_of(stage, number, summary),
        )
        shutil.rmtree(stage.base)
    return summary


if __name__ == "__main__":
    # what is logged is not told: it says what was rolled back, every time
    logging.disable()
    what, argument, directory = sys.argv[1:]
    place = Path(directory) / "stage"
    seen = walk(argument, place) if what == "points" else kill_often(int(argument), place)
    print(json.dumps(vars(seen)))
