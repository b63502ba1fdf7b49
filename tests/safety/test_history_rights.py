"""Permissions, links and locations that a restore must handle with care."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.filesystem.trees_on_disk import clear
from tests.safety.history import Stage
from tests.safety.places import ROOT
from weakincentives.errors import SnapshotError, SnapshotRestoreError
from weakincentives.filesystem import HostFilesystem


@pytest.fixture
def stage(light_directory: Path) -> Stage:
    return Stage(light_directory)


def test_names_of_one_file_get_their_own_permissions_back(stage: Stage) -> None:
    same, other = stage.root / "same", stage.root / "other"
    other.write_bytes(same.read_bytes())
    other.chmod(0o777)
    with stage.opened() as fs:
        kept = fs.snapshot()
        same.unlink()
        same.hardlink_to(other)
        fs.restore(kept)
    assert same.stat().st_mode & 0o777 == 0o644
    assert other.stat().st_mode & 0o777 == 0o777


def test_a_name_of_a_file_outside_is_cut_off_before_anything_changes(stage: Stage) -> None:
    """A hard link leads out of the workspace as no other does."""
    outside, inside = stage.directory / "outside", stage.root / "same"
    outside.write_bytes(inside.read_bytes())
    outside.chmod(0o600)
    with stage.opened() as fs:
        kept = fs.snapshot()
        inside.unlink()
        inside.hardlink_to(outside)
        fs.restore(kept)
    assert inside.stat().st_mode & 0o777 == 0o644
    assert outside.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("bits", [0o4000, 0o2000, 0o6000, 0o1000])
def test_rights_to_run_as_somebody_else_go(stage: Stage, bits: int) -> None:
    (stage.root / "same").chmod(0o644 | bits)
    with stage.opened() as fs:
        fs.restore(stage.kept["two"])
    assert (stage.root / "same").stat().st_mode & 0o7777 == 0o644


UNPRIVILEGED = """
import json, os, sys
from pathlib import Path
from tests.filesystem.host.restore_trees import become
from tests.filesystem.trees_on_disk import clear, state_of
from tests.posix.forks import is_killed_at
from weakincentives.filesystem import HostFilesystem
base = Path(sys.argv[1])
if os.geteuid() == 0:
    become(65534, base)
root = base / "workspace"

def prepare():
    root.mkdir(exist_ok=True)
    root.chmod(0o700)
    clear(root)
    (root / "d" / "e").mkdir(parents=True)
    (root / "d" / "e" / "f").write_text("1")
    (root / "g").write_text("2")
    (root / "shut" / "open").mkdir(parents=True)
    (root / "shut" / "open" / "h").write_text("3")
    (root / "listless").mkdir()
    (root / "listless" / "i").write_text("4")
    (root / "listless").chmod(0o300)
    (root / "shut").chmod(0)

def spoil():
    for path in ("g", "d/e/f", "d/e", "d"):
        (root / path).chmod(0)
    (root / "listless" / "i").unlink()
    (root / "shut").chmod(0o700)
    (root / "shut" / "open" / "h").unlink()
    (root / "shut").chmod(0)
    root.chmod(0o500)
"""

IN_ONE = """
prepare()
with HostFilesystem(root, git_dir=base / "store") as fs:
    kept, before = fs.snapshot(), state_of(root)
    spoil()
    fs.restore(kept)
print(json.dumps([state_of(root) == before, root.stat().st_mode & 0o777]))
"""

KILLED = """
outcomes, number = {}, 0
while True:
    number += 1
    prepare()
    with HostFilesystem(root, git_dir=base / "store") as fs:
        kept, before = fs.snapshot(), state_of(root)
    spoil()
    after = state_of(root)
    def restore():
        with HostFilesystem(root, git_dir=base / "store") as fs:
            fs.restore(kept)
    if not is_killed_at("", restore, number):
        break
    is_recorded = any(root.glob(".wink-tmp-change-*/record"))
    HostFilesystem(root, git_dir=base / "store").close()
    found = state_of(root)
    outcome = "old" if found == after else "new" if found == before else f"{found} at {number}"
    outcomes[outcome] = outcomes.get(outcome, 0) + 1
    # the root itself is opened just before there is a record, and closed just after
    assert root.stat().st_mode & 0o777 == 0o500 or not is_recorded, number
print(json.dumps(sorted(outcomes)))
"""


def run_unprivileged(directory: Path, program: str) -> object:
    directory.chmod(0o755)
    work = directory / "work"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED + program, str(work)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_was_closed_since_is_opened_again_by_who_owns_it(light_directory: Path) -> None:
    assert run_unprivileged(light_directory, IN_ONE) == [True, 0o500]


@pytest.mark.slow
def test_what_was_closed_since_is_closed_again_after_a_kill(light_directory: Path) -> None:
    assert run_unprivileged(light_directory, KILLED) == ["new", "old"]


@pytest.mark.parametrize("place", ["", "inner", "a/b", "../workspace/inner", "..", "../.."])
def test_a_store_in_the_workspace_or_around_it_is_refused(
    light_directory: Path, place: str
) -> None:
    root = light_directory / "around" / "workspace"
    root.mkdir(parents=True)
    with pytest.raises(SnapshotError), HostFilesystem(root, git_dir=root / place) as fs:
        fs.snapshot()
    assert list(root.iterdir()) == []


def test_a_store_in_the_workspace_is_refused_where_it_comes_by_default(
    light_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(light_directory))
    with HostFilesystem(light_directory) as fs:
        fs.write("f", "x")
        with pytest.raises(SnapshotError):
            fs.snapshot()
    assert [path.name for path in light_directory.iterdir()] == ["f"]


def test_a_snapshot_whose_store_is_in_the_workspace_is_refused(stage: Stage) -> None:
    inside = stage.root / "looks like a store"
    subprocess.run(["cp", "-a", stage.store, inside], check=True)
    with stage.opened() as fs, pytest.raises(SnapshotRestoreError):
        fs.restore(replace(stage.kept["one"], git_dir=str(inside)))


def test_a_name_of_a_file_in_the_place_of_a_directory_goes(stage: Stage) -> None:
    closed = stage.root / "closed"
    with stage.opened() as fs:
        closed.chmod(0o700)
        clear(closed)
        closed.rmdir()
        closed.write_bytes(b"x")
        (stage.root / "twin").hardlink_to(closed)
        fs.restore(stage.kept["two"])
    assert stage.state() == "two"
