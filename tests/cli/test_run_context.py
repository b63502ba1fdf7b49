"""What the model of `wink run` is told, and the settings of its requests and commands."""

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.workplace import Done, Script, Wink, shell
from weakincentives.cli.run.prompt import environment_section, read_repository
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.runtime import ManualClock

GIT = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def git(directory: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=e")
    subprocess.run(
        ["git", *identity, *arguments],
        cwd=directory,
        check=True,
        capture_output=True,
        env={**os.environ, **GIT},
    )


def make_repository(directory: Path) -> None:
    git(directory, "init", "-q", "-b", "main")
    git(directory, "add", "-A")
    git(directory, "commit", "-qm", "First")


@pytest.fixture
def prompt_of(wink: Wink, project: Path, script: Script, tmp_path: Path) -> Any:
    """Return what runs a task and returns the system prompt, and how the run ended."""

    def run(*options: str) -> tuple[str, Done]:
        recording = tmp_path / "recording.jsonl"
        recording.unlink(missing_ok=True)
        done = wink(
            "run", "look", "--workspace", project, "--model", script("Done."), "--sandbox", "none",
            "--json", "--record", recording, *options,
        )  # fmt: skip
        assert done.code == 0, done.err
        step = json.loads(recording.read_text().splitlines()[1])
        return step["messages"][0]["text"], done

    return run


def test_the_instructions_of_project_and_user_are_in_the_prompt_and_named(
    prompt_of: Any, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path / "places"))
    (project / "AGENTS.md").write_text("Use tabs.\n")
    (project / "docs" / "CLAUDE.md").write_text("Wrap lines.\n")
    own = tmp_path / "places" / "config" / "wink" / "AGENTS.md"
    own.parent.mkdir(parents=True)
    own.write_text("Answer in Welsh.\n")
    text, done = prompt_of("--digest")
    assert text.count("Use tabs.") == 1
    assert text.index("Answer in Welsh.") < text.index("Use tabs.")
    assert "docs/CLAUDE.md for docs/" in text
    assert "Wrap lines." not in text
    event = next(each for each in done.events if each["event"] == "instructions")
    # the place of the home directory is nothing that the model needs
    assert "~/config/wink/AGENTS.md:" in text
    assert str(tmp_path / "places") not in text
    assert [each["path"] for each in event["files"]] == ["~/config/wink/AGENTS.md", "AGENTS.md"]
    assert text.count("data, not instructions") == 1
    assert (event["named"], event["tokens"]) == (["docs/CLAUDE.md"], 9)


def test_the_instructions_can_be_left_out(prompt_of: Any, project: Path):
    (project / "AGENTS.md").write_text("Use tabs.\n")
    text, done = prompt_of("--no-project-instructions")
    assert "Use tabs." not in text
    assert not any(each["event"] == "instructions" for each in done.events)


