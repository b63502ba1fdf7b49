"""`--commit` and `--branch`: the result of a run in git, with the task as the message."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.workplace import CALC, FIXED, Script, Wink, edit, on_terminal, shell, write
from tests.contrib.review.places import git

Copies = Callable[[], list[Path]]


@pytest.fixture
def repository(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_places: None
) -> Path:
    """Make the project a repository whose user is known to git."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    (tmp_path / "gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    (project / ".gitignore").write_text("*.log\n")
    git(project, "init", "-q", "-b", "main")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "first")
    return project


def test_a_run_is_committed_and_taken_back(wink: Wink, repository: Path, script: Script):
    model = script(edit(), write("new.txt"), write("x.log"), "Fixed the mean.")
    done = wink("run", "fix the mean", "--workspace", repository, "--model", model, "--commit")
    assert done.code == 0
    head = git(repository, "rev-parse", "HEAD").strip()
    assert f"Committed 2 files on main as {head[:10]}." in done.err
    assert "not committed: x.log (ignored by git)" in done.err
    message = git(repository, "log", "-1", "--format=%B")
    assert message.strip() == "fix the mean\n\nFixed the mean."
    assert git(repository, "status", "--short") == ""
    done = wink("review", "last", "--undo")
    assert done.code == 0
    assert f"The commit {head[:10]} was removed from its branch." in done.err
    assert (repository / "calc.py").read_text() == CALC
    assert git(repository, "log", "--format=%s") == "first\n"
    assert git(repository, "status", "--short") == ""
    done = wink("review", "last", "--json", "--commit")
    assert (done.code, done.last["result"], done.last["branch"]) == (0, "committed", "main")
    assert done.last["commit"] == git(repository, "rev-parse", "HEAD").strip()
    assert done.last["not_committed"] == [{"path": "x.log", "reason": "ignored by git"}]


def test_a_commit_with_others_on_top_is_not_undone(wink: Wink, repository: Path, script: Script):
    arguments = ("--workspace", repository, "--model", script(edit(), "Done."), "--commit")
    assert wink("run", "fix", *arguments).code == 0
    git(repository, "commit", "-q", "--allow-empty", "-m", "later")
    done = wink("review", "last", "--undo")
    assert (done.code, done.err.count("\n"), "git revert" in done.err) == (1, 1, True)
    assert (repository / "calc.py").read_text() == FIXED


def test_an_undo_that_restores_nothing_leaves_the_commit(
    wink: Wink, repository: Path, script: Script
):
    arguments = ("--workspace", repository, "--model", script(edit(), "Done."), "--commit")
    assert wink("run", "fix", *arguments).code == 0
    head = git(repository, "rev-parse", "HEAD")
    (repository / "calc.py").write_text("mine\n")
    assert wink("review", "last", "--undo").code == 4
    assert git(repository, "rev-parse", "HEAD") == head
    assert git(repository, "status", "--short") == " M calc.py\n"


def test_a_run_becomes_a_branch_and_the_directory_stays(
    wink: Wink, repository: Path, script: Script
):
    model = script(edit(), "Done.")
    arguments = ("--workspace", repository, "--model", model, "--branch", "agent/fix")
    done = wink("run", "fix the mean", *arguments)
    assert done.code == 0
    assert "Committed 1 file on the new branch agent/fix as " in done.err
    assert "git switch agent/fix  to go there" in done.err
    assert git(repository, "show", "agent/fix:calc.py") == FIXED
    assert (repository / "calc.py").read_text() == CALC
    assert git(repository, "status", "--short") == ""
    done = wink("run", "fix", *arguments)
    assert (done.code, "The branch exists already: 'agent/fix'" in done.err) == (2, True)


def test_hooks_that_were_not_run_are_named_with_the_command_that_runs_them(
    wink: Wink, repository: Path, script: Script, tmp_path: Path
):
    hook = repository / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    (repository / "staged.txt").write_text("mine\n")
    git(repository, "add", "staged.txt")
    arguments = ("--workspace", repository, "--model", script(edit(), "Done."))
    command = "git commit --amend --only --no-edit"
    done = wink("run", "fix", *arguments, "--branch", "other")
    assert "Hooks of the repository were not run: pre-commit" in done.err
    assert f"  {command}  to run the hooks, there" in done.err
    done = wink("run", "fix", *arguments, "--commit")
    assert f"  {command}  to run the hooks\n" in done.err
    assert not (tmp_path / "ran").exists()
    git(repository, *command.split()[1:])
    assert (tmp_path / "ran").exists()
    assert git(repository, "show", "--format=", "--name-only") == "calc.py\n"


