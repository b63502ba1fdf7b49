"""Threads and processes on one workspace see complete files and lose no changes."""

import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.safety.places import ROOT, temporary_names, visible
from tests.safety.worker import content, is_whole, work
from tests.sizes import size
from weakincentives.filesystem import BaseFilesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.filesystem.host.journal import journal
from weakincentives.posix import atomic, fault_hook

ROUNDS = size(3_000, 50_000)
THREADS = 8


@pytest.fixture(params=["host", "memory"])
def fs(request: pytest.FixtureRequest, light_directory: Path) -> BaseFilesystem:
    if request.param == "host":
        return HostFilesystem(light_directory)
    return InMemoryFilesystem()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_eight_threads_do_not_disturb_each_other(fs: BaseFilesystem) -> None:
    happened: Counter[str] = Counter()
    defects: list[str] = []

    def run(number: int) -> None:
        outcome, found = work(fs, number, ROUNDS // 4)
        happened.update(outcome)
        defects.extend(found)

    threads = [threading.Thread(target=run, args=[number]) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert defects == []
    assert happened.total() == THREADS * (ROUNDS // 4)
    assert happened["worked"] > happened.total() // 10
    check_whole(fs)


def check_whole(fs: BaseFilesystem) -> None:
    for path, found in visible(fs).items():
        assert not isinstance(found, bytes) or is_whole(found.decode()), path


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_do_not_disturb_each_other(light_directory: Path) -> None:
    command = [sys.executable, "-m", "tests.safety.worker", str(light_directory)]
    workers = [
        subprocess.Popen(
            [*command, str(number), str(ROUNDS)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    found = [json.loads(worker.communicate(timeout=500)[0]) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert [defects for _, defects in found] == [[], []]
    assert all(happened["worked"] > ROUNDS // 10 for happened, _ in found)
    with HostFilesystem(light_directory) as fs:
        check_whole(fs)
    assert temporary_names(light_directory) == []


def test_readers_see_whole_generations_while_one_writes(light_directory: Path) -> None:
    fs = HostFilesystem(light_directory)
    fs.write("f", content("a"))
    torn: list[str] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            text = fs.read("f").content
            if not is_whole(text):
                torn.append(text[:20])

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(2_000):
        fs.write("f", content("abcdefgh"[number % 8]))
    stop.set()
    for reader in readers:
        reader.join()
    assert torn == []


def test_threads_that_append_lose_nothing(fs: BaseFilesystem) -> None:
    def append(letter: str) -> None:
        for _ in range(100):
            fs.write("log", f"{letter * 30}\n", mode="append")

    threads = [threading.Thread(target=append, args=[letter]) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = fs.read("log").content.splitlines()
    assert Counter(lines) == {letter * 30: 100 for letter in "abcd"}


def test_create_has_one_winner(light_directory: Path) -> None:
    instances = [HostFilesystem(light_directory) for _ in range(THREADS)]
    won: list[int] = []
    start = threading.Barrier(THREADS)

    def create(number: int) -> None:
        for name in range(30):
            start.wait()
            try:
                instances[number].write(f"{name}/x", str(number), mode="create")
            except FileExistsError:
                continue
            won.append(name)

    threads = [threading.Thread(target=create, args=[number]) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(30))


# --- the races above, one step at a time ---


@pytest.fixture
def pair(light_directory: Path) -> tuple[HostFilesystem, HostFilesystem]:
    """Two instances on one directory, as two processes have them."""
    return HostFilesystem(light_directory), HostFilesystem(light_directory)


def test_both_may_write_the_same_file_below_the_same_missing_parent(
    pair: tuple[HostFilesystem, HostFilesystem],
) -> None:
    ours, theirs = pair
    waiting = ["theirs"]

    def hook(point: str) -> None:
        if point == "store.closed" and waiting:
            theirs.write("new/dir/f", waiting.pop())

    with fault_hook(hook):
        ours.write("new/dir/f", "ours")
    assert visible(ours) == {"new": None, "new/dir": None, "new/dir/f": b"ours"}


def test_create_loses_to_who_was_first_and_takes_nothing_of_theirs(
    pair: tuple[HostFilesystem, HostFilesystem],
) -> None:
    ours, theirs = pair
    waiting = ["theirs"]

    def hook(point: str) -> None:
        if point == "store.closed" and waiting:
            theirs.write("new/dir/f", waiting.pop())

    with fault_hook(hook), pytest.raises(FileExistsError):
        ours.write("new/dir/f", "ours", mode="create")
    assert visible(ours) == {"new": None, "new/dir": None, "new/dir/f": b"theirs"}


def test_a_parent_made_by_others_step_by_step_is_theirs(
    pair: tuple[HostFilesystem, HostFilesystem], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pair
    steps = [lambda: theirs.mkdir("a"), lambda: theirs.write("a/b/f", "theirs")]
    rename = atomic.rename

    def after_them(
        source: tuple[int, str], target: tuple[int, str], *, exclusive: bool = False
    ) -> None:
        if exclusive and steps:
            steps.pop(0)()
        rename(source, target, exclusive=exclusive)

    monkeypatch.setattr(theirs, "_make_directories", lambda paths: plain_mkdir(theirs, paths))
    for module in (atomic, journal):
        monkeypatch.setattr(module, "rename", after_them)
    with pytest.raises(FileExistsError):
        ours.write("a/b/f", "ours", mode="create")
    assert visible(theirs)["a/b/f"] == b"theirs"


def plain_mkdir(fs: HostFilesystem, paths: list[str]) -> None:
    for path in paths:
        Path(fs.root, path).mkdir()


def test_a_failed_move_takes_nothing_back_that_others_use(
    pair: tuple[HostFilesystem, HostFilesystem], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pair
    ours.write("source", "x")
    move = ours._move

    def after_them(source: str, destination: str) -> None:
        theirs.write("new/theirs", "kept")
        theirs.delete("source")
        move(source, destination)

    monkeypatch.setattr(ours, "_move", after_them)
    with pytest.raises(FileNotFoundError):
        ours.move("source", "new/dir/goal")
    assert visible(ours) == {"new": None, "new/theirs": b"kept"}
    assert temporary_names(Path(ours.root)) == []


@pytest.mark.parametrize("goal", ["goal", "new/dir/goal"])
def test_a_copy_of_what_vanished_makes_nothing_and_says_so(
    pair: tuple[HostFilesystem, HostFilesystem], monkeypatch: pytest.MonkeyPatch, goal: str
) -> None:
    ours, theirs = pair
    ours.write("source/f", "x")
    make = ours._make_directory

    def after_them(path: str) -> None:
        if theirs.exists("source"):
            theirs.write("theirs", "kept")
            theirs.delete("source", recursive=True)
        make(path)

    monkeypatch.setattr(ours, "_make_directory", after_them)
    with pytest.raises(FileNotFoundError, match="source"):
        ours.copy("source", goal)
    assert visible(ours) == {"theirs": b"kept"}
    assert temporary_names(Path(ours.root)) == []


def test_a_writer_at_work_is_not_swept_by_others(
    pair: tuple[HostFilesystem, HostFilesystem],
) -> None:
    ours, _ = pair
    seen: list[int] = []

    def hook(point: str) -> None:
        if point == "store.closed":
            with HostFilesystem(ours.root) as late:
                late.list()
            seen.append(len(temporary_names(Path(ours.root))))

    with fault_hook(hook):
        ours.write("f", "x")
        ours.write("n/e/w", "x")
    assert seen == [1, 2]
    assert ours.read("n/e/w").content == "x"


def test_a_forked_child_uses_names_of_its_own(light_directory: Path) -> None:
    script = """
import os, sys
from weakincentives.filesystem import HostFilesystem
from weakincentives.posix import fault_hook
fs = HostFilesystem(sys.argv[1])
fs.write("warm", "x")
names = []
def hook(point):
    if point == "store.closed":
        names.append([n for n in os.listdir(sys.argv[1]) if n.startswith(".wink")][0])
read, write = os.pipe()
child = os.fork()
if child:
    os.waitpid(child, 0)  # one after the other, or each could see the name of the other
with fault_hook(hook):
    fs.write("f", "x")
if child == 0:
    os.write(write, names[0].encode())
    os._exit(0)
print(names[0] != os.read(read, 300).decode())
"""
    command = [sys.executable, "-c", script, str(light_directory)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout == "True\n"
    assert {path.name for path in light_directory.iterdir()} == {"warm", "f"}
