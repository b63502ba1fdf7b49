"""Commands in a container with an allow-list: they reach the hosts of the list, and no others."""

import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.descriptors import open_descriptors
from tests.sandbox.proxy_servers import WAIT, wait_until, web_server
from weakincentives.sandbox import (
    NetworkConnection,
    PodmanSandbox,
    PodmanSandboxConfig,
    SandboxUnavailableError,
)

LOCAL = "127.0.0.1"
FETCH = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())
except OSError as error:
    sys.exit(str(error))
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with web_server() as made:
        yield made


@pytest.fixture(scope="module")
def events() -> list[NetworkConnection]:
    return []


@pytest.fixture(scope="module")
def sandbox(
    tmp_path_factory: pytest.TempPathFactory,
    podman: PodmanSandboxConfig,
    port: int,
    events: list[NetworkConnection],
) -> Iterator[PodmanSandbox]:
    root = tmp_path_factory.mktemp("workspace")
    hosts = [f"{LOCAL}:{port}"]
    with PodmanSandbox(root, config=podman, allow_hosts=hosts, on_connection=events.append) as made:
        yield made


def test_a_program_reaches_an_allowed_host_and_the_connection_is_recorded(
    sandbox: PodmanSandbox, port: int, events: list[NetworkConnection]
) -> None:
    done = sandbox.exec(["python3", "-c", FETCH, f"http://{LOCAL}:{port}/page"])
    assert (done.stdout, done.stderr) == (f"/page for {LOCAL}:{port}\n", "")
    (connection,) = done.connections
    assert (connection.host, connection.port, connection.allowed) == (LOCAL, port, True)
    assert connection in events


def test_the_program_reads_why_a_host_is_refused(sandbox: PodmanSandbox) -> None:
    done = sandbox.exec(["python3", "-c", FETCH, "http://example.org/"])
    assert done.exit_code == 1
    assert "wink: example.org is not allowed" in done.stderr
    (connection,) = done.connections
    assert not connection.allowed


def test_each_command_has_a_port_of_its_own(sandbox: PodmanSandbox, port: int) -> None:
    background = sandbox.start(["python3", "-c", FETCH, f"http://{LOCAL}:{port}/background"])
    done = sandbox.exec(["python3", "-c", FETCH, f"http://{LOCAL}:{port}/other"])
    assert len(done.connections) == 1
    assert background.wait(WAIT)
    assert background.poll().out.text == f"/background for {LOCAL}:{port}\n"


def test_a_container_that_is_started_again_has_the_network_too(
    sandbox: PodmanSandbox, port: int
) -> None:
    sandbox.exec(["true"])
    first = sandbox.container_name
    assert first is not None
    subprocess.run(["podman", "kill", first], check=True, capture_output=True)
    wait_until(lambda: sandbox.container_name is None)
    done = sandbox.exec(["python3", "-c", FETCH, f"http://{LOCAL}:{port}/again"])
    assert done.stdout == f"/again for {LOCAL}:{port}\n"
    assert sandbox.container_name != first


def test_the_command_gets_no_descriptor_but_its_streams(sandbox: PodmanSandbox) -> None:
    program = "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
    assert sandbox.exec(["python3", "-c", program]).stdout == "[0, 1, 2]\n"


def test_nothing_is_left_after_a_command(sandbox: PodmanSandbox, port: int) -> None:
    sandbox.exec(["true"])
    threads, descriptors = threading.active_count(), open_descriptors()
    sandbox.exec(["python3", "-c", FETCH, f"http://{LOCAL}:{port}/"])
    wait_until(lambda: (threading.active_count(), open_descriptors()) == (threads, descriptors))


def test_a_remote_engine_refuses_hosts(podman: PodmanSandboxConfig) -> None:
    config = replace(podman, base_url="ssh://engine.example/run/podman.sock")
    with pytest.raises(SandboxUnavailableError, match=r"A remote engine cannot allow a\.example"):
        PodmanSandbox(config=config, allow_hosts=["a.example"])


def test_an_invalid_host_is_rejected_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Not a host name: 'a b'"):
        PodmanSandbox(tmp_path, allow_hosts=["a b"])
