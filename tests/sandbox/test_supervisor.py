"""However a command ends, no process that it started is left."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import pytest

import weakincentives
from scripts.steps import ROOT
from tests.descriptors import open_descriptors
from tests.sandbox.process_trees import BOMB, FLEEING, NESTED, Mark, TimeIsUpWith
from weakincentives.posix import workers
from weakincentives.sandbox import (
    LocalSandbox,
    SandboxUnavailableError,
    launcher,
    process,
    process_tree,
    supervisor,
)

LONG = 60.0
"""Seconds for what takes no time unless the machine is busy; a passing test never waits so long."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="subreapers exist on Linux only")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    root.mkdir()
    return root


@pytest.fixture(autouse=True)
def kill_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give killed processes a minute to exit: the machine may be busy."""
    monkeypatch.setattr(process_tree, "KILL_TIMEOUT", LONG)
    use_supervisor_with(tmp_path, monkeypatch, KILL_TIMEOUT=LONG)


@pytest.fixture
def sandbox(root: Path) -> Iterator[LocalSandbox]:
    """A sandbox whose commands time out as soon as they create a file called `ready`.

    The grace is short because most of them ignore SIGTERM and so use all of it.
    """
    with LocalSandbox(root, grace=0.1, clock=TimeIsUpWith(root / "ready")) as made:
        yield made


@pytest.fixture
def patient_sandbox(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalSandbox]:
    """The same for commands that exit by themselves, with as much time as they need."""
    use_supervisor_with(tmp_path, monkeypatch, KILL_TIMEOUT=LONG, LINGER=LONG)
    with LocalSandbox(root, grace=LONG, clock=TimeIsUpWith(root / "ready")) as made:
        yield made


def use_supervisor_with(folder: Path, monkeypatch: pytest.MonkeyPatch, **constants: float) -> None:
    """Run supervisors, which are separate programs, with other constants."""
    for package in ("posix", "sandbox"):
        modules = folder / "weakincentives" / package
        modules.mkdir(parents=True, exist_ok=True)
        for each in Path(weakincentives.__file__).parent.joinpath(package).glob("*.py"):
            shutil.copy(each, modules)
    for name, value in constants.items():
        module = process_tree if name == "KILL_TIMEOUT" else supervisor
        program = folder / "weakincentives/sandbox" / Path(module.__file__).name
        source = program.read_text()
        source, replaced = re.subn(rf"^{name} = .*$", f"{name} = {value}", source, flags=re.M)
        assert replaced == 1
        program.write_text(source)
    monkeypatch.setattr(workers, "ROOT", str(folder))


@pytest.fixture
def mark() -> Iterator[Mark]:
    mark = Mark()
    yield mark
    assert mark.processes() == []


def test_a_command_that_runs_out_of_time_is_ended_with_all_that_it_started(
    sandbox: LocalSandbox, mark: Mark
):
    done = sandbox.exec(mark.script(NESTED))
    assert mark.processes() == []
    assert (done.timed_out, done.exit_code) == (True, 124)
    assert done.stdout.startswith("ready\n")
    assert len(sandbox.filesystem.list("up")) == 5


def test_a_command_that_ends_when_asked_has_still_run_out_of_time(
    patient_sandbox: LocalSandbox, mark: Mark
):
    # without a child: SIGTERM between fork and exec would be lost
    script = "trap 'echo bye; exit 0' TERM; : > ready; echo; while :; do :; done"
    done = patient_sandbox.exec(mark.script(script))
    assert (done.timed_out, done.exit_code, done.signal) == (True, 124, None)
    assert done.stdout.endswith("bye\n")


def test_what_a_command_leaves_running_ends_with_it(sandbox: LocalSandbox, mark: Mark):
    done = sandbox.exec(mark.script("sleep {mark} & setsid sleep {mark} & echo started"))
    assert (done.exit_code, done.timed_out, done.stopped_processes) == (0, False, 2)
    assert done.stdout == "started\n"


def test_what_is_about_to_end_by_itself_is_waited_for(patient_sandbox: LocalSandbox):
    done = patient_sandbox.exec(["sh", "-c", "(echo late; : > late) & exit"])
    assert (done.stdout, done.stopped_processes) == ("late\n", 0)
    assert patient_sandbox.filesystem.exists("late")


def test_processes_that_multiply_are_all_ended(sandbox: LocalSandbox, mark: Mark):
    done = sandbox.exec(mark.script(BOMB))
    assert mark.processes() == []
    assert done.timed_out


def test_processes_that_flee_are_all_ended(sandbox: LocalSandbox, mark: Mark):
    sandbox.filesystem.write("flee.sh", FLEEING.format(mark=mark.seconds))
    script = ": > ready; sh flee.sh 200 & echo; exec sleep {mark}"
    assert sandbox.exec(mark.script(script)).timed_out


def test_an_interrupt_ends_the_command(sandbox: LocalSandbox, mark: Mark):
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            script = "sleep {mark} & setsid sleep {mark} & kill -USR1 %d; exec sleep {mark}"
            sandbox.exec(mark.script(script % os.getpid()))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert mark.processes() == []
    assert sandbox.exec(["echo", "next"]).stdout == "next\n"


def test_closing_ends_what_runs_in_other_threads(root: Path, mark: Mark):
    os.mkfifo(root / "fifo")
    with ThreadPoolExecutor(1) as pool:
        sandbox = LocalSandbox(root, grace=0.1)
        script = NESTED.replace("exec sleep {mark}\n", "echo > fifo; exec sleep {mark}\n")
        runs = pool.submit(sandbox.exec, mark.script(script), timeout=float("inf"))
        (root / "fifo").read_text()
        sandbox.close()
        assert mark.processes() == []
        assert isinstance(runs.exception(), SandboxUnavailableError)


def test_a_handler_of_signals_may_close_what_its_thread_waits_for(
    sandbox: LocalSandbox, mark: Mark
):
    before = signal.signal(signal.SIGUSR1, lambda number, frame: sandbox.close())
    try:
        with pytest.raises(SandboxUnavailableError, match="closed"):
            sandbox.exec(mark.script(f"kill -USR1 {os.getpid()}; exec sleep {{mark}}"))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_host_that_is_killed_takes_its_commands_with_it(root: Path, mark: Mark):
    os.mkfifo(root / "fifo")
    program = (
        "import sys; from weakincentives.sandbox import LocalSandbox;"
        "LocalSandbox(sys.argv[1], grace=0.1).exec(sys.argv[2:], timeout=600)"
    )
    # every process inherits the pipe, so it reaches its end when all are gone
    script = mark.script("exec 9> fifo; " + NESTED.replace(": > ready", "echo ready >&9"))
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]}
    host = subprocess.Popen([sys.executable, "-c", program, root, *script], env=environment)
    with (root / "fifo").open() as fifo:
        assert fifo.readline() == "ready\n"
        host.kill()
        host.wait()
        assert fifo.read() == ""
    assert mark.processes() == []


def test_a_supervisor_that_was_killed_is_no_result(sandbox: LocalSandbox, mark: Mark):
    with pytest.raises(SandboxUnavailableError, match="killed"):
        sandbox.exec(mark.script("sleep {mark} & kill -KILL $PPID; exec sleep {mark}"))
    assert mark.processes() == []


def test_a_supervisor_that_does_not_answer_is_no_result(
    sandbox: LocalSandbox, mark: Mark, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(process_tree, "KILL_TIMEOUT", 0.0)
    monkeypatch.setattr(process, "RESPONSE_TIMEOUT", 0.0)
    script = "setsid sleep {mark} & kill -STOP $PPID; : > ready; echo; exec sleep {mark}"
    with pytest.raises(SandboxUnavailableError, match="did not respond"):
        sandbox.exec(mark.script(script))
    mark.wait_for_killed()  # their parent is stopped or gone
    assert mark.processes() == []


def test_a_supervisor_is_not_meant_by_those_who_end_pythons(sandbox: LocalSandbox):
    done = sandbox.exec(["sh", "-c", "cat /proc/$PPID/comm; kill $PPID; echo still here"])
    assert done.stdout == "wink-sandbox\nstill here\n"


def test_no_descriptor_process_or_thread_is_left_behind(root: Path, mark: Mark):
    def held() -> tuple[int, set[int], int]:
        return open_descriptors(), process_tree.descendants(os.getpid()), threading.active_count()

    before = held()
    with LocalSandbox(root, grace=0.1, clock=TimeIsUpWith(root / "ready")) as sandbox:
        for command in (["true"], ["missing"], ["cat"], ["sh", "-c", "sleep 60 & kill -9 $$"]):
            sandbox.exec(command, stdin="x")
        assert sandbox.exec(mark.script(NESTED)).timed_out
        # the fork server, and two supervisors with the processes of their next commands
        assert len(process_tree.descendants(os.getpid()) - before[1]) <= 5
    assert held() == before


@pytest.mark.parametrize("generation", [1, 2, 3], ids=["server", "supervisors", "waiting"])
def test_a_process_that_is_killed_while_it_waits_is_replaced(root: Path, generation: int):
    others = process_tree.descendants(os.getpid())  # engines that other tests keep, for example
    with LocalSandbox(root) as sandbox:
        for _ in range(3):
            assert sandbox.exec(["true"]).success
        chosen = members(generation) - others  # once: others may be started meanwhile
        ended = [os.pidfd_open(pid) for pid in chosen]
        for pid in chosen:
            os.kill(pid, signal.SIGKILL)
        for each in ended:
            assert workers.is_readable(each, LONG)
            os.close(each)
        for number in range(3):
            assert sandbox.exec(["echo", str(number)]).stdout == f"{number}\n"


def members(generation: int) -> set[int]:
    """Return the descendants of this process that are that many generations below it."""
    found = {os.getpid()}
    for _ in range(generation):
        found = {pid for pid, _, parent, _ in process_tree.processes() if parent in found}
    return found


@pytest.mark.parametrize("killed", [0, 1], ids=["supervisor", "waiting"])
def test_a_process_is_not_ready_after_it_was_killed_though_its_sockets_are_open(killed: int):
    waiting = launcher.SupervisorProcess()  # this process keeps the other ends, as forks may
    started = [subprocess.Popen(["cat"], stdin=subprocess.PIPE) for _ in range(2)]
    pids = [each.pid for each in started]
    os.write(waiting.remote[0], b"supervisor %d\nready %d\n" % (pids[0], pids[1]))
    assert waiting.wait_until_ready()
    started[killed].kill()
    assert workers.has_exited(pids[killed], LONG)  # nobody has reaped it yet
    assert not waiting.wait_until_ready()
    for each in started:
        each.communicate()
    waiting.close()


FORKING = """
import os, sys
from weakincentives.sandbox import LocalSandbox
with LocalSandbox(sys.argv[1]) as sandbox:
    for _ in range(3):
        sandbox.exec(["true"])
    child = os.fork()
    who = "parent" if child else "child"
    found = {sandbox.exec(["echo", who]).stdout for _ in range(20)}
    assert found == {who + "\\n"}, found
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert sandbox.exec(["echo", "again"]).stdout == "again\\n"
"""


def test_a_fork_and_its_parent_run_commands_side_by_side(root: Path):
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, "-c", FORKING, root], env=environment, check=True, timeout=LONG)


FAILING = """
import os, sys
from weakincentives.sandbox import LocalSandbox, SandboxUnavailableError
started, go = (os.path.join(sys.argv[1], name) for name in ("started", "go"))
os.mkfifo(started)
os.mkfifo(go)
with LocalSandbox(sys.argv[1]) as sandbox:
    sandbox.exec(["true"])
    child = os.fork()
    if not child:
        done = sandbox.exec(["sh", "-c", "echo >started; cat go"])
        os._exit(done.stdout != "still there")
    assert open(started).read()
    try:
        sandbox.exec(["sh", "-c", "kill -9 $PPID; cat started"])
    except SandboxUnavailableError:
        with open(go, "w") as file:
            file.write("still there")
        assert os.waitpid(child, 0)[1] == 0
        sys.exit(0)
    sys.exit("the supervisor was not killed")
"""


def test_a_supervisor_that_is_killed_stops_no_command_of_a_fork(root: Path):
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]}
    program = [sys.executable, "-c", FAILING, root]
    subprocess.run(program, env=environment, check=True, timeout=LONG)


def test_a_command_does_not_choose_the_processors_of_the_next(root: Path):
    every = os.sched_getaffinity(0)
    pin = f"import os; os.sched_setaffinity(os.getppid(), {{{min(every)}}})"
    with LocalSandbox(root) as sandbox:
        for _ in range(3):
            assert sandbox.exec([sys.executable, "-c", pin]).exit_code == 0
            show = "import os; print(*os.sched_getaffinity(0))"
            shown = sandbox.exec([sys.executable, "-c", show]).stdout
            assert set(map(int, shown.split())) == every


def test_commands_at_the_same_time_have_supervisors_of_their_own(root: Path):
    with LocalSandbox(root) as sandbox, ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            done = pool.map(lambda text: sandbox.exec(["echo", text]).stdout, map(str, range(8)))
            assert list(done) == [f"{number}\n" for number in range(8)]
