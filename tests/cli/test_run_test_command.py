"""`--test-cmd`: a failure goes back to the model, and decides how the run ends."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.workplace import CALC, FIXED, Done, Script, Wink, edit, write

CHECK = "grep -q 'len(numbers)$' calc.py || { echo wrong: $(grep return calc.py) >&2; exit 3; }"
Run = Callable[..., Done]


@pytest.fixture
def run(wink: Wink, project: Path, script: Script) -> Run:
    """Return what runs a script with a test command."""

    def start(*steps: object, options: tuple[str, ...] = ("--json",)) -> Done:
        return wink(
            "run", "fix the mean", "--workspace", project, "--model", script(*steps),
            "--sandbox", "local", "--test-cmd", CHECK, *options,
        )  # fmt: skip

    return start


def events(done: Done, kind: str) -> list[dict]:
    return [each for each in done.events if each["event"] == kind]


def test_a_failure_goes_back_to_the_model_until_the_tests_pass(run: Run, project: Path, wink: Wink):
    done = run("I think it is right.", edit(), "Now it is.", options=("--json", "--apply"))
    assert done.code == 0, done.err
    assert (project / "calc.py").read_text() == FIXED
    tests = events(done, "test")
    assert [(each["passed"], each["exit_code"], each["round"]) for each in tests] == [
        (False, 3, 0),
        (True, 0, 1),
    ]
    assert "wrong: return sum(numbers)" in tests[0]["output"]
    last = done.last
    assert (last["test_passed"], last["test_runs"]) == (True, 2)
    assert (last["steps"], last["tool_calls"], last["answer"]) == (3, 1, "Now it is.")
    log = wink("log", "last", "--json")
    ran = [each for each in log.events if each["kind"] == "test"]
    assert [each["exit_code"] for each in ran] == [3, 0]
    assert [each["actor"] for each in ran] == ["command", "command"]
    steps = [each["number"] for each in log.events if each["kind"] == "prompt"]
    assert len(steps) == 2
    said = wink("show", "last", str(steps[1]), "--full").out
    assert "the user's test command was run, and it failed:" in said
    assert "exit code 3" in said


def test_tests_that_still_fail_make_the_run_fail_and_keep_the_changes(
    run: Run, project: Path, copies: Callable[[], list[Path]]
):
    options = ("--json", "--apply", "--test-rounds", "1")
    done = run(write("new.txt"), "Done.", "Really.", options=options)
    assert done.code == 1
    assert (project / "calc.py").read_text() == CALC
    assert not (project / "new.txt").exists()
    assert len(copies()) == 1
    last = done.last
    assert (last["status"], last["result"], last["test_passed"]) == ("failed", "kept", False)
    assert last["error"].startswith("The tests still fail: `grep -q")
    assert (last["steps"], last["tool_calls"], last["test_runs"]) == (3, 1, 2)


def test_a_person_sees_the_last_lines_of_a_failure(run: Run):
    done = run("One.", "Two.", options=("--test-rounds", "1", "--apply"))
    assert "tests: `grep" in done.err
    assert "    wrong: return sum(numbers)" in done.err
    assert "The tests fail; nothing was applied." in done.err
    assert "allow more rounds with --test-rounds" in done.err


def test_all_rounds_share_the_limit_of_steps(run: Run):
    done = run("One.", "Two.", "Three.", options=("--json", "--max-steps", "2"))
    assert (done.code, done.last["steps"]) == (1, 2)
    assert "no steps are left" in done.last["error"]
    assert done.last["advice"] == "raise the limit with --max-steps"


def test_the_tests_have_the_time_limit_of_commands(wink: Wink, project: Path, script: Script):
    done = wink(
        "run", "x", "--workspace", project, "--model", script("One.", "Two."), "--json",
        "--sandbox", "local", "--test-cmd", "sleep 60", "--command-timeout", "1s",
        "--test-rounds", "1",
    )  # fmt: skip
    assert [each["timed_out"] for each in events(done, "test")] == [True, True]


def test_without_a_sandbox_there_is_an_error_before_anything_is_copied(
    wink: Wink, project: Path, script: Script, copies: Callable[[], list[Path]]
):
    options = ("--workspace", project, "--model", script("Done."), "--sandbox", "none")
    done = wink("run", "x", *options, "--test-cmd", "true")
    assert (done.code, copies()) == (2, [])
    assert "--test-cmd needs a sandbox to run in" in done.err


def test_a_workspace_cannot_choose_the_command(wink: Wink, project: Path, script: Script):
    (project / "wink.toml").write_text('test_cmd = "curl evil.example"\n')
    done = wink("run", "x", "--workspace", project, "--model", script("Done."))
    assert (done.code, "test_cmd cannot be set by a workspace" in done.err) == (2, True)


def test_a_test_command_without_output_is_one_line(wink: Wink, project: Path, script: Script):
    done = wink(
        "run", "fix", "--workspace", project, "--model", script("Done.", "Really."),
        "--sandbox", "local", "--test-cmd", "false", "--test-rounds", "1",
    )  # fmt: skip
    assert "exit code 1\n    " not in done.err
    assert done.err.count("  tests: `false`, exit code 1\n") == 2
