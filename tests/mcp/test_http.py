"""Streamable HTTP: the official SDK's client, and everybody who must not get in."""

import http.client
import json
import socket
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from weakincentives.filesystem import HostFilesystem
from weakincentives.loopback import RemoteHostError
from weakincentives.mcp import McpWorkspace
from weakincentives.mcp.http import HttpAddress, HttpLimits, HttpServer

LIMITS = HttpLimits(max_body_bytes=100_000, max_sessions=3)
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}


@contextmanager
def serving(root: Path, limits: HttpLimits = LIMITS) -> Generator[HttpAddress, None, None]:
    """Serve a directory from another thread."""
    with (
        HostFilesystem(root, git_dir=root.parent / "git") as files,
        ThreadPoolExecutor(1) as pool,
    ):
        workspace = McpWorkspace(files)
        server = HttpServer(workspace, limits=limits)
        running = pool.submit(server.serve)
        try:
            yield server.address
        finally:
            server.stop()
            running.result(60)
            workspace.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory that is served."""
    made = tmp_path_factory.mktemp("http") / "w"
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def address(root: Path) -> Generator[HttpAddress, None, None]:
    """Return where a server listens."""
    with serving(root) as found:
        yield found


def use(address: HttpAddress, *works: Callable[[Client], Awaitable[None]]) -> None:
    """Let clients work at the same time, each with a connection of its own."""

    async def one(work: Callable[[Client], Awaitable[None]]) -> None:
        headers = {"Authorization": f"Bearer {address.token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as connection,
            Client(streamable_http_client(address.url, http_client=connection)) as client,
        ):
            await work(client)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for work in works:
                group.start_soon(one, work)

    anyio.run(main)


def request(
    address: HttpAddress, method: str = "POST", path: str = "/mcp", **headers: str
) -> tuple[int, str, http.client.HTTPResponse]:
    """Send a request with exactly these headers; a value of "" leaves one out."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
    body = json.dumps(INITIALIZE).encode() if method == "POST" else b""
    given = {
        "Host": f"{address.host}:{address.port}",
        "Authorization": f"Bearer {address.token}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Content-Length": str(len(body)),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in given.items():
        if value:
            connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer


def test_several_clients_work_at_the_same_time(address: HttpAddress, root: Path) -> None:
    def writer(name: str) -> Callable[[Client], Awaitable[None]]:
        async def work(client: Client) -> None:
            for number in range(5):
                call = {"path": f"{name}{number}.txt", "content": name}
                assert not (await client.call_tool("write_file", call)).is_error

        return work

    use(address, writer("a"), writer("b"), writer("c"))
    assert len(list(root.glob("?[0-4].txt"))) == 15


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("Authorization", "", 401),
        ("Authorization", "Bearer wrong", 401),
        ("Authorization", "Bearer \u00e9", 401),
        ("Authorization", "Basic TOKEN", 401),
        ("Host", "evil.example:PORT", 403),
        ("Host", "127.0.0.1:1", 403),
        ("Origin", "http://evil.example", 403),
        ("Origin", "null", 403),
    ],
)
def test_a_request_that_must_not_get_in_is_rejected_on_every_path(
    address: HttpAddress, header: str, value: str, status: int
) -> None:
    value = value.replace("PORT", str(address.port)).replace("TOKEN", address.token)
    for path in ("/mcp", "/", "/.well-known/oauth-protected-resource", "/mcp/x"):
        for method in ("GET", "POST", "DELETE", "PUT", "OPTIONS", "HEAD"):
            found, text, answer = request(address, method, path, **{header: value})
            assert found == status
            assert answer.getheader("WWW-Authenticate") == ("Bearer" if status == 401 else None)
            assert method == "HEAD" or json.loads(text)["error"]
            assert address.token not in text


def test_a_token_in_the_url_is_not_enough(address: HttpAddress) -> None:
    status, _, _ = request(address, path=f"/mcp?token={address.token}", Authorization="")
    assert status == 401


def test_a_path_without_a_server_is_named(address: HttpAddress) -> None:
    status, text, _ = request(address, "GET", "/nothing")
    assert status == 404
    assert "/mcp" in json.loads(text)["error"]


def test_a_request_that_is_too_large_is_refused(address: HttpAddress) -> None:
    status, _, _ = request(address, Content_Length="100001")
    assert status == 413


def test_a_session_ends_with_delete_and_their_number_is_bounded(address: HttpAddress) -> None:
    sessions: list[str] = []
    for _ in range(LIMITS.max_sessions):
        status, _, answer = request(address)
        assert status == 200
        sessions.append(answer.getheader("Mcp-Session-Id") or "")
    assert request(address)[0] == 503
    for each in sessions:
        assert request(address, "DELETE", Mcp_Session_Id=each)[0] == 200
        assert request(address, "DELETE", Mcp_Session_Id=each)[0] == 404
    status, _, answer = request(address)
    assert status == 200
    last = answer.getheader("Mcp-Session-Id") or ""
    assert request(address, "DELETE", Mcp_Session_Id=last)[0] == 200


def test_an_idle_session_ends(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    with serving(root, HttpLimits(max_sessions=1, idle_seconds=0.2)) as address:
        assert request(address)[0] == 200
        while request(address)[0] == 503:
            pass


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_another_host_must_be_wanted(tmp_path: Path, host: str) -> None:
    with HostFilesystem(tmp_path) as files, pytest.raises(RemoteHostError):
        HttpServer(McpWorkspace(files), host=host)


def test_a_port_in_use_is_an_error(tmp_path: Path, address: HttpAddress) -> None:
    with HostFilesystem(tmp_path) as files, pytest.raises(OSError, match="in use"):
        HttpServer(McpWorkspace(files), port=address.port)


def test_the_token_is_in_no_representation(address: HttpAddress) -> None:
    assert address.token not in repr(address)
    assert len(address.token) >= 32


def test_an_open_stream_does_not_keep_the_server_alive(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    with serving(root) as address:
        _, _, answer = request(address)
        session = answer.getheader("Mcp-Session-Id") or ""
        stream = socket.create_connection((address.host, address.port))
        stream.sendall(
            f"GET /mcp HTTP/1.1\r\nHost: {address.host}:{address.port}\r\n"
            f"Authorization: Bearer {address.token}\r\nAccept: text/event-stream\r\n"
            f"Mcp-Session-Id: {session}\r\n\r\n".encode()
        )
        with stream.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/1.1 200")
    stream.close()
