"""Keys typed during a run, and how a run ends: a real terminal, real signals."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.workplace import CALC, FIXED, QUESTION, Script, Terminal, edit, shell

Copies = Callable[[], list[Path]]

pytestmark = pytest.mark.usefixtures("own_places")


def waiting(project: Path, tmp_path: Path) -> dict:
    """Return the call of a command that says that it runs, and ends when a file is there."""
    pipe = tmp_path / "go"
    os.mkfifo(pipe)
    return shell("sh", "-c", f"touch {tmp_path}/runs; cat {pipe}")


def started(project: Path, model: str, *options: str) -> Terminal:
    arguments = ("run", "x", "--workspace", project, "--model", model, "--sandbox", "local")
    terminal = Terminal(*arguments, *options)
    terminal.wait_for("running")
    return terminal


def go(tmp_path: Path) -> None:
    """Let the command end."""
    (tmp_path / "go").write_text("")


def test_keys_typed_while_a_run_works_are_neither_shown_nor_an_answer(
    project: Path, script: Script, tmp_path: Path, copies: Copies
):
    terminal = started(project, script(edit(), waiting(project, tmp_path), "Done."))
    assert not terminal.echoes()
    terminal.type("a\nzqzqz\n")
    go(tmp_path)
    terminal.wait_for(QUESTION)
    assert terminal.echoes()
    assert b"zqzqz" not in terminal.seen
    assert (project / "calc.py").read_text() == CALC
    terminal.type("k\n")
    done = terminal.end()
    assert done.code == 3
    assert (project / "calc.py").read_text() == CALC
    assert len(copies()) == 1


def test_an_answer_that_is_typed_to_the_question_counts(
    project: Path, script: Script, tmp_path: Path
):
    terminal = started(project, script(edit(), waiting(project, tmp_path), "Done."))
    terminal.type("d\n")
    go(tmp_path)
    terminal.wait_for(QUESTION)
    terminal.type("a\n")
    assert terminal.end().code == 0
    assert (project / "calc.py").read_text() == FIXED


def test_keys_typed_before_a_second_question_do_not_answer_it(
    project: Path, script: Script, tmp_path: Path
):
    terminal = started(project, script(edit(), waiting(project, tmp_path), "Done."))
    go(tmp_path)
    terminal.wait_for(QUESTION)
    terminal.type("x\nd\n")  # the second line comes before the question that it would answer
    terminal.wait_for(QUESTION)
    terminal.type("a\n")
    assert terminal.end().code == 0
    assert (project / "calc.py").read_text() == FIXED


def test_ctrl_c_works_while_nothing_is_shown_and_the_terminal_is_as_it_was(
    project: Path, script: Script, tmp_path: Path
):
    terminal = started(project, script(edit(), waiting(project, tmp_path), "Done."))
    terminal.wait_for("running: sh")
    terminal.type("\x03")
    terminal.wait_for(QUESTION)
    assert terminal.echoes()
    terminal.type("k\n")
    done = terminal.end()
    assert done.code == 130
    assert "interrupted shell_execute" in done.out
    assert "what it changed in the copy was undone" in done.out
    assert "Interrupted; changes so far:" in done.out
    assert re.search("· wink log, debug or resume [0-9a-f]{8}$", done.out, re.MULTILINE)
    assert "Unavailable" not in done.out


def test_an_interrupted_run_without_changes_says_only_that(
    project: Path, script: Script, tmp_path: Path, copies: Copies
):
    terminal = started(project, script(waiting(project, tmp_path), "Done."))
    terminal.wait_for("running: sh")
    terminal.type("\x03")
    terminal.wait_for(r"end\): \Z")
    terminal.type("\n")
    done = terminal.end()
    assert done.code == 130
    assert "Interrupted.\nNothing was changed.\n" in done.out
    assert "so far" not in done.out
    assert copies() == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_request_to_end_in_the_models_turn_asks_nobody_and_restores_the_terminal(
    project: Path, script: Script, tmp_path: Path, copies: Copies, number: int, code: int
):
    terminal = started(project, script(edit(), waiting(project, tmp_path), "Done."))
    os.kill(terminal.process.pid, number)
    assert terminal.process.wait() == code
    assert terminal.echoes()
    assert f"wink review {copies()[0].name} --apply" in terminal.end().out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_request_to_end_at_the_question_names_the_copy(
    project: Path, script: Script, tmp_path: Path, copies: Copies, number: int, code: int
):
    terminal = started(project, script(edit(), waiting(project, tmp_path), "Done."))
    go(tmp_path)
    terminal.wait_for(QUESTION)
    os.kill(terminal.process.pid, number)
    done = terminal.end()
    assert done.code == code
    assert f"The working copy is kept: wink review {copies()[0].name}" in done.out
    assert (project / "calc.py").read_text() == CALC
    again = Terminal("review", copies()[0])
    again.wait_for(QUESTION)
    os.kill(again.process.pid, number)
    done = again.end()
    assert done.code == code
    assert f"The working copy is kept: wink review {copies()[0].name}" in done.out


def test_no_isolation_is_said_by_the_run_itself(project: Path, script: Script, tmp_path: Path):
    terminal = started(project, script(edit(), waiting(project, tmp_path), "Done."))
    go(tmp_path)
    terminal.wait_for(QUESTION)
    terminal.type("d\n")
    assert "with no isolation" in terminal.end().out
