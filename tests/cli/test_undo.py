"""`wink undo`: one step of a run is undone in its copy, and nothing that came later is lost."""

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import preloaded
from tests.cli.workplace import CALC, FIXED, Script, Terminal, Wink, edit, shell, write
from tests.posix.forks import is_killed_at
from tests.sizes import size
from weakincentives.cli.main import main
from weakincentives.cli.runs import steps_path
from weakincentives.filesystem import HostFilesystem
from weakincentives.history import RecordLog
from weakincentives.history.store import SIGNATURE, STEP
from weakincentives.runtime.timeline import Timeline

Copies = Callable[[], list[Path]]


@pytest.fixture
def place(wink: Wink, project: Path, script: Script, copies: Copies) -> Path:
    """Return the copy of a run: 4 makes two files, 6 fixes calc.py, 8 changes it again."""
    both = "echo a > a.txt; echo b > b.txt"
    again = edit("def mean", "def average")
    model = script(shell("sh", "-c", both), edit(), again, "Done.")
    wink("run", "x", "--workspace", project, "--model", model, "--sandbox", "local")
    return copies()[0]


def names(place: Path) -> list[str]:
    return sorted(each.name for each in (place / "workspace").iterdir())


def test_a_step_is_undone_and_later_steps_stay(wink: Wink, place: Path):
    done = wink("undo", "4")
    assert done.code == 0, done.err
    assert "). Restored: a.txt, b.txt" in done.err
    assert f"wink undo {place.name} 11  to redo it" in done.err
    assert names(place) == ["calc.py", "docs"]
    assert "average" in (place / "workspace" / "calc.py").read_text()
    assert wink("undo", place.name, "11").code == 0
    assert (place / "workspace" / "a.txt").read_text() == "a\n"


def test_a_step_is_undone_on_its_own_branch(wink: Wink, place: Path, script: Script):
    model = script(write("c.txt", "c\n"), "Done.")
    resumed = wink("resume", place.name, "--at", "6", "go on", "--name", "other", "--model", model)
    assert resumed.code == 3, resumed.err
    other = place / "copy-2" / "workspace"
    assert wink("fork", place.name, "10", "--name", "empty").code == 0
    done = wink("undo", place.name, "8")
    assert done.code == 0, done.err
    assert "def mean" in (place / "workspace" / "calc.py").read_text()
    with Timeline(steps_path(place)) as timeline:
        undo = timeline.step(timeline.last)
        assert (undo.parent, undo.paths) == (10, ("calc.py",))
    assert names(place) == ["a.txt", "b.txt", "calc.py", "docs"]
    assert sorted(each.name for each in other.iterdir()) == [
        *names(place)[:2],
        "c.txt",
        *names(place)[2:],
    ]
    (copy,) = place.glob("copy-*")
    refused = wink("undo", copy, "8")
    assert (refused.code, "Step 8 is not in the copy" in refused.err) == (1, True)


def test_what_is_undone_already_is_not_undone_again(wink: Wink, place: Path):
    assert wink("undo", "4", "--only", "a.txt").code == 0
    assert wink("undo", "4").code == 0  # the rest
    done = wink("undo", "4")
    assert (done.code, "Nothing is left to undo of step 4" in done.err) == (1, True)
    with Timeline(steps_path(place)) as timeline:
        assert timeline.last == 12


@pytest.fixture
def lose(place: Path) -> Callable[[int], None]:
    """Return what damages the record of one step, and of no other."""
    path = steps_path(place) / "steps"
    whole = path.read_bytes()
    with RecordLog(path, SIGNATURE, read_only=True) as log:
        offsets = {each.number: each.offset for each in log.read_new() if each.kind == STEP}

    def damage(number: int) -> None:
        data = bytearray(whole)
        data[offsets[number] + 60] ^= 255
        path.write_bytes(data)

    return damage


def files_of(root: Path) -> dict[str, bytes]:
    found = (each for each in root.rglob("*") if each.is_file())
    return {each.relative_to(root).as_posix(): each.read_bytes() for each in found}


