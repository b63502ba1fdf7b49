"""Git takes part with its defaults and nobody's configuration."""

import shutil
import subprocess

import pytest

from benchmarks.peer_git import Git

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="it is about git")


@pytest.fixture
def git(tmp_path) -> Git:
    root, place = tmp_path / "root", tmp_path / "place"
    root.mkdir()
    place.mkdir()
    (root / "a.txt").write_text("one\n")
    return Git(root, place)


def test_a_restore_brings_back_what_was_changed_and_takes_what_was_made(git: Git) -> None:
    first = git.snapshot()
    (git.root / "a.txt").write_text("two\n")
    (git.root / "made.txt").write_text("new\n")
    git.restore(first)
    assert [path.name for path in git.root.iterdir()] == ["a.txt"]
    assert (git.root / "a.txt").read_text() == "one\n"


def test_every_snapshot_is_a_commit_of_its_own(git: Git) -> None:
    git.snapshot()
    first = git.tree_of("HEAD")
    git.snapshot()
    assert git.tree_of("HEAD~1") == git.tree_of("HEAD") == first


def test_the_settings_of_the_user_do_not_count(git: Git, tmp_path, monkeypatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "ignored").write_text("a.txt\n")
    (home / ".gitconfig").write_text(f"[core]\n\texcludesFile = {home}/ignored\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(home / "index"))
    alone = Git(git.root, git.git_dir.parent)
    alone.snapshot()
    assert alone.tree_of("HEAD") != "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    assert not (home / "index").exists()


def test_a_failing_command_is_no_answer(git: Git) -> None:
    git.snapshot()
    (git.git_dir / "HEAD").unlink()
    with pytest.raises(subprocess.CalledProcessError):
        git.snapshot()
