"""Decide finely: by file, by hunk, with a merge; and what is said about the rest."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.workplace import QUESTION, Terminal, Wink, on_terminal
from weakincentives.contrib.review import Review, WorkingCopy, working_copy

LINES = "".join(f"line {number}\n" for number in range(1, 31))
CHANGED = LINES.replace("line 3\n", "LINE 3\n").replace("line 20\n", "LINE 20\n")
Change = Callable[[Path], None]


@pytest.fixture
def copy(project: Path, tmp_path: Path, own_places: None) -> WorkingCopy:
    """Return a copy with a file changed in two places, one added and one removed."""
    (project / "text").write_text(LINES)
    (project / "old").write_text("old\n")
    found = working_copy(project, place=tmp_path / "place")
    (found.root / "text").write_text(CHANGED)
    (found.root / "old").unlink()
    (found.root / "docs/new.md").write_text("new\n")
    return found


def names(root: Path) -> list[str]:
    return sorted(str(each.relative_to(root)) for each in root.rglob("*") if each.is_file())


def test_only_these_files_are_applied_and_the_rest_waits(
    wink: Wink, project: Path, copy: WorkingCopy
):
    done = wink("review", copy.place, "--apply", "--only", "docs", "--only", "old")
    assert done.code == 3
    assert f"Applied to {project}: 1 file added, 1 file removed (old)." in done.err
    assert "The rest is kept: text." in done.err
    assert (project / "docs/new.md").exists()
    assert not (project / "old").exists()
    assert (project / "text").read_text() == LINES
    done = wink("review", copy.place, "--json")
    assert [each["path"] for each in done.last["changes"]] == ["text"]
    assert (done.last["files_changed"], done.last["files_removed"]) == (1, 0)
    assert wink("review", copy.place, "--apply").code == 0
    assert (project / "text").read_text() == CHANGED
    for _ in range(2):
        assert wink("review", copy.place, "--undo").code == 0
    assert names(project) == ["calc.py", "docs/notes.md", "old", "text"]
    done = wink("review", copy.place, "--undo")
    assert (done.code, "that is not undone already" in done.err) == (1, True)


def test_a_file_that_is_skipped_waits(
    wink: Wink, project: Path, copy: WorkingCopy, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(project / "docs")  # names are found from here as well
    done = wink("review", copy.place, "--apply", "--skip", "new.md", "--skip", project / "old")
    assert done.code == 3
    assert (project / "text").read_text() == CHANGED
    assert (project / "old").exists()
    assert not (project / "docs/new.md").exists()
    done = wink("review", copy.place, "--apply", "--only", "nowhere")
    assert (done.code, "Nothing was changed at 'nowhere'" in done.err) == (1, True)


def test_a_patch_of_some_files_keeps_the_copy(wink: Wink, copy: WorkingCopy, tmp_path: Path):
    patch = tmp_path / "some.patch"
    assert wink("review", copy.place, "--patch", patch, "--only", "text").code == 3
    assert patch.read_text().count("diff --git") == 1
    assert copy.root.exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--only", "x"), "--only and --skip need one of"),
        (("--merge",), "--merge needs one of --apply, --commit"),
        (("--apply", "--discard"), "exclude each other"),
    ],
)
def test_misuse_is_one_line(wink: Wink, options: tuple[str, ...], says: str):
    done = wink("review", "x", *options)
    assert (done.code, says in done.err) == (2, True)


# --- conflicts ---


def test_what_both_changed_in_different_places_is_merged_on_request(
    wink: Wink, project: Path, copy: WorkingCopy
):
    mine = LINES.replace("line 10\n", "TEN\n")
    (project / "text").write_text(mine)
    for _ in range(2):  # a second time says the same
        done = wink("review", copy.place, "--apply")
        assert done.code == 4
        assert "conflict: text: modified in the copy, modified in the original, in diff" in done.err
        assert "Nothing was applied." in done.err
        assert f"wink review {copy.place} --apply --merge  to merge" in done.err
        assert f"wink review {copy.place} --apply --skip text  to apply the rest" in done.err
    assert (project / "text").read_text() == mine
    done = wink("review", copy.place, "--apply", "--merge")
    assert (done.code, "merged: text\n" in done.err) == (0, True)
    assert (project / "text").read_text() == CHANGED.replace("line 10\n", "TEN\n")
    assert wink("review", copy.place, "--undo").code == 0
    assert (project / "text").read_text() == mine


def test_what_overlaps_is_named_with_its_lines_and_both_versions_can_be_compared(
    wink: Wink, project: Path, copy: WorkingCopy
):
    (project / "text").write_text("first\n" + LINES.replace("line 20\n", "mine\n"))
    done = wink("review", copy.place, "--apply", "--merge")
    assert done.code == 4
    assert "modified in the original, both at line 21\n" in done.err
    assert f"diff -u {project}/text {copy.root}/text  to compare" in done.err
    assert "--merge" not in done.err
    (conflict,) = wink("review", copy.place, "--json").last["conflicts"]
    assert (conflict["can_merge"], conflict["lines"]) == (False, [[21, 21]])
    assert wink("review", copy.place, "--apply", "--skip", "text").code == 3
    assert not (project / "old").exists()


def test_an_undo_can_keep_later_edits_of_the_same_file(
    wink: Wink, project: Path, copy: WorkingCopy
):
    wink("review", copy.place, "--apply")
    (project / "text").write_text(CHANGED.replace("line 10\n", "TEN\n"))
    done = wink("review", copy.place, "--undo")
    assert (done.code, "--undo --merge  to undo" in done.err) == (3, True)
    assert wink("review", copy.place, "--undo", "--merge").code == 0
    assert (project / "text").read_text() == LINES.replace("line 10\n", "TEN\n")


def test_a_merge_is_not_offered_for_a_new_file_that_was_edited(
    wink: Wink, project: Path, copy: WorkingCopy
):
    (copy.root / "added").write_text(LINES)
    wink("review", copy.place, "--apply")
    (project / "added").write_text(LINES.replace("line 10\n", "TEN\n"))
    done = wink("review", copy.place, "--undo")
    assert (done.code, "left: added " in done.err) == (3, True)
    assert "--merge" not in done.err
    done = wink("review", copy.place, "--undo")  # now there is nothing else
    assert (done.code, "--merge" in done.err) == (4, False)


# --- on a terminal ---


def test_a_person_chooses_hunk_by_hunk_and_is_asked_about_the_rest(
    project: Path, copy: WorkingCopy
):
    # docs/new.md: yes; old: no; text: first hunk no, second yes; then discard the rest
    done = on_terminal(
        "review", copy.place, answers="s\n?\ny\nn\nn\ny\nd\n", size=(80, 100), NO_COLOR="1"
    )
    assert done.code == 0
    assert "1 of 3: apply added docs/new.md? [y,n,q,?]: " in done.out
    assert "a - apply this" not in done.out
    assert "2 of 3: apply removed old? [y,n,b,q,?]: " in done.out
    assert "3 of 3, hunk 2 of 2: apply this to text? [y,n,a,d,e,b,q,?]: " in done.out
    assert "1 file changed, 1 file added." in done.out
    assert "To decide:\nremoved old" in done.out
    assert "Discarded; what was applied stays." in done.out
    assert (project / "text").read_text() == LINES.replace("line 20\n", "LINE 20\n")
    assert (project / "docs/new.md").exists()
    assert (project / "old").exists()


def test_a_hunk_is_split_and_all_of_a_file_is_chosen(project: Path, copy: WorkingCopy):
    changed = LINES.replace("line 3\n", "LINE 3\n").replace("line 5\n", "LINE 5\n")
    (copy.root / "text").write_text(changed)
    done = on_terminal(
        "review", copy.place, answers="s\nn\nn\ns\nn\na\nk\n", size=(80, 100), NO_COLOR="1"
    )
    assert done.code == 3
    assert (project / "text").read_text() == LINES.replace("line 5\n", "LINE 5\n")
    done = on_terminal("review", copy.place, answers="s\ny\ny\na\n", size=(80, 100), NO_COLOR="1")
    assert done.code == 0
    assert (project / "text").read_text() == changed


def test_who_chooses_nothing_is_asked_again_and_a_merge_is_offered(
    project: Path, copy: WorkingCopy
):
    (project / "text").write_text(LINES.replace("line 10\n", "TEN\n"))
    done = on_terminal("review", copy.place, answers="s\nq\nm\n", size=(80, 100), NO_COLOR="1")
    assert done.code == 0
    assert "Nothing was chosen." in done.out
    assert "[a]pply all but 1 in conflict, [m]erge and apply, [s]ome of it" in done.out
    assert (project / "text").read_text() == CHANGED.replace("line 10\n", "TEN\n")


def test_a_directory_is_removed_with_the_last_file_that_was_chosen(
    project: Path, own_places: None, tmp_path: Path
):
    copy = working_copy(project, place=tmp_path / "place")
    (copy.root / "docs/notes.md").unlink()
    (copy.root / "docs").rmdir()
    (copy.root / "made/deep").mkdir(parents=True)
    (copy.root / "made/deep/file").write_text("x\n")
    done = on_terminal("review", copy.place, answers="s\ny\ny\n", size=(80, 100), NO_COLOR="1")
    assert done.code == 0
    assert not (project / "docs").exists()
    assert (project / "made/deep/file").exists()


WIDE = {"size": (80, 160), "NO_COLOR": "1"}


@pytest.mark.parametrize("key", ["a", "m"])
def test_what_was_refused_is_not_applied_by_any_later_key(
    project: Path, copy: WorkingCopy, key: str
):
    (project / "text").write_text(LINES.replace("line 10\n", "TEN\n"))
    # docs/new.md: no; old: yes; text: all; then the key, the key again, and keep
    done = on_terminal("review", copy.place, answers=f"s\nn\ny\na\n{key}\na\nm\nk\n", **WIDE)
    assert done.code == 3
    questions = done.out.index("1 of 3")
    assert "conflict: text: modified" in done.out[:questions]
    assert "conflict: text: modified" in done.out[questions:].partition("3 of 3")[0]
    assert "[a]pply what you chose but 1 in conflict, [m]erge what you chose, " in done.out
    assert not (project / "docs/new.md").exists()
    assert not (project / "old").exists()
    merged = CHANGED.replace("line 10\n", "TEN\n")
    assert (project / "text").read_text() == merged
    assert "Please answer " in done.out


def test_a_conflict_that_comes_up_during_the_questions_keeps_the_choice(
    project: Path, copy: WorkingCopy
):
    terminal = Terminal("review", copy.place, **WIDE)
    for answer in ("s", "n", "y", "y"):
        terminal.wait_for(QUESTION)
        terminal.type(f"{answer}\n")
    terminal.wait_for(QUESTION)
    (project / "old").write_text("mine\n")
    for answer in ("y", "a", "a", "k"):
        terminal.type(f"{answer}\n")
        terminal.wait_for(QUESTION if answer != "k" else "kept in")
    done = terminal.end()
    assert "conflict: old: removed in the copy, modified in the original" in done.out
    assert (project / "text").read_text() == CHANGED
    assert (project / "old").read_text() == "mine\n"
    assert not (project / "docs/new.md").exists()


def test_who_refuses_everything_can_only_choose_again(project: Path, copy: WorkingCopy):
    done = on_terminal("review", copy.place, answers="s\nn\nq\na\np\ns\ny\nq\nk\n", **WIDE)
    assert done.code == 3
    assert "Please answer s, v, k or d." in done.out
    assert (project / "docs/new.md").exists()
    assert (project / "text").read_text() == LINES


def test_an_answer_is_changed_by_going_back(project: Path, copy: WorkingCopy):
    # docs/new.md: yes, and on second thoughts no; of text the second hunk, then the first instead
    answers = "s\ny\nb\nn\nn\nn\ny\n"
    done = on_terminal("review", copy.place, answers=f"{answers}k\n", **WIDE)
    assert done.code == 3
    assert not (project / "docs/new.md").exists()
    assert (project / "text").read_text() == LINES.replace("line 20\n", "LINE 20\n")
    answers = "s\nn\nn\nb\nb\ny\nn\nn\n"
    done = on_terminal("review", copy.place, answers=f"{answers}k\n", **WIDE)
    assert (project / "docs/new.md").exists()
    assert (project / "old").exists()


def test_a_hunk_is_edited_and_the_rest_of_it_waits(project: Path, copy: WorkingCopy):
    editor = "sed -i -e s/LINE/Line/ -e '/^-line.20/s/-/X/'"
    # the second hunk is spoilt by the editor, which is said, and then refused
    done = on_terminal(
        *("review", copy.place),
        answers="s\nn\nn\ne\ne\nn\nk\n",
        VISUAL=editor,
        **WIDE,
    )
    assert (project / "text").read_text() == LINES.replace("line 3\n", "Line 3\n")
    assert "Every line of a hunk begins with a space, - or +" in done.out
    assert "-Line 3\n+LINE 3" in wink_diff(copy)


def test_a_patch_has_what_was_chosen(project: Path, copy: WorkingCopy, tmp_path: Path):
    (project / "text").write_text("mine\n" + LINES)
    patch = tmp_path / "some.patch"
    done = on_terminal("review", copy.place, answers=f"s\nn\nn\nn\ny\np\n{patch}\n", **WIDE)
    assert done.code == 3
    assert "save what you chose as [p]atch" in done.out
    assert "+LINE 20" in patch.read_text()
    assert "LINE 3" not in patch.read_text()


def wink_diff(copy: WorkingCopy) -> str:
    with Review(copy) as review:
        return review.diff.patch()
