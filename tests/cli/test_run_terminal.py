"""`wink run` on a terminal: the user sees the diff and is asked."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.workplace import CALC, FIXED, Script, edit, on_terminal, shell, write
from weakincentives.cli.run.action import first_line
from weakincentives.contrib.review import working_copy

Copies = Callable[[], list[Path]]

pytestmark = pytest.mark.usefixtures("own_places")


def test_the_diff_is_shown_in_colour_and_applied_when_the_person_says_so(
    project: Path, script: Script
):
    hostile = write("evil.txt", "\x1b[2J\x1b]0;title\x07safe\n")
    model = script({"text": "I look.", "tool_calls": [edit(), hostile]}, "Done.")
    done = on_terminal("run", "fix", "--workspace", project, "--model", model, answers="a\n")
    assert done.code == 0
    assert (project / "calc.py").read_text() == FIXED
    # of the line that replaces another one, the words that changed are marked
    old = "-    return sum(numbers) / \x1b[7m(\x1b[27mlen(numbers)\x1b[7m + 1)\x1b[27m"
    assert f"\x1b[31m{old}\x1b[0m" in done.out
    assert "\x1b[32m+    return sum(numbers) / len(numbers)\x1b[0m" in done.out
    assert "I look." in done.out
    assert " · step 2 · " in done.out  # the line that lives
    assert "\nindex " not in done.out
    assert "+^[[2J^[]0;title^Gsafe" in done.out
    assert "\x1b[2J" not in done.out


def test_no_answer_at_all_keeps_the_copy_and_a_narrow_terminal_gets_lines_that_fit(
    project: Path, script: Script, copies: Copies
):
    model = script(edit(), write("a-rather-long-name-for-a-file.txt"), "Done.")
    arguments = ("run", "fix", "--workspace", project, "--model", model)
    done = on_terminal(*arguments, answers="x\n\x04", size=(40, 40), NO_COLOR="1")
    assert done.code == 3
    assert "Please answer" in done.out
    assert f"wink review {copies()[0].name} --apply" in done.out
    assert (project / "calc.py").read_text() == CALC
    [line] = [each for each in done.out.splitlines() if "write_file  " in each]
    assert len(line.rpartition("\x1b[2K")[2].rstrip()) <= 40
    assert all(len(each) <= 40 for each in done.out.splitlines() if "[v]iew again" in each)


def test_what_is_in_conflict_can_be_left_out(project: Path, script: Script, copies: Copies):
    person = f"echo '# mine' >> {project}/calc.py"
    model = script(edit(), write("docs/new.md"), shell("sh", "-c", person), "Done.")
    arguments = ("run", "fix", "--workspace", project, "--model", model, "--sandbox", "local")
    done = on_terminal(*arguments, answers="a\n", NO_COLOR="1")
    assert done.code == 3
    assert "conflict: calc.py" in done.out
    assert "[a]pply all but 1 in conflict" in done.out
    assert (project / "docs" / "new.md").read_text() == "new\n"
    assert "The rest is kept: calc.py." in done.out
    assert "; the original is unchanged" not in done.out
    assert f"wink review {copies()[0].name} --undo" in done.out
    assert (project / "calc.py").read_text() == f"{CALC}# mine\n"
    assert len(copies()) == 1
    assert "\x1b[32m" not in done.out


def test_a_long_diff_goes_through_the_pager_and_a_patch_is_saved(
    project: Path, script: Script, tmp_path: Path
):
    paged, patch = tmp_path / "paged", tmp_path / "mine.patch"
    model = script(write("long.txt", "".join(f"line {each}\n" for each in range(99))), "Done.")
    done = on_terminal(
        *("run", "x", "--workspace", project, "--model", model),
        answers=f"p\n{patch}\n",
        PAGER=f"tee {paged}",
    )
    assert done.code == 0
    added = "added long.txt (+99, -0)"
    assert paged.read_text().startswith(f"{added}\n1 file changed")
    assert "+line 98" in paged.read_text()
    assert done.out.index(added) < done.out.index("+line 0")
    assert "+line 98\n" in patch.read_text()


@pytest.mark.parametrize(
    ("after", "shown"),
    [
        ("if x:\n    go()  \n", "+    go()··"),
        ("if x:\n\tgo()\n", "+→\tgo()"),
        ("if x:\n  go()\n", "+··go()"),
        ("if x:\r\n    go()\n", "+if x:^M"),
        ("if x:\n    go()\n   \n", "+···"),
        ("if x:\n    go()", "\\ No newline at end of file"),
    ],
)
def test_a_change_of_whitespace_is_visible_in_the_diff_and_in_the_questions(
    project: Path, tmp_path: Path, after: str, shown: str
):
    (project / "calc.py").write_text("if x:\n    go()\n")
    copy = working_copy(project, place=tmp_path / "place")
    (copy.root / "calc.py").write_bytes(after.encode())
    done = on_terminal("review", copy.place, answers="s\nn\nk\n", NO_COLOR="1")
    assert done.out.count(f"\n{shown}\n") == 2


def test_a_removed_line_that_looks_like_a_head_is_a_removed_line(project: Path, tmp_path: Path):
    (project / "calc.py").write_text("-- drop table\n++ x\n")
    copy = working_copy(project, place=tmp_path / "place")
    (copy.root / "calc.py").write_text("++ x\n++ y\n")
    done = on_terminal("review", copy.place, answers="k\n")
    assert "\x1b[31m--- drop table\x1b[0m" in done.out
    assert "\x1b[32m+++ y\x1b[0m" in done.out


def test_the_first_line_names_the_model_and_the_directory_before_anything_is_done(
    project: Path, script: Script
):
    model = script("Nothing to do.")
    done = on_terminal("run", "x", "--workspace", project, "--model", model, "--discard")
    assert "".join(done.out.split()).startswith(
        "".join(f"{model} works in a copy of {project}".split())
    )
    assert done.out.count("works in a copy") == 1


def test_the_first_line_says_why_it_is_this_model():
    line = first_line("openai:gpt-5", Path("/x"), 600, "OPENAI_API_KEY")
    assert line == (
        "openai:gpt-5 works in a copy of /x, for at most 10:00"
        " (as OPENAI_API_KEY is set; --model chooses another)"
    )
