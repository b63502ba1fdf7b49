"""`wink log`, `show`, `diff` and `restore`: any step of a run can be looked at and taken out."""

import os
import re
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.workplace import CALC, FIXED, Script, Wink, edit, write
from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import SessionRecorder, fork_timeline

EVIL = "evil\x1b[2J\u202e.txt"


@pytest.fixture
def recorded(wink: Wink, project: Path, script: Script, tmp_path: Path) -> Path:
    """Return the timeline of a run: 4 edits calc.py, 6 fails, 8 makes a file."""
    usage = {"input_tokens": 90, "output_tokens": 20}
    first = {"tool_calls": [edit()], "text": "I fix it.", "usage": usage}
    model = script(first, edit("nothing like this"), write("docs/new.txt"), "Done.")
    wink("run", "fix the mean", "--workspace", project, "--model", model)
    [path] = (tmp_path / "places" / "state" / "wink" / "runs").glob("*/history")
    return path


def record(
    tmp_path: Path, files: HostFilesystem | InMemoryFilesystem, *changes: Callable[[], object]
) -> Path:
    """Record changes of files, each as a step; return the timeline."""
    session, path = Session(), tmp_path / "made.timeline"
    with SessionRecorder(session, path, files):
        for change in changes:
            change()
            session.dispatch(ToolInvoked(tool="change"))
    return path


def names(directory: Path) -> set[str]:
    return {each.name for each in directory.iterdir()}


# --- log ---


def test_the_log_lists_every_step_with_its_outcome_and_its_files(wink: Wink, recorded: Path):
    done = wink("log")
    assert done.code == 0
    lines = [line for line in done.out.splitlines() if line.startswith("*")]
    assert len(lines) == 10
    assert "✓ model  I fix it." in lines[2]
    assert "110 tokens" in lines[2]
    assert "✓ tool   edit_file calc.py" in lines[3]
    assert "calc.py +1, -1" in lines[3]
    assert "✗ tool   edit_file calc.py" in lines[5]
    assert "+1" not in lines[5]
    assert "task: fix the mean" in done.out
    assert lines[1].split("prompt ")[1] == "fix the mean"
    assert "end    Done." in lines[9]


def test_the_log_separates_a_command_from_the_paths_that_it_changed(wink: Wink, tmp_path: Path):
    files, session, path = InMemoryFilesystem(), Session(), tmp_path / "made"
    with SessionRecorder(session, path, files):
        files.write("made.txt", "made\n")
        call = {"command": ["touch", "made.txt"]}
        session.dispatch(ToolInvoked(tool="shell_execute", params=call, paths=("made.txt",)))
    assert "shell_execute touch made.txt · made.txt  [" in wink("log", path).out


def test_the_log_of_a_path_has_only_steps_that_changed_it(wink: Wink, tmp_path: Path):
    root = tmp_path / "work"
    root.mkdir()

    def remove() -> None:
        files.delete("docs", recursive=True)

    with HostFilesystem(root) as files:
        path = record(
            tmp_path,
            files,
            lambda: files.write("docs/a.txt", "a\n"),
            lambda: files.write("docs/b.txt", "b\n"),
            lambda: files.mkdir("docs/sub/deep", parents=True),
            lambda: files.write("docs2.txt", "2\n"),
            lambda: files.read("docs/a.txt"),
            lambda: files.move("docs/b.txt", "docs/c.txt"),
            remove,
        )

    def found(name: str) -> list[int]:
        return [each["number"] for each in wink("log", path, "--files", name, "--json").events]

    assert found("docs/a.txt") == found("./docs//a.txt") == [2, 8]
    assert found("docs/b.txt") == [3, 7]
    assert found("docs/c.txt") == [7, 8]
    assert found("docs") == [2, 3, 4, 7, 8]
    assert found("docs2.txt") == [5]
    assert found("doc") == []
    assert found(".") == [2, 3, 4, 5, 7, 8]


def test_the_log_as_json_has_an_object_per_step(wink: Wink, recorded: Path):
    steps = wink("log", recorded, "--json").events
    assert [step["number"] for step in steps] == list(range(1, 11))
    assert [step["kind"] for step in steps][:4] == ["start", "prompt", "model", "tool"]
    assert (steps[2]["input_tokens"], steps[2]["output_tokens"]) == (90, 20)
    [change] = steps[3]["changes"]
    assert (change["path"], change["insertions"], change["deletions"]) == ("calc.py", 1, 1)
    assert [step["success"] for step in steps if step["kind"] == "tool"] == [True, False, True]


