"""Commands on the host: their environment, streams and results."""

import errno
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scripts.steps import ROOT
from weakincentives.filesystem import (
    HostFilesystem,
    InMemoryFilesystem,
    PathEscapeError,
    TimeLimitError,
    diff,
    time_limit,
)
from weakincentives.sandbox import LocalSandbox, Sandbox, SandboxUnavailableError
from weakincentives.sandbox.bubblewrap import WORKSPACE, BubblewrapSandbox
from weakincentives.sandbox.host import HostSandbox
from weakincentives.sandbox.landlock import LandlockSandbox


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    root.mkdir()
    return root


@pytest.fixture(params=[LocalSandbox, BubblewrapSandbox, LandlockSandbox])
def kind(request: pytest.FixtureRequest) -> type[HostSandbox]:
    return request.param


@pytest.fixture
def sandbox(kind: type[HostSandbox], root: Path) -> Iterator[HostSandbox]:
    with kind(root) as made:
        yield made


def test_a_local_sandbox_is_a_sandbox(sandbox: HostSandbox):
    assert isinstance(sandbox, Sandbox)


def test_a_command_works_on_the_files_of_the_workspace(sandbox: HostSandbox):
    sandbox.filesystem.write("a.txt", "hello")
    done = sandbox.exec(["sh", "-c", "cat a.txt; echo more > b.txt; echo oops >&2"])
    assert (done.exit_code, done.stdout, done.stderr) == (0, "hello", "oops\n")
    assert done.success
    assert not done.timed_out
    assert not done.stdout_truncated
    assert done.duration_ms > 0
    assert sandbox.filesystem.read("b.txt").content == "more\n"


def test_a_failure_is_a_result(sandbox: HostSandbox):
    done = sandbox.exec(["sh", "-c", "exit 3"])
    assert (done.exit_code, done.signal, done.success) == (3, None, False)


def test_a_signal_is_named(sandbox: HostSandbox):
    done = sandbox.exec(["sh", "-c", "kill -SEGV $$"])
    assert (done.exit_code, done.signal) == (139, "SIGSEGV")
    real_time = sandbox.exec(["sh", "-c", "kill -40 $$"])
    assert (real_time.exit_code, real_time.signal) == (168, "signal 40")


def test_arguments_are_passed_as_they_are(sandbox: HostSandbox):
    odd = ["$HOME", "*", "a b", "", "'\"\\", "-rf", "new\nline", "é", "\udcff"]
    done = sandbox.exec(["printf", "%s|", *odd])
    assert done.out.data == os.fsencode("".join(f"{each}|" for each in odd))


def test_a_missing_program_is_a_result(sandbox: HostSandbox):
    done = sandbox.exec(["no-such-program", "x"])
    assert (done.exit_code, done.stdout) == (127, "")
    assert done.stderr == "No such program on PATH: 'no-such-program'\n"
    assert sandbox.exec(["./missing"]).exit_code == 127
    assert sandbox.exec(["sh/missing"]).exit_code == 127


def test_what_cannot_be_executed_is_a_result(sandbox: HostSandbox, root: Path):
    (root / "plain").write_text("#!/bin/sh\n")
    (root / "no-first-line").write_text("echo hello\n")
    (root / "no-first-line").chmod(0o755)
    (root / "no-interpreter").write_text("#!/no/such/thing\n")
    (root / "no-interpreter").chmod(0o755)
    plain, directory, script = (
        sandbox.exec([f"./{each}"]) for each in ("plain", ".", "no-first-line")
    )
    assert (plain.exit_code, directory.exit_code) == (126, 126)
    assert "Not an executable file: './plain'" in plain.stderr
    if isinstance(sandbox, BubblewrapSandbox):  # as a shell does, it runs scripts
        assert script.stdout == "hello\n"
    else:
        assert (script.exit_code, "first line" in script.stderr) == (126, True)
    assert sandbox.exec(["./no-interpreter"]).exit_code == 127
    assert sandbox.exec(["echo", *["x" * 100_000] * 40]).exit_code == 126


