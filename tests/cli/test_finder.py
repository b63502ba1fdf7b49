"""Timelines of runs: every run is recorded, and an argument finds its dump."""

import random
import re
import shutil
import stat
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests import preloaded
from tests.cli.workplace import CALC, FIXED, Script, Terminal, Wink, edit, write
from weakincentives.cli.runs import find_run
from weakincentives.cli.steps import open_timeline, split_arguments
from weakincentives.contrib.review.records import read_record
from weakincentives.runtime.timeline import Timeline

SECRET = "https://me:secret@models.test/v1?key=secret"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "places" / "state" / "wink" / "runs"


def run(wink: Wink, project: Path, model: str, *options: str | Path):
    return wink("run", "fix the mean", "--workspace", project, "--model", model, *options)


# --- recording ---


def test_a_run_is_one_directory(wink: Wink, project: Path, script: Script, runs: Path):
    done = run(wink, project, script(edit(), "Done."), "--discard")
    [path] = runs.glob("*/history")
    assert f" · wink log, debug or resume {path.parent.name}\n" in done.err
    assert {each.name for each in path.parent.iterdir()} == {"history", "run.json"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(runs.stat().st_mode) == 0o700
    with Timeline(path) as timeline:
        kinds = [step.kind for step in timeline.steps]
        assert kinds == ["start", "prompt", "model", "tool", "model", "end"]
        assert timeline.files(1).read("calc.py").content == CALC
        assert timeline.files(4).read("calc.py").content == FIXED
        details = timeline.step(1).details["run"]
        assert (details["task"], details["workspace"]) == ("fix the mean", str(project))
        assert details["model"].startswith("scripted:")


def test_no_dump_records_nothing(wink: Wink, project: Path, script: Script, runs: Path):
    done = run(wink, project, script(edit(), "Done."), "--discard", "--no-dump")
    assert done.code == 0
    assert "wink log" not in done.err
    assert list(runs.iterdir()) == []


def test_a_disk_that_fills_up_ends_the_recording_and_not_the_run(
    project: Path, script: Script, own_places: None, runs: Path
):
    noise = [random.Random(number).randbytes(6_000).hex() for number in range(3)]
    model = script(*(write(f"{number}.txt", each) for number, each in enumerate(noise)), "Done.")
    code = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (36_000, 36_000))\n" + _MAIN
    )
    arguments = ["run", "x", "--workspace", str(project), "--model", model, "--sandbox", "none"]
    ended = preloaded.run([sys.executable, "-c", code, *arguments])
    assert ended.returncode == 3, ended.stderr
    assert "wink: the steps are not all recorded: Recording stopped after step" in ended.stderr
    [path] = runs.glob("*/history")
    with Timeline(path) as timeline:
        assert timeline.verify() == []
        assert timeline.last > 4
        assert timeline.files(timeline.last).read("0.txt", limit=-1).content == noise[0]


def test_credentials_in_the_address_of_a_server_are_not_recorded(
    wink: Wink, project: Path, script: Script, runs: Path
):
    run(wink, project, script("Done."), "--base-url", SECRET)
    [path] = runs.glob("*/history")
    with Timeline(path) as timeline:
        assert timeline.step(1).details["run"]["base_url"] == "https://models.test/v1"


def test_ctrl_c_leaves_a_whole_recording(
    project: Path, script: Script, own_places: None, runs: Path
):
    wait = {
        "name": "shell_execute",
        "arguments": {"command": ["sh", "-c", "echo begun; sleep 100"]},
    }
    terminal = Terminal(
        "run", "x", "--workspace", project, "--model", script(edit(), wait), "--sandbox", "local"
    )
    terminal.wait_for("edit_file")
    terminal.type("\x03")
    terminal.wait_for(r"iscard")
    terminal.type("d\n")
    terminal.end()
    [path] = runs.glob("*/history")
    with Timeline(path) as timeline:
        assert timeline.problem is None
        assert timeline.step(timeline.last).kind == "end"
        assert timeline.files(timeline.last).read("calc.py").content == FIXED


