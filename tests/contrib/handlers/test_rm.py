"""`rm` removes what it names and nothing else."""

from pathlib import Path

import pytest

from tests.contrib.handlers.calls import Workspace, make, make_context, tree_of
from weakincentives.contrib.tools.handlers.move import rm
from weakincentives.contrib.tools.requests import RmParams
from weakincentives.contrib.tools.results import RmResult
from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem, Limits
from weakincentives.filesystem.testing import MockFilesystem


def test_a_file_is_removed(workspace: Workspace):
    workspace.fs.write("src/a.py", "12345")
    outcome = workspace.call(RmParams("src/a.py"))
    assert outcome.text == "Removed src/a.py: 5 bytes"
    assert outcome.result.value == RmResult("src/a.py", "file", 1)
    assert [entry.name for entry in workspace.fs.list("src")] == []


def test_a_directory_goes_with_all_in_it_and_nothing_beside_it(workspace: Workspace):
    for path in ("src/a", "src/b/c", "src/b/d/e", "src-old/a", "srcs", "other/src/a"):
        workspace.fs.write(path, "")
    outcome = workspace.call(RmParams("src/"))
    assert outcome.text == "Removed src/ and everything in it: 3 files, 2 directories"
    assert outcome.result.value == RmResult("src", "directory", 3)
    assert sorted(tree_of(workspace.fs)) == [
        "other", "other/src", "other/src/a", "src-old", "src-old/a", "srcs",
    ]  # fmt: skip


def test_an_empty_directory_is_removed(workspace: Workspace):
    workspace.fs.mkdir("src")
    assert workspace.done(RmParams("src")) == "Removed the empty directory src/"


def test_a_link_is_removed_and_not_what_it_points_to(tmp_path: Path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "a").write_text("")
    (tmp_path / "link").symlink_to("target")
    text = Workspace(HostFilesystem(tmp_path)).done(RmParams("link"))
    assert text == "Removed the link link; its target 'target' was not touched"
    assert (tmp_path / "target" / "a").exists()
    assert not (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("path", [".", "/", "", "src/.."])
def test_the_workspace_itself_stays(workspace: Workspace, path: str):
    workspace.fs.write("src/a", "")
    assert workspace.refused(RmParams(path)).startswith("The workspace root cannot be removed")


def test_what_is_missing_is_refused_with_names_that_may_be_meant(workspace: Workspace):
    workspace.fs.write("src/main.py", "")
    assert workspace.refused(RmParams("src/mian.py")) == (
        "No such file or directory: 'src/mian.py'; did you mean 'src/main.py'?"
    )
    assert workspace.refused(RmParams("src/main.py/x")).startswith("No such file or directory")
    assert "escapes root" in workspace.refused(RmParams("../x"))


def test_a_listing_that_is_cut_is_not_taken_for_all(tmp_path: Path):
    with make("host", tmp_path, limits=Limits(max_list_entries=2)) as fs:
        for name in "abc":
            fs.write(f"dir/{name}", "")
        text = Workspace(fs).done(RmParams("dir"))
    assert text == "Removed dir/ and everything in it: more than 2 files"


def test_nothing_is_removed_where_nothing_may_be_written():
    fs = InMemoryFilesystem()
    fs.write("a", "")
    frozen = fs.view(fs.snapshot())
    with pytest.raises(PermissionError, match="read-only"):
        rm(RmParams("a"), make_context(frozen))


def test_any_filesystem_of_the_protocol_can_be_cleaned():
    fs = MockFilesystem()
    fs.backend.write("dir/a", "")
    assert rm(RmParams("dir"), make_context(fs)).value == RmResult("dir", "directory", 1)
    assert tree_of(fs.backend) == {}