def test_a_program_of_the_workspace_runs_in_its_directory(sandbox: HostSandbox, root: Path):
    sandbox.filesystem.write("bin/tool", "#!/bin/sh\npwd\n")
    (root / "bin" / "tool").chmod(0o755)
    for cwd in ("bin", "/bin", "./x/../bin/"):
        done = sandbox.exec(["./tool"], cwd=cwd)
        inside = Path(WORKSPACE) if isinstance(sandbox, BubblewrapSandbox) else root
        assert done.stdout == f"{inside / 'bin'}\n"


def test_nothing_can_be_read_unless_it_is_given(sandbox: HostSandbox):
    assert sandbox.exec(["cat"]).stdout == ""
    assert sandbox.exec(["sh", "-c", "read x; echo $?"]).stdout == "1\n"
    assert sandbox.exec(["cat"], stdin="text é").stdout == "text é"
    assert sandbox.exec(["cat"], stdin=b"\xff\x00").out.data == b"\xff\x00"


def test_there_is_no_terminal_to_ask_at(sandbox: HostSandbox):
    done = sandbox.exec(["sh", "-c", "echo password > /dev/tty"])
    assert done.exit_code != 0


def test_input_larger_than_a_pipe_goes_in_while_output_comes_out(sandbox: HostSandbox):
    done = sandbox.exec(["cat"], stdin="x" * 3_000_000, max_output=5_000_000)
    assert len(done.stdout) == 3_000_000


def test_input_that_nobody_reads_is_no_failure(sandbox: HostSandbox):
    assert sandbox.exec(["true"], stdin="x" * 3_000_000).exit_code == 0
    assert sandbox.exec(["head", "-c", "1"], stdin="x" * 3_000_000).stdout == "x"


def test_the_environment_is_small_and_holds_no_secrets(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    with LocalSandbox(root, env={"LEVEL": "1"}) as sandbox:
        lines = sandbox.exec(["env"], env={"GIVEN": "a=b"}).stdout.splitlines()
    found = dict(line.split("=", 1) for line in lines)
    assert set(found) == {"PATH", "HOME", "TMPDIR", "LANG", "TERM", "LEVEL", "GIVEN"}
    assert found["PATH"] == os.environ["PATH"]
    assert (found["GIVEN"], found["LEVEL"]) == ("a=b", "1")
    assert found["HOME"] != os.environ["HOME"]


def test_the_home_is_a_place_of_its_own_that_goes_away(root: Path):
    with LocalSandbox(root) as sandbox:
        deep = "d=$HOME; for i in $(seq 600); do mkdir x; cd x; done; touch $d/file $TMPDIR/file"
        done = sandbox.exec(["sh", "-c", f'cd; {deep}; ls $d $TMPDIR; echo "at $d"'])
        assert done.stderr == ""
        home = Path(done.stdout.split("at ")[1].strip())
        assert (home / "file").exists()
        assert home.stat().st_mode & 0o777 == 0o700
    assert not home.parent.exists()
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("cwd", ["..", "/../etc", "a/../../b"])
def test_no_command_starts_outside(sandbox: HostSandbox, cwd: str):
    with pytest.raises(PathEscapeError):
        sandbox.exec(["pwd"], cwd=cwd)


def test_a_link_is_no_directory_to_start_in(sandbox: HostSandbox, root: Path):
    (root / "out").symlink_to("/")
    (root / "in").symlink_to("out")
    for cwd in ("out", "in", "out/etc"):
        with pytest.raises(PermissionError, match="link"):
            sandbox.exec(["pwd"], cwd=cwd)
    with pytest.raises(FileNotFoundError):
        sandbox.exec(["pwd"], cwd="missing")
    sandbox.filesystem.write("file", "")
    with pytest.raises(NotADirectoryError):
        sandbox.exec(["pwd"], cwd="file")


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        ([], ValueError),
        ([""], ValueError),
        (["a\0b"], ValueError),
        (["echo", "\ud800"], ValueError),
        ("echo hello", TypeError),
        (["echo", 1], TypeError),
    ],
)
def test_what_is_no_command_is_refused(sandbox: HostSandbox, argv: list[str], error: type):
    with pytest.raises(error):
        sandbox.exec(argv)


