"""Workers: what they cannot do, what a hostile one cannot do to us, and that none is left."""

import errno
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.contrib.evaluation.runs import Run
from weakincentives.contrib.evaluation import (
    ENGINES,
    Engine,
    EngineLanguage,
    EngineUnavailableError,
    EvalLimits,
    Evaluator,
    create_engine,
)
from weakincentives.contrib.evaluation.worker import WorkerEngine, WorkerProgram
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.sandbox import process_tree

HOSTILE = str(Path(__file__).parent / "hostile")
SECONDS = 60.0  # a limit that only a failing test reaches


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until, "timed out"
        time.sleep(0.01)


def kill_and_wait(pid: int) -> None:
    """Kill a process, and wait until all of its threads have ended, unless it has ended itself."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        ended, _, _ = select.select([descriptor], [], [], SECONDS)
        assert ended, "timed out"
    finally:
        os.close(descriptor)


def processes_below(pid: int) -> set[int]:
    return set(process_tree.live_processes(process_tree.descendants(pid)))


def evaluation_processes() -> set[int]:
    """Return the processes of engines, and of nothing else that this process has started."""
    return {each for each in processes_below(os.getpid()) if _name(each) == "wink-evaluate"}


def find_processes(which: Callable[[int], bool]) -> set[int]:
    """Return our processes of a kind, once there is one: workers start in the background."""
    wait_until(lambda: any(map(which, processes_below(os.getpid()))))
    return {each for each in processes_below(os.getpid()) if which(each)}


def is_server(pid: int) -> bool:
    """Return whether a process is the fork server of an engine."""
    return _name(pid) == "wink-evaluate" and _name(_parent(pid)) != "wink-evaluate"


def is_worker(pid: int) -> bool:
    """Return whether a process was forked by such a server."""
    return is_server(_parent(pid))


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@pytest.fixture(scope="module")
def hostile() -> Iterator[Run]:
    program = WorkerProgram("hostile_program", (HOSTILE,))
    engine = WorkerEngine("hostile", EngineLanguage(""), program)
    run = Run(engine, InMemoryFilesystem())
    run.evaluator = Evaluator(engine, limits=EvalLimits(max_seconds=SECONDS))
    yield run
    engine.close()


@pytest.mark.parametrize(
    "code",
    [
        *("garbage", "endless frame", "empty frame", "not json", "deep json", "unknown kind"),
        *("wrong types", "no outcome", "surrogate", "ready again", "half a frame", "flood"),
        *("calls", "exit", "memory"),
    ],
)
def test_a_worker_that_breaks_the_protocol_is_replaced(hostile: Run, code: str) -> None:
    impatient = Run(hostile.evaluator.engine, InMemoryFilesystem())
    impatient.evaluator = Evaluator(impatient.evaluator.engine, limits=EvalLimits(max_seconds=1.0))
    impatient.fail(code)
    assert hostile("large outcome").value_repr is not None


def test_what_a_worker_sends_is_bounded_again(hostile: Run) -> None:
    result = hostile("large outcome")
    assert result.value_repr is not None
    assert len(result.value_repr) == 4_096
    assert len(result.globals) == 64


def test_what_a_worker_prints_is_bounded_in_total(hostile: Run) -> None:
    run = Run(hostile.evaluator.engine, InMemoryFilesystem())
    limits = EvalLimits(max_seconds=SECONDS, max_output_length=100_000)
    run.evaluator = Evaluator(hostile.evaluator.engine, limits=limits)
    result = run.fail("flood of text").value
    assert result is not None
    assert not result.timed_out  # it was stopped before
    assert len(result.stdout) < 110_000


@pytest.mark.parametrize("code", ["unknown function", "wrong arguments"])
def test_only_file_functions_can_be_called(hostile: Run, code: str) -> None:
    assert "rguments" in str(hostile(code).value_repr) or "No such" in str(hostile(code).value_repr)


def test_a_worker_can_use_nothing_of_the_machine(hostile: Run) -> None:
    encoded = hostile("attempts").globals
    found = {name: json.loads(text) for name, text in encoded.items()}
    assert found.pop("descriptors") == "[0, 1, 2, 3]"
    assert found.pop("environment") == "set()"
    assert found.pop("is session leader") == "True"
    assert {name for name, outcome in found.items() if outcome == "allowed"} == set()


def test_idle_processes_are_confined(engine: Engine) -> None:
    Run(engine, InMemoryFilesystem())("1 + 1")
    wait_until(lambda: sum(map(has_been_confined, find_processes(is_worker))) > 0)


def has_been_confined(pid: int) -> bool:
    """Check an idle process; False if it was the one of the run, which has just ended."""
    file = Path(f"/proc/{pid}/status")
    try:
        wait_until(lambda: "Seccomp:\t2" in file.read_text())  # it may still start
        status = file.read_text()
        with suppress(PermissionError):  # which the kernel may keep from its own user
            assert Path(f"/proc/{pid}/environ").read_bytes().strip(b"\0") == b""
        assert os.getsid(pid) != os.getsid(0)
    except (FileNotFoundError, ProcessLookupError):
        return False
    assert "NoNewPrivs:\t1" in status
    assert "CapEff:\t0000000000000000" in status
    return True


@pytest.mark.parametrize("which", [is_worker, is_server])
def test_a_killed_process_is_replaced(engine: Engine, which: Callable[[int], bool]) -> None:
    run = Run(engine, InMemoryFilesystem())
    run("1 + 1")
    for each in find_processes(which):
        kill_and_wait(each)
    assert run("1 + 1").value_repr == "2"


@pytest.mark.parametrize("name", ENGINES)
def test_close_leaves_no_process_and_the_engine_can_be_used_again(name: str) -> None:
    before = evaluation_processes()
    engine = create_engine(name)
    run = Run(engine, InMemoryFilesystem())
    for _ in range(2):
        run("1 + 1")
        assert evaluation_processes() - before
        engine.close()
        engine.close()
        wait_until(lambda: not evaluation_processes() - before)


PARENT = """
import sys
import threading
from weakincentives.contrib.evaluation import *
from weakincentives.filesystem import InMemoryFilesystem
workspace = FilesystemWorkspace(InMemoryFilesystem())
engines = [create_engine(name) for name in ("python", "monty")]
for engine in engines:
    evaluator = Evaluator(engine, limits=EvalLimits(max_seconds=600))
    print(evaluator.run(EvalParams("1 + 1"), workspace).message, flush=True)
    if sys.argv[1] == "busy":
        call = (EvalParams("while True: pass"), workspace)
        threading.Thread(target=evaluator.run, args=call).start()
