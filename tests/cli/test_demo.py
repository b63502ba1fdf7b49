"""`wink demo`: the story it shows is real, on a terminal and without one."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest

from weakincentives.adapters import ScriptError, ToolCall
from weakincentives.cli.demo import command as demo_command
from weakincentives.cli.demo.command import PROJECT, play_story, tree_hash
from weakincentives.cli.demo.script import ATTEMPT, SCRIPT, ScriptedCall
from weakincentives.cli.demo.view import Step, StoryError, show
from weakincentives.cli.main import main
from weakincentives.contrib.tools import VirtualFileSystem
from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import load_dump
from weakincentives.sandbox import SandboxUnavailableError, probe

ROOT = Path(__file__).parents[2]

_STEPS = [
    *("copy", "explore", "test", "mistake", "rollback"),
    *("fix", "attacks", "escapes", "diff", "dump"),
]


class Missing:
    def __init__(self, *arguments: object, **options: object) -> None:
        raise SandboxUnavailableError("it is not installed: install it")


def wink(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weakincentives", "demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(["demo", *arguments])
    assert exit_.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def play(place: Path) -> dict[str, Step]:
    (place / "project").mkdir()
    with play_story(place / "project", store=place / "store", dump=place / "dump") as steps:
        return {step.name: step for step in steps}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def steps(place: Path) -> dict[str, Step]:
    return play(place)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept") / "new" / "place"


@pytest.fixture(scope="module")
def shown(kept: Path) -> str:
    done = wink("--keep", str(kept), FORCE_COLOR="", NO_COLOR="")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def calls_of(step: Step) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", step.facts["calls"])


def test_the_steps_come_in_order_as_json_and_nothing_is_left_behind(tmp_path: Path):
    done = wink("--json", TMPDIR=str(tmp_path))
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [step["step"] for step in told] == _STEPS
    assert all(step["title"] and step["call"] and step["seconds"] >= 0 for step in told)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_the_bug_is_real_and_the_repair_too(steps: dict[str, Step]):
    assert steps["test"].facts["exit_codes"] == [1]
    assert "AssertionError: 999 != 1000" in calls_of(steps["test"])[-1]["answer"]
    assert steps["fix"].facts["exit_codes"] == [0]
    assert "Ran 4 tests" in calls_of(steps["fix"])[-1]["answer"]


def test_the_mistake_changes_files_past_the_tools_and_breaks_a_test(steps: dict[str, Step]):
    spoilt, tested = calls_of(steps["mistake"])
    assert {"bills/money.py", "bills/split.py", "bills/receipt.py.bak"} <= set(spoilt["paths"])
    assert "ERROR: test_the_receipt_names_everybody" in tested["answer"]


def test_the_rollback_brings_back_the_tree_of_before(steps: dict[str, Step]):
    facts = steps["rollback"].facts
    assert facts["before"] == facts["now"] != facts["broken"]


def test_whatever_it_must_not_do_is_refused_or_stopped(steps: dict[str, Step]):
    escape, everything, half_edit, endless = calls_of(steps["attacks"])
    assert not escape["success"]
    assert not everything["success"]
    assert not half_edit["success"]
    assert "escapes root" in escape["answer"]
    assert "None of the 2 edits was applied" in half_edit["answer"]
    assert "timed out" in endless["answer"]


def test_no_command_gets_out_of_the_sandbox(steps: dict[str, Step]):
    assert steps["copy"].facts["isolation"] == "bubblewrap"
    assert steps["escapes"].facts["exit_codes"] == [1, 1, 1]
    assert not Path("/usr/bin/planted").exists()


def test_without_a_sandbox_the_story_says_so_and_tries_no_escape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(probe, "ISOLATED", {"bubblewrap": Missing})
    steps = play(tmp_path)
    assert [name for name in _STEPS if name not in steps] == ["escapes"]
    assert steps["copy"].facts["isolation"] == "none"
    said = "".join(text for each in steps["copy"].lines for text, _ in each.pieces)
    assert "no sandbox with this Python works here" in said


def test_only_the_repair_is_left_in_the_project(steps: dict[str, Step], place: Path):
    left = files_below(place / "project")
    shipped = files_below(PROJECT)
    assert {path for path in left if left[path] != shipped.get(path)} == {
        "bills/split.py",
        "test_bills.py",
    }
    assert left.keys() == shipped.keys()
    assert steps["diff"].facts["files"] == ["bills/split.py", "test_bills.py"]


def test_the_patch_turns_the_shipped_project_into_the_repaired_one(
    steps: dict[str, Step], place: Path, tmp_path: Path
):
    for name, content in files_below(PROJECT).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    patch = str(steps["diff"].facts["patch"])
    subprocess.run(["git", "apply"], cwd=tmp_path, input=patch, text=True, check=True)
    assert files_below(tmp_path) == files_below(place / "project")


def test_the_dump_holds_the_files_and_every_call(steps: dict[str, Step], place: Path):
    memory = InMemoryFilesystem()
    loaded = load_dump(place / "dump" / "demo.jsonl", [VirtualFileSystem], filesystem=memory)
    with HostFilesystem(place / "project") as project:
        assert tree_hash(memory) == tree_hash(project) == steps["dump"].facts["tree"]
    told = [call for step in steps.values() if "calls" in step.facts for call in calls_of(step)]
    kept = loaded.session[ToolInvoked].all()
    # calls that only read run at the same time, and end in any order
    assert sorted((call.tool, call.success) for call in kept) == sorted(
        (call["tool"], call["success"]) for call in told
    )


def test_a_tree_hash_sees_permissions_links_and_empty_directories(tmp_path: Path):
    (tmp_path / "file").write_text("same")
    with HostFilesystem(tmp_path) as files:
        hashes = {tree_hash(files)}
        (tmp_path / "file").chmod(0o755)
        hashes.add(tree_hash(files))
        (tmp_path / "empty").mkdir()
        hashes.add(tree_hash(files))
        (tmp_path / "link").symlink_to("file")
        hashes.add(tree_hash(files))
    assert len(hashes) == 4


def test_a_call_that_comes_out_differently_ends_the_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = ToolCall("read_file", {"file_path": "not there"}, "test-1")
    tests = ToolCall("ls", {}, "test-2")
    monkeypatch.setattr(demo_command, "SCRIPT", (SCRIPT[0], [other, tests], *SCRIPT[2:]))
    with pytest.raises(StoryError, match="Unexpected result: read_file"):
        play(tmp_path)


def test_a_run_that_fails_ends_the_story_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(demo_command, "SCRIPT", SCRIPT[:1])
    with pytest.raises(ScriptError, match="The script has only 1 step"):
        play(tmp_path)


def test_a_run_that_answers_too_early_ends_the_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(demo_command, "SCRIPT", (SCRIPT[0], "I am done."))
    with pytest.raises(StoryError, match="before step 'test'"):
        play(tmp_path)


def test_who_stops_watching_stops_the_agent(tmp_path: Path):
    (tmp_path / "project").mkdir()
    before = set(threading.enumerate())
    with play_story(tmp_path / "project", store=tmp_path / "s", dump=tmp_path / "d") as steps:
        assert [next(steps).name for _ in range(2)] == ["copy", "explore"]
        assert set(threading.enumerate()) > before
    assert set(threading.enumerate()) <= before


def test_a_pipe_gets_plain_text_that_names_every_step(shown: str, steps: dict[str, Step]):
    assert "\x1b" not in shown
    assert all(step.title in shown for step in steps.values())


def test_what_the_agent_calls_is_shown_without_its_long_arguments(shown: str):
    calls: list[ScriptedCall] = [each for turn in ATTEMPT.turns for each in turn.calls]
    assert all(f"> {each}\n" in shown for each in calls)
    assert 'edit_file(file_path="bills/split.py", old_string=..., new_string=...)' in shown


def test_no_line_is_wider_than_a_terminal_shows_nor_ends_in_blanks(shown: str):
    story = shown.partition("Try next:")[0]  # commands are not wrapped
    assert max(map(len, story.splitlines())) <= 96
    assert [line for line in shown.splitlines() if line != line.rstrip()] == []


def test_it_ends_with_commands_that_can_be_given_like_that(shown: str):
    ending = shown.partition("Try next:")[2]
    commands = re.findall(r"(?<=  )(?:\(cd|wink) .*", ending)
    assert len(commands) == 4
    for each in commands:
        program = [sys.executable, "-m", "weakincentives"]
        command = re.sub(r"^wink(?= )", shlex.join(program), each)
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)  # noqa: S602  # as a person types it
        assert done.returncode == 0, (each, done.stderr)


def test_colour_is_for_terminals_and_no_color_turns_it_off(
    steps: dict[str, Step], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    for off in ("", "1"):
        monkeypatch.setenv("NO_COLOR", off)
        show(steps.values(), keep=None, svg=None)
        assert ("\x1b[" in capsys.readouterr().out) is not bool(off)


def test_a_narrow_terminal_gets_narrow_lines(
    steps: dict[str, Step], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "COLUMNS": "40"}.items():
        monkeypatch.setenv(name, value)
    show(steps.values(), keep=None, svg=None)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 42  # a command is not wrapped


def test_the_repaired_project_and_the_session_can_be_kept(shown: str, kept: Path):
    assert str(kept) in shown.replace("\n", "")
    tested = subprocess.run([sys.executable, "-B", "-m", "unittest"], cwd=kept, check=False)
    assert tested.returncode == 0
    assert {path.name for path in (kept / "session").iterdir()} >= {
        "demo.jsonl",
        "demo.fs.zip",
        "demo.timeline",
    }


def test_a_directory_with_files_in_it_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "mine.txt").write_text("mine")
    said = refusal(capsys, "--keep", str(tmp_path))
    assert re.fullmatch(r"wink: --keep needs a new or empty directory, .*\n", said)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_picture_of_data_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    said = refusal(capsys, "--json", "--svg", str(tmp_path / "x.svg"))
    assert said == "wink: --json and --svg exclude each other; use one\n"


def test_the_picture_shows_every_step(
    tmp_path: Path, steps: dict[str, Step], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NO_COLOR", "")
    show(steps.values(), keep=None, svg=tmp_path / "demo.svg")
    assert_shows(tmp_path / "demo.svg", steps)


def test_the_picture_in_the_documents_shows_a_run_from_the_task_to_the_decision():
    picture = ROOT / "docs" / "demo.svg"
    words = "".join(ElementTree.parse(picture).getroot().itertext()).replace("\xa0", " ")
    for part in ("$ wink run", "failed (exit 1)", "diff --git a/bills", "[a]pply", "[r]eply"):
        assert part in words
    assert "cdnjs" not in picture.read_text()


def assert_shows(picture: Path, steps: dict[str, Step]) -> None:
    words = " ".join(ElementTree.parse(picture).getroot().itertext()).replace("\xa0", " ")
    assert [step.title for step in steps.values() if step.title not in words] == []
    assert picture.stat().st_size < 300_000
    assert "cdnjs" not in picture.read_text()


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.slow
def test_open_shows_the_session_of_the_demo(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "weakincentives", "demo", "--json", "--open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(len(_STEPS) + 1)]
        found = lines[-1]
        request = urllib.request.Request(
            f"{found['url'].partition('?')[0]}api/sessions",
            headers={"Authorization": f"Bearer {found['token']}"},
        )
        with urllib.request.urlopen(request) as answer:
            (session,) = json.load(answer)
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0
    assert session["name"] == "demo"
    assert session["failed_calls"] > 0