def test_what_cannot_be_passed_on_is_refused(sandbox: HostSandbox):
    for env in ({"A=B": ""}, {"": "x"}, {"A": "\0"}, {"A\0": ""}):
        with pytest.raises(ValueError, match="ariable"):
            sandbox.exec(["true"], env=env)
    with pytest.raises(ValueError, match="lone surrogate"):
        sandbox.exec(["cat"], stdin="\ud800")
    for timeout in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            sandbox.exec(["true"], timeout=timeout)
    with pytest.raises(ValueError, match="max_output"):
        sandbox.exec(["true"], max_output=-1)


def test_of_much_output_the_beginning_and_the_end_are_kept(sandbox: HostSandbox):
    script = "echo first; head -c 200000000 /dev/zero; echo; echo last; echo err >&2"
    done = sandbox.exec(["sh", "-c", script], max_output=1000)
    assert done.exit_code == 0
    assert done.stdout.startswith("first\n")
    assert done.stdout.endswith("\nlast\n")
    assert done.stdout_truncated
    assert done.stdout_dropped == 200_000_000 + len("first\n\nlast\n") - 1000
    assert len(done.out.data) == 1000
    assert (done.stderr, done.stderr_truncated, done.stderr_dropped) == ("err\n", False, 0)


def test_output_can_be_done_without(sandbox: HostSandbox):
    done = sandbox.exec(["sh", "-c", "echo hello; echo oops >&2"], max_output=0)
    assert (done.out.data, done.stdout_dropped, done.stderr_dropped) == (b"", 6, 5)


def test_output_need_not_be_lines_or_text(sandbox: HostSandbox):
    assert sandbox.exec(["printf", "no newline"]).stdout == "no newline"
    done = sandbox.exec(["printf", r"\377\000\303\251"])
    assert done.out.data == b"\xff\x00\xc3\xa9"
    assert done.stdout == "\\xff\0é"


OPEN_DESCRIPTORS = """
import os
for number in range(256):
    try:
        os.fstat(number)
    except OSError:
        continue
    print(number)
"""


def test_a_command_has_no_descriptors_but_its_streams(sandbox: HostSandbox, tmp_path: Path):
    with (tmp_path / "other").open("w") as other:
        os.set_inheritable(other.fileno(), True)
        done = sandbox.exec([sys.executable, "-I", "-S", "-c", OPEN_DESCRIPTORS], stdin="x")
    assert done.stdout.split() == ["0", "1", "2"]


def test_a_process_without_streams_can_run_commands(root: Path, tmp_path: Path):
    program = (
        "import os, sys; [os.close(each) for each in range(3)];"
        "from weakincentives.sandbox import LocalSandbox;"
        "done = LocalSandbox(sys.argv[1]).exec(['sh', '-c', 'cat; exit 3'], stdin='hello');"
        "open(sys.argv[2], 'w').write(f'{done.stdout} {done.exit_code}')"
    )
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]}
    report = tmp_path / "report"
    subprocess.run([sys.executable, "-c", program, root, report], env=environment, check=True)
    assert report.read_text() == "hello 3"


@pytest.mark.parametrize("kind", [LocalSandbox, BubblewrapSandbox])  # Landlock hides /proc
def test_signals_are_as_a_command_expects_them(sandbox: HostSandbox):
    ignored = (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGUSR2)
    before = {each: signal.signal(each, signal.SIG_IGN) for each in ignored}
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        done = sandbox.exec(["sh", "-c", "grep Sig /proc/self/status; exit 3"])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        for each, handler in before.items():
            signal.signal(each, handler)
    assert done.exit_code == 3
    masks = dict(line.split(":\t") for line in done.stdout.splitlines())
    # the first two real-time signals are the C library's own, and nobody can reset them
    known = sum(1 << each - 1 for each in signal.valid_signals())
    assert [int(masks[each], 16) & known for each in ("SigBlk", "SigIgn")] == [0, 0]


def test_a_sandbox_that_was_forgotten_leaves_no_home(root: Path):
    sandbox = LocalSandbox(root)
    home = Path(sandbox.exec(["sh", "-c", "echo $HOME"]).stdout.strip())
    assert home.exists()
    del sandbox
    gc.collect()
    assert not home.parent.exists()


