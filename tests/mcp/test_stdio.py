"""The stdio transport, with a real process and raw bytes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from scripts.mcp_process import ServerProcess
from tests.preloaded import PreloadedProcess

SERVER = """\
import os, sys
from contextlib import suppress
from pathlib import Path
from weakincentives.filesystem import HostFilesystem
from weakincentives.mcp import McpWorkspace, serve_stdio
from weakincentives.sandbox import LocalSandbox
root = Path(sys.argv[1])
with HostFilesystem(root, git_dir=root.parent / "git") as files:
    with LocalSandbox(files) as sandbox:
        workspace = McpWorkspace(
            files, sandbox=sandbox, on_client=lambda client: print("stray", flush=True)
        )
        serve_stdio(workspace)
sys.stderr.write("over\\n")
"""
SLEEP = ["sh", "-c", "echo $$ > pid; echo started; exec sleep 600"]


def command(root: Path) -> list[str]:
    return [sys.executable, "-c", SERVER, str(root)]


def start(root: Path) -> ServerProcess:
    return ServerProcess(command(root), start=PreloadedProcess)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "w").mkdir()
    return tmp_path / "w"


def test_only_messages_reach_standard_output(root: Path) -> None:
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _initialization()},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        _call(2, "shell_execute", command=["sh", "-c", "cat; echo hello; echo oops >&2; exit 3"]),
        _call(3, "write_file", path="a.txt", content="last"),
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    # standard input ends at once: the calls that were sent are still answered
    done = subprocess.run(
        command(root), input=text.encode(), capture_output=True, timeout=120, check=True
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    by_id = {answer["id"]: answer["result"] for answer in answers}
    assert sorted(by_id) == [1, 2, 3]
    ended = by_id[2]["structuredContent"]
    assert (ended["exitCode"], ended["timedOut"]) == (3, False)
    assert (root / "a.txt").read_text() == "last"
    assert b"stray" in done.stderr
    assert b"over" in done.stderr


def _initialization() -> dict:
    info = {"name": "t", "version": "1"}
    return {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}


def _call(number: int, tool: str, /, **arguments: object) -> dict:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def _end_input(server: ServerProcess) -> None:
    for stream in (server.process.stdin, server.process.stdout):
        assert stream is not None
        stream.close()


def _send(number: signal.Signals) -> Callable[[ServerProcess], None]:
    return lambda server: server.process.send_signal(number)


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(_end_input, id="client gone"),
        pytest.param(_send(signal.SIGTERM), id="SIGTERM"),
        pytest.param(_send(signal.SIGINT), id="SIGINT", marks=pytest.mark.slow),
    ],
)
def test_a_running_call_is_stopped_and_rolled_back(
    root: Path, leave: Callable[[ServerProcess], None]
) -> None:
    server = start(root)
    try:
        server.initialize()
        server.start("tools/call", {"name": "shell_execute", "arguments": {"command": SLEEP}})
        pid = _wait_for_pid(root / "pid", server)
        leave(server)
        assert server.process.wait(timeout=60) == 0
    finally:
        server.kill()
    assert list(root.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_cancelled_call_is_rolled_back_and_not_answered(root: Path) -> None:
    with start(root) as server:
        server.initialize()
        params = {
            "name": "shell_execute",
            "arguments": {"command": SLEEP},
            "_meta": {"progressToken": "p"},
        }
        number = server.start("tools/call", params)
        queued = server.start("tools/call", _call(0, "write_file", path="q", content="")["params"])
        pid = _wait_for_pid(root / "pid", server)
        while "started" not in json.dumps(server.notifications):
            server.receive()
        for each in (queued, number):
            cancel = {"method": "notifications/cancelled", "params": {"requestId": each}}
            server.send({"jsonrpc": "2.0", **cancel})
        assert not server.call("list_directory", path=".").get("isError")
        assert server.pending == {}
        progress = [each["params"] for each in server.notifications]
        assert {each["progressToken"] for each in progress} == {"p"}
        assert [each["progress"] for each in progress] == sorted(
            {each["progress"] for each in progress}
        )
    assert list(root.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _wait_for_pid(path: Path, server: ServerProcess) -> int:
    while not (path.exists() and path.read_text().endswith("\n")):
        with suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"The server has ended: {server.process.wait(0.02)}")
    return int(path.read_text())


@pytest.mark.slow
def test_a_server_that_is_killed_leaves_the_old_file_or_the_new_one(root: Path) -> None:
    content = "x" * 40_000
    (root / "a.txt").write_text("old")
    server = start(root)
    try:
        server.initialize()
        server.call("list_directory", path=".")
        for _ in range(5):
            server.start(
                "tools/call", _call(0, "write_file", path="a.txt", content=content)["params"]
            )
        server.receive()
    finally:
        server.kill()
    assert (root / "a.txt").read_text() in ("old", content)
    with start(root) as server:
        server.initialize()
        assert not server.call("write_file", path="b.txt", content="b").get("isError")
    assert sorted(each.name for each in root.iterdir()) == ["a.txt", "b.txt"]
