"""V4A patches: parsing, placement of hunks, and all or nothing."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.contrib.tools.editing import MatchLevel
from weakincentives.contrib.tools.patching import (
    PatchError,
    PlannedChange,
    patched_paths,
    plan_patch,
)
from weakincentives.contrib.tools.patching.formats import parse_v4a
from weakincentives.errors import WinkError
from weakincentives.filesystem import PathEscapeError

SHAPES = """\
class Square:
    def area(self):
        check(self)
        return self.side ** 2

    def name(self):
        return "square"


class Circle:
    def area(self):
        check(self)
        return PI * self.radius ** 2

    def name(self):
        return "circle"
"""


def plan(body: str, files: Mapping[str, str]) -> tuple[PlannedChange, ...]:
    return plan_patch(f"*** Begin Patch\n{body}*** End Patch\n", files.get)


def apply_hunks(hunks: str, text: str) -> str:
    (change,) = plan(f"*** Update File: a.py\n{hunks}", {"a.py": text})
    assert change.kind == "update"
    assert change.content is not None
    return change.content


def error_message(hunks: str, text: str) -> str:
    with pytest.raises(PatchError) as caught:
        plan(f"*** Update File: a.py\n{hunks}", {"a.py": text})
    return str(caught.value)


def test_a_patch_error_is_ours_and_a_value_error():
    assert issubclass(PatchError, WinkError)
    assert issubclass(PatchError, ValueError)


def test_a_patch_adds_updates_moves_and_deletes():
    files = {"a.py": "one\ntwo\n", "old.py": "x = 1\n", "gone.py": "", "b.py": "b\n"}
    body = (
        "*** Add File: new/c.py\n+first\n+\n+last\n"
        "*** Update File: a.py\n@@\n one\n-two\n+three\n"
        "*** Update File: old.py\n*** Move to: lib/new.py\n@@\n-x = 1\n+x = 2\n"
        "*** Delete File: gone.py\n"
    )
    assert plan(body, files) == (
        PlannedChange("add", "new/c.py", "first\n\nlast\n"),
        PlannedChange("update", "a.py", "one\nthree\n"),
        PlannedChange("move", "old.py", "x = 2\n", "lib/new.py"),
        PlannedChange("delete", "gone.py"),
    )


def test_a_move_needs_no_change():
    body = "*** Update File: a.py\n*** Move to: b.py\n"
    assert plan(body, {"a.py": "a\r\n"}) == (PlannedChange("move", "a.py", "a\r\n", "b.py"),)


def test_a_new_file_may_be_empty():
    assert plan("*** Add File: a.py\n", {}) == (PlannedChange("add", "a.py", ""),)


@pytest.mark.parametrize("line", ["# existing code omitted", "... <body>", "# ... rest ..."])
def test_a_line_that_leaves_nothing_out_is_text(line: str):
    (added,) = plan(f"*** Add File: a.py\n+import os\n+{line}\n", {})
    assert added.content == f"import os\n{line}\n"
    assert apply_hunks(f"@@\n a\n+{line}\n b\n", "a\nb\n") == f"a\n{line}\nb\n"
    body = f"*** Delete File: a.py\n*** Add File: a.py\n+a\n+{line}\n+b\n"
    assert plan(body, {"a.py": "a\nb\n"})[0].content == f"a\n{line}\nb\n"


def test_paths_are_normalized():
    (change,) = plan("*** Delete File: ./src//a.py\n", {"src/a.py": ""})
    assert change.path == "src/a.py"
    with pytest.raises(PathEscapeError):
        plan("*** Delete File: ../a.py\n", {})


def test_paths_are_those_that_the_caller_resolves():
    patch = "*** Begin Patch\n*** Update File: /ws/a\n*** Move to: /ws/b\n*** End Patch"
    planned = plan_patch(patch, {"a": "x"}.get, resolve=lambda path: path.removeprefix("/ws/"))
    assert [(each.path, each.new_path) for each in planned] == [("a", "b")]


def test_an_error_names_the_file_that_is_missing():
    patch = "*** Begin Patch\n*** Delete File: /gone\n*** End Patch"
    with pytest.raises(PatchError) as refusal:
        plan_patch(patch, {}.get)
    assert refusal.value.missing == "gone"


def test_what_is_around_a_patch_does_not_matter():
    text = "```\n*** Begin Patch\r\n*** Update File: a.py\r\n-a\r\n+b\r\n*** End Patch\r\n```\n"
    assert plan_patch(text, {"a.py": "a\n"}.get)[0].content == "b\n"
    text = "apply_patch <<'EOF'\n*** Begin Patch\n*** Delete File: a.py\n*** End Patch\nEOF\n"
    assert plan_patch(text, {"a.py": "a\n"}.get)[0].kind == "delete"


def test_the_first_hunk_needs_no_marker():
    assert apply_hunks(" one\n-two\n+three\n", "one\ntwo\n") == "one\nthree\n"


def test_an_empty_line_is_an_empty_line_that_stays():
    assert apply_hunks("@@\n a\n\n-b\n+c\n\n", "a\n\nb\n\nd\n") == "a\n\nc\n\nd\n"


def test_lines_after_the_marker_lead_to_the_place():
    hunk = "@@ class Circle:\n@@     def area(self):\n         check(self)\n+        log(self)\n"
    assert apply_hunks(hunk, SHAPES) == SHAPES.replace(
        "check(self)\n        return PI", "check(self)\n        log(self)\n        return PI"
    )


def test_one_line_after_the_marker_is_enough_if_it_says_enough():
    hunk = "@@ class Square:\n         check(self)\n+        log(self)\n"
    assert apply_hunks(hunk, SHAPES) == SHAPES.replace(
        "check(self)\n", "check(self)\n        log(self)\n", 1
    )


def test_the_line_after_the_marker_may_be_in_the_hunk_too():
    hunk = "@@ class Circle:\n class Circle:\n     def area(self):\n-        check(self)\n"
    assert apply_hunks(hunk, SHAPES).count("check(self)") == 1


def test_a_line_after_the_marker_that_is_nowhere_does_not_matter_if_the_place_is_clear():
    hunk = '@@ class Sphere:\n-        return "circle"\n+        return "round"\n'
    assert '"round"' in apply_hunks(hunk, SHAPES)


def test_a_line_above_that_does_not_enclose_the_change_is_enough_if_the_place_is_clear():
    hunk = '@@ class Square:\n-        return "circle"\n+        return "round"\n'
    assert '"round"' in apply_hunks(hunk, SHAPES)


def test_several_places_below_a_line_that_does_not_enclose_them_are_refused():
    hunk = "@@ def f():\n         check(self)\n+        log(self)\n"
    assert "2 times, at lines 6 and 15" in error_message(hunk, f"def f():\n    x\n\n{SHAPES}")


MARGIN = '''\
def first():
    usage = """
