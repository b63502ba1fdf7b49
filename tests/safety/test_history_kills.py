"""A kill during an operation on the history leaves the old state or the new one."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import weakincentives
from tests.posix.forks import is_killed_at
from tests.safety import kill_history, walk_history
from tests.safety.history import OPERATIONS, Stage, hidden_names
from tests.safety.places import ROOT
from tests.safety.test_faults import NAMED as POINTS_OF_CHANGES
from tests.sizes import size
from weakincentives.filesystem.archive.export import FAULT_POINTS

# tests/contrib/review has them: somebody changes the same paths, these cannot be exchanged, or an
# undo moves a directory
NOT_IN_A_RUN = {"change.checked", "change.moved", "rollback.kept", "slot.out"}

EXPECTED = {"SnapshotError", "SnapshotRestoreError", "OSError", "KeyboardInterrupt"}
ROUNDS = size(20, 1_000)
PACKAGE = Path(weakincentives.__file__).parent
ROOMS = ("gitstore", "filesystem/archive", "filesystem/host/snapshots")
SOURCES = [
    PACKAGE / "posix" / "atomic.py",
    PACKAGE / "filesystem" / "snapshot_manager.py",
    *(
        PACKAGE / "history" / name
        for name in ("change.py", "records.py", "rollback.py", "slots.py")
    ),
    *(path for room in ROOMS for path in (PACKAGE / room).glob("*.py")),
]
NAMED = {
    *FAULT_POINTS,
    *(
        name
        for path in SOURCES
        if path.suffix == ".py"
        for name in re.findall(r'\bfault_point\("([a-z]+\.[a-z]+)"\)', path.read_text())
    ),
}


def run(module: str, *arguments: str | int | Path) -> Any:
    """Run one of the programs beside this file; return what it says."""
    command = [sys.executable, "-m", f"tests.safety.{module}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("operation", [*OPERATIONS, kill_history.RECOVERY])
def test_a_kill_at_any_moment_leaves_old_or_new_and_the_next_works(
    light_directory: Path, operation: str
) -> None:
    seen = run("kill_history", operation, ROUNDS, light_directory)
    print(f"{operation}: {seen['rounds']} rounds, {seen['stages']}, {seen['outcomes']}")
    assert seen["defects"] == []
    assert seen["rounds"] == ROUNDS
    assert seen["leftovers"] > 0
    both = {"restore": 2, "import": 2, "export": 2}
    assert 1 <= len(seen["outcomes"]) <= both.get(operation, 1)
    if size(short=False, long=True):  # few kills may all come at the same few moments
        assert len(seen["stages"]) >= 5
        assert len(seen["outcomes"]) == both.get(operation, 1)


@pytest.mark.slow
@pytest.mark.parametrize("operation", walk_history.OPERATIONS)
def test_a_fault_at_any_named_point_leaves_old_or_new_and_the_next_works(
    light_directory: Path, operation: str
) -> None:
    seen = run("walk_history", operation, light_directory)
    print(f"{operation}: {seen['walked']} faults, {seen['raised']}, {seen['outcomes']}")
    assert seen["defects"] == []
    assert seen["killed"] == seen["walked"] // len(walk_history.faults_of(0))
    assert seen["raised"].keys() <= EXPECTED
    assert sum(seen["raised"].values()) > 0


@pytest.mark.filterwarnings("ignore:This process .*fork:DeprecationWarning")
@pytest.mark.parametrize("expect", [None, "two"])
@pytest.mark.parametrize(
    "point", ["changing", "removed", "exchanged", "created", "changed", "done"]
)
def test_a_savepoint_around_a_killed_restore_takes_all_of_it_back(
    light_directory: Path, point: str, expect: str | None
) -> None:
    stage = Stage(light_directory)

    def work() -> None:
        with stage.opened() as fs:
            point = fs.savepoint()
            fs.restore(stage.kept["one"], expect=stage.kept[expect] if expect else None)
            point.release()

    assert is_killed_at(f"change.{point}", work)
    later = stage.root / "later"
    later.write_text("saved by somebody")
    stage.opened().close()
    assert later.read_text() == "saved by somebody"
    later.unlink()
    assert stage.state() == "two"
    assert hidden_names(stage.directory) == []


def test_the_operations_pass_every_named_point(light_directory: Path) -> None:
    passed = set(run("walk_history", "points", light_directory)["passed"])
    assert passed - {"change.done"} | POINTS_OF_CHANGES == NAMED - NOT_IN_A_RUN
    assert len(NAMED) > 25
