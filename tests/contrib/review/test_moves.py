"""A moved directory is applied and undone by one rename, and no save in it is lost."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contrib.review.test_saves import MINE, NEW, OLD, SAVES, at_point, fail
from tests.filesystem.trees_on_disk import state_of
from tests.posix.forks import is_killed_at
from weakincentives.contrib.review import ConflictError, Review, working_copy
from weakincentives.history import LiveTree

NAMES = ("a", "b", "sub/c", "sub/deep/e")
POINTS = ["change.staged", "change.changing", "change.moved", "change.created", "change.changed"]


class Project:
    """An original with a directory `old` that is `new/name` in the copy, and a file that is new."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "original"
        for name in NAMES:
            path = self.root / "old" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(OLD)
        (self.root / "old/link").symlink_to("a")
        (self.root / "new").mkdir()
        (self.root / "changed").write_text(OLD)
        os.setxattr(self.root / "old/a", "user.mine", b"1")
        self.before = state_of(self.root)
        self.copy = working_copy(self.root, place=directory / "place")
        (self.copy.root / "old").rename(self.copy.root / "new/name")
        (self.copy.root / "changed").write_text(NEW)
        (self.copy.root / "created").write_text(NEW)
        self.review = Review(self.copy)
        self.after = state_of(self.copy.root)

    def inodes(self, top: str) -> list[int]:
        return [(self.root / top / name).stat().st_ino for name in NAMES]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    yield made
    made.review.close()


def test_it_is_one_rename_there_and_back(project: Project) -> None:
    inodes = project.inodes("old")
    applied = project.review.apply()
    assert {"old", "old/a", "new/name/sub/deep/e", "created"} <= {*applied.paths}
    assert state_of(project.root) == project.after
    assert project.inodes("new/name") == inodes
    os.setxattr(project.root / "new/name/b", "user.later", b"2")
    assert project.review.undo().paths == applied.paths
    assert state_of(project.root) == project.before
    assert project.inodes("old") == inodes
    assert os.listxattr(project.root / "old/a") == ["user.mine"]
    assert os.listxattr(project.root / "old/b") == ["user.later"]


@pytest.mark.parametrize("name", ["a", "sub/deep/e"])
@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("point", ["change.staged", "change.changing", "change.moved"])
def test_a_save_before_the_comparison_is_a_conflict(
    project: Project, save: Callable[[Path], None], name: str, point: str
) -> None:
    top = "new/name" if point == "change.moved" else "old"
    with (
        at_point(point, lambda: save(project.root / top / name)),
        pytest.raises(ConflictError) as raised,
    ):
        project.review.apply()
    assert [each.path for each in raised.value.conflicts] == [f"old/{name}"]
    assert (project.root / "old" / name).read_text() == MINE
    (project.root / "old" / name).write_text(OLD)
    assert state_of(project.root) == project.before


@pytest.mark.parametrize("point", POINTS)
def test_a_file_that_somebody_adds_goes_along_or_is_a_conflict(
    project: Project, point: str
) -> None:
    def add() -> None:
        top = project.root / "old"
        path = (top if top.exists() else project.root / "new/name") / "mine"
        path.write_text(MINE)

    try:
        with at_point(point, add):
            project.review.apply()
    except ConflictError:
        assert (project.root / "old/mine").read_text() == MINE
        (project.root / "old/mine").unlink()
        assert state_of(project.root) == project.before
    else:
        assert (project.root / "new/name/mine").read_text() == MINE
        assert point in {"change.created", "change.changed"}


@pytest.mark.parametrize(
    "point", ["change.recorded", "change.moved", "change.exchanged", "change.changed"]
)
def test_a_kill_at_any_point_is_recovered(project: Project, point: str) -> None:
    inodes = project.inodes("old")
    assert is_killed_at(point, project.review.apply)
    assert project.review.interrupted is not None
    assert {"old", "new/name"} <= {*project.review.interrupted.paths}
    project.review.recover()
    assert state_of(project.root) == project.before
    assert project.inodes("old") == inodes
    project.review.apply()
    assert is_killed_at(point, project.review.undo)
    project.review.recover()
    assert state_of(project.root) == project.after
    assert project.review.undo().paths
    assert state_of(project.root) == project.before


@pytest.mark.parametrize("point", POINTS[2:])
def test_what_is_saved_after_a_kill_goes_back_with_its_directory(
    project: Project, point: str
) -> None:
    assert is_killed_at(point, project.review.apply)
    (project.root / "new/name/sub/c").write_text(MINE)
    (kept,) = project.review.recover().kept
    fact = "old/sub/c was changed in the meantime, and went back with its directory"
    assert str(kept) == fact
    assert (project.root / "old/sub/c").read_text() == MINE


def test_a_directory_that_somebody_makes_at_the_old_name_stays(project: Project) -> None:
    def happen() -> None:
        (project.root / "old").mkdir()
        (project.root / "old/a").write_text(MINE)
        fail()

    with at_point("change.changed", happen), pytest.raises(OSError, match="Input/output") as raised:
        project.review.apply()
    assert (project.root / "old/a").read_text() == MINE
    assert (project.root / "new/name/a").read_text() == OLD
    assert any("old was created again" in each for each in raised.value.__notes__)


def test_another_directory_at_the_new_name_is_a_conflict(project: Project) -> None:
    with (
        at_point("change.changing", (project.root / "new/name").mkdir),
        pytest.raises(ConflictError, match="old: removed in the copy"),
    ):
        project.review.apply()
    (project.root / "new/name").rmdir()
    assert state_of(project.root) == project.before


@pytest.mark.parametrize("is_killed", [False, True])
def test_where_a_directory_cannot_be_renamed_its_files_are_moved(
    project: Project, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LiveTree.rename

    def rename(tree: LiveTree, source: str, target: str, *, exclusive: bool = False) -> None:
        if source == "old" and target == "new/name":
            fail(errno.EXDEV)
        real(tree, source, target, exclusive=exclusive)

    monkeypatch.setattr(LiveTree, "rename", rename)
    if is_killed:
        assert is_killed_at("change.changed", project.review.apply)
        project.review.recover()
        assert state_of(project.root) == project.before
    project.review.apply()
    assert state_of(project.root) == project.after
    project.review.undo()
    assert state_of(project.root) == project.before


def test_what_is_not_in_the_copy_stays_where_it_is(tmp_path: Path) -> None:
    root = tmp_path / "original"
    (root / "old").mkdir(parents=True)
    (root / "old/a").write_text(OLD)
    (root / "old/secret").write_text(MINE)
    copy = working_copy(root, place=tmp_path / "place", exclude=["secret"])
    (copy.root / "old").rename(copy.root / "new")
    with Review(copy) as review:
        assert review.apply().kept_directories == ("old",)
        assert (root / "old/secret").read_text() == MINE
        assert (root / "new/a").read_text() == OLD
        review.undo()
    assert sorted(os.listdir(root)) == ["old"]  # noqa: PTH208 names only
