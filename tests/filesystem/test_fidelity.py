"""What a snapshot keeps comes back to the byte, whatever is in the workspace."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.filesystem.restore_trees import CANARY, STORE
from tests.safety.places import LONG, ROOT, temporary

TREES = 10_000 if LONG else 2_000
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
    command = [sys.executable, "-m", "tests.filesystem.restore_trees", str(first), str(count)]
    ours = environment | {"GIT_DIR": "/nonexistent", "GIT_WORK_TREE": "/", "GIT_INDEX_FILE": "/x"}
    done = subprocess.run(
        [*command, str(work), *user], cwd=ROOT, check=True, capture_output=True, text=True, env=ours
    )
    seen = json.loads(done.stdout)
    print(f"{seen['trees']} trees, {seen['entries']} entries, {seen['ways']}")
    assert seen["defects"] == []
    assert seen["trees"] == count
    assert seen["entries"] > 10 * count
    assert len(seen["ways"]) == 5


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
