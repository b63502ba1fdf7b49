"""Background processes: start, poll, stop, and nothing left at the end."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import weakincentives
from tests.sandbox.conftest import AnySandbox, MakeSandbox
from tests.sandbox.process_trees import NESTED, Mark
from weakincentives.filesystem import HostFilesystem, LimitExceededError
from weakincentives.sandbox import (
    MAX_BACKGROUND,
    BackgroundProcess,
    BackgroundSandbox,
    BubblewrapSandbox,
    LandlockSandbox,
    LocalSandbox,
    PodmanSandbox,
    PollResult,
    SandboxUnavailableError,
)
from weakincentives.sandbox.container import PodmanSandboxConfig
from weakincentives.sandbox.launcher import Launcher

LIMIT = 60.0  # seconds; only a failing test reaches it


def read_until(process: BackgroundProcess, text: str, *, stream: str = "out") -> str:
    """Poll until `text` was printed; return all that was."""
    found = ""
    until = time.monotonic() + LIMIT
    while text not in found:
        ended = process.wait(0.01)
        found += getattr(process.poll(), stream).text
        assert text in found or not ended, f"it ended without {text!r}: {found!r}"
        assert time.monotonic() < until, f"no {text!r} in {found!r}"
    return found


def finish(process: BackgroundProcess) -> PollResult:
    assert process.wait(LIMIT)
    return process.poll()


def test_every_sandbox_has_the_capability(any_sandbox: AnySandbox) -> None:
    assert isinstance(any_sandbox, BackgroundSandbox)


def test_it_runs_while_other_commands_do(any_sandbox: AnySandbox) -> None:
    process = any_sandbox.start(
        ["sh", "-c", "echo up; until [ -e go ]; do sleep 0.01; done; echo went; exit 3"]
    )
    assert read_until(process, "up\n") == "up\n"
    assert process.is_running
    assert any_sandbox.exec(["sh", "-c", "echo hello; : > go"]).stdout == "hello\n"
    ended = finish(process)
    assert (ended.exit_code, ended.out.text, ended.is_running) == (3, "went\n", False)
    assert ended.duration_ms > 0


def test_output_is_returned_once(any_sandbox: AnySandbox) -> None:
    process = any_sandbox.start(["sh", "-c", "echo out; echo err >&2"])
    assert process.wait(LIMIT)
    first, second = process.poll(), process.poll()
    assert (first.exit_code, first.out.text, first.err.text) == (0, "out\n", "err\n")
    assert (second.exit_code, second.out.text, second.err.text) == (0, "", "")


def test_it_never_blocks_on_output_that_nobody_reads(any_sandbox: AnySandbox) -> None:
    process = any_sandbox.start(
        ["sh", "-c", "echo first; head -c 5000000 /dev/zero; echo last"], max_output=20
    )
    ended = finish(process)
    assert ended.exit_code == 0
    assert ended.out.head.startswith(b"first\n")
    assert ended.out.tail.endswith(b"last\n")
    assert ended.out.dropped == 5_000_000 + len("first\nlast\n") - 20


def test_it_gets_the_arguments_that_a_command_gets(any_sandbox: AnySandbox) -> None:
    any_sandbox.filesystem.mkdir("deep")
    process = any_sandbox.start(
        ["sh", "-c", 'echo "${PWD##*/}"; echo $A; cat'], cwd="deep", env={"A": "b"}
    )
    assert finish(process).out.text == "deep\nb\n"


def test_it_has_the_isolation_of_other_commands(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("outside")
    sandbox = make_sandbox()
    seen = finish(sandbox.start(["cat", str(secret)])).out.text
    assert seen == ("outside" if isinstance(sandbox, LocalSandbox) else "")


def test_stop_ends_everything_and_returns_the_last_output(any_sandbox: AnySandbox) -> None:
    mark = Mark()
    process = any_sandbox.start(mark.script(NESTED))
    read_until(process, "ready\nready\n")
    assert len(mark.processes()) >= 5
    ended = process.stop()
    assert not process.is_running
    assert ended.exit_code not in {0, None}
    mark.wait_for_killed()
    assert mark.processes() == []
    assert process.stop().exit_code == ended.exit_code


def test_what_it_left_running_is_stopped_when_it_exits(any_sandbox: AnySandbox) -> None:
    mark = Mark()
    process = any_sandbox.start(["sh", "-c", f"setsid sleep {mark.seconds} & exit 0"])
    assert finish(process).exit_code == 0
    mark.wait_for_killed()
    assert mark.processes() == []


def test_close_stops_all_of_them(any_sandbox: AnySandbox) -> None:
    mark = Mark()
    for _ in range(3):
        read_until(any_sandbox.start(["sh", "-c", f"echo up; exec sleep {mark.seconds}"]), "up\n")
    process = any_sandbox.processes()[0]
    any_sandbox.close()
    mark.wait_for_killed()
    assert mark.processes() == []
    assert process.wait(LIMIT)
    with pytest.raises(SandboxUnavailableError, match="closed"):
        process.poll()
    with pytest.raises(SandboxUnavailableError, match="closed"):
        any_sandbox.start(["true"])


def test_their_number_is_limited(any_sandbox: AnySandbox) -> None:
    started = [any_sandbox.start(["sleep", "3600"]) for _ in range(MAX_BACKGROUND)]
    assert [each.id for each in started] == list(range(1, MAX_BACKGROUND + 1))
    with pytest.raises(LimitExceededError, match=r"maximum; stop one of them: 1, 2, 3"):
        any_sandbox.start(["true"])
    started[2].stop()
    assert finish(any_sandbox.start(["true"])).exit_code == 0
    assert [each.id for each in any_sandbox.processes() if each.is_running] == [1, 2, 4, 5, 6, 7, 8]


def test_one_that_is_stopped_before_bubblewrap_has_run_it_has_a_result(tmp_path: Path) -> None:
    """bubblewrap then ends without a word, as this program does each time."""
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\ntrap 'exit 143' TERM\necho up\nsleep 3600 & wait; exit 143\n")
    program.chmod(0o755)
    (tmp_path / "workspace").mkdir()
    with BubblewrapSandbox(tmp_path / "workspace", program=str(program)) as sandbox:
        process = sandbox.start(["true"])
        read_until(process, "up\n")
        assert process.stop().exit_code in {137, 143}


def test_a_missing_program_is_an_exit_code(any_sandbox: AnySandbox) -> None:
    ended = finish(any_sandbox.start(["no-such-program"]))
    assert (ended.exit_code, "no-such-program" in ended.err.text) == (127, True)


def test_a_missing_directory_is_raised_at_once(any_sandbox: AnySandbox) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        any_sandbox.start(["true"], cwd="nowhere")
    with pytest.raises(ValueError, match="no program"):
        any_sandbox.start([])
    assert any_sandbox.processes() == ()


def test_a_character_is_not_split_between_two_polls(any_sandbox: AnySandbox) -> None:
    process = any_sandbox.start(
        ["sh", "-c", r"printf 'a\303'; until [ -e go ]; do sleep 0.01; done; printf '\251z'"]
    )
    seen = read_until(process, "a")
    any_sandbox.filesystem.write("go", "")
    assert seen + finish(process).out.text == "aéz"


SERVER = """
import http.server, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"served")
    def log_message(self, *_): pass
