"""Commands in a container: results, isolation, cleanup, and what goes wrong with the engine."""

import ast
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

import weakincentives
from tests.sandbox.process_trees import BOMB, FLEEING, NESTED, Mark, TimeIsUpWith
from weakincentives.filesystem import HostFilesystem, PathEscapeError
from weakincentives.posix import owner_name
from weakincentives.sandbox import (
    PruneResult,
    Sandbox,
    SandboxUnavailableError,
    create_sandbox,
    prune_sandboxes,
)
from weakincentives.sandbox.container import Container, PodmanSandboxConfig, container, engine
from weakincentives.sandbox.podman import PodmanSandbox


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workspace")


@pytest.fixture(scope="module")
def sandbox(root: Path, podman: PodmanSandboxConfig) -> Iterator[PodmanSandbox]:
    with PodmanSandbox(root, config=podman) as made:
        yield made


def container_names() -> set[str]:
    done = subprocess.run(
        ["podman", "ps", "--all", "--format", "{{.Names}}"], capture_output=True, check=True
    )
    return set(done.stdout.decode().split())


def own_containers() -> set[str]:
    return {name for name in container_names() if name.startswith(f"wink-{os.getpid()}-")}


def test_it_is_a_sandbox(sandbox: PodmanSandbox) -> None:
    assert isinstance(sandbox, Sandbox)


def test_a_command_works_on_the_files_of_the_workspace(sandbox: PodmanSandbox) -> None:
    sandbox.filesystem.write("a.txt", "hello")
    done = sandbox.exec(["sh", "-c", "cat a.txt; echo more > b.txt; echo oops >&2; exit 3"])
    assert (done.exit_code, done.stdout, done.stderr) == (3, "hello", "oops\n")
    assert done.duration_ms > 0
    assert sandbox.filesystem.read("b.txt").content == "more\n"


def test_a_command_starts_in_its_directory(sandbox: PodmanSandbox) -> None:
    sandbox.filesystem.mkdir("deep/er")
    assert sandbox.exec(["sh", "-c", "pwd"], cwd="./x/../deep/er/").stdout == "/workspace/deep/er\n"
    with pytest.raises(PathEscapeError):
        sandbox.exec(["true"], cwd="../etc")
    with pytest.raises(FileNotFoundError):
        sandbox.exec(["true"], cwd="missing")


def test_a_signal_is_named(sandbox: PodmanSandbox) -> None:
    done = sandbox.exec(["sh", "-c", "kill -SEGV $$"])
    assert (done.exit_code, done.signal) == (139, "SIGSEGV")


def test_arguments_are_passed_verbatim(sandbox: PodmanSandbox) -> None:
    odd = ["$HOME", "*", "a b", "", "'\"\\", "-rf", "new\nline", "é", "\udcff"]
    done = sandbox.exec(["printf", "%s|", *odd])
    assert done.out.data == os.fsencode("".join(f"{each}|" for each in odd))


def test_a_program_that_cannot_start_is_a_result(sandbox: PodmanSandbox, root: Path) -> None:
    (root / "plain").write_text("#!/bin/sh\n")
    (root / "no-first-line").write_text("echo hello\n")
    (root / "no-first-line").chmod(0o755)
    missing = sandbox.exec(["no-such-program"])
    assert (missing.exit_code, missing.stderr) == (
        127,
        "No such program on PATH: 'no-such-program'\n",
    )
    codes = [sandbox.exec([f"./{each}"]).exit_code for each in ("plain", ".", "no-first-line")]
    assert codes == [126, 126, 126]
    assert sandbox.exec(["./missing"]).exit_code == 127
    assert sandbox.exec(["echo", *["x" * 100_000] * 40]).exit_code == 126