def test_a_killed_run_can_be_read_up_to_the_step_in_flight(
    project: Path, script: Script, own_places: None, runs: Path, tmp_path: Path
):
    number = tmp_path / "pid"
    command = ["sh", "-c", f"kill -9 $(cat {number})"]
    kill = {"name": "shell_execute", "arguments": {"command": command}}
    model = script(edit(), write("new.txt"), kill, "Done.")
    code = f"import os; open({str(number)!r}, 'w').write(str(os.getpid()))\n{_MAIN}"
    arguments = ["run", "x", "--workspace", str(project), "--model", model, "--sandbox", "local"]
    ended = preloaded.run([sys.executable, "-c", code, *arguments])
    assert ended.returncode == -9, ended.stderr
    [path] = runs.glob("*/history")
    with Timeline(path) as timeline:
        last = timeline.step(timeline.last)
        assert (last.kind, last.details["tool_calls"]) == ("model", ["shell_execute"])
        assert timeline.files(last.number).exists("new.txt")


_MAIN = "from weakincentives.cli.main import main; main()"


# --- what is left out ---


@pytest.fixture
def cluttered(project: Path) -> Path:
    """Return the project with files that can be had again."""
    for path, text in {
        ".gitignore": "*.log\nbuild/\n",
        ".git/HEAD": "ref: refs/heads/main\n",
        "node_modules/a/index.js": "code\n",
        "env/pyvenv.cfg": "home = /usr\n",
        "build/out.bin": "built\n",
        "debug.log": "old\n",
    }.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text)
    return project


LEFT_OUT = [".git", "build", "debug.log", "env", "node_modules"]


def test_what_can_be_had_again_is_left_out_and_named(
    wink: Wink, cluttered: Path, script: Script, tmp_path: Path
):
    dumps = tmp_path / "dumps"
    done = run(wink, cluttered, script(edit(), "Done."), "--dump", dumps)
    assert "  skipped (reproducible): .git, build, debug.log and 2 more" in done.err
    [archive] = dumps.glob("*.fs.zip")
    files = set(ZipFile(archive).namelist())
    assert any(name.endswith("calc.py") for name in files)
    assert not any(
        part in name for name in files for part in ("HEAD", "index.js", "pyvenv", "out.bin")
    )
    with open_timeline("last") as timeline:
        assert sorted(timeline.step(1).details["left_out"]) == LEFT_OUT
        assert set(timeline.entries(1)) == {".gitignore", "calc.py", "docs", "docs/notes.md"}


def test_everything_is_kept_on_request(wink: Wink, cluttered: Path, script: Script):
    model = script(edit(), "Done.")
    done = wink("run", "x", "--workspace", cluttered, "--model", model, "--dump-all", "--json")
    assert done.last["left_out"] == []
    with open_timeline("last") as timeline:
        assert {"node_modules/a/index.js", "build/out.bin"} <= set(timeline.entries(1))


def test_an_ignored_file_that_the_model_writes_is_recorded(
    wink: Wink, cluttered: Path, script: Script, tmp_path: Path
):
    dumps = tmp_path / "dumps"
    # the directory of the last one is new, and ignored as well
    paths = ("build/new.txt", "src/node_modules/new.js")
    calls = [write("debug.log", "of the model\n"), *map(write, paths), edit()]
    calls[0]["arguments"]["mode"] = "overwrite"
    run(wink, cluttered, script(*calls, "Done."), "--dump", dumps)
    with open_timeline("last") as timeline:
        last = timeline.files(timeline.last)
        assert last.read("debug.log").content == "of the model\n"
        assert all(map(last.exists, paths))
        assert not last.exists("build/out.bin")
    [path] = dumps.glob("*.fs.zip")
    with ZipFile(path) as archive:
        names = archive.namelist()
        assert all(any(name.endswith(each) for name in names) for each in ("debug.log", *paths))
        assert not any(name.endswith("out.bin") for name in names)


