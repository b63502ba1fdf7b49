"""Commands with an allow-list: they reach the hosts of the list, and nothing else."""

import os
import re
import shutil
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.descriptors import open_descriptors
from tests.sandbox.proxy_servers import WAIT, make_certificate, raw_server, wait_until, web_server
from weakincentives.sandbox import (
    BubblewrapSandbox,
    ExecResult,
    NetworkConnection,
    SandboxUnavailableError,
)
from weakincentives.sandbox.bubblewrap import find_bubblewrap
from weakincentives.sandbox.launcher import Launcher
from weakincentives.sandbox.probe import create_sandbox

LOCAL = "127.0.0.1"
FETCH = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())
except OSError as error:
    sys.exit(str(error))
"""


@pytest.fixture(params=["shared namespace", "namespace of its own"])
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the namespace of all commands, and with one that bubblewrap makes."""
    if request.param == "namespace of its own":
        monkeypatch.setattr(BubblewrapSandbox, "_create_launcher", lambda _: Launcher())


pytestmark = pytest.mark.usefixtures("network")


def run_python(sandbox: BubblewrapSandbox, program: str, *arguments: str) -> ExecResult:
    return sandbox.exec([sys.executable, "-c", program, *arguments], timeout=WAIT)


def test_a_program_reaches_an_allowed_host_and_the_connection_is_recorded(tmp_path: Path) -> None:
    events: list[NetworkConnection] = []
    with (
        web_server() as port,
        BubblewrapSandbox(
            tmp_path, allow_hosts=[f"{LOCAL}:{port}"], on_connection=events.append
        ) as sandbox,
    ):
        done = run_python(sandbox, FETCH, f"http://{LOCAL}:{port}/page")
        assert (done.stdout, done.stderr) == (f"/page for {LOCAL}:{port}\n", "")
        assert done.connections == tuple(events)
        (connection,) = events
        assert (connection.host, connection.port, connection.allowed) == (LOCAL, port, True)
        assert connection.bytes_received > 0


def test_a_program_reaches_an_allowed_host_by_https(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path, "localhost")
    (tmp_path / "workspace").mkdir()
    shutil.copy(certificate, tmp_path / "workspace/server.crt")
    with (
        web_server(certificate) as port,
        BubblewrapSandbox(tmp_path / "workspace", allow_hosts=[f"localhost:{port}"]) as sandbox,
    ):
        done = sandbox.exec(
            [sys.executable, "-c", FETCH, f"https://localhost:{port}/page"],
            env={"SSL_CERT_FILE": "/workspace/server.crt"},
            timeout=WAIT,
        )
        assert (done.stdout, done.stderr) == (f"/page for localhost:{port}\n", "")
        (connection,) = done.connections
        assert (connection.host, connection.reason) == ("localhost", "")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_uses_the_proxy_too(tmp_path: Path) -> None:
    with (
        web_server() as port,
        BubblewrapSandbox(tmp_path, allow_hosts=[f"{LOCAL}:{port}"]) as sandbox,
    ):
        done = sandbox.exec(["curl", "-sS", "--data", "abc", f"http://{LOCAL}:{port}/"])
        assert (done.stdout, done.stderr) == ("cba", "")


@pytest.mark.parametrize("url", ["http://example.org/", "https://example.org/"])
def test_the_program_reads_why_a_host_is_refused(tmp_path: Path, url: str) -> None:
    sentence = "wink: example.org is not allowed; the user can allow it with --allow-host"
    with BubblewrapSandbox(tmp_path, allow_hosts=["example.com"]) as sandbox:
        done = run_python(sandbox, FETCH, url)
        assert done.exit_code == 1
        assert sentence in done.stderr
        (connection,) = done.connections
        assert (connection.host, connection.allowed) == ("example.org", False)


def test_a_program_reaches_a_server_that_it_starts_itself(tmp_path: Path) -> None:
    program = """
import socket, threading, urllib.request
server = socket.create_server(("127.0.0.1", 0))
def serve():
    client, _ = server.accept()
    with client:
        client.recv(1000)
        client.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\nown")
threading.Thread(target=serve).start()
print(urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/").read().decode())
"""
    with BubblewrapSandbox(tmp_path, allow_hosts=["example.com"]) as sandbox:
        done = run_python(sandbox, program)
        assert (done.stdout, done.stderr, done.connections) == ("own\n", "", ())


