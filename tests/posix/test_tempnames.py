"""Temporary names show whether their process is alive."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from weakincentives.posix import paths
from weakincentives.posix.paths import (
    RESERVED_PREFIX,
    is_leftover,
    is_temporary,
    temporary_name,
)

YEAR = 365 * 86_400.0
NAMING = "from weakincentives.posix import paths as l; print(l.temporary_name(), flush=True)"


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Leave nothing of a test to the next one, of this file or of another."""
    for forgotten in (paths._namespace, paths._own_prefix):
        forgotten.cache_clear()
    yield
    for forgotten in (paths._namespace, paths._own_prefix):
        forgotten.cache_clear()


def named(pid: object, start: object, namespace: str | None = None) -> str:
    namespace = paths._namespace() if namespace is None else namespace
    return f"{RESERVED_PREFIX}{namespace}-{pid}-{start}-0"


def started(pid: int) -> str:
    """Return the start time of a living process, as names hold it."""
    identity = paths._identity(pid)
    assert identity
    return identity.partition("-")[2]


def test_names_are_ours_different_and_short() -> None:
    names = {temporary_name() for _ in range(1_000)}
    assert len(names) == 1_000
    assert all(is_temporary(name) and len(name) < 80 for name in names)
    assert not any(re.search(r"[^\w.-]", name) for name in names)


def test_other_names_are_not_ours() -> None:
    for name in ("f", "wink-tmp-1", ".wink", ".wink-tm", "x.wink-tmp-1", ".WINK-TMP-1"):
        assert not is_temporary(name)


def test_what_a_living_process_made_is_no_leftover_however_old() -> None:
    assert not is_leftover(temporary_name(), 0)
    assert not is_leftover(temporary_name(), YEAR)
    assert not is_leftover(temporary_name(), -YEAR)


def test_what_a_dead_process_made_is_a_leftover_however_young() -> None:
    script = "from weakincentives.posix.paths import temporary_name as n; print(n())"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert is_leftover(done.stdout.strip(), 0)
    assert is_leftover(done.stdout.strip(), -YEAR)


def test_a_zombie_writes_no_more() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", f"{NAMING}; input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        name = child.stdout.readline().strip()
        assert not is_leftover(name, 0)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_leftover(name, 0)


def test_a_number_that_was_given_to_another_process_is_told_apart() -> None:
    start = started(os.getpid())
    assert not is_leftover(named(os.getpid(), start), 0)
    assert is_leftover(named(os.getpid(), int(start) + 1), 0)


def test_names_from_another_container_are_kept_for_an_hour() -> None:
    name = named(os.getpid(), 1, namespace="abc")
    assert not is_leftover(name, 60)
    assert not is_leftover(name, -YEAR)
    assert is_leftover(name, 3_601)


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "x",
        "1",
        "a-b-c-d",
        "a-1-c",
        "a-1-c-d-e",
        "-1-2-3-4",
        "²-²-²-²",
        "a-\uff11-c-d",
        "a--1-c",
    ],
)
def test_names_that_we_never_give_are_nobodys_leftovers(rest: str) -> None:
    assert not is_leftover(RESERVED_PREFIX + rest, YEAR)


@pytest.mark.parametrize("pid", ["²", "\uff11", "٣", "-1", "1e5", ""])
def test_what_is_no_number_was_not_made_by_us(pid: str) -> None:
    assert not is_leftover(named(pid, 1), YEAR)
    assert not is_leftover(named(1, "\udcff"), YEAR)


@pytest.mark.parametrize("pid", ["0", "00", "9" * 200, str(2**63)])
def test_hostile_numbers_break_nothing(pid: str) -> None:
    assert is_leftover(named(pid, 1), YEAR)


def test_a_kernel_process_is_not_taken_for_the_maker() -> None:
    assert is_leftover(named(1, 1), 0)
    assert is_leftover(named("0001", started(1)), 0)


class NoProc(type(Path())):
    """Paths on a system that has no /proc."""

    def _gone(self) -> None:
        if str(self).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", str(self))

    def read_bytes(self) -> bytes:
        self._gone()
        return super().read_bytes()

    def exists(self, **options: bool) -> bool:
        return not str(self).startswith("/proc") and super().exists(**options)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        self._gone()
        return super().stat(follow_symlinks=follow_symlinks)


def test_without_proc_a_process_that_can_be_signalled_is_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paths, "Path", NoProc)
    assert paths._namespace() == "0"
    assert not is_leftover(temporary_name(), 60)
    assert is_leftover(temporary_name(), YEAR)  # the number may have been given to another
    with subprocess.Popen(["true"]) as child:
        child.wait()
    assert is_leftover(named(child.pid, 0), 0)
    assert is_leftover(named("9" * 30, 0), YEAR)


def test_without_proc_a_process_of_another_user_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(paths, "Path", NoProc)
    monkeypatch.setattr(os, "kill", refused)
    assert not is_leftover(named(1, 0), 60)


HIDDEN = """
import os, sys
from weakincentives.posix.paths import is_leftover
os.setgid(65534)
os.setuid(65534)
print(os.path.exists(f"/proc/{os.getppid()}"), is_leftover(sys.argv[1], 0.0))
"""


def test_a_process_that_proc_hides_is_alive() -> None:
    command = f'mount -t proc -o hidepid=2 proc /proc && "{sys.executable}" -c "$0" "$1"; true'
    try:
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", command, HIDDEN, temporary_name()],
            check=False,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return  # no such program, so nobody hides processes here
    assert done.stdout in {"", "False False\n"}  # empty where we may not mount
