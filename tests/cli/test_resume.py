"""`wink resume` and `wink fork`: go on from any step, in the same timeline."""

import shutil
from pathlib import Path

import pytest

from tests.cli.workplace import CALC, FIXED, Script, Wink, edit, shell, write
from weakincentives.adapters.messages import load_messages
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import SessionRecorder, Timeline


@pytest.fixture
def recorded(wink: Wink, project: Path, script: Script, tmp_path: Path) -> Path:
    """Return the timeline of a finished run: step 4 fixes calc.py, step 6 makes a file."""
    model = script(edit(), write("docs/new.txt"), "Done.")
    wink("run", "fix the mean", "--workspace", project, "--model", model, "--discard")
    [path] = (tmp_path / "places" / "state" / "wink" / "runs").glob("*/history")
    return path


def roles(timeline: Timeline, number: int) -> list[str]:
    return [message.role for message in load_messages(timeline.messages(number))]


def test_a_finished_run_goes_on_with_a_new_instruction(
    wink: Wink, project: Path, script: Script, recorded: Path
):
    model = script(write("more.txt"), "More is done.")
    done = wink("resume", "last", "and now more", "--model", model, "--apply")
    assert done.code == 0, done.err
    assert (project / "calc.py").read_text() == FIXED
    assert (project / "docs" / "new.txt").exists()
    assert (project / "more.txt").exists()
    with Timeline(recorded) as timeline:
        kinds = [step.kind for step in timeline.steps][8:]
        assert kinds == ["start", "prompt", "model", "tool", "model", "end"]
        assert timeline.step(9).parent == 8
        assert not timeline.step(9).files
        assert len(timeline.leaves()) == 1
        assert roles(timeline, timeline.last) == [
            *("system", "user", "assistant", "tool", "assistant", "tool", "assistant"),
            *("user", "assistant", "tool", "assistant"),
        ]
        loaded = timeline.session(timeline.last)
    assert [call.tool for call in loaded[ToolInvoked].all()] == ["edit_file"] + 2 * ["write_file"]


def test_an_earlier_step_begins_a_branch_with_its_files_and_its_conversation(
    wink: Wink, project: Path, script: Script, recorded: Path
):
    done = wink(
        *("resume", recorded, "--at", "4", "something else", "--name", "other"),
        *("--model", script(write("else.txt"), "Done."), "--apply"),
    )
    assert done.code == 0, done.err
    assert (project / "calc.py").read_text() == FIXED
    assert (project / "else.txt").exists()
    assert not (project / "docs" / "new.txt").exists()
    with Timeline(recorded) as timeline:
        assert timeline.children(4) == (5, 9)
        assert timeline.step(9).branch == "other"
        assert timeline.files(8).exists("docs/new.txt")
        assert not timeline.files(timeline.last).exists("docs/new.txt")
        assert roles(timeline, 10) == ["system", "user", "assistant", "tool", "user"]
    assert "| *   9" in wink("log").out


def test_an_interrupted_run_is_continued_and_open_calls_get_an_answer(
    wink: Wink, project: Path, script: Script, recorded: Path
):
    with Timeline(recorded) as timeline:
        assert timeline.step(5).details["tool_calls"] == ["write_file"]
    done = wink("resume", recorded, "--at", "5", "--model", script("It was interrupted."))
    assert done.code == 3, done.err
    with Timeline(recorded) as timeline:
        messages = load_messages(timeline.messages(timeline.last))
        assert [each.role for each in messages][-2:] == ["tool", "assistant"]
        assert messages[-2].text.startswith("No result: the run stopped before this call finished")


def test_a_run_that_was_killed_before_its_first_answer_begins_again(
    wink: Wink, project: Path, script: Script, recorded: Path
):
    done = wink("resume", recorded, "--at", "1", "--model", script(edit(), "Done."), "--apply")
    assert done.code == 0, done.err
    assert (project / "calc.py").read_text() == FIXED


def test_model_and_dialect_are_those_of_the_run(
    wink: Wink, project: Path, tmp_path: Path, script: Script
):
    call = {"name": "Write", "arguments": {"file_path": "a.txt", "content": "x"}}
    model = script(call, "Done.")
    wink("run", "x", "--workspace", project, "--model", model, "--dialect", "claude", "--discard")
    started = wink("resume", "last", "again", "--json").events[1]
    assert (started["model"], started["dialect"]) == ("scripted:script", "claude")