with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
    print("port", server.server_address[1], "open", flush=True)
    server.serve_forever()
"""
CLIENT = """
import sys, urllib.request
print(urllib.request.urlopen(f"http://localhost:{sys.argv[1]}/", timeout=60).read().decode())
"""


def python_of(sandbox: AnySandbox) -> str:
    return "python3" if isinstance(sandbox, PodmanSandbox) else sys.executable


def start_server(sandbox: AnySandbox) -> tuple[BackgroundProcess, str]:
    process = sandbox.start([python_of(sandbox), "-c", SERVER])
    return process, read_until(process, "open\n").split()[1]


def test_a_later_command_reaches_its_server(any_sandbox: AnySandbox) -> None:
    if isinstance(any_sandbox, LandlockSandbox):
        assert not any_sandbox.start(["true"]).is_reachable
        return
    process, port = start_server(any_sandbox)
    assert process.is_reachable
    done = any_sandbox.exec([python_of(any_sandbox), "-c", CLIENT, port])
    assert (done.stdout, done.stderr) == ("served\n", "")
    other = any_sandbox.start([python_of(any_sandbox), "-c", CLIENT, port])
    assert finish(other).out.text == "served\n"


def test_an_allow_list_does_not_hide_its_server(tmp_path: Path) -> None:
    with BubblewrapSandbox(tmp_path, allow_hosts=["allowed.example"]) as sandbox:
        process, port = start_server(sandbox)
        assert process.is_reachable
        assert sandbox.exec([sys.executable, "-c", CLIENT, port]).stdout == "served\n"


def test_its_server_is_not_reachable_from_outside(any_sandbox: AnySandbox, tmp_path: Path) -> None:
    if isinstance(any_sandbox, LocalSandbox | LandlockSandbox):
        return
    _, port = start_server(any_sandbox)
    here = subprocess.run([sys.executable, "-c", CLIENT, port], capture_output=True, check=False)
    assert b"refused" in here.stderr
    (tmp_path / "other").mkdir()
    with BubblewrapSandbox(tmp_path / "other") as other:
        assert "refused" in other.exec([sys.executable, "-c", CLIENT, port]).stderr


class NoNetworkLauncher(Launcher):
    """A fork server on a host that lets only bubblewrap make namespaces."""

    @property
    def isolates_network(self) -> bool:
        self._isolates_network = False
        return super().isolates_network


class RestrictedSandbox(BubblewrapSandbox):
    """A sandbox on such a host."""

    def _create_launcher(self) -> Launcher:
        return NoNetworkLauncher(isolates_network=True)


def test_without_a_shared_network_each_command_has_its_own(tmp_path: Path) -> None:
    with RestrictedSandbox(tmp_path) as sandbox:
        process, port = start_server(sandbox)
        assert not process.is_reachable
        assert "refused" in sandbox.exec([sys.executable, "-c", CLIENT, port]).stderr


REFUSED = """
from weakincentives.sandbox import LocalSandbox
from weakincentives.sandbox.launcher import Launcher