def test_the_log_can_be_limited_to_steps_and_paths(wink: Wink, recorded: Path):
    assert [step["number"] for step in wink("log", "--limit", "2", "--json").events] == [9, 10]
    for path in ("docs", "docs/new.txt", "docs/new.txt/"):
        assert [step["number"] for step in wink("log", "--files", path, "--json").events] == [8]
    assert wink("log", "--files", "doc", "--json").events == []


def test_branches_are_drawn_as_a_tree(wink: Wink, recorded: Path):
    fork_timeline(recorded, 4, "other")
    fork_timeline(recorded, 11, "deeper")
    fork_timeline(recorded, 11, "sibling")
    lines = wink("log").out.splitlines()
    drawn = [re.sub(r" \d\d:.*", "", line) for line in lines if line[:1] in "*|"]
    assert drawn[3:10] == ["*   4", "|\\", "| *  11", "| |\\", "| | *  13", "| *  12", "*   5"]
    assert [line.split()[-1] for line in lines if "@" in line] == ["@other", "@sibling", "@deeper"]


def test_a_damaged_timeline_is_shown_as_far_as_it_goes(wink: Wink, recorded: Path):
    log = recorded / "steps"
    os.truncate(log, log.stat().st_size - 10)
    done = wink("log", "--json")
    assert [step["number"] for step in done.events] == list(range(1, 10))
    assert done.err.startswith("wink: the last ")
    assert "9 steps are intact" in done.err


def test_names_and_texts_of_a_run_cannot_control_the_terminal(wink: Wink, tmp_path: Path):
    root = tmp_path / "work"
    root.mkdir()
    (root / EVIL).write_text(f"{EVIL}\n")
    with HostFilesystem(root) as files:
        path = record(tmp_path, files, lambda: files.delete(EVIL))
    for command in (["log", path], ["show", path, "2"], ["diff", path, "--stat"]):
        shown = wink(*command)
        assert "evil" in shown.out
        assert "\x1b" not in shown.out + shown.err
        assert "\u202e" not in shown.out + shown.err


# --- show ---


def test_a_step_shows_its_call_its_result_and_its_diff(wink: Wink, recorded: Path):
    out = wink("show", "4").out
    assert "old_string: (len(numbers) + 1)" in out
    assert "\nResult:\n" in out
    assert "\nState changed:\n  VirtualFileSystem: 1 replaced\n  ToolInvoked: 1 added\n" in out
    assert "+    return sum(numbers) / len(numbers)" in out
    for number in range(1, 11):
        shown = wink("show", str(number)).out
        for word in ("weakincentives.", "slice", "Slice", "prompt_key", "snapshot_ref"):
            assert word not in shown
    failed = wink("show", "6").out
    assert "It failed: everything that it changed was rolled back." in failed
    assert "+++" not in failed


def test_a_step_as_json_has_everything(wink: Wink, recorded: Path):
    step = wink("show", recorded, "4", "--json").last
    assert step["details"]["params"]["file_path"] == "calc.py"
    assert [message["role"] for message in step["messages"]] == ["tool"]
    slices = {each["type"]: each["items"] for each in step["slices"]}
    assert "weakincentives.runtime.events:ToolInvoked" in slices
    [files] = slices["weakincentives.contrib.tools.file_projection:VirtualFileSystem"]
    assert "calc.py" in {"/".join(each["path"]["segments"]) for each in files["files"]}
    assert "+    return sum(numbers) / len(numbers)" in step["patch"]


def test_a_long_diff_is_cut_and_says_how_to_get_the_rest(wink: Wink, tmp_path: Path):
    files = InMemoryFilesystem()
    path = record(tmp_path, files, lambda: files.write("long.txt", "line\n" * 500))
    cut = wink("show", path, "2").out
    assert f"more lines: wink diff {path} 2]" in cut
    assert wink("show", path, "2", "--full").out.count("+line") == 500


