"""`move` and `mkdir`."""

from pathlib import Path
from typing import Any

import pytest

from tests.contrib.handlers.calls import Workspace, make_context, tree_of
from tests.contrib.handlers.requests import make_link
from tests.contrib.plain import Plain
from weakincentives.contrib.tools.handlers.move import mkdir, move
from weakincentives.contrib.tools.requests import MkdirParams, MoveParams
from weakincentives.contrib.tools.results import MkdirResult, MoveResult
from weakincentives.filesystem import MAX_WRITE_LENGTH, HostFilesystem


def test_a_file_is_moved_with_its_permissions(tmp_path: Path):
    (tmp_path / "run.sh").write_text("echo\n")
    (tmp_path / "run.sh").chmod(0o755)
    outcome = Workspace(HostFilesystem(tmp_path)).call(MoveParams("run.sh", "bin/go.sh"))
    assert outcome.text == "Moved run.sh to bin/go.sh"
    assert outcome.result.value == MoveResult("run.sh", "bin/go.sh")
    assert (tmp_path / "bin" / "go.sh").stat().st_mode & 0o777 == 0o755
    assert not (tmp_path / "run.sh").exists()


def test_a_directory_is_moved_with_all_in_it(workspace: Workspace):
    workspace.fs.write("src/a/b", "text")
    assert workspace.done(MoveParams("src", "lib/src")) == "Moved src/ to lib/src/"
    assert workspace.fs.read("lib/src/a/b").content == "text"
    assert not workspace.fs.exists("src")


@pytest.mark.parametrize(
    ("source", "destination", "said"),
    [
        ("a", "b", "Destination already exists, nothing was moved: 'b'; to remove it first: rm"),
        ("a", "dir", "give the full new path"),
        ("a", ".", "Destination already exists"),
        ("a", "b/c", "'b' is a file, so"),
        ("A", "c", "did you mean 'a'"),
        ("dir", "dir/inner", "Cannot move a directory into itself"),
        (".", "c", "The workspace root cannot be moved"),
        ("a", "Größe", "New names must be ASCII"),
        ("a", "../c", "escapes root"),
    ],
)
def test_a_move_that_cannot_be_is_refused(
    workspace: Workspace, source: str, destination: str, said: str
):
    for path in ("a", "b"):
        workspace.fs.write(path, path)
    workspace.fs.mkdir("dir")
    assert said in workspace.refused(MoveParams(source, destination))


def test_a_directory_is_made_with_those_above_it(workspace: Workspace):
    outcome = workspace.call(MkdirParams("a/b"))
    assert outcome.text == "Created directory a/b/"
    assert outcome.result.value == MkdirResult("a/b", True)
    outcome = workspace.call(MkdirParams("a"))
    assert outcome.text == "Directory a/ already exists; nothing was changed"
    assert outcome.result.value == MkdirResult("a", False)
    assert sorted(tree_of(workspace.fs)) == ["a", "a/b"]


def test_a_directory_that_cannot_be_is_refused(workspace: Workspace):
    workspace.fs.write("a", "")
    assert "is an existing file" in workspace.refused(MkdirParams("a"))
    assert "'a' is a file, so" in workspace.refused(MkdirParams("a/b"))
    assert "ASCII" in workspace.refused(MkdirParams("ä"))


def test_a_file_is_moved_on_any_filesystem_of_the_protocol():
    fs = Plain()
    fs.backend.write("a", "x" * MAX_WRITE_LENGTH)
    fs.backend.write("a", "more", mode="append")
    context = make_context(fs)
    move(MoveParams("a", "dir/b"), context)
    assert fs.backend.read("dir/b").content.endswith("xmore")
    assert not fs.backend.exists("a")
    assert mkdir(MkdirParams("new"), context).value == MkdirResult("new", True)


def test_a_directory_is_moved_on_any_filesystem_of_the_protocol():
    fs = Plain()
    for path in ("dir/a", "dir/deep/er/b"):
        fs.backend.write(path, path)
    fs.backend.mkdir("dir/empty")
    context = make_context(fs)
    assert move(MoveParams("dir", "to/other"), context).message == "Moved dir/ to to/other/"
    assert sorted(tree_of(fs.backend)) == [
        "to",
        "to/other",
        "to/other/a",
        "to/other/deep",
        "to/other/deep/er",
        "to/other/deep/er/b",
        "to/other/empty",
    ]
    with pytest.raises(ValueError, match="Cannot move a directory into itself: 'to/other/to'"):
        move(MoveParams("to", "to/other/to"), context)


def test_links_are_not_moved_where_they_cannot_be_made():
    fs = Plain()
    fs.backend.mkdir("dir")
    make_link(fs.backend, "dir/link", "nowhere")
    before = tree_of(fs.backend)
    with pytest.raises(ValueError, match="Links cannot be moved in this workspace: 'dir/link'"):
        move(MoveParams("dir", "other"), make_context(fs))
    assert tree_of(fs.backend) == before


@pytest.mark.parametrize("step", range(3))
def test_a_move_that_fails_halfway_is_taken_back_on_any_filesystem(step: int):
    fs = Plain()
    fs.backend.write("a", "text")
    before = tree_of(fs.backend)
    left = [step]
    for name in ("write_bytes", "delete"):
        fs_method = getattr(fs.backend, name)

        def failing(*args: Any, real: Any = fs_method, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == -1:
                raise OSError("broken")
            return real(*args, **more)

        setattr(fs.backend, name, failing)
    with pytest.raises(OSError, match="broken"):
        move(MoveParams("a", "dir/b"), make_context(fs))
    assert tree_of(fs.backend) == before