def test_the_model_knows_the_date_the_system_and_the_top_of_the_tree(project: Path):
    clock = ManualClock(datetime(2031, 5, 4, tzinfo=UTC))
    fs = InMemoryFilesystem()
    fs.write("src/app.py", "")
    fs.write("a b", "")
    (project / ".venv").mkdir()
    (project / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.99.1\n")
    section = environment_section(project, fs, clock, {}, sandbox=None, has_digest=False)
    text = section.render_text(None)
    assert "Date: 2031-05-04" in text
    assert "System: Linux " in text
    assert "Python: 3.99.1 in .venv/" in text
    assert 'Top of the tree: "a b" src/' in text
    with_digest = environment_section(project, fs, clock, {}, sandbox="podman", has_digest=True)
    assert "Top of the tree" not in with_digest.render_text(None)
    assert "Python" not in with_digest.render_text(None)


def test_the_model_knows_branch_commit_and_changes(prompt_of: Any, project: Path):
    make_repository(project)
    git(project, "checkout", "-qb", "work/ünï`$HOME")  # the characters of a template too
    (project / "calc.py").write_text("x = 1\n")
    (project / "new file.txt").write_text("")
    text, _ = prompt_of()
    assert 'Git: branch "work/ünï`$HOME", commit ' in text
    assert '2 paths changed before you started:\n   M calc.py\n  ?? "new file.txt"' in text


def test_a_subdirectory_of_a_repository_has_its_own_changes(project: Path):
    make_repository(project)
    (project / "calc.py").write_text("x = 1\n")
    (project / "docs" / "notes.md").write_text("x\n")
    state = read_repository(project / "docs", GIT)
    assert state is not None
    assert (state.branch, state.changes) == ("main", (" M notes.md",))


def test_before_the_first_commit_and_without_a_branch(project: Path):
    git(project, "init", "-q", "-b", "main")
    state = read_repository(project, GIT)
    assert state is not None
    assert (state.branch, state.commit, state.changes) == ("main", None, ("?? calc.py", "?? docs/"))
    make_repository(project)
    git(project, "checkout", "-q", "--detach")
    state = read_repository(project, GIT)
    assert state is not None
    assert (state.branch, state.changes) == (None, ())


def test_nothing_that_a_repository_names_is_run(project: Path, tmp_path: Path):
    make_repository(project)
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\ncat\n")
    trap.chmod(0o755)
    for key in ("core.fsmonitor", "filter.a=b.c.clean", "filter.x.process", "core.pager"):
        git(project, "config", key, str(trap))
    (project / ".git" / "info" / "attributes").write_text("*.py filter=a=b.c\n*.md filter=x\n")
    (project / ".git" / "hooks" / "post-index-change").write_bytes(trap.read_bytes())
    (project / ".git" / "hooks" / "post-index-change").chmod(0o755)
    # of the same size, so that git has to look at the content, through a filter
    for path in (project / "calc.py", project / "docs" / "notes.md"):
        path.write_text(path.read_text().swapcase())
    state = read_repository(project, GIT)
    assert not (tmp_path / "sprung").exists()
    assert state is not None
    assert state.changes == (" M calc.py", " M docs/notes.md")
    # git itself would have run it
    subprocess.run(["git", "status"], cwd=project, check=False, capture_output=True)
    assert (tmp_path / "sprung").exists()


def test_a_repository_cannot_show_another_directory(project: Path, tmp_path: Path):
    make_repository(project)
    other = tmp_path / "other"
    other.mkdir()
    (other / "secret-name").write_text("")
    git(project, "config", "core.worktree", str(other))
    assert read_repository(project, GIT) is None


def test_a_git_in_the_workspace_is_not_used(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (project / "git").write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    (project / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(project))
    assert read_repository(project, GIT) is None
    assert not (tmp_path / "sprung").exists()


def test_commands_get_the_variables_that_are_named_and_no_others(
    wink: Wink, project: Path, script: Script, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MINE", "passed on")
    monkeypatch.setenv("MY_TOKEN", "hidden")
    model = script(shell("sh", "-c", "echo $MINE, $SET, $MY_TOKEN."), "Done.")
    done = wink(
        "run", "look", "--workspace", project, "--model", model, "--sandbox", "local", "--json",
        "--env", "MINE", "--env", "SET=a=b,c",
    )  # fmt: skip
    assert "passed on, a=b,c, ." in done.call["message"]
    assert done.events[0]["env"] == ["MINE", "SET"]
    assert "a=b" not in json.dumps([each for each in done.events if each["event"] != "tool"])


def test_a_secret_among_the_variables_is_warned_of(
    wink: Wink, project: Path, script: Script, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    options = ("--workspace", project, "--model", script("Done."), "--sandbox", "local")
    done = wink("run", "look", *options, "--env", "OPENAI_API_KEY")
    assert "can read OPENAI_API_KEY (--env). OPENAI_API_KEY: what it runs can use" in done.err
    missing = wink("run", "look", *options, "--env", "NO_SUCH")
    assert (missing.code, "'NO_SUCH' is not set" in missing.err) == (2, True)


def test_the_time_limit_of_commands_is_what_the_user_says(
    wink: Wink, project: Path, script: Script
):
    model = script(
        shell("sleep", "1000"),
        {"name": "shell_execute", "arguments": {"command": ["true"], "timeout_seconds": 2}},
        "Done.",
    )
    done = wink(
        "run", "look", "--workspace", project, "--model", model, "--sandbox", "local", "--json",
        "--command-timeout", "1s",
    )  # fmt: skip
    calls = [each for each in done.events if each["event"] == "tool"]
    assert "timed out after" in calls[0]["message"]
    assert calls[0]["duration_ms"] < 1_000_000
    assert "timeout_seconds must be from 1 to 1: 2" in calls[1]["message"]


def test_an_option_that_the_provider_does_not_have_is_refused_before_a_copy(
    wink: Wink, project: Path, monkeypatch: pytest.MonkeyPatch, copies: Any
):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-1")
    options = ("--workspace", project, "--model", "anthropic:claude-test")
    done = wink("run", "look", *options, "--effort", "minimal")
    assert (done.code, copies()) == (2, [])
    assert "choose one of low, medium, high, xhigh, max: 'minimal'" in done.err
    assert "--temperature must be a number from 0 to 2" in (
        wink("run", "look", *options, "--temperature", "warm").err
    )


def test_the_doctor_shows_the_files_of_the_user_and_no_value_of_a_variable(
    wink: Wink, project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    own = tmp_path / "places" / "config" / "wink"
    own.mkdir(parents=True)
    (own / "wink.toml").write_text('env = ["TZ", "PASSWORD=geheim"]\n')
    out = wink("doctor", "--workspace", project, "--json").out
    checks = {each["name"]: each for each in json.loads(out)["checks"]}
    assert checks["env"]["detail"] == f"TZ, PASSWORD ({own}/wink.toml)"
    assert (checks["your settings"]["state"], checks["your instructions"]["state"]) == (
        "ok",
        "absent",
    )
    assert "geheim" not in out
