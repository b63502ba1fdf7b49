"""Edits: errors, outcomes, placeholders, indentation rules and the edit buffer."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.contrib.tools.editing import Edit, EditError, MatchLevel, apply_edits
from weakincentives.contrib.tools.editing.engine import EditBuffer
from weakincentives.contrib.tools.editing.indent import IndentStyle, infer_reindent
from weakincentives.contrib.tools.editing.match import Document
from weakincentives.contrib.tools.editing.sanitize import is_placeholder
from weakincentives.contrib.tools.editing.suggestions import find_closest_region
from weakincentives.errors import WinkError

PROGRAM = """\
def area(width, height):
    if width < 0:
        raise ValueError("width")
    return width * height


def volume(width, height, depth):
    return area(width, height) * depth
"""


def error_message(text: str, *edits: Edit) -> str:
    with pytest.raises(EditError) as caught:
        apply_edits(text, edits)
    return str(caught.value)


def test_an_edit_error_is_ours_and_a_value_error():
    assert issubclass(EditError, WinkError)
    assert issubclass(EditError, ValueError)


def test_levels_are_ranked_from_strict_to_tolerant():
    assert [level.rank for level in MatchLevel] == [0, 1, 2, 3, 4]
    assert list(MatchLevel) == ["exact", "line endings", "trailing space", "indentation", "unicode"]


def test_an_outcome_has_the_spans_of_old_and_new_text():
    outcome = apply_edits("one two one\n", [Edit("one", "three", replace_all=True)])
    assert outcome.spans == ((0, 3), (8, 11))
    assert outcome.new_spans == ((0, 5), (10, 15))
    assert outcome.replacements == 2


def test_adjacent_matches_are_separate_spans():
    assert apply_edits("aaaa", [Edit("aa", "b", replace_all=True)]).spans == ((0, 2), (2, 4))


def test_spans_of_several_edits_are_those_of_the_first_text():
    outcome = apply_edits("a-b-c\n", [Edit("c", "CCC"), Edit("a", ""), Edit("-b-", "+")])
    assert outcome.content == "+CCC\n"
    assert outcome.spans == ((0, 1), (1, 4), (4, 5))
    assert outcome.new_spans == ((0, 0), (0, 1), (1, 4))


def test_an_error_shows_the_closest_lines_and_what_differs():
    message = error_message(
        PROGRAM, Edit("    if width <= 0:\n        raise ValueError()\n", "x\n")
    )
    assert message.split("\n")[1:] == [
        "The closest text is at lines 2 to 3:",
        "     2\t    if width < 0:",
        '     3\t        raise ValueError("width")',
        "Line 2 is '    if width < 0:', but your text has '    if width <= 0:'",
        "Line 3 is '        raise ValueError(\"width\")', but your text has "
        "'        raise ValueError()'",
        "Copy the lines exactly as they are in the file, without line numbers",
    ]


def test_an_error_shows_a_line_that_was_left_out():
    message = error_message(PROGRAM, Edit("    if width < 0:\n    return width * height\n", "x\n"))
    assert "lines 2 to 4" in message
    assert "Line 3 is missing from your text: '        raise ValueError(\"width\")'" in message


def test_an_error_shows_a_line_that_was_made_up():
    made_up = '    if width < 0:\n        log()\n        raise ValueError("width")\n'
    assert (
        "Your text has a line before line 3 that the file does not have: '        log()'"
        in error_message(PROGRAM, Edit(made_up, "x\n"))
    )


def test_an_error_mentions_superfluous_blank_lines():
    message = error_message(PROGRAM, Edit("\n\n    if width < 0:\n", "\n\n    if width <= 0:\n"))
    assert "Without the blank lines around it, the text is at line 2" in message
    assert "blank lines" not in error_message(PROGRAM, Edit("    if width < 0\n", "x\n"))


def test_an_error_of_much_text_is_short():
    text = "".join(f"value_{number} = {number}\n" for number in range(5_000))
    message = error_message(text, Edit(text.replace("= 7\n", "= 8\n"), "x"))
    assert len(message) < 2_500
    assert "Line 8 is 'value_7 = 7', but your text has 'value_7 = 8'" in message


def test_a_very_long_line_is_shown_around_the_closest_words():
    line = "".join(f"var a{number}=f({number});" for number in range(9_000))
    message = error_message(line, Edit("var a7000=g(7000);", "x"))
    assert "a7000=f(7000)" in message
    assert len(message) < 1_500


def test_an_error_can_be_sent_even_if_the_file_is_not_text():
    message = error_message("name = \udcff\udcfe\nend = 1\n", Edit("name = x\nend = 1\n", "y"))
    assert "name = \\udcff\\udcfe" in message
    assert message.encode("utf-8")


def test_every_edit_after_the_first_sees_the_result_of_those_before():
    outcome = apply_edits(
        PROGRAM, [Edit("area", "surface", True), Edit("surface(w", "area(w", True)]
    )
    assert outcome.content == PROGRAM
    assert outcome.replacements == 4


def test_an_error_has_the_number_of_the_edit():
    message = error_message("a\n", Edit("a", "b"), Edit("c", "d"), Edit("b", "e"))
    assert message.startswith("Edit 2 of 3: ")
    assert message.endswith("None of the 3 edits was applied")


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("1: one\n2: two\n", "3: two"),
        ("10:00 start\n11:00 lunch\n", "12:00 lunch"),
        ("x = {1: 'a', 2: 'b'}\n", "8: 'b'"),
        ("| 1 | foo |\n| 2 | bar |\n", "3 | bar"),
        ("v1\t100\nv2\t200\n", "3\t200"),
        ("two\n1: one\n", "3: two"),
    ],
)
def test_a_number_that_is_text_is_not_taken_for_that_of_a_line(text: str, old: str):
    assert "was not found" in error_message(text, Edit(old, old + "!"))


def test_a_line_number_selects_one_of_equal_lines():
    text = "a:\n  x: 1\nb:\n  x: 1\n"
    outcome = apply_edits(text, [Edit("4:  x: 1", "4:  x: 2")])
    assert outcome.content == "a:\n  x: 1\nb:\n  x: 2\n"


def test_the_closest_line_is_found_by_the_words_that_only_it_has():
    text = "".join(f"line {number} of the file with some text\n" for number in range(1_000, 3_000))
    message = error_message(text, Edit("line 2345 of the file with some txt", "x"))
    assert "The closest text is at line 1346:" in message


def test_letters_that_a_file_has_in_another_encoding_are_not_looked_for():
    text = b"h\xe9llo\nw\xf6rld\n".decode("utf-8", "surrogateescape")
    assert "The file is not UTF-8" in error_message(text, Edit("h\u00e9llo", "x"))
    assert "not UTF-8" not in error_message(text, Edit("hello", "x"))


def test_removed_line_numbers_are_noted_once():
    edits = [Edit("     1\ta", "     1\tb"), Edit("     2\tb\n", "")]
    outcome = apply_edits("a\nc\n", [edits[0]])
    assert outcome.content == "b\nc\n"
    assert len(outcome.notes) == 1
    assert "numbers" in outcome.notes[0]


@pytest.mark.parametrize(
    "line",
    [
        "# ... rest of the code unchanged ...",
        "// ... existing code ...",
        "    // ...existing code...",
        "<!-- ... remaining content ... -->",
        "{/* ... existing content ... */}",
        "... (rest of file unchanged)",
        "... rest of the function ...",
        "[... rest of the file omitted ...]",
        "(rest unchanged)",
        "/* rest unchanged */",
        "# rest of the code remains the same",
        "// the rest of the file stays the same",
        "-- remaining lines here",
        "; ... other tests ...",
        "% existing code",
        "# \u2026 unchanged \u2026",
        "// same as before",
        "# no changes below",
    ],
)
def test_a_placeholder_is_recognised(line: str):
    assert is_placeholder(line)


@pytest.mark.parametrize(
    "line",
    [
        "...",
        "    ...",
        "# ...",
        "x = [...]",
        "  ...rest,",
        "  ...existing.code,",
        "function f(...rest) {",
        "# the rest of the arguments is passed on",
        "# existing users keep their password",
        "# existing items",
        "// the rest of the fields",
        "# other tests",
        "# no change",
        "// previous code was wrong because it ignored errors",
        'raise ValueError("... rest of the code unchanged ...")',
        "def rest_unchanged(): ...",
        "> ... and so he went on",
        "rest of the code",
        "# code",
        "... <body>",
        "...     case []:",
        "...     first, rest = x[0], x[1:]",
        "... output omitted ...",
        "# implementation goes here",
        "",
        "#" * 300 + " rest unchanged",
    ],
)
def test_ordinary_text_is_not_a_placeholder(line: str):
    assert not is_placeholder(line)


STUBS = "class A:\n    ...\n\n    x = 1\n\n\nclass B:\n    y = 1\n    z = 1\n    w = 1\n"


def test_an_ellipsis_that_the_file_has_is_not_blamed():
    message = error_message(STUBS, Edit("class A:\n    ...\n    x = 1", "class A: pass"))
    assert "ellipsis" not in message
    assert "closest text" in message
    message = error_message(STUBS, Edit("class B:\n    ...\n    v = 1", "class B: pass"))
    assert "ellipsis" not in message


def test_an_ellipsis_that_stands_for_lines_is_blamed_though_the_file_has_another():
    message = error_message(STUBS, Edit("class B:\n    ...\n    w = 1", "class B: pass"))
    assert "It has an ellipsis in place of lines" in message


def test_a_placeholder_is_refused_in_the_middle_of_new_text():
    message = error_message(
        PROGRAM, Edit("    return area", "    a = 1\n    # ... existing code ...\n    b")
    )
    assert "'# ... existing code ...'" in message


SPACES = IndentStyle(tabs=False, unit=4)
TABS = IndentStyle(tabs=True, unit=4)


@pytest.mark.parametrize(
    ("pairs", "new", "style", "expected"),
    [
        ([("", "    ")], ["    "], SPACES, "        "),
        ([("      ", "    ")], ["          "], SPACES, "        "),
        ([("    ", "\t")], ["        "], TABS, "\t\t"),
        ([("    ", "\t\t")], ["        "], TABS, "\t\t\t"),
        ([("        ", "\t")], ["            "], TABS, "\t\t"),
        ([("\t", "    ")], ["\t\t"], SPACES, "        "),
        ([("\t", "        ")], ["\t\t"], SPACES, "            "),
        ([("", "\t")], ["    "], TABS, "\t\t"),
        ([("    ", "")], ["        "], TABS, "\t"),
        ([("  ", "")], ["  \t"], TABS, "\t"),
        ([("", "\t")], ["\t  "], TABS, "\t\t  "),
        ([("  ", "    "), ("    ", "        ")], ["      "], SPACES, "            "),
        ([("  ", "    ")], ["    "], SPACES, "      "),
        ([("  ", "    ")], ["    "], replace(SPACES, asked_unit=2), "        "),
        ([("  ", "    ")], ["      "], SPACES, "        "),
        ([("    ", "  ")], ["        "], IndentStyle(tabs=False, unit=2), "      "),
        ([("    ", "  ")], ["        "], IndentStyle(tabs=False, unit=2, asked_unit=4), "    "),
        (
            [("    ", "  ")],
            ["        "],
            IndentStyle(tabs=False, unit=2, levels=frozenset({2, 4}), asked_unit=4),
            "      ",
        ),
        ([("    ", "\t"), ("      ", "\t  ")], ["          "], TABS, "\t\t  "),
    ],
)
def test_new_lines_are_indented_by_the_rule_of_the_old_ones(
    pairs: list[tuple[str, str]], new: list[str], style: IndentStyle, expected: str
):
    rule = infer_reindent(pairs, new, style)
    assert rule is not None
    assert rule.convert(new[0]) == expected


@pytest.mark.parametrize(
    "pairs",
    [
        [("", ""), ("", "    ")],  # one level became two
        [("", "  "), ("    ", "  ")],  # two levels became one
        [("", "    "), ("    ", "")],  # inside out
        [("", ""), ("  ", "  "), ("    ", "      ")],  # a level more in the middle
        [("  ", ""), ("  ", ""), ("    ", "        ")],
        [("  ", "\t"), ("\t", "  "), ("    ", "")],  # blanks of every kind
        [("", ""), ("  ", "    "), ("    ", "        "), ("        ", "            ")],
    ],
)
def test_no_rule_explains_another_structure(pairs: list[tuple[str, str]]):
    assert infer_reindent(pairs, ["    "], SPACES) is None


def test_no_rule_is_made_of_lines_that_are_not_where_they_belong():
    assert infer_reindent([("", "\t"), ("   ", "")], ["", "      "], TABS) is None


def test_only_the_first_line_may_have_lost_its_indentation():
    text = "class A:\n    def f(self): \n        return 1\n"
    edit = Edit("def f(self):\n        return 1", "def g(self):\n        return 2")
    outcome = apply_edits(text, [edit])
    assert outcome.content == "class A:\n    def g(self):\n        return 2\n"
    assert "indentation" in error_message(text, Edit("def f(self):\n      return 1", "x"))


def test_a_document_counts_lines_at_newlines_only():
    document = Document("\ufeffa\r\nb\fc\u2028d\n\ne\r")
    assert document.lines == ["a", "b\fc\u2028d", "", "e\r"]
    assert document.starts == [1, 4, 10, 11]
    assert document.ending_at(1) == "\r\n"
    assert document.ending_at(12) == "\n"


def test_the_closest_region_is_where_rare_lines_are():
    lines = ["{", "}"] * 50 + ["call(one)", "}", "call(two)"] + ["{", "}"] * 50
    region = find_closest_region(Document("\n".join(lines)), ["{", "call(one)", "}", "call(three)"])
    assert region is not None
    assert (region.start, region.stop) == (98, 103)


def test_nothing_is_close_to_nothing():
    assert find_closest_region(Document(""), ["a"]) is None
    assert find_closest_region(Document("a\n"), ["", "  "]) is None
    assert find_closest_region(Document("abc def\n"), ["xyz"]) is None


@given(st.integers(0, 10), st.integers(0, 2**32))
def test_a_buffer_knows_which_ranges_were_replaced(size: int, seed: int):
    dice = random.Random(seed)
    text = "".join(chr(0x100 + number) for number in range(size))
    buffer = EditBuffer(text)
    for _ in range(dice.randint(1, 4)):
        borders = sorted(dice.choices(range(len(buffer.content) + 1), k=2 * dice.randint(1, 3)))
        ranges = zip(borders[::2], borders[1::2], strict=True)
        buffer.replace([(start, end, "x" * dice.randint(0, 3)) for start, end in ranges])
    at = new_at = 0
    for (start, end), (new_start, new_end) in zip(buffer.spans, buffer.new_spans, strict=True):
        assert text[at:start] == buffer.content[new_at:new_start]
        assert set(buffer.content[new_start:new_end]) <= {"x"}
        at, new_at = end, new_end
    assert text[at:] == buffer.content[new_at:]