REACH = """
import json, socket, sys
port, name = int(sys.argv[1]), sys.argv[2]
def attempt(action):
    try:
        action()
        return "reached"
    except OSError as error:
        return type(error).__name__
def connect(family, address):
    with socket.socket(family) as client:
        client.settimeout(5)
        client.connect(address)
        client.send(b"tcp")
def datagram(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"udp", address)
print(json.dumps({
    "loopback of the host": attempt(lambda: connect(socket.AF_INET, ("127.0.0.1", port))),
    "address of the internet": attempt(lambda: connect(socket.AF_INET, ("192.0.2.1", 80))),
    "IPv6": attempt(lambda: connect(socket.AF_INET6, ("2001:db8::1", 80))),
    "abstract socket": attempt(lambda: connect(socket.AF_UNIX, "\\0" + name)),
    "raw socket": attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)),
    "packet socket": attempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)),
    "hypervisor": attempt(lambda: socket.socket(socket.AF_VSOCK)),
    "name": attempt(lambda: socket.getaddrinfo("example.com", 80)),
    "datagram to a resolver": attempt(lambda: datagram(("8.8.8.8", 53))),
}))
"""


def test_nothing_is_reachable_besides_the_proxy(tmp_path: Path) -> None:
    received: list[bytes] = []
    name = f"wink-test-{os.getpid()}"
    with (
        raw_server(lambda client: received.append(client.recv(10))) as port,
        socket.socket(socket.AF_UNIX) as abstract,
        BubblewrapSandbox(tmp_path, allow_hosts=[f"{LOCAL}:{port}"]) as sandbox,
    ):
        abstract.bind(f"\0{name}")
        abstract.listen()
        done = run_python(sandbox, REACH, str(port), name)
        assert done.stderr == ""
        assert "reached" not in done.stdout
        assert (received, done.connections) == ([], ())


def test_the_command_gets_no_descriptor_but_its_streams(tmp_path: Path) -> None:
    program = "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
    with BubblewrapSandbox(tmp_path, allow_hosts=["example.com"]) as sandbox:
        assert run_python(sandbox, program).stdout == "[0, 1, 2]\n"


