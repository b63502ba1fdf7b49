"""Withheld changes: setuid bits, and everything that git would run."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.contrib.review.places import git
from weakincentives.contrib.review import Review, working_copy


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def original(tmp_path: Path) -> Path:
    made = tmp_path / "original"
    made.mkdir()
    (made / "tool").write_text("#!/bin/sh\n")
    (made / "tool").chmod(0o755)
    (made / "folder").mkdir(mode=0o755)
    return made


# --- rights ---


@pytest.mark.parametrize("bits", [0o4000, 0o2000, 0o1000, 0o6000, 0o7000])
def test_rights_that_an_agent_sets_on_a_file_do_not_reach_the_original(original: Path, bits: int):
    copy = working_copy(original)
    (copy.root / "tool").chmod(0o755 | bits)
    (copy.root / "new").write_text("new\n")
    (copy.root / "new").chmod(0o755 | bits)
    with Review(copy) as review:
        assert [each.path for each in review.withheld] == ["new", "tool"]
        assert [each.path for each in review.diff.entries] == ["new"]
        assert review.conflicts() == ()
        assert review.apply().paths == ("new",)
        assert mode_of(original / "new") == 0o755
        assert mode_of(original / "tool") == 0o755
        assert (original / "new").read_text() == "new\n"
        assert review.apply().paths == ()
        assert review.undo().paths == ("new",)
        assert not (original / "new").exists()
        review.discard()


def test_other_changes_of_such_a_file_are_offered(original: Path):
    copy = working_copy(original)
    (copy.root / "tool").write_text("#!/bin/sh\ntrue\n")
    (copy.root / "tool").chmod(0o4755)
    with Review(copy) as review:
        assert str(review.withheld[0]) == "mode-changed tool (0755 -> 4755)"
        review.apply()
        assert (original / "tool").read_text() == "#!/bin/sh\ntrue\n"
        assert mode_of(original / "tool") == 0o755
        review.discard()


@pytest.mark.parametrize("bits", [0o4000, 0o2000])
def test_rights_of_directories_are_withheld_too(original: Path, bits: int):
    copy = working_copy(original)
    (copy.root / "folder").chmod(0o755 | bits)
    with Review(copy) as review:
        assert not review.diff
        assert [each.path for each in review.withheld] == ["folder"]
        assert review.apply().paths == ()
        review.discard()
    assert mode_of(original / "folder") == 0o755


def test_rights_that_were_there_before_stay_and_are_handed_down(original: Path):
    (original / "tool").chmod(0o4755)
    (original / "folder").chmod(0o2775)
    (original / "shared").mkdir()
    (original / "shared").chmod(0o1777)
    copy = working_copy(original)
    (copy.root / "tool").write_text("#!/bin/sh\ntrue\n")
    (copy.root / "tool").chmod(0o4755)
    (copy.root / "folder/new/deep").mkdir(parents=True)
    (copy.root / "mine").mkdir()
    (copy.root / "mine").chmod(0o1777)
    with Review(copy) as review:
        assert review.withheld == ()
        review.apply()
        assert mode_of(original / "tool") == 0o4755
        assert mode_of(original / "folder/new/deep") & 0o2000
        assert mode_of(original / "mine") == 0o1777
        review.undo()
        assert mode_of(original / "tool") == 0o4755
        review.discard()


def test_rights_are_applied_where_somebody_asks_for_them(original: Path):
    copy = working_copy(original)
    (copy.root / "tool").chmod(0o4755)
    with Review(copy, with_rights=True) as review:
        assert review.withheld == ()
        review.apply()
        assert mode_of(original / "tool") == 0o4755
        review.discard()


# --- repositories whose data is elsewhere ---


def _pointer(original: Path) -> None:
    git(original, "init", "-q", "--separate-git-dir", original / "gitdata", original)
    (original / ".git").write_text("gitdir: gitdata\n")


def _pointer_with_steps(original: Path) -> None:
    _pointer(original)
    (original / ".git").write_text("gitdir: ./folder/..//gitdata/\n")


def _absolute_pointer(original: Path) -> None:
    _pointer(original)
    (original / ".git").write_text(f"gitdir: {original}/gitdata\n")


def _link(original: Path) -> None:
    _pointer(original)
    (original / ".git").unlink()
    (original / ".git").symlink_to("gitdata")


def _link_to_link(original: Path) -> None:
    _pointer(original)
    (original / ".git").unlink()
    (original / "between").symlink_to("./gitdata")
    (original / ".git").symlink_to("between")


def _pointer_through_a_link(original: Path) -> None:
    _pointer(original)
    (original / "between").symlink_to("gitdata")
    (original / ".git").write_text("gitdir: between\n")


def _nested(original: Path) -> None:
    _pointer(original)
    (original / ".git").unlink()
    (original / "folder/.git").write_text("gitdir: ../gitdata\n")


def _not_referred_to(original: Path) -> None:
    _pointer(original)
    (original / ".git").unlink()


SHAPES = [
    _pointer,
    _pointer_with_steps,
    _absolute_pointer,
    _link,
    _link_to_link,
    _pointer_through_a_link,
    _nested,
    _not_referred_to,
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__.strip("_"))
@pytest.mark.parametrize("exclude", [(), (".git",)])
def test_the_data_of_a_repository_is_withheld_wherever_it_is(original: Path, shape, exclude):
    shape(original)
    copy = working_copy(original, exclude=exclude)
    hook = copy.root / "gitdata/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch owned\n")
    hook.chmod(0o755)
    with (copy.root / "gitdata/config").open("a") as config:
        config.write("[core]\n\tfsmonitor = touch owned\n")
    if (copy.root / "between").is_symlink():
        (copy.root / "between").unlink()
        (copy.root / "between").symlink_to("elsewhere")
    (copy.root / "tool").write_text("new\n")
    before = (original / "gitdata/config").read_bytes()
    with Review(copy) as review:
        assert [each.path for each in review.diff.entries] == ["tool"]
        assert "gitdata/hooks/pre-commit" in [each.path for each in review.withheld]
        assert review.apply().paths == ("tool",)
        assert not (original / "gitdata/hooks/pre-commit").exists()
        assert (original / "gitdata/config").read_bytes() == before
        if (original / "between").is_symlink():
            assert (original / "between").resolve() == original / "gitdata"
        review.discard()


def test_the_common_data_of_worktrees_is_withheld(original: Path):
    bare = original / "bare"
    git(original, "init", "-q", "--bare", bare)
    commit = git(bare, "commit-tree", "-m", "x", git(bare, "write-tree").strip()).strip()
    git(bare, "worktree", "add", "-q", original / "tree", commit)
    (bare / "HEAD").rename(bare / "moved")  # so that only the pointers say what it is
    copy = working_copy(original)
    (copy.root / "bare/hooks").mkdir(exist_ok=True)
    (copy.root / "bare/hooks/post-checkout").write_text("#!/bin/sh\n")
    with Review(copy) as review:
        assert not review.diff
        review.discard()


def test_data_that_does_not_exist_yet_cannot_be_brought_in(original: Path):
    (original / ".git").write_text("gitdir: gitdata\n")
    copy = working_copy(original)
    subprocess.run(["git", "init", "-q", "--bare", copy.root / "gitdata"], check=True)
    with Review(copy) as review:
        assert not review.diff
        review.discard()


def test_with_git_all_of_it_is_offered(original: Path):
    _pointer(original)
    copy = working_copy(original)
    (copy.root / "gitdata/description").write_text("mine\n")
    with Review(copy, with_git=True) as review:
        review.apply()
        assert (original / "gitdata/description").read_text() == "mine\n"
        review.discard()


def test_configuration_that_leads_git_to_the_original_is_not_copied(original: Path):
    _pointer(original)
    git(original, "--git-dir", "gitdata", "config", "core.worktree", os.fspath(original))
    copy = working_copy(original)
    assert [each.path for each in copy.skipped] == ["gitdata/config"]
    with Review(copy) as review:
        review.discard()
