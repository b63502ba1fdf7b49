"""`wink review`: decide later about the changes that a run left in its copy."""

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import weakincentives
from tests.cli.workplace import CALC, FIXED, Done, Script, Wink, edit, on_terminal, shell, write
from tests.posix.forks import is_killed_at
from weakincentives.contrib.review import Review, open_copy, working_copy

Copies = Callable[[], list[Path]]


@pytest.fixture
def place(wink: Wink, project: Path, script: Script, copies: Copies) -> Path:
    """Return the copy of a run whose changes wait."""
    model = script(edit(), write("new.txt"), "Done.")
    assert wink("run", "fix", "--workspace", project, "--model", model).code == 3
    return copies()[0]


def ended(done: Done) -> tuple[object, str]:
    return done.code, done.last["result"]


def test_changes_are_applied_and_taken_back(wink: Wink, project: Path, place: Path):
    done = wink("review", place, "--apply")
    assert (done.code, done.out) == (0, "")
    assert (project / "calc.py").read_text() == FIXED
    assert wink("review", place, "--undo").code == 0
    assert (project / "calc.py").read_text() == CALC
    assert not (project / "new.txt").exists()


def test_what_was_applied_is_applied_once_and_taken_back_at_once(
    wink: Wink, project: Path, place: Path
):
    wink("review", place, "--apply")
    done = wink("review", place, "--apply")
    assert done.code == 0
    assert f"Nothing to apply: {project} already has all the changes." in done.err
    assert "the original is unchanged" not in wink("review", place).err
    assert f"Undone in {project}: restored 1 file, removed 1 new file." in (
        wink("review", place, "--undo").err
    )


def test_without_a_wish_the_patch_is_printed_and_the_changes_still_wait(
    wink: Wink, project: Path, place: Path
):
    done = wink("review", place)
    assert done.code == 3
    assert done.out.startswith("diff --git a/calc.py b/calc.py\n")
    assert (project / "calc.py").read_text() == CALC


def test_a_person_is_asked(project: Path, place: Path):
    done = on_terminal("review", place, answers="v\na\n")
    assert done.code == 0
    assert done.out.count("diff --git a/calc.py") == 2
    assert (project / "calc.py").read_text() == FIXED


def test_json_tells_what_was_done(wink: Wink, place: Path, tmp_path: Path):
    assert ended(wink("review", place, "--json")) == (3, "kept")
    assert ended(wink("review", place, "--json", "--apply")) == (0, "applied")
    assert ended(wink("review", place, "--json", "--undo")) == (0, "undone")
    done = wink("review", place, "--json", "--patch", tmp_path / "x.patch")
    assert ended(done) == (0, "patched")
    assert [each["path"] for each in done.last["changes"]] == ["calc.py", "new.txt"]
    assert wink("review", place).code == 1


def test_a_conflict_stays_a_conflict(wink: Wink, project: Path, place: Path):
    (project / "calc.py").write_text("mine\n")
    assert wink("review", place, "--apply").code == 4
    done = wink("review", place, "--json", "--apply")
    assert ended(done) == (4, "conflict")
    assert [each["path"] for each in done.last["conflicts"]] == ["calc.py"]
    assert (project / "calc.py").read_text() == "mine\n"
    assert not (project / "new.txt").exists()


def test_what_was_changed_since_is_left_and_named_and_the_rest_is_undone(
    wink: Wink, project: Path, place: Path
):
    wink("review", place, "--apply")
    (project / "calc.py").write_text("mine\n")
    done = wink("review", place, "--undo")
    assert done.code == 3
    assert f"Undone in {project}: removed 1 new file, left 1.\n" in done.err
    assert "left: calc.py was left as it is: modified after the apply\n" in done.err
    rest = (
        f"wink review {place.name} --undo  to undo the rest when it is again as the apply left it"
    )
    assert rest in done.err
    assert not (project / "new.txt").exists()
    done = wink("review", place, "--undo", "--json")
    assert ended(done) == (4, "conflict")
    assert [each["path"] for each in done.last["kept"]] == ["calc.py"]
    again = wink("review", place, "--undo").err
    assert "Nothing was undone" in again
    assert rest in again
    assert (project / "calc.py").read_text() == "mine\n"


def test_copies_are_listed_and_removed(wink: Wink, project: Path, place: Path, copies: Copies):
    [listed] = wink("review", "--json").events
    assert (listed["place"], listed["original"]) == (str(place), str(project))
    assert wink("review", place, "--discard").code == 0
    assert (copies(), wink("review").out) == ([], "")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("nowhere",), 1, "`wink review` lists the runs"),
        (("--apply",), 2, "RUN is missing"),
        (("x", "--undo", "--apply"), 2, "--undo cannot be combined"),
        (("x", "--patch", "a/b/c"), 2, "The directory of the patch does not exist"),
    ],
)
def test_misuse_is_one_line(arguments: tuple[str, ...], code: int, says: str, wink: Wink):
    done = wink("review", *arguments)
    assert (done.code, done.err.count("\n")) == (code, 1)
    assert says in done.err


def test_a_copy_in_which_a_run_is_at_work_is_left_alone(
    wink: Wink, project: Path, script: Script, copies: Copies, tmp_path: Path
):
    source = Path(weakincentives.__file__).parents[1]
    looking = ["env", f"PYTHONPATH={source}", sys.executable, "-m", "weakincentives", "review"]
    review = f"{shlex.join(looking)} $(dirname $PWD) --discard 2> {tmp_path}/said"
    model = script(write("half.txt"), shell("sh", "-c", review), write("rest.txt"), "Done.")
    options = ("--workspace", project, "--model", model, "--sandbox", "local")
    assert wink("run", "x", *options).code == 3
    assert "The run is in use" in (tmp_path / "said").read_text()
    assert wink("review", copies()[0], "--apply").code == 0
    assert (project / "rest.txt").exists()