@pytest.mark.parametrize("number", range(1, 10)[:: size(3, 1)])
def test_a_run_that_lost_a_step_has_the_others(
    wink: Wink, project: Path, place: Path, lose: Callable[[int], None], tmp_path: Path, number: int
):
    lose(number)
    lost = f"what step {number} did is lost; 9 steps are intact"
    done = wink("log")
    steps = [line for line in done.out.splitlines() if line[:1] == "*"]
    assert (len(steps), lost in done.err) == (10, True)
    assert steps[number - 1].endswith("lost: its record is damaged")
    assert [each["number"] for each in wink("log", "--json").events] == [*range(1, 11)]
    for step in range(1, 11):
        assert wink("show", place.name, str(step)).code == 0
    done = wink("restore", place.name, "10", "--to", tmp_path / "out")
    present = files_of(place / "workspace")
    assert (done.code, files_of(tmp_path / "out")) == (0, present)
    exported = tmp_path / "run.timeline"
    for target in (exported, tmp_path / "run.html"):
        assert wink("export", place.name, "--to", target).code == 0
    with Timeline(exported) as timeline:
        assert (timeline.last, lost in (timeline.problem or "")) == (10, True)
        found = timeline.files(10)
        assert {path: found.read_bytes(path).content for path in present} == present
    done = wink("run", "--continue", "go on", "--workspace", project)
    assert (done.code, f"because step {number} is damaged and lost" in done.err) == (1, True)
    done = wink("replay", place.name, "--sandbox", "none")
    assert (done.code, lost in done.err) == (1, True)


def test_a_step_is_undone_after_one_that_is_lost(
    wink: Wink, place: Path, lose: Callable[[int], None], script: Script
):
    lose(5)
    done = wink("undo", "8")
    assert done.code == 0, done.err
    assert "def mean" in (place / "workspace" / "calc.py").read_text()
    assert wink("undo", place.name, "11").code == 0
    with Timeline(steps_path(place)) as timeline:
        assert (timeline.last, timeline.step(12).undoes) == (12, 11)
        assert "average" in timeline.files(12).read("calc.py").content
    done = wink("resume", place.name, "--at", "10", "go on")
    assert f"wink resume {place.name} --at 4 goes on before that" in done.err
    model = script("Done.")
    assert wink("resume", place.name, "--at", "4", "go on", "--model", model).code == 3


def test_what_only_a_lost_step_had_is_named(wink: Wink, place: Path, lose: Callable[[int], None]):
    lose(6)  # the text that it gave calc.py was replaced by step 8
    before = files_of(place / "workspace")
    done = wink("undo", "8")
    assert (done.code, "calc.py: Object is missing" in done.err) == (1, True)
    assert files_of(place / "workspace") == before
    assert wink("diff", place.name, "8").code == 1
    assert wink("diff", place.name).code == 0


def test_an_undo_is_a_step_that_names_what_it_undoes(wink: Wink, place: Path):
    assert wink("undo", "8", "--json").last == {
        "run": place.name,
        "step": 8,
        "undo": 11,
        "conflicts": [],
        "paths": ["calc.py"],
    }
    with Timeline(steps_path(place)) as timeline:
        step = timeline.step(11)
        assert (step.title, step.undoes, step.actor) == ("undo of step 8", 8, "person")
        assert timeline.files(11).read("calc.py").content == FIXED
        with HostFilesystem(place / "workspace", read_only=True) as files:
            assert files.read("calc.py").content == FIXED
    assert " undo   undo of step 8" in wink("log").out


def test_a_part_of_a_step_is_undone(wink: Wink, place: Path):
    assert wink("undo", "4", "--only", "a.txt").code == 0
    assert names(place) == ["b.txt", "calc.py", "docs"]
    done = wink("undo", "4", "--only", "calc.py")
    assert done.code == 1
    assert "Nothing was changed at 'calc.py' in step 4; it changed a.txt, b.txt" in done.err


def test_what_a_later_step_changed_is_a_conflict_that_names_the_step(wink: Wink, place: Path):
    before = (place / "workspace" / "calc.py").read_text()
    done = wink("undo", "6")
    assert done.code == 4
    assert "calc.py was changed by step 8 (edit_file calc.py)" in done.err
    assert f"wink undo {place.name} 8  to undo that first" in done.err
    assert (place / "workspace" / "calc.py").read_text() == before
    assert wink("undo", "8").code == wink("undo", "6").code == 0
    assert (place / "workspace" / "calc.py").read_text() == CALC


def test_not_the_undo_of_a_later_step_is_in_the_way(wink: Wink, project: Path, script: Script):
    again = edit("def mean", "def average"), edit("def average", "def middle")
    wink("run", "x", "--workspace", project, "--model", script(edit(), *again, "Done."))
    assert wink("undo", "8").code == 0
    done = wink("undo", "4")
    assert "calc.py was changed by step 6 (edit_file calc.py)" in done.err
    assert wink("undo", "6").code == wink("undo", "4").code == 0


