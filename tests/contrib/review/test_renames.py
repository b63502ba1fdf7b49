"""A rename is one change: both names are selected, applied, in conflict and undone together."""

import os
import random
from pathlib import Path

import pytest

from tests.filesystem.trees_on_disk import state_of
from weakincentives.contrib.review import ConflictError, Review, WorkingCopy, working_copy
from weakincentives.posix import parents_of

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


def _swap(root: Path) -> None:
    (root / "a").rename(root / "t")
    (root / "b").rename(root / "a")
    (root / "t").rename(root / "b")


def _turn(root: Path) -> None:
    _swap(root)
    (root / "c").rename(root / "t")
    (root / "a").rename(root / "c")
    (root / "t").rename(root / "a")


def _pass_on(root: Path) -> None:
    (root / "b").rename(root / "new")
    (root / "a").rename(root / "b")


def _move_over(root: Path) -> None:
    (root / "a").rename(root / "b")


def _move_over_and_edit(root: Path) -> None:
    _move_over(root)
    (root / "b").write_text((root / "b").read_text() + "edited\n")


def _move_and_let_run(root: Path) -> None:
    (root / "a").rename(root / "new")
    (root / "new").chmod(0o755)


def _move_into_a_file(root: Path) -> None:
    (root / "a").rename(root / "t")
    (root / "a").mkdir()
    (root / "t").rename(root / "a/new")


def _move_out_and_replace(root: Path) -> None:
    (root / "d/x").rename(root / "t")
    (root / "d/y").unlink()
    (root / "d").rmdir()
    (root / "t").rename(root / "d")


def _move_into_new(root: Path) -> None:
    (root / "new").mkdir()
    (root / "a").rename(root / "new/a")


def _move_directory(root: Path) -> None:
    (root / "d").rename(root / "new")


MOVES = [
    _swap,
    _turn,
    _pass_on,
    _move_over,
    _move_over_and_edit,
    _move_and_let_run,
    _move_into_a_file,
    _move_out_and_replace,
    _move_into_new,
    _move_directory,
]


def _lay_out(root: Path) -> dict[str, str]:
    (root / "d").mkdir(parents=True)
    texts = {name: f"{name} {TEXT}".replace("line", name) for name in ("a", "b", "c", "d/x", "d/y")}
    for name, text in texts.items():
        (root / name).write_text(text)
    return texts


def _texts(root: Path) -> set[str]:
    return {path.read_text() for path in root.rglob("*") if path.is_file()}


def _has(texts: set[str], text: str) -> bool:
    return any(each.startswith(text) for each in texts)


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("taken", ["a", "b", "c", "new", "d/x"])
def test_a_move_to_where_something_was_is_one_change_too(tmp_path: Path, move, taken: str):
    """All but the conflicts is applied: what the agent kept is at one of its names."""
    original = tmp_path / "original"
    texts = _lay_out(original)
    copy = working_copy(original)
    move(copy.root)
    wanted = _texts(copy.root)
    (original / taken).write_text("mine\n")
    with Review(copy) as review:
        avoided = {each.path for each in review.conflicts()}
        entries = review.diff.entries
        names = {each.path for each in entries} | {each.source for each in entries if each.source}
        beside = [
            name
            for name in names
            if not any(f"{name}/".startswith(f"{each}/") for each in avoided)
            and not any(f"{each}/".startswith(f"{name}/") for each in avoided)
        ]
        if beside:
            review.apply(paths=beside)
        assert (original / taken).read_text() == "mine\n"
        for name, text in texts.items():
            if name != taken and _has(wanted, text):
                assert _has(_texts(original), text), name
        review.discard()


@pytest.mark.parametrize("move", MOVES)
def test_whichever_path_is_chosen_no_text_is_lost(tmp_path: Path, move):
    original = tmp_path / "original"
    texts = _lay_out(original)
    copy = working_copy(original)
    move(copy.root)
    wanted, before = _texts(copy.root), state_of(original)
    with Review(copy) as review:
        entries = review.diff.entries
        for chosen in [each.path for each in entries] + [each.source for each in entries]:
            if chosen is not None:
                review.apply(paths=[chosen])
                missing = [each for each in texts.values() if not _has(_texts(original), each)]
                assert not [each for each in missing if _has(wanted, each)], chosen
                review.undo()
                assert state_of(original) == before
        review.discard()


def test_a_copy_of_what_a_file_was_is_a_change_of_its_own(tmp_path: Path):
    original = tmp_path / "original"
    _lay_out(original)
    copy = working_copy(original)
    (copy.root / "kept").write_text((copy.root / "a").read_text())
    (copy.root / "b").write_text((copy.root / "a").read_text())
    (copy.root / "a").write_text("edited\n")
    with Review(copy) as review:
        assert review.apply(paths=["a"]).paths == ("a",)
        assert review.apply(paths=["kept"]).paths == ("kept",)
        review.discard()


def test_attributes_that_are_set_on_a_renamed_file_go_back_with_it(tmp_path: Path) -> None:
    root = tmp_path / "original"
    root.mkdir()
    (root / "old").write_text("text")
    os.setxattr(root / "old", "user.first", b"1")
    copy = working_copy(root, place=tmp_path / "place")
    (copy.root / "old").rename(copy.root / "new")
    with Review(copy) as review:
        review.apply()
        os.removexattr(root / "new", "user.first")
        os.setxattr(root / "new", "user.second", b"2")
        review.undo()
    assert os.listxattr(root / "old") == ["user.second"]