def test_undo_before_anything_was_applied_says_so(wink: Wink, place: Path):
    done = wink("review", place, "--undo")
    assert (done.code, "Nothing was applied" in done.err) == (1, True)


def test_looking_at_a_copy_without_changes_does_not_remove_it(
    wink: Wink, project: Path, own_places: None
):
    copy = working_copy(project)
    done = wink("review", copy.place)
    assert (done.code, "Nothing was changed." in done.err) == (0, True)
    assert copy.root.exists()
    wink("review", copy.place, "--discard")
    assert not copy.place.exists()


def test_the_text_of_a_planted_record_is_one_line_and_is_not_obeyed(
    wink: Wink, project: Path, place: Path, copies: Copies
):
    record = place / "run.json"
    facts = json.loads(record.read_text())
    facts["original"] = "/a\x1b[2J\u202e\u061c\u2060\U000e0041\u2028\n/tmp/wink-run-x  a copy of /b"
    record.write_text(json.dumps(facts))
    listed = wink("review")
    line, task = listed.out.splitlines()
    assert task == "  fix"
    assert line.isascii()
    assert line.isprintable()
    assert "\\x1b[2J\\u202e\\u061c\\u2060\\U000e0041\\u2028\\n/tmp" in line
    for option in ("--apply", "--undo", "--discard"):
        said = wink("review", place, option).err
        assert "\x1b" not in said
        assert "\u202e" not in said


# --- an apply that was interrupted ---


def interrupt(place: Path) -> None:
    """Apply, and be killed when the first path has been exchanged."""
    with Review(open_copy(place)) as review:
        assert is_killed_at("change.exchanged", review.apply)


def states(directory: Path) -> dict[Path, tuple[int, ...]]:
    """Return what a change would show in; reading a file may change its time of access."""
    found = {path: path.lstat() for path in directory.rglob("*")}
    return {
        path: (each.st_ino, each.st_mode, each.st_size, each.st_mtime_ns)
        for path, each in found.items()
    }


def test_looking_at_an_interrupted_apply_changes_nothing_and_says_what_to_do(
    wink: Wink, project: Path, place: Path, script: Script
):
    interrupt(place)
    assert (project / "calc.py").read_text() == FIXED
    before = states(project)
    done = wink("review", place, "--json")
    assert ended(done) == (3, "interrupted")
    assert done.last["interrupted"] == ["calc.py", "new.txt"]
    done = wink("review", place)
    assert done.code == 3
    assert f"wink review {place} --recover" in done.err
    refused = wink("run", "fix", "--workspace", project, "--model", script("Done."))
    assert refused.code != 0
    assert f"wink review {place} --recover" in refused.err
    assert states(project) == before


@pytest.mark.parametrize("option", ["--recover", "--undo", "--discard"])
def test_an_interrupted_apply_is_rolled_back(wink: Wink, project: Path, place: Path, option: str):
    interrupt(place)
    assert wink("review", place, option).code == 0
    assert (project / "calc.py").read_text() == CALC
    assert sorted(path.name for path in project.iterdir()) == ["calc.py", "docs"]
    assert (place / "workspace").exists() == (option != "--discard")


def test_an_interrupted_apply_is_done_again(wink: Wink, project: Path, place: Path):
    interrupt(place)
    assert wink("review", place, "--apply").code == 0
    assert (project / "calc.py").read_text() == FIXED
    assert (project / "new.txt").exists()


@pytest.mark.parametrize("option", ["--recover", "--undo", "--apply", "--discard"])
def test_what_was_saved_after_an_interrupted_apply_stays_and_is_named(
    wink: Wink, project: Path, place: Path, option: str
):
    interrupt(place)
    (project / "calc.py").write_text("saved since\n")
    done = wink("review", place, option)
    assert done.code == (0 if option == "--recover" else 4)
    assert (project / "calc.py").read_text() == "saved since\n"
    assert (project / "calc.py.wink-kept").read_text() == CALC
    assert "calc.py was saved in the meantime and was left alone" in done.err
    assert "calc.py.wink-kept" in done.err
    assert place.exists()


def test_what_was_interrupted_is_rolled_back_though_its_copy_is_gone(
    wink: Wink, project: Path, place: Path, script: Script
):
    interrupt(place)
    shutil.rmtree(place)
    refused = wink("run", "fix", "--workspace", project, "--model", script("Done."))
    assert f"wink review {project} --recover" in refused.err
    assert wink("review", project, "--recover").code == 0
    assert (project / "calc.py").read_text() == CALC


def _remove(original: Path) -> None:
    shutil.rmtree(original)


def _put_a_file_there(original: Path) -> None:
    shutil.rmtree(original)
    original.write_text("a file\n")


@pytest.mark.parametrize("lose", [_remove, _put_a_file_there])
@pytest.mark.parametrize("wish", ["patch", "discard"])
def test_the_work_is_saved_or_discarded_though_the_original_is_gone(
    wink: Wink, project: Path, place: Path, tmp_path: Path, lose: Callable[[Path], None], wish: str
):
    lose(project)
    assert ended(wink("review", place, "--json")) == (3, "kept")
    done = wink("review", place, "--apply")
    assert (done.code, str(project) in done.err) == (1, True)
    done = wink(
        "review", place, f"--{wish}", *([tmp_path / "work.patch"] if wish == "patch" else [])
    )
    assert (done.code, (place / "workspace").exists()) == (0, False)
    if wish == "patch":
        assert (tmp_path / "work.patch").read_text().startswith("diff --git a/calc.py b/calc.py\n")
