"""Working copies: exact, bounded, and without a way back to the original."""

import os
import shutil
from pathlib import Path

import pytest

from tests.contrib.review.places import change_everything
from tests.filesystem.trees_on_disk import state_of
from weakincentives.contrib.review import (
    CopyError,
    Review,
    WorkingCopy,
    working_copy,
)
from weakincentives.filesystem import HostFilesystem, LimitExceededError, MountProgress, diff
from weakincentives.filesystem.host.snapshots import capture, writer
from weakincentives.filesystem.host.snapshots.capture import Walk


def test_the_copy_is_exact(original: Path, copy: WorkingCopy) -> None:
    assert state_of(copy.root) == state_of(original)


def test_files_keep_their_times_for_tools_that_compare_them(original: Path, tmp_path: Path) -> None:
    os.utime(original / "src/app.py", (1_000_000_000, 1_000_000_000))
    copy = working_copy(original, place=tmp_path / "place")
    assert (copy.root / "src/app.py").stat().st_mtime == 1_000_000_000


def test_one_glob_instead_of_several_is_refused(original: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="sequence of globs"):
        working_copy(original, place=tmp_path / "place", exclude="*.log")


def test_nothing_touches_the_original_before_it_is_applied(
    original: Path, copy: WorkingCopy
) -> None:
    before = stats_of(original)
    change_everything(copy.root)
    with Review(copy) as review:
        assert review.diff.patch()
        assert review.conflicts() == ()
    assert stats_of(original) == before


def stats_of(root: Path) -> dict[str, tuple[int, ...]]:
    found = {str(path): path.lstat() for path in (root, *root.rglob("*"))}
    return {name: (each.st_ino, each.st_mtime_ns, each.st_mode) for name, each in found.items()}


def test_what_is_excluded_is_not_copied(original: Path, tmp_path: Path) -> None:
    (original / "src/node_modules").mkdir()
    (original / "src/node_modules/x.js").write_text("")
    copy = working_copy(original, place=tmp_path / "place", exclude=["*.log", "node_modules"])
    assert not (copy.root / "debug.log").exists()
    assert not (copy.root / "src/node_modules").exists()
    assert (copy.root / "src/app.py").exists()


def test_what_an_agent_does_where_nothing_was_copied_is_withheld(
    original: Path, tmp_path: Path
) -> None:
    copy = working_copy(original, place=tmp_path / "place", exclude=["old"])
    (copy.root / "old").mkdir()
    (copy.root / "old/a").write_text("by the agent")
    (copy.root / "src/app.py").write_text("changed")
    with Review(copy) as review:
        assert [change.path for change in review.withheld] == ["old", "old/a"]
        assert review.apply().paths == ("src/app.py",)
    assert (original / "old/a").read_text() == "a\n"


def test_progress_is_told_from_nothing_to_all(original: Path, tmp_path: Path) -> None:
    told: list[MountProgress] = []
    working_copy(original, place=tmp_path / "place", progress=told.append)
    assert told[0].done_files == 0
    assert told[-1].done_files == told[-1].total_files
    assert told[-1].done_bytes == told[-1].total_bytes > 0


def test_a_directory_that_is_too_large_is_refused(original: Path, tmp_path: Path) -> None:
    with pytest.raises(LimitExceededError, match="too large to copy, more than 3 files"):
        working_copy(original, place=tmp_path / "place", max_files=3)
    with pytest.raises(LimitExceededError, match="or raise max_bytes"):
        working_copy(original, place=tmp_path / "place", max_bytes=10)
    assert not (tmp_path / "place").exists()


def test_a_copy_that_fails_leaves_nothing(original: Path, tmp_path: Path) -> None:
    def stop(_: MountProgress) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        working_copy(original, place=tmp_path / "place", progress=stop)
    assert not (tmp_path / "place").exists()


def test_a_copy_inside_of_the_original_is_refused(original: Path) -> None:
    before = state_of(original)
    with pytest.raises(CopyError, match="must not be inside the original"):
        working_copy(original, place=original / "inner")
    assert state_of(original) == before


def test_a_place_that_is_in_use_is_refused(original: Path, tmp_path: Path) -> None:
    (tmp_path / "workspace").write_text("precious")
    with pytest.raises(CopyError, match="has a working copy already"):
        working_copy(original, place=tmp_path)
    assert (tmp_path / "workspace").read_text() == "precious"


def test_what_else_is_in_a_place_stays_when_its_copy_goes(original: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "mine").write_text("precious")
    copy = working_copy(original, place=place)
    with Review(copy) as review:
        review.discard()
    assert [each.name for each in place.iterdir()] == ["mine"]


@pytest.mark.parametrize("name", ["missing", "original/README.md"])
def test_an_original_that_is_no_directory_is_refused(
    original: Path, tmp_path: Path, name: str
) -> None:
    with pytest.raises((FileNotFoundError, NotADirectoryError)):
        working_copy(tmp_path / name, place=tmp_path / "place")


