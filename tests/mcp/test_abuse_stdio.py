"""Abuse of `wink mcp` over pipes: bounded, answered, and the workspace old or new."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.mcp_process import TIMEOUT, NoAnswerError, ServerProcess
from tests.mcp.processes import Place, find_processes

MEGABYTE = 1_000_000
PARSE_ERROR = -32_700
INVALID_REQUEST = -32_600
_CALL = b'{"jsonrpc":"2.0","id":901,"method":"tools/call","params":{"name":%s,"arguments":%s}}\n'


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    made = Place(tmp_path_factory.mktemp("abuse"))
    (made.root / "a.txt").write_text("hello\n")
    return made


@pytest.fixture(scope="module")
def server(place: Place) -> Iterator[ServerProcess]:
    """Return a server for all abuse that it must survive."""
    with place.serve() as server:
        yield server


@pytest.fixture
def alive(server: ServerProcess) -> Iterator[ServerProcess]:
    """Return the server, and see afterwards that it answers and has its files."""
    yield server
    server.pending.clear()
    result = server.call("read_text_file", path="a.txt")
    assert "hello" in result["content"][0]["text"]
    assert server.pending == {}


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b"\xff\xfe\x00",
        b'{"jsonrpc": "2.0", "id": 1, "method": "pi',
        b'{"jsonrpc": "2.0", "id": 1, "method": "ping"} trailing',
        b'{"jsonrpc": "2.0", "id": 1, "method": "p\xe9ng"}',
        b"[" * 200_000,
        b'{"a":' * 200_000,
    ],
    ids=lambda line: repr(line[:24]),
)
def test_a_line_that_is_not_json_is_an_error_of_its_own(alive: ServerProcess, line: bytes) -> None:
    alive.send_bytes(line + b"\n")
    assert alive.wait_for(None)["error"]["code"] == PARSE_ERROR


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]',
        b"null",
        b"17",
        b'"text"',
        b"{}",
        b'{"jsonrpc":"2.0"}',
        b'{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}',
        b'{"jsonrpc":"2.0","id":[1],"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}',
    ],
    ids=lambda line: repr(line[:40]),
)
def test_json_that_is_not_a_message_is_an_error(alive: ServerProcess, line: bytes) -> None:
    alive.send_bytes(line + b"\n")
    assert alive.wait_for(None)["error"]["code"] in (INVALID_REQUEST, PARSE_ERROR)


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"1.0","id":901,"method":"ping"}\n',
        b'{"jsonrpc":"2.0","id":901}\n',
        b'{"jsonrpc":"2.0","id":901,"method":5}\n',
        b'{"jsonrpc":"2.0","id":901,"method":"ping","params":[1]}\n',
        b'{"jsonrpc":"2.0","id":901,"method":"no/such/method"}\n',
        _CALL % (b"5", b"{}"),
        _CALL % (b'"read_text_file"', b"[1]"),
        _CALL % (b'"read_text_file"', b'"a.txt"'),
        _CALL % (b'"no_such_tool"', b"{}"),
        _CALL % (b'"read_text_file"', b"{}"),
        _CALL % (b'"read_text_file"', b'{"path":' + b"[" * 200 + b"]" * 200 + b"}"),
        _CALL % (b'"read_text_file"', b'{"path":"a\\u0000b"}'),
        _CALL % (b'"write_file"', b'{"path":"lone","content":"\\ud800"}'),
        _CALL % (b'"write_file"', b'{"path":"\\udc80","content":"x"}'),
    ],
    ids=lambda line: repr(line[30:100]),
)
def test_a_wrong_request_is_answered_with_an_error(
    alive: ServerProcess, place: Place, line: bytes
) -> None:
    alive.send_bytes(line)
    answer = alive.wait_for(901)
    assert "error" in answer or answer["result"]["isError"]
    assert not (place.root / "lone").exists()


@pytest.mark.parametrize(
    "line",
    [
        b"\n \t \r\n",
        b'{"jsonrpc":"2.0","id":777,"result":{}}\n',
        b'{"jsonrpc":"2.0","id":778,"error":{"code":1,"message":"x"}}\n',
        b'{"jsonrpc":"2.0","method":"notifications/none/such"}\n',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4711}}\n',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled"}\n',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}}\n',
    ],
    ids=lambda line: repr(line[:60]),
)
def test_what_needs_no_answer_gets_none(alive: ServerProcess, line: bytes) -> None:
    alive.send_bytes(line)
    assert "result" in alive.request("ping")
    assert alive.pending == {}


def test_a_huge_line_is_refused_in_bounded_memory(alive: ServerProcess) -> None:
    before = alive.memory()
    head = _CALL[: _CALL.index(b"%s")] + b'"write_file","arguments":{"path":"huge","content":"'
    alive.send_bytes(head)
    piece = b"x" * (1 << 20)
    for _ in range(200):
        alive.send_bytes(piece)
    alive.send_bytes(b'"}}}\n')
    assert "error" in alive.wait_for(None)
    assert alive.memory() - before < 150 * MEGABYTE


def test_two_calls_with_one_id_do_not_end_the_server(alive: ServerProcess) -> None:
    line = b'{"jsonrpc":"2.0","id":902,"method":"tools/list"}\n'
    alive.send_bytes(line + line)
    alive.wait_for(902)
    assert "result" in alive.request("ping")


@pytest.mark.slow
def test_a_call_before_the_handshake_is_refused(place: Place) -> None:
    with place.start() as server:
        answer = server.request("tools/call", {"name": "write_file", "arguments": _WRITE})
        assert "error" in answer
        assert not (place.root / "early.txt").exists()
        server.initialize()
        assert not server.call("read_text_file", path="a.txt").get("isError")


_WRITE = {"path": "early.txt", "content": "x"}


@pytest.mark.slow
def test_a_thousand_parallel_calls_are_all_answered(alive: ServerProcess, place: Place) -> None:
    asked = [alive.start("tools/call", _call(number)) for number in range(1_000)]
    answers = [alive.wait_for(each) for each in asked]
    assert not any(each["result"].get("isError") for each in answers)
    written = {int(each.stem): int(each.read_text()) for each in (place.root / "many").iterdir()}
    assert written == {number: 200 + number for number in range(50)}


def _call(number: int) -> dict[str, Any]:
    """Return one of many calls: three of four read, the fourth writes one of 50 files."""
    if number % 4:
        return {"name": "read_text_file", "arguments": {"path": "a.txt"}}
    arguments = {"path": f"many/{number // 4 % 50}.txt", "content": f"{number // 4}\n"}
    return {"name": "write_file", "arguments": arguments}


@pytest.mark.slow
def test_a_storm_of_cancellations_leaves_whole_files(alive: ServerProcess, place: Place) -> None:
    text = "cancelled or not\n" * 1_000
    asked: list[int] = []
    for number in range(300):
        arguments = {"path": f"storm/{number}.txt", "content": text}
        asked.append(alive.start("tools/call", {"name": "write_file", "arguments": arguments}))
        note = {"requestId": asked[-1], "reason": "storm"}
        alive.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": note})
    assert "result" in alive.request("ping")
    assert not alive.call("write_file", path="storm/last.txt", content="x").get("isError")
    kept = [each for each in (place.root / "storm").iterdir() if each.name != "last.txt"]
    assert {each.read_text() for each in kept} <= {text}
    answered = {f"{number}.txt" for number, each in enumerate(asked) if each in alive.pending}
    assert answered <= {each.name for each in kept}


@pytest.mark.slow
def test_a_client_that_never_reads_does_not_fill_the_memory(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (place.root / "big.txt").write_text("0123456789abcdef\n" * 2_500)
    with place.start() as server:
        server.initialize()
        before = server.memory()
        assert server.process.stdin is not None
        target = server.process.stdin.fileno()
        os.set_blocking(target, False)
        line = _CALL.replace(b"901", b"%%d") % (b'"read_text_file"', b'{"path":"big.txt"}')
        sent = 0
        while sent < 20_000 and _write(target, line.replace(b"%d", b"1%d" % sent)):
            sent += 1
        assert sent < 20_000
        assert server.memory() - before < 250 * MEGABYTE
        for stream in (server.process.stdin, server.process.stdout):
            assert stream is not None
            stream.close()
        assert server.process.wait(TIMEOUT) == 0
    place.check_nothing_left()


def _write(target: int, data: bytes) -> bool:
    """Write a line; False if the pipe has been full for a while: the server reads no more."""
    while data:
        if not select.select([], [target], [], 5)[1]:
            return False
        data = data[os.write(target, data) :]
    return True


_CLIENT = """
import json, os, sys
from scripts.mcp_process import ServerProcess
server = ServerProcess(json.loads(sys.argv[1]), environment=json.loads(sys.argv[2]))
server.initialize()
print(0, flush=True)
number = 0
while True:
    number += 1
    server.start("tools/call", {"name": "write_file", "arguments": {"path": f"d/{number % 7}.txt",
                 "content": f"{number}\\n" * 2000}})
    if number % 20 == 0:
        server.receive()
        print(number, flush=True)
