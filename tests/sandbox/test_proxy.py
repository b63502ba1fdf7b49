"""The proxy: whom it connects, whom it refuses, and what hostile clients cannot do to it."""

import errno
import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from scripts.steps import ROOT
from tests.descriptors import open_descriptors
from tests.sandbox.proxy_servers import WAIT, raw_server, wait_until, web_server
from weakincentives.sandbox.allowlist import AllowList
from weakincentives.sandbox.protocol import NetworkConnection
from weakincentives.sandbox.proxy import ProxyServer
from weakincentives.sandbox.proxy_connection import ProxySettings

LOCAL = "127.0.0.1"


@dataclass
class Proxy:
    """A proxy, and clients of it."""

    port: int
    server: ProxyServer
    events: list[NetworkConnection] = field(default_factory=list[NetworkConnection])
    changed: threading.Condition = field(default_factory=threading.Condition)

    def connect(self) -> socket.socket:
        return socket.create_connection((LOCAL, self.port), WAIT)

    def ask(self, request: bytes) -> bytes:
        """Send a request and return everything that comes back."""
        with self.connect() as client:
            client.sendall(request)
            return read_all(client)

    def get(self, url: str) -> bytes:
        return self.ask(f"GET {url} HTTP/1.1\r\n\r\n".encode())

    def note(self, connection: NetworkConnection) -> None:
        with self.changed:
            self.events.append(connection)
            self.changed.notify_all()

    def event(self, count: int = 1) -> NetworkConnection:
        """Return the latest of `count` events, once there are as many."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.events) >= count, WAIT)
            return self.events[count - 1]


@contextmanager
def proxy(
    *hosts: str, resolve: Callable[[str, int], Sequence[str]] | None = None, **options: float
) -> Generator[Proxy, None, None]:
    settings = ProxySettings(AllowList(hosts))
    for name, value in options.items():
        settings = replace(settings, **{name: value})
    if resolve is not None:
        settings = replace(settings, resolve=resolve)
    ours, theirs = socket.socketpair()
    made: list[Proxy] = []
    settings = replace(settings, on_connection=lambda each: made[0].note(each))
    with socket.create_server((LOCAL, 0), backlog=128) as listener, theirs:
        made.append(Proxy(listener.getsockname()[1], ProxyServer(ours, settings)))
        socket.send_fds(theirs, [b"0"], [listener.fileno()])
    try:
        yield made[0]
    finally:
        made[0].server.close()


def read_all(client: socket.socket) -> bytes:
    data = b""
    while more := client.recv(65536):
        data += more
    return data


def resolve_to(*addresses: str) -> Callable[[str, int], Sequence[str]]:
    return lambda host, port: addresses


# --- connections ---


def test_a_plain_request_reaches_an_allowed_host() -> None:
    with web_server() as port, proxy(f"{LOCAL}:{port}") as made:
        response = made.get(f"http://{LOCAL}:{port}/page?x=1")
        assert response.startswith(b"HTTP/1.1 200 ")
        assert response.endswith(f"/page?x=1 for {LOCAL}:{port}".encode())
        event = made.event()
        assert (event.host, event.port, event.address) == (LOCAL, port, LOCAL)
        assert (event.allowed, event.reason, event.bytes_received) == (True, "", len(response))
        assert event.bytes_sent > 0
        assert event.duration_ms > 0


@pytest.mark.parametrize("arrives_later", [False, True])
def test_a_body_is_passed_on_to_its_length_and_no_further(arrives_later: bool) -> None:
    received: list[bytes] = []
    has_head = threading.Event()

    def serve(client: socket.socket) -> None:
        data = b""
        while not data.endswith(b"body"):
            data += client.recv(65536)
            has_head.set()
        received.append(data)
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            received.append(client.recv(100))  # neither more data nor the end of it

    with (
        raw_server(serve) as port,
        proxy(f"{LOCAL}:{port}") as made,
        made.connect() as client,
    ):
        head = f"POST http://{LOCAL}:{port}/ HTTP/1.1\r\nContent-Length: 4\r\n\r\n".encode()
        body = f"bodyGET http://{LOCAL}:{port}/smuggled HTTP/1.1\r\n\r\n".encode()
        if arrives_later:
            client.sendall(head)
            assert has_head.wait(WAIT)
            client.sendall(body)
        else:
            client.sendall(head + body)
        assert read_all(client) == b"HTTP/1.1 200 OK\r\n\r\n"
    assert b"".join(received).count(b"HTTP/1.1") == 1


def test_a_large_body_arrives_in_pieces() -> None:
    with web_server() as port, proxy(f"{LOCAL}:{port}") as made, made.connect() as client:
        body = bytes(range(256)) * 20_000
        head = f"POST http://{LOCAL}:{port}/ HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        sender = threading.Thread(target=client.sendall, args=(head.encode() + body,))
        sender.start()
        assert read_all(client).endswith(body[::-1])
        sender.join()
        assert made.event().bytes_sent > len(body)


def test_a_tunnel_carries_both_directions_and_half_closes() -> None:
    def echo(client: socket.socket) -> None:
        client.sendall(b"ready\n")
        client.sendall(read_all(client)[::-1])  # only the end of its input makes it answer

    with raw_server(echo) as port, proxy(f"{LOCAL}:{port}") as made, made.connect() as client:
        client.sendall(f"CONNECT {LOCAL}:{port} HTTP/1.1\r\n\r\nearly ".encode())
        client.sendall(b"late")
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b"HTTP/1.1 200 Connection established\r\n\r\nready\netal ylrae"
        event = made.event()
        assert (event.bytes_sent, event.bytes_received, event.reason) == (10, 16, "")


def test_a_reader_that_pauses_loses_nothing_and_holds_up_nobody() -> None:
    data = bytes(range(256)) * 40_000

    with (
        raw_server(lambda client: client.sendall(data)) as large,
        web_server() as small,
        proxy(f"{LOCAL}:{large}", f"{LOCAL}:{small}") as made,
        made.connect() as client,
    ):
        client.sendall(f"CONNECT {LOCAL}:{large} HTTP/1.1\r\n\r\n".encode())
        first = client.recv(10)
        assert made.get(f"http://{LOCAL}:{small}/").startswith(b"HTTP/1.1 200 ")
        assert (first + read_all(client)).endswith(data)


# --- refusals ---


@pytest.mark.parametrize("target", ["other.example", "sub.allowed.example", "allowed.example:22"])
def test_a_host_that_is_not_listed_is_refused_with_the_way_to_allow_it(target: str) -> None:
    def resolve(host: str, port: int) -> Sequence[str]:
        raise AssertionError("it is not even resolved")

    sentence = f"wink: {target} is not allowed; the user can allow it with --allow-host {target}"
    with proxy("allowed.example", resolve=resolve) as made:
        response = made.get(f"http://{target}/").decode()
        assert response.startswith(f"HTTP/1.1 403 {sentence}\r\n")
        assert response.endswith(f"\r\n\r\n{sentence}\n")
        authority = target if ":" in target else f"{target}:443"
        tunnel = made.ask(f"CONNECT {authority} HTTP/1.1\r\n\r\n".encode())
        assert tunnel.decode().startswith(f"HTTP/1.1 403 {sentence}\r\n")
        event = made.event(2)
        assert (event.allowed, event.reason, event.address) == (False, sentence, "")


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "0.0.0.0", "fe80::1%1"],
)
def test_an_allowed_name_that_resolves_to_a_private_address_is_refused(address: str) -> None:
    with proxy("allowed.example", resolve=resolve_to(address)) as made:
        response = made.get("http://allowed.example/").decode()
        assert response.startswith(
            f"HTTP/1.1 403 wink: allowed.example resolves to {address}, which is not a public"
            " address, and is not allowed; the user can allow it with --allow-host "
        )
        assert not made.event().allowed


OWN_ADDRESS = """
import errno, fcntl, json, socket, struct, sys
from weakincentives.sandbox import allowlist, proxy, supervisor
from tests.sandbox.test_proxy import proxy as serve, resolve_to
try:
    supervisor.isolate_network()
