"""Timelines of runs: every run is recorded, and an argument finds its dump."""

import os
import random
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.cli.workplace import CALC, FIXED, Script, Terminal, Wink, edit, write
from weakincentives.cli.dumps import find_dump, find_timeline, open_timeline, split_arguments
from weakincentives.runtime.timeline import Timeline

SECRET = "https://me:secret@models.test/v1?key=secret"


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    return tmp_path / "places" / "state" / "wink" / "dumps"


def run(wink: Wink, project: Path, model: str, *options: str | Path):
    return wink("run", "fix the mean", "--workspace", project, "--model", model, *options)


# --- recording ---


def test_a_run_is_recorded_beside_its_dump(wink: Wink, project: Path, script: Script, dumps: Path):
    done = run(wink, project, script(edit(), "Done."), "--discard")
    [path] = dumps.glob("*.timeline")
    assert path.with_suffix(".jsonl").exists()
    assert f"wink log {path.name[:8]}\n" in done.err
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(dumps.stat().st_mode) == 0o700
    with Timeline(path) as timeline:
        kinds = [step.kind for step in timeline.steps]
        assert kinds == ["start", "prompt", "model", "tool", "model", "end"]
        assert timeline.files(1).read("calc.py").content == CALC
        assert timeline.files(4).read("calc.py").content == FIXED
        details = timeline.step(1).details["run"]
        assert (details["task"], details["workspace"]) == ("fix the mean", str(project))
        assert details["model"].startswith("scripted:")


def test_no_dump_records_nothing(wink: Wink, project: Path, script: Script, dumps: Path):
    done = run(wink, project, script(edit(), "Done."), "--discard", "--no-dump")
    assert done.code == 0
    assert "wink log" not in done.err
    assert not dumps.exists()


def test_a_recording_that_cannot_be_written_costs_nobody_the_work(
    wink: Wink, project: Path, script: Script, tmp_path: Path
):
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "x"
    done = run(wink, project, script(edit(), "Done."), "--apply", "--dump", place)
    assert done.code == 0
    assert "wink: the steps are not all recorded: Not a directory" in done.err
    assert (project / "calc.py").read_text() == FIXED


def test_a_disk_that_fills_up_ends_the_recording_and_not_the_run(
    project: Path, script: Script, own_places: None, dumps: Path
):
    noise = [random.Random(number).randbytes(6_000).hex() for number in range(3)]
    model = script(*(write(f"{number}.txt", each) for number, each in enumerate(noise)), "Done.")
    code = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n" + _MAIN
    )
    arguments = ["run", "x", "--workspace", str(project), "--model", model, "--sandbox", "none"]
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=False, capture_output=True, text=True
    )
    assert ended.returncode == 3, ended.stderr
    assert "wink: the steps are not all recorded: Recording stopped after step" in ended.stderr
    [path] = dumps.glob("*.timeline")
    with Timeline(path) as timeline:
        assert timeline.verify() == []
        assert timeline.last > 4
        assert timeline.files(timeline.last).read("0.txt", limit=-1).content == noise[0]


def test_credentials_in_the_address_of_a_server_are_not_recorded(
    wink: Wink, project: Path, script: Script, dumps: Path
):
    run(wink, project, script("Done."), "--base-url", SECRET)
    [path] = dumps.glob("*.timeline")
    with Timeline(path) as timeline:
        assert timeline.step(1).details["run"]["base_url"] == "https://models.test/v1"


def test_ctrl_c_leaves_a_whole_recording(
    project: Path, script: Script, own_places: None, dumps: Path
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
    [path] = dumps.glob("*.timeline")
    with Timeline(path) as timeline:
        assert timeline.problem is None
        assert timeline.step(timeline.last).kind == "end"
        assert timeline.files(timeline.last).read("calc.py").content == FIXED


def test_a_killed_run_can_be_read_up_to_the_step_in_flight(
    project: Path, script: Script, own_places: None, dumps: Path, tmp_path: Path
):
    number = tmp_path / "pid"
    command = ["sh", "-c", f"kill -9 $(cat {number})"]
    kill = {"name": "shell_execute", "arguments": {"command": command}}
    model = script(edit(), write("new.txt"), kill, "Done.")
    code = f"import os; open({str(number)!r}, 'w').write(str(os.getpid()))\n{_MAIN}"
    arguments = ["run", "x", "--workspace", str(project), "--model", model, "--sandbox", "local"]
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=False, capture_output=True
    )
    assert ended.returncode == -9, ended.stderr
    [path] = dumps.glob("*.timeline")
    assert not path.with_suffix(".jsonl").exists()
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
    wink: Wink, cluttered: Path, script: Script, dumps: Path
):
    done = run(wink, cluttered, script(edit(), "Done."), "--dump", dumps)
    assert "  left out, since they can be had again: .git, build, debug.log and 2 more" in done.err
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
    wink: Wink, cluttered: Path, script: Script, dumps: Path
):
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
    with ZipFile(find_dump("last").archive) as archive:
        names = archive.namelist()
        assert all(any(name.endswith(each) for name in names) for each in ("debug.log", *paths))
        assert not any(name.endswith("out.bin") for name in names)


