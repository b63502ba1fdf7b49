"""Makes operations on a history fail at every fault point: by kill, interrupt and broken disks.

`python -m tests.safety.walk_history <operation> <directory>` prints what it saw in JSON;
with the operation `points` it only finds out which points there are.
"""

import errno
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.filesystem.trees_on_disk import state_of
from tests.gitstore.power import lose, restart
from tests.safety.history import OPERATIONS as COMMON
from tests.safety.history import Stage, Work, check, check_store, hidden_names, is_open
from tests.safety.kill_history import Child, working
from tests.sizes import size
from weakincentives.errors import WinkError
from weakincentives.filesystem import HostFilesystem
from weakincentives.gitstore.repository import Repository
from weakincentives.posix import fault_hook

FAULTS: dict[str, BaseException | None] = {
    "kill": None,
    "full": OSError(errno.ENOSPC, "No space left on device"),
    "broken": OSError(errno.EIO, "Input/output error"),
    "interrupt": KeyboardInterrupt(),
}
_decided = [1]  # at the last of these points a restore is decided


@dataclass
class Summary:
    """What was seen."""

    passed: list[str] = field(default_factory=list[str])
    walked: int = 0
    killed: int = 0
    raised: Counter[str] = field(default_factory=Counter[str])
    outcomes: Counter[str] = field(default_factory=Counter[str])
    defects: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Operation:
    """What is done, what has to be there for it, and what must hold afterwards."""

    work: Work
    prepare: Callable[[Stage], object] = lambda stage: None
    check: Callable[[Stage], str] = lambda stage: check(stage, "snapshot")
    is_once: bool = False
    """Another stage is needed for every time."""


def _interrupt(stage: Stage) -> None:
    """Leave a restore that is decided and hardly begun."""
    while not is_open(stage):
        Child(working(stage, "restore"), dies_at=_decided[-1]).join()
        if not is_open(stage):
            _decided.append(_decided[-1] + 1)


def _check_recovered(stage: Stage) -> str:
    outcome = check(stage, "restore")
    assert outcome == "one", "a restore that was decided did not happen"
    return outcome


def _take_some(stage: Stage) -> None:
    with stage.opened() as fs:
        for number in range(3):
            (stage.root / "same").chmod(0o600 + number)
            stage.kept[f"taken {number}"] = fs.snapshot()
        (stage.root / "same").chmod(0o644)
    (stage.store / "objects" / "ab").mkdir(exist_ok=True)


def _prune(fs: HostFilesystem, stage: Stage) -> None:
    gone = [str(stage.kept[f"taken {number}"].snapshot_id) for number in (0, 2)]
    Repository.open(stage.store).prune(gone)


def _check_pruned(stage: Stage) -> str:
    """Check that what was not to be pruned is there, and what was can be pruned now."""
    with stage.opened() as fs:
        _prune(fs, stage)
    gone = {stage.kept[f"taken {number}"].commit_ref for number in (0, 2)}
    assert not gone & stage.listed()
    assert stage.kept["taken 1"].commit_ref in stage.listed()
    return check(stage, "snapshot")


def _cut_power(stage: Stage) -> None:
    """Restart the machine before the files of the last snapshots reached the disk."""
    packs = stage.store / "objects" / "pack"
    synced = set(packs.iterdir())
    _take_some(stage)
    for path in set(packs.iterdir()) - synced:
        lose(path, "empty")
    lose(stage.store / "refs" / "wink" / str(stage.kept["taken 1"].snapshot_id), "missing")
    restart(stage.store)


def _check_replayed(stage: Stage) -> str:
    Repository.open(stage.store).close()
    for number in range(3):
        assert stage.kept[f"taken {number}"].commit_ref in stage.listed()
    check_store(stage, {stage.kept[f"taken {number}"].commit_ref for number in range(3)})
    return check(stage, "snapshot")


def _forget(stage: Stage) -> None:
    """Let the workspace have no store yet."""
    with stage.opened() as fs:
        fs.snapshot()
        fs.cleanup()
    assert not stage.store.exists()
    stage.kept.clear()


def _cleanup(fs: HostFilesystem, stage: Stage) -> None:
    fs.snapshot()
    fs.cleanup()


def _check_anew(stage: Stage) -> str:
    """Check that a history can be begun, and ended."""
    assert stage.state() == "two"
    with stage.opened() as fs:
        kept = fs.snapshot()
        (stage.root / "same").write_bytes(b"changed")
        fs.restore(kept)
        assert stage.state() == "two"
        check_store(stage, {kept.commit_ref})
        assert hidden_names(stage.directory) == []
        fs.cleanup()
    # a directory that was there before we could say that it is ours is given back empty
    assert not stage.store.exists() or list(stage.store.iterdir()) == []
    return "begun anew"


def _check_some_restored(stage: Stage) -> str:
    """Check that all of the paths are as they were, or none."""
    stage.opened().close()
    found, one, two = state_of(stage.root), stage.states["one"], stage.states["two"]
    mixed = {path: entry for path, entry in two.items() if not _is_some(path)}
    mixed |= {path: entry for path, entry in one.items() if _is_some(path)}
    assert found in (mixed, two), "some of the paths"
    with stage.opened() as fs:
        fs.restore(stage.kept["two"])
    return "some" if found == mixed else check(stage, "snapshot")


