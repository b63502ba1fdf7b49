"""Undo in part: what can be restored is restored, the rest is left alone and named."""

from pathlib import Path

import pytest

from tests.contrib.review.places import change_everything
from tests.filesystem.trees_on_disk import state_of
from tests.posix.forks import is_killed_at
from weakincentives.contrib.review import ConflictError, Review, WorkingCopy, open_copy


def test_what_was_changed_since_is_left_and_named_and_the_rest_is_restored(
    original: Path, copy: WorkingCopy
) -> None:
    (copy.root / "src/app.py").write_text("by the agent\n")
    (copy.root / "src/tool.py").write_text("by the agent\n")
    (copy.root / "new").write_text("by the agent\n")
    (copy.root / "old/a").unlink()
    with Review(copy) as review:
        review.apply()
        assert not review.diff
        (original / "src/app.py").write_text("a person went on\n")
        undone = review.undo(partial=True)
        assert undone.paths == ("new", "old/a", "src/tool.py")
        assert (undone.removed, undone.created) == (("new",), ("old/a",))
        assert [str(each) for each in undone.kept] == [
            "src/app.py was left as it is: modified after the apply"
        ]
        assert review.applied == ("src/app.py",)
        with pytest.raises(
            ConflictError, match=r"Nothing was undone; src/app\.py was left"
        ) as left:
            review.undo(partial=True)
        assert left.value.kind == "undo"
        assert [each.path for each in review.diff.entries] == ["new", "old/a", "src/tool.py"]
        (original / "src/app.py").write_text("by the agent\n")
        assert review.undo(partial=True).paths == ("src/app.py",)
        with pytest.raises(ValueError, match="Nothing was applied"):
            review.undo(partial=True)
    assert (original / "src/app.py").read_text() == "one\ntwo\nthree\n"


def test_an_earlier_apply_is_undone_though_the_later_one_was_edited(
    original: Path, copy: WorkingCopy
) -> None:
    change_everything(copy.root)
    with Review(copy) as review:
        review.apply(["src/app.py"])
        review.apply(["new"])
        (original / "new/deep/file").write_text("mine\n")
        undone = review.undo(partial=True)  # of the later one: the link
        assert undone.paths == ("new/deep/link",)
        assert [each.path for each in undone.kept] == ["new/deep/file"]
        assert review.undo(partial=True).paths == ("src/app.py",)
        assert review.applied == ("new", "new/deep", "new/deep/file")
    assert (original / "src/app.py").read_text() == "one\ntwo\nthree\n"


def test_a_rename_is_undone_as_a_whole_or_left(original: Path, copy: WorkingCopy) -> None:
    (copy.root / "src/tool.py").rename(copy.root / "src/tools.py")
    (copy.root / "src/app.py").write_text("by the agent\n")
    with Review(copy) as review:
        review.apply()
        (original / "src/tools.py").write_text("tool\nmine\n")
        undone = review.undo(partial=True)
        assert undone.paths == ("src/app.py",)
        assert {each.path for each in undone.kept} == {"src/tool.py", "src/tools.py"}
    assert not (original / "src/tool.py").exists()


def test_an_undo_can_keep_what_a_person_changed_elsewhere_in_the_file(
    original: Path, copy: WorkingCopy
) -> None:
    (copy.root / "src/app.py").write_text("ONE\ntwo\nthree\n")
    with Review(copy) as review:
        review.apply()
        (original / "src/app.py").write_text("ONE\ntwo\nmine\n")
        undone = review.undo(merge=True)
        assert (undone.merged, undone.kept) == (("src/app.py",), ())
    assert (original / "src/app.py").read_text() == "one\ntwo\nmine\n"


def test_work_that_goes_on_after_an_apply_does_not_conflict_with_it(
    original: Path, copy: WorkingCopy
) -> None:
    (copy.root / "src/app.py").write_text("first\n")
    with Review(copy) as review:
        review.apply()
        (copy.root / "src/app.py").write_text("second\n")
        review.refresh()
        assert review.conflicts() == ()
        review.apply()
        review.undo()
    assert (original / "src/app.py").read_text() == "first\n"


def test_what_the_original_already_has_is_not_pending_after_an_apply(
    original: Path, copy: WorkingCopy
) -> None:
    for root in (original, copy.root):
        (root / "src/app.py").write_text("the same\n")
    with Review(copy) as review:
        assert review.apply().paths == ()
        assert not review.diff
        with pytest.raises(ValueError, match="Nothing was applied"):
            review.undo()


@pytest.mark.parametrize("point", ["change.recorded", "change.exchanged", "change.done"])
def test_a_killed_undo_in_part_restores_all_that_it_can_or_nothing(
    original: Path, copy: WorkingCopy, point: str
) -> None:
    (copy.root / "src/app.py").write_text("by the agent\n")
    (copy.root / "src/tool.py").write_text("by the agent\n")
    (copy.root / "README.md").write_text("by the agent\n")
    with Review(copy) as review:
        review.apply(["README.md"])
        review.apply()
        (original / "src/app.py").write_text("mine\n")
        before = state_of(original)
        assert is_killed_at(point, lambda: review.undo(partial=True))
    with Review(open_copy(copy.place)) as review:
        review.recover()
        is_done = point == "change.done"
        assert (state_of(original) == before) != is_done
        assert review.applied == (
            ("README.md", "src/app.py") if is_done else ("README.md", "src/app.py", "src/tool.py")
        )
        (original / "src/app.py").write_text("by the agent\n")
        while review.applied:
            review.undo(partial=True)
    assert (original / "src/tool.py").read_text() == "tool\n"
    assert (original / "README.md").read_text() == "# Project\n"
