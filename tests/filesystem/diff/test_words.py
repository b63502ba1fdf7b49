"""What changed inside of lines: words, and whitespace that nobody sees."""

import pytest

from weakincentives.filesystem.diff import changed_words


@pytest.mark.parametrize(
    ("old", "new", "marked"),
    [
        ("return a // b", "return a / b", (["/"], [])),
        ("x = one", "x = two", (["one"], ["two"])),
        ("    x = 1", "\tx = 1", (["    "], ["\t"])),
        ("x = 1", "x = 1  ", ([], ["  "])),
        ("x = 1\r", "x = 1", (["\r"], [])),
    ],
)
def test_what_differs_in_a_line_and_its_new_version(
    old: str, new: str, marked: tuple[list[str], list[str]]
):
    found = changed_words([old], [new])
    texts = [
        [line[start:stop] for start, stop in side[0]]
        for line, side in zip((old, new), found, strict=True)
    ]
    assert texts == list(marked)


def test_lines_that_have_nothing_in_common_are_no_versions_of_each_other():
    assert changed_words(["one two three"], ["something else "]) == ([[]], [[(14, 15)]])


def test_versions_are_found_in_their_order_and_what_is_no_line_is_left_out():
    removed = ["a = 1", None]
    added = ["completely different", "a = 2", None]
    assert changed_words(removed, added) == ([[(4, 5)], []], [[], [(4, 5)], []])


def test_a_large_block_is_not_compared_word_by_word():
    assert changed_words(["x = 1"] * 61, ["x = 2"]) == ([[]] * 61, [[]])
