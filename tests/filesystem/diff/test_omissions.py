"""Omissions of a patch: exactly the paths that differ after the real git has applied it."""

import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.filesystem.generated_trees import (
    ODD,
    PLAIN,
    RESERVED,
    Children,
    Link,
    Node,
    Repositories,
    Trees,
)
from tests.filesystem.trees_on_disk import State, lay_out, spoil, state_of
from weakincentives.filesystem import HostFilesystem, diff

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CEILING_DIRECTORIES": "/",
    "HOME": os.devnull,
}
ROUNDS = int(os.environ.get("WINK_PATCH_ROUNDS", "40"))


class PatchTrees(Trees):
    """A few names, so that files, links and directories come in each other's place."""

    def some(self, choice: random.Random, depth: int) -> Children:
        names = choice.sample([*PLAIN[:4], *choice.sample(ODD + RESERVED, 2)], choice.randint(0, 4))
        return {name: self.node(choice, depth) for name in names}

    def node(self, choice: random.Random, depth: int) -> Node:
        made = super().node(choice, depth)
        return made if isinstance(made, Link) else made._replace(mode=_open(made.mode))

    def mode(self, choice: random.Random, old: int) -> int:
        return _open(super().mode(choice, old))


def _open(mode: int) -> int:
    """Return permissions with which an ordinary user can compare and copy what has them."""
    return mode if os.geteuid() == 0 else mode | 0o700


def applied(patch: bytes, root: Path) -> State:
    """Let git apply a patch below `root`; return what is there then."""
    done = subprocess.run(
        ["git", "apply", "--allow-empty", "-"],
        cwd=root,
        input=patch,
        capture_output=True,
        env=ENVIRONMENT,
        umask=0o022,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode() + patch.decode(errors="replace")
    return state_of(root)


def copied(source: Path, target: Path) -> Path:
    subprocess.run(["cp", "-a", source, target], check=True)
    return target


def check(before: Path, after: Path, *, renames: bool = True) -> set[bytes]:
    """Apply the patch between two trees; what differs is what was said to."""
    wanted = state_of(after)
    with HostFilesystem(before, read_only=True) as old, HostFilesystem(after) as new:
        changes = diff(old, new, renames=renames)
        patch, omitted = changes.patch_bytes(), changes.omissions
    found = applied(patch, before)
    differing = {path for path in wanted.keys() | found if wanted.get(path) != found.get(path)}
    named = {os.fsencode(each.path) for each in omitted}
    wrong = [(path, wanted.get(path), found.get(path)) for path in sorted(differing ^ named)]
    assert differing == named, (wrong, [str(each) for each in omitted])
    return named


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_what_differs_after_git_apply_is_what_was_named(seed: int, tmp_path: Path):
    choice = random.Random(seed)
    trees = PatchTrees(Repositories({}, {}), Path("/nowhere"))
    for number in range(5):
        before, after = tmp_path / f"{number}a", tmp_path / f"{number}b"
        before.mkdir()
        lay_out(before, trees.some(choice, 3))
        if choice.random() < 0.2:
            after.mkdir()
            lay_out(after, trees.some(choice, 3))
        else:
            copied(before, after)
            for _ in range(choice.randint(1, 4)):
                spoil(after, trees, choice)
        if not os.path.lexists(before / ".git"):  # else git takes that for its own
            check(before, after, renames=choice.random() < 0.8)
        shutil.rmtree(before)
        shutil.rmtree(after)


def _empty_inside(before: Path, after: Path) -> set[bytes]:
    (before / "d/empty").mkdir(parents=True)
    (before / "d/x").write_text("1")
    (after / "d").write_text("2")
    return {b"d", b"d/empty"}


def _empty_becomes_file(before: Path, after: Path) -> set[bytes]:
    (before / "d").mkdir()
    (after / "d").write_text("2")
    return set()


def _refused_name_inside(before: Path, after: Path) -> set[bytes]:
    (before / "d/git~1").mkdir(parents=True)
    (before / "d/git~1/x").write_text("1")
    (before / "d/y").write_text("1")
    (after / "d").write_text("2")
    return {b"d", b"d/git~1", b"d/git~1/x"}


def _refused_name_added(before: Path, after: Path) -> set[bytes]:
    (after / "git~1").write_text("new")
    return {b"git~1"}


def _renamed_from_a_refused_name(before: Path, after: Path) -> set[bytes]:
    (before / "git~1").write_text("the same text\n")
    (after / "plain").write_text("the same text\n")
    return {b"git~1", b"plain"}


def _emptied_directories_stay(before: Path, after: Path) -> set[bytes]:
    (before / "d/e/f").mkdir(parents=True)
    (before / "d/e/f/x").write_text("1")
    (after / "d/e/f").mkdir(parents=True)
    return {b"d", b"d/e", b"d/e/f"}


def _closed_directory_made_anew(before: Path, after: Path) -> set[bytes]:
    for root, name in ((before, "x"), (after, "y")):
        (root / "d").mkdir()
        (root / "d" / name).write_text(name)
        (root / "d").chmod(0o700)
    return {b"d"}


def _permissions(before: Path, after: Path) -> set[bytes]:
    for root, modes in ((before, (0o600, 0o644, 0o600)), (after, (0o600, 0o664, 0o644))):
        for name, mode in zip("abc", modes, strict=True):
            (root / name).write_text("1" if name == "b" else root.name)
            (root / name).chmod(mode)
    return {b"a", b"b"}  # git gives c the permissions that it should have


def _directory_that_may_not_be_changed(before: Path, after: Path) -> set[bytes]:
    for root in (before, after):
        (root / "d").mkdir()
        (root / "d/x").write_text(root.name)
        (root / "d").chmod(0o555)
    return set() if os.geteuid() == 0 else {b"d/x"}


def _setuid(before: Path, after: Path) -> set[bytes]:
    (after / "tool").write_text("#!/bin/sh\n")
    (after / "tool").chmod(0o4755)
    return {b"tool"}


def _link_to_itself(before: Path, after: Path) -> set[bytes]:
    (before / "l").symlink_to("l")
    (after / "l").mkdir()
    (after / "l/x").write_text("1")
    return {b"l", b"l/x"}


def _pipe_in_the_way(before: Path, after: Path) -> set[bytes]:
    os.mkfifo(before / "p")
    os.mkfifo(before / "q")
    (after / "p").write_text("1")
    (after / "q").mkdir()
    (after / "q/x").write_text("1")
    return {b"p", b"q", b"q/x"}


CASES: list[Callable[[Path, Path], set[bytes]]] = [
    _empty_inside,
    _empty_becomes_file,
    _refused_name_inside,
    _refused_name_added,
    _renamed_from_a_refused_name,
    _emptied_directories_stay,
    _closed_directory_made_anew,
    _permissions,
    _setuid,
    _directory_that_may_not_be_changed,
    _link_to_itself,
    _pipe_in_the_way,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.strip("_"))
def test_git_takes_the_patch_and_the_rest_is_named(
    case: Callable[[Path, Path], set[bytes]], tmp_path: Path
):
    before, after = tmp_path / "before", tmp_path / "after"
    for root in (before, after):
        root.mkdir()
        (root / "other").write_text(root.name)
    expected = case(before, after)
    assert check(before, after) == expected
