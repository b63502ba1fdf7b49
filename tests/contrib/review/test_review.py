"""Review of a working copy: apply the selected changes, all or nothing."""

import os
import shutil
from pathlib import Path

import pytest

from tests.contrib.review.places import change_everything, changes, git
from tests.filesystem.trees_on_disk import state_of
from tests.posix.forks import KILLED, ends, in_a_child
from weakincentives.contrib.review import (
    ConflictError,
    CopyError,
    Review,
    WorkingCopy,
    open_copy,
    working_copy,
)
from weakincentives.filesystem import FileStat, HostFilesystem
from weakincentives.filesystem.host import SnapshotFilesystem


def test_everything_that_was_changed_is_applied(original: Path, copy: WorkingCopy) -> None:
    change_everything(copy.root)
    with Review(copy) as review:
        review.apply()
    assert state_of(original) == state_of(copy.root)


def test_the_patch_does_the_same_in_git(original: Path, copy: WorkingCopy, tmp_path: Path) -> None:
    change_everything(copy.root)
    with Review(copy) as review:
        patch = review.save_patch(tmp_path / "work.patch")
    git(original, "apply", patch)
    expected, found = state_of(copy.root), state_of(original)
    contents = {path: content for path, (_, content) in found.items()}
    assert contents == {path: content for path, (_, content) in expected.items()}


def test_there_is_no_patch_of_nothing(copy: WorkingCopy, tmp_path: Path) -> None:
    with Review(copy) as review, pytest.raises(ValueError, match="Nothing was changed"):
        review.save_patch(tmp_path / "work.patch")
    assert not (tmp_path / "work.patch").exists()


def test_what_others_changed_elsewhere_stays(original: Path, copy: WorkingCopy) -> None:
    (copy.root / "src/app.py").write_text("by the agent")
    (original / "src/tool.py").write_text("by a person")
    (original / "src/more.py").write_text("by a person")
    with Review(copy) as review:
        assert review.apply().paths == ("src/app.py",)
    assert (original / "src/app.py").read_text() == "by the agent"
    assert (original / "src/tool.py").read_text() == "by a person"
    assert (original / "src/more.py").read_text() == "by a person"


def test_some_paths_bring_the_directories_that_they_need(original: Path, copy: WorkingCopy) -> None:
    change_everything(copy.root)
    with Review(copy) as review:
        assert review.apply(["new/deep/file"]).paths == ("new", "new/deep", "new/deep/file")
        with pytest.raises(ValueError, match="Nothing was changed at 'README'"):
            review.apply(["README"])
    assert (original / "new").stat().st_mode & 0o777 == 0o750
    assert not (original / "new/deep/link").is_symlink()


def test_a_review_shows_what_it_applies_even_if_work_goes_on(
    original: Path, copy: WorkingCopy
) -> None:
    (copy.root / "src/app.py").write_text("first")
    with Review(copy) as review:
        assert len(review.diff.entries) == 1
        (copy.root / "src/app.py").write_text("second")
        (copy.root / "late").write_text("late")
        review.apply()
        assert (original / "src/app.py").read_text() == "first"
        assert not (original / "late").exists()
        review.undo()
        review.refresh()
        assert [entry.path for entry in review.diff.entries] == ["late", "src/app.py"]


def test_files_and_directories_that_are_closed_are_applied(original: Path, tmp_path: Path) -> None:
    (original / "closed").mkdir()
    (original / "closed/file").write_text("one")
    (original / "closed/file").chmod(0o444)
    (original / "closed/gone").write_text("one")
    copy = working_copy(original, place=tmp_path / "place")
    (copy.root / "closed/file").unlink()
    (copy.root / "closed/file").write_text("two")
    (copy.root / "closed/file").chmod(0o400)
    (copy.root / "closed/gone").unlink()
    (copy.root / "closed").chmod(0o555)
    with Review(copy) as review:
        review.apply()
        assert state_of(original) == state_of(copy.root)
        review.undo()
    assert (original / "closed/file").read_text() == "one"
    assert (original / "closed/gone").read_text() == "one"


# --- undo ---