except OSError as error:
    sys.exit(error.errno)
late = sys.argv[1] == "late"
with socket.socket() as any_socket:
    name = struct.pack("16sH2x4s8x", b"lo:1", socket.AF_INET, socket.inet_aton("198.41.0.4"))
    fcntl.ioctl(any_socket, 0x8916, name)  # SIOCSIFADDR
with socket.socket(socket.AF_INET6) as any_socket:
    value = socket.inet_pton(socket.AF_INET6, "2001:500:ba3e::2:30") + struct.pack("=Ii", 128, 1)
    fcntl.ioctl(any_socket, 0x8916, value)
for family, address in [*(json.loads(sys.argv[2]))]:
    kind = socket.AF_INET6 if family == 6 else socket.AF_INET
    host = "::" if family == 6 else "0.0.0.0"
    with socket.create_server((host, 80), family=kind) as server:
        server.settimeout(0)
        if late:
            allowlist.is_own_address = lambda address: False
        with serve("example.com", resolve=resolve_to(address)) as made:
            print(made.get("http://example.com/").decode().splitlines()[0])
            print(made.event().allowed)
        try:
            server.accept()
            print("connected")
        except BlockingIOError:
            print("not connected")
        with serve("example.com", address, resolve=resolve_to(address)) as made:
            with made.connect() as client:
                client.sendall(b"GET http://example.com/ HTTP/1.1\\r\\n\\r\\n")
                server.settimeout(30)
                print("listed:", server.accept()[0].recv(4))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a network namespace")