if sys.argv[1] == "waits":
    sys.stdin.read()
"""


@pytest.mark.parametrize("what", ["busy", "waits"])
def test_no_process_survives_a_killed_parent(what: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        assert [parent.stdout.readline() for _ in range(2)] == ["Value: 2\n"] * 2
        below = processes_below(parent.pid)
        assert len(below) >= 4
        parent.kill()
    wait_until(lambda: not set(process_tree.live_processes(below)))


def test_a_program_need_not_close_its_engines() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PARENT, "ends"], capture_output=True, text=True, check=True
    )
    assert (ended.stdout, ended.stderr) == ("Value: 2\n" * 2, "")


def test_a_program_that_cannot_be_imported_is_unavailable() -> None:
    engine = WorkerEngine("none", EngineLanguage(""), WorkerProgram("no_such_module"))
    with pytest.raises(EngineUnavailableError, match="did not start"):
        Run(engine, InMemoryFilesystem())("1")
    engine.close()


def test_a_worker_that_cannot_be_confined_runs_nothing() -> None:
    program = WorkerProgram("unconfined_program", (HOSTILE,))
    engine = WorkerEngine("unconfined", EngineLanguage(""), program)
    with pytest.raises(EngineUnavailableError, match=r"confine one: .*no filters here.* podman"):
        Run(engine, InMemoryFilesystem())("1")
    engine.close()


CHANGES = """
import os, resource, sys
from weakincentives.contrib.evaluation.worker.confinement import confine_worker
descriptor = os.open(sys.argv[1], os.O_RDONLY)
parent = os.getppid()
confine_worker(None)
for change in (
    lambda: os.utime(sys.argv[1]),
    lambda: os.utime(descriptor),
    lambda: os.fchmod(descriptor, 0o600),
    lambda: os.removexattr(sys.argv[1], "user.x"),
    lambda: resource.prlimit(parent, resource.RLIMIT_CORE),
):
    try:
        change()
        print("possible")
    except OSError as error:
        print(type(error).__name__, error.errno)
"""


def test_a_worker_changes_no_attributes_of_files_and_no_other_processes(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    done = subprocess.run(
        [sys.executable, "-c", CHANGES, str(file)], capture_output=True, text=True, check=True
    )
    *attributes, limits = done.stdout.splitlines()
    assert attributes == [f"OSError {errno.ENOSYS}"] * 4
    assert limits == f"PermissionError {errno.EPERM}"