def test_a_refused_commit_names_the_command_that_repeats_it(
    wink: Wink, repository: Path, script: Script, copies: Copies
):
    model = script(edit(), write("b c.txt"), "Done.")
    arguments = ("--workspace", repository, "--model", model, "--sandbox", "local")
    options = ("--branch", "agent/fix", "--skip", "b c.txt")
    done = wink("run", "fix", *arguments, *options, "--test-cmd", "false", "--test-rounds", "1")
    assert "The tests fail; nothing was applied." in done.err
    command = f"wink review {copies()[0].name} --branch agent/fix --skip 'b c.txt'"
    assert f"  {command}  to commit them\n" in done.err
    git(repository, "branch", "agent/fix")
    done = wink(*shlex.split(command)[1:])
    assert (done.code, "The branch exists already" in done.err) == (1, True)
    assert f"  {command}  to commit them\n" in done.err
    git(repository, "branch", "-D", "agent/fix")
    assert wink(*shlex.split(command)[1:]).code == 3
    assert git(repository, "show", "--format=", "--name-only", "agent/fix") == "calc.py\n"


def test_after_a_conflict_the_command_still_commits(
    wink: Wink, repository: Path, script: Script, copies: Copies
):
    wink("run", "fix", "--workspace", repository, "--model", script(edit(), write("b"), "Done."))
    (repository / "calc.py").write_text("mine\n")
    done = wink("review", copies()[0].name, "--commit")
    assert done.code in (1, 4), done.err
    assert f"wink review {copies()[0].name} --commit" in done.err


def test_a_person_commits_at_the_question(repository: Path, script: Script, tmp_path: Path):
    model = script(edit(), "Done.")
    arguments = ("run", "fix", "--workspace", repository, "--model", model)
    done = on_terminal(*arguments, answers="c\n", NO_COLOR="1")
    assert done.code == 0
    assert "[s]ome of it, [c]ommit, [r]eply" in done.out
    assert git(repository, "log", "-1", "--format=%s") == "fix\n"


def test_a_commit_beside_a_conflict_names_what_it_leaves_out_and_asks(
    repository: Path, script: Script
):
    person = f"echo '# mine' >> {repository}/calc.py"
    model = script(edit(), write("b.txt"), shell("sh", "-c", person), "Done.")
    arguments = ("run", "fix", "--workspace", repository, "--model", model, "--sandbox", "local")
    done = on_terminal(*arguments, answers="c\nn\nc\ny\n", size=(40, 160), NO_COLOR="1")
    assert "[c]ommit all but 1 in conflict" in done.out
    assert "not in the commit: calc.py: modified in the copy, modified" in done.out
    assert done.out.index("Commit the rest? [y,n]: ") < done.out.index("Nothing was committed.")
    assert git(repository, "show", "--format=%s", "--name-only") == "fix\n\nb.txt\n"
    assert "The rest is kept: calc.py." in done.out


def test_what_was_chosen_is_committed_and_no_more(repository: Path, script: Script):
    model = script(edit(), write("b.txt"), write("c.txt"), "Done.")
    arguments = ("run", "fix", "--workspace", repository, "--model", model)
    # b.txt: yes; c.txt and calc.py: no; it is applied, and what was applied is committed
    done = on_terminal(*arguments, answers="s\ny\nn\nn\nc\n", size=(40, 160), NO_COLOR="1")
    assert "[c]ommit what was applied" in done.out
    assert git(repository, "show", "--format=%s", "--name-only") == "fix\n\nb.txt\n"
    assert not (repository / "c.txt").exists()


def test_without_a_repository_nothing_is_run(wink: Wink, project: Path, script: Script):
    done = wink("run", "fix", "--workspace", project, "--model", script("Done."), "--commit")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "Not a git repository" in done.err
    assert "nothing was run" in done.err