@pytest.mark.parametrize("late", ["early", "late"])
def test_a_public_address_of_this_machine_is_reached_only_if_it_is_listed(late: str) -> None:
    addresses = [(4, "198.41.0.4"), (4, "::ffff:198.41.0.4"), (6, "2001:500:ba3e::2:30")]
    program = [sys.executable, "-c", OWN_ADDRESS, late, json.dumps(addresses)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=WAIT * 2)
    if done.returncode == errno.EPERM:
        pytest.skip("this machine allows no network namespace")
    connected = "connected" if late == "late" else "not connected"
    lines = done.stdout.splitlines()
    assert len(lines) == 4 * len(addresses), done.stderr
    for number in range(len(addresses)):
        first, allowed, reached, listed = lines[4 * number : 4 * number + 4]
        assert first.startswith("HTTP/1.1 403 ")
        assert "which is an address of this machine, and is not allowed" in first
        assert (allowed, reached, listed) == ("False", connected, "listed: b'GET '")


def test_it_connects_to_the_address_that_it_checked() -> None:
    """DNS rebinding: a name that is public when it is checked and private when it is used."""
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])

    with web_server() as port:
        rules = (f"rebinding.example:{port}", f"127.0.0.1:{port}")
        with proxy(*rules, resolve=lambda host, port: next(answers)) as made:
            assert made.get(f"http://rebinding.example:{port}/").startswith(b"HTTP/1.1 200 ")
            assert made.event().address == "127.0.0.1"
            second = made.get(f"http://rebinding.example:{port}/")
            assert second.startswith(b"HTTP/1.1 403 ")


def test_of_several_addresses_the_private_ones_are_passed_over() -> None:
    with web_server() as port:
        rules = (f"mixed.example:{port}", f"127.0.0.1:{port}")
        addresses = ("10.0.0.1", "::1", "127.0.0.1")
        with proxy(*rules, resolve=resolve_to(*addresses)) as made:
            assert made.get(f"http://mixed.example:{port}/").startswith(b"HTTP/1.1 200 ")
            assert made.event().address == "127.0.0.1"


