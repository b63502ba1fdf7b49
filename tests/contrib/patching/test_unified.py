"""Unified diffs: those of programs apply exactly, those of models if they are unambiguous."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.contrib.tools.editing import MatchLevel
from weakincentives.contrib.tools.patching import PatchError, PlannedChange, plan_patch
from weakincentives.filesystem import InMemoryFilesystem, diff

HEAD = "--- a/a.txt\n+++ b/a.txt\n"


def apply_hunks(hunks: str, text: str) -> str:
    (change,) = plan_patch(HEAD + hunks, {"a.txt": text}.get)
    assert change.content is not None
    return change.content


def error_message(patch: str, files: Mapping[str, str]) -> str:
    with pytest.raises(PatchError) as caught:
        plan_patch(patch, files.get)
    return str(caught.value)


def test_a_diff_of_several_files():
    patch = (
        "diff --git a/a.txt b/a.txt\nindex 1..2 100644\n--- a/a.txt\n+++ b/a.txt\n"
        "@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
        "diff --git a/new b/new\nnew file mode 100644\n--- /dev/null\n+++ b/new\n"
        "@@ -0,0 +1 @@\n+n\n"
        "diff --git a/empty b/empty\nnew file mode 100644\nindex 0..e\n"
        "diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n"
        "@@ -1 +0,0 @@\n-g\n"
        "diff --git a/from b/to\nsimilarity index 100%\nrename from from\nrename to to\n"
    )
    files = {"a.txt": "a\nb\n", "gone": "g\n", "from": "f"}
    assert plan_patch(patch, files.get) == (
        PlannedChange("update", "a.txt", "a\nc\n"),
        PlannedChange("add", "new", "n\n"),
        PlannedChange("add", "empty", ""),
        PlannedChange("delete", "gone"),
        PlannedChange("move", "from", "f", "to"),
    )


def test_names_as_diff_writes_them():
    hunk = "@@ -1 +1 @@\n-a\n+b\n"
    for old, new, path in (
        ("a.txt\t2026-01-01 10:00:00", "a.txt\t2026-01-02 10:00:00", "a.txt"),
        ("a/with blank\t", "b/with blank\t", "with blank"),
        ('"a/\\303\\251"', '"b/\\303\\251"', "\u00e9"),
        ("a.txt.orig", "a.txt", "a.txt"),
    ):
        (change,) = plan_patch(f"--- {old}\n+++ {new}\n{hunk}", {path: "a\n"}.get)
        assert (change.path, change.content) == (path, "b\n")


def test_an_empty_file_whose_name_has_a_blank():
    patch = "diff --git a/x y b/x y\nnew file mode 100644\n"
    assert plan_patch(patch, {}.get) == (PlannedChange("add", "x y", ""),)


def test_a_missing_last_line_end_is_kept_added_and_removed():
    no_end = "\\ No newline at end of file\n"
    assert apply_hunks(f"@@ -1,2 +1,2 @@\n a\n-b\n{no_end}+c\n{no_end}", "a\nb") == "a\nc"
    assert apply_hunks(f"@@ -1,2 +1,2 @@\n a\n-b\n{no_end}+b\n", "a\nb") == "a\nb\n"
    assert apply_hunks(f"@@ -1,2 +1,2 @@\n a\n-b\n+b\n{no_end}", "a\nb\n") == "a\nb"
    assert apply_hunks(f"@@ -1,2 +1,2 @@\n-a\n+x\n b\n{no_end}", "a\nb") == "x\nb"


def test_a_last_line_that_has_an_end_now_keeps_it():
    no_end = "\\ No newline at end of file\n"
    assert apply_hunks(f"@@ -1,2 +1,2 @@\n a\n-b\n{no_end}+c\n{no_end}", "a\nb\n") == "a\nc\n"


def test_what_is_to_be_the_last_line_must_be_at_the_end():
    patch = f"{HEAD}@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n"
    assert "not at the end" in error_message(patch, {"a.txt": "a\nb\nd\n"})


def test_line_endings_in_a_generated_diff_are_exact():
    assert apply_hunks("@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\n", "a\r\nb\r\n") == "a\r\nc\n"


def test_line_endings_that_a_model_omits_are_those_of_the_file():
    assert apply_hunks("@@ -1,2 +1,2 @@\n a\n-b\n+c\n", "a\r\nb\r\n") == "a\r\nc\r\n"


def test_numbers_decide_between_places():
    text = "x\n--\n" * 5
    assert (
        apply_hunks("@@ -5,2 +5,2 @@\n-x\n+y\n --\n", text) == "x\n--\nx\n--\ny\n--\nx\n--\nx\n--\n"
    )


def test_numbers_are_moved_with_the_hunk_before():
    text = "new\nnew\nfirst\n" + "x\n--\n" * 4
    hunks = "@@ -1,1 +1,1 @@\n-first\n+FIRST\n@@ -4,2 +4,2 @@\n-x\n+y\n --\n"
    assert apply_hunks(hunks, text) == "new\nnew\nFIRST\nx\n--\ny\n--\nx\n--\nx\n--\n"


def test_wrong_numbers_do_not_matter_if_the_place_is_clear():
    assert apply_hunks("@@ -70,9 +1,2 @@\n a\n-b\n+c\n", "z\na\nb\n") == "z\na\nc\n"
    assert apply_hunks("@@ @@\n a\n-b\n+c\n", "z\na\nb\n") == "z\na\nc\n"


def test_wrong_numbers_do_not_choose():
    assert "2 times" in error_message(f"{HEAD}@@ -7 +7 @@\n-x\n+y\n", {"a.txt": "x\n-\nx\n"})


def test_the_function_that_git_names_decides_between_places():
    text = "def f():\n    a()\n    x()\n\ndef g():\n    a()\n    x()\n"
    hunk = "@@ -90,2 +90,2 @@ def g():\n     a()\n-    x()\n+    y()\n"
    assert apply_hunks(hunk, text) == text[:-8] + "    y()\n"


def test_the_function_that_git_names_need_not_be_the_right_one():
    text = "def f():\n    a()\n\ndef g():\n    x()\n"
    assert apply_hunks("@@ -4,2 +4,2 @@ def f():\n def g():\n-    x()\n+    y()\n", text).endswith(
        "y()\n"
    )


def test_lines_that_look_like_headers_are_lines():
    text = "-- x\n++ y\nend\n"
    assert apply_hunks("@@ -1,3 +1,3 @@\n--- x\n+-- z\n ++ y\n end\n", text) == "-- z\n++ y\nend\n"
    assert apply_hunks("@@ -1,3 +1,3 @@\n--- x\n+++ z\n ++ y\n end\n", text) == "++ z\n++ y\nend\n"


def test_the_signature_of_a_mail_is_not_a_part_of_it():
    assert apply_hunks("@@ -1,2 +1,2 @@\n a\n-b\n+c\n-- \n2.39.2\n", "a\nb\n- \n") == "a\nc\n- \n"


def test_prose_and_fences_around_a_diff_do_not_matter():
    patch = f"Here is the patch:\n\n```diff\n{HEAD}@@ -1 +1 @@\n-a\n+b\n```\nDone.\n"
    assert plan_patch(patch, {"a.txt": "a\n"}.get)[0].content == "b\n"


def test_an_insertion_into_an_empty_file():
    assert apply_hunks("@@ -0,0 +1,2 @@\n+a\n+b\n", "") == "a\nb\n"


def test_a_quote_that_is_not_closed_is_a_part_of_the_name():
    patch = '--- "a/p\n+++ "b/p\n@@ -1 +1 @@\n-x\n+y\n'
    assert "does not exist: '\"b/p'" in error_message(patch, {"p": "x\n"})


def test_a_model_may_be_wrong_about_tabs():
    patch = f"{HEAD}@@ -1,2 +1,2 @@\n if a:\n-    b\n+    c\n"
    (change,) = plan_patch(patch, {"a.txt": "if a:\n\tb\n"}.get)
    assert change.content == "if a:\n\tc\n"
    assert change.match_level is MatchLevel.INDENTATION


@pytest.mark.parametrize(
    ("patch", "files", "said"),
    [
        ("hello\n", {}, "not a patch"),
        ("", {}, "not a patch"),
        ("@@ -1 +1 @@\n-a\n+b\n", {}, "hunk without a file"),
        (f"{HEAD}@@ -1 +1 @@\n-a\n+b\n", {}, "does not exist: 'a.txt'"),
        (f"{HEAD}@@ -1,2 +1,2 @@\n-a\nb\n", {"a.txt": "a\n"}, "does not start with"),
        (f"{HEAD}@@ -5,0 +6 @@\n+b\n", {"a.txt": "a\n"}, "place"),
        ("--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+a\n", {"a.txt": ""}, "already exists"),
        (
            "--- a/a.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n",
            {"a.txt": "a\nb\n"},
            "not in the patch",
        ),
        ("--- a/a.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", {"a.txt": "b\n"}, "not found"),
        ("diff --git a/x b/x\nGIT binary patch\nliteral 0\n", {"x": ""}, "binary"),
        ("diff --git a/x b/x\nBinary files a/x and b/x differ\n", {"x": ""}, "binary"),
        ("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", {"x": ""}, "permissions"),
        ("diff --git a/x b/x\nnew file mode 120000\n", {}, "link"),
        ("diff --git a/x b/y\ncopy from x\ncopy to y\n", {"x": ""}, "copies"),
        ("diff --git a/x b/y\nrename from x\nrename to y\n", {"x": "", "y": ""}, "'y'"),
    ],
)
def test_what_cannot_be_done_is_refused(patch: str, files: dict[str, str], said: str):
    assert said in error_message(patch, files)


LINES = st.sampled_from(
    [
        "a",
        "b",
        "",
        "x y",
        "-- q",
        "++ z",
        "@@ k",
        "--- a/x",
        "\\ w",
        "*** Begin Patch",
        "  i",
        "\tt",
    ]
)
TEXTS = st.builds(
    lambda lines, end: "".join(lines) + end,
    st.lists(
        st.builds(str.__add__, LINES, st.sampled_from(["\n", "\n", "\n", "\r\n"])), max_size=12
    ),
    st.sampled_from(["", "", "a", "\u00e9"]),
)
TREES = st.dictionaries(st.sampled_from(["p", "q q", "d/r", "\u00e9"]), TEXTS, max_size=4)


def filesystem(tree: Mapping[str, str]) -> InMemoryFilesystem:
    made = InMemoryFilesystem()
    for path, text in tree.items():
        made.write(path, text)
    return made


def apply_plan(tree: Mapping[str, str], plan: tuple[PlannedChange, ...]) -> dict[str, str]:
    result = dict(tree)
    for change in plan:
        if change.kind in {"delete", "move"}:
            del result[change.path]
        if change.content is not None:
            result[change.new_path or change.path] = change.content
    return result


@given(TREES, TREES)
def test_what_diff_writes_turns_one_state_into_the_other(
    before: dict[str, str], after: dict[str, str]
):
    changes = diff(filesystem(before), filesystem(after))
    if changes.statistics.files_changed:
        assert apply_plan(before, plan_patch(changes.patch(), before.get)) == after


@given(TEXTS, TEXTS, TEXTS)
def test_a_diff_of_another_text_lands_or_is_refused_but_changes_only_lines_of_its_own(
    before: str, after: str, other: str
):
    changes = diff(filesystem({"p": before}), filesystem({"p": after}))
    if not changes.statistics.files_changed:
        return
    try:
        (change,) = plan_patch(changes.patch(), {"p": other}.get)
    except PatchError as error:
        assert "'p'" in str(error)
    else:
        assert change.content is not None
        known = {line.strip() for line in (after + "\n" + other).split("\n")}
        assert {line.strip() for line in change.content.split("\n")} <= known
