"""Snapshots restore every byte, whatever is in the workspace."""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.filesystem.host.restore_trees import CANARY, STORE, WORKSPACE
from tests.safety.places import ROOT, temporary
from tests.sizes import size
from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem import HostFilesystem, HostMount
from weakincentives.gitstore.repository import Repository

TREES = size(240, 10_000)
BATCHES = 4
NOBODY = 65_534

HOSTILE = """
[core]
    fsmonitor = touch {canary}
    hooksPath = {hooks}
    autocrlf = true
    attributesFile = {attributes}
    excludesFile = {attributes}
    editor = touch {canary}
    sshCommand = touch {canary}
[filter "evil"]
    clean = touch {canary}
    smudge = touch {canary}
    process = touch {canary}
    required = true
[gpg]
    program = touch {canary}
[commit]
    gpgSign = true
[tag]
    gpgSign = true
[gc]
    auto = 1
    pruneExpire = now
[receive]
    fsckObjects = true
[transfer]
    fsckObjects = true
[init]
    templateDir = {hooks}
    defaultObjectFormat = sha256
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    with temporary(light=True) as path:
        yield path


@pytest.fixture
def hostile(directory: Path) -> dict[str, str]:
    """An environment whose git configuration runs programs wherever git would."""
    home, canary = directory / "home", directory / CANARY
    hooks = home / "hooks"
    hooks.mkdir(parents=True)
    for name in ("pre-commit", "post-checkout", "reference-transaction", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {canary}\n")
        (hooks / name).chmod(0o755)
    attributes = home / "attributes"
    attributes.write_text("* filter=evil text eol=crlf ident\n*\n")
    names = {"canary": canary, "hooks": hooks, "attributes": attributes}
    (home / ".gitconfig").write_text(HOSTILE.format(**names))
    return os.environ | {"HOME": str(home), "XDG_CONFIG_HOME": str(home)}


def restored(first: int, count: int, work: Path, environment: dict[str, str], *user: str) -> None:
    """Run so many rounds in a process of their own, and look at what is left."""
    work.mkdir()
    command = [sys.executable, "-m", "tests.filesystem.host.restore_trees", str(first), str(count)]
    ours = environment | {"GIT_DIR": "/nonexistent", "GIT_WORK_TREE": "/", "GIT_INDEX_FILE": "/x"}
    done = subprocess.run(
        [*command, str(work), *user], cwd=ROOT, check=True, capture_output=True, text=True, env=ours
    )
    seen = json.loads(done.stdout)
    print(f"{seen['trees']} trees, {seen['entries']} entries, {seen['ways']}")
    assert seen["defects"] == []
    assert seen["trees"] == count
    assert seen["entries"] > 10 * count
    assert len(seen["ways"]) >= size(5, 7)


def git(store: Path, environment: dict[str, str], *arguments: str) -> str:
    command = ["git", "-c", "safe.directory=*", "--git-dir", str(store), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, env=environment)
    return (done.stdout + done.stderr).decode(errors="surrogateescape")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_tree_comes_back_to_the_byte_and_git_reads_it(
    directory: Path, hostile: dict[str, str], batch: int
) -> None:
    work, count = directory / "work", TREES // BATCHES
    restored(batch * count, count, work, hostile)
    store = work / STORE
    assert git(store, hostile, "fsck", "--strict", "--no-dangling") == ""
    commits = git(store, hostile, "log", "--format=%H").split()
    assert len(commits) > 2 * count
    assert git(store, hostile, "log", "--stat").count("\ncommit ") == len(commits) - 1
    assert "files/" in git(store, hostile, "show", "--stat", commits[0], commits[-1])
    assert not (work / CANARY).exists()
    assert not (directory / CANARY).exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_tree_comes_back_for_who_may_not_do_everything(
    directory: Path, hostile: dict[str, str]
) -> None:
    directory.chmod(0o755)
    user = [str(NOBODY)] if os.geteuid() == 0 else []
    restored(TREES, TREES // 8, directory / "work", hostile, *user)


class Changes:
    """Random changes through the protocol, and some behind its back that are told."""

    def __init__(self, fs: HostFilesystem, directory: Path, choice: random.Random) -> None:
        self._fs = fs
        self._root = Path(fs.root)
        self._choice = choice
        self._archive = directory / "state.zip"
        self._kept = [fs.snapshot()]
        fs.export_archive(self._archive)

    def make(self) -> None:
        """Make one; a few of them are refused."""
        changes: list[Callable[[], object]] = [
            *[self._write, self._append, self._move, self._copy] * 3,
            *[self._delete, self._mkdir, self._restore, self._restore_some] * 2,
            *[self._keep, self._export, self._import, self._change_outside, self._mount],
        ]
        with suppress(OSError, ValueError, SnapshotRestoreError):
            self._choice.choice(changes)()

    def _path(self) -> str:
        depth = self._choice.randint(1, 3)
        return "/".join(self._choice.choice(["a", "b", ".git", "c d"]) for _ in range(depth))

    def _write(self) -> None:
        self._fs.write(self._path(), self._choice.choice(["", "x", "long " * 900]))

    def _append(self) -> None:
        self._fs.write(self._path(), "more", mode="append")

    def _move(self) -> None:
        self._fs.move(self._path(), self._path(), overwrite=self._choice.random() < 0.5)

    def _copy(self) -> None:
        self._fs.copy(self._path(), self._path(), overwrite=self._choice.random() < 0.5)

    def _delete(self) -> None:
        self._fs.delete(self._path(), recursive=True)

    def _mkdir(self) -> None:
        self._fs.mkdir(self._path())

    def _restore(self) -> None:
        self._fs.restore(self._choice.choice(self._kept))

    def _restore_some(self) -> None:
        self._fs.restore(self._choice.choice(self._kept), paths=[self._path(), self._path()])

    def _keep(self) -> None:
        self._kept.append(self._fs.snapshot())

    def _export(self) -> None:
        self._fs.export_archive(self._archive)

    def _import(self) -> None:
        self._fs.import_archive(self._archive)

    def _change_outside(self) -> None:
        path = self._root / self._path()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fs.invalidate()
        path.write_bytes(self._choice.randbytes(10))
        path.chmod(self._choice.choice([0o600, 0o644, 0o755]))

    def _mount(self) -> None:
        source = self._root.parent / "source"
        mount = HostMount(host_path=str(source), mount_path=self._path())
        self._fs.hydrate_from_host(mount, allowed_roots=[self._root.parent])


def tree_of(fs: HostFilesystem) -> str:
    """Take a snapshot; return the id of its tree, which is the same for the same state."""
    taken = fs.snapshot()
    return Repository.open(Path(taken.git_dir or "")).read_commit(taken.commit_ref).tree


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_what_an_exclusive_instance_knows_is_what_there_is(directory: Path, seed: int) -> None:
    root = directory / WORKSPACE
    root.mkdir()
    (directory / "source" / "in").mkdir(parents=True)
    (directory / "source" / "in" / "f").write_text("mounted")
    choice = random.Random(seed)
    with (
        HostFilesystem(root, git_dir=directory / "known", exclusive=True) as knowing,
        HostFilesystem(root, git_dir=directory / "walked") as walking,
    ):
        changes = Changes(knowing, directory, choice)
        trees: set[str] = set()
        for number in range(size(100, 2_000)):
            for _ in range(choice.randint(1, 4)):
                changes.make()
            known = tree_of(knowing)
            assert known == tree_of(walking), f"after {number} changes"
            trees.add(known)
    assert len(trees) > 20


@pytest.fixture
def fs(directory: Path) -> Iterator[HostFilesystem]:
    (directory / WORKSPACE).mkdir()
    with HostFilesystem(directory / WORKSPACE, git_dir=directory / STORE) as fs:
        yield fs


def test_files_larger_than_what_is_held_in_memory_come_back(fs: HostFilesystem) -> None:
    root = Path(fs.root)
    (root / "hole").touch()
    os.truncate(root / "hole", 40_000_000)
    (root / "large").write_bytes(random.Random(1).randbytes(1_000_003) * 17)
    digests = [digest_of(root / name) for name in ("hole", "large")]
    kept = fs.snapshot()
    with (root / "large").open("r+b") as file:
        file.seek(16_000_000)
        file.write(b"!")
    (root / "hole").unlink()
    fs.restore(kept)
    assert [digest_of(root / name) for name in ("hole", "large")] == digests


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@pytest.mark.slow
def test_a_tree_deeper_than_any_path_comes_back(fs: HostFilesystem, directory: Path) -> None:
    levels, segment = size(500, 1_500), "n" * 20
    make_deep(Path(fs.root), segment, levels)
    kept = fs.snapshot()
    subprocess.run(["rm", "-rf", f"{fs.root}/{segment}"], check=True)
    fs.restore(kept)
    assert depth_of(Path(fs.root), segment) == levels
    fs.export_archive(directory / "deep.zip")
    fs.delete(segment, recursive=True)
    fs.import_archive(directory / "deep.zip")
    assert depth_of(Path(fs.root), segment) == levels


def make_deep(root: Path, segment: str, levels: int) -> None:
    current = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(segment, dir_fd=current)
        deeper = os.open(segment, os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = deeper
    os.close(current)


def depth_of(root: Path, segment: str) -> int:
    current, depth = os.open(root, os.O_RDONLY), 0
    with suppress(FileNotFoundError):
        while True:
            deeper = os.open(segment, os.O_RDONLY, dir_fd=current)
            os.close(current)
            current = deeper
            depth += 1
    os.close(current)
    return depth