def test_input_larger_than_every_window_passes_through(sandbox: PodmanSandbox) -> None:
    data = os.urandom(1_000_003) * 5
    done = sandbox.exec(["cat"], stdin=data, max_output=len(data))
    assert done.out.data == data
    assert sandbox.exec(["cat"]).stdout == ""
    assert sandbox.exec(["true"], stdin=data).exit_code == 0
    assert sandbox.exec(["head", "-c", "1"], stdin="x" * 3_000_000).stdout == "x"


def test_long_output_is_bounded_while_it_is_read(sandbox: PodmanSandbox) -> None:
    script = "echo first; head -c 100000000 /dev/zero; echo; echo last; echo err >&2"
    done = sandbox.exec(["sh", "-c", script], max_output=1000)
    assert done.stdout.startswith("first\n")
    assert done.stdout.endswith("\nlast\n")
    assert done.stdout_dropped == 100_000_000 + len("first\n\nlast\n") - 1000
    assert (done.stderr, done.stderr_dropped) == ("err\n", 0)


def test_output_is_reported_as_it_is_printed(sandbox: PodmanSandbox) -> None:
    seen: list[tuple[str, bytes]] = []
    sandbox.exec(["sh", "-c", "echo out; echo err >&2"], on_output=lambda *each: seen.append(each))
    assert sorted(seen) == [("stderr", b"err\n"), ("stdout", b"out\n")]


def test_an_exception_of_the_listener_stops_the_command(sandbox: PodmanSandbox) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("enough")

    mark = Mark()
    script = f"trap 'echo end' TERM; echo x; sleep {mark.seconds}; sleep {mark.seconds}"
    with pytest.raises(RuntimeError, match="enough"):
        sandbox.exec(["sh", "-c", script], on_output=fail)
    assert mark.processes() == []


