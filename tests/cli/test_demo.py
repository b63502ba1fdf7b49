"""`wink demo`: a story that is true, whoever watches it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from weakincentives.cli.demo_story import PROJECT, Step, Story, StoryError

ROOT = Path(__file__).parents[2]

_STEPS = ["mount", "test", "grep", "read", "write", "test again", "events", "attacks", "tree"]


def wink(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weakincentives", "demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture
def steps(tmp_path: Path) -> dict[str, Step]:
    return {step.name: step for step in Story(tmp_path).steps()}


def test_the_steps_come_in_order_as_one_json_object_each():
    done = wink("--json")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [step["step"] for step in told] == _STEPS
    assert all(step["title"] and step["call"] for step in told)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_bug_is_real_and_the_repair_too(steps: dict[str, Step]):
    assert steps["test"].facts["exit_code"] == 1
    assert "AssertionError: 999 != 1000" in str(steps["test"].facts["output"])
    assert steps["test again"].facts["exit_code"] == 0


def test_the_search_finds_the_line_with_the_bug_and_no_other(steps: dict[str, Step]):
    assert steps["grep"].facts["matches"] == [
        "bills/split.py:8:     return [total // people] * people"
    ]


def test_each_attack_is_refused_in_its_own_words(steps: dict[str, Step]):
    refused = steps["attacks"].facts["refused"]
    assert isinstance(refused, list)
    assert [each["error"] for each in refused] == [
        "PathEscapeError",
        "PermissionError",
        "LimitExceededError",
        "InvalidRegexError",
    ]
    assert "escapes root" in refused[0]["message"]
    assert "/etc/passwd" in refused[1]["message"]


def test_the_attacks_leave_nothing_in_the_workspace(steps: dict[str, Step], tmp_path: Path):
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    shipped = {
        path.relative_to(PROJECT).as_posix()
        for path in PROJECT.rglob("*")
        if "__pycache__" not in path.parts
    }
    assert names == shipped | {"docs", "docs/changes.md"}


def test_the_shipped_project_is_not_changed_by_its_repair(steps: dict[str, Step], tmp_path: Path):
    assert "total // people" in (PROJECT / "bills/split.py").read_text()
    assert "total // people" not in (tmp_path / "bills/split.py").read_text()


def test_workspaces_that_disagree_end_the_story(tmp_path: Path):
    (tmp_path / "only-here.txt").touch()
    with pytest.raises(StoryError, match="different answers"):
        list(Story(tmp_path).steps())


def test_a_pipe_gets_plain_text_that_names_every_step(steps: dict[str, Step]):
    done = wink(FORCE_COLOR="", NO_COLOR="")
    assert "\x1b" not in done.stdout
    assert all(step.title in done.stdout for step in steps.values())


def test_colour_is_for_terminals_and_no_color_turns_it_off():
    assert "\x1b[" in wink(FORCE_COLOR="1", TERM="xterm-256color", NO_COLOR="").stdout
    assert "\x1b[" not in wink(FORCE_COLOR="1", TERM="xterm-256color", NO_COLOR="1").stdout


def test_no_line_is_wider_than_a_terminal_shows():
    assert max(map(len, wink().stdout.splitlines())) <= 96


def test_nothing_is_left_behind(tmp_path: Path):
    assert wink(TMPDIR=str(tmp_path)).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_the_repaired_project_can_be_kept(tmp_path: Path):
    kept = tmp_path / "new" / "place"
    assert str(kept) in wink("--keep", str(kept)).stdout.replace("\n", "")
    tested = subprocess.run([sys.executable, "-B", "-m", "unittest"], cwd=kept, check=False)
    assert tested.returncode == 0


def test_a_directory_with_files_in_it_is_not_used(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("mine")
    done = wink("--keep", str(tmp_path))
    assert done.returncode == 2
    assert re.fullmatch(r"wink: --keep needs a new or empty directory, .*\n", done.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_picture_of_data_is_refused_in_one_line(tmp_path: Path):
    done = wink("--json", "--svg", str(tmp_path / "x.svg"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "wink: --json shows nothing to save; use --svg without it\n"


def test_the_picture_shows_every_step(tmp_path: Path, steps: dict[str, Step]):
    picture = tmp_path / "demo.svg"
    wink("--svg", str(picture), NO_COLOR="")
    assert_shows(picture, steps)


def test_the_picture_in_the_documents_shows_the_demo_of_today(steps: dict[str, Step]):
    assert_shows(ROOT / "docs" / "demo.svg", steps)


def assert_shows(picture: Path, steps: dict[str, Step]) -> None:
    words = " ".join(ElementTree.parse(picture).getroot().itertext()).replace("\xa0", " ")
    assert [step.title for step in steps.values() if step.title not in words] == []
    assert picture.stat().st_size < 300_000
    assert "cdnjs" not in picture.read_text()
