"""Apply some hunks of a file, and the rest later."""

import random
import subprocess
from pathlib import Path

import pytest

from tests.filesystem.trees_on_disk import state_of
from tests.posix.forks import is_killed_at
from tests.safety.places import temporary
from tests.sizes import size
from weakincentives.contrib.review import Hunk, Review, WorkingCopy, open_copy, working_copy
from weakincentives.contrib.review.hunks import find_hunks, select_hunks

OLD = "".join(f"line {number}\n" for number in range(1, 31))
NEW = OLD.replace("line 3\n", "LINE 3\n").replace("line 20\n", "").replace("line 30\n", "end")


@pytest.fixture
def numbers(original: Path, tmp_path: Path) -> WorkingCopy:
    """Return a copy in which three places of one file were changed."""
    (original / "numbers").write_text(OLD)
    copy = working_copy(original, place=tmp_path / "numbers-place")
    (copy.root / "numbers").write_text(NEW)
    return copy


def test_hunks_are_applied_one_by_one_and_undone_one_by_one(
    original: Path, numbers: WorkingCopy
) -> None:
    with Review(numbers) as review:
        first, second, third = review.hunks("numbers")
        assert str(second) == "numbers, line 20"
        assert review.apply(hunks=[first, third]).paths == ("numbers",)
        between = (original / "numbers").read_text()
        assert between == NEW.replace("line 19\n", "line 19\nline 20\n")
        (rest,) = review.hunks("numbers")
        assert b"-line 20\n" in rest.content
        assert str(review.diff).startswith("modified numbers (+0, -1)")
    with Review(open_copy(numbers.place)) as review:
        assert review.conflicts() == ()
        review.apply()
        assert (original / "numbers").read_text() == NEW
        assert not review.diff
        review.undo()
        assert (original / "numbers").read_text() == between
        review.undo()
        assert (original / "numbers").read_text() == OLD
        assert len(review.hunks("numbers")) == 3


def test_hunks_of_one_file_and_the_whole_of_another(original: Path, numbers: WorkingCopy) -> None:
    (numbers.root / "src/app.py").write_text("ONE\ntwo\nthree\n")
    (numbers.root / "src/tool.py").unlink()
    with Review(numbers) as review:
        applied = review.apply(["src"], hunks=review.hunks("numbers")[:1])
        assert applied.paths == ("numbers", "src/app.py", "src/tool.py")
        assert applied.removed == ("src/tool.py",)
        assert [each.path for each in review.diff.entries] == ["numbers"]
    assert (original / "numbers").read_text() == OLD.replace("line 3\n", "LINE 3\n")


def test_permissions_come_with_the_last_hunk(original: Path, numbers: WorkingCopy) -> None:
    (numbers.root / "numbers").chmod(0o755)
    with Review(numbers) as review:
        review.apply(hunks=review.hunks("numbers")[:2])
        assert (original / "numbers").stat().st_mode & 0o777 == 0o644
        review.apply(hunks=review.hunks("numbers"))
        assert (original / "numbers").stat().st_mode & 0o777 == 0o755
        assert not review.diff


def test_what_has_no_hunks_is_applied_as_a_whole(original: Path, copy: WorkingCopy) -> None:
    (copy.root / "run").write_bytes(b"\0other")
    (copy.root / "src/tool.py").rename(copy.root / "src/tools.py")
    (copy.root / "old/a").unlink()
    (copy.root / "old/b").unlink()
    (copy.root / "old/b").symlink_to("a")
    (copy.root / "latest").unlink()
    (copy.root / "latest").symlink_to("old")
    (copy.root / "README.md").chmod(0o755)
    (copy.root / "new").write_text("new\n")
    with Review(copy) as review:
        assert len(review.diff.entries) == 7
        assert {review.hunks(each.path) for each in review.diff.entries} == {()}
        assert review.hunks("nowhere") == ()


def test_a_hunk_is_split_into_its_blocks(original: Path, copy: WorkingCopy) -> None:
    (copy.root / "src/app.py").write_text("ONE\ntwo\nTHREE\n")
    with Review(copy) as review:
        (hunk,) = review.hunks("src/app.py")
        first, second = review.split(hunk)
        assert review.split(first) == (first,)
        review.apply(hunks=[second])
        assert (original / "src/app.py").read_text() == "one\ntwo\nTHREE\n"
        with pytest.raises(ValueError, match="has changed since its hunks were listed"):
            review.apply(hunks=[hunk])