def test_the_environment_has_no_secrets(
    root: Path, podman: PodmanSandboxConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SECRET_TOKEN", "HTTPS_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://s3cret")
    with PodmanSandbox(root, config=podman, env={"LEVEL": "1"}) as sandbox:
        text = sandbox.exec(["cat", "/proc/self/environ"], env={"GIVEN": "a=b"}).stdout
        own = sandbox.exec(["sh", "-c", "cat /proc/1/environ; ls -l /proc/1/fd/0 /proc/1/mem"])
    found = dict(each.split("=", 1) for each in text.strip("\0").split("\0"))
    assert set(found) == {"PATH", "HOME", "TMPDIR", "LANG", "TERM", "LEVEL", "GIVEN"}
    assert (found["GIVEN"], found["HOME"]) == ("a=b", "/home/user")
    assert "Permission denied" in own.stderr
    assert "s3cret" not in own.stdout


FACTS = """
import ctypes, json, os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status"))
limits = "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"
def fails(action):
    try:
        action()
    except OSError:
        return True
    return False
print(json.dumps({
    "root": 0 in (os.getuid(), os.geteuid(), os.getgid(), *os.getgroups()),
    "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
    "no_new_privileges": status["NoNewPrivs"].strip(),
    "seccomp": status["Seccomp"].strip(),
    "io_uring": ctypes.CDLL(None).syscall(425, 0, None),
    "networks": os.listdir("/sys/class/net"),
    "read_only": all(fails(lambda: open(f"{each}/x", "w")) for each in ("", "/usr", "/etc")),
    "writable": [open(f"{each}/x", "w").write("x") for each in ("/tmp", "/home/user", ".")],
    "memory": next(open(each).read().strip() for each in limits if os.path.exists(each)),
}))
"""


def test_the_container_is_confined(sandbox: PodmanSandbox) -> None:
    done = sandbox.exec(["python3", "-c", FACTS])
    assert done.stderr == ""
    facts = json.loads(done.stdout)
    memory = facts.pop("memory")
    # without control groups of their own, ordinary users are told that nothing limits it
    assert memory == str(1024**3) or (os.geteuid() and "memory" not in sandbox.limited)
    assert facts == {
        "root": False,
        "capabilities": 0,
        "no_new_privileges": "1",
        "seccomp": "2",
        "io_uring": -1,
        "networks": ["lo"],
        "read_only": True,
        "writable": [1, 1, 1],
    }


def test_both_sides_can_use_the_files_of_the_workspace(sandbox: PodmanSandbox, root: Path) -> None:
    sandbox.filesystem.write("shared/from-host", "1")
    done = sandbox.exec(
        ["sh", "-c", "echo 2 >> shared/from-host; umask 077; mkdir own; echo > own/a"]
    )
    assert done.stderr == ""
    owners = {path.stat().st_uid for path in (root, root / "shared/from-host", root / "own/a")}
    assert owners == {os.getuid()}
    sandbox.filesystem.write("own/a", "3", mode="overwrite")
    sandbox.filesystem.delete("own", recursive=True)
    assert sandbox.exec(["cat", "shared/from-host"]).stdout == "12\n"


@pytest.mark.root
def test_commands_are_the_owner_of_the_workspace(
    podman: PodmanSandboxConfig, tmp_path: Path
) -> None:
    os.chown(tmp_path, 12345, 12346)
    with PodmanSandbox(tmp_path, config=podman) as sandbox:
        assert sandbox.exec(["sh", "-c", "id -u; id -g; touch a"]).stdout == "12345\n12346\n"
    assert (tmp_path / "a").stat().st_uid == 12345


@pytest.mark.parametrize("name", ["a:b", 'a,b="c" d', "a\nb"])
def test_a_workspace_may_have_any_name(
    podman: PodmanSandboxConfig, tmp_path: Path, name: str
) -> None:
    root = tmp_path / name
    root.mkdir()
    with PodmanSandbox(root, config=podman) as sandbox:
        sandbox.exec(["touch", "file"])
    assert (root / "file").exists()


def test_readable_paths_cannot_be_changed(podman: PodmanSandboxConfig, tmp_path: Path) -> None:
    data = tmp_path / "data:1"
    data.mkdir()
    (data / "file").write_text("content")
    (tmp_path / "root").mkdir()
    with PodmanSandbox(tmp_path / "root", config=podman, readable=[data]) as sandbox:
        done = sandbox.exec(["sh", "-c", "cat $0/file; echo >> $0/file", str(data)])
    assert (done.stdout, "Read-only" in done.stderr) == ("content", True)


@pytest.mark.usefixtures("default_image")
def test_it_is_created_by_name(tmp_path: Path) -> None:
    with create_sandbox("podman", tmp_path, env={"A": "b"}) as made:
        assert isinstance(made, PodmanSandbox)
        assert made.exec(["sh", "-c", "echo $A"]).stdout == "b\n"
        assert made.limited == {"memory", "pids"} or os.geteuid()


def test_a_built_image_stands_in_for_the_default_one(
    podman: PodmanSandboxConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = "localhost/no-such-image:1"
    monkeypatch.setattr(engine, "DEFAULT_IMAGE", missing)
    monkeypatch.setattr(engine, "BUILT_IMAGE", podman.image)
    with PodmanSandbox(tmp_path, config=replace(podman, image=missing)) as sandbox:
        assert sandbox.image == missing
        sandbox.exec(["true"])
        assert sandbox.image == podman.image
    monkeypatch.setattr(engine, "BUILT_IMAGE", "localhost/no-such-image:2")
    with (
        PodmanSandbox(tmp_path, config=replace(podman, image=missing, cpus=0.5)) as sandbox,
        pytest.raises(SandboxUnavailableError, match=r"image:1' or .*image:2': get it with"),
    ):
        sandbox.exec(["true"])


def test_a_timeout_stops_everything_and_keeps_the_output(
    root: Path, podman: PodmanSandboxConfig, tmp_path: Path
) -> None:
    mark = Mark()
    clock = TimeIsUpWith(tmp_path / "ready")
    with PodmanSandbox(tmp_path, config=podman, clock=clock, grace=0.2) as sandbox:
        done = sandbox.exec(mark.script(NESTED))
        assert (done.timed_out, done.exit_code) == (True, 124)
        assert done.stdout.startswith("ready\n")
        assert mark.processes() == []


def test_a_fork_bomb_is_stopped(podman: PodmanSandboxConfig, tmp_path: Path) -> None:
    mark = Mark()
    clock = TimeIsUpWith(tmp_path / "ready")
    with PodmanSandbox(tmp_path, config=podman, clock=clock, grace=0) as sandbox:
        assert sandbox.exec(mark.script(BOMB)).exit_code == 124
        assert mark.processes() == []
        assert sandbox.exec(["echo", "fine"]).stdout == "fine\n"


def test_processes_left_running_are_stopped_and_counted(sandbox: PodmanSandbox, root: Path) -> None:
    mark = Mark()
    (root / "flee.sh").write_text(FLEEING.format(mark=mark.seconds))
    done = sandbox.exec(["sh", "flee.sh", "5"])
    assert (done.exit_code, done.stopped_processes) == (0, 1)
    assert mark.processes() == []


def test_many_commands_leave_no_zombies(sandbox: PodmanSandbox) -> None:
    for _ in range(100):
        sandbox.exec(["sh", "-c", "(setsid true &); true"])
    count = "for each in /proc/[0-9]*; do echo $each; done"
    shown = sandbox.exec(["sh", "-c", count]).stdout.split()
    # the runner, the fork server, the shell, the process of the next command, two supervisors
    assert len(shown) == 6


def test_commands_run_side_by_side_and_end_separately(sandbox: PodmanSandbox, root: Path) -> None:
    os.mkfifo(root / "pipe")
    mark = Mark()
    with ThreadPoolExecutor(3) as pool:
        reads = pool.submit(sandbox.exec, ["cat", "pipe"])
        orphan = f"(setsid sleep {mark.seconds} &); cat pipe-2"
        os.mkfifo(root / "pipe-2")
        leaves = pool.submit(sandbox.exec, ["sh", "-c", orphan])
        sandbox.exec(["sh", "-c", "echo hello > pipe-2"])
        assert leaves.result().stopped_processes == 1
        assert mark.processes() == []
        sandbox.exec(["sh", "-c", "echo hello > pipe"])
        assert reads.result().stdout == "hello\n"


def test_a_command_cannot_take_the_runner_down(sandbox: PodmanSandbox) -> None:
    done = sandbox.exec(["sh", "-c", "kill -9 1; kill -9 -1; echo alive; exec sleep 1000"])
    assert (done.exit_code, done.signal) == (137, "SIGKILL")
    assert sandbox.exec(["echo", "fine"]).stdout == "fine\n"


def test_a_command_that_takes_all_memory_ends_alone(
    podman: PodmanSandboxConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(podman, memory=64 * 1024**2)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with PodmanSandbox(tmp_path, config=small) as sandbox:
        sandbox.exec(["true"])
        before = own_containers()
        done = sandbox.exec(["python3", "-c", "x = bytearray(10**9)"])
        if "memory" in sandbox.limited:
            assert (done.exit_code, done.signal) == (137, "SIGKILL")
        else:  # an ordinary user without control groups: each process has its limit
            assert os.geteuid()
            assert (done.exit_code, "MemoryError" in done.stderr) == (1, True)
        assert sandbox.exec(["echo", "fine"]).stdout == "fine\n"
        assert own_containers() == before
    assert list(here.iterdir()) == []


def test_a_container_that_was_killed_is_replaced(
    podman: PodmanSandboxConfig, tmp_path: Path
) -> None:
    before = own_containers()
    with PodmanSandbox(tmp_path, config=podman) as sandbox:
        sandbox.exec(["sh", "-c", "echo kept > file"])
        (name,) = own_containers() - before
        is_up = Event()
        script = ["sh", "-c", "echo ready; exec sleep 1000"]
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(sandbox.exec, script, on_output=lambda *_: is_up.set())
            assert is_up.wait(60)
            subprocess.run(["podman", "rm", "-f", "-t", "0", name], check=True)
            with pytest.raises(SandboxUnavailableError, match="exited unexpectedly"):
                running.result()
        assert sandbox.filesystem.read("file").content == "kept\n"
        assert sandbox.exec(["cat", "file"]).stdout == "kept\n"
    assert own_containers() == before


def test_a_workspace_that_was_lost_with_its_container_is_not_replaced(
    podman: PodmanSandboxConfig,
) -> None:
    with PodmanSandbox(config=podman) as sandbox:
        sandbox.filesystem.write("a", "1")
        name = sandbox.container_name
        assert name is not None
        subprocess.run(["podman", "rm", "-f", "-t", "0", name], check=True, capture_output=True)
        with pytest.raises(SandboxUnavailableError, match=r"exited|lost"):
            sandbox.exec(["true"])
        with pytest.raises(SandboxUnavailableError, match="workspace is lost"):
            sandbox.filesystem.read("a")


def test_nothing_is_started_before_the_first_command(
    podman: PodmanSandboxConfig, tmp_path: Path
) -> None:
    missing = replace(podman, program="no-such-podman")
    with PodmanSandbox(tmp_path, config=missing) as sandbox:
        sandbox.filesystem.write("a", "works without a container")
        with pytest.raises(SandboxUnavailableError, match="apt install podman"):
            sandbox.exec(["true"])


def test_close_removes_the_container_and_stops_commands(
    podman: PodmanSandboxConfig, tmp_path: Path
) -> None:
    before = own_containers()
    mark, is_up = Mark(), Event()
    sandbox = PodmanSandbox(tmp_path, config=podman)
    sandbox.exec(["true"])
    with ThreadPoolExecutor(1) as pool:
        script = mark.script("echo ready; exec sleep {mark}")
        running = pool.submit(sandbox.exec, script, on_output=lambda *_: is_up.set())
        assert is_up.wait(60)
        sandbox.close()
        with pytest.raises(SandboxUnavailableError, match="closed"):
            running.result()
    sandbox.close()
    assert mark.processes() == []
    assert own_containers() == before
    with pytest.raises(SandboxUnavailableError, match="closed"):
        sandbox.exec(["true"])


PROGRAM = """
import os, sys
from weakincentives.sandbox.container import PodmanSandboxConfig, engine
from weakincentives.sandbox.podman import PodmanSandbox
sandbox = PodmanSandbox(sys.argv[1], config=PodmanSandboxConfig(image=sys.argv[2]))
print(sandbox.exec(["echo", "hello"]).stdout, end="", flush=True)
if sys.argv[3] == "kill":
    sandbox.exec(["sleep", "1000"], on_output=print, timeout=1000)
"""


def start_program(root: Path, image: str, how: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(root), image, how],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_end_of_the_process_removes_the_container(
    podman: PodmanSandboxConfig, tmp_path: Path
) -> None:
    with start_program(tmp_path, podman.image, "exit") as process:
        assert process.communicate()[0] == "hello\n"
    assert not any(name.startswith(f"wink-{process.pid}-") for name in container_names())


def test_a_killed_process_leaves_no_container(podman: PodmanSandboxConfig, tmp_path: Path) -> None:
    with start_program(tmp_path, podman.image, "kill") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hello\n"
        process.send_signal(signal.SIGKILL)
    ends = time.monotonic() + 60
    while any(name.startswith(f"wink-{process.pid}-") for name in container_names()):
        assert time.monotonic() < ends
        # podman may still be starting one, or trip over the container of another test
        prune_sandboxes(podman)


def create_container(image: str, owner: str, machine: str) -> str:
    name = f"wink-test-{secrets.token_hex(4)}"
    labels = f"weakincentives.owner={owner}", f"weakincentives.machine={machine}"
    options = [part for each in labels for part in ("--label", each)]
    command = ["podman", "create", "--name", name, *options, image, "true"]
    subprocess.run(command, check=True, capture_output=True)
    return name


def end_of_life() -> str:
    """Return the name of a process that has ended."""
    program = "from weakincentives.posix import owner_name; print(owner_name())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_leftovers_are_found_by_their_labels(
    podman: PodmanSandboxConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = f"test-{os.getpid()}"  # other workers look for leftovers too
    monkeypatch.setattr("platform.node", lambda: machine)
    kept = [
        create_container(podman.image, owner_name(), machine),
        create_container(podman.image, "unknown", machine),
        create_container(podman.image, end_of_life(), "another-machine"),
    ]
    left = create_container(podman.image, end_of_life(), machine)
    try:
        assert prune_sandboxes(replace(podman, cache=str(tmp_path))).containers == (left,)
        assert set(kept) <= container_names()
        assert prune_sandboxes(replace(podman, cache=str(tmp_path))) == PruneResult()
    finally:
        subprocess.run(["podman", "rm", "--force", *kept], check=True, capture_output=True)


def test_the_first_start_removes_leftovers(
    podman: PodmanSandboxConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = f"test-{os.getpid()}"
    monkeypatch.setattr("platform.node", lambda: machine)
    left = create_container(podman.image, end_of_life(), machine)
    with PodmanSandbox(tmp_path, config=replace(podman, cache=str(tmp_path))) as sandbox:
        sandbox.exec(["true"])
        while left in container_names():
            pass


def test_a_missing_image_is_never_pulled(podman: PodmanSandboxConfig, tmp_path: Path) -> None:
    missing = replace(podman, image="localhost/no-such-image:1")
    with (
        PodmanSandbox(tmp_path, config=missing) as sandbox,
        pytest.raises(SandboxUnavailableError, match="wink sandbox build-image"),
    ):
        sandbox.exec(["true"])


def test_a_refused_option_is_named(tmp_path: Path, podman: PodmanSandboxConfig) -> None:
    fake = tmp_path / "podman"
    fake.write_text("#!/bin/sh\necho 'Error: unknown flag: --read-only' >&2\nexit 125\n")
    fake.chmod(0o755)
    config = replace(podman, program=str(fake))
    with (
        PodmanSandbox(tmp_path, config=config) as sandbox,
        pytest.raises(SandboxUnavailableError, match="unknown flag: --read-only"),
    ):
        sandbox.exec(["true"])


def test_the_connection_comes_from_the_environment() -> None:
    found = PodmanSandboxConfig(memory=None).with_environment(
        {
            "PODMAN_BASE_URL": "ssh://host/run/podman.sock",
            "PODMAN_IDENTITY": "/keys/id",
            "PODMAN_CONNECTION": "",
        }
    )
    assert (found.base_url, found.identity) == ("ssh://host/run/podman.sock", "/keys/id")
    assert (found.connection, found.memory, found.is_remote) == (None, None, True)
    assert not PodmanSandboxConfig().with_environment({}).is_remote


def test_a_config_leaves_to_the_environment_what_it_does_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PODMAN_CONNECTION", "PODMAN_BASE_URL", "PODMAN_IDENTITY"):
        monkeypatch.setenv(name, f"the {name}")
    monkeypatch.setenv("WEAKINCENTIVES_CACHE", str(tmp_path))
    monkeypatch.setenv("WEAKINCENTIVES_IMAGE", "localhost/mine")
    with PodmanSandbox(config=PodmanSandboxConfig(memory=2**28)) as sandbox:
        found = sandbox.config
    assert (found.base_url, found.connection) == ("the PODMAN_BASE_URL", "the PODMAN_CONNECTION")
    assert (found.identity, found.memory) == ("the PODMAN_IDENTITY", 2**28)
    assert (found.cache_directory, found.image) == (tmp_path, "localhost/mine")
    assert Container(PodmanSandboxConfig(), None).image == "localhost/mine"
    given = PodmanSandboxConfig(base_url="unix:///s", identity="k", cache="/c", image="i")
    assert given.with_environment() == given
    assert not PodmanSandboxConfig(connection="").with_environment().is_remote


def run_as(user: str | None, workspace: Path | None, podman: PodmanSandboxConfig) -> str:
    """Write a file in the workspace; return the user and the group inside."""
    with PodmanSandbox(workspace, config=replace(podman, user=user)) as sandbox:
        done = sandbox.exec(["sh", "-c", "id -u; id -g; touch made; cat /proc/self/uid_map"])
        assert done.success, done.stderr
        user_number, group, *lines = done.stdout.splitlines()
    assert user_number != "0" or os.geteuid() or lines[0].split()[:2] != ["0", "0"]
    return f"{user_number}:{group}"


@pytest.mark.parametrize("user", ["1000:1000", "1234", "65534", "1000:0"])
def test_a_chosen_user_is_the_owner_of_the_workspace_outside(
    user: str, podman: PodmanSandboxConfig, tmp_path: Path
) -> None:
    assert run_as(user, tmp_path, podman) == (user if ":" in user else f"{user}:{user}")
    assert (tmp_path / "made").stat().st_uid == os.geteuid()


@pytest.mark.root
@pytest.mark.parametrize(
    ("user", "owner", "inside"),
    [
        (None, (1234, 1235), "1234:1235"),
        ("1000", (1234, 1235), "1000:1000"),
        ("1000", (100_000, 100_001), "1000:1000"),
        ("1000", (1000, 0), "1000:1000"),
        ("0:0", (1234, 1235), "0:0"),
        ("0:0", (65534, 65534), "0:0"),
        ("0:0", (100_000, 0), "0:0"),
    ],
)
def test_a_chosen_user_is_whoever_owns_the_workspace(
    user: str | None,
    owner: tuple[int, int],
    inside: str,
    podman: PodmanSandboxConfig,
    tmp_path: Path,
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    os.chown(workspace, *owner)
    assert run_as(user, workspace, podman) == inside
    made = (workspace / "made").stat()
    assert made.st_uid == owner[0]
    assert made.st_gid or inside != "0:0"  # and never with the group of this machine's root


@pytest.mark.root  # for others, root of the container is this user
def test_root_of_a_container_is_never_root_of_the_machine(
    podman: PodmanSandboxConfig, tmp_path: Path
) -> None:
    with pytest.raises(SandboxUnavailableError, match="User '0:0' would be root on this machine"):
        run_as("0:0", tmp_path, podman)
    assert run_as("0:0", None, podman) == "0:0"


@pytest.mark.parametrize("user", ["root", "", "1000:", "-1", "70000", "1000:1000:1", "\u0661"])
def test_a_user_has_a_number(user: str) -> None:
    with pytest.raises(ValueError, match="user must be numbers up to 65534"):
        PodmanSandboxConfig(user=user)


def test_what_a_command_does_can_be_undone(podman: PodmanSandboxConfig, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with (
        HostFilesystem(root, git_dir=tmp_path / "store") as fs,
        PodmanSandbox(fs, config=podman) as sandbox,
    ):
        fs.write("a", "1")
        before = fs.snapshot()
        sandbox.exec(["sh", "-c", "echo 2 > a; mkdir d; echo 3 > d/b"])
        assert fs.read("d/b").content == "3\n"
        fs.restore(before)
        assert [each.path for each in fs.list()] == ["a"]
        assert fs.read("a").content == "1"


@pytest.fixture
def remote(podman: PodmanSandboxConfig, tmp_path: Path) -> Iterator[PodmanSandboxConfig]:
    """Serve the engine on a socket, as on another machine."""
    url = f"unix://{tmp_path / 'engine.sock'}"
    runtime = ("--runtime", "runc") if shutil.which("runc") else ()
    service = ["podman", *runtime, "system", "service", "--time", "0", url]
    with subprocess.Popen(service, stderr=subprocess.DEVNULL) as process:
        while not (tmp_path / "engine.sock").exists():
            assert process.poll() is None
        yield replace(podman, base_url=url)
        process.terminate()


def test_a_remote_engine_has_its_own_workspace(remote: PodmanSandboxConfig) -> None:
    before = own_containers()
    with PodmanSandbox(config=remote) as sandbox:
        sandbox.filesystem.write("src/a", "hello")
        kept = sandbox.filesystem.snapshot()
        done = sandbox.exec(["sh", "-c", "pwd; cat a; rm a; id -u; echo 1 > b"], cwd="src")
        assert done.stdout == "/workspace/src\nhello1000\n"
        assert [each.path for each in sandbox.filesystem.list("src")] == ["src/b"]
        sandbox.filesystem.restore(kept)
        assert [each.path for each in sandbox.filesystem.list("src")] == ["src/a"]
        with pytest.raises(FileNotFoundError):
            sandbox.exec(["true"], cwd="missing")
        with pytest.raises(PathEscapeError):
            sandbox.exec(["true"], cwd="..")
    assert own_containers() == before


def test_a_remote_engine_cannot_use_a_directory_of_this_machine(tmp_path: Path) -> None:
    config = PodmanSandboxConfig(base_url="ssh://host/run/podman.sock")
    with pytest.raises(SandboxUnavailableError, match="shares no directory"):
        PodmanSandbox(tmp_path, config=config)


def test_an_engine_that_cannot_be_reached_is_named(
    podman: PodmanSandboxConfig, tmp_path: Path
) -> None:
    config = replace(podman, base_url=f"unix://{tmp_path / 'nothing.sock'}")
    with (
        PodmanSandbox(config=config) as sandbox,
        pytest.raises(SandboxUnavailableError, match="PODMAN_BASE_URL"),
    ):
        sandbox.exec(["true"])


def test_an_open_savepoint_does_not_keep_a_sandbox_from_closing(
    podman: PodmanSandboxConfig,
) -> None:
    with PodmanSandbox(config=podman) as sandbox:
        first = sandbox.filesystem.savepoint()
        sandbox.filesystem.write("a", "1")
    assert not first.is_open
    with PodmanSandbox(config=podman) as sandbox:
        last = sandbox.filesystem.savepoint()
        name = sandbox.container_name
        assert name is not None
        subprocess.run(["podman", "rm", "-f", "-t", "0", name], check=True, capture_output=True)
        assert last.is_open


def test_a_link_is_not_a_directory_to_start_in(podman: PodmanSandboxConfig) -> None:
    with PodmanSandbox(config=podman) as sandbox:
        sandbox.exec(["ln", "-s", "/", "out"])
        with pytest.raises(PermissionError, match="link"):
            sandbox.exec(["true"], cwd="out")
        sandbox.filesystem.write("file", "")
        with pytest.raises(NotADirectoryError):
            sandbox.exec(["true"], cwd="file")


_NEWER_THAN_3_10 = {
    *("Self", "Never", "LiteralString", "Unpack", "TypeVarTuple", "Required", "NotRequired"),
    *("assert_never", "assert_type", "override", "StrEnum", "chdir", "tomllib", "file_digest"),
}


@pytest.mark.parametrize("sent", container._MODULES)
def test_what_runs_in_a_container_needs_nothing_newer_than_its_python(sent: str) -> None:
    source = Path(weakincentives.__file__).parent.joinpath(*sent.split("."))
    tree = ast.parse(source.with_suffix(".py").read_text(), feature_version=(3, 10))
    imports = [each for each in ast.walk(tree) if isinstance(each, ast.Import | ast.ImportFrom)]
    names = {alias.name for each in imports for alias in each.names}
    assert names.isdisjoint(_NEWER_THAN_3_10)