class Isolating(LocalSandbox):
    def _create_launcher(self):
        return Launcher(isolates_network=True)

with Isolating("/workspace") as sandbox:
    print(sandbox._launcher.isolates_network, sandbox.exec(["echo", "hello"]).stdout)
"""


def test_a_host_that_refuses_a_namespace_still_runs_commands(tmp_path: Path) -> None:
    source = Path(weakincentives.__file__).parents[1]
    with BubblewrapSandbox(tmp_path, readable=[source]) as host:  # no namespaces in there
        done = host.exec([sys.executable, "-c", REFUSED], env={"PYTHONPATH": str(source)})
    assert (done.stdout, done.stderr) == ("False hello\n\n", "")


class ForgetfulLauncher(Launcher):
    """A fork server that claims to have isolated the network."""

    @property
    def isolates_network(self) -> bool:
        return True


class ForgetfulSandbox(BubblewrapSandbox):
    """A sandbox with such a server."""

    def _create_launcher(self) -> Launcher:
        return ForgetfulLauncher()


def test_no_command_ever_runs_in_the_network_of_the_host(tmp_path: Path) -> None:
    with (
        ForgetfulSandbox(tmp_path) as sandbox,
        pytest.raises(SandboxUnavailableError, match="cannot be confined"),
    ):
        sandbox.exec(["touch", "ran"])
    assert not (tmp_path / "ran").exists()


PARENT = """
import sys
from weakincentives.sandbox import BubblewrapSandbox, LandlockSandbox, LocalSandbox
kind = {"bubblewrap": BubblewrapSandbox, "landlock": LandlockSandbox, "local": LocalSandbox}
sandbox = kind[sys.argv[1]](sys.argv[2])
process = sandbox.start(["sh", "-c", sys.argv[3]])
out = ""
while "ready" not in out:
    process.wait(0.01)
    out += process.poll().out.text
print("ready", flush=True)
if sys.argv[4] == "wait":
    sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["local", "bubblewrap", "landlock"])
@pytest.mark.parametrize("how", ["kill", "exit"])
def test_they_die_with_the_process_that_started_them(kind: str, how: str, tmp_path: Path) -> None:
    mark = Mark()
    script = NESTED.format(mark=mark.seconds)
    wait = "wait" if how == "kill" else "exit"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, kind, str(tmp_path), script, wait],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        if how == "kill":
            os.kill(parent.pid, signal.SIGKILL)
    mark.wait_for_killed()
    assert mark.processes() == []


