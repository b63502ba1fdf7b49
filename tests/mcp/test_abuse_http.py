"""Abuse of `wink mcp --http`: only the token opens it, and it stays bounded."""

import json
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from scripts.mcp_process import PROTOCOL, ServerProcess
from tests.mcp.processes import Place

MEGABYTE = 1_000_000
_TYPES = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
_HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": PROTOCOL,
        "capabilities": {},
        "clientInfo": {"name": "abuse", "version": "1"},
    },
}


class HttpProcess:
    """A server that listens, and the requests that tests send to it."""

    def __init__(self, process: ServerProcess, place: Place) -> None:
        assert process.process.stdout is not None
        told = json.loads(process.process.stdout.readline())
        self.process = process
        self.place = place
        self.url: str = told["url"]
        self.token: str = told["token"]
        address = urlsplit(self.url)
        self.host, self.port = str(address.hostname), int(address.port or 0)

    @property
    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def post(
        self, body: bytes | Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send one request on a connection of its own."""
        given = {**_TYPES, **self.authorization, **(headers or {})}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request("POST", "/mcp", data, {k: v for k, v in given.items() if v})
            answer: HTTPResponse = connection.getresponse()
            return answer.status, dict(answer.headers), answer.read()
        finally:
            connection.close()

    def connect(self) -> dict[str, str]:
        """Shake hands, and return the headers of the session."""
        status, headers, _ = self.post(_HELLO)
        assert status == 200
        session = {"Mcp-Session-Id": headers["mcp-session-id"], "Mcp-Protocol-Version": PROTOCOL}
        self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, session)
        return session

    def call(self, session: Mapping[str, str], tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its result."""
        params = {"name": tool, "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
        status, headers, body = self.post(message, session)
        assert status == 200, body
        if "event-stream" in headers["content-type"]:
            [body] = [
                line[5:] for line in body.splitlines() if line.startswith(b"data:") and b"{" in line
            ]
        return json.loads(body)["result"]

    def open(self) -> socket.socket:
        """Open a connection."""
        return socket.create_connection((self.host, self.port), timeout=60)

    def head(self, length: int, session: Mapping[str, str] | None = None) -> bytes:
        """Return the head of a request whose body has `length` bytes."""
        given = {**_TYPES, **self.authorization, **(session or {}), "Content-Length": str(length)}
        lines = [f"{name}: {value}" for name, value in given.items()]
        first = ["POST /mcp HTTP/1.1", f"Host: {self.host}:{self.port}"]
        return "\r\n".join([*first, *lines, "", ""]).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpProcess]:
    place = Place(tmp_path_factory.mktemp("http"))
    (place.root / "a.txt").write_text("hello\n")
    with place.start("--http", "0", "--json") as process:
        made = HttpProcess(process, place)
        yield made
        process.process.terminate()
        assert process.process.wait(60) == 0
        place.check_nothing_left()


@pytest.fixture
def alive(server: HttpProcess) -> Iterator[HttpProcess]:
    """Return the server, and see afterwards that a new client is served."""
    yield server
    session = server.connect()
    read = server.call(session, "read_text_file", path="a.txt")
    assert "hello" in read["content"][0]["text"]
    _disconnect(server, session)


def _disconnect(server: HttpProcess, session: Mapping[str, str]) -> None:
    connection = HTTPConnection(server.host, server.port, timeout=60)
    connection.request("DELETE", "/mcp", headers={**server.authorization, **session})
    connection.getresponse().read()
    connection.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic d2luazp3aW5r"}, 401),
        ({"Host": "attacker.example"}, 403),
        ({"Host": "127.0.0.1:1"}, 403),
        ({"Origin": "http://attacker.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, (400, 415)),
        ({"Accept": "text/html"}, 406),
        ({"Mcp-Session-Id": "0" * 32}, 404),
        ({"Mcp-Session-Id": "x" * 10_000}, (400, 404)),
    ],
    ids=str,
)
def test_a_request_with_wrong_headers_is_refused(
    alive: HttpProcess, headers: dict[str, str], status: int | tuple[int, ...]
) -> None:
    message = (
        {"jsonrpc": "2.0", "id": 1, "method": "ping"} if "Mcp-Session-Id" in headers else _HELLO
    )
    found, _, body = alive.post(message, headers)
    assert found in (status if isinstance(status, tuple) else (status,)), body
    assert alive.token.encode() not in body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b"[" * 200_000,
        b'{"jsonrpc": "2.0", "id',
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_body_that_is_not_a_message_is_refused(alive: HttpProcess, body: bytes) -> None:
    status, _, _ = alive.post(body)
    assert status == 400


@pytest.mark.parametrize("path", ["/", "/mcp/../etc/passwd", "//mcp", "/mcp%00", "/sse"])
def test_nothing_else_is_served(alive: HttpProcess, path: str) -> None:
    connection = HTTPConnection(alive.host, alive.port, timeout=60)
    connection.request("GET", path, headers=alive.authorization)
    assert connection.getresponse().status in (400, 404)
    connection.close()


def test_a_huge_body_is_refused_in_bounded_memory(alive: HttpProcess) -> None:
    before = alive.process.memory()
    with alive.open() as connection:
        connection.sendall(alive.head(400 * MEGABYTE))
        piece = b"x" * (1 << 20)
        try:
            for _ in range(200):
                connection.sendall(piece)
        except OSError:
            pass  # it hung up, as it should
    assert alive.process.memory() - before < 100 * MEGABYTE


def test_a_body_that_comes_slowly_blocks_nobody(alive: HttpProcess) -> None:
    with alive.open() as slow:
        slow.sendall(alive.head(1_000) + b'{"jsonrpc"')
        session = alive.connect()
        assert not alive.call(session, "list_directory", path=".").get("isError")
        _disconnect(alive, session)


def test_requests_that_are_not_http_end_their_connection(alive: HttpProcess) -> None:
    for data in (b"\x16\x03\x01\x02\x00", b"GARBAGE\r\n\r\n", b"\0" * 100_000):
        with alive.open() as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            try:
                while piece := connection.recv(1 << 16):
                    answer += piece
            except ConnectionResetError:
                pass
            assert b" 200 " not in answer


def test_a_client_that_hangs_up_in_a_call_leaves_whole_files(alive: HttpProcess) -> None:
    session = alive.connect()
    text = "whole\n" * 4_000
    for number in range(40):
        arguments = {"path": f"cut/{number}.txt", "content": text}
        params = {"name": "write_file", "arguments": arguments}
        # `call` has an id of its own, which must not be in use
        identifier = f"cut {number}"
        message = {"jsonrpc": "2.0", "id": identifier, "method": "tools/call", "params": params}
        body = json.dumps(message).encode()
        connection = alive.open()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(alive.head(len(body), session) + body)
        connection.close()
    assert not alive.call(session, "list_directory", path=".").get("isError")
    for path in (alive.place.root / "cut").glob("*.txt"):
        with suppress(FileNotFoundError):  # a call may still be rolled back
            assert path.read_text() == text
    _disconnect(alive, session)


@pytest.mark.slow
def test_a_thousand_sessions_are_bounded(alive: HttpProcess) -> None:
    before = alive.process.memory()
    sessions: list[str] = []
    refused = 0
    for _ in range(1_000):
        status, headers, _ = alive.post(_HELLO)
        if status == 200:
            sessions.append(headers["mcp-session-id"])
        else:
            assert status in (429, 503)
            refused += 1
    assert refused
    assert alive.process.memory() - before < 200 * MEGABYTE
    for session in sessions:
        _disconnect(alive, {"Mcp-Session-Id": session})


@pytest.mark.slow
def test_idle_connections_do_not_keep_the_server_from_ending(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.start("--http", "0", "--json") as process:
        server = HttpProcess(process, place)
        session = server.connect()
        stream = HTTPConnection(server.host, server.port, timeout=60)
        wanted = {"Accept": "text/event-stream", **server.authorization, **session}
        stream.request("GET", "/mcp", headers=wanted)
        with server.open() as idle:
            idle.sendall(server.head(1_000))
            process.process.terminate()
            assert process.process.wait(60) == 0
        stream.close()
    place.check_nothing_left()
    assert list(place.root.iterdir()) == []