def test_a_hunk_can_be_merged_with_what_a_person_changed(
    original: Path, numbers: WorkingCopy
) -> None:
    (original / "numbers").write_text(OLD.replace("line 10\n", "TEN\n"))
    with Review(numbers) as review:
        review.apply(hunks=review.hunks("numbers")[:1], merge=True)
        text = OLD.replace("line 10\n", "TEN\n").replace("line 3\n", "LINE 3\n")
        assert (original / "numbers").read_text() == text
        review.apply(merge=True)
        assert (original / "numbers").read_text() == NEW.replace("line 10\n", "TEN\n")
        review.undo()
        assert (original / "numbers").read_text() == text


@pytest.mark.parametrize("point", ["change.recorded", "change.exchanged", "change.done"])
def test_a_killed_apply_of_hunks_leaves_the_old_or_the_new(
    original: Path, numbers: WorkingCopy, point: str
) -> None:
    before = state_of(original)
    with Review(numbers) as review:
        hunk = review.hunks("numbers")[1]
        assert is_killed_at(point, lambda: review.apply(hunks=[hunk]))
    with Review(open_copy(numbers.place)) as review:
        review.recover()
        assert len(review.hunks("numbers")) == (2 if point == "change.done" else 3)
        if point != "change.done":
            assert state_of(original) == before
        review.apply()
    assert (original / "numbers").read_text() == NEW


# --- against git ---

WORDS = [b"a\n", b"b\n", b"\n", b"a\r\n", b"\xff\n", b"  b\n"]


def random_text(choice: random.Random) -> list[bytes]:
    lines = [choice.choice(WORDS) for _ in range(choice.randint(1, 40))]
    if choice.random() < 0.3:
        lines[-1] = lines[-1].rstrip(b"\n") or b"end"
    return lines


def changed_text(lines: list[bytes], choice: random.Random) -> bytes:
    found = list(lines)
    for _ in range(choice.randint(1, 4)):
        at = choice.randrange(len(found) + 1)
        new = [choice.choice(WORDS) for _ in range(choice.randint(0, 3))]
        found[at : at + choice.randint(0, 2)] = new
    if not all(each.endswith(b"\n") for each in found[:-1]):
        found = [each if each.endswith(b"\n") else each + b"\n" for each in found]
    return b"".join(found)


def patch_of(chosen: list[Hunk], context: int) -> bytes:
    """Return a patch with only these hunks; the header says where they really come."""
    parts, shift = [b"--- a/f\n+++ b/f\n"], 0
    for each in chosen:
        _, *lines = each.content.split(b"\n")
        added = sum(block.new_stop - block.new_start for block in each.blocks)
        removed = sum(block.stop - block.start for block in each.blocks)
        equal = sum(line.startswith(b" ") for line in lines)
        start = max(each.blocks[0].start - context, 0)
        old, new = equal + removed, equal + added
        parts.append(
            b"@@ -%d,%d +%d,%d @@\n" % (start + (old > 0), old, start + shift + (new > 0), new)
        )
        parts.append(b"\n".join(lines))
        shift += added - removed
    return b"".join(parts)


def git_apply(root: Path, text: bytes, patch: bytes) -> bytes:
    (root / "f").write_bytes(text)
    if patch.count(b"@@"):
        command = ["git", "apply", "--unidiff-zero", "--whitespace=nowarn", "-"]
        subprocess.run(command, cwd=root, input=patch, check=True, capture_output=True)
    return (root / "f").read_bytes()


def test_any_hunks_give_what_git_makes_of_their_patch_and_the_rest_gives_the_whole() -> None:
    partly = 0
    with temporary(light=True) as root:
        for seed in range(size(60, 2_000)):
            choice = random.Random(seed)
            lines = random_text(choice)
            old, new = b"".join(lines), changed_text(lines, choice)
            hunks = list(find_hunks("f", old, new))
            context = 3
            if seed % 3 == 0:
                hunks = list(find_hunks("f", old, new, context=0))
                context = 0
            chosen = [each for each in hunks if choice.random() < 0.5]
            content = select_hunks(chosen, old, new)
            assert content == git_apply(root, old, patch_of(chosen, context)), seed
            assert select_hunks(find_hunks("f", content, new), content, new) == new
            partly += content not in (old, new)
    assert partly > 5
