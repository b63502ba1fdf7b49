"""What a snapshot must hold is computed without git, and is what git says."""

import shutil

import pytest

from benchmarks.gitids import ExpectedTree, object_id
from benchmarks.peer_git import Git

FILES = {
    "a.py": b"one\n",
    "a.d/b.py": b"",
    "a-b/c.py": b"\0\xff",
    "a/b/c/d.py": b"deep\n",
    "ab": b"after the directory, before its slash\n",
}


def test_the_id_of_an_empty_blob_is_the_well_known_one() -> None:
    assert object_id("blob", b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"


def test_the_id_of_an_empty_tree_is_the_well_known_one() -> None:
    assert ExpectedTree([]).id == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the judge")
def test_the_id_of_a_tree_is_that_of_git(tmp_path) -> None:
    root, place = tmp_path / "root", tmp_path / "place"
    place.mkdir()
    for path, content in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    git = Git(root, place)
    assert ExpectedTree(FILES.items()).id == git.tree_of(git.snapshot())


def test_a_tree_changes_its_id_with_any_file() -> None:
    tree = ExpectedTree(FILES.items())
    before = tree.id
    tree.write("a/b/c/d.py", b"other\n")
    assert tree.id != before
    tree.write("a/b/c/d.py", b"deep\n")
    assert tree.id == before