# --- snapshots ---


COUNTER = "i=0; while :; do i=$((i+1)); echo $i > new; mv new count; echo $i >> log; done"


@pytest.mark.parametrize("kind", [LocalSandbox, BubblewrapSandbox])
@pytest.mark.parametrize("exclusive", [True, False])
def test_every_snapshot_has_what_a_running_process_wrote(
    tmp_path: Path, kind: type[LocalSandbox | BubblewrapSandbox], *, exclusive: bool
) -> None:
    root = tmp_path / "workspace"
    root.mkdir()
    with (
        HostFilesystem(root, git_dir=tmp_path / "store", exclusive=exclusive) as fs,
        kind(fs) as sandbox,
    ):
        process = sandbox.start(
            [
                "sh",
                "-c",
                "for i in 1 2 3; do until [ -e go$i ]; do sleep 0.01; done; echo $i > f;"
                " echo did $i; done; exec sleep 3600",
            ]
        )
        for number in ("1", "2", "3"):
            fs.write(f"go{number}", "")
            read_until(process, f"did {number}\n")
            fs.write("own", number)
            taken = fs.view(fs.snapshot())
            assert (taken.read("f").content, taken.read("own").content) == (f"{number}\n", number)
        process.stop()
        (root / "f").write_text("after\n")  # by anybody, which an exclusive workspace excludes
        fs.invalidate()
        assert fs.view(fs.snapshot()).read("f").content == "after\n"


@pytest.mark.parametrize("kind", [LocalSandbox, BubblewrapSandbox])
def test_what_it_wrote_last_is_in_the_snapshot_after_its_end(
    tmp_path: Path, kind: type[LocalSandbox | BubblewrapSandbox]
) -> None:
    root = tmp_path / "workspace"
    root.mkdir()
    with (
        HostFilesystem(root, git_dir=tmp_path / "store", exclusive=True) as fs,
        kind(fs) as sandbox,
    ):
        process = sandbox.start(["sh", "-c", "until [ -e go ]; do sleep 0.01; done; echo 1 > f"])
        fs.write("go", "")
        fs.snapshot()
        assert process.wait(LIMIT)
        assert fs.view(fs.snapshot()).read("f").content == "1\n"


def test_a_restore_below_a_busy_process_gives_the_state_of_the_snapshot(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    root.mkdir()
    with (
        HostFilesystem(root, git_dir=tmp_path / "store") as fs,
        LocalSandbox(fs) as sandbox,
    ):
        fs.write("kept", "as it was")
        before = fs.snapshot()
        process = sandbox.start(["sh", "-c", f"echo up; {COUNTER}"])
        read_until(process, "up\n")
        for _ in range(5):
            fs.write("kept", "changed")
            taken = fs.view(fs.snapshot())
            assert taken.read("kept").content == "changed"
            fs.restore(before)
            assert fs.read("kept").content == "as it was"
        process.stop()
        fs.restore(before)
        assert sorted(each.name for each in fs.list()) == ["kept"]


def test_no_thread_or_descriptor_is_left(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox()
    finish(sandbox.start(["true"]))
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        process = sandbox.start(["sh", "-c", "echo up; exec sleep 3600"])
        read_until(process, "up\n")
        process.stop()
    until = time.monotonic() + LIMIT
    while any(each.name.startswith("wink-background") for each in threading.enumerate()):
        assert time.monotonic() < until
        threading.Event().wait(0.01)
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors


def test_snapshots_of_files_in_a_container_have_what_a_process_wrote(
    podman: PodmanSandboxConfig,
) -> None:
    with PodmanSandbox(config=podman) as sandbox:
        fs = sandbox.filesystem
        fs.write("a", "1")
        before = fs.snapshot()
        process = sandbox.start(
            ["sh", "-c", "until [ -e go ]; do sleep 0.01; done; echo 1 > f; echo did; sleep 3600"]
        )
        fs.write("go", "")
        read_until(process, "did\n")
        assert fs.view(fs.snapshot()).read("f").content == "1\n"
        fs.restore(before)
        assert [each.name for each in fs.list()] == ["a"]
