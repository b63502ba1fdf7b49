"""Concurrent changes of an agent and a person: both survive, or there is a conflict."""

import os
import random
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contrib.review.places import git
from tests.filesystem.generated_trees import (
    ODD,
    PLAIN,
    Children,
    Repositories,
    Trees,
)
from tests.filesystem.trees_on_disk import (
    State,
    difference,
    lay_out,
    spoil,
    state_of,
    without_specials,
)
from tests.safety.places import temporary
from tests.sizes import size
from weakincentives.contrib.review import ConflictError, Review, working_copy
from weakincentives.contrib.review.merge import merge_content

RUNS = 60


class SmallTrees(Trees):
    """A few names, so that both come across the same ones."""

    def some(self, choice: random.Random, depth: int) -> Children:
        names = choice.sample([*PLAIN, *choice.sample(ODD, 2)], choice.randint(0, 5))
        return {name: self.node(choice, depth) for name in names}


# a copy leaves out what its user may not read
TREES = SmallTrees(Repositories({}, {}), Path("/nowhere"), is_readable=True)


def oracle(base: State, copy: State, original: State) -> State | None:
    """Return what the original has to become, or None if there is a conflict."""
    found: State = {}
    for path in base.keys() | copy.keys() | original.keys():
        was, ours, theirs = base.get(path), copy.get(path), original.get(path)
        both_made = is_directory(ours) and is_directory(theirs) and not is_directory(was)
        if ours in (was, theirs) or both_made:
            wanted = theirs
        elif theirs == was:
            wanted = ours
        else:
            return None
        if wanted is not None:
            found[path] = wanted
    parents = {path.rpartition(b"/")[0] for path in found} - {b""}
    return found if all(is_directory(found.get(parent)) for parent in parents) else None


def is_directory(entry: tuple[int, bytes] | None) -> bool:
    return entry is not None and stat.S_ISDIR(entry[0])


def spoil_without_specials(root: Path, choice: random.Random) -> None:
    spoil(root, TREES, choice)
    kept = without_specials(state_of(root))
    for path in state_of(root).keys() - kept.keys():
        os.unlink(os.path.join(os.fsencode(root), path))  # noqa: PTH108, PTH118 # names in bytes


def outcome_of(directory: Path, seed: int) -> str:
    """Let both work, review it, and compare with the oracle; return what came of it."""
    choice = random.Random(seed)
    original = directory / "original"
    original.mkdir()
    lay_out(original, TREES.some(choice, 3))
    base = state_of(original)
    copy = working_copy(original, place=directory / "place")
    assert state_of(copy.root) == base, difference(state_of(copy.root), base)
    spoil_without_specials(copy.root, choice)
    if choice.random() < 0.8:
        spoil_without_specials(original, choice)
    before = state_of(original)
    expected = oracle(base, state_of(copy.root), before)
    with Review(copy, with_git=True, with_rights=True) as review:
        assert bool(review.conflicts()) == (expected is None), seed
        if expected is None:
            with pytest.raises(ConflictError):
                review.apply()
            assert state_of(original) == before, difference(state_of(original), before)
            return "conflict"
        applied = review.apply()
        assert state_of(original) == expected, difference(state_of(original), expected)
        assert review.apply().paths == ()
        if applied.paths:
            review.undo()
    assert state_of(original) == before, difference(state_of(original), before)
    return "applied"


def test_apply_gives_exactly_what_both_did_or_nothing() -> None:
    outcomes: list[str] = []
    for seed in range(RUNS):
        with temporary(light=True) as directory:
            try:
                outcomes.append(outcome_of(directory, seed))
            except Exception as error:
                raise AssertionError(f"seed {seed}") from error
    assert outcomes.count("conflict") > RUNS // 10
    assert outcomes.count("applied") > RUNS // 10


def test_a_copy_keeps_every_kind_of_tree_and_repository() -> None:
    with temporary(light=True) as directory:
        (directory / "repositories").mkdir()
        made = Repositories.made_in(directory / "repositories", directory / "canary")
        trees = Trees(made, directory, is_readable=True)
        for seed in range(30):
            original = directory / f"original-{seed}"
            original.mkdir()
            lay_out(original, trees.tree(random.Random(seed)))
            copy = working_copy(original, place=directory / f"place-{seed}")
            expected = state_of(original)
            for each in copy.skipped:
                assert each.reason == "git would change the original through it"
                del expected[os.fsencode(each.path)]
            found = state_of(copy.root)
            assert found == expected, difference(found, expected)
        assert not (directory / "canary").exists()


def test_git_apply_makes_of_the_original_what_the_copy_is_but_for_what_was_named() -> None:
    for seed in range(RUNS):
        with temporary(light=True) as directory:
            choice = random.Random(seed)
            original = directory / "original"
            original.mkdir()
            lay_out(original, TREES.some(choice, 3))
            copy = working_copy(original, place=directory / "place")
            for _ in range(3):
                spoil(copy.root, TREES, choice)
            (copy.root / "sure").mkdir()
            (copy.root / "sure/new").write_text("new\n")
            with Review(copy) as review:
                patch = review.save_patch(directory / "patch")
                named = {os.fsencode(each.path) for each in review.omissions()}
            git(original, "apply", patch)
            found, wanted = state_of(original), state_of(copy.root)
            differing = {
                path for path in found.keys() | wanted if found.get(path) != wanted.get(path)
            }
            assert differing == named, seed


LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\n"]), max_size=6)


@settings(max_examples=size(150, 1_500))
@given(st.data())
def test_changes_that_keep_apart_are_merged_to_what_both_did(data: st.DataObject) -> None:
    fixed = [b"one\n", b"two\n", b"three\n"]
    parts = [data.draw(LINES) for _ in range(4)]
    others = [data.draw(LINES) for _ in range(4)]
    ours = data.draw(st.sets(st.integers(0, 3)))

    def text(chosen: set[int]) -> bytes:
        found = [others[at] if at in chosen else parts[at] for at in range(4)]
        lines = [*found[0]]
        for separator, part in zip(fixed, found[1:], strict=True):
            lines += [separator, *part]
        return b"".join(lines)

    theirs = set(range(4)) - ours
    merged = merge_content(text(set()), text(ours), text(theirs))
    assert merged is None or merged == text({0, 1, 2, 3})


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "merged"),
    [
        (b"a\nb\nc\n", b"A\nb\nc\n", b"a\nb\nC\n", b"A\nb\nC\n"),
        (b"a\nb\nc\n", b"A\nb\nc\n", b"a\nB\nc\n", None),
        (b"a\nb\nc\n", b"a\nX\nb\nc\n", b"a\nY\nb\nc\n", None),
        (b"a\nb\nc\n", b"a\nX\nb\nc\n", b"a\nX\nb\nC\n", b"a\nX\nb\nC\n"),
        (b"a\r\nb\r\nc", b"A\r\nb\r\nc", b"a\r\nb\r\nc\r\n", b"A\r\nb\r\nc\r\n"),
        (b"a\0\nb\nc\n", b"A\0\nb\nc\n", b"a\0\nb\nC\n", None),
        (b"a\0\n", b"a\0\n", b"b\0\n", b"b\0\n"),
        (b"", b"a\n", b"b\n", None),
        (b"\xff\nb\nc\n", b"\xff\nb\nC\n", b"\xfe\nb\nc\n", b"\xfe\nb\nC\n"),
    ],
)
def test_a_merge_is_clean_or_none(
    base: bytes, ours: bytes, theirs: bytes, merged: bytes | None
) -> None:
    assert merge_content(base, ours, theirs) == merged
    assert merge_content(base, theirs, ours) == merged
