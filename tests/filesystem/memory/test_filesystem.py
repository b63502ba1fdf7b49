"""InMemoryFilesystem: the guarantees of its tree beyond the protocol."""

import threading
from pathlib import Path

import pytest

from weakincentives.filesystem import (
    HostMount,
    InMemoryBackend,
    InMemoryFilesystem,
    LimitExceededError,
    Limits,
    PathEscapeError,
    ReadOnlyError,
)


class Clock:
    """Nanoseconds that move by one second a call."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000_000_000

    def __call__(self) -> int:
        self.now += 1_000_000_000
        return self.now


def test_it_can_start_with_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project" / "docs").mkdir(parents=True)
    (tmp_path / "project" / "docs" / "guide.md").write_text("# Guide\n")
    (tmp_path / "outside").write_text("outside")
    monkeypatch.chdir(tmp_path / "project")
    mounts = (HostMount("docs"), HostMount("docs", mount_path="again"))
    fs = InMemoryBackend(mounts, read_only=True)
    assert [each.path for each in fs.glob("**")] == ["again/guide.md", "docs/guide.md"]
    with pytest.raises(ReadOnlyError):
        fs.write("new", "")
    with pytest.raises(PathEscapeError):
        InMemoryFilesystem(mounts=[HostMount("../outside")])


def test_the_root_is_nowhere_on_disk() -> None:
    assert InMemoryFilesystem().root == "/"


def test_a_copy_shares_until_one_side_changes() -> None:
    fs = InMemoryFilesystem()
    fs.write("a/b/c.txt", "old")
    fs.copy("a", "z")
    fs.write("z/b/c.txt", "new")
    fs.write("a/b/d.txt", "more")
    assert fs.read("a/b/c.txt").content == "old"
    assert fs.read("z/b/c.txt").content == "new"
    assert not fs.exists("z/b/d.txt")


def test_a_moved_copy_does_not_drag_the_original_along() -> None:
    fs = InMemoryFilesystem()
    fs.write("a/x", "1")
    fs.copy("a", "b")
    fs.move("b", "c")
    fs.write("c/x", "2")
    assert fs.read("a/x").content == "1"


def test_times_come_from_the_clock() -> None:
    fs = InMemoryFilesystem(clock=Clock())
    fs.write("a", "1")
    first = fs.stat("a")
    fs.write("a", "2")
    second = fs.stat("a")
    assert first.created_at == first.modified_at == second.created_at
    assert second.modified_at is not None
    assert first.modified_at is not None
    assert (second.modified_at - first.modified_at).total_seconds() == 1


def test_a_stat_knows_the_hash_of_what_it_saw() -> None:
    fs = InMemoryFilesystem()
    fs.write("a", "1")
    seen = fs.stat("a")
    fs.write("a", "2")
    assert seen.content_hash != fs.stat("a").content_hash
    assert fs.stat("a").content_hash == fs.content_hash("a")


def test_deleting_the_root_empties_it_and_tells() -> None:
    fs = InMemoryFilesystem()
    fs.write("a/b", "1")
    told: list[str] = []
    fs.subscribe(lambda event: told.append(str(event)))
    fs.delete("/", recursive=True)
    assert fs.list() == ()
    assert fs.stat(".").is_directory
    assert told == [". deleted"]


def test_the_quota_counts_what_is_there_and_not_what_was() -> None:
    fs = InMemoryFilesystem(limits=Limits(max_total_bytes=100, max_files=4))
    for _ in range(50):
        fs.write("a", "x" * 60)
        fs.delete("a")
        fs.mkdir("d/e/f")
        fs.delete("d", recursive=True)
    fs.write("a", "x" * 60)
    with pytest.raises(LimitExceededError, match="quota"):
        fs.copy("a", "b")
    assert [entry.name for entry in fs.list()] == ["a"]


def test_by_default_memory_is_bounded() -> None:
    fs = InMemoryFilesystem()
    for number in range(5):
        fs.write(f"{number}", "x" * 48_000)
    while fs.stat("0").size_bytes < 32 * 1024 * 1024:
        fs.copy("0", "twin", overwrite=True)
        data = fs.read_bytes("0").content
        InMemoryFilesystem._append(fs, "0", data)  # pyright: ignore[reportPrivateUsage] # past the write limit
    with pytest.raises(LimitExceededError, match="quota exceeded"):
        for number in range(20):
            fs.copy("0", f"copy{number}")


def test_a_search_sees_one_state_while_others_write() -> None:
    fs = InMemoryFilesystem()
    for number in range(50):
        fs.write(f"left/{number:02}", "needle")
    stop = threading.Event()

    def swing() -> None:
        sides = ["left", "right"]
        while not stop.is_set():
            fs.move(sides[0], sides[1])
            sides.reverse()

    thread = threading.Thread(target=swing)
    thread.start()
    try:
        for _ in range(50):
            assert len(fs.glob("*/*")) == 50
            assert len({match.path.split("/")[0] for match in fs.grep("needle")}) == 1
    finally:
        stop.set()
        thread.join()


def test_a_failed_search_leaves_the_tree_writable_in_place() -> None:
    fs = InMemoryFilesystem()
    fs.write("a", "1")
    with pytest.raises(ValueError, match="Invalid regex"):
        fs.grep("(")
    fs.write("a", "2")
    assert fs.read("a").content == "2"