LATER = "written after the failure"
SOME = ["changed", "d", "to file", "new"]


def _is_some(path: bytes) -> bool:
    return any(path == name or path.startswith(name + b"/") for name in map(str.encode, SOME))


OPERATIONS = {
    "snapshot": Operation(COMMON["snapshot"]),
    "restore": Operation(COMMON["restore"], check=partial(check, operation="restore")),
    "restore some": Operation(
        lambda fs, stage: fs.restore(stage.kept["one"], paths=SOME), check=_check_some_restored
    ),
    "import": Operation(COMMON["import"], check=partial(check, operation="import")),
    "export": Operation(COMMON["export"], check=partial(check, operation="export")),
    "recovery": Operation(lambda fs, stage: stage.opened().close(), _interrupt, _check_recovered),
    "prune": Operation(_prune, _take_some, _check_pruned),
    "gc": Operation(lambda fs, stage: Repository.open(stage.store).gc(), _take_some),
    "restart": Operation(
        lambda fs, stage: Repository.open(stage.store).close(),
        _cut_power,
        _check_replayed,
        is_once=True,  # before the first checkpoint
    ),
    "first snapshot": Operation(COMMON["snapshot"], _forget, _check_anew, is_once=True),
    "cleanup": Operation(_cleanup, _forget, _check_anew, is_once=True),
}


def _do(operation: Operation, stage: Stage) -> None:
    # a workspace where something is unfinished is opened by the operation itself
    if operation.prepare is _interrupt:
        stage.opened().close()
        return
    with stage.opened() as fs:
        operation.work(fs, stage)


def chosen(points: list[str]) -> Iterator[int]:
    """Yield the numbers of the points to fail at: of each name the first and the last.

    In the long run also one inside.
    """
    for name in dict.fromkeys(points):
        places = [number for number, point in enumerate(points) if point == name]
        yield from sorted({places[0], places[-1], *size([], [places[len(places) // 2]])})


def faults_of(order: int) -> list[str]:
    """Return what happens at a point: a kill, and an error; in the long run every one."""
    kill, *errors = FAULTS
    return [kill, *size([errors[order % len(errors)]], errors)]


class Walk:
    """One operation, made to fail at one point after the other."""

    def __init__(self, operation: Operation, directory: Path) -> None:
        """Find the points of the operation."""
        self._operation = operation
        self._directory = directory
        self._number = 0
        self._stage = self._next_stage()
        self._operation.prepare(self._stage)
        self.summary = Summary()
        with fault_hook(self.summary.passed.append):
            _do(operation, self._stage)
        self._operation.check(self._stage)

    def run(self) -> Summary:
        """Fail at every point."""
        for order, number in enumerate(chosen(self.summary.passed)):
            for name in faults_of(order):
                where = f"{name} at {number} ({self.summary.passed[number]})"
                try:
                    self._fail(number, FAULTS[name])
                except (AssertionError, WinkError, OSError) as error:
                    self.summary.defects.append(f"{where}: {error!r}")
                    self._stage = self._next_stage()
                self.summary.walked += 1
        if not self._operation.is_once:
            check_store(self._stage, set())
        return self.summary

    def _next_stage(self) -> Stage:
        self._number += 1
        directory = self._directory / str(self._number)
        directory.mkdir()
        return Stage(directory)

    def _fail(self, number: int, fault: BaseException | None) -> None:
        if self._operation.is_once:
            self._stage = self._next_stage()
        self._operation.prepare(self._stage)
        if fault is not None:
            self._raise_at(number, fault)
        else:
            work = partial(_do, self._operation, self._stage)
            self.summary.killed += Child(work, dies_at=number + 1).join()
        self.summary.outcomes[self._operation.check(self._stage)] += 1

    def _raise_at(self, number: int, fault: BaseException) -> None:
        """Fail once, and go on with the same instance as if nothing had happened."""
        passed = iter(range(sys.maxsize))

        def hook(_: str) -> None:
            if next(passed) == number:
                raise fault

        if self._operation.prepare is _interrupt:
            self._try(hook, lambda: _do(self._operation, self._stage))
            return
        with self._stage.opened() as fs:
            self._try(hook, lambda: self._operation.work(fs, self._stage))
            accepted = self._write_after(fs)
        with self._stage.opened() as fs:
            assert fs.exists(LATER) == accepted, "a later write is lost"
            if accepted:
                fs.delete(LATER)

    def _write_after(self, fs: HostFilesystem) -> bool:
        """Go on working; return whether the write was accepted."""
        try:
            fs.write(LATER, "kept")
        except (WinkError, OSError):
            return False
        return True

    def _try(self, hook: Callable[[str], None], work: Callable[[], object]) -> None:
        try:
            with fault_hook(hook):
                work()
        except (WinkError, OSError, KeyboardInterrupt) as error:
            self.summary.raised[type(error).__name__] += 1


def all_points(directory: Path) -> Summary:
    """Return every point that any of the operations passes."""
    summary = Summary()
    for name, operation in OPERATIONS.items():
        (directory / name).mkdir()
        summary.passed += Walk(operation, directory / name).summary.passed
    return summary


if __name__ == "__main__":
    name, directory = sys.argv[1:]
    if name == "points":
        print(json.dumps(vars(all_points(Path(directory)))))
    else:
        print(json.dumps(vars(Walk(OPERATIONS[name], Path(directory)).run())))