def test_a_file_is_printed_as_it_was_byte_by_byte(wink: Wink, recorded: Path):
    assert wink("show", "3:calc.py").out == CALC
    assert wink("show", "4:calc.py").out == FIXED
    assert wink("show", recorded, "4", "--file", "calc.py").out == FIXED
    done = wink("show", "3:docs/new.txt")
    assert (done.code, done.err) == (1, "wink: No such file or directory: 'docs/new.txt'\n")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["show", "99"], 1, "There is no step 99: .* has steps 1 to 10; wink log shows the steps"),
        (["show", "@no"], 1, "There is no branch 'no': .* has 'main'; wink log shows"),
        (["show", "4", "5"], 2, "Too many steps: 2; wink show takes 1"),
        (["diff", "4", "x"], 2, "Not a step: 'x'; a step is a number, or @NAME"),
        (["restore", "4"], 2, "Name a STEP, and either --to DIR or --archive FILE"),
    ],
)
def test_arguments_that_mean_nothing_say_what_to_do(
    arguments: list[str], code: int, says: str, wink: Wink, recorded: Path
):
    done = wink(*arguments)
    assert done.code == code
    assert re.search(says, done.err), done.err


# --- diff ---


def test_a_diff_between_steps_is_a_patch_for_git(wink: Wink, recorded: Path, project: Path):
    for arguments in ([], ["1", "10"], [recorded, "1", "@main"]):
        patch = wink("diff", *arguments).out
        subprocess.run(["git", "apply"], input=patch, text=True, cwd=project, check=True)
        assert (project / "calc.py").read_text() == FIXED
        assert (project / "docs" / "new.txt").read_text() == "new\n"
        subprocess.run(["git", "apply", "-R"], input=patch, text=True, cwd=project, check=True)
    assert wink("diff", "8").out == wink("diff", "7", "8").out
    assert "calc.py" not in wink("diff", "8").out
    assert "-    return sum(numbers) / len(numbers)" in wink("diff", "4", "3").out


def test_a_diff_has_numbers_and_json(wink: Wink, recorded: Path):
    out = wink("diff", "--stat").out
    assert out.splitlines() == [
        "modified calc.py +1, -1",
        "added docs/new.txt +1, -0",
        "2 files changed (1 added), 2 insertions(+), 1 deletion(-)",
    ]
    data = wink("diff", "4", "--json").last
    assert data["steps"] == [4]
    assert data["files_changed"] == 1
    assert data["patch"] == wink("diff", "4").out


# --- restore ---


def test_the_files_of_a_step_are_restored_byte_by_byte(wink: Wink, tmp_path: Path):
    root = tmp_path / "work"
    (root / "empty").mkdir(parents=True)
    (root / "closed").mkdir()
    (root / "closed" / "run.sh").write_text("#!/bin/sh\n")
    (root / "closed" / "run.sh").chmod(0o755)
    (root / "closed").chmod(0o555)
    (root / os.fsdecode(b"\xff\n")).write_bytes(bytes(range(256)) * 5000)
    (root / "link").symlink_to("nowhere")
    with HostFilesystem(root) as files:
        path = record(tmp_path, files, lambda: files.delete("link"))
    target = tmp_path / "new" / "out"
    assert wink("restore", path, "1", "--to", target).code == 0
    assert (target / os.fsdecode(b"\xff\n")).read_bytes() == bytes(range(256)) * 5000
    assert stat.S_IMODE((target / "closed" / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "closed").stat().st_mode) == 0o555
    assert list((target / "empty").iterdir()) == []
    assert (target / "link").readlink() == Path("nowhere")
    assert names(target) == names(root) | {"link"}


def test_nothing_that_exists_is_overwritten(wink: Wink, recorded: Path, tmp_path: Path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    done = wink("restore", "4", "--to", target)
    assert (done.code, names(target)) == (2, {"mine.txt"})
    assert "--to needs a new or empty directory" in done.err
    archive = tmp_path / "x.fs.zip"
    archive.write_text("mine")
    assert wink("restore", "4", "--archive", archive).code == 2
    assert archive.read_text() == "mine"
    (target / "mine.txt").unlink()
    data = wink("restore", "4", "--to", target, "--json").last
    assert data == {"step": 4, "target": str(target), "files": 2, "skipped": []}
    assert (target / "calc.py").read_text() == FIXED


def test_an_archive_of_a_step_loads_into_any_backend(wink: Wink, recorded: Path, tmp_path: Path):
    archive = tmp_path / "step.fs.zip"
    assert wink("restore", "3", "--archive", archive).code == 0
    memory = InMemoryFilesystem()
    memory.import_archive(archive)
    assert memory.read("calc.py").content == CALC
    assert not memory.exists("docs/new.txt")


def test_looking_changes_nothing(wink: Wink, recorded: Path):
    before = (recorded / "steps").read_bytes()
    for command in (["log"], ["show"], ["diff"], ["show", "4:calc.py"]):
        assert wink(*command).code == 0
    assert (recorded / "steps").read_bytes() == before
