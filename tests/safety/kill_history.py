"""Kills operations on the snapshot history at random moments, and checks the state.

Run as a program, so that the process is warm and has one thread:
`python -m tests.safety.kill_history <operation> <rounds> <directory>` prints a summary
in JSON.
"""

import json
import mmap
import os
import random
import signal
import struct
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.safety.history import (
    OPERATIONS,
    Stage,
    check,
    check_store,
    hidden_names,
    is_open,
)
from weakincentives.errors import WinkError
from weakincentives.posix import fault_hook

RECOVERY = "recovery"
_FEW = 25  # points of a recovery, which has more of them the earlier it was cut off
# points reached, state, what was made, the last point
_RECORD = struct.Struct("QQ40s32s")
_BEGUN, _FINISHED = 1, 2


@dataclass
class Summary:
    """What was seen."""

    rounds: int = 0
    finished: int = 0
    leftovers: int = 0
    stages: Counter[str] = field(default_factory=Counter[str])
    outcomes: Counter[str] = field(default_factory=Counter[str])
    defects: list[str] = field(default_factory=list[str])


class Child:
    """A process that does one thing, in a process group of its own."""

    def __init__(
        self, work: Callable[[], object], *, waits_at: int = -1, dies_at: int = -1
    ) -> None:
        """Begin; at a fault point of one number it waits, of another it kills itself."""
        self._shared = mmap.mmap(-1, _RECORD.size)
        self._waits_at, self._dies_at = waits_at, dies_at
        self._told, self._tell = os.pipe()
        self._asked, self._ask = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.setpgid(0, 0)
                os.close(self._ask)
                self._run(work)
            finally:
                os._exit(1)
        os.close(self._tell)
        os.close(self._asked)

    @property
    def points(self) -> int:
        """How many fault points it has reached."""
        return self._seen[0]

    @property
    def is_finished(self) -> bool:
        """Whether it got to its end."""
        return self._seen[1] == _FINISHED

    @property
    def made(self) -> str:
        """The commit that it made, if it was there to tell."""
        return self._seen[2].rstrip(b"\0").decode()

    @property
    def stage(self) -> str:
        """The last point that it reached."""
        _, state, _, point = self._seen
        return "finished" if state == _FINISHED else point.rstrip(b"\0").decode() or "before"

    def let_go(self) -> None:
        """Wait until it waits, at the point or at its end, and let it go on."""
        assert os.read(self._told, 1), "failed by itself"
        os.write(self._ask, b"!")

    def kill(self) -> None:
        """Kill the whole group, and wait for the end."""
        os.killpg(self._pid, signal.SIGKILL)
        assert self.join(), "failed by itself"

    def join(self) -> bool:
        """Wait for the end; return whether it was killed."""
        _, status = os.waitpid(self._pid, 0)
        os.close(self._told)
        os.close(self._ask)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "failed by itself"
        return os.WIFSIGNALED(status)

    @property
    def _seen(self) -> tuple[int, int, bytes, bytes]:
        return _RECORD.unpack(self._shared[:])

    def _wait(self) -> None:
        os.write(self._tell, b"!")
        os.read(self._asked, 1)

    def _run(self, work: Callable[[], object]) -> None:
        def pass_by(number: int, point: str) -> None:
            if number == self._dies_at:
                os.killpg(0, signal.SIGKILL)
            self._shared[:] = _RECORD.pack(number, _BEGUN, b"", point.encode())
            if number == self._waits_at:
                self._wait()

        passed = iter(range(sys.maxsize))
        pass_by(next(passed), "")
        with fault_hook(lambda point: pass_by(next(passed), point)):
            made = getattr(work(), "commit_ref", "").encode()
        self._shared[:] = _RECORD.pack(next(passed) - 1, _FINISHED, made, b"")
        if self._dies_at < 0:
            self._wait()
            signal.pause()  # somebody is about to kill us
        os._exit(0)


def working(stage: Stage, operation: str) -> Callable[[], object]:
    """Return the operation as a process would do it that has just been started."""

    def work() -> object:
        with stage.opened() as fs:
            return OPERATIONS[operation](fs, stage)

    return work


def recovering(stage: Stage) -> Callable[[], object]:
    """Return the opening of a workspace, which finishes what was decided."""
    return lambda: stage.opened().close()


class Killer:
    """Kills one operation over and over."""

    def __init__(self, stage: Stage, operation: str, seed: int) -> None:
        """Count the fault points of the operation."""
        self._stage = stage
        self._operation = operation
        self._choice = random.Random(seed)
        self._acknowledged = stage.listed()
        self.summary = Summary()
        first = "restore" if operation == RECOVERY else operation
        self._points = self._count(working(stage, first))
        check(stage, first, finished=True)

    def _count(self, work: Callable[[], object]) -> int:
        child = Child(work)
        child.let_go()
        child.kill()
        return child.points

    def round(self) -> None:
        """Kill once, or once and then the recovery a few times."""
        if self._operation == RECOVERY:
            self._kill_recovery()
            outcome = check(self._stage, "restore", finished=True)
        else:
            child = self._kill(working(self._stage, self._operation), self._points)
            outcome = check(self._stage, self._operation, finished=child.is_finished)
        self.summary.outcomes[outcome] += 1

    def finish(self) -> Summary:
        """Check that nothing was lost over all the rounds."""
        check_store(self._stage, self._acknowledged)
        return self.summary

    def _kill(self, work: Callable[[], object], points: int) -> Child:
        child = Child(work, waits_at=self._choice.randint(0, points))
        child.let_go()
        for _ in range(int(10 ** self._choice.uniform(0, 5))):
            pass
        child.kill()
        if child.made:
            self._acknowledged.add(child.made)
        self.summary.finished += child.is_finished
        self.summary.leftovers += bool(hidden_names(self._stage.directory))
        self.summary.stages[child.stage] += 1
        return child

    def _kill_recovery(self) -> None:
        """Interrupt a restore that is decided; then whoever finishes it, again and again."""
        while not is_open(self._stage):
            at = self._choice.randint(1, self._points)
            Child(working(self._stage, "restore"), dies_at=at).join()
            if not is_open(self._stage):
                check(self._stage, "restore")  # it may have been done: from the start again
        for _ in range(self._choice.randint(1, 3)):
            if is_open(self._stage):
                self._kill(recovering(self._stage), _FEW)


def kill_at_random(operation: str, rounds: int, directory: Path) -> Summary:
    """Kill so many times."""
    killer = Killer(Stage(directory), operation, rounds)
    for number in range(rounds):
        try:
            killer.round()
        except (AssertionError, WinkError, OSError) as error:
            killer.summary.defects.append(f"round {number}: {error!r}")
            break  # what comes after would be about the same damage
        killer.summary.rounds += 1
    return killer.finish()


if __name__ == "__main__":
    operation, rounds, directory = sys.argv[1:]
    print(json.dumps(vars(kill_at_random(operation, int(rounds), Path(directory)))))
