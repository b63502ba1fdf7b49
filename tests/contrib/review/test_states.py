"""A working copy from two recorded states: one to compare with, and one to go on from."""

from pathlib import Path

import pytest

from weakincentives.contrib.review import Review
from weakincentives.contrib.review.copy import copy_of_states
from weakincentives.filesystem import HostFilesystem
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import SessionRecorder, Timeline


def build(root: Path, *, changed: bool) -> None:
    """Make a tree, or the tree after some work: every kind of change is in it."""
    (root / "closed" / "deep").mkdir(parents=True)
    (root / "closed" / "deep" / "a.txt").write_text("new\n" if changed else "old\n")
    (root / "same.txt").write_text("same\n")
    if changed:
        (root / "was_file").mkdir()
        (root / "was_file" / "inside").write_text("x\n")
        (root / "was_directory").symlink_to("same.txt")
        (root / "added" / "empty").mkdir(parents=True)
        (root / "run.sh").write_text("#!/bin/sh\n")
        (root / "run.sh").chmod(0o755)
    else:
        (root / "was_file").write_text("x\n")
        (root / "was_directory").mkdir()
        (root / "was_directory" / "b.txt").write_text("b\n")
        (root / "removed.txt").write_text("gone\n")
        (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "closed" / "deep").chmod(0o555)
    (root / "closed").chmod(0o555)


def tree(root: Path) -> dict[str, tuple[int, object]]:
    found: dict[str, tuple[int, object]] = {}
    for path in root.rglob("*"):
        content = path.readlink() if path.is_symlink() else None
        if content is None and path.is_file():
            content = path.read_bytes()
        found[path.relative_to(root).as_posix()] = (path.lstat().st_mode, content)
    return found


def record(root: Path, path: Path) -> Timeline:
    with HostFilesystem(root) as files, SessionRecorder(Session(), path, files):
        pass
    return Timeline(path)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    before, after = tmp_path / "before", tmp_path / "after"
    build(before, changed=False)
    build(after, changed=True)
    return before, after


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory in which copies are made."""
    place = tmp_path / "copies"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


def test_the_copy_has_the_second_state_and_is_compared_with_the_first(
    places: tuple[Path, Path], copies: Path, tmp_path: Path
):
    before, after = places
    with (
        record(before, tmp_path / "1.timeline") as old,
        record(after, tmp_path / "2.timeline") as new,
    ):
        copy, skipped = copy_of_states(old.files(1), new.files(1), original=before)
    assert skipped == []
    assert copy.place.parent == copies
    assert tree(copy.root) == tree(after)
    with Review(copy) as review:
        assert {change.path for change in review.diff.entries} >= {
            "closed/deep/a.txt",
            "removed.txt",
            "run.sh",
            "was_directory",
        }
        assert "same.txt" not in {change.path for change in review.diff.entries}


def test_an_original_that_is_gone_leaves_nothing_behind(
    places: tuple[Path, Path], copies: Path, tmp_path: Path
):
    before, _ = places
    with record(before, tmp_path / "1.timeline") as old, pytest.raises(NotADirectoryError):
        copy_of_states(old.files(1), old.files(1), original=tmp_path / "nowhere")
    assert list(copies.iterdir()) == []


def test_recorded_states_give_no_rights_to_run_as_somebody_else(
    places: tuple[Path, Path], copies: Path, tmp_path: Path
):
    before, after = places
    for root in places:
        (root / "same.txt").chmod(0o4755)
        (root / "run.sh").chmod(0o6755)
        (root / "shared").mkdir()
    (before / "shared").chmod(0o3755)
    (after / "shared").chmod(0o3700)
    with (
        record(before, tmp_path / "1.timeline") as old,
        record(after, tmp_path / "2.timeline") as new,
    ):
        copy, _ = copy_of_states(old.files(1), new.files(1), original=before)
    modes = {name: mode & 0o7777 for name, (mode, _) in tree(copy.root).items()}
    assert (modes["same.txt"], modes["run.sh"], modes["shared"]) == (0o755, 0o755, 0o1700)