def test_the_context_window_of_a_run_stays_that_of_its_model(
    wink: Wink, project: Path, script: Script, tmp_path: Path
):
    def resume(*options: str) -> object:
        done = wink("resume", "last", "go on", "--json", *options)
        assert done.code in (0, 3), done.err
        with Timeline(done.last["timeline"]) as timeline:
            starts = [each for each in timeline.steps if each.kind == "start"]
        return starts[-1].details["run"]["context_window"]

    model = script("Done.")
    other = tmp_path / "other.json"
    other.write_text('["Done."]')
    wink("run", "x", "--workspace", project, "--model", model, "--context-window", "32k")
    assert resume() == 32_000
    assert resume("--model", f"scripted:{other}") is None


def test_changes_that_others_made_to_the_original_since_are_a_conflict(
    wink: Wink, project: Path, script: Script, recorded: Path
):
    (project / "calc.py").write_text(f"{CALC}# mine\n")
    done = wink("resume", "last", "more", "--model", script("Done."), "--apply")
    assert done.code == 4
    assert "conflict: calc.py" in done.err
    assert (project / "calc.py").read_text() == f"{CALC}# mine\n"


def test_changes_that_were_applied_already_are_not_a_conflict(
    wink: Wink, project: Path, script: Script, recorded: Path
):
    (project / "calc.py").write_text(FIXED)
    done = wink("resume", "last", "more", "--model", script(write("x.txt"), "Done."), "--apply")
    assert done.code == 0, done.err
    assert (project / "x.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["last"], "The run had ended at step 8; say what to do next"),
        (["last", "--at", "99", "x"], "There is no step 99"),
        (["last", "--at", "calc.py", "x"], "Not a step: 'calc.py'"),
    ],
)
def test_what_cannot_be_resumed_says_why(
    arguments: list[str], says: str, wink: Wink, recorded: Path
):
    before = (recorded / "steps").read_bytes()
    done = wink("resume", *arguments)
    assert done.code in (1, 2)
    assert says in done.err
    assert (recorded / "steps").read_bytes() == before


def test_a_run_whose_directory_is_gone_needs_another(
    wink: Wink, project: Path, script: Script, recorded: Path, tmp_path: Path
):
    moved = project.rename(tmp_path / "moved")
    done = wink("resume", "last", "more", "--model", script("Done."))
    assert done.code == 2
    assert "does not exist here" in done.err
    model = script(write("x.txt"), "Done.")
    done = wink("resume", "last", "more", "--model", model, "--workspace", moved, "--apply")
    assert done.code == 0, done.err
    assert (moved / "calc.py").read_text() == FIXED


def test_a_timeline_chooses_neither_a_server_nor_a_program(
    wink: Wink, project: Path, tmp_path: Path
):
    path = tmp_path / "foreign.timeline"
    for model, url in (("openai:x", "http://evil.test"), ("claude-agent:x", None)):
        shutil.rmtree(path, ignore_errors=True)
        run = {"task": "x", "workspace": str(project), "model": model, "base_url": url}
        with SessionRecorder(Session(), path, InMemoryFilesystem(), details={"run": run}):
            pass
        done = wink("resume", path)
        assert done.code == 2
        assert f"if you trust it, choose it: --model {model}" in done.err


def test_the_model_of_a_run_is_used_again_at_the_server_of_the_user(
    wink: Wink, project: Path, tmp_path: Path
):
    path, url = tmp_path / "own.timeline", "http://127.0.0.1:9/v1"
    run = {"task": "x", "workspace": str(project), "model": "openai:x", "base_url": url}
    with SessionRecorder(Session(), path, InMemoryFilesystem(), details={"run": run}):
        pass
    own = ("--base-url", "http://me:secret@127.0.0.1:9/v1", "--api-key-env", "NOT_SET")
    done = wink("resume", path, *own)
    assert "if you trust it" not in done.err
    assert "NOT_SET" in done.err  # the next thing to go wrong


@pytest.mark.parametrize(
    ("setting", "value"), [("dialect", "klingon"), ("max_steps", {"a": 1}), ("deadline", "soon")]
)
def test_a_setting_of_a_timeline_that_means_nothing_is_named(
    setting: str, value: object, wink: Wink, project: Path, tmp_path: Path
):
    path = tmp_path / "foreign.timeline"
    run = {"task": "x", "workspace": str(project), "model": "openai:x", setting: value}
    with SessionRecorder(Session(), path, InMemoryFilesystem(), details={"run": run}):
        pass
    done = wink("resume", path)
    assert done.code == 2
    assert f"{setting} must be" in done.err


