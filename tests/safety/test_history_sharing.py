"""Threads and processes that share a history wait for each other, and all succeed."""

import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.filesystem.trees_on_disk import state_of
from tests.safety.history import Stage, check_store, hidden_names
from tests.safety.share_history import PROCESSES, SNAPSHOTS
from tests.safety.test_history_kills import run
from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem import FilesystemSnapshot, HostFilesystem
from weakincentives.gitstore.repository import Repository
from weakincentives.posix import fault_hook

THREADS = 8


def defects(reports: list[list[str]]) -> list[str]:
    return [report for each in reports for report in each if report.startswith("!")]


def test_four_processes_take_snapshots_while_one_writes(light_directory: Path) -> None:
    *taken, written = run("share_history", "take", light_directory)
    assert defects([*taken, written]) == []
    assert [len(set(each)) for each in taken] == [SNAPSHOTS] * PROCESSES
    assert int(written[0]) > 10
    with HostFilesystem(light_directory / "workspace", git_dir=light_directory / "store") as fs:
        listed = fs.history.list()
        assert {each.commit_ref for each in listed} >= {ref for each in taken for ref in each}
        order = [each.tag for each in listed if each.tag and each.tag.startswith("0 ")]
        assert order == [f"0 {number}" for number in range(SNAPSHOTS)]
        assert fs.history.verify() == []
        fs.restore(listed[len(listed) // 2])
    assert hidden_names(light_directory) == []


def test_processes_restore_import_and_keep_at_once_and_no_state_is_a_mix(
    light_directory: Path,
) -> None:
    *worked, kept, opened = run("share_history", "restore", light_directory)
    assert defects([*worked, kept, opened]) == []
    assert [len(each) for each in worked] == [16, 16, 8]
    assert len(kept) > 1
    assert int(opened[0]) > 1
    assert hidden_names(light_directory) == []
    repository = Repository.open(light_directory / "store")
    commits = repository.commits()
    trees = {commit.tag: commit.tree for commit in commits}
    assert {commit.tree for commit in commits} == {trees["one"], trees["two"]}
    assert repository.verify() == []


@pytest.fixture
def stage(light_directory: Path) -> Stage:
    return Stage(light_directory)


def in_threads(works: list[Callable[[], object]]) -> list[BaseException]:
    """Do everything at once; return what was raised."""
    raised: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        start.wait()
        try:
            work()
        except BaseException as error:  # noqa: BLE001 # all of them are looked at
            raised.append(error)

    threads = [threading.Thread(target=run, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@pytest.mark.parametrize("shared", [True, False], ids=["one instance", "eight instances"])
def test_eight_threads_take_snapshots_and_restore(stage: Stage, shared: bool) -> None:
    first = stage.opened()
    taken: list[FilesystemSnapshot] = []

    def work(number: int) -> None:
        fs = first if shared else stage.opened()
        for count in range(6):
            if number % 2:
                fs.restore(stage.kept[("one", "two")[(number // 2 + count) % 2]])
            else:
                taken.append(fs.snapshot())
        if not shared:
            fs.close()

    raised = in_threads([lambda number=number: work(number) for number in range(THREADS)])
    assert raised == []
    assert stage.state() in {"one", "two"}
    refs = {each.commit_ref for each in taken}
    assert len(refs) == THREADS // 2 * 6
    assert stage.listed() >= refs
    repository = Repository.open(stage.store)
    both = {repository.read_commit(stage.kept[name].commit_ref).tree for name in ("one", "two")}
    assert {repository.read_commit(ref).tree for ref in refs} <= both
    first.close()
    assert hidden_names(stage.directory) == []
    check_store(stage, refs)


def test_who_is_at_work_is_not_disturbed_by_who_writes(stage: Stage) -> None:
    """Every file that a snapshot holds is one that was there, whole."""
    fs = stage.opened()
    over = threading.Event()

    def write() -> None:
        count = 0
        while not over.is_set():
            fs.write(f"busy/{count % 5}", f"{count}\n" * 500)
            count += 1

    def take() -> None:
        try:
            for _ in range(20):
                view = fs.view(fs.snapshot())
                for match in view.glob("busy/*"):
                    lines = set(view.read(match.path).content.split())
                    assert len(lines) == 1, f"torn: {match.path}"
        finally:
            over.set()

    assert in_threads([write, take]) == []
    fs.close()


def _clear(path: Path) -> None:
    subprocess.run(["rm", "-rf", "--", path], check=True)


def _file(path: Path, outside: Path) -> None:
    path.write_bytes(b"theirs")


def _directory(path: Path, outside: Path) -> None:
    path.mkdir()
    (path / "theirs").write_bytes(b"theirs")


def _link(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def _pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def _nothing(path: Path, outside: Path) -> None: ...


@pytest.mark.parametrize("point", ["change.changing", "change.removed", "change.created"])
@pytest.mark.parametrize("put", [_file, _directory, _link, _pipe, _nothing])
def test_who_gets_in_the_way_of_a_restore_changes_nothing_outside(
    light_directory: Path, point: str, put: Callable[[Path, Path], None]
) -> None:
    """It is done or not, and the next one is; no link that appears meanwhile is followed."""
    outside = light_directory / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    for path in ("only one", "gone", "d", "to link", "to directory", "to file", "changed"):
        stage = Stage(light_directory / path)
        waiting = [stage.root / path]

        def hook(reached: str, waiting: list[Path] = waiting) -> None:
            if reached == point and waiting:
                place = waiting.pop()
                _clear(place)
                put(place, outside)

        with stage.opened() as fs, suppress(SnapshotRestoreError), fault_hook(hook):
            fs.restore(stage.kept["one"])
        assert waiting == []
        with stage.opened() as fs:
            fs.restore(stage.kept["two"])
        assert stage.state() == "two", path
        assert hidden_names(stage.directory) == []
    assert state_of(outside) == {b"secret": (0o100644, b"secret")}
