"""Calls of earlier sessions: undone after a restart, and never at the cost of later changes."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.types import Implementation

from weakincentives.filesystem import HostFilesystem
from weakincentives.mcp import McpWorkspace
from weakincentives.mcp.history_log import MAX_SESSIONS


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a directory with a file."""
    made = tmp_path / "w"
    made.mkdir()
    (made / "a.txt").write_text("one\n")
    (made / "a.txt").chmod(0o640)
    return made


def session(root: Path, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    """Run a session of its own; return the text of each answer, with ! before an error."""

    async def main() -> list[str]:
        with HostFilesystem(root, git_dir=root.parent / "git") as files:
            workspace = McpWorkspace(files, history_directory=root.parent / "calls")
            name = Implementation(name="tester", version="1")
            try:
                async with Client(workspace.create_server(), client_info=name) as client:
                    found = [await client.call_tool(*each) for each in calls]
            finally:
                workspace.close()
        return [("!" if each.is_error else "") + str(each.content[0]) for each in found]

    return anyio.run(main)


def write(path: str, content: str) -> tuple[str, dict[str, Any]]:
    return ("write_file", {"path": path, "content": content})


def undo(call: int) -> tuple[str, dict[str, Any]]:
    return ("undo", {"call": call})


def test_a_call_is_undone_in_a_later_session(root: Path) -> None:
    session(root, write("a.txt", "two\n"), write("b.txt", "new\n"), ("read_text_file", {}))
    (review,) = session(root, ("review", {}))
    assert "call 1: write_file by tester, earlier session #1: a.txt" in review
    (done,) = session(root, undo(1))
    assert not done.startswith("!")
    assert (root / "a.txt").read_text() == "one\n"
    assert (root / "a.txt").stat().st_mode & 0o777 == 0o640
    assert (root / "b.txt").exists()
    # the undo is a call of its own, and known to the next session too
    (review,) = session(root, ("review", {}))
    assert "call 3: undo by tester, earlier session" in review
    session(root, undo(3))
    assert (root / "a.txt").read_text() == "two\n"


def test_what_a_person_changed_between_two_sessions_is_not_lost(root: Path) -> None:
    session(root, write("a.txt", "two\n"))
    (root / "a.txt").write_text("mine\n")
    (refused,) = session(root, undo(1))
    assert refused.startswith("!")
    assert "a.txt" in refused
    assert (root / "a.txt").read_text() == "mine\n"


def test_the_default_of_undo_and_the_start_leave_earlier_sessions_alone(root: Path) -> None:
    session(root, write("a.txt", "two\n"))
    session(root, ("undo", {}), ("undo", {"checkpoint": "start"}))
    assert (root / "a.txt").read_text() == "two\n"
    session(root, write("b.txt", "b\n"), ("undo", {"checkpoint": "start"}))
    assert not (root / "b.txt").exists()
    assert (root / "a.txt").read_text() == "two\n"


def test_a_line_that_is_cut_off_costs_only_that_call(root: Path) -> None:
    session(root, write("a.txt", "two\n"), write("a.txt", "three\n"))
    (file,) = (root.parent / "calls").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    file.write_bytes(file.read_bytes()[:-20])
    (review,) = session(root, ("review", {}))
    assert "call 1: write_file" in review
    assert "call 2: write_file" not in review


def test_files_of_old_sessions_are_removed(root: Path) -> None:
    directory = root.parent / "calls"
    directory.mkdir()
    for number in range(MAX_SESSIONS + 5):
        (directory / f"{number:020}-1.calls").write_text("")
    session(root, write("a.txt", "two\n"))
    assert len(list(directory.iterdir())) == MAX_SESSIONS + 1
    assert not (directory / f"{4:020}-1.calls").exists()