def test_a_second_address_is_tried_if_the_first_refuses() -> None:
    with web_server() as port:
        rules = (f"two.example:{port}", f"127.0.0.1:{port}", f"127.0.0.9:{port}")
        with proxy(*rules, resolve=resolve_to("127.0.0.9", "127.0.0.1")) as made:
            assert made.get(f"http://two.example:{port}/").startswith(b"HTTP/1.1 200 ")


def test_a_host_that_cannot_be_resolved_is_reported() -> None:
    def resolve(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with proxy("gone.example", resolve=resolve) as made:
        response = made.get("http://gone.example/")
        assert b"502 wink: gone.example cannot be resolved: Name or service not known" in response


def test_a_server_that_does_not_answer_is_reported() -> None:
    with socket.create_server((LOCAL, 0)) as closed:
        port = closed.getsockname()[1]
    with proxy(f"{LOCAL}:{port}") as made:
        response = made.get(f"http://{LOCAL}:{port}/").decode()
        assert f"502 wink: cannot connect to {LOCAL}:{port}: Connection refused" in response
        event = made.event()
        assert (event.allowed, "Connection refused" in event.reason) == (True, True)


def test_a_refused_upload_still_gets_its_answer() -> None:
    with proxy("allowed.example") as made:
        head = b"POST http://other.example/ HTTP/1.1\r\nContent-Length: 200000\r\n\r\n"
        assert made.ask(head + bytes(200_000)).startswith(b"HTTP/1.1 403 ")


# --- hostile clients ---


def test_a_slow_head_is_cut_off() -> None:
    with proxy("allowed.example", head_timeout=0.2) as made, made.connect() as client:
        client.sendall(b"GET http://allowed.example/ HTTP/1.1\r\n")
        assert read_all(client).startswith(b"HTTP/1.1 408 wink: ")


def test_a_huge_head_is_cut_off() -> None:
    with proxy("allowed.example") as made, made.connect() as client:
        client.sendall(b"GET http://allowed.example/ HTTP/1.1\r\n" + b"x" * 40_000)
        assert read_all(client).startswith(b"HTTP/1.1 431 wink: ")


@pytest.mark.parametrize(
    "data", [b"hello\r\n\r\n", b"\x16\x03\x01\r\n\r\n", b"\r\n\r\n", b"\0" * 9]
)
def test_garbage_is_rejected(data: bytes) -> None:
    with proxy("allowed.example") as made, made.connect() as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        assert read_all(client)[:13] in (b"HTTP/1.1 400 ", b"")
        event = made.event()
        assert (event.host, event.allowed) == ("", False)
        assert event.reason


def test_a_client_that_resets_the_connection_harms_nobody() -> None:
    with web_server() as port, proxy(f"{LOCAL}:{port}") as made:
        with made.connect() as client:
            client.sendall(f"CONNECT {LOCAL}:{port} HTTP/1.1\r\n\r\n".encode())
            client.recv(100)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert made.event().allowed
        assert made.get(f"http://{LOCAL}:{port}/").startswith(b"HTTP/1.1 200 ")


def test_more_connections_than_allowed_at_once_wait() -> None:
    with (
        web_server() as port,
        proxy(f"{LOCAL}:{port}", max_open=2) as made,
        made.connect() as first,
        made.connect(),
        made.connect() as third,
    ):
        third.sendall(f"GET http://{LOCAL}:{port}/ HTTP/1.1\r\n\r\n".encode())
        third.settimeout(0.2)
        with pytest.raises(TimeoutError):
            third.recv(1)
        first.close()
        third.settimeout(WAIT)
        assert read_all(third).startswith(b"HTTP/1.1 200 ")


def test_more_connections_than_allowed_in_all_are_refused_and_recorded_once() -> None:
    with proxy("allowed.example", max_connections=3) as made:
        for _ in range(3):
            assert made.get("http://other.example/").startswith(b"HTTP/1.1 403 ")
        for _ in range(3):
            assert made.get("http://other.example/").startswith(b"HTTP/1.1 429 wink: ")
        made.server.close()
        assert len(made.events) == 4
        assert made.server.connections == tuple(made.events)


def test_a_silent_connection_is_closed() -> None:
    with raw_server(read_all) as port, proxy(f"{LOCAL}:{port}", idle_timeout=0.2) as made:
        with made.connect() as client:
            client.sendall(f"CONNECT {LOCAL}:{port} HTTP/1.1\r\n\r\n".encode())
            assert read_all(client).startswith(b"HTTP/1.1 200 ")
        assert made.event().reason == "no data for 0.2 seconds"


def test_a_server_that_never_accepts_is_given_up() -> None:
    with socket.create_server((LOCAL, 0), backlog=0) as full:
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex((LOCAL, port))
        with proxy(f"{LOCAL}:{port}", connect_timeout=0.3) as made:
            response = made.get(f"http://{LOCAL}:{port}/")
            assert f"cannot connect to {LOCAL}:{port}: Connection timed out".encode() in response
        for each in waiting:
            each.close()


# --- the end ---


def test_close_ends_everything_and_reports_it() -> None:
    threads, descriptors = threading.active_count(), open_descriptors()
    with (
        raw_server(read_all) as port,
        proxy(f"{LOCAL}:{port}") as made,
        made.connect() as tunnel,
        made.connect() as silent,
    ):
        tunnel.sendall(f"CONNECT {LOCAL}:{port} HTTP/1.1\r\n\r\n".encode())
        tunnel.recv(100)
        silent.sendall(b"GET")
        # server, proxy and two connections
        wait_until(lambda: threading.active_count() == threads + 4)
        made.server.close()
        made.server.close()
        assert tunnel.recv(1) == silent.recv(1) == b""
        assert {each.host for each in made.events} == {LOCAL, ""}
    assert (threading.active_count(), open_descriptors()) == (threads, descriptors)


def test_close_does_not_wait_for_the_resolver() -> None:
    asked, release = threading.Event(), threading.Event()

    def resolve(host: str, port: int) -> Sequence[str]:
        asked.set()
        assert release.wait(WAIT)
        return ["127.0.0.1"]

    with proxy("slow.example", "127.0.0.1", resolve=resolve) as made, made.connect() as client:
        client.sendall(b"GET http://slow.example/ HTTP/1.1\r\n\r\n")
        assert asked.wait(WAIT)
        made.server.close()
        (event,) = made.events
        assert event.host == "slow.example"
        assert event.reason == "the command ended before the connection was made"
        release.set()
        wait_until(lambda: not any("_serve" in each.name for each in threading.enumerate()))
        assert len(made.events) == 1


def test_close_before_the_listening_socket_has_arrived() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        server = ProxyServer(ours, ProxySettings(AllowList(["example.com"])))
        server.close()
    assert (server.wait_for_port(), server.error_number) == (0, errno.EPIPE)


def test_an_error_can_arrive_instead_of_the_listening_socket() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(b"13")
        server = ProxyServer(ours, ProxySettings(AllowList(["example.com"])))
        server.close()
    assert (server.wait_for_port(), server.error_number) == (0, 13)


def test_a_listener_that_fails_does_not_disturb_the_proxy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: NetworkConnection) -> None:
        raise RuntimeError("broken")

    ours, theirs = socket.socketpair()
    with socket.create_server((LOCAL, 0)) as listener, theirs:
        address = listener.getsockname()
        server = ProxyServer(ours, ProxySettings(AllowList(["example.com"]), fail))
        socket.send_fds(theirs, [b"0"], [listener.fileno()])
        for _ in range(2):
            with socket.create_connection(address, WAIT) as client:
                client.sendall(b"GET http://other.example/ HTTP/1.1\r\n\r\n")
                assert read_all(client).startswith(b"HTTP/1.1 403 ")
        server.close()
    assert "A listener failed on a connection to other.example" in caplog.text
    assert len(server.connections) == 2