Usage: the text
of a string
"""
    check()
    return usage


def second():
    check()
    return None
'''


def test_the_lines_of_a_string_do_not_end_the_block_that_they_are_in():
    assert apply_hunks("@@ def first():\n-    check()\n+    verify()\n", MARGIN) == MARGIN.replace(
        "check()", "verify()", 1
    )


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("    text = '''", "'''"),
        ('    text = """one', 'two"""'),
        ("    text = `", "`"),
        ("    cat <<EOF", "EOF"),
        ("    cat <<-'END_OF_TEXT'", "END_OF_TEXT"),
        ("    cat <<end-of.text", "end-of.text"),
        ("    /* said", "so */"),
    ],
)
def test_strings_of_several_lines_are_known_in_many_languages(opening: str, closing: str):
    block = f"def first():\n{opening}\nat the margin\n{closing}\n    check()\n"
    text = f"{block}\ndef second():\n    check()\n"
    expected = text.replace("check()", "verify()", 1)
    assert apply_hunks("@@ def first():\n-    check()\n+    verify()\n", text) == expected


def test_two_places_around_a_string_in_one_block_are_refused():
    text = 'def f():\n    check()\n    x = """\nmargin\n"""\n    check()\n\ndef g():\n    pass\n'
    assert "lines 2 and 6" in error_message("@@ def f():\n-    check()\n+    verify()\n", text)


def test_an_unclosed_string_does_not_count():
    text = "def f():\n    check()  # a ` in a text `\n    x = `\n\ndef g():\n    check()\n"
    assert "verify" in apply_hunks("@@ def g():\n-    check()\n+    verify()\n", text)


def test_a_git_heading_distinguishes_equal_places():
    text = "import a\n\n@one\n@two\nclass A:\n    pass\n\n\n@one\n@two\nclass B:\n    pass\n"
    hunk = "@@ class A:\n @one\n-@two\n+@three\n"
    assert apply_hunks(hunk, text).endswith("@one\n@three\nclass B:\n    pass\n")


def test_a_heading_of_git_that_was_cut_off_is_found():
    text = f"def {'long_' * 20}(a, b):\n    check()\n\n\ndef g():\n    check()\n"
    hunk = f"@@ def {'long_' * 15}\n-    check()\n+    verify()\n"
    assert "verify()\n\n\ndef g" in apply_hunks(hunk, text)


def test_an_inner_line_is_found_below_an_outer_one_whose_block_it_is_not_in():
    text = f"# helpers\nx = 1\n\n\n{SHAPES}"
    hunk = '@@ # helpers\n@@ def name(self):\n-        return "circle"\n+        return 1\n'
    assert "return 1" in apply_hunks(hunk, text)


def test_a_place_above_the_line_that_is_named_is_refused():
    assert "not found below" in error_message(
        '@@ class Circle:\n-        return "square"\n', SHAPES
    )


def test_below_a_mere_line_the_nearest_place_is_meant():
    text = "# one\n\nx = 1\n\n# two\n\nx = 1\n\n# three\n\nx = 1\n"
    assert apply_hunks("@@ # two\n-x = 1\n+x = 2\n", text) == text.replace(
        "# two\n\nx = 1", "# two\n\nx = 2"
    )


def test_several_places_are_refused_with_their_lines():
    message = error_message("@@\n         check(self)\n+        log(self)\n", SHAPES)
    assert "2 times" in message
    assert "lines 3 and 12" in message


def test_several_places_in_the_block_that_is_named_are_refused():
    text = "def f():\n    x = 1\n    x = 1\n\n\ndef g():\n    y = 1\n"
    assert "2 times" in error_message("@@ def f():\n-    x = 1\n+    x = 2\n", text)


def test_hunks_come_in_the_order_of_the_file():
    text = "a\nx\nb\nx\nc\nx\n"
    assert apply_hunks("@@\n b\n x\n+y\n@@\n-x\n+z\n", text) == "a\nx\nb\nx\ny\nc\nz\n"


def test_hunks_may_show_the_same_lines_around_their_changes():
    assert apply_hunks("@@\n a\n+1\n b\n@@\n b\n+2\n c\n", "a\nb\nc\n") == "a\n1\nb\n2\nc\n"


def test_hunks_are_about_the_file_and_not_about_each_other():
    assert apply_hunks("@@\n-a\n+b\n@@\n-b\n+a\n", "a\nb\n") == "b\na\n"


def test_two_hunks_may_not_change_the_same_lines():
    assert "Two hunks" in error_message("@@\n-a\n-b\n+x\n@@\n-b\n-c\n+y\n", "a\nb\nc\n")


def test_two_parts_for_one_file_are_one():
    body = "*** Update File: a.py\n@@\n-a\n+b\n*** Update File: ./a.py\n@@\n-c\n+d\n"
    (change,) = plan(body, {"a.py": "a\nc\n"})
    assert change.content == "b\nd\n"


def test_a_file_that_is_deleted_and_added_is_rewritten():
    body = "*** Delete File: a.py\n*** Add File: a.py\n+new\n"
    assert plan(body, {"a.py": "old\n"}) == (PlannedChange("update", "a.py", "new\n"),)


def test_the_marker_for_the_end_of_the_file_decides():
    text = "a\nx\nb\nx\n"
    assert apply_hunks("@@\n-x\n+y\n*** End of File\n", text) == "a\nx\nb\ny\n"


def test_lines_are_added_at_the_end():
    assert apply_hunks("@@\n+b\n*** End of File\n", "a\n") == "a\nb\n"
    assert apply_hunks("@@\n+b\n*** End of File\n", "a\r\n") == "a\r\nb\r\n"
    assert apply_hunks("@@\n+b\n*** End of File\n", "a") == "a\nb"
    assert apply_hunks("@@\n+b\n", "") == "b\n"


def test_lines_are_added_below_the_line_that_is_named():
    assert apply_hunks("@@ b\n+x\n", "a\nb\nc\n") == "a\nb\nx\nc\n"


def test_lines_without_a_place_are_refused():
    assert "place" in error_message("@@\n+x\n", "a\n")
    assert "place" in error_message("@@ nowhere\n+x\n", "a\n")
    assert "place" in error_message("@@ a\n+x\n", "a\na\n")


def test_a_hunk_begins_at_the_beginning_of_a_line():
    assert "not found" in error_message("@@\n-x = 1\n+x = 2\n", "max = 1\n")
    assert "not found" in error_message("@@\n-x = 1\n+x = 2\n", "x = 10\n")


@pytest.mark.parametrize(
    ("text", "expected", "level"),
    [
        ("if a:\n    b()\n", "if a:\n    c()\n", MatchLevel.EXACT),
        ("if a:\r\n    b()\r\n", "if a:\r\n    c()\r\n", MatchLevel.LINE_ENDINGS),
        ("if a:\n    b()", "if a:\n    c()", MatchLevel.LINE_ENDINGS),
        ("if a:  \n    b()\t\n", "if a:  \n    c()\n", MatchLevel.TRAILING_SPACE),
        ("if a:\n\tb()\n", "if a:\n\tc()\n", MatchLevel.INDENTATION),
        ("x:\n  if a:\n      b()\n", "x:\n  if a:\n      c()\n", MatchLevel.INDENTATION),
        ("\ufeffif a:\n    b()\n", "\ufeffif a:\n    c()\n", MatchLevel.EXACT),
        ("if\u00a0a:\n    b()\n", "if\u00a0a:\n    c()\n", MatchLevel.UNICODE),
    ],
)
def test_hunks_are_found_as_edits_are(text: str, expected: str, level: MatchLevel):
    body = "*** Update File: a.py\n@@\n if a:\n-    b()\n+    c()\n"
    (change,) = plan(body, {"a.py": text})
    assert change.content == expected
    assert change.match_level is level


def test_a_stale_hunk_is_refused_with_its_number_its_file_and_the_closest_lines():
    hunks = '@@\n-        return "circle"\n+        return "round"\n@@\n-        check(me)\n+x\n'
    lines = error_message(hunks, SHAPES).split("\n")
    assert lines[0] == "File cannot be patched: 'a.py'"
    assert lines[1].startswith("Hunk 2 of 2: Lines were not found: '        check(me)")
    assert any("check(self)" in line for line in lines)
    assert lines[-1] == "No file was changed"


def test_a_patch_of_which_one_part_is_wrong_plans_nothing():
    body = "*** Add File: new.py\n+a\n*** Update File: a.py\n@@\n-zzz\n+b\n"
    with pytest.raises(PatchError, match="No file was changed"):
        plan(body, {"a.py": "a\n"})


@pytest.mark.parametrize(
    ("body", "files", "said"),
    [
        ("*** Add File: a.py\n+a\n", {"a.py": ""}, "already exists: 'a.py'"),
        ("*** Update File: a.py\n@@\n-a\n+b\n", {}, "does not exist: 'a.py'"),
        ("*** Delete File: a.py\n", {}, "does not exist: 'a.py'"),
        ("*** Update File: a.py\n*** Move to: b.py\n", {"a.py": "", "b.py": ""}, "'b.py'"),
        ("*** Update File: a.py\n", {"a.py": "a\n"}, "changes nothing"),
        ("*** Update File: a.py\n@@\n a\n", {"a.py": "a\n"}, "Nothing would change"),
        ("*** Update File: a.py\n@@\na\n+b\n", {"a.py": "a\n"}, "does not start with"),
        ("*** Add File: a.py\nabc\n", {}, "does not start with '+'"),
        ("*** Rename File: a.py\n", {}, "is not allowed there"),
        ("*** Update File: a.py\n*** Copy to: b.py\n", {"a.py": ""}, "is not allowed there"),
        ("*** Delete File: a.py\n-a\n", {"a.py": "a\n"}, "is not allowed there"),
        ("*** Delete File:\n", {}, "has no file path"),
        ("", {}, "names no file"),
        ("*** Add File: a.py\n+a\n*** Delete File: a.py\n", {}, "contradictory parts"),
        (
            "*** Add File: b.py\n+a\n*** Update File: a.py\n*** Move to: b.py\n",
            {"a.py": "a\n"},
            "twice: 'b.py'",
        ),
        (
            "*** Update File: a.py\n@@\n-a\n+# ... rest of the code unchanged ...\n",
            {"a.py": "a\n"},
            "placeholder",
        ),
        (
            "*** Delete File: a.py\n*** Add File: a.py\n+a\n+# ... existing code ...\n",
            {"a.py": "a\nb\n"},
            "placeholder",
        ),
    ],
)
def test_an_invalid_patch_is_rejected(body: str, files: dict[str, str], said: str):
    with pytest.raises(PatchError) as caught:
        plan(body, files)
    assert said in str(caught.value)


def test_empty_lines_between_parts_do_not_matter():
    body = "\n*** Delete File: a\n\n*** Update File: b\n\n@@\n-x\n+y\n\n*** Add File: c\n+c\n\n"
    changes = plan(body, {"a": "", "b": "x\n"})
    assert [(change.path, change.content) for change in changes] == [
        ("a", None),
        ("b", "y\n"),
        ("c", "c\n"),
    ]


def test_a_text_without_a_begin_marker_is_not_a_patch():
    with pytest.raises(PatchError, match="does not start with"):
        parse_v4a("*** Add File: a\n+a\n*** End Patch\n")


def test_a_patch_that_was_cut_off_is_refused():
    with pytest.raises(PatchError, match="may be missing"):
        plan_patch("*** Begin Patch\n*** Update File: a.py\n@@\n-a\n+b\n", {"a.py": "a\n"}.get)


def test_marks_that_are_text_are_text():
    text = "*** End Patch\n*** Update File: b\n"
    hunks = "@@\n *** End Patch\n-*** Update File: b\n+*** Begin Patch\n"
    assert apply_hunks(hunks, text) == "*** End Patch\n*** Begin Patch\n"


@pytest.mark.parametrize(
    "patch",
    [
        " *** Begin Patch\n  *** Update File: a\n@@\n one\n-two\n+2\n *** End Patch\n",
        "*** Begin Patch\n *** Update File: a\n@@\n one\n-two\n+2\n*** End Patch",
        "*** Begin Patch\n*** Update File: a\n @@ one\n-two\n+2\n   *** End Patch\n",
        "  *** Begin Patch\n  *** Update File: a\n  @@\n   one\n  -two\n  +2\n  *** End Patch\n",
        "*** Begin Patch\n\t*** Update File: a\n\t@@\n\t-two\n\t+2\n*** End Patch\n",
        "*** Begin Patch\n*** Update File: a\n@@\n-two\n+2\n  *** End of File\n*** End Patch\n",
    ],
)
def test_spaces_before_the_markers_of_a_patch_do_not_matter(patch: str):
    (change,) = plan_patch(patch, {"a": "one\ntwo\n"}.get)
    assert (change.kind, change.content) == ("update", "one\n2\n")


def test_spaces_before_the_markers_of_later_parts_do_not_matter():
    body = (
        "*** Update File: a\n  *** Move to: c\n@@\n-x\n+y\n  *** Add File: n\n+new\n"
        " *** Delete File: d\n   *** Update File: b\n@@\n-1\n+2\n"
    )
    assert plan(body, {"a": "x\n", "b": "1\n", "d": ""}) == (
        PlannedChange("move", "a", "y\n", "c"),
        PlannedChange("add", "n", "new\n"),
        PlannedChange("delete", "d"),
        PlannedChange("update", "b", "2\n"),
    )


def test_a_marker_with_a_space_before_it_is_a_line_of_the_file_if_the_file_has_it():
    text = "x\n*** Update File: b\ny\n"
    hunk = "@@\n x\n *** Update File: b\n-y\n+z\n"
    files = {"a.py": text, "b": "y\n"}
    (change,) = plan(f"*** Update File: a.py\n{hunk}", files)
    assert (change.path, change.content) == ("a.py", "x\n*** Update File: b\nz\n")


def test_all_files_that_a_patch_may_be_about_are_named():
    body = "*** Update File: a\n@@\n x\n  *** Update File: b\n@@\n-y\n+z\n"
    assert patched_paths(f"*** Begin Patch\n{body}*** End Patch\n") == ("a", "b")


def test_numbers_after_the_marker_help_to_choose():
    text = "x\n" * 5
    assert apply_hunks("@@ -3,1 +3,1 @@\n-x\n+y\n", text) == "x\nx\ny\nx\nx\n"


PIECES = st.sampled_from(
    [
        "*** Begin Patch",
        "*** End Patch",
        "*** Add File: a",
        "*** Update File: b",
        "*** Delete File: b",
        "*** Move to: c",
        "*** End of File",
        "diff --git a/b b/b",
        "--- a/b",
        "+++ b/b",
        "+++ /dev/null",
        "rename from b",
        "rename to c",
        "new file mode 100644",
        "@@",
        "@@ x",
        "@@ -1,2 +1 @@ y",
        "\\ No newline at end of file",
        " x",
        "-x",
        "+y",
        "",
        "x",
    ]
)


@given(st.lists(PIECES, max_size=14), st.sampled_from(["", "x", "x\n", "x\ny\nx\n", "y\r\nx\r\n"]))
def test_whatever_is_sent_is_planned_or_refused_in_words(pieces: list[str], text: str):
    try:
        changes = plan_patch("\n".join(pieces), {"b": text}.get)
    except PatchError as error:
        assert len(str(error)) > 30
    else:
        assert changes
        assert all((change.content is None) == (change.kind == "delete") for change in changes)
