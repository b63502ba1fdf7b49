"""`wink run --continue`: go on with the last run, in its copy, also after a kill."""

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from subprocess import DEVNULL, PIPE, TimeoutExpired

import pytest

from tests.adapters.anthropic import server as anthropic
from tests.adapters.chat_server import Server, says, serving
from tests.cli.workplace import FIXED, Script, Wink, edit, shell, write
from tests.preloaded import PreloadedProcess
from tests.sizes import size
from weakincentives.adapters import ToolCall, ToolMessage, UserMessage
from weakincentives.adapters.messages import load_messages
from weakincentives.cli.runs import (
    find_last_run,
    new_copy,
    run_directory,
    steps_path,
)
from weakincentives.contrib.review.records import read_record
from weakincentives.runtime.timeline import Timeline

Copies = Callable[[], list[Path]]
Texts = Callable[[], list[str]]


@pytest.fixture
def said(copies: Copies) -> Texts:
    """Return what finds everything that the user told the model in the only run."""

    def find() -> list[str]:
        with Timeline(steps_path(run_directory(copies()[0]))) as timeline:
            messages = load_messages(timeline.messages(timeline.last))
        return [each.text for each in messages if isinstance(each, UserMessage)]

    return find


def kill_at(point: str, project: Path, model: str, *options: str) -> None:
    """Run a task in a process that is killed when its output has a line with a text."""
    arguments = ("run", "x", "--workspace", project, "--model", model, "--json", *options)
    process = PreloadedProcess(
        [sys.executable, "-m", "weakincentives", *map(str, arguments)], stdout=PIPE
    )
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            if point.encode() in line:
                break
        process.kill()
    assert process.wait() == -signal.SIGKILL


def stuck(tmp_path: Path, command: str) -> dict:
    """Return the call of a command that tells when it was run, and never ends."""
    os.mkfifo(tmp_path / "runs")
    os.mkfifo(tmp_path / "never")
    return shell("sh", "-c", f"{command}; echo > {tmp_path}/runs; cat {tmp_path}/never")


def kill_in_command(
    tmp_path: Path, project: Path, model: str, before: Callable[[], object] = lambda: None
) -> None:
    """Run a task in a process that is killed while its command runs."""
    arguments = ("run", "x", "--workspace", project, "--model", model, "--sandbox", "local")
    process = PreloadedProcess(
        [sys.executable, "-m", "weakincentives", *map(str, arguments)],
        stdout=DEVNULL,
        stderr=DEVNULL,
    )
    (tmp_path / "runs").read_bytes()
    before()
    process.kill()
    process.wait()


def test_the_last_run_goes_on_in_its_copy_with_its_conversation(
    wink: Wink, project: Path, script: Script, copies: Copies, said: Texts
):
    wink("run", "fix the mean", "--workspace", project, "--model", script(edit(), "Done."))
    model = script(write("more.txt"), "More is done.")
    done = wink("run", "--continue", "and more", "--workspace", project, "--model", model, "--json")
    assert done.code == 3, done.err
    assert [each["event"] for each in done.events][:2] == ["resumed", "started"]
    resumed = done.events[0]
    assert (resumed["task"], resumed["step"]) == ("fix the mean", 6)
    assert (resumed["edited"], resumed["is_new_copy"]) == ([], False)
    assert len(copies()) == 1
    assert [each["path"] for each in done.last["changes"]] == ["calc.py", "more.txt"]
    assert said() == ["fix the mean", "and more"]


def test_the_model_is_told_what_the_person_changed_in_the_copy(
    wink: Wink, project: Path, script: Script, copies: Copies, said: Texts
):
    wink("run", "fix", "--workspace", project, "--model", script(edit(), "Done."))
    (copies()[0] / "workspace" / "calc.py").write_text("# mine\n")
    (copies()[0] / "workspace" / "docs" / "notes.md").unlink()
    done = wink("run", "--continue", "more", "--workspace", project, "--model", script("Done."))
    assert done.code == 3, done.err
    assert "kept, changed by you since the last step: calc.py, docs/notes.md" in done.err
    assert said()[1].startswith("more\n\nThe user changed these files since your last step: ")
    assert "calc.py, docs/notes.md" in said()[1]
    assert (copies()[0] / "workspace" / "calc.py").read_text() == "# mine\n"


