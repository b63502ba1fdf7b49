"""W13, W13b: a warm `true` in every sandbox, beside plain processes, `bwrap` and `podman exec`."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

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
from weakincentives.sandbox.bubblewrap import find_bubblewrap
from weakincentives.sandbox.seccomp import NETWORK_FAMILIES, RULES, build_filter, socket_rules

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
    """What a person would write who wants the same promises, without our limits and clean-up."""
    program = find_bubblewrap()
    if program is None:
        return (), (Absent(BY_HAND, "bubblewrap is not installed"),)
    links = [("--symlink", each.readlink(), each) for each in LINKED if each.is_symlink()]
    system = [str(word) for words in (("--ro-bind", "/usr", "/usr"), *links) for word in words]
    workspace = ["--bind", root, "/workspace", "--chdir", "/workspace"]
    minimal = [program, "--unshare-all", *system, "--proc", "/proc", "--dev", "/dev", *workspace]
    etc = [word for each in ETC for word in ("--ro-bind-try", f"/etc/{each}", f"/etc/{each}")]
    settings = [word for each in SETTINGS for word in ("--ro-bind-try", each, each)]
    strict = [program, *NAMESPACES, *PRIVILEGES, *VARIABLES, *system, *etc, "--proc", "/proc"]
    strict += [*settings, "--dev", "/dev", "--tmpfs", "/tmp", *workspace, "--remount-ro", "/"]
    code = build_filter((*RULES, *socket_rules(NETWORK_FAMILIES)))
    filters = stage.scratch() / "filter"
    filters.write_bytes(code)

    def run() -> int:
        with filters.open("rb") as file:
            number = str(file.fileno())
            command = [*strict, "--seccomp", number, "--", TRUE]
            return subprocess.run(command, pass_fds=[file.fileno()]).returncode

    least = _process(
        "minimal bwrap", "limit", lambda: subprocess.run([*minimal, "--", TRUE]).returncode
    )
    return (_process(BY_HAND, "peer", run), least), ()


NAMESPACES = ("--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000")
PRIVILEGES = ("--disable-userns", "--cap-drop", "ALL", "--die-with-parent", "--new-session")
VARIABLES = ("--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", "/tmp")
LINKED = tuple(map(Path, ("/bin", "/sbin", "/lib", "/lib64")))
ETC = ("alternatives", "group", "hosts", "ld.so.cache", "localtime", "nsswitch.conf", "passwd")
ETC += ("ssl/certs",)
SETTINGS = ("/proc/fs", "/proc/sys")  # a person who is root has to think of them

WORKLOAD = Workload("W13", "warm command in a sandbox", cases)