def test_pipes_are_skipped_and_links_to_outside_reported(original: Path, tmp_path: Path) -> None:
    os.mkfifo(original / "pipe")
    (original / "away").symlink_to("/etc")
    (original / "up").symlink_to("../elsewhere")
    copy = working_copy(original, place=tmp_path / "place")
    assert [str(each) for each in copy.skipped] == ["pipe: not a regular file"]
    assert copy.external_links == ("away", "up")


@pytest.mark.parametrize("content", ["gitdir: /elsewhere/.git\n", "gitdir: ../../x\n"])
def test_a_file_that_leads_git_away_is_skipped(
    original: Path, tmp_path: Path, content: str
) -> None:
    (original / "src/.git").write_text(content)
    copy = working_copy(original, place=tmp_path / "place")
    assert [each.path for each in copy.skipped] == ["src/.git"]


def test_other_ways_by_which_git_would_reach_the_original_are_skipped(
    original: Path, tmp_path: Path
) -> None:
    (original / "sub").mkdir()
    (original / "sub/.git").write_text("gitdir: ../.git/modules/sub\n")
    (original / "old/.git").symlink_to("/elsewhere/.git")
    (original / ".git").mkdir()
    (original / ".git/config").write_text(f'[core]\n\tworktree = "{original}"\n')
    (original / "config").write_text("worktree = /fine\n")
    copy = working_copy(original, place=tmp_path / "place")
    assert [each.path for each in copy.skipped] == [".git/config", "old/.git"]


def test_times_are_copied_to_the_nanosecond(original: Path, tmp_path: Path) -> None:
    os.utime(original / "src/app.py", ns=(5, 1_000_000_000_123_456_789))
    copy = working_copy(original, place=tmp_path / "place")
    assert (copy.root / "src/app.py").stat().st_mtime_ns == 1_000_000_000_123_456_789