def test_what_the_user_changed_is_never_undone(wink: Wink, place: Path):
    (place / "workspace" / "a.txt").write_text("mine\n")
    done = wink("undo", "4")
    assert done.code == 4
    assert "a.txt was changed by you, outside of the steps" in done.err
    assert f"wink undo {place.name} 4 --only b.txt  to undo the rest" in done.err
    assert (place / "workspace" / "a.txt").read_text() == "mine\n"
    assert (place / "workspace" / "b.txt").exists()
    [conflict] = wink("undo", "4", "--json").last["conflicts"]
    assert conflict == {"path": "a.txt", "changed_by": "you, outside of the steps"}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (
            [],
            2,
            "ech…), 6 (edit_file calc.py), 8 (edit_file calc.py); wink log shows the steps",
        ),
        (["1"], 1, "Step 1 is the start of the run"),
        (["3"], 1, "Step 3 changed no files"),
        (["99"], 1, "There is no step 99"),
    ],
)
def test_what_cannot_be_undone_says_why(
    wink: Wink, place: Path, arguments: list[str], code: int, says: str
):
    done = wink("undo", *arguments)
    assert (done.code, says in done.err) == (code, True), done.err


@pytest.mark.parametrize("command", [["undo"], ["undo", "4"], ["fork"], ["log"]])
def test_without_any_run_it_says_how_to_start_one(wink: Wink, command: list[str]):
    done = wink(*command)
    assert done.code == 1
    assert "No runs are kept in " in done.err
    assert "start one with wink run" in done.err


def test_what_the_user_saved_before_an_undo_is_a_step_of_its_own(wink: Wink, place: Path):
    root = place / "workspace"
    (root / "calc.py").write_text("# mine\n")
    assert wink("undo", "4").code == 0
    with Timeline(steps_path(place)) as timeline:
        assert [timeline.step(each).title for each in (11, 12)] == [
            "changed by you",
            "undo of step 4",
        ]
        assert timeline.step(12).paths == ("a.txt", "b.txt")
    assert wink("undo", "12").code == 0  # the redo
    assert (root / "a.txt").read_text() == "a\n"
    assert (root / "calc.py").read_text() == "# mine\n"


def test_a_file_of_the_user_in_a_new_directory_is_never_removed(
    wink: Wink, project: Path, script: Script, copies: Copies
):
    model = script(write("new/made.txt"), "Done.")
    wink("run", "x", "--workspace", project, "--model", model)
    [place] = copies()
    mine = place / "workspace" / "new" / "mine.txt"
    mine.write_text("mine\n")
    assert wink("undo", "4").code == 4
    assert sorted(each.name for each in mine.parent.iterdir()) == ["made.txt", "mine.txt"]
    assert wink("undo", "4", "--only", "new/made.txt").code == 0
    assert mine.read_text() == "mine\n"


def test_a_run_whose_copy_is_gone_says_what_to_do(wink: Wink, place: Path):
    assert wink("review", place.name, "--discard").code == 0
    done = wink("undo", "4")
    assert done.code == 1
    assert f"wink resume {place.name} continues the run in a new copy" in done.err


def test_the_model_is_told_what_was_undone(wink: Wink, project: Path, script: Script, place: Path):
    assert wink("undo", "8").code == 0
    model = script("Done.")
    done = wink("run", "--continue", "go on", "--workspace", project, "--model", model, "--json")
    assert done.events[0]["edited"] == ["calc.py"]
    assert (place / "workspace" / "calc.py").read_text() == FIXED


NEXT = {
    "review": (["review"], False),
    "run": (["run", "--continue", "more", "--workspace"], True),
}


@pytest.mark.parametrize(
    "point", ["change.recorded", "change.changing", "change.removed", "change.changed"]
)
@pytest.mark.parametrize("after", ["review", "run"])
def test_an_undo_that_was_killed_is_old_or_new(
    wink: Wink, place: Path, project: Path, script: Script, point: str, after: str
):
    root = place / "workspace"

    def undo() -> None:
        main(["undo", place.name, "4"])

    assert is_killed_at(point, undo)
    recover, path = NEXT[after]  # whatever is next, it recovers first
    done = wink(*recover, *([project, "--model", script("Done.")] if path else [place.name]))
    assert done.code in (0, 3), done.err
    assert wink("undo", place.name, "8").code == 0
    left = {each.name for each in root.glob("*.txt")}
    assert left in ({"a.txt", "b.txt"}, set())
    assert (root / "calc.py").read_text() == FIXED


