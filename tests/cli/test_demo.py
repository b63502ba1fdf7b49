"""`wink demo`: the story it shows is real, on a terminal and without one."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.text import Text

from tests.preloaded import PreloadedProcess, run
from weakincentives.adapters import ScriptedAdapter, ScriptError, ToolCall
from weakincentives.cli.demo.command import PROJECT, StoryError, play_story, tree_hash
from weakincentives.cli.main import main
from weakincentives.cli.run.view import View
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
    command = [sys.executable, "-m", "weakincentives", "demo", *arguments]
    return run(command, env={**os.environ, **environment})


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(["demo", *arguments])
    assert exit_.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


class Steps(View):
    """Keeps the facts of each step, and the text of them all."""

    def __init__(self) -> None:
        self.facts: dict[str, dict[str, Any]] = {}
        self.text = ""

    def emit(self, event: str, facts: Mapping[str, object], text: str | Text | None = None) -> None:
        if facts:
            self.facts[event] = dict(facts)
        self.text += f"{text or ''}\n"


def play(place: Path, model: ScriptedAdapter | None = None) -> Steps:
    (place / "project").mkdir()
    steps = Steps()
    play_story(
        place / "project", store=place / "store", dump=place / "dump", view=steps, model=model
    )
    return steps


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def steps(place: Path) -> dict[str, dict[str, Any]]:
    return play(place).facts


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept") / "new" / "place"


@pytest.fixture(scope="module")
def shown(kept: Path) -> str:
    done = wink("--keep", str(kept), FORCE_COLOR="", NO_COLOR="")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_steps_come_in_order_as_json_and_nothing_is_left_behind(tmp_path: Path):
    done = wink("--json", TMPDIR=str(tmp_path))
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [step["step"] for step in told] == _STEPS
    assert all(step["title"] and step["call"] and step["seconds"] >= 0 for step in told)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_the_bug_is_real_and_the_repair_too(steps: dict[str, dict[str, Any]]):
    assert steps["test"]["exit_codes"] == [1]
    assert "AssertionError: 999 != 1000" in steps["test"]["calls"][-1]["answer"]
    assert steps["fix"]["exit_codes"] == [0]
    assert "Ran 4 tests" in steps["fix"]["calls"][-1]["answer"]


def test_the_mistake_changes_files_past_the_tools_and_breaks_a_test(
    steps: dict[str, dict[str, Any]],
):
    spoilt, tested = steps["mistake"]["calls"]
    assert {"bills/money.py", "bills/split.py", "bills/receipt.py.bak"} <= set(spoilt["paths"])
    assert "ERROR: test_the_receipt_names_everybody" in tested["answer"]


def test_the_rollback_brings_back_the_tree_of_before(steps: dict[str, dict[str, Any]]):
    facts = steps["rollback"]
    assert facts["before"] == facts["now"] != facts["broken"]


def test_whatever_it_must_not_do_is_refused_or_stopped(steps: dict[str, dict[str, Any]]):
    escape, everything, half_edit, endless = steps["attacks"]["calls"]
    assert not escape["success"]
    assert not everything["success"]
    assert not half_edit["success"]
    assert "escapes root" in escape["answer"]
    assert "None of the 2 edits was applied" in half_edit["answer"]
    assert "timed out" in endless["answer"]


def test_no_command_gets_out_of_the_sandbox(steps: dict[str, dict[str, Any]]):
    assert steps["copy"]["isolation"] == "bubblewrap"
    assert steps["escapes"]["exit_codes"] == [1, 1, 1]
    assert not Path("/usr/bin/planted").exists()


def test_without_a_sandbox_the_story_says_so_and_tries_no_escape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(probe, "ISOLATED", {"bubblewrap": Missing})
    steps = play(tmp_path)
    assert [name for name in _STEPS if name not in steps.facts] == ["escapes"]
    assert steps.facts["copy"]["isolation"] == "none"
    assert "no sandbox with this Python works here" in steps.text


def test_only_the_repair_is_left_in_the_project(steps: dict[str, dict[str, Any]], place: Path):
    left = files_below(place / "project")
    shipped = files_below(PROJECT)
    assert {path for path in left if left[path] != shipped.get(path)} == {
        "bills/split.py",
        "test_bills.py",
    }
    assert left.keys() == shipped.keys()
    assert steps["diff"]["files"] == ["bills/split.py", "test_bills.py"]


def test_the_patch_turns_the_shipped_project_into_the_repaired_one(
    steps: dict[str, dict[str, Any]], place: Path, tmp_path: Path
):
    for name, content in files_below(PROJECT).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    patch = str(steps["diff"]["patch"])
    subprocess.run(["git", "apply"], cwd=tmp_path, input=patch, text=True, check=True)
    assert files_below(tmp_path) == files_below(place / "project")


def test_the_dump_holds_the_files_and_every_call(steps: dict[str, dict[str, Any]], place: Path):
    memory = InMemoryFilesystem()
    loaded = load_dump(place / "dump" / "demo.jsonl", [VirtualFileSystem], filesystem=memory)
    with HostFilesystem(place / "project") as project:
        assert tree_hash(memory) == tree_hash(project) == steps["dump"]["tree"]
    told = [call for step in steps.values() for call in step.get("calls", ())]
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


def test_a_call_that_comes_out_differently_ends_the_story(tmp_path: Path):
    looks = [ToolCall("ls", {"path": "."}), ToolCall("ls", {"path": "."})]
    other = [ToolCall("read_file", {"file_path": "not there"}), ToolCall("ls", {})]
    with pytest.raises(StoryError, match="Unexpected result: read_file"):
        play(tmp_path, ScriptedAdapter([looks, other, looks, "I am done."]))


def test_a_run_that_fails_ends_the_story_with_its_error(tmp_path: Path):
    looks = [ToolCall("ls", {"path": "."}), ToolCall("ls", {"path": "."})]
    with pytest.raises(ScriptError, match="The script has only 1 step"):
        play(tmp_path, ScriptedAdapter([looks]))


def test_a_run_that_answers_too_early_ends_the_story(tmp_path: Path):
    looks = [ToolCall("ls", {"path": "."}), ToolCall("ls", {"path": "."})]
    with pytest.raises(StoryError, match="before step 'test'"):
        play(tmp_path, ScriptedAdapter([looks, "I am done."]))


def test_a_pipe_gets_plain_text_that_names_every_step(shown: str, steps: dict[str, dict[str, Any]]):
    assert "\x1b" not in shown
    assert all(step["title"] in shown for step in steps.values())


def test_the_calls_are_shown_as_a_run_shows_them(shown: str):
    assert re.search(r"^  edit_file      bills/split.py  \d+ ms$", shown, re.MULTILINE)
    assert re.search(
        r"^  shell_execute  python3 -m unittest  failed \(exit 1\)", shown, re.MULTILINE
    )
    assert "AssertionError: 999 != 1000" in shown


def test_no_line_ends_in_blanks(shown: str):
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


def test_no_color_turns_colour_off() -> None:
    assert "\x1b[" in wink(FORCE_COLOR="1", NO_COLOR="").stdout
    assert "\x1b[" not in wink(FORCE_COLOR="1", NO_COLOR="1").stdout


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


def test_the_picture_shows_every_step(tmp_path: Path, steps: dict[str, dict[str, Any]]):
    assert wink("--svg", str(tmp_path / "demo.svg"), NO_COLOR="").returncode == 0
    assert_shows(tmp_path / "demo.svg", steps)


def test_the_picture_in_the_documents_undoes_a_command_and_keeps_what_came_later():
    picture = ROOT / "docs" / "undo.svg"
    words = "".join(ElementTree.parse(picture).getroot().itertext()).replace("\xa0", " ")
    before, _, after = words.partition("$ wink mcp . --undo 1")
    for part in ("README.md", "bills/receipt.py", "bills/split.py", "test_bills.py", "notes.txt"):
        assert part in before.partition("git status")[2]
    assert "Undid call 1 (shell_execute by claude-code" in after
    status = after.partition("git status --short")[2]
    kept = ("test_bills.py", "notes.txt", "README.md")
    assert [each in status for each in kept] == [True, True, False]
    assert "cdnjs" not in picture.read_text()


def assert_shows(picture: Path, steps: dict[str, dict[str, Any]]) -> None:
    words = " ".join(ElementTree.parse(picture).getroot().itertext()).replace("\xa0", " ")
    assert [each for step in steps.values() if (each := step["title"]) not in words] == []
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
    with PreloadedProcess(command, stdout=subprocess.PIPE, text=True) as process:
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
