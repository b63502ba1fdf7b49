"""Control groups: found in v1, v2 and hybrid hierarchies, and never left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weakincentives.sandbox import BubblewrapSandbox, cgroup
from weakincentives.sandbox.cgroup import ControlGroups, SandboxLimits, find_hierarchies

LIMITS = SandboxLimits(memory=2**28, processes=32).groups()


def mount(kind: str, point: str, options: str) -> str:
    return f"30 24 0:26 / {point} rw,relatime - {kind} {kind} rw,{options}\n"


def make_host(root: Path, groups: str, mounts: str) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mountinfo").write_text(mounts)


def make_v2(root: Path, path: str, controllers: str) -> Path:
    directory = root / "sys/fs/cgroup" / path.lstrip("/")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cgroup.subtree_control").write_text(controllers)
    return directory


def test_v2_groups_go_beside_a_group_that_has_processes(tmp_path: Path) -> None:
    make_host(tmp_path, "0::/user/me.scope\n", mount("cgroup2", "/sys/fs/cgroup", "nsdelegate"))
    make_v2(tmp_path, "user", "memory pids\n")
    make_v2(tmp_path, "user/me.scope", "")
    found = list(find_hierarchies(tmp_path))
    assert [each.controllers for each in found] == [frozenset(), {"memory", "pids"}]
    assert found[1].directory == tmp_path / "sys/fs/cgroup/user"


def test_v1_hierarchies_have_the_controllers_of_their_mount(tmp_path: Path) -> None:
    groups = "5:memory:/a\n4:cpu,cpuacct:/\n3:pids:/\n1:name=systemd:/\n0::/\n"
    mounts = "".join(
        mount("cgroup", f"/sys/fs/cgroup/{each}", each) for each in ("memory", "cpu,cpuacct")
    )
    make_host(tmp_path, groups, mounts)
    found = {str(each.directory.relative_to(tmp_path)): each for each in find_hierarchies(tmp_path)}
    assert set(found) == {"sys/fs/cgroup/memory/a", "sys/fs/cgroup/cpu,cpuacct"}
    assert found["sys/fs/cgroup/memory/a"].version == 1


def test_a_host_without_control_groups_limits_nothing(tmp_path: Path) -> None:
    groups = ControlGroups(LIMITS, tmp_path)
    assert groups.controllers == frozenset()
    assert groups.open() == ()
    groups.remove()


def test_a_hierarchy_that_lacks_the_files_is_left_as_it_was(tmp_path: Path) -> None:
    make_host(tmp_path, "3:pids:/\n", mount("cgroup", "/sys/fs/cgroup/pids", "pids"))
    directory = tmp_path / "sys/fs/cgroup/pids"
    directory.mkdir(parents=True)
    directory.chmod(0o500)
    groups = ControlGroups({"memory": 2**20}, tmp_path)
    assert groups.controllers == frozenset()
    assert list(directory.iterdir()) == []


def has_groups() -> bool:
    groups = ControlGroups(LIMITS)
    groups.remove()
    return bool(groups.controllers)


real = pytest.mark.skipif(not has_groups(), reason="this host gives us no control group")


JOIN = """
import os, sys
os.write(int(sys.argv[1]), b"0")
print(open("/proc/self/cgroup").read(), flush=True)
sys.stdin.read()
"""


def join(descriptor: int) -> subprocess.Popen[str]:
    """Start a process that joins a group, prints its groups and stays until its input ends."""
    return subprocess.Popen(
        [sys.executable, "-c", JOIN, str(descriptor)],
        pass_fds=[descriptor],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def groups_of_this_process() -> set[Path]:
    hierarchies = {each.directory for each in find_hierarchies()}
    return {group for each in hierarchies for group in each.glob(f"wink-{os.getpid()}-*")}


@real
def test_a_group_counts_who_joins_and_goes_away() -> None:
    before = groups_of_this_process()
    groups = ControlGroups({"pids": 8})
    (created,) = groups_of_this_process() - before
    (descriptor,) = groups.open()
    with join(descriptor) as process:
        assert created.name in process.communicate()[0]
    os.close(descriptor)
    groups.remove()
    groups.remove()
    remove_when_empty(created)


def remove_when_empty(group: Path) -> None:
    """Create sandboxes until one has removed the group; the test's time limit ends the wait."""
    while group.exists():
        ControlGroups({"pids": 8}).remove()


@real
def test_a_group_that_is_still_busy_is_removed_by_the_next() -> None:
    before = groups_of_this_process()
    groups = ControlGroups({"pids": 8})
    (created,) = groups_of_this_process() - before
    (descriptor,) = groups.open()
    with join(descriptor) as process:
        assert process.stdout is not None
        process.stdout.readline()
        groups.remove()
        assert created.exists()
    os.close(descriptor)
    remove_when_empty(created)


@real
def test_groups_of_killed_processes_are_removed_by_the_next() -> None:
    program = (
        "import os; from weakincentives.sandbox.cgroup import ControlGroups;"
        "ControlGroups({'pids': 8}); print(os.getpid(), flush=True); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    mark = f"wink-{done.stdout.strip()}-*"
    hierarchies = [each.directory for each in find_hierarchies() if "pids" in each.controllers]
    assert any(list(each.glob(mark)) for each in hierarchies)
    ControlGroups({"pids": 8}).remove()
    assert not any(list(each.glob(mark)) for each in hierarchies)


def test_shared_memory_is_limited_without_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "find_hierarchies", lambda root: iter(()))
    limits = SandboxLimits(memory=64 * 1024**2)
    fill = "exec 2>&1; head -c 80M /dev/zero >/dev/shm/file; stat -c %s /dev/shm/file; touch /dev/x"
    with BubblewrapSandbox(tmp_path, limits=limits) as sandbox:
        assert not sandbox.limited
        full, size, elsewhere = sandbox.exec(["sh", "-c", fill]).stdout.splitlines()
    assert "No space left" in full
    assert int(size) <= limits.memory
    assert "Read-only file system" in elsewhere
