"""Rollback and recovery in the directory itself: what a person changed meanwhile is kept."""

import errno
import signal
import sys
from pathlib import Path

import anyio

from tests.mcp.serving import Served, call, serve
from tests.mcp.test_history_log import session, undo, write
from tests.preloaded import run
from tests.safety.places import ROOT
from weakincentives.filesystem import HostFilesystem
from weakincentives.posix import fault_hook
from weakincentives.sandbox import LocalSandbox

COMMAND = ["sh", "-c", "echo 2 > a.txt; touch begun; sleep 600"]


def test_what_changed_while_a_cancelled_command_ran_can_be_had_again(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    (root / "a.txt").write_text("1\n")
    (root / "mine.txt").write_text("old\n")

    async def cancel_a_command(served: Served) -> None:
        client = await served.connect()
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "shell_execute", {"command": COMMAND})
            while not (root / "begun").exists():
                await anyio.sleep(0.01)
            (root / "mine.txt").write_text("mine\n")
            (root / "new.txt").write_bytes(b"\0\xff")
            group.cancel_scope.cancel()
        review = await call(client, "review")  # waits for the rollback
        assert "(undone by call 2)" in review
        assert "mine.txt" in review
        assert {each.name for each in root.iterdir()} == {"a.txt", "mine.txt"}
        assert (root / "a.txt").read_text() == "1\n"
        await call(client, "undo", call=2, paths=["mine.txt", "new.txt"])
        assert (root / "mine.txt").read_text() == "mine\n"
        assert (root / "new.txt").read_bytes() == b"\0\xff"
        assert (root / "a.txt").read_text() == "1\n"
        assert "nothing to undo" in await call(client, "undo")

    async def main() -> None:
        with (
            HostFilesystem(root, git_dir=tmp_path / "git") as files,
            LocalSandbox(files) as sandbox,
            anyio.fail_after(60),
        ):
            async with serve(files, sandbox=sandbox) as served:
                await cancel_a_command(served)

    anyio.run(main)


UNDO = """
import os, signal, sys
from pathlib import Path
from tests.mcp.test_history_log import session, undo
from weakincentives.posix import fault_hook

where, left = sys.argv[2], [int(sys.argv[3])]

def kill(point):
    left[0] -= point == where
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

with fault_hook(kill):
    session(Path(sys.argv[1]), undo(1))
"""


def kill_in_undo(root: Path, point: str, count: int) -> None:
    """Undo call 1 in a process that is killed when it reaches a fault point for a time."""
    command = [sys.executable, "-c", UNDO, root, point, str(count)]
    assert run(command, cwd=ROOT).returncode == -signal.SIGKILL


def test_what_changed_after_a_kill_in_an_undo_is_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "w"
    names = [f"d/{number}.txt" for number in range(9)]
    (root / "d").mkdir(parents=True)
    for name in names:
        (root / name).write_text("1\n")
    session(root, ("delete_file", {"path": "d"}))
    kill_in_undo(root, "change.created", 3)
    mine = next(iter((root / "d").iterdir()))
    mine.write_text("mine\n")
    (root / "new.txt").write_bytes(b"\0\xff")
    (review,) = session(root, ("review", {}))
    assert "call 1: delete_file" in review
    assert "undone by" not in review
    assert "call 2: undo by tester #1, other session was interrupted and rolled back" in review
    assert [each.read_text() for each in (root / "d").iterdir()] == ["mine\n"]
    assert (root / "new.txt").read_bytes() == b"\0\xff"
    (refused,) = session(root, ("undo", {"call": 1}))
    assert str(mine.relative_to(root)) in refused
    assert mine.read_text() == "mine\n"


def test_an_undo_that_was_killed_when_it_was_done_is_listed_and_can_be_undone(
    tmp_path: Path,
) -> None:
    root = tmp_path / "w"
    root.mkdir()
    (root / "a.txt").write_text("one\n")
    session(root, write("a.txt", "two\n"))
    kill_in_undo(root, "record.writing", 1)
    assert (root / "a.txt").read_text() == "one\n"
    (review,) = session(root, ("review", {}))
    assert "call 1: write_file by tester #1, other session: a.txt (undone by call 2)" in review
    assert "call 2: undo by tester #1, other session: a.txt" in review
    assert "interrupted" not in review
    (redone,) = session(root, undo(2))
    assert "Restored: a.txt" in redone
    assert (root / "a.txt").read_text() == "two\n"


def test_an_undo_that_a_full_disk_cut_off_says_so_and_is_listed(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    (root / "a.txt").write_text("one\n")
    (root / "b.txt").write_text("one\n")
    session(root, ("move_file", {"source": "a.txt", "destination": "c.txt"}))

    def fill(point: str) -> None:
        if point == "change.removed" or point.startswith("rollback."):
            raise OSError(errno.ENOSPC, "No space left on device")

    with fault_hook(fill):
        (refused,) = session(root, undo(1))
    assert refused.startswith("!undo was cut off: some files are restored, and others are not.")
    assert "No space left" in refused
    review, again = session(root, ("review", {}), undo(1))
    assert "call 2: undo by tester #1, other session was interrupted and rolled back" in review
    assert "Restored: a.txt, c.txt" in again
    assert sorted(each.name for each in root.iterdir()) == ["a.txt", "b.txt"]
