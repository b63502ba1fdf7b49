"""A local server that sends raw bytes: responses that no server should send."""

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event, Thread

from weakincentives.adapters import ProviderAdapter
from weakincentives.adapters.anthropic.adapter import AnthropicAdapter
from weakincentives.adapters.openai import OpenAIAdapter

KEY = "sk-live/12+34secret=="
ADAPTERS = {"openai": OpenAIAdapter, "anthropic": AnthropicAdapter}


@dataclass
class RawServer:
    """Where the server is, and the bytes that each connection has sent to it."""

    port: int
    received: list[bytes] = field(default_factory=list)
    stopped: Event = field(default_factory=Event)

    def adapter(
        self, kind: str, user: str = "", query: str = "", **given: object
    ) -> ProviderAdapter:
        url = f"http://{user}127.0.0.1:{self.port}{query}"
        return ADAPTERS[kind]("m", **{"api_key": KEY, "base_url": url, **given})  # pyright: ignore[reportArgumentType]


Pieces = Callable[[RawServer], Iterable[bytes]]


def response(status: str, *headers: str, body: bytes = b"") -> bytes:
    """Return the bytes of a response, or the beginning of one."""
    return "".join(f"{each}\r\n" for each in (f"HTTP/1.1 {status}", *headers, "")).encode() + body


def endless(head: bytes, data: bytes, *, pause: float = 0.0) -> Pieces:
    """Send the same again and again, until the client hangs up or the test is over."""

    def pieces(server: RawServer) -> Iterator[bytes]:
        yield head
        while not server.stopped.wait(pause):
            yield data

    return pieces


def once(*pieces: bytes) -> Pieces:
    """Send this, and hang up."""
    return lambda _: pieces


@contextmanager
def raw_server(pieces: Pieces) -> Iterator[RawServer]:
    """Answer every request with these pieces."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = RawServer(listener.getsockname()[1])
        thread = Thread(target=_accept, args=[listener, server, pieces], daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.stopped.set()
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _accept(listener: socket.socket, server: RawServer, pieces: Pieces) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            Thread(target=_answer, args=[connection, server, pieces], daemon=True).start()


def _answer(connection: socket.socket, server: RawServer, pieces: Pieces) -> None:
    with connection, suppress(OSError):
        connection.settimeout(10)
        server.received.append(_request(connection))
        for piece in pieces(server):
            connection.sendall(piece)


def _request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [each for each in head.lower().split(b"\r\n") if each.startswith(b"content-length:")]
    length = int(lengths[0].partition(b":")[2]) if lengths else 0
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body
