"""A full disk fails the write and harms nothing else."""

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.safety.places import ROOT, mounted, temporary_names, visible
from weakincentives.filesystem import HostFilesystem, Limits

LARGE = Limits(max_write_length=100_000_000)
FULL = {errno.ENOSPC, errno.EDQUOT}

GROWING: dict[str, Callable[[HostFilesystem], object]] = {
    "write": lambda fs: fs.write("f", "n" * 400_000),
    "create": lambda fs: fs.write("g", "n" * 400_000, mode="create"),
    "append": lambda fs: fs.write("f", "n" * 400_000, mode="append"),
    "write_bytes": lambda fs: fs.write_bytes("f", b"n" * 400_000),
    "write below missing": lambda fs: fs.write("n/e/w/f", "n" * 400_000),
    "copy": lambda fs: fs.copy("large", "g"),
    "copy tree": lambda fs: fs.copy("t", "u"),
    "copy over": lambda fs: fs.copy("large", "f", overwrite=True),
}


@pytest.mark.root
@pytest.mark.parametrize("durable", [False, True], ids=["", "durable"])
@pytest.mark.parametrize("grow", GROWING.values(), ids=GROWING)
def test_a_full_disk_keeps_the_old_and_recovers(
    directory: Path, grow: Callable[[HostFilesystem], object], durable: bool
) -> None:
    with mounted(directory, size="512k"):
        fill(directory)
        with HostFilesystem(directory, limits=LARGE, durable=durable) as fs:
            before = visible(fs)
            for _ in range(2):
                with pytest.raises(OSError, match="space") as caught:
                    grow(fs)
                assert caught.value.errno in FULL
                assert visible(fs) == before
                assert temporary_names(directory) == []
            fs.delete("large")
            fs.delete("t", recursive=True)
            fs.write("f", "n" * 150_000)
            assert fs.read("f").content == "n" * 150_000


def fill(directory: Path) -> None:
    (directory / "f").write_text("old")
    (directory / "large").write_text("x" * 200_000)
    (directory / "t").mkdir()
    for number in range(4):
        (directory / "t" / str(number)).write_text("y" * 50_000)


@pytest.mark.root
def test_deleting_works_on_a_disk_without_one_free_byte(directory: Path) -> None:
    with mounted(directory, size="256k"):
        fill_up(directory)
        with HostFilesystem(directory) as fs:
            with pytest.raises(OSError, match="space"):
                fs.write("new", "n" * 10_000)
            fs.delete("t", recursive=True)
            fs.write("new", "n" * 10_000)
            assert temporary_names(directory) == []


def fill_up(directory: Path) -> None:
    (directory / "t" / "deep" / "er").mkdir(parents=True)
    (directory / "t" / "deep" / "er" / "f").write_text("x" * 50_000)
    with (
        pytest.raises(OSError, match="space"),
        (directory / "rest").open("wb", buffering=0) as rest,
    ):
        while True:
            rest.write(b"x" * 4_096)


@pytest.mark.root
def test_there_is_no_room_for_names_either(directory: Path) -> None:
    with mounted(directory, size="64k,nr_inodes=12"):
        with HostFilesystem(directory) as fs, pytest.raises(OSError, match="space"):
            for number in range(20):
                fs.write(f"{number}/deep/f", "x")
        with HostFilesystem(directory) as fs:
            assert all(content == b"x" for path, content in visible(fs).items() if "/f" in path)
            assert temporary_names(directory) == []
            for entry in fs.list():
                assert fs.read(f"{entry.path}/deep/f").content == "x"
                fs.delete(entry.path, recursive=True)
            fs.write("again/deep/f", "x")


LIMITED = """
import json, resource, sys
from weakincentives.filesystem import HostFilesystem, Limits
fs = HostFilesystem(sys.argv[1], limits=Limits(max_write_length=10_000_000))
fs.write("f", "old")
fs.write("log", "x" * 60_000)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, hard))
errors = []
for grow in (
    lambda: fs.write("f", "n" * 200_000),
    lambda: fs.write("log", "n" * 20_000, mode="append"),
    lambda: fs.write("n/e/w", "n" * 200_000),
):
    try:
        grow()
    except OSError as error:
        errors.append(error.errno)
kept = [fs.read("f").content, fs.stat("log").size_bytes, fs.exists("n")]
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
fs.write("f", "n" * 200_000)
print(json.dumps([errors, kept, fs.stat("f").size_bytes]))
"""


def test_a_limit_on_file_sizes_keeps_the_old_and_recovers(directory: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(directory)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    errors, kept, size = json.loads(done.stdout)
    assert errors == [errno.EFBIG] * 3
    assert kept == ["old", 60_000, False]
    assert size == 200_000
    assert temporary_names(directory) == []
