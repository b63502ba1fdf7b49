"""Pipes, sockets and devices are shown, can be deleted, and are never opened."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.safety.operations import OPERATIONS, outcome
from tests.safety.places import Place, make_special, visible
from weakincentives.filesystem import HostFilesystem, HostMount, InMemoryFilesystem

KINDS = [
    *("fifo", "socket"),
    *(pytest.param(kind, marks=pytest.mark.root) for kind in ("character", "block")),
]
REFUSED = ["read", "read_bytes", "content_hash", "write", "write_append", "write_bytes"]


@contextmanager
def waiting_writer(pipe: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run a process that waits for somebody to open `pipe`, and ends when anybody does.

    The kernel wakes it even if the other side closes at once.
    """
    command = ["sh", "-c", 'echo ready; echo x > "$0"', str(pipe)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            while Path(f"/proc/{writer.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
                os.sched_yield()
            yield writer
        finally:
            writer.kill()


def nobody_reads(pipe: Path) -> bool:
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        return error.errno == errno.ENXIO
    return False


def test_the_waiting_writer_would_notice_an_open_pipe(directory: Path) -> None:
    pipe = directory / "pipe"
    os.mkfifo(pipe)
    with waiting_writer(pipe) as writer:
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
        writer.wait(60)


def test_no_operation_opens_a_pipe(fs: HostFilesystem, place: Place) -> None:
    pipe = place.workspace / "a" / "pipe"
    os.mkfifo(pipe)
    with waiting_writer(pipe) as writer:
        for name, operation in OPERATIONS.items():
            if not name.startswith(("delete", "move")):
                for path in ("a/pipe", "a", "."):
                    outcome(operation, fs, path)
        fs.move("a/pipe", "a/moved")
        fs.move("a", "b")
        fs.copy("b", "c")
        fs.hydrate_from_host(HostMount("b", mount_path="d"), allowed_roots=[place.workspace])
        assert writer.poll() is None
        fs.delete("b", recursive=True)
        assert writer.poll() is None
    assert not pipe.exists()


def test_searches_pass_a_pipe_without_reading_it(fs: HostFilesystem, place: Place) -> None:
    pipe = place.workspace / "a" / "pipe"
    os.mkfifo(pipe)
    assert [match.path for match in fs.grep(".")] == ["a/f.txt"]
    assert nobody_reads(pipe)
    assert [match.path for match in fs.glob("**")] == ["a/f.txt"]
    assert [entry.kind for entry in fs.list("a")] == ["file", "special"]
    assert nobody_reads(pipe)
    assert fs.stat("a/pipe").content_hash is None
    assert nobody_reads(pipe)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", REFUSED)
def test_reading_and_writing_a_special_file_is_refused(
    fs: HostFilesystem, place: Place, kind: str, name: str
) -> None:
    path = place.workspace / "a" / "special"
    make_special(kind, path)
    before = path.lstat()
    with pytest.raises(PermissionError, match="Not a regular file"):
        OPERATIONS[name](fs, "a/special")
    assert path.lstat() == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_special_file_is_shown_as_such_and_can_be_removed(
    fs: HostFilesystem, place: Place, kind: str
) -> None:
    path = place.workspace / "special"
    make_special(kind, path)
    assert fs.exists("special")
    assert fs.stat("special").kind == "special"
    assert {entry.name: entry.kind for entry in fs.list()} == {
        "a": "directory",
        "special": "special",
    }
    assert fs.list()[1].size_bytes is None
    with pytest.raises(PermissionError):
        fs.copy("special", "other")
    with pytest.raises(FileExistsError):
        fs.write("special", "x", mode="create")
    with pytest.raises(FileExistsError):
        fs.mkdir("special")
    with pytest.raises(NotADirectoryError):
        fs.list("special")
    with pytest.raises(FileNotFoundError):
        fs.stat("special/x")
    fs.delete("special")
    assert not os.path.lexists(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_with_special_files_is_copied_without_them(
    fs: HostFilesystem, place: Place, kind: str
) -> None:
    make_special(kind, place.workspace / "a" / "special")
    fs.copy("a", "b")
    assert [entry.path for entry in fs.list("b")] == ["b/f.txt"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_mount_leaves_special_files_out_and_says_so(place: Place, kind: str) -> None:
    make_special(kind, place.workspace / "a" / "special")
    memory = InMemoryFilesystem()
    report = memory.hydrate_from_host(HostMount("a"), allowed_roots=[place.workspace])
    assert [skipped.path for skipped in report.skipped] == ["special"]
    assert visible(memory) == {"a": None, "a/f.txt": b"inside\n"}


def test_a_file_swapped_for_a_pipe_after_it_was_listed_is_not_opened(
    fs: HostFilesystem, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = place.workspace / "a" / "f.txt"
    children = fs._children

    def then_swap(path: str) -> object:
        found = children(path)
        if path == "a":
            target.unlink()
            os.mkfifo(target)
        return found

    monkeypatch.setattr(fs, "_children", then_swap)
    assert fs.grep("inside") == ()
    assert nobody_reads(target)
