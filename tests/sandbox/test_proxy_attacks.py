"""Attacks on a running proxy: smuggled requests, rebound names, slow and huge heads, at random."""

import random
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from tests.sandbox.proxy_servers import WAIT, raw_server
from tests.sandbox.test_proxy import LOCAL, proxy, read_all
from tests.sizes import size

_FIELDS = (
    *(b"Content-Length: 4", b"Content-Length: 0", b"Content-Length: +4", b"Content-Length: 4, 4"),
    *(b"Content-Length:\x0b4", b"Content-Length : 4", b" Content-Length: 4", b"Content-Length: 04"),
    *(
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding:\tchunked",
        b"transfer-encoding: identity",
    ),
    *(
        b"Transfer_Encoding: chunked",
        b"Transfer-Encoding\x00: chunked",
        b"X: y\nHost: other.example",
    ),
    *(b"X: y\rTransfer-Encoding: chunked", b"X: y\r\n folded", b"Host: other.example", b"Host:"),
    *(
        b"Connection: Content-Length",
        b"Connection: close, Host",
        b"Proxy-Authorization: Basic eA==",
    ),
    *(
        b"Expect: 100-continue",
        b"Upgrade: h2c",
        b"X-Long: " + b"x" * 2_000,
        b": nameless",
        b"\xff: x",
    ),
)
_METHODS = (
    *(b"GET", b"POST", b"GET", b"POST") * 4,
    b"CONNECT",
    b"connect",
    b"G ET",
    b"PRI",
    b"GET\t",
    b"\x16\x03\x01",
)
_VERSIONS = (*(b"HTTP/1.1",) * 15, b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1 HTTP/1.1", b"http/1.1", b"")
_ENDS = (*(b"\r\n",) * 40, b"\n", b"\r", b"\r\r\n", b"\n\r\n")
_SECOND = b"GET /smuggled HTTP/1.1\r\nHost: other.example\r\n\r\n"


def _attack(choose: random.Random, port: int) -> bytes:
    """Return bytes that a careless proxy might take for one request and a server for two."""
    page = f"http://{LOCAL}:{port}/page"
    targets = (page, page, page, page, f"{LOCAL}:{port}", f"http://{LOCAL}:{port}@other/x")
    words = (choose.choice(_METHODS), choose.choice(targets).encode(), choose.choice(_VERSIONS))
    lines = [b" ".join(words), *choose.choices(_FIELDS, k=choose.randrange(4))]
    head = b"".join(line + choose.choice(_ENDS) for line in lines)
    body = choose.choice((b"", b"body", b"0\r\n\r\n", b"4\r\nbody\r\n0\r\n\r\n"))
    return head + choose.choice(_ENDS) + body + _SECOND


def test_no_request_is_smuggled() -> None:
    received: list[bytes] = []

    def serve(client: socket.socket) -> None:
        client.settimeout(0.02)
        data = b""
        try:
            while more := client.recv(65536):
                data += more
        except TimeoutError:
            pass
        received.append(data)
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    choose = random.Random(20)
    with raw_server(serve) as port, proxy(f"{LOCAL}:{port}", max_connections=10**6) as made:
        refused = 0
        for _ in range(size(400, 20_000)):
            attack = _attack(choose, port)
            with made.connect() as client:
                client.sendall(attack)
                client.shutdown(socket.SHUT_WR)
                answer = read_all(client)
            refused += answer.startswith(b"HTTP/1.1 4")
            assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 200 "))
    plain = [each for each in received if not each.startswith(b"GET /smuggled")]
    assert refused > len(received) > 0
    for each in plain:  # a tunnel carries anything, to the host that it was asked for
        head, _, body = each.partition(b"\r\n\r\n")
        assert head.count(b"HTTP/1.") == 1
        assert head.count(f"Host: {LOCAL}:{port}".encode()) == 1
        assert b"other.example" not in head
        assert len(body) <= 4


def test_a_name_that_changes_its_address_never_leads_to_this_machine() -> None:
    connected: list[bytes] = []
    answers = ("127.0.0.1", "192.0.2.1", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "0.0.0.0")
    choose = random.Random(20)
    calls = count()

    def rebind(host: str, port: int) -> Sequence[str]:
        next(calls)
        return choose.sample(answers, k=choose.randrange(1, 4))

    attempts = size(200, 5_000)
    with (
        raw_server(lambda client: connected.append(client.recv(100))) as port,
        proxy(f"rebound.example:{port}", resolve=rebind, max_connections=10**6) as made,
        ThreadPoolExecutor(8) as pool,
    ):
        url = f"http://rebound.example:{port}/"
        found = list(pool.map(made.get, [url] * attempts))
        assert all(each.startswith(b"HTTP/1.1 403 ") for each in found)
    assert (connected, next(calls)) == ([], attempts)


def test_slow_and_huge_heads_hold_up_nobody() -> None:
    with (
        raw_server(lambda client: client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")) as port,
        proxy(f"{LOCAL}:{port}", head_timeout=WAIT) as made,
    ):
        slow = [made.connect() for _ in range(32)]
        huge = [made.connect() for _ in range(16)]
        for each in slow:
            each.sendall(b"GET ")
        for each in huge:
            each.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 33_000 + b"\r\n\r\n")
        assert made.get(f"http://{LOCAL}:{port}/").startswith(b"HTTP/1.1 200 ")
        assert {read_all(each)[:12] for each in huge} == {b"HTTP/1.1 431"}
        for each in (*slow, *huge):
            each.close()
