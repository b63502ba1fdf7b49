"""`wink run --evaluate`: a model evaluates code in the copy, and every command shows it."""

from pathlib import Path

import pytest

from tests.cli.workplace import Script, Wink
from weakincentives.contrib.evaluation import ENGINES, registry
from weakincentives.extras import install_command

CODE = """\
lines = read_text('calc.py').splitlines()
write_text('count.txt', str(len(lines)))
len(lines)"""


def evaluate(code: str = CODE, name: str = "evaluate_python") -> dict:
    return {"name": name, "arguments": {"code": code}}


def run(wink: Wink, project: Path, model: str, *options: str | Path):
    return wink("run", "count the lines", "--workspace", project, "--model", model, *options)


def test_a_model_evaluates_code_in_the_copy_and_the_run_can_be_replayed(
    wink: Wink, project: Path, script: Script
):
    steps = script(evaluate(), evaluate("write_text('b', '')\n1 / 0"), "Two lines.")
    done = run(wink, project, steps, "--evaluate", "auto", "--sandbox", "none", "--apply")
    assert done.code == 0
    assert "The model can evaluate Python code, with the engine python." in done.err
    subject = "lines = read_text('calc.py').splitlines() (3 lines)"
    assert f"evaluate_python  {subject} · count.txt" in done.err
    assert "failed evaluate_python" in done.err
    assert "The code failed at line 2: ZeroDivisionError" in done.err
    assert (project / "count.txt").read_text() == "2"
    assert not (project / "b").exists()
    log = wink("log", "last").out
    assert "evaluate_python lines = read_text('calc.py')" in log
    assert "count.txt +1" in log
    replayed = wink("replay", "last", "--sandbox", "none")
    assert (replayed.code, replayed.err) == (0, "Replayed 2 tool calls, all the same.\n")


def test_code_imports_modules_of_the_workspace_and_needs_no_sandbox(
    wink: Wink, project: Path, script: Script
):
    code = f"import calc\n{CODE}\ncalc.mean([1, 2, 3])"
    steps = script(evaluate(code, "python"), "Done.")
    done = run(
        wink,
        project,
        steps,
        *("--evaluate", "python", "--sandbox", "none"),
        *("--dialect", "openai", "--json", "--apply"),
    )
    started, tool = done.events[0], next(each for each in done.events if each["event"] == "tool")
    assert started["evaluate"] == "python"
    assert tool["success"], tool["message"]
    assert tool["message"].startswith("Value: 1.5")
    assert tool["paths"] == ["count.txt"]
    assert (project / "count.txt").read_text() == "2"
    replayed = wink("replay", "last", "--sandbox", "none", "--json")
    assert (replayed.code, len(replayed.last["replayed"]), replayed.last["skipped"]) == (0, 1, [])


def test_without_a_name_the_engine_that_computes_what_python_computes_is_used(
    wink: Wink, project: Path, script: Script
):
    done = run(wink, project, script(evaluate(), "Done."), "--evaluate", "--json")
    assert done.events[0]["evaluate"] == "python"


def test_without_the_option_there_is_no_such_tool(wink: Wink, project: Path, script: Script):
    done = run(wink, project, script(evaluate(), "Done."), "--json")
    assert done.events[0]["evaluate"] == "none"
    tool = next(each for each in done.events if each["event"] == "tool")
    assert "Unknown tool: 'evaluate_python'" in tool["message"]


def test_a_missing_extra_ends_the_run_with_the_command_that_gets_it(
    wink: Wink, project: Path, script: Script, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    done = run(wink, project, script("Done."), "--evaluate", "monty")
    assert done.code == 2
    assert install_command("monty") in done.err
    default = run(wink, project, script("Done."), "--evaluate", "auto", "--sandbox", "none")
    assert default.code == 0
    doctor = wink("doctor", "--json", "--workspace", project)
    engines = {each["name"]: each for each in doctor.last["checks"] if each["group"] == "engines"}
    assert engines.keys() == ENGINES.keys()
    assert engines["monty"]["fix"] == install_command("monty")


def test_a_workspace_cannot_choose_an_engine(wink: Wink, project: Path, script: Script):
    (project / "wink.toml").write_text('evaluate = "auto"\n')
    done = run(wink, project, script("Done."))
    assert done.code == 2
    assert "evaluate cannot be set by a workspace's wink.toml" in done.err
