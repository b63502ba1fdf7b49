"""W13, W13b: a warm `true` in every sandbox, beside plain processes, `bwrap` and `podman exec`."""

import os
import subprocess
from collections.abc import Callable, Iterator

from benchmarks.goals import faster_than, not_slower_than_peers, within_limit
from benchmarks.harness import Absent, Case, Contender, Goal, Role, Workload, expect
from benchmarks.stage import Stage
from weakincentives.sandbox import (
    BubblewrapSandbox,
    ExecResult,
    LandlockSandbox,
    LocalSandbox,
    PodmanSandbox,
    Sandbox,
    SandboxUnavailableError,
)

TRUE = "/bin/true"
BY_HAND = "bwrap by hand"


def cases(stage: Stage) -> Iterator[Case]:
    """One command after the other, in sandboxes that have run one before."""
    root = str(stage.scratch())
    by_hand, absent = _bwrap_by_hand(stage, root)
    close_to_bwrap = (not_slower_than_peers(1.3),)
    plain = _process("subprocess", "limit", lambda: subprocess.run([TRUE]).returncode)
    for kind, goals in ((LocalSandbox, ()), (BubblewrapSandbox, close_to_bwrap)):
        yield _case(stage, kind, root, (plain, *by_hand), goals, absent)
    yield _case(stage, LandlockSandbox, root, (plain, *by_hand), close_to_bwrap, absent)
    yield _podman_case(stage, root)


def _case(
    stage: Stage,
    kind: Callable[[str], Sandbox],
    root: str,
    others: tuple[Contender, ...],
    goals: tuple[Goal, ...],
    absent: tuple[Absent, ...],
) -> Case:
    name = f"true in {getattr(kind, '__name__', 'a sandbox')}"
    try:
        sandbox = stage.keep(kind(root))
        sandbox.exec([TRUE])
    except SandboxUnavailableError as error:
        return Case(name, others, absent=(*absent, Absent("ours", str(error))))
    return Case(name, (_ours(sandbox), *others), goals, absent)


def _podman_case(stage: Stage, root: str) -> Case:
    """The limit is what a process costs without Python's `subprocess` around it."""
    name = "true in PodmanSandbox"
    limit = _process("fork and exec", "limit", _fork_and_execute)
    try:
        sandbox = stage.keep(PodmanSandbox(root))
        sandbox.exec([TRUE])
    except SandboxUnavailableError as error:
        return Case(name, (limit,), absent=(Absent("ours", str(error)),))
    command = ["podman", "exec", str(sandbox.container_name), TRUE]
    peer = _process("podman exec", "peer", lambda: subprocess.run(command).returncode)
    goals = (within_limit(1.5), faster_than("podman exec", 100))
    # a fork of this process, which is large, may cost more than the runner's
    return Case(name, (_ours(sandbox), limit, peer), goals, beatable=True)


def _ours(sandbox: Sandbox) -> Contender:
    def check(answer: object) -> None:
        assert isinstance(answer, ExecResult)
        expect(answer.exit_code, 0, "exit code")

    name = f"ours ({type(sandbox).__name__})"
    return Contender(name, "ours", lambda: sandbox.exec([TRUE]), check, repeat=0)


def _process(name: str, role: Role, run: Callable[[], int]) -> Contender:
    return Contender(name, role, run, lambda code: expect(code, 0, "exit code"), repeat=0)


def _fork_and_execute() -> int:
    pid = os.fork()
    if pid == 0:
        os.execv(TRUE, [TRUE])
    return os.waitpid(pid, 0)[1]


def _bwrap_by_hand(stage: Stage, root: str) -> tuple[tuple[Contender, ...], tuple[Absent, ...]]:
    """The command line of our sandbox, with the same mounts, namespaces and filter."""
    try:
        sandbox = stage.keep(BubblewrapSandbox(root))
    except SandboxUnavailableError as error:
        return (), (Absent(BY_HAND, str(error)),)
    words = sandbox._arguments(".", None, shares_network=False)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # what a person would have to write
    words = [*words[: words.index("--")], "--", TRUE]
    program = sandbox._filter  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # as above
    # the options whose value is a descriptor, and what bubblewrap reads there
    files = {
        number + 1: program if word == "--seccomp" else b""
        for number, word in enumerate(words)
        if word in {"--seccomp", "--ro-bind-data", "--args"}
    }

    def run() -> int:
        command = list(words)
        for number, data in files.items():
            descriptor = os.memfd_create("data", 0)
            os.write(descriptor, data)
            os.lseek(descriptor, 0, os.SEEK_SET)
            command[number] = str(descriptor)
        opened = [int(command[number]) for number in files]
        try:
            return subprocess.run(command, pass_fds=opened).returncode
        finally:
            for descriptor in opened:
                os.close(descriptor)

    return (_process(BY_HAND, "peer", run),), ()


WORKLOAD = Workload("W13", "warm command in a sandbox", cases)
