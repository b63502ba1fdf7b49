"""Files opened by path must be regular and bounded; others are rejected untouched."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from weakincentives.posix import rooted
from weakincentives.posix.rooted import open_regular, read_regular


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


PLANTED: dict[str, Callable[[Path], None]] = {
    "pipe": _pipe,
    "socket": _socket,
    "directory": Path.mkdir,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path),
}


@pytest.fixture(params=["with /proc", "without /proc"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without /proc":
        monkeypatch.setattr(rooted, "HAS_PROC", False)


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize("follow_links", [False, True])
def test_what_is_no_regular_file_is_not_opened(
    tmp_path: Path, plant: Callable[[Path], None], follow_links: bool, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    plant(Path("x"))
    with pytest.raises(OSError, match=r"Not a regular file|No such file|Too many levels"):
        read_regular(Path("x"), 10, follow_links=follow_links)


def test_a_pipe_that_somebody_waits_at_is_not_opened(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(tmp_path / "pipe", os.O_WRONLY)
    os.write(writer, b"kept")
    with pytest.raises(PermissionError, match="Not a regular file"):
        read_regular(tmp_path / "pipe", 10)
    assert os.read(reader, 10) == b"kept"
    os.close(reader)
    os.close(writer)


def test_a_link_is_followed_only_if_asked_to(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 4, follow_links=True) == b"data"
    with pytest.raises(PermissionError, match="Not a regular file"):
        read_regular(tmp_path / "link", 4)


def test_a_file_may_be_as_large_as_allowed_and_not_larger(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"data")
    assert read_regular(tmp_path / "file", 4) == b"data"
    with pytest.raises(OSError, match="Larger than 3 bytes"):
        read_regular(tmp_path / "file", 3)


def test_a_giant_is_refused_before_it_is_read(tmp_path: Path):
    with (tmp_path / "giant").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(OSError, match=r"Larger than 1,000 bytes.*giant"):
        read_regular(tmp_path / "giant", 1000)


def test_a_file_that_says_it_is_empty_is_read_no_further_than_allowed():
    with pytest.raises(OSError, match="Larger than 5 bytes"):
        read_regular("/proc/self/status", 5)


def test_an_open_file_is_what_was_looked_at(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"data")
    descriptor, found = open_regular(tmp_path / "file")
    assert os.fstat(descriptor).st_ino == found.st_ino
    os.close(descriptor)


def test_an_error_names_the_path_and_not_a_descriptor(tmp_path: Path):
    with pytest.raises(FileNotFoundError) as failure:
        read_regular(tmp_path / "none", 1)
    assert failure.value.filename == str(tmp_path / "none")
