"""The work of an edit grows with the text, not with its square.

Counted are calls, of functions in Python and in C, so the answer is the same on every machine.
"""

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

import pytest

from weakincentives.contrib.tools.editing import Edit, EditError, apply_edits

_CALLS_PER_LINE = 100  # generous: what was counted is about half of it
_FIXED = 20_000  # what does not depend on the size: comparing the closest region
_GROWTH = 2.4  # twice the text may take this much more


def count_calls(work: Callable[[], object]) -> int:
    count = 0

    def seen(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def apply_edit(text: str, edit: Edit) -> None:
    try:
        apply_edits(text, [edit])
    except EditError as error:
        assert len(str(error)) < 5_000


def program(lines: int) -> str:
    return "".join(f"{'    ' * (n % 4)}call_{n % 997}(x_{n}, y_{n % 13})\n" for n in range(lines))


def middle(text: str, count: int = 10) -> str:
    lines = text.split("\n")
    return "\n".join(lines[len(lines) // 2 : len(lines) // 2 + count])


SCENES: dict[str, Callable[[int], tuple[str, Edit]]] = {
    "exact": lambda n: (program(n), Edit(middle(program(n)), "x")),
    "windows ends": lambda n: (program(n).replace("\n", "\r\n"), Edit(middle(program(n)), "x")),
    "indentation": lambda n: (
        program(n),
        Edit("\n".join("  " + line for line in middle(program(n)).split("\n")), "  x"),
    ),
    "look-alikes": lambda n: (
        program(n).replace("(", "(\u201c"),
        Edit(middle(program(n)).replace("(", '("'), "x"),
    ),
    "stale": lambda n: (program(n), Edit(middle(program(n)).replace("x_", "z_"), "x")),
    "nothing like it": lambda n: (program(n), Edit("something else\naltogether", "x")),
    "the whole text, stale": lambda n: (program(n), Edit(program(n)[:-4] + "q", "x")),
    "empty lines": lambda n: ("\n" * n, Edit("a\nb", "x")),
    "the same line": lambda n: ("a\n" * n, Edit("a\n" * 500, "x")),
    "almost the same lines": lambda n: ("a\n" * n, Edit("a\n" * 500 + "b", "x")),
    "every place": lambda n: ("a\n" * n, Edit("a", "b", replace_all=True)),
    "no two indentations alike": lambda n: (" a\n  a\n" * (n // 2), Edit(" a\n" * 50, "x")),
    "one very long line": lambda n: ("word other " * n, Edit("word another", "x")),
    "one very long line of look-alikes": lambda n: (
        "word \u2014 other " * n + "end \u201cx\u201d",
        Edit('end "x"', "x"),
    ),
    "numbers of a listing": lambda n: (
        program(n),
        Edit("".join(f"{i:>6}\t{x}\n" for i, x in enumerate(program(n).split("\n")[:-1], 1)), "x"),
    ),
}


@pytest.mark.parametrize("scene", SCENES)
def test_the_work_is_in_proportion_to_the_text(scene: str):
    sizes = 6_000, 12_000
    made = [SCENES[scene](size) for size in sizes]
    counts = [count_calls(partial(apply_edit, text, edit)) for text, edit in made]
    assert counts[1] <= _CALLS_PER_LINE * sizes[1] + _FIXED
    assert counts[1] <= _GROWTH * counts[0] + _FIXED


def test_a_megabyte_takes_no_more_work_for_each_line():
    text = program(36_000)
    assert len(text) > 1_000_000
    edit = Edit(middle(text).replace("x_", "z_"), "x")
    assert count_calls(lambda: apply_edit(text, edit)) <= _CALLS_PER_LINE * 36_000 + _FIXED


def test_places_that_cannot_all_be_compared_are_refused():
    text = " a\n  a\na\n" * 60_000
    with pytest.raises(EditError, match="except for its indentation"):
        apply_edits(text, [Edit(" a\n   a\na\n a\n" * 300, "x")])
