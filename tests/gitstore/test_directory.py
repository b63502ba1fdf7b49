"""The directory of a store: created by us and private, or left alone."""

import json
import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.descriptors import open_descriptors
from tests.gitstore.gitcommand import new_repository
from tests.posix.forks import ends, in_a_child
from weakincentives.errors import SnapshotError
from weakincentives.filesystem import HostFilesystem
from weakincentives.gitstore import directory as gitdir
from weakincentives.gitstore.directory import GitDirectory
from weakincentives.posix import fault_hook


def state(path: Path) -> list[tuple[str, int, bytes]]:
    """Return all that is in a directory, and its own mode."""
    found = sorted(path.rglob("*"))
    content = [p.read_bytes() if p.is_file() else b"" for p in found]
    modes = [p.lstat().st_mode for p in found]
    names = [str(p) for p in found]
    return [(str(path), path.lstat().st_mode, b""), *zip(names, modes, content, strict=True)]


def test_a_new_directory_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        directory = GitDirectory(tmp_path / "deep" / "git", "/w")
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert directory.marker.root == "/w"
    assert GitDirectory(directory.path).marker == directory.marker
    assert GitDirectory(directory.path, "/w").marker == directory.marker


def make_foreign(path: Path, kind: str) -> None:
    if kind == "git":
        new_repository(path)
    elif kind == "file":
        path.write_text("x")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        target = GitDirectory(path.with_name("target"), "/w").path
        path.symlink_to(target)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    else:
        path.mkdir(0o700)
        (path / "wink.json").write_text(kind)


FOREIGN = [
    "git",
    "file",
    "fifo",
    "link",
    "dangling",
    "",
    "{}",
    "[]",
    "null",
    '{"format": 1}',
    '{"format": 1, "root": 5, "adopted": false}',
    '{"format": "1", "root": "/w", "adopted": false}',
    "[" * 30_000,
    "\x00",
]


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_we_did_not_make_is_refused_and_not_changed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "git"
    make_foreign(path, kind)
    before = state(tmp_path) if kind not in {"fifo", "dangling"} else []
    for root in (None, "/w"):
        with pytest.raises(SnapshotError, match="was not made by this package"):
            GitDirectory(path, root)
    if before:
        assert state(tmp_path) == before


def test_what_became_foreign_is_neither_locked_nor_removed(tmp_path: Path) -> None:
    directory = GitDirectory(tmp_path / "git", "/w")
    assert directory.remove()
    new_repository(directory.path)
    before = state(directory.path)
    for using in (directory.lock, directory.prevent_removal):
        with pytest.raises(SnapshotError, match="was not made by this package"), using():
            pass
    assert not directory.remove()
    assert state(directory.path) == before


def test_a_missing_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="Snapshot store is missing"):
        GitDirectory(tmp_path / "git")
    assert not (tmp_path / "git").exists()


def test_another_format_and_another_workspace_are_refused(tmp_path: Path) -> None:
    directory = GitDirectory(tmp_path / "git", "/w")
    with pytest.raises(SnapshotError, match="belongs to another workspace: '/w'"):
        GitDirectory(directory.path, "/w2")
    marker = directory.path / "wink.json"
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"format": 2}))
    with pytest.raises(SnapshotError, match="has format 2; this version reads 1"):
        GitDirectory(directory.path)


@pytest.mark.parametrize("mode", [0o770, 0o701, 0o755])
def test_one_that_others_can_enter_is_refused(tmp_path: Path, mode: int) -> None:
    directory = GitDirectory(tmp_path / "git", "/w")
    directory.path.chmod(mode)
    with pytest.raises(SnapshotError, match="open to other users"):
        GitDirectory(directory.path)


def test_one_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = GitDirectory(tmp_path / "git", "/w")
    (tmp_path / "empty").mkdir(0o700)
    monkeypatch.setattr(gitdir.os, "geteuid", lambda: os.getuid() + 1)
    for path in (directory.path, tmp_path / "empty"):
        with pytest.raises(SnapshotError, match="was not made by this package"):
            GitDirectory(path, "/w")


def test_an_empty_directory_is_taken_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "git"
    path.mkdir(0o755)
    directory = GitDirectory(path, "/w")
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert directory.remove()
    assert list(path.iterdir()) == []