def test_a_run_that_is_still_going_on_is_not_resumed(wink: Wink, tmp_path: Path):
    path = tmp_path / "running.timeline"
    with SessionRecorder(Session(), path, InMemoryFilesystem()):
        done = wink("resume", path, "more")
        assert (done.code, "is still running" in done.err) == (1, True)
        assert wink("fork", path, "1").code == 0


def test_commands_and_links_and_closed_directories_survive_a_resume(
    wink: Wink, project: Path, script: Script
):
    prepare = "mkdir closed && echo x > closed/a && chmod 555 closed && ln -s calc.py link"
    model = script(shell("sh", "-c", prepare), shell("chmod", "755", "calc.py"), "Done.")
    run = ("--workspace", project, "--sandbox", "local", "--discard")
    assert wink("run", "x", "--model", model, *run).code == 0
    model = script(
        shell("sh", "-c", "cat closed/a; readlink link; stat -c %a closed calc.py"), "Done."
    )
    done = wink("resume", "last", "x", "--model", model, "--sandbox", "local", "--json")
    [call] = [event for event in done.events if event["event"] == "tool"]
    assert "x\ncalc.py\n555\n755" in call["message"]


# --- fork ---


def user_texts(timeline: Timeline) -> list[str]:
    messages = load_messages(timeline.messages(timeline.last))
    return [each.text for each in messages if each.role == "user"]


def test_a_branch_gets_its_instruction_and_not_the_one_before(
    wink: Wink, project: Path, script: Script, recorded: Path
):
    for number, words in ((4, ["fix the mean", "go"]), (8, ["fix the mean", "go"])):
        assert wink("fork", recorded, str(number), "--name", f"at{number}").code == 0
        model = script("Done.")
        done = wink("resume", recorded, "--at", f"@at{number}", "go", "--model", model)
        assert done.code == 3, done.err
        with Timeline(recorded) as timeline:
            assert user_texts(timeline) == words


def test_a_branch_of_a_branch_and_one_after_an_undo_get_no_instruction_twice(
    wink: Wink, project: Path, script: Script
):
    model = script(edit(), write("docs/new.txt"), "Done.")
    kept = wink("run", "fix the mean", "--workspace", project, "--model", model, "--json")
    recorded, model = Path(kept.last["timeline"]), script("Done.")
    assert wink("undo", "last", "6").code == 0
    assert wink("resume", "last", "go", "--model", model).code == 3
    with Timeline(recorded) as timeline:
        assert user_texts(timeline)[0] == "fix the mean"
        assert user_texts(timeline)[1].startswith("go\n\nThe user changed")
        assert len(user_texts(timeline)) == 2
        last = str(timeline.last)
    wink("fork", recorded, last, "--name", "one")
    wink("fork", recorded, "@one", "--name", "two")
    assert wink("resume", recorded, "--at", "@two", "--model", model).code == 2  # had ended
    assert wink("resume", recorded, "--at", "@two", "more", "--model", model).code == 3
    with Timeline(recorded) as timeline:
        assert [each.partition("\n")[0] for each in user_texts(timeline)] == [
            *("fix the mean", "go", "more")
        ]


def test_a_branch_at_the_start_has_the_task_once(
    wink: Wink, project: Path, script: Script, recorded: Path
):
    wink("fork", recorded, "1", "--name", "again")
    assert wink("resume", recorded, "--at", "@again", "--model", script("Done.")).code == 0
    with Timeline(recorded) as timeline:
        assert user_texts(timeline) == ["fix the mean"]


def test_a_fork_names_a_branch_that_resume_continues(
    wink: Wink, project: Path, script: Script, recorded: Path
):
    done = wink("fork", "4", "--name", "other")
    assert done.code == 0
    assert f"wink resume {recorded.parent.name} --at @other 'what to do'" in done.err
    data = wink("fork", recorded, "4", "--json").last
    assert data == {"timeline": str(recorded), "branch": "branch-10", "step": 10, "parent": 4}
    model = script(write("else.txt"), "Done.")
    done = wink("resume", recorded, "--at", "@other", "x", "--model", model, "--discard")
    assert done.code == 0, done.err
    with Timeline(recorded) as timeline:
        assert timeline.step(11).parent == 9
        assert timeline.branch("other") == timeline.last
        assert timeline.branch("main") == 8
    assert "else.txt" in wink("diff", "@main", "@other", "--stat").out


def test_a_name_is_used_once(wink: Wink, recorded: Path):
    assert wink("fork", "4", "--name", "other").code == 0
    for name in ("other", "main", "5", "a/b", "\x1b[2J"):
        done = wink("fork", "4", "--name", name)
        assert done.code == 1, name
        assert "Branch " in done.err
