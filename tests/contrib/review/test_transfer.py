"""Copies in two processes: the same as in one, whatever becomes of the second."""

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.descriptors import open_descriptors
from tests.filesystem.trees_on_disk import state_of
from weakincentives.contrib.review import Review, WorkingCopy, working_copy
from weakincentives.contrib.review import copy as transfer
from weakincentives.filesystem import HostFilesystem, MountProgress, diff
from weakincentives.filesystem.host.snapshots import capture, writer
from weakincentives.filesystem.host.snapshots.writer import CopyWorker, FileBatch
from weakincentives.posix import small_files

SCRIPT = Path(small_files.__file__)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with all that a worker does not copy, among many files that it does."""
    root = tmp_path / "many"
    chance = random.Random(1)
    for number in range(8):
        (root / f"d{number}" / "deep").mkdir(parents=True)
        for name in range(60):
            content = chance.randbytes(chance.choice([0, 3, 250, 257, 5_000, 9_000]))
            (root / f"d{number}" / f"f{name}").write_bytes(content)
    (root / "d0" / "deep" / "large").write_bytes(chance.randbytes(3_000_000))
    (root / "d1" / "holes").write_bytes(b"x" * 4096 + bytes(4096))
    (root / "d2" / "tool").write_text("#!/bin/sh\n")
    (root / "d2" / "tool").chmod(0o4755)
    (root / "d3" / "locked").write_text("mine")
    (root / "d3" / "locked").chmod(0o400)
    (root / "d4" / "link").symlink_to("f1")
    os.mkfifo(root / "d5" / "pipe")
    (root / os.fsdecode(b"d6/\xff\n name")).write_text("bytes")
    (root / "d7" / "ünï").write_text("text")
    bin_directory = root / ".venv" / "bin"
    bin_directory.mkdir(parents=True)
    (root / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (bin_directory / "tool").write_text(f"#!{bin_directory}/python\nprint()\n")
    return root


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let every copy use a worker; return the number of files of each batch that it copied."""
    found: list[int] = []
    receive = CopyWorker.receive

    def count(self: CopyWorker, *, wait: bool = False) -> Iterator[FileBatch]:
        for batch in receive(self, wait=wait):
            found.append(sum(each is not None for each in batch.copied))
            yield batch

    monkeypatch.setattr(transfer, "_MIN_FILES", 1)
    monkeypatch.setattr(transfer, "_MAX_BATCH", 7)
    monkeypatch.setattr(transfer, "count_processors", lambda: 2)
    monkeypatch.setattr(CopyWorker, "receive", count)
    return found


def check(copy: WorkingCopy, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a copy has everything, and that its snapshot has the same."""
    expected = {name: each for name, each in state_of(tree).items() if name != b"d5/pipe"}
    found = state_of(copy.root)
    assert found.pop(b".venv/bin/tool") != expected.pop(b".venv/bin/tool")  # its path is relative
    assert found == expected
    for path in tree.rglob("f*"):
        assert (copy.root / path.relative_to(tree)).stat().st_mtime_ns == path.stat().st_mtime_ns
    assert [each.path for each in copy.skipped] == ["d5/pipe"]

    def refuse(*_: object) -> str:
        raise AssertionError("read again")

    with (
        monkeypatch.context() as patched,
        HostFilesystem(copy.root, git_dir=copy.git_dir) as files,
    ):
        patched.setattr(capture, "read_range", refuse)
        assert not diff(files.view(copy.base), files.view(files.snapshot()))
        assert not files.history.verify()
    with HostFilesystem(copy.root, git_dir=copy.git_dir) as files:
        for path in ("d0/f1", "d1/f2", "d7/f59", "d0/deep/large"):
            assert files.view(copy.base).stat(path).content_hash == files.stat(path).content_hash
    with Review(copy) as review:
        assert not review.diff


def test_a_copy_in_two_processes_is_exact(
    tree: Path, tmp_path: Path, batches: list[int], monkeypatch: pytest.MonkeyPatch
):
    descriptors = open_descriptors()
    done: list[MountProgress] = []
    copy = working_copy(tree, place=tmp_path / "place", progress=done.append)
    assert open_descriptors() == descriptors
    assert sum(batches) > 0
    assert (done[-1].done_files, done[-1].done_bytes) == (
        done[-1].total_files,
        done[-1].total_bytes,
    )
    check(copy, tree, monkeypatch)


# a worker that ends in the middle of a file, and leaves it there
DIES = """
import os, runpy, sys
names = runpy.run_path(sys.argv[1])
left = [int(sys.argv[2])]
create = names["create_small"]
def create_or_die(directory, name, data, like):
    left[0] -= 1
    if left[0] < 0:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=directory))
        os.kill(os.getpid(), 9)
    return create(directory, name, data, like)
names["_copy"].__globals__["create_small"] = create_or_die
import socket
names["serve"](socket.socket(fileno=os.dup(0)))
"""


@pytest.mark.parametrize("after", [0, 1, 10, 40])
def test_what_a_worker_leaves_when_it_dies_is_copied_again(
    tree: Path, tmp_path: Path, batches: list[int], monkeypatch: pytest.MonkeyPatch, after: int
):
    dies = (sys.executable, "-c", DIES, str(SCRIPT), str(after))
    monkeypatch.setattr(writer, "_SCRIPT", dies)
    copy = working_copy(tree, place=tmp_path / "place")
    assert sum(batches) <= after
    check(copy, tree, monkeypatch)


@pytest.mark.parametrize("script", [("/nowhere/python",), (sys.executable, "-c", "pass")])
def test_without_a_worker_everything_is_copied_here(
    tree: Path,
    tmp_path: Path,
    batches: list[int],
    monkeypatch: pytest.MonkeyPatch,
    script: tuple[str, ...],
):
    monkeypatch.setattr(writer, "_SCRIPT", script)
    copy = working_copy(tree, place=tmp_path / "place")
    assert sum(batches) == 0
    check(copy, tree, monkeypatch)


def test_a_worker_that_does_not_answer_is_given_up(
    tree: Path, tmp_path: Path, batches: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(writer, "_MAX_SECONDS", 0.05)
    sleeps = (sys.executable, "-c", "import time; time.sleep(600)")
    monkeypatch.setattr(writer, "_SCRIPT", sleeps)
    copy = working_copy(tree, place=tmp_path / "place")
    assert sum(batches) == 0
    check(copy, tree, monkeypatch)


@pytest.mark.usefixtures("batches")
def test_a_cancelled_copy_ends_its_worker(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ended: list[int | None] = []
    stop = CopyWorker.close

    def note(self: CopyWorker) -> None:
        process = self._process
        stop(self)
        ended.append(None if process is None else process.returncode)

    monkeypatch.setattr(CopyWorker, "close", note)

    def cancel(progress: MountProgress) -> None:
        if progress.done_files > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        working_copy(tree, place=tmp_path / "place", progress=cancel)
    [code] = ended
    assert code is not None  # it was killed, or had ended by itself
    assert not (tmp_path / "place").exists()


def test_few_files_are_copied_without_a_worker(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise AssertionError("started")

    monkeypatch.setattr(CopyWorker, "__init__", refuse)
    check(working_copy(tree, place=tmp_path / "place"), tree, monkeypatch)