def test_undo_takes_back_what_was_applied_and_nothing_else(
    original: Path, copy: WorkingCopy
) -> None:
    change_everything(copy.root)
    (original / "person.txt").write_text("before")
    before = state_of(original)
    with Review(copy) as review:
        review.apply()
        (original / "later.txt").write_text("since")
        review.undo()
    assert changes(before, state_of(original)) == {b"later.txt"}


def test_undo_is_refused_where_somebody_went_on(original: Path, copy: WorkingCopy) -> None:
    (copy.root / "src/app.py").write_text("by the agent")
    (copy.root / "new.py").write_text("by the agent")
    with Review(copy) as review:
        review.apply()
        (original / "src/app.py").write_text("a person went on")
        before = state_of(original)
        with pytest.raises(ConflictError):
            review.undo()
    assert state_of(original) == before


def test_each_undo_takes_back_one_apply(original: Path, copy: WorkingCopy) -> None:
    change_everything(copy.root)
    before = state_of(original)
    with Review(copy) as review:
        review.apply(["new"])
        between = state_of(original)
        review.apply()
        review.undo()
        assert state_of(original) == between
        review.undo()
        assert state_of(original) == before
        with pytest.raises(ValueError, match="Nothing was applied"):
            review.undo()


def test_another_process_can_go_on(original: Path, copy: WorkingCopy) -> None:
    before = state_of(original)
    change_everything(copy.root)
    with Review(open_copy(copy.place)) as review:
        review.apply()
    with Review(open_copy(copy.place)) as review:
        review.undo()
    assert state_of(original) == before


def test_discard_removes_the_copy_and_all_that_belongs_to_it(
    original: Path, copy: WorkingCopy
) -> None:
    (copy.root / "closed").mkdir()
    (copy.root / "closed/x").write_text("")
    (copy.root / "closed").chmod(0)
    before = state_of(original)
    Review(copy).discard()
    assert not copy.place.exists()
    assert state_of(original) == before
    with pytest.raises(CopyError, match="Not a working copy"):
        open_copy(copy.place)


def test_a_damaged_record_is_refused(copy: WorkingCopy) -> None:
    (copy.place / "run.json").write_text("{")
    with pytest.raises(CopyError, match="damaged"):
        open_copy(copy.place)


# --- git ---


def test_what_the_agent_did_to_git_is_withheld_and_reported(original: Path, tmp_path: Path) -> None:
    git(original, "init", "-q")
    git(original, "add", "-A")
    git(original, "commit", "-qm", "first")
    repository = state_of(original / ".git")
    copy = working_copy(original, place=tmp_path / "place")
    (copy.root / "src/app.py").write_text("changed\n")
    git(copy.root, "commit", "-qam", "by the agent")
    with Review(copy) as review:
        assert [entry.path for entry in review.diff.entries] == ["src/app.py"]
        assert review.withheld
        assert all(change.path.startswith(".git/") for change in review.withheld)
        review.apply()
    assert state_of(original / ".git") == repository
    assert git(original, "status", "--short") == " M src/app.py\n"
    with Review(copy, with_git=True) as review:
        assert review.withheld == ()
        review.apply()
    assert git(original, "log", "--format=%s") == "by the agent\nfirst\n"
    assert git(original, "status", "--short") == ""


def test_git_in_the_copy_of_a_worktree_cannot_reach_the_original(
    original: Path, tmp_path: Path
) -> None:
    git(original, "init", "-q")
    git(original, "add", "-A")
    git(original, "commit", "-qm", "first")
    git(original, "worktree", "add", "-q", tmp_path / "tree")
    copy = working_copy(tmp_path / "tree", place=tmp_path / "place")
    assert not (copy.root / ".git").exists()
    assert [each.path for each in copy.skipped] == [".git"]
    with Review(copy) as review:
        assert not review.diff
        assert review.withheld == ()


# --- others at the same time ---


