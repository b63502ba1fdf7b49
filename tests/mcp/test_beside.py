"""A real server in place, a person who saves at its fault points, kills, and a second server."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from scripts.mcp_process import NoAnswerError, ServerProcess
from tests.preloaded import PreloadedProcess
from tests.safety.places import ROOT
from tests.sizes import size

SERVER = """
import os, signal, sys
from pathlib import Path
from weakincentives.cli.main import main
from weakincentives.posix import fault_hook

root, action, wanted = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
seen = 0

def person(point):
    global seen
    if not (root.parent / "armed").exists():
        return
    seen += 1
    (root.parent / "points").write_text(str(seen))
    if seen > wanted and action == "save and kill" and point == "journal.ended":
        os.kill(os.getpid(), signal.SIGKILL)
    if seen != wanted:
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    other = root / "swap"
    other.write_text("mine\\n")
    other.rename(root / "a.txt")

with fault_hook(person):
    main(["mcp", str(root), "--in-place", "--sandbox", "none"])
"""


class Place:
    """A directory with a file, and servers on it."""

    def __init__(self, base: Path) -> None:
        self.root = base / "w"
        self.root.mkdir(parents=True)
        self.file = self.root / "a.txt"
        self.file.write_text("one\n")

    @contextmanager
    def serve(self, action: str = "none", at: int = 0) -> Iterator[ServerProcess]:
        command = [sys.executable, "-c", SERVER, str(self.root), action, str(at)]
        places = {name: str(self.root.parent) for name in ("HOME", "XDG_STATE_HOME")}
        with ServerProcess(
            command, directory=ROOT, environment=places, start=PreloadedProcess
        ) as server:
            server.initialize()
            yield server

    def arm(self) -> None:
        (self.root.parent / "armed").touch()

    def disarm(self) -> int:
        """Return how many fault points were reached."""
        (self.root.parent / "armed").unlink()
        return int((self.root.parent / "points").read_text())


def text_of(result: dict[str, Any]) -> str:
    return result["content"][0]["text"]


def recover(server: ServerProcess, place: Place, content: str) -> bool:
    """Undo calls at the path, the latest first, until it has the content."""
    if place.file.exists() and place.file.read_text() == content:
        return True
    for each in reversed(server.call("review")["structuredContent"]["calls"]):
        server.call("undo", call=each["number"], paths=["a.txt"])
        if place.file.exists() and place.file.read_text() == content:
            return True
    return False


STEP = size(17, 3)
"""From one fault point that is tried to the next."""
CALLS = {
    "write_file": {"path": "a.txt", "content": "agent\n"},
    "edit_file": {"path": "a.txt", "edits": [{"oldText": "one", "newText": "two"}]},
    "delete_file": {"path": "a.txt"},
    "undo": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("tool", CALLS)
def test_a_save_beside_a_real_server_is_kept_and_found_by_the_next_one(
    tmp_path: Path, tool: str
) -> None:
    at, points = 1, 1
    while at <= points:
        place = Place(tmp_path / str(at))
        with place.serve("save", at) as server:
            server.call("write_file", path="a.txt", content="one\nagent\n")
            place.arm()
            server.call(tool, **CALLS[tool])
            points = place.disarm()
        with place.serve() as server:
            # a save may take a call to points that it does not reach without
            assert at > points or recover(server, place, "mine\n"), at
        at += STEP


@pytest.mark.slow
def test_a_save_that_a_killed_call_had_replaced_is_found_by_the_next_server(
    tmp_path: Path,
) -> None:
    at, points = 1, 1
    while at <= points < 10:  # a higher number: it was not killed, because the save came later
        place = Place(tmp_path / str(at))
        with place.serve("save and kill", at) as server:
            server.call("write_file", path="a.txt", content="one\nagent\n")
            place.arm()
            with suppress(NoAnswerError):
                server.call("delete_file", path="a.txt")
            server.kill()
        points = place.disarm()
        with place.serve() as server:
            assert recover(server, place, "mine\n"), at
        at += 1
    assert at > 3


@pytest.mark.slow
@pytest.mark.parametrize("tool", CALLS)
def test_after_a_kill_at_any_point_a_call_has_happened_or_not(tmp_path: Path, tool: str) -> None:
    states = {"one\nagent\n", {"write_file": "agent\n", "edit_file": "two\nagent\n"}.get(tool)}
    states |= {"one\n"} if tool == "undo" else set()
    at, points = 1, 1
    while at <= points:
        place = Place(tmp_path / str(at))
        with place.serve("kill", at) as server:
            server.call("write_file", path="a.txt", content="one\nagent\n")
            place.arm()
            try:
                server.call(tool, **CALLS[tool])
            except NoAnswerError:
                assert server.process.wait() == -signal.SIGKILL
            else:
                server.close()
        points = place.disarm()
        with place.serve() as server:
            found = place.file.read_text() if place.file.exists() else None
            assert found in states, at
            review = server.call("review")["structuredContent"]["calls"]
            assert review[0]["paths"] == ["a.txt"]
            assert recover(server, place, "one\n"), (at, review)
            names = [each.name for each in place.root.iterdir()]
            assert not [each for each in names if each.startswith(".wink")]
        at += STEP
