"""Very wide and very deep trees work, and results stay within their limits."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.safety.places import Opener, opened
from tests.sizes import size
from weakincentives.filesystem import (
    BaseFilesystem,
    HostFilesystem,
    HostMount,
    InMemoryFilesystem,
    LimitExceededError,
    Limits,
)

WIDE = size(100_000, 300_000)
DEEP = {"openat2": size(1_000, 3_000), "steps": size(300, 3_000)}

# a name of this machine whose maker is long gone: no process has such a number
LEFT = f".wink-tmp-{Path('/proc/self/ns/pid').stat().st_ino:x}-999999999-1-0"


@pytest.fixture(scope="module")
def wide() -> Iterator[Path]:
    """A workspace with many files in one directory."""
    memory = Path("/dev/shm")
    parent = memory if os.access(memory, os.W_OK) else None
    root = Path(tempfile.mkdtemp(prefix="wink-safety-", dir=parent))
    (root / "w").mkdir()
    directory = os.open(root / "w", os.O_RDONLY)
    for number in range(WIDE):
        os.close(os.open(f"{number:06}", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=directory))
    os.close(directory)
    yield root
    subprocess.run(["rm", "-rf", "--", root], check=True)


@pytest.mark.slow
def test_a_wide_directory_is_listed_in_part_and_says_so(wide: Path) -> None:
    with HostFilesystem(wide) as fs:
        listed = fs.list("w")
        assert len(listed) == fs.limits.max_list_entries
        assert listed.truncated
        assert [entry.name for entry in listed[:2]] == ["000000", "000001"]
        assert fs.stat(f"w/{WIDE - 1:06}").is_file


@pytest.mark.slow
def test_a_wide_directory_can_be_searched_and_written(wide: Path) -> None:
    with HostFilesystem(wide) as fs:
        wanted = [f"w/{number:06}" for number in range(49_999, WIDE, 50_000)]
        assert [match.path for match in fs.glob("w/*[49]9999")] == wanted
        fs.write("w/012345", "needle\n")
        assert [match.path for match in fs.grep("needle", glob="0123*")] == ["w/012345"]
        fs.write("w/new", "x")
        fs.delete("w/new")
        assert not fs.exists("w/new")


def deep_tree(root: Path, levels: int) -> str:
    """Make a chain of directories with a file at its end; return the path of the last."""
    current = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=current)
        deeper = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = deeper
    file = os.open("f", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=current)
    os.write(file, b"needle\n")
    os.close(file)
    os.close(current)
    return "/".join(["d"] * levels)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_deep_tree_can_be_used_searched_copied_and_removed(
    light_directory: Path, opener: Opener
) -> None:
    path = deep_tree(light_directory, DEEP[opener])
    patient = Limits(max_search_seconds=600, max_read_seconds=600)
    with opened(light_directory, opener, limits=patient) as fs:
        assert [entry.name for entry in fs.list(path)] == ["f"]
        assert fs.read(f"{path}/f").content == "needle\n"
        assert [match.path for match in fs.glob("**/f")] == [f"{path}/f"]
        assert [match.path for match in fs.grep("needle")] == [f"{path}/f"]
        fs.write(f"{path}/f", "more\n", mode="append")
        fs.copy("d", "c")
        assert fs.read(f"c{path[1:]}/f").content == "needle\nmore\n"
        fs.move("c", "m")
        fs.delete("m", recursive=True)
        fs.delete("d", recursive=True)
        assert fs.list() == ()
    assert list(light_directory.iterdir()) == []


@pytest.mark.slow
def test_a_deep_tree_works_in_memory(light_directory: Path) -> None:
    path = deep_tree(light_directory, 1_000)
    fs = InMemoryFilesystem()
    fs.hydrate_from_host(HostMount("d"), allowed_roots=[light_directory])
    assert fs.read(f"{path}/f").content == "needle\n"
    assert [match.path for match in fs.grep("needle")] == [f"{path}/f"]
    assert [match.path for match in fs.glob("**/f")] == [f"{path}/f"]
    fs.copy("d", "c")
    fs.delete("d", recursive=True)
    assert fs.read(f"c{path[1:]}/f").content == "needle\n"


def test_a_killed_delete_of_a_deep_tree_is_finished_by_the_next(light_directory: Path) -> None:
    deep_tree(light_directory, 300)
    (light_directory / "d").rename(light_directory / LEFT)
    with HostFilesystem(light_directory) as fs:
        assert fs.list() == ()
    assert list(light_directory.iterdir()) == []


# --- growth ---

QUOTA = Limits(max_total_bytes=100_000, max_files=50)


@pytest.fixture(params=["host", "memory"])
def bounded(request: pytest.FixtureRequest, directory: Path) -> BaseFilesystem:
    if request.param == "host":
        return HostFilesystem(directory, limits=QUOTA)
    return InMemoryFilesystem(limits=QUOTA)


def used(fs: BaseFilesystem) -> int:
    return sum(fs.stat(match.path).size_bytes for match in fs.glob("**"))


def test_appends_stop_at_the_quota(bounded: BaseFilesystem) -> None:
    with pytest.raises(LimitExceededError, match="quota"):
        while True:
            bounded.write("log", "x" * 10_000, mode="append")
    assert bounded.stat("log").size_bytes == 100_000
    bounded.write("log", "small")
    bounded.write("other", "x" * 40_000)


def test_many_files_stop_at_the_quota(bounded: BaseFilesystem) -> None:
    with pytest.raises(LimitExceededError, match="quota"):
        for number in range(60):
            bounded.write(f"{number}", "")
    assert len(bounded.list()) == 50
    with pytest.raises(LimitExceededError, match="quota"):
        bounded.mkdir("d")
    bounded.delete("0")
    bounded.mkdir("d")


def test_directories_and_copies_count_too(bounded: BaseFilesystem) -> None:
    bounded.write("a/b/c/d/e/f", "x" * 40_000)
    bounded.copy("a", "again")
    with pytest.raises(LimitExceededError, match="quota"):
        bounded.copy("a", "once/more")
    assert not bounded.exists("once")
    assert used(bounded) == 80_000


def test_a_mount_counts_too(bounded: BaseFilesystem, light_directory: Path) -> None:
    (light_directory / "large").write_text("x" * 100_001)
    with pytest.raises(LimitExceededError, match="quota"):
        bounded.hydrate_from_host(HostMount("large"), allowed_roots=[light_directory])
    (light_directory / "many").mkdir()
    for number in range(30):
        (light_directory / "many" / str(number)).mkdir()
        (light_directory / "many" / str(number) / "f").write_text("")
    with pytest.raises(LimitExceededError, match="quota"):
        bounded.hydrate_from_host(HostMount("many"), allowed_roots=[light_directory])
    assert used(bounded) == 0


def test_memory_has_a_quota_of_its_own() -> None:
    fs = InMemoryFilesystem()
    limit = fs.limits.max_total_bytes
    assert limit is not None
    assert fs.limits.max_files is not None
    fs.write("0", "x" * 48_000)
    with pytest.raises(LimitExceededError, match="quota"):
        for number in range(30):
            fs.copy(f"{number}", f"{number + 1}/0")
            fs.copy(f"{number}", f"{number + 1}/1")
    assert used(fs) <= limit


# --- what comes back ---


@pytest.fixture(params=["host", "memory"])
def plain(request: pytest.FixtureRequest, directory: Path) -> BaseFilesystem:
    large = Limits(max_write_length=10_000_000)
    if request.param == "host":
        return HostFilesystem(directory, limits=large)
    return InMemoryFilesystem(limits=large)


def test_a_long_line_is_shown_through_a_window(plain: BaseFilesystem) -> None:
    plain.write("f", "x" * 23_000 + "needle" + "y" * 24_000)
    [match] = plain.grep("needle")
    assert len(match.line_content) == 2_000
    assert match.line_content[match.match_start : match.match_end] == "needle"
    [match] = plain.grep("x+needley+")
    assert len(match.line_content) == 2_000
    assert (match.match_start, match.match_end) == (0, 2_000)


def test_many_matches_are_cut_and_say_so(plain: BaseFilesystem) -> None:
    plain.write("f", "x\n" * 5_000)
    found = plain.grep("x")
    assert (len(found), found.truncated) == (1_000, True)
    found = plain.grep("x", max_matches=100_000)
    assert (len(found), found.truncated) == (1_000, True)


def test_long_matches_are_cut_and_say_so(plain: BaseFilesystem) -> None:
    plain.write("f", ("x" * 2_500 + "\n") * 900)
    found = plain.grep("x")
    assert found.truncated
    assert len(found) == 128
    assert sum(len(match.line_content) for match in found) <= 256_000


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_other_encodings_are_skipped_by_searches(plain: BaseFilesystem, encoding: str) -> None:
    plain.write_bytes("wide", "needle\n".encode(encoding) * 100)
    plain.write("plain", "needle\n")
    assert [match.path for match in plain.grep("n")] == ["plain"]
    assert plain.read("wide", encoding=encoding, limit=1).content == "needle\n"


def test_growing_files_are_read_as_they_were_opened(directory: Path) -> None:
    (directory / "f").write_text("one\n")
    with HostFilesystem(directory) as fs, fs._open("f") as content:
        with (directory / "f").open("a") as file:
            file.write("two\n" * 100_000)
        assert content.size == 4
        assert content.read(0, 1_000_000) == b"one\n"


def test_shrinking_files_end_early_and_do_not_hang(directory: Path) -> None:
    (directory / "f").write_bytes(b"x\n" * 1_000_000)
    with HostFilesystem(directory) as fs, fs._open("f") as content:
        os.truncate(directory / "f", 10)
        assert content.read(0, content.size) == b"x\n" * 5
        assert content.line_index().count(content).lines >= 5
