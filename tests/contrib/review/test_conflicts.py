"""Paths that changed on both sides: never overwritten, merged only on request."""

from pathlib import Path

import pytest

from tests.contrib.review.places import change_everything, changes, git
from tests.filesystem.trees_on_disk import state_of
from weakincentives.contrib.review import (
    ConflictError,
    CopyError,
    Review,
    WorkingCopy,
    open_copy,
)
from weakincentives.contrib.review.original import open_original


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


def test_a_text_that_both_changed_in_different_places_can_be_merged(
    original: Path, copy: WorkingCopy
) -> None:
    (copy.root / "src/app.py").write_text("one\ntwo\nTHREE\n")
    (original / "src/app.py").write_text("ONE\ntwo\nthree\n")
    (original / "src/app.py").chmod(0o755)
    (copy.root / "new").write_text("new")
    before = state_of(original)
    with Review(copy) as review:
        (conflict,) = review.conflicts()
        assert conflict.can_merge
        assert "in different places" in str(conflict)
        (merge,) = review.merges()
        assert merge.patch() == "@@ -1,3 +1,3 @@\n ONE\n two\n-three\n+THREE\n"
        with pytest.raises(ConflictError):
            review.apply()
        assert state_of(original) == before
        applied = review.apply(merge=True)
        assert (applied.paths, applied.merged) == (("new", "src/app.py"), ("src/app.py",))
        assert (original / "src/app.py").read_text() == "ONE\ntwo\nTHREE\n"
        assert (original / "src/app.py").stat().st_mode & 0o777 == 0o755
    with Review(open_copy(copy.place)) as review:
        review.undo()
    assert state_of(original) == before


def test_a_merge_that_is_not_clean_is_a_conflict_for_all(original: Path, copy: WorkingCopy) -> None:
    (copy.root / "src/app.py").write_text("one\ntwo\nTHREE\n")
    (original / "src/app.py").write_text("ONE\ntwo\nthree\n")
    (copy.root / "src/tool.py").write_text("by the agent\n")
    (original / "src/tool.py").write_text("by a person\n")
    before = state_of(original)
    with Review(copy) as review:
        assert [each.path for each in review.merges()] == ["src/app.py"]
        with pytest.raises(ConflictError) as refusal:
            review.apply(merge=True)
        assert [each.path for each in refusal.value.conflicts] == ["src/tool.py"]
    assert state_of(original) == before


def test_undo_of_a_merge_is_refused_where_somebody_went_on(
    original: Path, copy: WorkingCopy
) -> None:
    (copy.root / "src/app.py").write_text("one\ntwo\nTHREE\n")
    (original / "src/app.py").write_text("ONE\ntwo\nthree\n")
    with Review(copy) as review:
        review.apply(merge=True)
        (original / "src/app.py").write_text("ONE\ntwo\nTHREE\nfour\n")
        with pytest.raises(ConflictError):
            review.undo()
    assert (original / "src/app.py").read_text() == "ONE\ntwo\nTHREE\nfour\n"


def test_a_patch_of_some_paths(original: Path, copy: WorkingCopy, tmp_path: Path) -> None:
    change_everything(copy.root)
    with Review(copy) as review:
        review.save_patch(tmp_path / "some.patch", paths=["src/tools.py"])
        with pytest.raises(ValueError, match="Nothing was changed at"):
            review.save_patch(tmp_path / "none.patch", paths=["elsewhere"])
    git(original, "apply", tmp_path / "some.patch")
    assert (original / "src/tools.py").read_text() == "tool\n"
    assert not (original / "src/tool.py").exists()  # a rename is one change


def test_two_cannot_apply_at_the_same_time(original: Path, copy: WorkingCopy) -> None:
    (copy.root / "new").write_text("new")
    with Review(copy) as review, open_original(original):
        refused = pytest.raises(CopyError, match="Another process is applying")
        with refused:
            review.apply()
        with refused:
            review.conflicts()
