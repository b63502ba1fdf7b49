"""Snapshots of a directory of the host."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from mmap import mmap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.posix.forks import is_killed_at
from tests.safety.places import temporary
from tests.sizes import size
from weakincentives.errors import SnapshotError, SnapshotRestoreError
from weakincentives.filesystem import (
    HostFilesystem,
    ReadOnlyError,
    SnapshotableFilesystem,
    StateReplaced,
)
from weakincentives.posix import fault_hook

RESERVED = [".git", ".GIT", "git~1", ".gitmodules", ".gitattributes", ".gitignore", "HEAD"]
ODD = ["a b", "\udcff", "a\nb", "a%", "%41", "é", "-rf", "manifest.json", "files", "\\x"]
NAMES = st.sampled_from(["a", "b", *RESERVED, *ODD])
FILE = st.tuples(st.binary(max_size=20), st.sampled_from([0o644, 0o755, 0o600, 0o444, 0o777]))
TREES = st.recursive(
    st.dictionaries(NAMES, FILE | st.sampled_from(["a", "/etc/passwd", "../x"]), max_size=4),
    lambda inner: st.dictionaries(NAMES, FILE | inner | st.just("gone"), max_size=4),
    max_leaves=8,
)


def tree_of(root: Path) -> dict[str, tuple[int, object]]:
    """Return every path below `root` with its permissions and content."""
    found: dict[str, tuple[int, object]] = {}
    for parent, directories, files in os.walk(root):
        for name in directories + files:
            path = Path(parent, name)
            content: object = None
            if path.is_symlink():
                content = str(path.readlink())
            elif path.is_file():
                content = path.read_bytes()
            mode = 0 if path.is_symlink() else path.lstat().st_mode & 0o777
            found[str(path.relative_to(root))] = (mode, content)
    return found


def lay_out(root: Path, tree: dict[str, object]) -> None:
    """Make `tree` in an empty directory."""
    for name, node in tree.items():
        path = root / name
        if isinstance(node, dict):
            path.mkdir()
            lay_out(path, node)
        elif isinstance(node, str):
            path.symlink_to(node)
        elif isinstance(node, tuple):
            path.write_bytes(node[0])
            path.chmod(node[1])


def clear(root: Path) -> None:
    for path in root.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    root.mkdir()
    return root


@pytest.fixture
def fs(root: Path) -> Iterator[HostFilesystem]:
    fs = HostFilesystem(root)
    yield fs
    fs.cleanup()


def fill(root: Path) -> None:
    """Lay out what `git add` would lose or change."""
    (root / "src" / "empty").mkdir(parents=True)
    (root / "src" / "app.py").write_bytes(b"old\n")
    (root / ".gitattributes").write_text("* text=auto eol=crlf\n*.py filter=evil ident\n")
    (root / ".gitignore").write_text("*.log\nnode_modules/\n")
    (root / "debug.log").write_text("ignored")
    (root / "node_modules").mkdir()
    (root / "node_modules" / "x.js").write_text("ignored too")
    (root / "vendor" / ".git").mkdir(parents=True)
    (root / "vendor" / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (root / "vendor" / "lib.py").write_text("nested")
    (root / "link").symlink_to("/etc/passwd")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o700)


def spoil(root: Path) -> None:
    (root / "src" / "app.py").write_text("new")
    (root / "src" / "more.py").write_text("more")
    shutil.rmtree(root / "vendor")
    shutil.rmtree(root / "src" / "empty")
    (root / "debug.log").unlink()
    (root / "link").unlink()
    (root / "link").mkdir()
    (root / "run.sh").chmod(0o644)


def test_everything_comes_back_whoever_changed_it(fs: HostFilesystem, root: Path) -> None:
    fill(root)
    before = tree_of(root)
    kept = fs.snapshot(tag="before")
    spoil(root)
    os.mkfifo(root / "pipe")
    fs.restore(kept)
    assert tree_of(root) == before


def test_a_restore_can_be_undone(fs: HostFilesystem, root: Path) -> None:
    fill(root)
    first = fs.snapshot()
    spoil(root)
    second = fs.snapshot()
    after = tree_of(root)
    fs.restore(first)
    fs.restore(second)
    assert tree_of(root) == after


@pytest.fixture
def light() -> Iterator[HostFilesystem]:
    """A workspace and its store that no disk slows down."""
    with temporary(light=True) as directory:
        (directory / "workspace").mkdir()
        with HostFilesystem(directory / "workspace", git_dir=directory / "store") as fs:
            yield fs


# many more, and much odder ones, in test_fidelity.py; these are made small where they fail
@settings(
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(before=TREES, after=TREES)
def test_any_tree_becomes_any_other_and_back(
    light: HostFilesystem, before: dict[str, object], after: dict[str, object]
) -> None:
    fs, root = light, Path(light.root)
    clear(root)
    lay_out(root, before)
    first_tree = tree_of(root)
    first = fs.snapshot()
    clear(root)
    lay_out(root, after)
    second_tree = tree_of(root)
    second = fs.snapshot()
    fs.restore(first)
    assert tree_of(root) == first_tree
    fs.restore(second)
    assert tree_of(root) == second_tree


def test_a_snapshot_whose_manifest_has_another_version_is_not_restored(
    fs: HostFilesystem, root: Path
) -> None:
    def git(*arguments: str, given: str = "") -> str:
        command = ["git", "--git-dir", fs.git_dir or "", *arguments]
        return subprocess.run(
            command, input=given, capture_output=True, text=True, check=True
        ).stdout

    fill(root)
    snapshot = fs.snapshot()
    before = tree_of(root)
    commit, tree = git("cat-file", "-p", snapshot.commit_ref), f"{snapshot.commit_ref}^{{tree}}"
    manifest = git("show", f"{tree}:manifest.json")
    known = git("rev-parse", f"{tree}:manifest.json").strip()
    blob = git("hash-object", "-w", "--stdin", given=manifest.replace('"1"', '"2"')).strip()
    entries = git("cat-file", "-p", tree).replace(known, blob)
    other = commit.replace(git("rev-parse", tree), git("mktree", given=entries))
    forged = git("hash-object", "-t", "commit", "-w", "--stdin", given=other).strip()
    with pytest.raises(SnapshotRestoreError, match="Manifest has version '2'"):
        fs.restore(replace(snapshot, commit_ref=forged))
    assert tree_of(root) == before


def test_git_reads_the_store(fs: HostFilesystem, root: Path) -> None:
    fill(root)
    fs.snapshot(tag="first")
    spoil(root)
    fs.snapshot(tag="second")
    git = ["git", "--git-dir", fs.git_dir or ""]
    checked = subprocess.run([*git, "fsck", "--strict"], capture_output=True, text=True, check=True)
    assert "error" not in checked.stderr
    log = subprocess.run([*git, "log", "--stat"], capture_output=True, text=True, check=True).stdout
    assert "first" in log
    assert "second" in log
    assert "src/app.py" in log


def test_the_store_is_where_callers_expect_it(fs: HostFilesystem, root: Path) -> None:
    assert fs.git_dir is None
    kept = fs.snapshot()
    assert fs.git_dir == kept.git_dir
    assert Path(kept.git_dir or "").name.startswith("wink-git-")
    assert (len(kept.commit_ref), kept.root_path) == (40, str(root))
    assert fs.snapshot(tag="another").commit_ref != kept.commit_ref
    assert isinstance(fs, SnapshotableFilesystem)


def test_a_place_of_ones_own_is_used(root: Path, tmp_path: Path) -> None:
    place = tmp_path / "store"
    for fs in (HostFilesystem(root, git_dir=place), HostFilesystem(root, _git_dir=place)):
        assert fs.snapshot().git_dir == str(place)
        fs.cleanup()
        assert not place.exists()


def test_a_new_instance_restores_an_older_snapshot(fs: HostFilesystem, root: Path) -> None:
    fill(root)
    before = tree_of(root)
    kept = fs.snapshot()
    spoil(root)
    with HostFilesystem(root) as other:
        other.restore(kept)
    assert tree_of(root) == before


def test_the_store_goes_with_its_last_user(root: Path) -> None:
    one, other = HostFilesystem(root), HostFilesystem(root)
    kept = one.snapshot()
    other.snapshot()
    one.cleanup()
    assert Path(kept.git_dir or "").is_dir()
    other.cleanup()
    other.cleanup()
    assert not Path(kept.git_dir or "").exists()
    assert other.git_dir is None


@pytest.mark.parametrize("ref", ["-q", "HEAD~1", "main", "", "0" * 40, "0" * 39, "x" * 40])
def test_a_reference_that_is_none_changes_nothing(fs: HostFilesystem, root: Path, ref: str) -> None:
    fill(root)
    kept = fs.snapshot()
    spoil(root)
    now = tree_of(root)
    for wrong in (ref, kept.commit_ref + "\n"):
        with pytest.raises(SnapshotRestoreError, match="Unknown snapshot"):
            fs.restore(replace(kept, commit_ref=wrong))
    assert tree_of(root) == now


def test_a_snapshot_of_another_workspace_is_refused_unless_forced(
    fs: HostFilesystem, root: Path, tmp_path: Path
) -> None:
    (root / "a").write_text("mine")
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    (elsewhere / "b").write_text("theirs")
    other = HostFilesystem(elsewhere)
    taken = other.snapshot()
    with pytest.raises(SnapshotRestoreError, match="another workspace"):
        fs.restore(taken)
    assert tree_of(root) == {"a": (0o644, b"mine")}
    fs.restore(taken, force=True)
    assert tree_of(root) == {"b": (0o644, b"theirs")}
    other.cleanup()


def test_a_cut_off_restore_of_another_workspace_is_finished_here_and_only_here(
    fs: HostFilesystem, root: Path, tmp_path: Path
) -> None:
    (root / "a").write_text("mine")
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    (elsewhere / "b").write_text("theirs")
    other = HostFilesystem(elsewhere)
    taken = other.snapshot()
    (elsewhere / "b").write_text("newer")
    assert is_killed_at("change.changing", lambda: fs.restore(taken, force=True))
    HostFilesystem(elsewhere).close()
    assert tree_of(elsewhere) == {"b": (0o644, b"newer")}
    HostFilesystem(root).close()
    assert tree_of(root) == {"b": (0o644, b"theirs")}
    other.cleanup()


def test_a_store_that_is_not_ours_is_refused(fs: HostFilesystem, tmp_path: Path) -> None:
    kept = fs.snapshot()
    foreign = tmp_path / "foreign"
    subprocess.run(["git", "init", "-q", "--bare", foreign], check=True)
    with pytest.raises(SnapshotRestoreError, match="Unknown snapshot"):
        fs.restore(replace(kept, git_dir=str(foreign)))
    with pytest.raises(SnapshotError):
        HostFilesystem(fs.root, git_dir=foreign).snapshot()


def test_a_damaged_store_changes_nothing(fs: HostFilesystem, root: Path) -> None:
    fill(root)
    kept = fs.snapshot()
    spoil(root)
    now = tree_of(root)
    for pack in Path(fs.git_dir or "", "objects", "pack").glob("*.pack"):
        pack.chmod(0o600)
        data = bytearray(pack.read_bytes())
        data[100:-100] = bytes(len(data) - 200)
        pack.write_bytes(data)
    with HostFilesystem(root) as other, pytest.raises(SnapshotError):
        other.restore(kept)
    assert tree_of(root) == now


def test_a_restore_that_is_cut_off_is_finished_or_never_was(fs: HostFilesystem, root: Path) -> None:
    fill(root)
    old = tree_of(root)
    kept = fs.snapshot()
    spoil(root)
    new = tree_of(root)
    later = fs.snapshot()
    points: list[str] = []
    with fault_hook(points.append):
        fs.restore(kept)
    fs.restore(later)
    outcomes: set[bool] = set()
    for number in range(0, len(points), size(3, 1)):
        assert is_killed_at("", lambda: fs.restore(kept), number + 1)
        next_one = HostFilesystem(root)
        assert tree_of(root) in (old, new), points[number]
        outcomes.add(tree_of(root) == old)
        next_one.restore(later)
        assert tree_of(root) == new
        next_one.close()
    assert outcomes == {True, False}


def test_a_read_only_filesystem_is_kept_but_not_restored(root: Path) -> None:
    (root / "a").write_text("1")
    fs = HostFilesystem(root, read_only=True)
    kept = fs.snapshot()
    with pytest.raises(ReadOnlyError):
        fs.restore(kept)
    fs.cleanup()


def test_a_restore_is_told(fs: HostFilesystem) -> None:
    kept = fs.snapshot()
    told: list[object] = []
    fs.subscribe(told.append)
    fs.restore(kept)
    assert told == [StateReplaced("restore", kept.commit_ref)]


def test_a_view_shows_the_state(fs: HostFilesystem, root: Path) -> None:
    fill(root)
    kept = fs.snapshot()
    spoil(root)
    view = fs.view(kept)
    assert view.read("src/app.py").content == "old\n"
    assert view.stat("link").link_target == "/etc/passwd"
    assert view.stat("run.sh").permissions == 0o700
    assert [match.path for match in view.grep("nested")] == ["vendor/lib.py"]
    assert view.list("src/empty") == ()


def test_a_full_store_fails_the_snapshot_and_the_next_one_is_whole(
    fs: HostFilesystem, root: Path
) -> None:
    (root / "a").write_text("1")

    def full(point: str) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(SnapshotError, match="Failed to create snapshot"), fault_hook(full):
        fs.snapshot()
    kept = fs.snapshot()
    (root / "a").write_text("2")
    fs.restore(kept)
    assert (root / "a").read_text() == "1"


def test_a_store_into_a_memory_mapping_is_in_the_next_snapshot(
    fs: HostFilesystem, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weakincentives.filesystem.host.files._RACY_NS", -1)  # times are trusted
    (root / "a").write_bytes(b"1")
    with (root / "a").open("r+b") as opened:
        mapped = mmap(opened.fileno(), 1)
    mapped[0:1] = b"2"
    assert fs.view(fs.snapshot()).read_bytes("a").content == b"2"
    before = (root / "a").stat()
    mapped[0:1] = b"3"
    after = (root / "a").stat()
    assert (before.st_mtime_ns, before.st_ctime_ns) == (after.st_mtime_ns, after.st_ctime_ns)
    assert fs.view(fs.snapshot()).read_bytes("a").content == b"3"
    mapped.close()