def test_two_commands_run_side_by_side(sandbox: HostSandbox):
    os.mkfifo(Path(sandbox.filesystem.root) / "pipe")
    with ThreadPoolExecutor(2) as pool:
        reads = pool.submit(sandbox.exec, ["cat", "pipe"])
        writes = pool.submit(sandbox.exec, ["sh", "-c", "echo hello > pipe"])
        assert reads.result().stdout == "hello\n"
        assert writes.result().exit_code == 0


def test_what_a_command_changes_is_seen_by_an_exclusive_filesystem(root: Path, tmp_path: Path):
    with (
        HostFilesystem(root, git_dir=tmp_path / "store", exclusive=True) as fs,
        LocalSandbox(fs) as sandbox,
    ):
        fs.write("a", "1")
        before = fs.snapshot()
        sandbox.exec(["sh", "-c", "echo 2 > a; mkdir d; echo 3 > d/b"])
        after = fs.snapshot()
        changed = {each.path for each in diff(fs.view(before), fs.view(after)).entries}
        assert {"a", "d/b"} <= changed
        fs.restore(before)
        assert [each.path for each in fs.list()] == ["a"]
        assert fs.read("a").content == "1"


def test_a_filesystem_that_was_given_stays_open(root: Path):
    with HostFilesystem(root) as fs:
        with LocalSandbox(fs) as sandbox:
            assert sandbox.filesystem is fs
        fs.write("a", "still")


def test_a_closed_sandbox_runs_nothing(root: Path):
    sandbox = LocalSandbox(root)
    sandbox.close()
    sandbox.close()
    with pytest.raises(SandboxUnavailableError, match="closed"):
        sandbox.exec(["true"])


def test_only_a_host_directory_that_may_change_will_do(root: Path):
    with (
        HostFilesystem(root, read_only=True) as fs,
        pytest.raises(SandboxUnavailableError, match="read-only"),
    ):
        LocalSandbox(fs)
    with pytest.raises(TypeError, match="HostFilesystem"):
        LocalSandbox(InMemoryFilesystem())  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        LocalSandbox(root / "missing")


def test_a_time_limit_around_the_call_counts(sandbox: HostSandbox):
    with time_limit(0.2):
        done = sandbox.exec(["sleep", "60"], timeout=60)
    assert (done.timed_out, done.exit_code) == (True, 124)
    with time_limit(0), pytest.raises(TimeLimitError):
        sandbox.exec(["touch", "never"])
    assert not sandbox.filesystem.exists("never")


def test_commands_run_with_few_descriptors(root: Path):
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64));"
        "from weakincentives.sandbox import LocalSandbox;"
        "done = LocalSandbox(sys.argv[1]).exec(['echo', 'hello']);"
        "print(done.exit_code, done.stdout, done.stderr)"
    )
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", program, root], env=environment, capture_output=True, check=True
    )
    assert done.stdout.split() == [b"0", b"hello"]


def test_a_command_that_cannot_be_confined_is_a_failure_of_the_sandbox(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    with LandlockSandbox(root) as sandbox:
        monkeypatch.setattr(sandbox, "_filter", b"no program")
        with pytest.raises(SandboxUnavailableError, match="cannot be confined: Invalid argument"):
            sandbox.exec(["touch", "never"])
    assert not (root / "never").exists()


LEAVE_A_PAIR = """
import socket, sys
for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
    try:
        first, _ = socket.socketpair(socket.AF_UNIX, kind)
        first.sendto(b"hello", sys.argv[1])
    except OSError as error:
        print(error.errno)
first, second = socket.socketpair()
first.send(b"streams work")
print(second.recv(100).decode())
"""


def test_a_command_in_landlock_reaches_no_socket_of_the_host(root: Path, tmp_path: Path):
    address = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log, LandlockSandbox(root) as sandbox:
        log.bind(address)
        log.setblocking(False)
        done = sandbox.exec([sandbox.python, "-I", "-c", LEAVE_A_PAIR, address])
        with pytest.raises(BlockingIOError):
            log.recv(100)
    assert done.stdout == f"{errno.ESOCKTNOSUPPORT}\n" * 2 + "streams work\n"


def test_a_sandbox_that_cannot_start_processes_says_so(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(SandboxUnavailableError, match="Cannot start a process"):
        sandbox.exec(["true"])
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(SandboxUnavailableError, match="did not start"):
        sandbox.exec(["true"])
