"""Changes since a snapshot: found by comparing trees, the same that a full diff finds."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.filesystem.generated_trees import Repositories, Trees
from tests.filesystem.trees_on_disk import clear, lay_out, spoil
from tests.sizes import size
from weakincentives.filesystem import (
    Change,
    Diff,
    FilesystemSnapshot,
    HostFilesystem,
    diff,
    diff_since,
)
from weakincentives.filesystem.host.snapshots.view import SnapshotFilesystem
from weakincentives.filesystem.types import FileStat


class Observed(HostFilesystem):
    """A filesystem that records which directories are listed."""

    def __init__(self, root: Path) -> None:
        self.listed: list[str] = []
        super().__init__(root)

    def _stats(self, path: str) -> dict[str, FileStat]:
        self.listed.append(path)
        return super()._stats(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def files(root: Path) -> Iterator[Observed]:
    with Observed(root) as made:
        yield made
        made.cleanup()


def since(files: HostFilesystem, snapshot: FilesystemSnapshot) -> Diff:
    found = diff_since(files, snapshot)
    assert found is not None
    return found


def has_recorded_mode(change: Change) -> bool:
    """Return False for a mode change of a pipe or socket, whose mode is in no snapshot."""
    is_special = change.after is not None and change.after.kind == "special"
    return not (is_special and change.kind == "mode-changed")


# the expected difference is that of the live files, which are read as they are
TREES = Trees(Repositories({}, {}), Path("/nowhere"), is_readable=True)


@pytest.mark.parametrize("seed", range(size(12, 500)))
def test_changes_since_a_snapshot_are_those_of_a_full_diff(
    root: Path, files: Observed, seed: int
) -> None:
    choice = random.Random(seed)
    lay_out(root, TREES.some(choice, 3))
    for _ in range(4):
        before = files.snapshot()
        spoil(root, TREES, choice)
        expected = diff(files.view(before), files).only(has_recorded_mode)
        assert since(files, before).only(has_recorded_mode).entries == expected.entries
    clear(root)


@pytest.mark.parametrize("seed", range(size(12, 500)))
def test_two_snapshots_differ_as_the_files_do(root: Path, files: Observed, seed: int) -> None:
    choice = random.Random(seed)
    lay_out(root, TREES.some(choice, 3))
    for _ in range(4):
        before = files.view(files.snapshot())
        spoil(root, TREES, choice)
        expected = diff(before, files).only(has_recorded_mode)
        found = diff(before, files.view(files.snapshot())).only(has_recorded_mode)
        assert list(map(str, found.entries)) == list(map(str, expected.entries))
    clear(root)


def test_directories_that_two_snapshots_share_are_not_listed(
    root: Path, files: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("a/b/x", "a/c/x", "d/x", "e/f/x", "g/x"):
        files.write(path, "1")
    before = files.snapshot()
    (root / "a/c/x").write_text("2")
    (root / "e/f/x").chmod(0o600)  # git has no mode for it: the trees are the same
    os.mkfifo(root / "g/pipe")
    after = files.snapshot()
    listed: set[str] = set()
    list_entries = SnapshotFilesystem._stats

    def record(state: SnapshotFilesystem, path: str) -> dict[str, FileStat]:
        listed.add(path)
        return list_entries(state, path)

    monkeypatch.setattr(SnapshotFilesystem, "_stats", record)
    assert [str(each) for each in diff(files.view(before), files.view(after)).entries] == [
        "modified a/c/x",
        "mode-changed e/f/x (0644 -> 0600)",
        "added g/pipe",
    ]
    assert listed == {"", "a", "a/c", "e", "e/f", "g"}


def test_only_directories_with_changes_are_listed(root: Path, files: Observed) -> None:
    for path in ("a/b/x", "a/c/x", "d/x"):
        files.write(path, "1")
    before = files.snapshot()
    (root / "a/b/y").mkdir()
    (root / "a/c/x").write_text("2")
    files.listed.clear()
    assert [str(each) for each in since(files, before).entries] == [
        "added a/b/y/",
        "modified a/c/x",
    ]
    assert files.listed == ["a/b/y"]


def test_a_pipe_that_is_gone_is_a_change(root: Path, files: Observed) -> None:
    (root / "x").write_text("1")
    os.mkfifo(root / "pipe")
    before = files.snapshot()
    (root / "pipe").unlink()
    assert [each.path for each in since(files, before).entries] == ["pipe"]


def test_without_changes_there_are_none(root: Path, files: Observed) -> None:
    files.write("a/x", "1")
    before = files.snapshot()
    files.listed.clear()
    assert since(files, before).entries == ()
    assert files.listed == []
