"""A rename is one change: both names are chosen, applied, in conflict and taken back together."""

import random
from pathlib import Path

import pytest

from tests.filesystem.trees_on_disk import state_of
from weakincentives.contrib.review import ConflictError, Review, WorkingCopy, working_copy
from weakincentives.filesystem.paths import parents_of

TEXT = "".join(f"line {number}\n" for number in range(20))


@pytest.fixture
def original(tmp_path: Path) -> Path:
    made = tmp_path / "original"
    made.mkdir()
    (made / "old.txt").write_text(TEXT)
    (made / "other.txt").write_text("other\n")
    (made / "src").mkdir()
    (made / "src/inner.txt").write_text(TEXT.upper())
    return made


@pytest.fixture
def copy(original: Path) -> WorkingCopy:
    made = working_copy(original)
    (made.root / "old.txt").rename(made.root / "new.txt")
    (made.root / "src/inner.txt").rename(made.root / "outer.txt")
    (made.root / "other.txt").write_text("changed\n")
    return made


@pytest.mark.parametrize("chosen", ["old.txt", "new.txt"])
def test_who_chooses_one_name_chooses_both(original: Path, copy: WorkingCopy, chosen: str):
    with Review(copy) as review:
        assert review.apply(paths=[chosen]).paths == ("new.txt", "old.txt")
        assert not (original / "old.txt").exists()
        assert (original / "new.txt").read_text() == TEXT
        assert (original / "other.txt").read_text() == "other\n"
        review.undo()
        assert (original / "old.txt").read_text() == TEXT
        assert not (original / "new.txt").exists()
        review.discard()


def test_a_directory_is_chosen_with_what_was_moved_out_of_it(original: Path, copy: WorkingCopy):
    with Review(copy) as review:
        review.apply(paths=["src"])
        assert (original / "outer.txt").read_text() == TEXT.upper()
        assert not (original / "src/inner.txt").exists()
        review.discard()


def _edit(original: Path) -> None:
    (original / "old.txt").write_text(TEXT + "mine\n")


def _remove(original: Path) -> None:
    (original / "old.txt").unlink()
    (original / "old.txt").mkdir()


def _take_the_name(original: Path) -> None:
    (original / "new.txt").write_text("mine\n")


@pytest.mark.parametrize("person", [_edit, _remove, _take_the_name])
def test_a_conflict_at_one_name_is_a_conflict_at_both(original: Path, copy: WorkingCopy, person):
    person(original)
    before = state_of(original)
    with Review(copy) as review:
        paths = [each.path for each in review.conflicts()]
        assert sorted(paths) == ["new.txt", "old.txt"]
        for chosen in paths:
            with pytest.raises(ConflictError, match=r"renamed to new\.txt"):
                review.apply(paths=[chosen])
        assert state_of(original) == before
        rest = [each.path for each in review.diff.entries if each.path not in paths]
        review.apply(paths=rest)
        assert (original / "other.txt").read_text() == "changed\n"
        review.undo()
        assert state_of(original) == before
        review.discard()


def test_a_patch_of_one_name_has_both(original: Path, copy: WorkingCopy, tmp_path: Path):
    with Review(copy) as review:
        text = review.save_patch(tmp_path / "p", paths=["old.txt"]).read_text()
        assert "rename from old.txt\nrename to new.txt\n" in text
        assert "other.txt" not in text
        review.discard()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_left_out_no_text_is_lost(tmp_path: Path, seed: int):
    """Every file that an agent moved is afterwards at its old name or at its new one."""
    choice = random.Random(seed)
    original = tmp_path / "original"
    texts = {f"{number}: {choice.random()}\n" * 9 for number in range(12)}
    for number, text in enumerate(texts):
        path = original / choice.choice("abc") / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    copy = working_copy(original)
    for path in choice.sample(sorted(copy.root.rglob("*.txt")), 8):
        goal = copy.root / choice.choice("bcde") / f"moved-{path.name}"
        goal.parent.mkdir(exist_ok=True)
        path.rename(goal)
    for path in choice.sample(sorted(original.rglob("*.txt")), 3):
        path.write_text(path.read_text() + "mine\n")
    with Review(copy) as review:
        conflicts = {each.path for each in review.conflicts()}
        free = [each.path for each in review.diff.entries if each.path not in conflicts]
        above = {parent for each in conflicts for parent in parents_of(each)}
        review.apply(paths=[path for path in free if path not in above])
        kept = [path.read_text().removesuffix("mine\n") for path in original.rglob("*.txt")]
        assert sorted(kept) == sorted(texts)
        review.discard()
