"""Work on a copy, and bring it back: what was asked for, and never what others have changed."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.filesystem.forks import KILLED, ends, in_a_child
from tests.filesystem.trees_on_disk import State, state_of
from weakincentives.contrib.review import (
    ConflictError,
    CopyError,
    Review,
    WorkingCopy,
    open_copy,
    working_copy,
)
from weakincentives.filesystem import HostFilesystem, LimitExceededError, MountProgress


@pytest.fixture
def original(tmp_path: Path) -> Path:
    root = tmp_path / "original"
    for name, text in {
        "README.md": "# Project\n",
        "src/app.py": "one\ntwo\nthree\n",
        "src/tool.py": "tool\n",
        ".gitignore": "*.log\n",
        "debug.log": "ignored\n",
        "old/a": "a\n",
        "old/b": "b\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "empty").mkdir(0o700)
    (root / "latest").symlink_to("src")
    (root / "run").write_bytes(b"\0binary")
    (root / "run").chmod(0o755)
    return root


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> WorkingCopy:
    return working_copy(original, place=tmp_path / "place")


def change_everything(root: Path) -> None:
    """Do what an agent could do to the original of the tests."""
    (root / "src/app.py").write_text("one\n2\nthree\n")
    (root / "src/tool.py").rename(root / "src/tools.py")
    (root / "run").write_bytes(b"\0other\xff")
    (root / "debug.log").unlink()
    (root / "README.md").chmod(0o600)
    (root / "latest").unlink()
    (root / "latest").symlink_to("/nowhere")
    for name in ("old/a", "old/b"):
        (root / name).unlink()
    (root / "old").rmdir()
    (root / "old").write_text("a file now\n")
    (root / "empty").chmod(0o755)
    (root / "new/deep").mkdir(parents=True)
    (root / "new/deep/file").write_text("new\n")
    (root / "new").chmod(0o750)
    (root / "new/deep/link").symlink_to("file")
    (root / os.fsdecode(b"\xff\n")).write_bytes(b"odd")


def git(root: Path, *arguments: str | Path) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


# --- the copy ---


def test_the_copy_is_exact(original: Path, copy: WorkingCopy) -> None:
    assert state_of(copy.root) == state_of(original)


def test_nothing_touches_the_original_before_it_is_applied(
    original: Path, copy: WorkingCopy
) -> None:
    before = stats_of(original)
    change_everything(copy.root)
    with Review(copy) as review:
        assert review.diff.patch()
        assert review.conflicts() == ()
    assert stats_of(original) == before


def stats_of(root: Path) -> dict[str, tuple[int, ...]]:
    found = {str(path): path.lstat() for path in (root, *root.rglob("*"))}
    return {name: (each.st_ino, each.st_mtime_ns, each.st_mode) for name, each in found.items()}


def test_what_is_excluded_is_not_copied(original: Path, tmp_path: Path) -> None:
    (original / "src/node_modules").mkdir()
    (original / "src/node_modules/x.js").write_text("")
    copy = working_copy(original, place=tmp_path / "place", exclude=["*.log", "node_modules"])
    assert not (copy.root / "debug.log").exists()
    assert not (copy.root / "src/node_modules").exists()
    assert (copy.root / "src/app.py").exists()


def test_what_an_agent_does_where_nothing_was_copied_is_withheld(
    original: Path, tmp_path: Path
) -> None:
    copy = working_copy(original, place=tmp_path / "place", exclude=["old"])
    (copy.root / "old").mkdir()
    (copy.root / "old/a").write_text("by the agent")
    (copy.root / "src/app.py").write_text("changed")
    with Review(copy) as review:
        assert [change.path for change in review.withheld] == ["old", "old/a"]
        assert review.apply().paths == ("src/app.py",)
    assert (original / "old/a").read_text() == "a\n"


def test_progress_is_told_from_nothing_to_all(original: Path, tmp_path: Path) -> None:
    told: list[MountProgress] = []
    working_copy(original, place=tmp_path / "place", progress=told.append)
    assert told[0].done_files == 0
    assert told[-1].done_files == told[-1].total_files
    assert told[-1].done_bytes == told[-1].total_bytes > 0


def test_a_directory_that_is_too_large_is_refused(original: Path, tmp_path: Path) -> None:
    with pytest.raises(LimitExceededError, match="too large to copy, more than 3 files"):
        working_copy(original, place=tmp_path / "place", max_files=3)
    with pytest.raises(LimitExceededError, match="or raise max_bytes"):
        working_copy(original, place=tmp_path / "place", max_bytes=10)
    assert not (tmp_path / "place").exists()


def test_a_copy_that_fails_leaves_nothing(original: Path, tmp_path: Path) -> None:
    def stop(_: MountProgress) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        working_copy(original, place=tmp_path / "place", progress=stop)
    assert not (tmp_path / "place").exists()


def test_a_copy_inside_of_the_original_is_refused(original: Path) -> None:
    before = state_of(original)
    with pytest.raises(CopyError, match="must not be in the original"):
        working_copy(original, place=original / "inner")
    assert state_of(original) == before


def test_a_place_that_is_in_use_is_refused(original: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(CopyError, match="not empty"):
        working_copy(original, place=tmp_path)
    assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.parametrize("name", ["missing", "original/README.md"])
def test_an_original_that_is_no_directory_is_refused(
    original: Path, tmp_path: Path, name: str
) -> None:
    with pytest.raises((FileNotFoundError, NotADirectoryError)):
        working_copy(tmp_path / name, place=tmp_path / "place")


def test_pipes_are_skipped_and_links_to_outside_reported(original: Path, tmp_path: Path) -> None:
    os.mkfifo(original / "pipe")
    (original / "away").symlink_to("/etc")
    (original / "up").symlink_to("../elsewhere")
    copy = working_copy(original, place=tmp_path / "place")
    assert [str(each) for each in copy.skipped] == ["pipe: not a regular file"]
    assert copy.outward == ("away", "up")


# --- the review ---


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


def both_modified(copy: Path, original: Path) -> None:
    (copy / "src/app.py").write_text("agent")
    (original / "src/app.py").write_text("person")


def modified_and_removed(copy: Path, original: Path) -> None:
    (copy / "src/app.py").write_text("agent")
    (original / "src/app.py").unlink()


def removed_and_modified(copy: Path, original: Path) -> None:
    (copy / "src/app.py").unlink()
    (original / "src/app.py").write_text("person")


def both_added(copy: Path, original: Path) -> None:
    (copy / "src/new.py").write_text("agent")
    (original / "src/new.py").write_text("person")


def file_and_directory(copy: Path, original: Path) -> None:
    (copy / "new").write_text("agent")
    (original / "new").mkdir()


def added_below_what_became_a_file(copy: Path, original: Path) -> None:
    (copy / "empty/x").write_text("agent")
    (original / "empty").rmdir()
    (original / "empty").write_text("person")


def added_below_what_became_a_link(copy: Path, original: Path) -> None:
    (copy / "empty/x").write_text("agent")
    (original / "empty").rmdir()
    (original / "empty").symlink_to("src")


def added_below_what_was_removed(copy: Path, original: Path) -> None:
    (copy / "empty/x").write_text("agent")
    (original / "empty").rmdir()


def removed_directory_with_something_new(copy: Path, original: Path) -> None:
    for name in ("a", "b"):
        (copy / "old" / name).unlink()
    (copy / "old").rmdir()
    (original / "old/c").write_text("person")


def replaced_directory_with_something_new(copy: Path, original: Path) -> None:
    for name in ("a", "b"):
        (copy / "old" / name).unlink()
    (copy / "old").rmdir()
    (copy / "old").write_text("agent")
    (original / "old/c").mkdir()


def both_changed_permissions(copy: Path, original: Path) -> None:
    (copy / "run").chmod(0o700)
    (original / "run").chmod(0o711)


def both_changed_links(copy: Path, original: Path) -> None:
    for root, target in ((copy, "a"), (original, "b")):
        (root / "latest").unlink()
        (root / "latest").symlink_to(target)


CONFLICTS = [
    both_modified,
    modified_and_removed,
    removed_and_modified,
    both_added,
    file_and_directory,
    added_below_what_became_a_file,
    added_below_what_became_a_link,
    added_below_what_was_removed,
    removed_directory_with_something_new,
    replaced_directory_with_something_new,
    both_changed_permissions,
    both_changed_links,
]


@pytest.mark.parametrize("changed", CONFLICTS)
def test_what_both_changed_is_never_overwritten(
    original: Path, copy: WorkingCopy, changed: object
) -> None:
    assert callable(changed)
    changed(copy.root, original)
    (copy.root / "README.md").write_text("by the agent")
    before = state_of(original)
    with Review(copy) as review:
        conflicts = review.conflicts()
        assert len(conflicts) == 1
        with pytest.raises(ConflictError, match="Nothing was applied") as refusal:
            review.apply()
        assert refusal.value.conflicts == conflicts
        assert state_of(original) == before
        assert review.apply(["README.md"]).paths == ("README.md",)
    assert changes(before, state_of(original)) == {b"README.md"}


def changes(before: State, after: State) -> set[bytes]:
    return {path for path in before.keys() | after if before.get(path) != after.get(path)}


def test_what_both_made_the_same_is_no_conflict(original: Path, copy: WorkingCopy) -> None:
    for root in (original, copy.root):
        (root / "src/app.py").write_text("the same")
        (root / "old/a").unlink()
        (root / "made").mkdir()
    (original / "made").chmod(0o700)
    (original / "made/mine").write_text("by a person")
    (copy.root / "made/yours").write_text("by the agent")
    with Review(copy) as review:
        assert review.apply().paths == ("made/yours",)
        assert review.apply().paths == ()
    assert (original / "made").stat().st_mode & 0o777 == 0o700


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
    with pytest.raises(CopyError, match="No working copy"):
        open_copy(copy.place)


def test_a_damaged_record_is_refused(copy: WorkingCopy) -> None:
    (copy.place / "review.json").write_text("{")
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