def test_two_agents_on_one_original_do_not_overwrite_each_other(
    original: Path, tmp_path: Path
) -> None:
    first = working_copy(original, place=tmp_path / "first")
    second = working_copy(original, place=tmp_path / "second")
    (first.root / "src/app.py").write_text("by the first")
    (second.root / "src/app.py").write_text("by the second")
    (second.root / "src/tool.py").write_text("by the second")
    with Review(first) as review:
        review.apply()
    with Review(second) as review:
        with pytest.raises(ConflictError):
            review.apply()
        review.apply(["src/tool.py"])
    assert (original / "src/app.py").read_text() == "by the first"
    assert (original / "src/tool.py").read_text() == "by the second"


def test_what_a_savepoint_left_half_done_is_not_copied(original: Path, tmp_path: Path) -> None:
    before = state_of(original)

    def die_half_way() -> None:
        with HostFilesystem(original) as fs, fs.savepoint():
            fs.write("half", "done")
            os._exit(KILLED)

    assert ends(in_a_child(die_half_way)) == KILLED
    assert state_of(original) != before
    copy = working_copy(original, place=tmp_path / "place")
    assert state_of(copy.root) == before


# --- what is not reviewed stays ---


def test_a_nested_repository_stays_with_the_directory_above_it(
    original: Path, tmp_path: Path
) -> None:
    (original / "vendor/lib/.git").mkdir(parents=True)
    (original / "vendor/lib/.git/HEAD").write_text("ref: refs/heads/main\n")
    (original / "vendor/lib/code.py").write_text("code\n")
    copy = working_copy(original, place=tmp_path / "place")
    shutil.rmtree(copy.root / "vendor")
    with Review(copy) as review:
        applied = review.apply()
        assert applied.paths == ("vendor/lib/code.py",)
        assert applied.kept_directories == ("vendor", "vendor/lib")
        review.undo()
    assert (original / "vendor/lib/.git/HEAD").exists()
    assert (original / "vendor/lib/code.py").read_text() == "code\n"


def test_what_was_never_copied_is_not_removed_with_its_directory(
    original: Path, tmp_path: Path
) -> None:
    (original / "old/cache").mkdir()
    os.mkfifo(original / "old/pipe")
    copy = working_copy(original, place=tmp_path / "place", exclude=["cache"])
    shutil.rmtree(copy.root / "old")
    with Review(copy) as review:
        assert review.apply().kept_directories == ("old",)
    assert sorted(each.name for each in (original / "old").iterdir()) == ["cache", "pipe"]


def test_a_directory_that_stays_cannot_become_a_file(original: Path, tmp_path: Path) -> None:
    (original / "old/cache").mkdir()
    copy = working_copy(original, place=tmp_path / "place", exclude=["cache"])
    shutil.rmtree(copy.root / "old")
    (copy.root / "old").write_text("a file now\n")
    with (
        Review(copy) as review,
        pytest.raises(ConflictError, match="old/cache added in the original"),
    ):
        review.apply()


def test_a_pipe_of_the_agent_is_withheld(original: Path, copy: WorkingCopy) -> None:
    os.mkfifo(copy.root / "pipe")
    (copy.root / "old/a").unlink()
    os.mkfifo(copy.root / "old/a")
    with Review(copy) as review:
        assert [each.path for each in review.withheld] == ["old/a", "pipe"]
        assert review.apply().paths == ("old/a",)
    assert not (original / "old/a").exists()
    assert not (original / "pipe").exists()


def test_after_an_apply_untouched_directories_are_not_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = tmp_path / "many"
    for name in ("a", "b", "c/d", "c/e"):
        (original / name).mkdir(parents=True)
        (original / name / "file").write_text(name)
    copy = working_copy(original, place=tmp_path / "place")
    for name in ("a", "c/d"):
        (copy.root / name / "file").write_text("new")
    listed: set[str] = set()
    stats = SnapshotFilesystem._stats

    def count(self: SnapshotFilesystem, path: str) -> dict[str, FileStat]:
        listed.add(path)
        return stats(self, path)

    with Review(copy) as review:
        review.apply(["a/file"])
        monkeypatch.setattr(SnapshotFilesystem, "_stats", count)
        assert [each.path for each in review.diff.entries] == ["c/d/file"]
    assert listed == {"", "a", "c", "c/d"}