"""


@pytest.mark.slow
def test_a_client_that_is_killed_in_a_call_leaves_whole_files_and_no_server(tmp_path: Path) -> None:
    place = Place(tmp_path)
    given = [json.dumps(place.command()), json.dumps(place.environment)]
    client = subprocess.Popen([sys.executable, "-c", _CLIENT, *given], stdout=subprocess.PIPE)
    assert client.stdout is not None
    for _ in range(4):
        assert client.stdout.readline()
    client.kill()
    client.wait()
    client.stdout.close()
    place.wait_until_gone()
    _check_whole(place)
    place.check_nothing_left()


@pytest.mark.slow
def test_a_server_that_is_killed_in_a_call_leaves_files_that_are_old_or_new(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.start() as server:
        server.initialize()
        for number in range(200):
            text = f"{number}\n" * 2_000
            arguments = {"path": f"d/{number % 7}.txt", "content": text}
            server.start("tools/call", {"name": "write_file", "arguments": arguments})
        server.receive()
        server.process.send_signal(signal.SIGKILL)
        with pytest.raises(NoAnswerError):
            while True:
                server.receive()
        server.kill()
        with place.serve() as again:
            assert not again.call("list_directory", path=".").get("isError")
            _check_whole(place)


@pytest.mark.slow
def test_a_command_that_the_kill_of_a_server_interrupted_can_be_undone(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (place.root / "a.txt").write_text("hello\n")
    with place.start(sandbox="bubblewrap") as server:
        server.initialize()
        script = "rm a.txt; echo half > half.txt; exec sleep 600"
        arguments = {"command": ["sh", "-c", script]}
        server.start("tools/call", {"name": "shell_execute", "arguments": arguments})
        deadline = time.monotonic() + 60
        while not (place.root / "half.txt").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with _connect(place) as other:  # a call that still runs is not taken for an interrupted one
            assert "interrupted" not in other.call("review")["content"][0]["text"]
        server.kill()
    place.wait_until_gone()
    for _ in range(2):  # the second start knows it as well
        with _connect(place) as again:
            found = again.call("review")["structuredContent"]["calls"]
            assert [each["interrupted"] for each in found] == [True]
            assert found[0]["paths"] == ["a.txt", "half.txt"]
    with _connect(place) as again:
        assert not again.call("undo", call=1).get("isError")
    assert [each.name for each in place.root.iterdir()] == ["a.txt"]
    assert (place.root / "a.txt").read_text() == "hello\n"


@contextmanager
def _connect(place: Place) -> Iterator[ServerProcess]:
    """Start a server where another one runs or was killed."""
    with place.start() as server:
        server.initialize()
        yield server


def _check_whole(place: Place) -> None:
    """Check that every file is what one call wrote."""
    for path in (place.root / "d").iterdir():
        lines = path.read_text().splitlines()
        assert len(lines) == 2_000
        assert len(set(lines)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    place = Place(tmp_path)
    with place.start() as server:
        server.initialize()
        server.call("write_file", path="a.txt", content="x\n")
        server.process.send_signal(number)
        server.process.wait(60)
    assert (place.root / "a.txt").read_text() == "x\n"
    place.check_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["cancellation", "closed pipes", "SIGTERM"])
def test_a_command_of_a_client_that_goes_away_is_stopped_and_rolled_back(
    tmp_path: Path, end: str
) -> None:
    place = Place(tmp_path)
    (place.root / "old.txt").write_text("old\n")
    seconds = f"300.{os.getpid()}"
    command = ["sh", "-c", f"echo new > old.txt; echo x > made.txt; exec sleep {seconds}"]
    with place.start(sandbox="auto") as server:
        server.initialize()
        tools = server.request("tools/list")["result"]["tools"]
        if "shell_execute" not in {each["name"] for each in tools}:
            message = "No sandbox isolates commands here: apt-get install bubblewrap"
            pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
        params = {"name": "shell_execute", "arguments": {"command": command}}
        asked = server.start("tools/call", params)
        _wait_for(lambda: bool(find_processes(seconds.encode())))
        if end == "cancellation":
            note = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
            server.send({**note, "params": {"requestId": asked}})
            assert not server.call("list_directory", path=".").get("isError")
        elif end == "closed pipes":
            for stream in (server.process.stdin, server.process.stdout):
                assert stream is not None
                stream.close()
        else:
            server.process.terminate()
        if end != "cancellation":
            assert server.process.wait(TIMEOUT) == 0
        assert {each.name: each.read_text() for each in place.root.iterdir()} == {
            "old.txt": "old\n"
        }
        assert asked not in server.pending
        _wait_for(lambda: not find_processes(seconds.encode()))
    place.check_nothing_left()


def _wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is so, for as long as only a failing test waits."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)  # nothing tells when a process of somebody else starts
