"""Line diff: always correct, minimal where that is cheap, bounded everywhere."""

import random
from collections.abc import Callable

import pytest

from weakincentives.filesystem import TimeLimitError, time_limit
from weakincentives.filesystem.diff import myers as lines
from weakincentives.filesystem.diff.myers import Block, changed_blocks, split_lines

Lines = list[bytes]


def longest_common(old: Lines, new: Lines) -> int:
    """Return how many lines two texts have in common at most, the slow and plain way."""
    row = [0] * (len(new) + 1)
    for line in old:
        corner = 0
        for column, other in enumerate(new, 1):
            above = row[column]
            row[column] = corner + 1 if line == other else max(above, row[column - 1])
            corner = above
    return row[-1]


def kept(old: Lines, new: Lines) -> int:
    """Return how many lines stay; what lies between the blocks must be the same."""
    at = new_at = 0
    for block in changed_blocks(old, new):
        assert old[at : block.start] == new[new_at : block.new_start]
        assert block.start < block.stop or block.new_start < block.new_stop
        at, new_at = block.stop, block.new_stop
    assert old[at:] == new[new_at:]
    return len(old) - sum(block.stop - block.start for block in changed_blocks(old, new))


def random_lines(rng: random.Random, length: int, alphabet: int) -> Lines:
    return [b"line %d of a text\n" % rng.randrange(alphabet) for _ in range(length)]


@pytest.mark.parametrize("alphabet", [1, 2, 3, 8])
def test_short_texts_have_the_fewest_differences(alphabet: int):
    rng = random.Random(alphabet)
    for _ in range(1_500):
        old = random_lines(rng, rng.randrange(13), alphabet)
        new = random_lines(rng, rng.randrange(13), alphabet)
        assert kept(old, new) == longest_common(old, new)


@pytest.mark.parametrize("work", [0, 10, 60, 10_000])
def test_the_answer_is_right_when_the_work_is_cut_short(work: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "_MAX_EDITS", 3)
    monkeypatch.setattr(lines, "_WINDOW", 2)
    monkeypatch.setattr(lines, "_MAX_WORK", work)
    rng = random.Random(work)
    for _ in range(1_000):
        alphabet = rng.choice([2, 4, 30])
        old = random_lines(rng, rng.randrange(40), alphabet)
        new = random_lines(rng, rng.randrange(40), alphabet)
        assert kept(old, new) <= longest_common(old, new)


def shuffled(rng: random.Random, old: Lines) -> Lines:
    new = old.copy()
    rng.shuffle(new)
    return new


LARGE: dict[str, tuple[int, Callable[[random.Random, Lines], Lines], float]] = {
    "every third line is new": (
        10**9,
        lambda rng, old: [b"x\n" if n % 3 == 0 else line for n, line in enumerate(old)],
        0.66,
    ),
    "every line is new": (10**9, lambda rng, old: [b"new " + line for line in old], 0.0),
    "the halves change places": (10**9, lambda rng, old: old[12_500:] + old[:12_500], 0.49),
    "the lines are shuffled": (10**9, shuffled, 0.005),
    "few different lines, shuffled": (5, shuffled, 0.3),
    "few different lines, some removed": (
        50,
        lambda rng, old: [line for line in old if rng.random() > 0.1],
        0.85,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE)
def test_a_megabyte_takes_a_bounded_number_of_steps(case: str, monkeypatch: pytest.MonkeyPatch):
    alphabet, change, least = LARGE[case]
    rng = random.Random(0)
    old = random_lines(rng, 25_000, alphabet)
    new = change(rng, old)
    steps = 0
    advance = lines._GreedySearch._step

    def counted(search: lines._GreedySearch, *arguments: object) -> bool:
        nonlocal steps
        before = search.work
        done = advance(search, *arguments)  # type: ignore[arg-type]  # passed on as they came
        steps += search.work - before
        return done

    monkeypatch.setattr(lines._GreedySearch, "_step", counted)
    assert kept(old, new) >= least * len(old)
    assert steps <= 2 * 2 * lines._MAX_WORK  # `kept` asks twice, and the last round may overrun


def test_an_added_function_is_shown_from_its_first_line_to_its_last():
    old = split_lines(b"def a():\n    return 1\n\ndef c():\n    return 1\n")
    new = split_lines(
        b"def a():\n    return 1\n\ndef b():\n    return 1\n\ndef c():\n    return 1\n"
    )
    assert changed_blocks(old, new) == [Block(3, 3, 3, 6)]


def test_lines_end_at_newlines_only():
    assert split_lines(b"") == []
    assert split_lines(b"\n") == [b"\n"]
    assert split_lines(b"a\r\n\x0c\xe2\x80\xa8\rb\nc") == [b"a\r\n", b"\x0c\xe2\x80\xa8\rb\n", b"c"]


def test_a_time_limit_ends_the_search():
    rng = random.Random(0)
    old, new = random_lines(rng, 2_000, 5), random_lines(rng, 2_000, 5)
    with time_limit(0), pytest.raises(TimeLimitError):
        changed_blocks(old, new)