def test_a_resumed_run_has_again_what_was_left_out(
    wink: Wink, cluttered: Path, script: Script, tmp_path: Path
):
    run(wink, cluttered, script(edit(), write("debug.log", "new\n"), "Done."))
    runs = tmp_path / "places" / "state" / "wink" / "runs"
    shutil.rmtree(runs)
    again = script({"name": "read_file", "arguments": {"file_path": "build/out.bin"}}, "Done.")
    done = wink("resume", "last", "go on", "--model", again, "--json")
    assert done.call["success"], done.call
    [copy] = runs.iterdir()
    for path in ("node_modules/a/index.js", "env/pyvenv.cfg", ".git/HEAD"):
        assert (copy / "workspace" / path).read_bytes() == (cluttered / path).read_bytes()
    assert [each["path"] for each in done.last["changes"]] == ["calc.py"]


# --- finding a dump ---


def test_a_dump_is_found_by_every_name_it_has(
    wink: Wink, project: Path, script: Script, dumps: Path, tmp_path: Path
):
    run(wink, project, script(edit(), "Done."), "--dump", dumps)
    [path] = dumps.glob("*.timeline")
    [copy] = (tmp_path / "places" / "state" / "wink" / "runs").iterdir()
    stem = path.with_suffix("")
    names = [path, stem, stem.with_suffix(".jsonl"), f"{stem}.fs.zip", stem.name, stem.name[:8]]
    for name in [*names, "last", copy, copy.name, dumps]:
        assert find_timeline(str(name)) == path, name


def test_the_last_dump_is_the_one_that_changed_last(
    wink: Wink, project: Path, script: Script, dumps: Path
):
    for _ in range(2):
        run(wink, project, script("Done."))
    first, second = (each.with_suffix("") for each in sorted(dumps.glob("*.timeline")))
    for older, newer in ((first, second), (second, first)):
        for each in dumps.iterdir():
            os.utime(each, (1, 1) if each.name.startswith(older.name) else (2, 2))
        assert find_dump("last").stem == newer


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("last", "There are no dumps in '.*'; wink run writes them"),
        ("0123abcd", "There is no dump '0123abcd': it is not a file, and no session in"),
        ("/nowhere/x.timeline", "There is no dump '/nowhere/x.timeline'; pass a .timeline file"),
        ("{}/project", "There are no dumps in"),
        ("{}/project/calc.py", "Not a dump: '.*calc.py'; pass a file with the suffix .timeline"),
        ("{}/old.jsonl", "The steps were not recorded: .*old.timeline' does not exist;"),
        ("{}/other.timeline", "Not a timeline: .*; pass a .timeline file"),
    ],
)
def test_what_is_no_dump_is_said_with_what_to_do(
    argument: str, says: str, wink: Wink, project: Path, tmp_path: Path
):
    (tmp_path / "old.jsonl").write_text("")
    (tmp_path / "other.timeline").write_text("mine")
    done = wink("log", argument.format(tmp_path))
    assert done.code == 1
    assert len(done.err.splitlines()) == 1
    assert re.search(says, done.err), done.err


def test_a_prefix_of_several_sessions_names_them(wink: Wink, dumps: Path):
    dumps.mkdir(parents=True)
    for name in ("aa1", "aa2", "ab"):
        (dumps / f"{name}.timeline").write_text("")
    done = wink("log", "aa")
    assert "Several dumps begin with 'aa': aa1, aa2; type more of it" in done.err
    assert find_dump("ab").timeline == dumps / "ab.timeline"


# --- arguments ---


def test_numbers_and_branches_are_steps_and_everything_else_is_a_dump():
    assert split_arguments(["5"], most=1, command="show") == ("last", [("5", None)])
    assert split_arguments(["x", "5:a b"], most=1, command="show") == ("x", [("5", "a b")])
    assert split_arguments(["@try:a", "7"], most=2, command="diff") == (
        "last",
        [("@try", "a"), ("7", None)],
    )
    assert split_arguments(["./5"], most=1, command="show") == ("./5", [])
