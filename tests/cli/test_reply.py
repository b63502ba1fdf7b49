"""Replies at the end of a run: it goes on in the same copy, session and conversation."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.workplace import (
    CALC,
    FIXED,
    QUESTION,
    Script,
    Terminal,
    edit,
    on_terminal,
    shell,
    write,
)
from weakincentives.adapters import Message, UserMessage
from weakincentives.adapters.messages import load_messages
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.timeline import Timeline

Copies = Callable[[], list[Path]]
EMPTY = r"end\): \Z"

pytestmark = pytest.mark.usefixtures("own_places")


def timeline_of(tmp_path: Path) -> Path:
    [found] = (tmp_path / "places" / "state" / "wink" / "runs").glob("*/history")
    return found


def conversation(tmp_path: Path) -> tuple[Message, ...]:
    with Timeline(timeline_of(tmp_path)) as timeline:
        return load_messages(timeline.messages(timeline.last))


def said(tmp_path: Path) -> list[str]:
    return [each.text for each in conversation(tmp_path) if isinstance(each, UserMessage)]


def test_replies_go_on_in_the_same_copy_session_and_conversation(
    project: Path, script: Script, tmp_path: Path, copies: Copies
):
    model = script(edit(), "First.", write("second.txt"), "Second.", write("third.txt"), "Third.")
    arguments = ("run", "fix the mean", "--workspace", project, "--model", model)
    terminal = Terminal(*arguments, "--sandbox", "none")
    terminal.wait_for(QUESTION)
    assert b"[r]eply" in terminal.seen
    terminal.type("not like that, keep the old name\n")
    terminal.wait_for(QUESTION)
    assert (project / "calc.py").read_text() == CALC
    assert len(copies()) == 1
    assert b"Changed in this round:" in terminal.seen
    assert b"All changes:" in terminal.seen
    (copies()[0] / "workspace" / "mine.txt").write_text("mine\n")
    terminal.type("r\n")
    terminal.wait_for(r"none\): \Z")
    terminal.type("more\n")
    terminal.wait_for(QUESTION)
    terminal.type("a\n")
    done = terminal.end()
    assert done.code == 0, done.out
    assert (project / "calc.py").read_text() == FIXED
    assert (project / "second.txt").exists()
    assert (project / "third.txt").exists()
    roles = [each.role for each in conversation(tmp_path)]
    assert roles == ["system"] + 3 * ["user", "assistant", "tool", "assistant"]
    assert said(tmp_path)[:2] == ["fix the mean", "not like that, keep the old name"]
    assert re.match(r"more\n\nThe user changed these files .*: mine\.txt\.", said(tmp_path)[2])
    assert (project / "mine.txt").exists()
    with Timeline(timeline_of(tmp_path)) as timeline:
        assert len(timeline.leaves()) == 1
        assert [each.kind for each in timeline.steps].count("start") == 3
        session = timeline.session(timeline.last, unknown="data")
    assert [each.tool for each in session[ToolInvoked].all()] == ["edit_file"] + 2 * ["write_file"]


def test_a_typo_neither_applies_nor_discards_and_no_reply_asks_again(
    project: Path, script: Script, copies: Copies
):
    terminal = Terminal("run", "x", "--workspace", project, "--model", script(edit(), "Done."))
    for answer in ("argh\n", "discrad\n", "R\n"):
        terminal.wait_for(QUESTION)
        terminal.type(answer)
    terminal.wait_for(r"none\): \Z")
    terminal.type("\n")
    terminal.wait_for(QUESTION)
    assert (project / "calc.py").read_text() == CALC
    assert len(copies()) == 1
    terminal.type("keep\n")
    assert terminal.end().code == 3


def test_a_question_of_the_model_can_be_answered_when_nothing_was_changed(
    project: Path, script: Script, tmp_path: Path, copies: Copies
):
    model = script("Which name?", "Still nothing.")
    terminal = Terminal("run", "x", "--workspace", project, "--model", model, "--no-dump")
    terminal.wait_for(EMPTY)
    terminal.type("the first one\nand nothing else\n")  # pasted
    terminal.wait_for(EMPTY)
    assert b"Still nothing." in terminal.seen
    terminal.type("\n")
    assert terminal.end().code == 0
    assert copies() == []


def test_ctrl_c_stops_the_round_and_a_reply_begins_another(
    project: Path, script: Script, tmp_path: Path
):
    os.mkfifo(tmp_path / "never")
    stuck = shell("sh", "-c", f"echo half > half.txt; cat {tmp_path}/never")
    model = script(edit(), stuck, write("other.txt"), "Done.")
    terminal = Terminal(
        *("run", "fix", "--workspace", project, "--model", model, "--sandbox", "local")
    )
    terminal.wait_for("running")
    terminal.type("\x03")
    terminal.wait_for(QUESTION)
    terminal.type("use another way\n")
    terminal.wait_for(QUESTION)
    terminal.type("a\n")
    assert terminal.end().code == 0
    assert (project / "other.txt").exists()
    assert not (project / "half.txt").exists()
    roles = [each.role for each in conversation(tmp_path)]
    calls = ["assistant", "tool"]
    assert roles == ["system", "user", *2 * calls, "user", *calls, "assistant"]


def test_a_round_that_was_killed_goes_on_and_shows_all_its_changes(
    project: Path, script: Script, tmp_path: Path
):
    for name in ("runs", "never"):
        os.mkfifo(tmp_path / name)
    stuck = shell("sh", "-c", f"echo > {tmp_path}/runs; cat {tmp_path}/never")
    model = script(edit(), "First.", write("second.txt"), stuck)
    arguments = ("--workspace", project, "--sandbox", "local", "--model")
    terminal = Terminal("run", "x", *arguments, model)
    terminal.wait_for(QUESTION)
    terminal.type("add a file too\n")
    (tmp_path / "runs").read_bytes()
    terminal.process.kill()
    terminal.end()
    terminal = Terminal("run", "--continue", *arguments, script("Done."))
    terminal.wait_for(QUESTION)
    terminal.type("k\n")
    done = terminal.end()
    assert "This round changed nothing" not in done.out
    _, _, after = done.out.partition("Changed in this round:")
    this_round, _, everything = after.partition("All changes:")
    assert ("second.txt" in this_round, "calc.py" in this_round) == (True, False), done.out
    assert ("second.txt" in everything, "calc.py" in everything) == (True, True)


def test_a_second_ctrl_c_at_the_question_keeps_the_copy(
    project: Path, script: Script, copies: Copies
):
    terminal = Terminal("run", "x", "--workspace", project, "--model", script(edit(), "Done."))
    terminal.wait_for(QUESTION)
    terminal.type("go on please\n")  # the script has ended, so this round fails
    terminal.wait_for(QUESTION)
    terminal.type("\x03")
    done = terminal.end()
    assert done.code == 1
    assert f"wink review {copies()[0].name} --apply" in done.out
    assert (project / "calc.py").read_text() == CALC


def test_limits_are_counted_anew_in_each_round(project: Path, script: Script):
    model = script(edit(), "First.", write("second.txt"), "Second.")
    done = on_terminal(
        *("run", "x", "--workspace", project, "--model", model, "--max-steps", "2"),
        answers="and a second file\na\n",
    )
    assert done.code == 0, done.out
    assert (project / "second.txt").exists()


def test_a_reply_in_a_review_continues_the_run_in_its_copy(
    project: Path, script: Script, tmp_path: Path, copies: Copies
):
    model = script(edit(), "First.")
    arguments = ("run", "fix the mean", "--workspace", project, "--model", model)
    on_terminal(*arguments, "--sandbox", "none", answers="k\n")
    script(write("second.txt"), "Second.")
    done = on_terminal("review", "last", answers="add a second file\na\n")
    assert done.code == 0
    assert "Continuing the run " in done.out
    assert (project / "calc.py").read_text() == FIXED
    assert (project / "second.txt").read_text() == "new\n"
    assert len(copies()) == 1
    assert said(tmp_path) == ["fix the mean", "add a second file"]


def test_a_review_of_a_run_without_steps_offers_no_reply(project: Path, script: Script):
    arguments = ("run", "x", "--workspace", project, "--model", script(edit(), "Done."))
    on_terminal(*arguments, "--no-dump", answers="k\n")
    done = on_terminal("review", "last", answers="d\n")
    assert "[r]eply" not in done.out
    assert "[k]eep for later" in done.out