def test_a_copy_is_not_read_again_for_its_first_snapshot(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (original / "large").write_bytes(os.urandom(3_000_000))
    (original / "holes").write_bytes(bytes(2_000_000))
    (original / "end").write_bytes(b"x" * 4096 + bytes(8192))

    def refuse(*_: object) -> str:
        raise AssertionError("read again")

    with monkeypatch.context() as patched:
        patched.setattr(capture, "read_range", refuse)
        copy = working_copy(original, place=tmp_path / "place")
    assert state_of(copy.root) == state_of(original)
    assert (copy.root / "holes").stat().st_blocks * 512 < 100_000
    with HostFilesystem(copy.root, git_dir=copy.git_dir) as files:
        assert not diff(files.view(copy.base), files)
        view = files.view(copy.base)
        assert view.stat("large").content_hash == files.stat("large").content_hash


def test_nothing_is_looked_at_again_for_the_first_snapshot(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        raise AssertionError("listed again")

    with monkeypatch.context() as patched:
        for looks in ("_list_changes", "_check_files"):
            patched.setattr(Walk, looks, refuse)
        copy = working_copy(original, place=tmp_path / "place")
    with HostFilesystem(copy.root, git_dir=copy.git_dir) as files:
        assert not diff(files.view(copy.base), files)


@pytest.mark.parametrize("is_coarse", [False, True])
def test_a_change_right_after_the_copy_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_coarse: bool
) -> None:
    original = tmp_path / "original"
    original.mkdir()
    (original / "file").write_text("before")
    with monkeypatch.context() as patched:
        if is_coarse:  # a file system whose clock does not tick in time
            patched.setattr(writer, "outlast_timestamp", lambda *_: False)
        copy = working_copy(original, place=tmp_path / "place")
    copied = copy.root / "file"
    found = copied.stat()
    copied.write_text("after!")
    os.utime(copied, ns=(found.st_atime_ns, found.st_mtime_ns))
    with Review(copy) as review:
        assert [each.path for each in review.diff.entries] == ["file"]


def test_a_file_of_the_copy_is_not_read_again_by_the_next_process(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = working_copy(original, place=tmp_path / "place")

    def refuse(*_: object) -> str:
        raise AssertionError("read again")

    monkeypatch.setattr(capture, "read_range", refuse)
    with HostFilesystem(copy.root, git_dir=copy.git_dir) as files:
        assert not diff(files.view(copy.base), files.view(files.snapshot()))


@pytest.mark.parametrize(
    "permissions", [pytest.param(0o000, marks=pytest.mark.root), 0o400, 0o666, 0o777, 0o4755]
)
def test_permissions_are_copied_whatever_the_umask_is(tmp_path: Path, permissions: int) -> None:
    original = tmp_path / "original"
    original.mkdir()
    (original / "file").write_text("content")
    (original / "file").chmod(permissions)
    mask = os.umask(0o077)
    try:
        copy = working_copy(original, place=tmp_path / "place")
    finally:
        os.umask(mask)
    assert (copy.root / "file").stat().st_mode & 0o7777 == permissions


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_a_file_that_changes_while_it_is_copied_is_stored_as_it_was_copied(
    tmp_path: Path, size: int
) -> None:
    original = tmp_path / "original"
    original.mkdir()
    for name in "abc":
        (original / name).write_bytes(b"x" * size)

    def shrink(progress: MountProgress) -> None:
        if progress.done_files:
            for name in "abc":
                os.truncate(original / name, 3)

    copy = working_copy(original, place=tmp_path / "place", progress=shrink)
    assert sorted(each.name for each in copy.root.iterdir()) == ["a", "b", "c"]
    with Review(copy) as review:
        assert not review.diff


def test_a_file_that_becomes_a_link_while_it_is_copied_is_skipped(tmp_path: Path) -> None:
    original, secret = tmp_path / "original", tmp_path / "secret"
    original.mkdir()
    secret.write_text("secret")
    names = [f"{number:02}" for number in range(20)]
    for name in names:
        (original / name).write_text(name)

    def replace(progress: MountProgress) -> None:
        if progress.done_files == 1:
            for name in names:
                (original / name).unlink()
                (original / name).symlink_to(secret)

    copy = working_copy(original, place=tmp_path / "place", progress=replace)
    copied = {each.name: each.read_text() for each in copy.root.iterdir()}
    assert all(name == text for name, text in copied.items())
    assert copied
    assert {each.path for each in copy.skipped} == set(names) - set(copied)


def test_a_large_file_that_is_cut_while_it_is_copied_gets_no_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = tmp_path / "original"
    original.mkdir()
    (original / "a").write_bytes(b"x" * 20_000_000)
    write = writer.write_piece

    def cut(descriptor: int, piece: bytes) -> bool:
        os.truncate(original / "a", 1_500_000)
        return write(descriptor, piece)

    with monkeypatch.context() as patched:
        patched.setattr(writer, "write_piece", cut)
        copy = working_copy(original, place=tmp_path / "place")
    assert (copy.root / "a").read_bytes() == b"x" * 1_500_000
    with Review(copy) as review:
        assert not review.diff


def test_files_of_somebody_else_do_not_make_a_copy_take_forever(tmp_path: Path) -> None:
    original = tmp_path / "original"
    (original / ".venv/bin").mkdir(parents=True)
    (original / ".venv/pyvenv.cfg").touch()
    (original / ".venv/bin/activate").write_bytes(b"\n" * 1_000_000)
    (original / ".git").write_bytes(b"gitdir:x" + b" " * 1_000_000 + b"y")
    copy = working_copy(original, place=tmp_path / "place")
    assert state_of(copy.root) == state_of(original)


def test_a_cancelled_copy_leaves_nothing(original: Path, tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(progress: MountProgress) -> None:
        if progress.done_files > 2:
            raise StopError

    with pytest.raises(StopError):
        working_copy(original, place=tmp_path / "place", progress=stop)
    assert not (tmp_path / "place").exists()


def test_caches_of_commands_are_not_offered_but_the_removal_of_one_is(tmp_path: Path) -> None:
    original = tmp_path / "original"
    for path in ("kept/__pycache__/a.pyc", "tracked/__pycache__/b.pyc", "gone/__pycache__/c.pyc"):
        (original / path).parent.mkdir(parents=True)
        (original / path).write_text("old")
        (original / path).parent.parent.joinpath("module.py").write_text("")
    copy = working_copy(original, place=tmp_path / "place")
    (copy.root / "kept/__pycache__/a.pyc").write_text("changed by a test run")
    for path in (".pytest_cache/v", "new/.mypy_cache/x", "new/__pycache__/m.pyc"):
        (copy.root / path).parent.mkdir(parents=True)
        (copy.root / path).write_text("made by a test run")
    (copy.root / "new/module.py").write_text("new")
    shutil.rmtree(copy.root / "tracked/__pycache__")
    shutil.rmtree(copy.root / "gone")
    with Review(copy) as review:
        assert {each.path for each in review.diff.entries} == {
            *("gone", "gone/__pycache__", "gone/__pycache__/c.pyc", "gone/module.py"),
            *("new", "new/module.py", "tracked/__pycache__", "tracked/__pycache__/b.pyc"),
        }
        assert review.diff_since(copy.base).entries == review.diff.entries
        assert review.withheld == ()
        review.apply()
        assert not review.diff
    assert sorted(path.name for path in original.iterdir()) == ["kept", "new", "tracked"]
    assert (original / "kept/__pycache__/a.pyc").read_text() == "old"
    assert not (original / "tracked/__pycache__").exists()
    assert not (original / "new/__pycache__").exists()