def test_removal_does_not_leave_the_directory(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("kept")
    directory = GitDirectory(tmp_path / "git", "/w")
    (directory.path / "link").symlink_to(outside)
    (directory.path / "objects" / "link").symlink_to(outside)
    assert directory.remove()
    assert not directory.path.exists()
    assert (outside / "f").read_text() == "kept"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    directory = GitDirectory(tmp_path / "git", "/w")
    directory.replace("x", b"old")

    def hook(point: str) -> None:
        if point == "gitdir.written":
            raise OSError(28, "No space left on device")

    before = state(directory.path)
    with fault_hook(hook), pytest.raises(OSError, match="No space"):
        directory.replace("x", b"new")
    assert state(directory.path) == before


LEAVE = """
import sys
from pathlib import Path
from weakincentives.posix import temporary_name
(Path(sys.argv[1]) / temporary_name()).write_text("left")
"""


def test_leftovers_are_swept_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    directory = GitDirectory(tmp_path / "git", "/w")
    before = state(directory.path)
    subprocess.run([sys.executable, "-c", LEAVE, directory.path], check=True)
    assert state(directory.path) != before

    def hook(point: str) -> None:
        if point == "gitdir.written":
            directory.sweep()

    with fault_hook(hook):
        directory.replace("x", b"whole")
    assert (directory.path / "x").read_bytes() == b"whole"
    (directory.path / "x").unlink()
    assert state(directory.path) == before


def test_the_lock_lets_one_in_at_a_time(tmp_path: Path) -> None:
    path = GitDirectory(tmp_path / "git", "/w").path
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        mine = GitDirectory(path)
        for _ in range(20):
            with mine.lock():
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 80


def test_who_locks_a_directory_that_is_being_made_waits_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "git"
    earlier = GitDirectory(path, "/w")
    assert earlier.remove()
    found: list[bool] = []

    def lock() -> None:
        with earlier.prevent_removal(), earlier.lock():
            found.append((path / "config").exists())

    waiting = threading.Thread(target=lock)

    def interfere(point: str) -> None:
        if point == "gitdir.begun" and threading.current_thread() is threading.main_thread():
            waiting.start()  # the locks are there, the configuration is not
            waiting.join(1)

    with fault_hook(interfere):
        GitDirectory(path, "/w")
    waiting.join(60)
    assert found == [True]


def remove_often(path: Path, stop: threading.Event, removed: threading.Event) -> None:
    while not stop.is_set():
        if GitDirectory(path, "/w").remove():
            removed.set()


def use_often(path: Path, removed: threading.Event) -> bool:
    """Return whether the directory was there whenever it was locked.

    It goes on until the directory was removed in between, which is a matter of luck.
    """
    there, rounds = True, 0
    while rounds < 60 or not removed.is_set():
        rounds += 1
        mine = GitDirectory(path, "/w")
        with mine.prevent_removal(), mine.lock():
            there = there and (path / "config").exists() and (path / "wink.json").exists()
    return there


def test_what_is_locked_is_there_however_often_it_is_removed(tmp_path: Path) -> None:
    stop, removed = threading.Event(), threading.Event()
    with ThreadPoolExecutor(3) as pool:
        removing = pool.submit(remove_often, tmp_path / "git", stop, removed)
        using = [pool.submit(use_often, tmp_path / "git", removed) for _ in range(2)]
        try:
            assert all(each.result() for each in using)
        finally:
            stop.set()
        removing.result()


def test_nothing_stays_open(tmp_path: Path) -> None:
    directory = GitDirectory(tmp_path / "git", "/w")
    before = open_descriptors()
    for _ in range(3):
        with directory.prevent_removal(), directory.lock():
            directory.begin_epoch()
    with directory.prevent_removal():
        assert not directory.remove()
    assert open_descriptors() == before


def test_who_opens_a_directory_waits_until_it_has_been_removed(tmp_path: Path) -> None:
    path = tmp_path / "git"
    first = GitDirectory(path, "/w")
    removing, opening = threading.Event(), threading.Event()
    opened: list[GitDirectory] = []

    def hook(point: str) -> None:
        if point == "gitdir.removing" and not removing.is_set():
            removing.set()
            opening.wait(60)

    def remove() -> None:
        with fault_hook(hook):
            assert first.remove()

    def open_again() -> None:
        opening.set()
        opened.append(GitDirectory(path, "/w"))

    remover = threading.Thread(target=remove)
    remover.start()
    assert removing.wait(60)
    opener = threading.Thread(target=open_again)
    opener.start()
    remover.join(60)
    opener.join(60)
    assert [each.marker.root for each in opened] == ["/w"]
    assert (path / gitdir.MARKER).exists()


@pytest.mark.parametrize("adopted", [False, True])
def test_a_removal_that_is_killed_is_finished_by_whoever_comes_next(
    tmp_path: Path, adopted: bool
) -> None:
    path = tmp_path / "git"
    for number in range(30):
        if adopted:
            path.mkdir(exist_ok=True)
        directory = GitDirectory(path, "/w")
        reached: list[str] = []

        def hook(point: str, reached: list[str] = reached, number: int = number) -> None:
            if point == "gitdir.removing":
                reached.append(point)
                if len(reached) > number:
                    raise KeyboardInterrupt

        with fault_hook(hook):
            try:
                directory.remove()
            except KeyboardInterrupt:
                pass
            else:
                assert number > 5
                return
        assert GitDirectory(path, "/w").marker.root == "/w"
    raise AssertionError("removal has too many steps")


def open_and_remove(base: Path, rounds: int) -> None:
    """Take snapshots in several threads, each with an instance of its own that cleans up."""

    def work(number: int) -> None:
        for _ in range(rounds):
            with HostFilesystem(base / "root", git_dir=base / "store") as fs:
                kept = fs.snapshot(tag=str(number))
                assert fs.view(kept).exists("file")
                assert kept in list(fs.history.list())
                fs.cleanup()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))


@pytest.mark.slow
def test_stores_are_opened_and_removed_at_the_same_time(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").touch()
    children = [in_a_child(lambda: open_and_remove(tmp_path, 25)) for _ in range(3)]
    assert [ends(child) for child in children] == [0, 0, 0]
    with HostFilesystem(tmp_path / "root", git_dir=tmp_path / "store") as fs:
        fs.snapshot()
        fs.cleanup()
    assert [each.name for each in tmp_path.iterdir() if each.name != "root"] in ([], ["store"])