# --- what a rollback displaced ---


def test_what_the_user_saved_during_a_command_that_ctrl_c_ends_can_be_had_back(
    wink: Wink, project: Path, script: Script, copies: Copies, tmp_path: Path
):
    os.mkfifo(tmp_path / "runs")
    command = f"echo half > half.txt; echo > {tmp_path}/runs; sleep 100"
    model = script(write("new.txt"), shell("sh", "-c", command), "Done.")
    terminal = Terminal("run", "x", "--workspace", project, "--model", model, "--sandbox", "local")
    (tmp_path / "runs").read_bytes()
    [place] = copies()
    (place / "workspace" / "calc.py").write_text("# mine\n")
    terminal.type("\x03")
    terminal.wait_for("iscard")
    terminal.type("k\n")
    shown = terminal.end().out
    if "Rolled back" not in shown:  # then nothing was displaced
        assert (place / "workspace" / "calc.py").read_text() == "# mine\n"
        return
    assert "Rolled back with the command of step 6: calc.py, half.txt" in shown
    assert "Traceback" not in shown
    assert f"to get one back: wink undo {place.name} 6 --only PATH" in shown
    assert wink("undo", place.name, "6", "--only", "calc.py").code == 0
    assert (place / "workspace" / "calc.py").read_text() == "# mine\n"
    assert not (place / "workspace" / "half.txt").exists()


SAVING = """
import os, signal, sys
from pathlib import Path
from weakincentives.cli.main import main
from weakincentives.posix import fault_hook

copies, fault, *arguments = sys.argv[1:]

def person(point):
    for file in Path(copies).glob("*/workspace/calc.py"):
        journals = [*file.parent.glob(".wink-tmp-journal-*")]
        if point == "journal.recorded" and journals and "def" in file.read_text():
            swap = file.with_name("swap")
            swap.write_text("# mine\\n")
            swap.rename(file)
        elif point == "journal.ended" and journals and fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

with fault_hook(person):
    main(arguments)
"""


@pytest.mark.parametrize("fault", ["none", "kill"])
def test_what_a_call_replaced_can_be_had_back_also_after_a_kill(
    wink: Wink, project: Path, script: Script, copies: Copies, tmp_path: Path, fault: str
):
    overwrite = {"file_path": "calc.py", "content": "new\n", "mode": "overwrite"}
    model = script({"name": "write_file", "arguments": overwrite}, "Done.")
    words = ("run", "x", "--workspace", project, "--model", model, "--sandbox", "none")
    runs = tmp_path / "places" / "state" / "wink" / "runs"
    child = [sys.executable, "-c", SAVING, str(runs), fault, *map(str, words)]
    done = preloaded.run(child)
    shown = done.stderr
    [place] = copies()
    if fault == "kill":
        assert done.returncode == -signal.SIGKILL
        model = script("Done.")
        shown = wink("run", "--continue", "--workspace", project, "--model", model).err
    found = re.search(r"Saved by you, and replaced in step (\d+): calc.py", shown)
    assert found, shown
    calc = place / "workspace" / "calc.py"
    with Timeline(steps_path(place)) as timeline:
        assert timeline.files(int(found[1])).read("calc.py").content == calc.read_text()
    assert f"to get one back: wink undo {place.name} {found[1]} --only PATH" in shown
    assert wink("undo", place.name, found[1], "--only", "calc.py").code == 0
    assert calc.read_text() == "# mine\n"


def test_a_copy_in_which_something_was_displaced_is_not_removed(
    wink: Wink, project: Path, script: Script, copies: Copies, tmp_path: Path
):
    os.mkfifo(tmp_path / "runs")
    command = f"echo > {tmp_path}/runs; sleep 100"
    model = script(shell("sh", "-c", command), "Done.")
    terminal = Terminal("run", "x", "--workspace", project, "--model", model, "--sandbox", "local")
    (tmp_path / "runs").read_bytes()
    [place] = copies()
    (place / "workspace" / "calc.py").write_text("# mine\n")
    terminal.type("\x03")
    terminal.wait_for(r"(end\)|iscard): \Z")
    terminal.type("\x04")
    terminal.end()
    assert wink("clean", "--yes").code == 0
    assert (place / "workspace").is_dir()
    wink("undo", place.name, "4")
    assert (place / "workspace" / "calc.py").read_text() == "# mine\n"
