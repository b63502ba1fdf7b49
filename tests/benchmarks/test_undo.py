"""The workloads of undo: whoever keeps or restores a wrong state has no figure."""

import tempfile
import time

import pytest

from benchmarks.__main__ import run_workload
from benchmarks.corpus import write_synthetic
from benchmarks.harness import Case, Contender, Outcome, measure
from benchmarks.limits import FIND, walk_status
from benchmarks.ours import OurUndo
from benchmarks.stage import Stage
from benchmarks.undo import PATH, Ground
from benchmarks.workloads import WORKLOADS

SIZE = 500


class Stale(OurUndo):
    """Returns its first snapshot for ever."""

    first = None

    def snapshot(self) -> object:
        self.first = self.first or super().snapshot()
        return self.first


class Idle(OurUndo):
    """Restores nothing."""

    def restore(self, snapshot: object) -> object:
        return snapshot


def _outcome(contender: Contender) -> Outcome:
    [outcome] = measure(Case("undo", (contender,)), rounds=2).outcomes
    return outcome


def test_a_snapshot_that_misses_a_change_is_wrong() -> None:
    with Stage() as stage:
        stale, ours = Ground(stage, SIZE, Stale), Ground(stage, SIZE, OurUndo)
        assert _outcome(stale.snapshotter("ours", stale.change_outside)).status == "wrong"
        assert _outcome(ours.snapshotter("ours", ours.change_outside)).status == "ok"


def test_a_restore_that_leaves_a_change_is_wrong() -> None:
    with Stage() as stage:
        idle, ours = Ground(stage, SIZE, Idle), Ground(stage, SIZE, OurUndo)
        assert _outcome(idle.restorer("ours", idle.change)).status == "wrong"
        assert _outcome(ours.restorer("ours", ours.change)).status == "ok"


def test_a_change_leaves_the_size_of_the_file_alone() -> None:
    with Stage() as stage:
        ground = Ground(stage, SIZE, OurUndo)
        sizes: set[int] = set()
        for change in (ground.change, ground.change_outside, ground.change):
            change()
            sizes.add((ground.root / PATH).stat().st_size)
        assert len(sizes) == 1


@pytest.mark.skipif(FIND is None, reason="it is about find")
def test_the_limit_looks_at_every_entry(tmp_path) -> None:
    write_synthetic(tmp_path, SIZE)
    with tempfile.TemporaryFile() as output:
        assert walk_status(tmp_path, output.fileno()) == 0
        output.seek(0)
        lines = output.read().splitlines()
    folders = sum(1 for path in tmp_path.rglob("*") if path.is_dir())
    assert len(lines) == 1 + folders + SIZE
    assert all(len(line.split()) == 4 for line in lines)


@pytest.mark.skipif(FIND is None, reason="it is about find")
def test_a_walk_that_fails_says_so(tmp_path) -> None:
    (tmp_path / "file").touch()
    assert walk_status(tmp_path / "file/below") != 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["W7a", "W7b", "W7c", "W7m", "W8", "W9", "W10"])
def test_every_answer_is_right_at_the_smallest_size(name: str) -> None:
    report = run_workload(
        WORKLOADS[name], smallest=True, sizes=(), rounds=1, clock=time.perf_counter
    )
    assert report.broken == []
    ours = [o for case in report.measured for o in case.outcomes if o.role == "ours"]
    assert ours
    assert all(outcome.samples for outcome in ours)
    assert [fact.met for fact in report.facts] == [True]