def test_after_an_apply_only_what_is_new_is_offered(wink: Wink, project: Path, script: Script):
    run = ("--workspace", project, "--apply", "--model")
    assert wink("run", "fix", *run, script(edit(), "Done.")).code == 0
    (project / "mine.txt").write_text("mine\n")
    done = wink("run", "--continue", "more", *run, script(write("new.txt"), "Done."), "--json")
    assert done.code == 0, done.err
    assert done.events[0]["edited"] == ["mine.txt"]
    assert [each["path"] for each in done.last["changes"]] == ["new.txt"]
    assert (project / "calc.py").read_text() == FIXED
    assert (project / "mine.txt").read_text() == "mine\n"


def test_a_run_whose_copy_is_gone_goes_on_in_a_new_one(
    wink: Wink, project: Path, script: Script, copies: Copies
):
    wink("run", "fix", "--workspace", project, "--model", script(edit(), "Done."), "--discard")
    assert copies() == []
    model = script(write("new.txt"), "Done.")
    done = wink("run", "--continue", "more", "--workspace", project, "--model", model, "--apply")
    assert done.code == 0, done.err
    assert (project / "calc.py").read_text() == FIXED
    assert (project / "new.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--continue"], 2, "The run had ended at step 4; say what to do next: wink resume "),
        (["--continue", "x", "--no-dump"], 2, "--no-dump cannot be used with --continue"),
        (["--continue", "x", "--exclude", "a"], 2, "--exclude cannot be used with --continue"),
        (["--continue", " "], 2, "The task is empty"),
        ([], 2, "Missing argument 'TASK'"),
    ],
)
def test_what_cannot_go_on_says_what_to_do(
    arguments: list[str], code: int, says: str, wink: Wink, project: Path, script: Script
):
    wink("run", "look", "--workspace", project, "--model", script("Nothing to do."))
    done = wink("run", *arguments, "--workspace", project)
    assert (done.code, says in done.err) == (code, True), done.err


def test_without_a_run_or_its_steps_one_sentence_says_so(
    wink: Wink, project: Path, script: Script, copies: Copies, tmp_path: Path
):
    other = tmp_path / "other"
    other.mkdir()
    model = script(edit(), "Done.")
    assert wink("run", "x", "--workspace", project, "--model", model, "--no-dump").code == 3
    done = wink("run", "--continue", "more", "--workspace", project, "--model", model)
    assert (done.code, "were not recorded" in done.err) == (1, True)
    assert f"wink review {copies()[0].name}" in done.err
    done = wink("run", "--continue", "more", "--workspace", other, "--model", model)
    assert (done.code, "No run to continue in" in done.err) == (1, True)


def test_the_last_run_of_a_directory_is_the_newest_that_is_left(
    wink: Wink, project: Path, script: Script
):
    arguments = ("--workspace", project, "--model", script("Done."))
    first, second = (wink("run", "x", *arguments, "--json").last["timeline"] for _ in range(2))
    assert find_last_run(project).steps == Path(second)
    shutil.rmtree(Path(second).parent)
    assert find_last_run(project).steps == Path(first)


def test_a_run_without_a_recorded_step_is_started_again(
    wink: Wink, project: Path, script: Script, copies: Copies
):
    model = script(edit(), "Done.")
    wink("run", "fix the mean", "--workspace", project, "--model", model)
    os.truncate(steps_path(copies()[0]) / "steps", 200)  # killed while it recorded the files
    done = wink("run", "--continue", "--workspace", project, "--model", model)
    assert (done.code, "start it again: wink run 'fix the mean'" in done.err) == (1, True)


