"""The record file of a directory: calls of other sessions are found, numbered once and undone."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.types import Implementation

from tests.mcp.serving import call, fail, serve, text_of
from weakincentives.filesystem import HostFilesystem
from weakincentives.history.log import RecordLog
from weakincentives.mcp import McpWorkspace, steps
from weakincentives.posix import fault_hook
from weakincentives.sandbox import LocalSandbox


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
        return [("!" if each.is_error else "") + text_of(each) for each in found]

    return anyio.run(main)


def write(path: str, content: str) -> tuple[str, dict[str, Any]]:
    return ("write_file", {"path": path, "content": content})


def undo(call: int) -> tuple[str, dict[str, Any]]:
    return ("undo", {"call": call})


@contextmanager
def full_log(where: str = "record.writing") -> Iterator[None]:
    """Let the record file refuse all records, or all notes of a start, as a full disk does."""

    def fail(point: str) -> None:
        if point == where:
            raise OSError(errno.ENOSPC, "No space left on device")

    with fault_hook(fail):
        yield


def test_a_call_is_undone_in_a_later_session(root: Path) -> None:
    session(root, write("a.txt", "two\n"), write("b.txt", "new\n"), ("read_text_file", {}))
    (review,) = session(root, ("review", {}))
    assert "call 1: write_file by tester #1, other session: a.txt" in review
    (done,) = session(root, undo(1))
    assert done.startswith("Undid call 1 (write_file by tester #1, other session). Restored: a.txt")
    assert done.endswith("This is call 3; to redo: undo with call=3.")
    assert (root / "a.txt").read_text() == "one\n"
    assert (root / "a.txt").stat().st_mode & 0o777 == 0o640
    assert (root / "b.txt").exists()
    # the undo is a call of its own, and known to the next session too
    (review,) = session(root, ("review", {}))
    assert "call 3: undo by tester #1, other session" in review
    session(root, undo(3))
    assert (root / "a.txt").read_text() == "two\n"


def test_a_call_has_one_number_in_every_session_although_others_failed(root: Path) -> None:
    wrong = ("edit_file", {"path": "a.txt", "edits": [{"oldText": "none", "newText": ""}]})
    found = session(root, write("b", "b"), wrong, write("c", "c"), write("d", "d"), ("review", {}))
    assert found[1].startswith("!")
    assert "call 3: write_file by tester #1: c" in found[4]
    (review, done) = session(root, ("review", {}), undo(3))
    assert "call 2: edit_file by tester #1, other session failed" in review
    assert "Restored: c" in done
    assert {each.name for each in root.iterdir()} == {"a.txt", "b", "d"}


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


def test_checkpoints_are_kept_for_later_sessions_and_their_names_can_be_used_again(
    root: Path,
) -> None:
    session(root, ("checkpoint", {"name": "good"}), write("a.txt", "two\n"))
    shown, done = session(root, ("list_checkpoints", {}), ("undo", {"checkpoint": "good"}))
    assert "good" in shown
    assert not done.startswith("!")
    assert (root / "a.txt").read_text() == "one\n"
    again = ("checkpoint", {"name": "good"})
    found = session(root, write("a.txt", "three\n"), again, again, write("a.txt", "four\n"))
    assert [each.startswith("!") for each in found] == [False, False, True, False]
    session(root, ("undo", {"checkpoint": "good"}))
    assert (root / "a.txt").read_text() == "three\n"


def test_a_review_can_compare_with_the_state_before_the_first_call(root: Path) -> None:
    session(root, write("a.txt", "two\n"))
    start, first = session(root, ("review", {}), ("review", {"from": "first"}))
    assert "No changes since the state when this server started." in start
    assert "not included; review with from='first' shows that." in start
    assert "not included" not in first
    assert "Changes since the state before the first call:" in first
    assert "a.txt" in first.partition("Changes since")[2]
    session(root, undo(1), write("b.txt", "b\n"))
    (start,) = session(root, write("a.txt", "three\n"), ("review", {}))[1:]
    assert "modified a.txt" in start.partition("Changes since the state when this server")[2]
    assert "are not included" in start
    session(root, undo(3), undo(4))
    (start,) = session(root, ("review", {}))
    assert "not included" not in start


def test_a_review_does_not_name_a_state_that_was_pruned(root: Path) -> None:
    session(root, write("a.txt", "two\n"))
    shutil.rmtree(root.parent / "git")
    (review,) = session(root, ("review", {"from": "first"}))
    assert "call 1: write_file" in review
    assert "since the state before the first call" not in review
    assert "the state before them was pruned." in review


def test_no_call_changes_anything_while_the_disk_with_the_history_is_full(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(root, write("a.txt", "two\n"))
    before = sorted(root.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(steps, "MIN_ROOM", 2**62)  # more than any disk has
        calls = write("a.txt", "three\n"), ("delete_file", {"path": "a.txt"}), undo(1)
        refused = session(root, *calls, ("review", {}))
    for text in refused[:-1]:
        assert text.startswith("!")
        assert "failed and changed nothing" in text
        assert "the disk with its history is full" in text
    assert "call 1: write_file" in refused[-1]
    assert ((root / "a.txt").read_text(), sorted(root.rglob("*"))) == ("two\n", before)
    assert not session(root, undo(1))[0].startswith("!")
    assert (root / "a.txt").read_text() == "one\n"


def test_two_servers_on_one_directory_share_calls_and_numbers(root: Path) -> None:
    async def main() -> None:
        options = {"history_directory": root.parent / "calls"}
        with (
            HostFilesystem(root, git_dir=root.parent / "git") as first,
            HostFilesystem(root, git_dir=root.parent / "git") as second,
        ):
            async with serve(first, **options) as one, serve(second, **options) as two:
                ours, theirs = await one.connect("same"), await two.connect("same")
                await call(ours, "write_file", path="b", content="b")
                await call(theirs, "write_file", path="c", content="c")
                await call(ours, "write_file", path="d", content="d")
                review = await call(theirs, "review")
                assert "call 1: write_file by same #1, other session: b" in review
                assert "call 2: write_file by same #1: c" in review
                assert "call 3: write_file by same #1, other session: d" in review
                assert "Restored: c" in await call(theirs, "undo")  # not the last one of all
                assert "Restored: b" in await call(theirs, "undo", call=1)
                await call(ours, "write_file", path="c", content="again")
                refused = await fail(theirs, "undo", call=4)
                assert "changed by call 6 (write_file by same #1, other session)" in refused

    anyio.run(main)


def test_a_record_that_is_cut_off_costs_only_that_call(root: Path) -> None:
    session(root, write("a.txt", "two\n"), write("a.txt", "three\n"))
    (file,) = (root.parent / "calls").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    file.write_bytes(file.read_bytes()[:-20])
    (review,) = session(root, ("review", {}))
    assert "call 1: write_file" in review
    assert "call 2: write_file" not in review


def test_old_calls_are_forgotten_and_numbers_go_on(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "MAX_STEPS", 3)
    monkeypatch.setattr(steps, "MAX_SLACK", 2)
    found = session(root, *(write("a.txt", str(each)) for each in range(9)), undo(2), undo(9))
    assert "Call 2 is too old" in found[9]
    assert not found[10].startswith("!")
    with RecordLog(root.parent / "calls" / "history.log", b"wink-mcp 1\n", read_only=True) as file:
        assert len(list(file.read_new())) <= 6
    review, old, last = session(root, ("review", {}), undo(8), undo(11))
    assert "call 8" not in review
    assert "call 9" in review
    assert "Call 8 is too old" in old
    assert not last.startswith("!")
    assert (root / "a.txt").read_text() == "8"


def test_a_call_that_cannot_be_recorded_says_so_and_the_next_one_can(root: Path) -> None:
    with full_log():
        (done,) = session(root, write("a.txt", "two\n"))
    assert not done.startswith("!")
    assert "[Done, but this call cannot be undone, because it could not be recorded" in done
    assert "No space left" in done
    done, undone = session(root, write("b.txt", "b"), undo(1))
    assert "[Done" not in done
    assert "Restored: b.txt" in undone


def test_a_command_whose_start_cannot_be_recorded_says_so(root: Path) -> None:
    async def main() -> None:
        with (
            HostFilesystem(root, git_dir=root.parent / "git") as files,
            LocalSandbox(files) as sandbox,
        ):
            options = {"sandbox": sandbox, "history_directory": root.parent / "calls"}
            async with serve(files, **options) as served:
                client = await served.connect()
                with full_log("note.writing"):
                    done = await call(client, "shell_execute", command=["touch", "new"])
                assert "cannot be undone if the server is killed while it runs" in done
                assert "No space left" in done
                await call(client, "undo")
                assert not (root / "new").exists()
                done = await call(client, "shell_execute", command=["touch", "new"])
                assert "killed" not in done
        assert [each.name for each in (root.parent / "calls").iterdir()] == ["history.log"]

    anyio.run(main)