def test_a_resumed_run_has_again_what_was_left_out(
    wink: Wink, cluttered: Path, script: Script, tmp_path: Path
):
    run(wink, cluttered, script(edit(), write("debug.log", "new\n"), "Done."))
    runs = tmp_path / "places" / "state" / "wink" / "runs"
    [copy] = runs.iterdir()
    shutil.rmtree(copy / "workspace")
    again = script({"name": "read_file", "arguments": {"file_path": "build/out.bin"}}, "Done.")
    done = wink("resume", "last", "go on", "--model", again, "--json")
    assert done.call["success"], done.call
    [copy] = runs.iterdir()
    for path in ("node_modules/a/index.js", "env/pyvenv.cfg", ".git/HEAD"):
        assert (copy / "workspace" / path).read_bytes() == (cluttered / path).read_bytes()
    assert [each["path"] for each in done.last["changes"]] == ["calc.py"]


# --- finding a run ---


def test_a_run_is_found_by_every_name_it_has(wink: Wink, project: Path, script: Script, runs: Path):
    run(wink, project, script(edit(), "Done."))
    [place] = runs.iterdir()
    steps = place / "history"
    names = [place.name, place.name[:4], read_record(place).session_id, "last"]
    for name in [*names, place, place / "workspace", steps]:
        found = find_run(str(name))
        assert (found.place, found.steps) == (place, steps), name
    other = shutil.copytree(steps, runs.parent / "other.timeline")
    found = find_run(str(other))
    assert (found.place, found.steps) == (None, other)


def test_the_last_run_is_the_one_that_began_or_was_continued_last(
    wink: Wink, project: Path, script: Script
):
    first, second = (
        run(wink, project, script("Done."), "--json").last["timeline"] for _ in range(2)
    )
    assert find_run("last", "steps").steps == Path(second)
    model = script("More.")
    wink("resume", Path(first).parent.name, "more", "--model", model)
    assert find_run("last", "steps").steps == Path(first)


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("last", "No runs are kept in '.*'; start one with wink run"),
        ("0123abcd", "Run not found: '0123abcd'; `wink review` lists the runs"),
        ("/nowhere/x.timeline", "Run not found: '/nowhere/x.timeline'; `wink review` lists"),
        ("{}/project/calc.py", "Not a timeline: .*; `wink review` lists the runs"),
        ("{}/other.timeline", "Not a timeline: .*; `wink review` lists the runs"),
    ],
)
def test_what_is_no_run_is_said_with_what_to_do(
    argument: str, says: str, wink: Wink, project: Path, tmp_path: Path
):
    (tmp_path / "other.timeline").write_text("mine")
    done = wink("log", argument.format(tmp_path))
    assert done.code == 1
    assert len(done.err.splitlines()) == 1
    assert re.search(says, done.err), done.err


def test_a_run_of_an_earlier_version_gets_a_sentence_and_is_kept(
    wink: Wink, project: Path, script: Script, runs: Path
):
    run(wink, project, script(edit(), "Done."))
    [place] = runs.iterdir()
    (place / "run.json").write_text('{"session_id": "x", "task": "x"}')
    shutil.rmtree(place / "history")
    done = wink("review", place.name)
    assert (done.code, "The record of the working copy is damaged" in done.err) == (1, True)
    assert wink("log", place.name).code == 1
    assert wink("clean", "--yes").code == 0
    assert (place / "workspace" / "calc.py").read_text() == FIXED


# --- arguments ---


def test_numbers_and_branches_are_steps_and_everything_else_is_a_run():
    assert split_arguments(["5"], most=1, command="show") == ("last", [("5", None)])
    assert split_arguments(["x", "5:a b"], most=1, command="show") == ("x", [("5", "a b")])
    assert split_arguments(["@try:a", "7"], most=2, command="diff") == (
        "last",
        [("@try", "a"), ("7", None)],
    )
    assert split_arguments(["./5"], most=1, command="show") == ("./5", [])
