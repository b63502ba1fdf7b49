"""The stat cache that a capture leaves for the next process."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.filesystem.host.test_capture import Workspace, told
from weakincentives.filesystem.host.snapshots.nodes import CapturedDirectory, CapturedFile
from weakincentives.filesystem.host.snapshots.tracker import count_changes, load_index, save_index
from weakincentives.posix import fault_hook
from weakincentives.posix.atomic import remove_tree
from weakincentives.posix.rooted import RootedDirectory

NAMES = ["a", "B b", "é", "\udcff", "a\nb", "%41", ".git", "100%"]


class Kept(Workspace):
    """A workspace that keeps an index."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.path = base / "objects" / "wink-index"

    def save(self, captured: CapturedDirectory) -> None:
        save_index(self.path, captured, root="/somewhere", epoch="1")

    def load(self, *, root: str = "/somewhere", epoch: str = "1") -> CapturedDirectory | None:
        return load_index(self.path, root=root, epoch=epoch)

    def fill(self) -> None:
        """Make something of every kind."""
        for number, name in enumerate(NAMES):
            self.operate("write", f"{name}/{name}/{name}", "", b"%d" % number)
            self.operate("link", f"{name}/link", "", os.fsencode(name))
        self.operate("executable", "a/a/a", "", b"")
        self.operate("private", "a/a", "", b"")
        self.operate("pipe", "a/pipe", "", b"")
        self.operate("mkdir", "a/empty", "", b"")


class Unread(RootedDirectory):
    """A directory whose files may be looked at, but not read."""

    def open_entry(self, directory: int, name: str) -> tuple[int, os.stat_result]:
        raise AssertionError(name)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.directory.close()


def is_settled(captured: CapturedDirectory) -> bool:
    """Return whether no file is so new that it has to be read again."""
    return all(
        is_settled(child)
        if isinstance(child, CapturedDirectory)
        else not isinstance(child, CapturedFile) or child.identity is not None
        for child in captured.children.values()
    )


def test_everything_that_was_captured_is_loaded(kept: Kept) -> None:
    kept.fill()
    found = kept.capture()
    kept.save(found)
    loaded = kept.load()
    assert loaded is not None
    assert told(loaded) == told(found)
    assert loaded.modes == {"a/a": 0o700}
    assert loaded.specials == ("a/pipe",)
    assert kept.capture(loaded) is loaded


def test_the_next_process_reads_no_file_again(kept: Kept) -> None:
    kept.fill()
    found = kept.capture()
    while not is_settled(found):
        found = kept.capture(found)
    kept.save(found)
    kept.directory = Unread(kept.root)
    loaded = kept.load()
    assert loaded is not None
    assert kept.capture(loaded) is loaded


def test_what_has_changed_since_is_captured(kept: Kept) -> None:
    kept.fill()
    kept.save(kept.capture())
    kept.operate("write", "a/a/a", "", b"changed")
    kept.operate("delete", "é", "", b"")
    assert told(kept.capture(kept.load())) == told(kept.capture())


def test_a_file_that_could_change_unnoticed_is_read_again(kept: Kept) -> None:
    path = kept.root / "x"
    path.write_bytes(b"1")
    found = kept.capture()
    while not is_settled(found):
        found = kept.capture(found)
    path.write_bytes(b"2")
    kept.save(kept.capture(found))
    times = path.stat()
    path.write_bytes(b"3")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert told(kept.capture(kept.load())) == told(kept.capture())


def test_an_empty_workspace_is_loaded(kept: Kept) -> None:
    kept.save(kept.capture())
    loaded = kept.load()
    assert loaded is not None
    assert loaded.children == {}


def test_depth_does_not_matter(kept: Kept) -> None:
    before = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    os.chdir(kept.root)
    try:
        for _ in range(1_500):
            Path("d").mkdir()
            os.chdir("d")
        kept.save(kept.capture())
        loaded = kept.load()
        assert loaded is not None
        assert kept.capture(loaded) is loaded
    finally:
        os.fchdir(before)
        os.close(before)
        remove_tree(kept.directory.descriptor, "d")  # too deep for others to remove


def test_an_index_of_another_root_or_epoch_is_not_used(kept: Kept) -> None:
    kept.save(kept.capture())
    assert kept.load(root="/elsewhere") is None
    assert kept.load(epoch="2") is None
    assert kept.load() is not None


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:20],
        lambda data: data + b"\0",
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: bytes(len(data)),
        lambda data: data.replace(b"wink-index 3", b"wink-index 4"),
    ],
)
def test_a_damaged_index_is_not_used(kept: Kept, damage: Callable[[bytes], bytes]) -> None:
    kept.fill()
    kept.save(kept.capture())
    kept.path.write_bytes(damage(kept.path.read_bytes()))
    assert kept.load() is None


def test_an_index_that_is_missing_or_no_file_is_not_used(kept: Kept) -> None:
    assert kept.load() is None
    kept.path.mkdir()
    assert kept.load() is None


def test_who_dies_while_saving_leaves_the_old_index(kept: Kept) -> None:
    kept.fill()
    found = kept.capture()
    kept.save(found)
    before = kept.path.read_bytes()
    kept.operate("write", "new", "", b"1")

    def die(point: str) -> None:
        if point == "index.written":
            raise KeyboardInterrupt

    with fault_hook(die), pytest.raises(KeyboardInterrupt):
        kept.save(kept.capture(found))
    assert kept.path.read_bytes() == before
    assert [path.name for path in kept.path.parent.iterdir() if path.is_file()] == ["wink-index"]


def test_an_index_that_cannot_be_written_is_done_without(kept: Kept) -> None:
    found = kept.capture()
    save_index(kept.path / "not a directory" / "x", found, root="/somewhere", epoch="1")
    assert kept.load() is None


def test_changed_files_are_counted(kept: Kept) -> None:
    kept.fill()
    found = kept.capture()
    assert count_changes(None, found) == 2 * len(NAMES)
    assert count_changes(found, found) == 0
    kept.operate("write", "a/a/a", "", b"changed")
    kept.operate("write", "new/file", "", b"1")
    assert count_changes(found, kept.capture(found)) == 2