def test_other_commands_of_the_sandbox_have_a_port_of_their_own(tmp_path: Path) -> None:
    with (
        web_server() as port,
        BubblewrapSandbox(tmp_path, allow_hosts=[f"{LOCAL}:{port}"]) as sandbox,
    ):
        results: dict[int, ExecResult] = {}

        def fetch(number: int) -> None:
            results[number] = run_python(sandbox, FETCH, f"http://{LOCAL}:{port}/{number}")

        threads = [threading.Thread(target=fetch, args=(number,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert [len(results[number].connections) for number in range(4)] == [1, 1, 1, 1]
        assert {done.stdout.split()[0] for done in results.values()} == {"/0", "/1", "/2", "/3"}


def test_a_command_killed_in_the_middle_of_a_transfer_leaves_nothing(tmp_path: Path) -> None:
    def send(client: socket.socket) -> None:
        client.recv(1000)
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            client.sendall(bytes(65536))

    program = """
import os, signal, sys, urllib.request
response = urllib.request.urlopen(sys.argv[1])
response.read(1_000_000)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with (
        raw_server(send) as port,
        BubblewrapSandbox(tmp_path, allow_hosts=[f"{LOCAL}:{port}"]) as sandbox,
    ):
        for _ in range(2):  # from the second on, a supervisor waits for the next one
            sandbox.exec(["true"])
        threads, descriptors = threading.active_count(), open_descriptors()
        done = run_python(sandbox, program, f"http://{LOCAL}:{port}/")
        assert done.signal == "SIGKILL"
        (connection,) = done.connections
        assert connection.bytes_received > 1_000_000
        wait_until(lambda: (threading.active_count(), open_descriptors()) == (threads, descriptors))


def test_a_timeout_ends_the_connections(tmp_path: Path) -> None:
    def begin(client: socket.socket) -> None:
        client.recv(1000)
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        client.recv(1)  # until the proxy closes the connection

    program = """
import sys, urllib.request
response = urllib.request.urlopen(sys.argv[1])
print("connected", flush=True)
response.read()
"""
    connected = threading.Event()

    def clock() -> float:
        return 1000.0 if connected.is_set() else 0.0

    with (
        raw_server(begin) as port,
        BubblewrapSandbox(tmp_path, allow_hosts=[f"{LOCAL}:{port}"], clock=clock) as sandbox,
    ):
        done = sandbox.exec(
            [sys.executable, "-c", program, f"http://{LOCAL}:{port}/"],
            on_output=lambda stream, data: connected.set(),
        )
        assert (done.timed_out, done.stdout) == (True, "connected\n")
        assert [each.host for each in done.connections] == [LOCAL]


def test_a_missing_program_is_a_result_as_ever(tmp_path: Path) -> None:
    with BubblewrapSandbox(tmp_path, allow_hosts=["example.com"]) as sandbox:
        assert sandbox.exec(["no-such-program"]).exit_code == 127


def test_a_failure_of_bubblewrap_is_reported_in_its_words(tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho it cannot be >&2\nexit 1\n")
    program.chmod(0o755)
    with (
        BubblewrapSandbox(tmp_path, allow_hosts=["a.example"], program=str(program)) as sandbox,
        pytest.raises(SandboxUnavailableError, match="it cannot be"),
    ):
        sandbox.exec(["true"])


def test_without_a_port_the_command_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real bubblewrap, but the sandbox that it describes is one that cannot be entered."""
    monkeypatch.setattr(BubblewrapSandbox, "_create_launcher", lambda _: Launcher())
    program = tmp_path / "bwrap"
    program.write_text(
        "#!/bin/sh\nprintf '{\"child-pid\": 1999999999\\n}' >&6\n"
        f'exec {find_bubblewrap()} "$@" 6>/dev/null\n'
    )
    program.chmod(0o755)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with (
        BubblewrapSandbox(workspace, allow_hosts=["a.example"], program=str(program)) as sandbox,
        pytest.raises(SandboxUnavailableError, match="cannot open a port in the sandbox: No such"),
    ):
        sandbox.exec(["touch", "ran"])
    assert not (workspace / "ran").exists()


def test_a_background_process_uses_the_network_too(tmp_path: Path) -> None:
    events: list[NetworkConnection] = []
    with (
        web_server() as port,
        BubblewrapSandbox(
            tmp_path, allow_hosts=[f"{LOCAL}:{port}"], on_connection=events.append
        ) as sandbox,
    ):
        process = sandbox.start([sys.executable, "-c", FETCH, f"http://{LOCAL}:{port}/page"])
        assert process.wait(WAIT)
        assert process.poll().out.text == f"/page for {LOCAL}:{port}\n"
        assert [each.host for each in events] == [LOCAL]


def test_an_invalid_host_is_rejected_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Write the host alone, such as example.com, not a URL"):
        BubblewrapSandbox(tmp_path, allow_hosts=["https://example.com"])


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("landlock", "has no network and cannot allow only a.example; use bubblewrap or podman"),
        (
            "local",
            "reaches the whole network and cannot allow only a.example; use bubblewrap or podman",
        ),
    ],
)
def test_a_sandbox_that_cannot_tell_hosts_apart_refuses_the_list(
    tmp_path: Path, name: str, problem: str
) -> None:
    with pytest.raises(SandboxUnavailableError, match=re.escape(problem)):
        create_sandbox(name, tmp_path, allow_hosts=["a.example"])


@pytest.mark.parametrize("hosts", [(), ("a.example",)])
def test_variables_name_the_proxy_only_where_there_is_one(
    tmp_path: Path, hosts: Sequence[str]
) -> None:
    with create_sandbox("bubblewrap", tmp_path, allow_hosts=hosts) as sandbox:
        found = sandbox.exec(["env"]).stdout.lower()
        assert ("http_proxy=http://127.0.0.1:" in found) is bool(hosts)
