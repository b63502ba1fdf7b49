"""`wink run`: a task, a working copy, a diff and a decision."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.workplace import CALC, FIXED, Script, Wink, edit, shell, write
from tests.preloaded import PreloadedProcess
from tests.sandbox.process_trees import Mark
from weakincentives.contrib.review.records import find_record
from weakincentives.contrib.tools import VirtualFileSystem
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.posix import fault_hook
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import load_session
from weakincentives.runtime.timeline import Timeline

Copies = Callable[[], list[Path]]


def run(wink: Wink, project: Path, model: str, *options: str | Path):
    return wink("run", "fix the mean", "--workspace", project, "--model", model, *options)


def tree(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


# --- what becomes of the changes ---


def test_without_a_person_the_changes_wait_in_the_copy(
    wink: Wink, project: Path, script: Script, copies: Copies
):
    before = tree(project)
    done = run(wink, project, script(edit(), "Divided by the number of items."))
    assert done.code == 3
    assert tree(project) == before
    [copy] = copies()
    assert (copy / "workspace" / "calc.py").read_text() == FIXED
    for option in ("--apply", "--patch FILE", "--discard"):
        assert f"wink review {copy.name} {option}" in done.err
    assert done.out == "Divided by the number of items.\n"
    assert "modified calc.py" in done.err


def test_a_pipe_gets_the_patch_if_that_is_asked_for(wink: Wink, project: Path, script: Script):
    done = run(wink, project, script(edit(), write("new.txt"), "Done."), "--patch", "-")
    assert done.code == 0
    assert "Done." in done.err
    subprocess.run(["git", "apply"], input=done.out, text=True, cwd=project, check=True)
    assert (project / "calc.py").read_text() == FIXED
    assert (project / "new.txt").read_text() == "new\n"


def test_apply_changes_what_was_changed_and_nothing_else(
    wink: Wink, project: Path, script: Script, copies: Copies
):
    before = tree(project)
    done = run(wink, project, script(edit(), write("docs/more.md"), "Done."), "--apply")
    assert done.code == 0
    assert tree(project) == {**before, "calc.py": FIXED.encode(), "docs/more.md": b"new\n"}
    [copy] = copies()
    assert f"To undo: wink review {copy.name} --undo" in done.err


def test_a_moved_file_is_a_rename_that_can_be_undone(
    wink: Wink, project: Path, script: Script, copies: Copies
):
    before = tree(project)
    move = {
        "name": "move_file",
        "arguments": {"source": "calc.py", "destination": "lib/calculator.py"},
    }
    done = run(wink, project, script(move, "Done."), "--apply")
    assert "renamed calc.py -> lib/calculator.py (100 % the same)" in done.err
    assert (project / "lib" / "calculator.py").read_text() == CALC
    assert not (project / "calc.py").exists()
    assert wink("review", copies()[0].name, "--undo").code == 0
    assert tree(project) == before


def test_discard_leaves_nothing(wink: Wink, project: Path, script: Script, copies: Copies):
    before = tree(project)
    assert run(wink, project, script(edit(), "Done."), "--discard").code == 0
    assert (tree(project), copies()) == (before, [])


def test_a_patch_is_saved_and_the_copy_goes(
    wink: Wink, project: Path, script: Script, copies: Copies, tmp_path: Path
):
    patch = tmp_path / "fix.patch"
    assert run(wink, project, script(edit(), "Done."), "--patch", patch).code == 0
    assert copies() == []
    subprocess.run(["git", "apply", str(patch)], cwd=project, check=True)
    assert (project / "calc.py").read_text() == FIXED


def test_a_file_in_the_place_of_the_patch_is_refused_before_any_work(
    wink: Wink, project: Path, script: Script, tmp_path: Path
):
    patch = tmp_path / "fix.patch"
    patch.write_text("mine")
    done = run(wink, project, script(edit(), "Done."), "--patch", patch)
    assert (done.code, patch.read_text()) == (2, "mine")
    assert "File exists already" in done.err


def test_a_conflict_is_shown_and_nothing_is_overwritten(
    wink: Wink, project: Path, script: Script, copies: Copies
):
    person = f"echo '# mine' >> {project}/calc.py"
    steps = script(edit(), write("new.txt"), shell("sh", "-c", person), "Done.")
    done = run(wink, project, steps, "--apply", "--sandbox", "local")
    assert done.code == 4
    conflict = "conflict: calc.py: modified in the copy, modified in the original, both at line 3"
    assert done.err.splitlines().count(conflict) == 1
    assert (project / "calc.py").read_text() == f"{CALC}# mine\n"
    assert not (project / "new.txt").exists()
    assert len(copies()) == 1


def test_a_run_that_changes_nothing_leaves_nothing(
    wink: Wink, project: Path, script: Script, copies: Copies
):
    done = run(wink, project, script("There is nothing to do."))
    assert (done.code, done.out, copies()) == (0, "There is nothing to do.\n", [])
    assert "Nothing was changed." in done.err


def append_later(path: Path) -> Callable[[], bool]:
    """Open a file; return what writes to it, and tells whether it is at its path."""
    file = path.open("a")

    def finish() -> bool:
        with file:
            file.write("# mine\n")
        return path.exists() and path.read_text().endswith("# mine\n")

    return finish


def set_attribute(path: Path) -> Callable[[], bool]:
    """Set an extended attribute; return what tells whether it is still there."""
    os.setxattr(path, "user.mine", b"mine")
    return lambda: path.exists() and os.getxattr(path, "user.mine") == b"mine"


@pytest.mark.parametrize(
    ("begin", "fact"),
    [
        (append_later, "a program has calc.py open for writing"),
        (set_attribute, "only the copy has the extended attributes of calc.py"),
    ],
)
def test_a_run_that_changes_nothing_keeps_a_copy_in_which_somebody_works(
    begin: Callable[[Path], Callable[[], bool]],
    fact: str,
    wink: Wink,
    project: Path,
    script: Script,
    copies: Copies,
):
    works: list[Callable[[], bool]] = []

    def work(_: str) -> None:
        record = find_record(copies()[0]) if copies() else None
        if not works and record and record.copy:
            works.append(begin(copies()[0] / "workspace" / "calc.py"))

    with fault_hook(work):
        done = run(wink, project, script("There is nothing to do."))
    [finish], [place] = works, copies()
    assert finish()
    assert done.code == 0
    assert f"The working copy is kept: {fact}.\n  wink review {place.name} --discard" in done.err
    assert f"kept: {place.name} (empty, " in wink("clean", "--yes").err
    assert wink("review", place.name, "--discard").code == 0
    assert copies() == []


# --- how a run ends ---


def test_a_run_that_fails_keeps_what_was_done_and_applies_nothing(
    wink: Wink, project: Path, script: Script, copies: Copies
):
    done = run(wink, project, script(edit()), "--apply")
    assert done.code == 1
    assert "wink: The script has only 1 steps" in done.err
    assert (project / "calc.py").read_text() == CALC
    assert (copies()[0] / "workspace" / "calc.py").read_text() == FIXED


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--max-tokens", "100", "Budget exceeded: .*; raise the limit with --max-tokens"),
        ("--max-steps", "1", "no answer in 1 steps .*; raise the limit with --max-steps"),
        ("--deadline", "0.000001s", "deadline .*; raise the limit with --deadline"),
    ],
)
def test_bounds_end_a_run_with_one_line_that_says_which_to_raise(
    option: str, value: str, says: str, wink: Wink, project: Path, script: Script
):
    usage = {"input_tokens": 90, "output_tokens": 20}
    step = {"tool_calls": [edit()], "stop_reason": "tool_calls", "usage": usage}
    done = run(wink, project, script(step, write("x"), "Done."), option, value)
    assert done.code == 1
    [line] = [each for each in done.err.splitlines() if each.startswith("wink:")]
    assert re.search(says, line), line
    has_changes = "Nothing was changed." not in done.err
    assert line.endswith("; the changes so far are kept") == has_changes
    done = run(wink, project, script(step, write("x"), "Done."), option, value, "--discard")
    assert "is kept" not in done.err


def test_a_call_that_the_deadline_ends_says_why(wink: Wink, project: Path, script: Script):
    options = ("--deadline", "0.5s", "--sandbox", "local", "--json")
    done = run(wink, project, script(shell("sleep", "30"), "Done."), *options)
    [call] = [each for each in done.events if each["event"] == "tool"]
    assert not call["success"]
    assert call["message"].startswith("DeadlineExceededError: ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_command_that_runs_and_the_diff_so_far_is_offered(
    number: signal.Signals,
    code: int,
    wink: Wink,
    project: Path,
    script: Script,
    copies: Copies,
):
    interrupt = f"echo half > half.txt; kill -{number.name[3:]} {os.getpid()}; sleep 60"
    steps = script(edit(), shell("sh", "-c", interrupt), "Done.")
    done = run(wink, project, steps, "--sandbox", "local")
    assert done.code == code
    assert "Interrupted; changes so far:" in done.err
    assert "modified calc.py (+1, -1)" in done.err
    assert done.out == ""
    assert not (copies()[0] / "workspace" / "half.txt").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# --- what is told ---


def test_json_is_one_object_per_line_and_ends_with_the_whole(
    wink: Wink,
    project: Path,
    script: Script,
    copies: Copies,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("WINK_DIGEST")
    step = {"tool_calls": [edit()], "usage": {"input_tokens": 90, "output_tokens": 10}}
    done = run(wink, project, script(step, "Done."), "--json")
    assert done.code == 3
    assert done.err == ""
    assert [each["event"] for each in done.events] == [
        "started",
        "digest",
        "step",
        "tool",
        "step",
        "finished",
    ]
    tool = done.call
    assert (tool["tool"], tool["paths"], tool["success"]) == ("edit_file", ["calc.py"], True)
    last = done.last
    assert (last["status"], last["result"], last["exit_code"]) == ("done", "kept", 3)
    assert (last["steps"], last["input_tokens"], last["answer"]) == (2, 90, "Done.")
    assert [(each["path"], each["kind"]) for each in last["changes"]] == [("calc.py", "modified")]
    assert last["copy"] == str(copies()[0])


def test_json_tells_how_a_run_failed(wink: Wink, project: Path, script: Script):
    done = run(wink, project, script(edit()), "--json", "--discard")
    assert (done.last["status"], done.last["result"], done.last["copy"]) == (
        "failed",
        "discarded",
        None,
    )
    assert "The script has only 1 steps" in done.last["error"]


def test_lines_tell_each_call_with_its_path_and_why_one_failed(
    wink: Wink, project: Path, script: Script
):
    done = run(wink, project, script(edit("not there"), edit(), "Done."), "--discard")
    assert "failed edit_file  calc.py" in done.err
    assert "Text to replace was not found" in done.err
    assert "2 tool calls" in done.err
    assert "\x1b" not in done.err


def test_quiet_says_nothing_while_it_goes_on(wink: Wink, project: Path, script: Script):
    done = run(wink, project, script(edit(), "Done."), "--discard", "--quiet")
    assert "edit_file" not in done.err
    assert "modified calc.py (+1, -1)" in done.err


def test_what_a_model_says_cannot_move_the_cursor(wink: Wink, project: Path, script: Script):
    done = run(wink, project, script("\x1b[2JAll is \x07well."))
    assert done.out == "^[[2JAll is ^Gwell.\n"


# --- the dump ---


@pytest.mark.usefixtures("home_elsewhere")
def test_the_dump_has_the_session_and_the_files(
    wink: Wink, project: Path, script: Script, tmp_path: Path
):
    done = run(wink, project, script(edit(), "Done."), "--discard", "--dump", tmp_path / "dumps")
    [path] = (tmp_path / "dumps").glob("*.jsonl")
    assert path.with_suffix(".fs.zip").exists()
    assert str(path) in done.err
    files = InMemoryFilesystem()
    session = load_session(path, filesystem=files)
    assert [each.tool for each in session[ToolInvoked].all()] == ["edit_file"]
    assert files.read("calc.py").content == FIXED


def test_without_a_request_session_and_files_are_only_in_the_steps(
    wink: Wink, project: Path, script: Script
):
    done = run(wink, project, script(edit(), "Done."), "--discard", "--json")
    assert done.last["dump"] is None
    with Timeline(done.last["timeline"]) as timeline:
        assert timeline.session(timeline.last)[ToolInvoked].all()
        assert timeline.files(timeline.last).read("calc.py").content == FIXED


def test_a_dump_that_cannot_be_written_costs_nobody_the_work(
    wink: Wink, project: Path, script: Script, tmp_path: Path
):
    (tmp_path / "file").touch()
    done = run(wink, project, script(edit(), "Done."), "--apply", "--dump", tmp_path / "file" / "x")
    assert done.code == 0
    assert "wink: the dump could not be written: " in done.err
    assert (project / "calc.py").read_text() == FIXED


# --- recordings and scripts ---


UNPRIVILEGED = """
import io, os, sys
from contextlib import redirect_stdout, suppress
from weakincentives.cli.main import main
if os.getuid() == 0:  # who may read everything finds nothing closed
    with redirect_stdout(io.StringIO()), suppress(SystemExit):
        main(sys.argv[1:])  # what is imported on the way may not be readable then
    os.environ["XDG_STATE_HOME"] += "-of-another-user"
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
main(sys.argv[1:])
"""


def test_a_directory_that_is_closed_costs_nobody_the_dump():
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        (root / "project" / "closed").mkdir(parents=True)
        (root / "script.json").write_text(json.dumps([write("new.txt"), "Done."]))
        for each in (root, root / "project", root / "project" / "closed"):
            each.chmod(0o777)
            os.chown(each, *[65534 if os.getuid() == 0 else -1] * 2)
        (root / "project" / "closed").chmod(0)
        model = f"scripted:{root / 'script.json'}"
        options = ("--workspace", str(root / "project"), "--model", model, "--dump", place)
        done = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, "run", "x", *options, "--discard", "--json"],
            capture_output=True,
            text=True,
            env={**os.environ, "TMPDIR": place, "XDG_STATE_HOME": f"{place}/state"},
            check=True,
        )
        last = json.loads(done.stdout.splitlines()[-1])
        (root / "project" / "closed").chmod(0o700)
        assert last["dump_error"] is None
        files = InMemoryFilesystem()
        load_session(last["dump"], [VirtualFileSystem], filesystem=files)
        assert files.list("closed") == ()
        assert files.read("new.txt").content == "new\n"


def test_a_recording_is_played_back(wink: Wink, project: Path, script: Script, tmp_path: Path):
    record = tmp_path / "talk.jsonl"
    run(wink, project, script(edit(), "Done."), "--discard", "--record", record)
    done = run(wink, project, f"scripted:{record}", "--apply")
    assert done.code == 0
    assert (project / "calc.py").read_text() == FIXED
    again = run(wink, project, f"scripted:{record}", "--record", record)
    assert (again.code, "File exists already" in again.err) == (2, True)


def test_a_script_may_have_a_step_in_each_line(wink: Wink, project: Path, tmp_path: Path):
    lines = [json.dumps(each) for each in (edit(), [write("a"), write("b")], "Done.")]
    (tmp_path / "steps.jsonl").write_text("\n".join(lines) + "\n")
    done = run(wink, project, f"scripted:{tmp_path}/steps.jsonl", "--json")
    assert [each["path"] for each in done.last["changes"]] == ["a", "b", "calc.py"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "Script cannot be read: Not JSON"),
        ("[" * 5_000 + "]" * 5_000, "Script cannot be read: Nested too deeply"),
        ('[{"nonsense": 1}]', "Step 1 of the script"),
        ('["a", 5]', "Step 2 of the script"),
        (None, "Script cannot be read: No such file or directory"),
    ],
)
def test_a_script_that_makes_no_sense_is_one_line(
    text: str | None, says: str, wink: Wink, project: Path, tmp_path: Path, copies: Copies
):
    path = tmp_path / "bad.json"
    if text is not None:
        path.write_text(text)
    done = run(wink, project, f"scripted:{path}")
    assert (done.code, copies()) == (2, [])
    assert done.err.startswith(f"wink: {says}")
    assert done.err.count("\n") == 1


# --- errors before anything is done ---


def misuse(wink: Wink, *arguments: str | Path) -> str:
    done = wink("run", *arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("wink: ")
    assert done.err.count("\n") == 1
    return done.err


def test_no_model_says_how_to_give_one(wink: Wink, project: Path):
    assert misuse(wink, "x", "--workspace", project) == (
        "wink: No model is set; use --model openai:MODEL, set WINK_MODEL, or set the key of one"
        " provider; wink demo works without a key\n"
    )


def test_with_both_keys_the_user_has_to_choose_a_model(
    wink: Wink, project: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-unused")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-unused")
    assert "No model is set" in misuse(wink, "x", "--workspace", project)


def test_a_model_that_cannot_be_used_leaves_no_copy(
    wink: Wink, project: Path, copies: Callable[[], list[Path]]
):
    for model in ("openai:gpt-5", "gpt-5", "scripted:/no/such/file"):
        misuse(wink, "x", "--workspace", project, "--model", model)
    assert copies() == []
    assert "No runs are kept." in wink("review").err


def test_an_unknown_model_says_which_there_are(wink: Wink, project: Path):
    assert "openai:NAME" in misuse(wink, "x", "--workspace", project, "--model", "gpt-5")


def test_a_missing_key_says_which_variable_to_set(wink: Wink, project: Path):
    said = misuse(wink, "x", "--workspace", project, "--model", "openai:gpt-5")
    assert "No key for openai; set OPENAI_API_KEY" in said
    options = ("--workspace", project, "--model", "openai:gpt-5", "--api-key-env", "MY_KEY")
    assert "The variable 'MY_KEY' is not set" in misuse(wink, "x", *options)


def test_a_workspace_must_be_a_directory_and_no_copy_of_ours(
    wink: Wink, project: Path, script: Script, copies: Copies
):
    model = script(edit(), "Done.")
    assert "does not exist: " in misuse(wink, "x", "--workspace", project / "none")
    assert "is not a directory: " in misuse(wink, "x", "--workspace", project / "calc.py")
    run(wink, project, model)
    inside = copies()[0] / "workspace" / "docs"
    said = misuse(wink, "x", "--workspace", inside, "--model", model)
    assert f"wink review {copies()[0].name}" in said


def test_a_deadline_must_be_a_time(wink: Wink, project: Path):
    said = misuse(wink, "x", "--workspace", project, "--deadline", "soon")
    assert "--deadline must be a duration like 90s, 10m, 12h, 14d or 2w: 'soon'" in said


def test_an_empty_task_is_refused(wink: Wink, project: Path, script: Script):
    assert "The task is empty" in misuse(
        wink, " ", "--workspace", project, "--model", script("Done.")
    )


def test_the_state_directory_is_not_copied(
    wink: Wink, tmp_path: Path, script: Script, copies: Copies, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "[a]{b,c}*" / "state"))
    for _ in range(2):
        assert run(wink, tmp_path, script(write("new.txt"), "Done.")).code == 3
    for place in (tmp_path / "[a]{b,c}*" / "state" / "wink" / "runs").iterdir():
        inside = place / "workspace" / "[a]{b,c}*" / "state"
        assert inside.is_dir()
        assert not (inside / "wink").exists()


def test_the_state_directory_is_no_workspace(
    wink: Wink, tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
):
    state = tmp_path / "places" / "state" / "wink"
    state.mkdir(parents=True)
    said = misuse(wink, "x", "--workspace", state, "--model", script("Done."))
    assert "is the state directory of wink" in said
    assert list((state / "runs").iterdir()) == []


def test_two_wishes_are_one_too_many(wink: Wink, project: Path):
    assert "exclude each other" in misuse(wink, "x", "--apply", "--discard")


# --- settings ---


def test_the_settings_of_the_workspace_are_used(wink: Wink, project: Path, script: Script):
    (project / "wink.toml").write_text(f'model = "{script(edit(), "Done.")}"\nmax_steps = 1\n')
    done = wink("run", "x", "--workspace", project)
    assert "no answer in 1 steps" in done.err


@pytest.mark.usefixtures("default_sandbox")
def test_a_script_of_the_workspace_runs_isolated_commands_only(
    wink: Wink,
    project: Path,
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    outside = tmp_path / "outside"
    steps = script(shell("touch", "inside", str(outside)), "Done.")
    (project / "wink.toml").write_text(f'model = "{steps}"\n')
    done = wink("run", "x", "--workspace", project, "--json")
    assert [each["path"] for each in done.last["changes"]] == ["inside"]
    monkeypatch.setenv("WINK_SANDBOX", "local")
    assert "without isolation" in misuse(wink, "x", "--workspace", project)
    assert not outside.exists()


def test_excluded_files_are_not_copied(wink: Wink, project: Path, script: Script):
    listing = {"name": "ls", "arguments": {}}
    done = run(wink, project, script(listing, "Done."), "--exclude", "docs", "--json")
    assert "calc.py" in done.call["message"]
    assert "docs" not in done.call["message"]


def test_the_dialect_is_the_one_that_is_asked_for(wink: Wink, project: Path, script: Script):
    call = {"name": "Write", "arguments": {"file_path": "a.txt", "content": "x\n"}}
    done = run(wink, project, script(call, "Done."), "--dialect", "claude", "--json")
    assert done.events[0]["dialect"] == "claude"
    assert [each["path"] for each in done.last["changes"]] == ["a.txt"]


@pytest.mark.usefixtures("default_sandbox")
def test_commands_run_isolated_unless_the_user_says_otherwise(
    wink: Wink, project: Path, script: Script
):
    steps = script(shell("sh", "-c", "echo hi > said.txt"), "Done.")
    for options, isolation in (((), "bubblewrap"), (("--sandbox", "local"), "none")):
        done = run(wink, project, steps, "--json", *options)
        assert done.events[0]["isolation"] == isolation
        assert [each["path"] for each in done.last["changes"]] == ["said.txt"]
    done = run(wink, project, steps, "--json", "--sandbox", "none")
    assert done.events[0]["isolation"] is None
    assert (done.call["success"], done.last["changes"]) == (False, [])


@pytest.mark.usefixtures("default_sandbox")
def test_processes_in_the_background_end_with_the_run(wink: Wink, project: Path, script: Script):
    mark = Mark()
    line = f"echo up > up.txt; exec sleep {mark.seconds}"
    start = {"name": "shell_start", "arguments": {"command": ["sh", "-c", line]}}
    done = run(wink, project, script(start, "Done."))
    assert f"Stopped in the background: sh -c 'echo up > up.txt; exec sleep {mark.seconds}'" in (
        done.err
    )
    assert mark.processes() == []
    done = run(wink, project, script(start, "Done."), "--json")
    assert done.last["stopped"] == [f"sh -c '{line}'"]


@pytest.mark.usefixtures("default_sandbox")
def test_long_output_is_no_change_of_the_project(wink: Wink, project: Path, script: Script):
    done = run(wink, project, script(shell("seq", "1", "20000"), "Done."), "--json")
    assert ".wink-output/1-stdout.txt" in done.call["message"]
    assert (done.call["paths"], done.last["changes"]) == ([], [])


def test_what_cannot_be_copied_is_told(wink: Wink, project: Path, script: Script):
    os.mkfifo(project / "pipe")
    (project / "out").symlink_to("/etc/hostname")
    done = run(wink, project, script("Done."), "--sandbox", "local")
    assert "not copied: pipe: not a regular file" in done.err
    assert "links to outside the copy: out" in done.err
    started = run(wink, project, script("Done."), "--json").events[0]
    assert (started["skipped"], started["outward_links"]) == (["pipe"], ["out"])


def test_what_happens_inside_of_git_is_not_offered(wink: Wink, project: Path, script: Script):
    (project / ".git").mkdir()
    (project / ".git" / "index").write_text("1")
    steps = script(shell("sh", "-c", "echo 2 > .git/index; echo x > .git/HEAD"), "Done.")
    done = run(wink, project, steps, "--sandbox", "local", "--apply")
    assert "Not offered: 1 change inside .git" in done.err
    assert (project / ".git" / "index").read_text() == "1"


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_run_and_costs_no_work(
    project: Path, script: Script, own_places: None, copies: Copies
):
    model = script(edit(), *[shell("sh", "-c", "sleep 0.01")] * 50, "Done.")
    process = PreloadedProcess(
        [
            *(sys.executable, "-m", "weakincentives", "run", "x", "--json"),
            *("--workspace", project, "--model", model, "--sandbox", "local"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stdout:
        if json.loads(line)["event"] == "tool":
            break
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 1
    assert (copies()[0] / "workspace" / "calc.py").read_text() == FIXED