def test_a_run_that_still_goes_on_is_not_continued(
    wink: Wink, project: Path, script: Script, tmp_path: Path
):
    model = script(stuck(tmp_path, "true"), "Done.")
    arguments = ("run", "x", "--workspace", project, "--model", model, "--sandbox", "local")
    process = PreloadedProcess(
        [sys.executable, "-m", "weakincentives", *map(str, arguments)],
        stdout=DEVNULL,
        stderr=DEVNULL,
    )
    (tmp_path / "runs").read_bytes()
    done = wink("run", "--continue", "more", "--workspace", project)
    assert (done.code, "is still running" in done.err) == (1, True)
    (tmp_path / "never").write_text("")
    assert process.wait() == 0


# --- after a kill ---


@pytest.fixture
def killed(project: Path, script: Script, copies: Copies, tmp_path: Path) -> Path:
    """Return the workspace of a run that was killed in a command; the user saved before."""
    (project / ".venv").mkdir()  # it is not recorded
    (project / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    command = "echo half > half.txt; echo half > docs/notes.md; mkdir -p deep/er"
    model = script(write("kept.txt"), stuck(tmp_path, command))

    def save() -> None:
        (copies()[0] / "workspace" / "calc.py").write_text("# saved before the kill\n")

    kill_in_command(tmp_path, project, model, save)
    return copies()[0] / "workspace"


def test_whatever_a_command_or_the_user_changed_before_a_kill_stays(
    wink: Wink, project: Path, script: Script, killed: Path, said: Texts
):
    model = script(shell("true"), "Done.")
    done = wink(
        *("run", "--continue", "--workspace", project, "--model", model, "--json"),
        *("--sandbox", "local"),
    )
    assert done.code == 3, done.err
    edited = ["calc.py", "deep/er", "docs/notes.md", "half.txt"]
    assert (done.events[0]["edited"], done.events[0]["was_in_call"]) == (edited, True)
    assert (killed / "calc.py").read_text() == "# saved before the kill\n"
    assert (killed / "half.txt").read_text() == (killed / "docs/notes.md").read_text() == "half\n"
    assert (killed / "kept.txt").exists()
    assert (killed / ".venv" / "pyvenv.cfg").exists()
    with Timeline(steps_path(killed.parent)) as timeline:
        messages = load_messages(timeline.messages(timeline.last))
        steps = [each for each in timeline.steps if "by the interrupted call" in each.title]
        assert timeline.changes(steps[0].number).entries
    results = [each for each in messages if each.role == "tool"]
    assert "its changes may be incomplete" in results[1].text
    assert "it or the user changed these files, which may be half done: calc.py," in said()[-1]


def test_what_the_user_saves_right_after_the_kill_stays(
    wink: Wink, project: Path, script: Script, killed: Path
):
    (killed / "half.txt").write_text("finished by hand\n")
    (killed / "docs" / "notes.md").unlink()
    done = wink("run", "--continue", "--workspace", project, "--model", script("Done."))
    assert done.code == 3, done.err
    assert "kept, changed by the interrupted call, or by you since the last step: " in done.err
    assert (killed / "half.txt").read_text() == "finished by hand\n"
    assert not (killed / "docs" / "notes.md").exists()


def test_a_copy_with_a_damaged_record_is_not_replaced_by_a_new_one(
    wink: Wink, project: Path, script: Script, killed: Path, copies: Copies
):
    (killed.parent / "run.json").write_text("{")
    done = wink("run", "--continue", "--workspace", project, "--model", script("Done."))
    assert done.code == 1
    assert f"its files are kept in '{killed}'" in done.err
    assert copies() == [killed.parent]


def test_a_copy_that_was_being_made_when_the_run_was_killed_is_made_again(
    wink: Wink, project: Path, script: Script, copies: Copies
):
    wink("run", "fix", "--workspace", project, "--model", script(edit(), "Done."), "--apply")
    [place] = copies()
    with new_copy(place, read_record(place)) as half:
        (half / "workspace").mkdir()
        (half / "workspace" / "half").touch()
    done = wink("run", "--continue", "more", "--workspace", project, "--model", script("Done."))
    assert done.code == 0, done.err
    assert not (half / "workspace" / "half").exists()


@pytest.mark.parametrize("point", ['"started"', '"step": 1', '"event": "tool"'])
def test_a_kill_at_any_point_loses_no_step(
    wink: Wink, project: Path, script: Script, copies: Copies, point: str
):
    steps = [write(f"{number}.txt") for number in range(9)]
    kill_at(point, project, script(*steps, "Done."))
    done = wink("run", "--continue", "--workspace", project, "--model", script("Done."), "--json")
    if done.code == 1:  # the kill came before the first step was recorded
        assert "was stopped before" in done.err
        assert "start it again" in done.err
        return
    assert done.code in (0, 3), done.err
    check_consistent(copies()[0] if copies() else None)


def check_consistent(place: Path | None) -> set[str]:
    """Check that files, conversation and steps of a run tell the same; return the files."""
    if place is None:  # nothing was changed
        return set()
    with Timeline(steps_path(run_directory(place))) as timeline:
        messages = load_messages(timeline.messages(timeline.last))
        recorded = {each.path for each in timeline.files(timeline.last).glob("*.txt")}
    results = {each.call_id: each.success for each in messages if isinstance(each, ToolMessage)}
    calls = [each for message in messages for each in getattr(message, "tool_calls", ())]
    assert results.keys() == {each.call_id for each in calls}
    done = {_NAME.findall(str(each.arguments))[0] for each in calls if results[each.call_id]}
    there = {each.name: each.read_text() for each in (place / "workspace").glob("*.txt")}
    assert recorded == there.keys() >= done
    told = " ".join(each.text for each in messages if isinstance(each, UserMessage))
    assert all(each in told for each in there.keys() - done)  # calls that did not finish
    assert {there[each] for each in done} <= {"new\n"}
    return {name for name, text in there.items() if text == "new\n"}


_NAME = re.compile(r"\d+\.txt")


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_comes_to_its_end(
    wink: Wink, project: Path, script: Script, copies: Copies
):
    """Kill a run at random moments, and continue it until all files are written."""
    random = Random(16)
    options = ("--workspace", project, "--sandbox", "local", "--json", "--model")
    wanted, done = {f"{number}.txt" for number in range(KILLS * 2)}, set[str]()
    half = "echo half > {0}; echo more > {0}.tmp; rm {0}.tmp; echo new > {0}"
    for _ in range(KILLS):
        steps = [
            random.choice([write(each), shell("sh", "-c", half.format(each))])
            if each not in found(copies())
            else shell("sh", "-c", half.format(each))
            for each in sorted(wanted - done)
        ]
        words = ("--continue", "go on") if copies() else ("begin",)
        kill_after(random.randrange(9), random.random() / 20, *words, *options, script(*steps))
        if copies():
            finished = wink("run", "--continue", "check", *options, script("Checked."))
            assert finished.code in (0, 1, 3), finished.err
            done = check_consistent(copies()[0]) if finished.code == 3 else done
            if "was stopped before" in finished.err:
                assert not done
                shutil.rmtree(copies()[0])  # and start again, as it says
    left = [shell("sh", "-c", half.format(each)) for each in sorted(wanted - done)]
    words = ("--continue", "end") if copies() else ("begin",)
    assert wink("run", *words, *options, script(*left, "Done.")).code == 3
    assert check_consistent(copies()[0]) == wanted


@pytest.mark.slow
def test_no_save_of_the_user_is_lost_in_a_run_that_is_killed_again_and_again(
    wink: Wink, project: Path, script: Script, copies: Copies
):
    """Save files in the copy before and after kills at random moments, and continue."""
    random, saves, number = Random(KILLS), dict[str, str](), 0
    options = ("--workspace", project, "--sandbox", "local", "--json", "--model")
    done = wink("run", "begin", *options, script(write("0.txt"), "Done."))
    assert done.code == 3, done.err
    [place] = copies()

    def save() -> None:
        # not what a command of this round may be writing
        there = (each.name for each in (place / "workspace").glob("*.txt"))
        known = [each for each in there if not each.startswith(f"{number}-")]
        path = random.choice([*known, f"mine-{len(saves)}.txt"])
        if saves.keys() & {path}:
            return
        saves[path] = f"save {len(saves)} {random.random()}\n"
        (place / "workspace" / path).write_text(saves[path])

    for number in range(1, KILLS):
        names = [f"{number}-{each}.txt" for each in range(6)]
        steps = [
            random.choice([write(each), shell("sh", "-c", f"echo half > {each}; echo x > {each}")])
            for each in names
        ]
        arguments = ("--continue", "go on", *options, script(*steps, "Done."))
        kill_after(random.randrange(9), random.random() / 20, *arguments, between=save)
        for _ in range(random.randrange(3)):
            save()
        finished = wink("run", "--continue", "check", *options, script("Checked."))
        assert finished.code == 3, finished.err
        assert copies() == [place]
        found = {path: (place / "workspace" / path).read_text() for path in saves}
        assert found == saves


KILLS = size(7, 20)


def found(copies: list[Path]) -> set[str]:
    return {each.name for place in copies for each in (place / "workspace").glob("*.txt")}


def kill_after(
    lines: int,
    seconds: float,
    *arguments: str | Path,
    between: Callable[[], object] = lambda: None,
) -> None:
    """Run a task in a process, and kill it some time after some lines of its output."""
    process = PreloadedProcess(
        [sys.executable, "-m", "weakincentives", "run", *map(str, arguments)],
        stdout=PIPE,
    )
    assert process.stdout is not None
    with process.stdout as output, suppress(TimeoutExpired):
        for _ in range(lines):
            output.readline()
            between()
        process.wait(seconds)
    process.kill()
    process.wait()


# --- providers ---


def test_the_whole_conversation_is_sent_again(
    wink: Wink, project: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    call = ToolCall("shell", {"command": ["true"]}, "call_1")
    with serving(says("", call), says("First."), says("Second.")) as server:
        options = ("--workspace", project, "--base-url", server.url, "--model", "openai:gpt-test")
        assert wink("run", "one", *options).code == 0
        assert wink("run", "--continue", "two", *options).code == 0
    check_requests(server)


def check_requests(server: Server) -> None:
    first, _, last = (request.body["messages"] for request in server.requests)
    assert last[: len(first)][1:] == first[1:]
    roles = [each["role"] for each in last]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert (last[-2]["content"], last[-1]["content"]) == ("First.", "two")
    assert last[2]["tool_calls"][0]["id"] == last[3]["tool_call_id"]


def test_a_conversation_with_anthropic_goes_on_after_a_failure(
    wink: Wink, project: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-mine")
    thought = {"type": "thinking", "thinking": "I look.", "signature": "c2lnbmVk"}
    call = anthropic.use(ToolCall("Read", {"file_path": "calc.py"}, "toolu_1"))
    answers = (
        anthropic.sends(thought, call, stop="tool_use"),
        anthropic.fails(400),
        anthropic.says("First."),
        anthropic.says("Second."),
    )
    with serving(*answers) as server:
        options = ("--workspace", project, "--base-url", server.url)
        model = ("--model", "anthropic:claude-test-1")
        assert wink("run", "one", *options, *model).code == 1
        done = wink("run", "--continue", *options, *model)
        assert done.code == 0, done.err
        done = wink("run", "--continue", "two", *options, *model)
        assert done.code == 0, done.err
    *_, third, last = (request.body["messages"] for request in server.requests)
    assert [each["role"] for each in third] == ["user", "assistant", "user"]
    assert [each["role"] for each in last] == ["user", "assistant", "user", "assistant", "user"]
    for messages in (third, last):
        assert messages[1]["content"][0] == thought
        assert messages[1]["content"][-1]["id"] == "toolu_1"
        result = messages[2]["content"][0]
        assert (result["type"], result["tool_use_id"]) == ("tool_result", "toolu_1")
        assert "def mean" in str(result["content"])
    assert "two" in str(last[-1]["content"])
