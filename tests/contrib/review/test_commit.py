"""Git commits of the changes of a working copy, with the real git."""

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contrib.review.places import git
from tests.filesystem.trees_on_disk import state_of
from tests.posix.forks import is_killed_at
from weakincentives.contrib.review import (
    CommitError,
    Review,
    WorkingCopy,
    commit_changes,
    commit_to_branch,
    open_copy,
    working_copy,
)
from weakincentives.contrib.review.commit import create_message, undo_commit
from weakincentives.contrib.review.git import GitRepository, GitRunner, GitTimeoutError

LINES = "".join(f"{number}\n" for number in range(1, 21))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("GIT_AUTHOR_EMAIL", "EMAIL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tmp_path / "gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    root = tmp_path / "repository"
    (root / "src").mkdir(parents=True)
    (root / "src/app.py").write_text(LINES)
    (root / "old").write_text("old\n")
    (root / "other").write_text("other\n")
    (root / ".gitignore").write_text("*.log\n")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    return root


def change(root: Path) -> None:
    """Do what an agent could do."""
    (root / "src/app.py").write_text(LINES.replace("20\n", "twenty\n"))
    (root / "old").unlink()
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("run.sh")


CHANGED = "A\tlink\nD\told\nA\trun.sh\nM\tsrc/app.py\n"


def shown(root: Path, commit: str = "HEAD") -> str:
    return git(root, "show", "--format=", "--name-status", commit)


def test_a_commit_has_exactly_the_changes_and_leaves_other_work_alone(
    repository: Path, tmp_path: Path
) -> None:
    (repository / "other").write_text("edited by me\n")
    (repository / "staged").write_text("staged by me\n")
    git(repository, "add", "staged")
    (repository / "untracked").write_text("mine\n")
    copy = working_copy(repository, place=tmp_path / "place")
    change(copy.root)
    with Review(copy) as review:
        made = commit_changes(review, create_message("Do it"))
        assert not review.diff
    assert made.paths == ("link", "old", "run.sh", "src/app.py")
    assert (made.branch, made.left_out) == ("main", {})
    assert git(repository, "rev-parse", "HEAD").strip() == made.commit
    assert shown(repository) == CHANGED
    assert git(repository, "log", "-1", "--format=%an|%B") == "Ada|Do it\n\n"
    assert git(repository, "ls-tree", "HEAD", "run.sh").startswith("100755 ")
    assert git(repository, "ls-tree", "HEAD", "link").startswith("120000 ")
    assert git(repository, "status", "--short") == " M other\nA  staged\n?? untracked\n"
    with Review(open_copy(copy.place)) as review:
        assert undo_commit(review) == made.commit
        review.undo()
    assert git(repository, "log", "--format=%s") == "first\n"
    assert git(repository, "status", "--short") == " M other\nA  staged\n?? untracked\n"


def test_a_branch_has_the_changes_and_nothing_else_changes(
    repository: Path, tmp_path: Path
) -> None:
    (repository / "other").write_text("edited by me\n")
    copy = working_copy(repository, place=tmp_path / "place")
    change(copy.root)
    before = state_of(repository / "src"), git(repository, "status", "--short")
    index = (repository / ".git/index").read_bytes()
    with Review(copy) as review:
        made = commit_to_branch(review, "agent/work", "Do it\n")
        assert review.diff
    assert shown(repository, "agent/work") == CHANGED
    assert git(repository, "log", "--format=%s", "agent/work") == "Do it\nfirst\n"
    assert git(repository, "symbolic-ref", "HEAD") == "refs/heads/main\n"
    assert (repository / ".git/index").read_bytes() == index
    assert (state_of(repository / "src"), git(repository, "status", "--short")) == before
    assert git(repository, "rev-parse", "agent/work").strip() == made.commit


@pytest.mark.parametrize("is_branch", [False, True])
def test_uncommitted_edits_of_the_same_file_are_not_committed(
    repository: Path, tmp_path: Path, is_branch: bool
) -> None:
    mine = LINES.replace("1\n", "one, by me\n", 1)
    (repository / "src/app.py").write_text(mine)
    (repository / "other").write_text("edited by me\n")
    copy = working_copy(repository, place=tmp_path / "place")
    (copy.root / "src/app.py").write_text(mine.replace("20\n", "twenty\n"))
    with Review(copy) as review:
        if is_branch:
            made = commit_to_branch(review, "work", "Do it\n")
        else:
            made = commit_changes(review, "Do it\n")
    found = git(repository, "show", f"{made.commit}:src/app.py")
    assert found == LINES.replace("20\n", "twenty\n")
    assert (repository / "src/app.py").read_text().startswith("one, by me\n")
    assert git(repository, "status", "--short") == " M other\n M src/app.py\n"


@pytest.mark.parametrize("is_staged", [False, True])
def test_edits_that_overlap_are_refused_by_name_and_nothing_happens(
    repository: Path, tmp_path: Path, is_staged: bool
) -> None:
    (repository / "src/app.py").write_text(LINES.replace("20\n", "20, by me\n"))
    if is_staged:
        git(repository, "add", "-A")
    copy = working_copy(repository, place=tmp_path / "place")
    change(copy.root)
    before = state_of(repository / "src")
    with Review(copy) as review:
        with pytest.raises(CommitError, match=r"overlap with those of the run in src/app\.py"):
            commit_changes(review, "Do it\n")
        with pytest.raises(CommitError, match=r"src/app\.py"):
            commit_to_branch(review, "work", "Do it\n")
        made = commit_changes(review, "Do it\n", paths=["run.sh"])
    assert made.paths == ("run.sh",)
    assert state_of(repository / "src") == before


def test_staged_edits_stay_staged(repository: Path, tmp_path: Path) -> None:
    (repository / "src/app.py").write_text(LINES.replace("1\n", "one, by me\n", 1))
    git(repository, "add", "-A")
    copy = working_copy(repository, place=tmp_path / "place")
    text = (copy.root / "src/app.py").read_text()
    (copy.root / "src/app.py").write_text(text.replace("20\n", "twenty\n"))
    with Review(copy) as review:
        commit_changes(review, "Do it\n")
    assert git(repository, "status", "--short") == "M  src/app.py\n"
    assert git(repository, "show", "HEAD:src/app.py") == LINES.replace("20\n", "twenty\n")


def test_what_git_does_not_track_is_applied_and_named(repository: Path, tmp_path: Path) -> None:
    (repository / "scratch").write_text("untracked\n")
    (repository / "nested").mkdir()
    git(repository / "nested", "init", "-q")
    (repository / "nested/file").write_text("one\n")
    git(repository / "nested", "add", "-A")
    git(repository / "nested", "commit", "-qm", "nested")
    git(repository, "add", "nested")
    git(repository, "commit", "-qm", "with a submodule")
    copy = working_copy(repository, place=tmp_path / "place")
    for name in ("new.log", "scratch", "nested/file", "good"):
        (copy.root / name).write_text("by the agent\n")
    with Review(copy) as review:
        made = commit_changes(review, "Do it\n")
    assert made.paths == ("good",)
    assert made.left_out == {
        "nested/file": "in another repository, nested",
        "scratch": "not in the last commit",
        "new.log": "ignored by git",
    }
    assert (repository / "scratch").read_text() == "by the agent\n"
    assert shown(repository) == "A\tgood\n"


def test_a_workspace_may_be_a_part_of_the_repository_and_git_converts_line_ends(
    repository: Path, tmp_path: Path
) -> None:
    (repository / ".gitattributes").write_text("*.txt text eol=crlf\n")
    (repository / "src/a.txt").write_bytes(b"one\r\ntwo\r\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "second")
    copy = working_copy(repository / "src", place=tmp_path / "place")
    (copy.root / "a.txt").write_bytes(b"one\r\nTWO\r\n")
    (copy.root / "new.py").write_text("new\n")
    with Review(copy) as review:
        made = commit_changes(review, "Do it\n")
    assert made.paths == ("a.txt", "new.py")
    assert shown(repository) == "M\tsrc/a.txt\nA\tsrc/new.py\n"
    assert git(repository, "show", "HEAD:src/a.txt") == "one\nTWO\n"
    assert git(repository, "status", "--short") == ""


def test_hooks_are_not_run_and_named(repository: Path, tmp_path: Path) -> None:
    copy = working_copy(repository, place=tmp_path / "place")
    hook = repository / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n")
    hook.chmod(0o755)
    change(copy.root)
    with Review(copy) as review:
        assert commit_changes(review, "Do it\n").hooks == ("pre-commit",)
    assert not (tmp_path / "ran").exists()


def test_where_no_commit_is_possible_it_is_refused_in_one_sentence(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = working_copy(repository, place=tmp_path / "place")
    change(copy.root)
    before = state_of(repository / "src")
    with Review(copy) as review:
        with pytest.raises(CommitError, match="The branch exists already: 'main'"):
            commit_to_branch(review, "main", "Do it\n")
        for name in ("a b", "-x", "a..b"):
            with pytest.raises(CommitError, match="Not a name for a branch"):
                commit_to_branch(review, name, "Do it\n")
        (repository / ".git/MERGE_HEAD").write_text("x")
        with pytest.raises(CommitError, match="A merge is under way"):
            commit_changes(review, "Do it\n")
        (repository / ".git/MERGE_HEAD").unlink()
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
        with pytest.raises(CommitError, match="git does not know who you are"):
            commit_changes(review, "Do it\n")
    assert state_of(repository / "src") == before
    plain = tmp_path / "plain"
    plain.mkdir()
    with (
        Review(working_copy(plain, place=tmp_path / "other")) as review,
        pytest.raises(CommitError, match="Not a git repository"),
    ):
        commit_changes(review, "Do it\n")


def test_what_was_applied_before_is_committed_later(repository: Path, tmp_path: Path) -> None:
    copy = working_copy(repository, place=tmp_path / "place")
    change(copy.root)
    with Review(copy) as review:
        assert is_killed_at("change.settled", lambda: commit_changes(review, "Do it\n"))
    assert git(repository, "log", "--format=%s") == "first\n"
    with Review(open_copy(copy.place)) as review:
        assert review.applied
        made = commit_changes(review, "Do it\n")
        assert made.applied is None
        assert not commit_changes(review, "Do it\n").commit
    assert shown(repository) == CHANGED
    assert git(repository, "status", "--short") == ""


def test_a_commit_that_others_build_on_is_not_taken_back(repository: Path, tmp_path: Path) -> None:
    copy = working_copy(repository, place=tmp_path / "place")
    change(copy.root)
    with Review(copy) as review:
        made = commit_changes(review, "Do it\n")
        git(repository, "commit", "-q", "--allow-empty", "-m", "later")
        with pytest.raises(CommitError, match=f"git revert {made.commit[:10]}"):
            undo_commit(review)
        git(repository, "reset", "-q", "--soft", "HEAD~2")
        assert undo_commit(review) == ""


def test_a_detached_head_is_fine(repository: Path, tmp_path: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    copy = working_copy(repository, place=tmp_path / "place")
    change(copy.root)
    with Review(copy) as review:
        commit_to_branch(review, "work", "Do it\n")
        assert commit_changes(review, "Do it\n").branch == ""
    assert shown(repository) == CHANGED
    assert git(repository, "log", "-1", "--format=%s", "main") == "first\n"


@pytest.mark.parametrize(
    ("task", "answer", "message"),
    [
        ("fix it", "", "fix it\n"),
        ("fix it\nplease", "Done.", "fix it\n\nfix it\nplease\n\nDone.\n"),
        ("word " * 20, "", f"{'word ' * 12}word...\n\n{('word ' * 20).strip()}\n"),
        ("", "", "Changes of a run\n"),
    ],
)
def test_the_message_is_the_task(task: str, answer: str, message: str) -> None:
    assert create_message(task, answer) == message


def name_program(root: Path, tmp_path: Path) -> Path:
    """Return a program that leaves a mark when it runs, and passes its input on."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\ncat\n")
    program.chmod(0o755)
    (root / ".gitattributes").write_text("*.py filter=own\n")
    git(root, "add", ".gitattributes")
    git(root, "commit", "-qm", "attributes")
    return program


@pytest.mark.parametrize("branch", [None, "result"])
def test_a_filter_of_the_repository_itself_is_not_run(
    repository: Path, tmp_path: Path, branch: str | None
) -> None:
    program = name_program(repository, tmp_path)
    git(repository, "config", "filter.own.clean", str(program))
    copy = working_copy(repository, place=tmp_path / "place")
    change(copy.root)
    with Review(copy) as review, pytest.raises(CommitError, match=r"filter 'own'.*'src/app.py'"):
        if branch is None:
            commit_changes(review, "Do it\n")
        else:
            commit_to_branch(review, branch, "Do it\n")
    assert not (tmp_path / "ran").exists()
    assert (repository / "old").exists()  # nothing was applied
    assert git(repository, "branch", "--format=%(refname:short)") == "main\n"


def test_a_filter_of_the_user_is_run(repository: Path, tmp_path: Path) -> None:
    program = name_program(repository, tmp_path)
    git(repository, "config", "--global", "filter.own.clean", str(program))
    copy = working_copy(repository, place=tmp_path / "place")
    change(copy.root)
    with Review(copy) as review:
        assert commit_changes(review, "Do it\n").paths == ("link", "old", "run.sh", "src/app.py")
    assert (tmp_path / "ran").exists()


def test_a_git_that_hangs_is_stopped_and_nothing_is_applied(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / ".gitattributes").write_text("*.sh filter=slow\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "attributes")
    os.mkfifo(tmp_path / "never")
    with (tmp_path / "gitconfig").open("a") as settings:
        settings.write(f'[filter "slow"]\n\tclean = cat {tmp_path}/never\n')
    copy = working_copy(repository, place=tmp_path / "place")
    change(copy.root)
    store = GitRepository.store

    def store_in_time(*arguments: Any) -> str:
        monkeypatch.setattr("weakincentives.contrib.review.git._SECONDS", 0.2)
        return store(*arguments)

    monkeypatch.setattr(GitRepository, "store", store_in_time)
    with (
        Review(copy) as review,
        pytest.raises(CommitError, match=r"did not end within 0\.2 seconds"),
    ):
        commit_changes(review, "Do it\n")
    with suppress(OSError):  # nobody reads it
        os.close(os.open(tmp_path / "never", os.O_WRONLY | os.O_NONBLOCK))
    assert git(repository, "status", "--short") == ""
    assert not (repository / "run.sh").exists()


def test_a_git_that_hangs_is_an_error_of_its_own(repository: Path) -> None:
    os.mkfifo(repository / "pipe")
    runner = GitRunner("git", repository, os.environ, {}, {}, seconds=0.2)
    with pytest.raises(GitTimeoutError, match="git hash-object did not end"):
        runner.run("hash-object", "pipe")
    with pytest.raises(CommitError, match="git show failed: fatal"):
        replace(runner, seconds=60).run("show", "nothing")


def test_what_runs_programs_is_switched_off_beside_settings_of_the_environment(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "a.b", "GIT_CONFIG_VALUE_0": "mine"}
    environment = {**os.environ, **given, "GIT_DIR": "/nowhere"}
    runner = GitRunner("git", repository, environment, {}, {"c.d": "ours"}, seconds=60)
    listed = runner.run("config", "--list").decode().splitlines()
    for line in ("a.b=mine", "c.d=ours", "core.hookspath=/dev/null", "core.fsmonitor=false"):
        assert line in listed


def test_a_program_of_the_repository_does_not_sign(repository: Path, tmp_path: Path) -> None:
    program = name_program(repository, tmp_path)
    git(repository, "config", "commit.gpgSign", "1")
    git(repository, "config", "gpg.program", str(program))
    copy = working_copy(repository, place=tmp_path / "place")
    change(copy.root)
    with Review(copy) as review, pytest.raises(CommitError, match=r"signs, gpg\.program"):
        commit_changes(review, "Do it\n")
    assert not (tmp_path / "ran").exists()
    assert (repository / "old").exists()


def test_nothing_is_applied_while_another_git_has_the_index(
    repository: Path, tmp_path: Path
) -> None:
    copy = working_copy(repository, place=tmp_path / "place")
    change(copy.root)
    lock = repository / ".git/index.lock"
    lock.touch()
    head = git(repository, "rev-parse", "HEAD")
    with Review(copy) as review:
        with pytest.raises(CommitError, match="Another git process"):
            commit_changes(review, "Do it\n")
        assert (repository / "old").exists()
        assert git(repository, "rev-parse", "HEAD") == head
        lock.unlink()
        assert commit_changes(review, "Do it\n").commit
    assert git(repository, "status", "--short") == ""


def test_a_commit_that_others_make_meanwhile_is_not_reverted(
    repository: Path, tmp_path: Path
) -> None:
    class BusyReview(Review):
        def apply(self, *args: Any, **options: Any) -> Any:
            (repository / "src/app.py").write_text(LINES.replace("1\n", "one\n", 1))
            git(repository, "commit", "-qam", "mine")
            (repository / "src/app.py").write_text(LINES)
            return super().apply(*args, **options)

    copy = working_copy(repository, place=tmp_path / "place")
    change(copy.root)
    facts = "update-ref failed.*; nothing was applied or committed; try again"
    with BusyReview(copy) as review, pytest.raises(CommitError, match=facts):
        commit_changes(review, "Do it\n")
    assert git(repository, "log", "-1", "--format=%s") == "mine\n"
    assert git(repository, "diff", "--cached") == ""
    assert (repository / "src/app.py").read_text() == LINES
    assert (repository / "old").exists()
    with Review(copy) as review:
        assert commit_changes(review, "Do it\n").paths
        assert review.applied
    assert "twenty" in git(repository, "show", "HEAD:src/app.py")
    assert "one" in git(repository, "show", "HEAD:src/app.py")


def test_a_commit_that_cannot_be_signed_applies_nothing(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "gitconfig").open("a") as settings:
        settings.write("[commit]\n\tgpgSign = true\n[gpg]\n\tprogram = /bin/false\n")
    copy = working_copy(repository, place=tmp_path / "place")
    change(copy.root)
    with Review(copy) as review, pytest.raises(CommitError, match="commit-tree failed"):
        commit_changes(review, "Do it\n")
    assert git(repository, "status", "--short") == ""


def test_a_link_that_becomes_a_directory_is_committed(repository: Path, tmp_path: Path) -> None:
    (repository / "link").symlink_to("src")
    git(repository, "add", "link")
    git(repository, "commit", "-qm", "link")
    copy = working_copy(repository, place=tmp_path / "place")
    (copy.root / "link").unlink()
    (copy.root / "link").mkdir()
    (copy.root / "link/new").write_text("new\n")
    with Review(copy) as review:
        assert commit_changes(review, "Do it\n").paths == ("link", "link/new")
    assert shown(repository) == "D\tlink\nA\tlink/new\n"
    assert git(repository, "status", "--short") == ""


# --- the index ---


def stage_partly(repository: Path) -> tuple[str, str]:
    """Stage one edit of a file and leave another one in the directory; return both states."""
    staged = LINES.replace("1\n", "one, staged\n", 1)
    (repository / "src/app.py").write_text(staged)
    git(repository, "add", "src/app.py")
    saved = staged.replace("\n5\n", "\nfive, not staged\n")
    (repository / "src/app.py").write_text(saved)
    return staged, saved


def staged_text(repository: Path) -> str:
    return git(repository, "show", ":src/app.py")


def commit_beside(repository: Path, tmp_path: Path) -> WorkingCopy:
    """Commit what an agent did beside a partly staged file."""
    copy = working_copy(repository, place=tmp_path / "place")
    agent = (copy.root / "src/app.py").read_text().replace("20\n", "twenty\n")
    (copy.root / "src/app.py").write_text(agent)
    (copy.root / "new").write_text("new\n")
    with Review(copy) as review:
        assert commit_changes(review, "Do it\n").commit
    return copy


def test_an_undo_restores_the_index_of_a_partly_staged_file(
    repository: Path, tmp_path: Path
) -> None:
    staged, saved = stage_partly(repository)
    before = git(repository, "ls-files", "--stage"), git(repository, "status", "--short")
    copy = commit_beside(repository, tmp_path)
    assert staged_text(repository) == staged.replace("20\n", "twenty\n")
    with Review(open_copy(copy.place)) as review:
        assert undo_commit(review)
        review.undo()
    assert staged_text(repository) == staged
    assert (repository / "src/app.py").read_text() == saved
    after = git(repository, "ls-files", "--stage"), git(repository, "status", "--short")
    assert after == before


def test_an_undo_leaves_what_was_staged_since(repository: Path, tmp_path: Path) -> None:
    stage_partly(repository)
    copy = commit_beside(repository, tmp_path)
    later = LINES.replace("7\n", "seven, staged later\n", 1)
    (tmp_path / "later").write_text(later)
    object_id = git(repository, "hash-object", "-w", tmp_path / "later").strip()
    git(repository, "update-index", "--cacheinfo", f"100644,{object_id},src/app.py")
    with Review(open_copy(copy.place)) as review:
        undo_commit(review)
        review.undo()
    assert staged_text(repository) == later
    assert "new" not in git(repository, "ls-files").split()


def test_an_undo_waits_for_nobody_and_changes_nothing_under_the_lock_of_git(
    repository: Path, tmp_path: Path
) -> None:
    stage_partly(repository)
    copy = commit_beside(repository, tmp_path)
    head, index = git(repository, "rev-parse", "HEAD"), staged_text(repository)
    (repository / ".git/index.lock").touch()
    with Review(open_copy(copy.place)) as review:
        with pytest.raises(CommitError, match="Another git process is using"):
            undo_commit(review)
        (repository / ".git/index.lock").unlink()
        assert (git(repository, "rev-parse", "HEAD"), staged_text(repository)) == (head, index)
        assert undo_commit(review) == head.strip()
    assert not (repository / ".git/index.lock").exists()


class KilledError(BaseException):
    """Not an error that anybody handles."""


@pytest.mark.parametrize("step", ["commit", "undo"])
def test_an_undo_after_a_kill_restores_the_index(
    repository: Path, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit was killed before the branch moved, or its undo right after that."""
    staged, _ = stage_partly(repository)
    run = GitRepository.run

    def run_until_killed(self: GitRepository, *arguments: str, **options: Any) -> bytes:
        if arguments[0] == "update-ref":
            raise KilledError
        return run(self, *arguments, **options)

    def kill(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        if step == "commit":
            patch.setattr(GitRepository, "run", run_until_killed)
        copy = commit_beside(repository, tmp_path)
        patch.setattr(GitRepository, "change_entries", kill)
        with Review(open_copy(copy.place)) as review:
            undo_commit(review)
    assert staged_text(repository) == staged.replace("20\n", "twenty\n")
    with Review(open_copy(tmp_path / "place")) as review:
        assert undo_commit(review) == ""
        review.undo()
    assert staged_text(repository) == staged
