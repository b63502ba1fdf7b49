"""Files that are written under a temporary name."""

import os
from pathlib import Path

import pytest

from weakincentives.posix.atomic import AtomicFile, sync_files


def test_a_file_that_gets_no_name_leaves_nothing(tmp_path: Path) -> None:
    with AtomicFile(tmp_path, b"1"):
        [path] = tmp_path.iterdir()
        assert path.name.startswith(".wink-tmp-")
        assert path.read_bytes() == b"1"
    assert list(tmp_path.iterdir()) == []


def test_a_file_takes_its_name_from_what_had_it(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"old")
    with AtomicFile(tmp_path, b"new") as file:
        file.name(tmp_path / "x")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"x": b"new"}


def test_a_file_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208  a Path would open a file itself
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        AtomicFile(tmp_path, b"1")
    assert list(tmp_path.iterdir()) == []
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208  a Path would open a file itself


def test_every_file_is_brought_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(os, "fsync", seen.append)
    sync_files([])
    sync_files([5])
    sync_files([6, 7, 8])
    assert seen[0] == 5
    assert sorted(seen[1:]) == [6, 7, 8]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_who_asks_hears_of_any_file_that_fails_when_all_are_done(
    tmp_path: Path, failing: int
) -> None:
    files = [(tmp_path / str(number)).open("wb") for number in range(3)]
    descriptors = [file.fileno() for file in files]
    reading, writing = os.pipe()  # what cannot be synced
    descriptors[failing] = writing
    with pytest.raises(OSError, match="Invalid argument"):
        sync_files(descriptors)
    for each in (reading, writing):
        os.close(each)
    for file in files:
        file.close()
