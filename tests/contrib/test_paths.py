"""Paths that models send: relative, absolute, and as commands in a sandbox print them."""

from pathlib import Path

import pytest

from weakincentives.adapters import ToolCall, ToolExecutor
from weakincentives.contrib.tools import filesystem_tools
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.prompt import ToolContext
from weakincentives.runtime.session import Session


def read(files: Filesystem, path: str) -> str:
    context = ToolContext(None, None, None, Session(), filesystem=files)
    executor = ToolExecutor(filesystem_tools(), context=context)
    return executor.execute(ToolCall("read_file", {"file_path": path})).text


@pytest.mark.parametrize("path", ["src/a.py", "/src/a.py", "./src/a.py", "/workspace/src/a.py"])
def test_every_spelling_of_a_path_is_understood(path: str):
    files = InMemoryFilesystem()
    files.write("src/a.py", "found\n")
    assert "found" in read(files, path)


def test_an_absolute_path_below_the_root_is_understood(tmp_path: Path):
    (tmp_path / "a.py").write_text("found\n")
    with HostFilesystem(tmp_path) as files:
        assert "found" in read(files, str(tmp_path / "a.py"))
        assert "found" in read(files, "/workspace/a.py")


def test_a_directory_called_workspace_is_meant_if_there_is_one():
    files = InMemoryFilesystem()
    files.write("a.py", "the wrong one\n")
    files.write("workspace/a.py", "found\n")
    assert "found" in read(files, "/workspace/a.py")


@pytest.mark.parametrize("path", ["/etc/hosts", "/tmp/a/b.txt", "C:\\a.txt", "c:/a.txt"])
def test_a_path_of_the_machine_is_not_created_in_the_workspace(tmp_path: Path, path: str):
    with HostFilesystem(tmp_path) as files:
        context = ToolContext(None, None, None, Session(), filesystem=files)
        executor = ToolExecutor(filesystem_tools(), context=context)
        outcome = executor.execute(ToolCall("write_file", {"file_path": path, "content": "x"}))
        assert "outside the workspace" in outcome.text
        assert str(tmp_path) in outcome.text
    assert list(tmp_path.iterdir()) == []


def test_a_directory_called_like_one_of_the_machine_is_meant_if_there_is_one():
    files = InMemoryFilesystem()
    files.write("etc/hosts", "found\n")
    assert "found" in read(files, "/etc/hosts")
    files.write("a.txt", "found\n")
    assert "found" in read(files, "/a.txt")
