"""A failed system call or a kill at any step leaves the old state or the new one.

Every named fault point is walked with kill, a full disk and a broken disk; then every
system call that changes something is made to fail in turn.
"""

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

import weakincentives
from tests.safety.changes import CHANGES, Change, prepare
from tests.safety.places import ROOT, temporary_names, visible
from weakincentives.filesystem import HostFilesystem
from weakincentives.posix import atomic, fault_hook

SOURCES = Path(weakincentives.__file__).parent.rglob("*.py")
NAMED = {
    name
    for path in SOURCES
    for name in re.findall(r'\bfault_point\("((?:store|remove)\.\w+)"\)', path.read_text())
}
CODES = [errno.ENOSPC, errno.EIO]
CALLS = ["open", "write", "copy_file_range", "fchmod", "fsync", "rename", "mkdir", "symlink"]
CALLS += ["unlink", "rmdir", "link", "pread", "read", "scandir"]

State: TypeAlias = dict[str, bytes | str | None]


class Root:
    """Workspaces in the same state, one after the other."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._number = 0

    def fresh(self) -> Path:
        self._number += 1
        root = self._base / str(self._number)
        root.mkdir()
        prepare(root)
        return root


def states(roots: Root, change: Change) -> list[State]:
    """Return what is visible before and after the change."""
    with HostFilesystem(roots.fresh()) as fs:
        before = visible(fs)
        change(fs)
        return [before, visible(fs)]


def points_of(roots: Root, change: Change) -> list[str]:
    points: list[str] = []
    with HostFilesystem(roots.fresh()) as fs, fault_hook(points.append):
        change(fs)
    return points


def failing_at(index: int, code: int) -> Callable[[str], None]:
    reached = 0

    def hook(_: str) -> None:
        nonlocal reached
        reached += 1
        if reached == index + 1:
            raise OSError(code, os.strerror(code))

    return hook


def is_one_of(state: State, expected: list[State]) -> bool:
    """Return whether `state` is expected; prints the names of one that is not."""
    if state in expected:
        return True
    print(f"Found {sorted(state)}, expected one of {[sorted(one) for one in expected]}")
    return False


def check_whole(root: Path, expected: list[State], fs: HostFilesystem | None = None) -> None:
    """Check that the change happened or did not, and that nothing is left or blocked."""
    if fs is not None:
        assert is_one_of(visible(fs), expected)
        fs.write("next", "works")
        fs.delete("next")
    with HostFilesystem(root) as later:
        assert is_one_of(visible(later), expected)
        later.write("next", "works")
        assert later.read("next").content == "works"


def test_the_changes_pass_every_named_point(light_directory: Path) -> None:
    roots = Root(light_directory)
    passed = {point for change in CHANGES.values() for point in points_of(roots, change)}
    assert {point for point in passed if not point.startswith("journal.")} == NAMED
    assert len(NAMED) >= 5


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("code", CODES, ids=[errno.errorcode[code] for code in CODES])
def test_a_fault_at_any_named_point_leaves_old_or_new(
    light_directory: Path, change: Change, code: int
) -> None:
    roots = Root(light_directory)
    expected = states(roots, change)
    for index in range(len(points_of(roots, change))):
        root = roots.fresh()
        with HostFilesystem(root) as fs:
            try:
                with fault_hook(failing_at(index, code)):
                    change(fs)
            except OSError as error:
                assert error.errno == code
            check_whole(root, expected, fs)
        assert temporary_names(root) == []


def test_a_kill_at_any_named_point_leaves_old_or_new(light_directory: Path) -> None:
    roots = Root(light_directory)
    for name, change in CHANGES.items():
        expected = states(roots, change)
        points = points_of(roots, change)
        bases = [roots.fresh() for _ in points]
        killed = kill_at_points(name, bases)
        assert killed == len(points), name
        for root in bases:
            check_whole(root, expected)
            assert temporary_names(root) == [], name


def kill_at_points(change: str, roots: list[Path]) -> int:
    """Make a change in each of the workspaces, killed at the point of the same number."""
    if not roots:
        return 0
    command = [sys.executable, "-m", "tests.safety.kill_at_points", change, *map(str, roots)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


@contextmanager
def nth_call_fails(nth: int, code: int, called: list[str]) -> Iterator[None]:
    """Make the nth of all calls to functions of `os` fail; `called` gets their names."""

    def fails(name: str) -> bool:
        called.append(name)
        return len(called) == nth + 1

    def failing(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            if fails(name):
                raise OSError(code, os.strerror(code))
            return function(*arguments, **options)

        return call

    def failing_rename(*arguments: object) -> int:
        return code if fails("renameat2") else renameat2(*arguments)

    renameat2: Callable[..., int] = atomic._renameat2
    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, failing(name, getattr(os, name)))
        patch.setattr(atomic, "_renameat2", failing_rename)
        yield


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("durable", [False, True], ids=["", "durable"])
@pytest.mark.parametrize("code", CODES, ids=[errno.errorcode[code] for code in CODES])
def test_whichever_system_call_fails_the_old_or_the_new_is_there(
    light_directory: Path, change: Change, durable: bool, code: int
) -> None:
    roots = Root(light_directory)
    expected = states(roots, change)
    raised = nth = 0
    while True:
        root = roots.fresh()
        called: list[str] = []
        with HostFilesystem(root, durable=durable) as fs:
            try:
                with nth_call_fails(nth, code, called):
                    change(fs)
            except OSError as error:
                raised += 1
                assert error.errno == code, called[nth]
            if len(called) <= nth:
                break
            check_whole(root, expected, fs)
        nth += 1
    assert nth > 0
    assert raised > 0


def test_a_file_that_may_not_be_read_or_written_gives_a_clear_error(light_directory: Path) -> None:
    root = Root(light_directory).fresh()
    (root / "t").chmod(0o555)
    (root / "f").chmod(0)
    command = [sys.executable, "-c", UNPRIVILEGED, str(root)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == {
        "read": "PermissionError",
        "append": "PermissionError",
        "create": "PermissionError",
        "delete": "PermissionError",
        "delete tree": "PermissionError",
        "grep": "[]",
        "state": "True",
    }


UNPRIVILEGED = """
import json, os, sys
if os.geteuid() == 0:
    os.chown(sys.argv[1], 65534, 65534)
    for path in ("f", "t"):
        os.chown(os.path.join(sys.argv[1], path), 65534, 65534)
    for directory in ("t/deep",):
        os.chown(os.path.join(sys.argv[1], directory), 0, 0)
        os.chmod(os.path.join(sys.argv[1], directory), 0o555)
from weakincentives.filesystem import HostFilesystem
os.chmod(os.path.dirname(sys.argv[1]), 0o755)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
fs = HostFilesystem(sys.argv[1])
before = [entry.path for entry in fs.list("t")]
def tried(operation):
    try:
        return str([match.path for match in operation() or () if match.path == "f"])
    except Exception as error:
        return type(error).__name__
print(json.dumps({
    "read": tried(lambda: fs.read("f")),
    "append": tried(lambda: fs.write("f", "x", mode="append")),
    "create": tried(lambda: fs.write("t/new", "x")),
    "delete": tried(lambda: fs.delete("t/a")),
    "delete tree": tried(lambda: fs.delete("t/deep", recursive=True)),
    "grep": tried(lambda: fs.grep(".")),
    "state": str([entry.path for entry in fs.list("t")] == before),
}))
"""


def test_the_shim_really_fails_each_kind_of_call(light_directory: Path) -> None:
    seen: list[str] = []
    roots = Root(light_directory)
    for change in CHANGES.values():
        with (
            HostFilesystem(roots.fresh(), durable=True) as fs,
            nth_call_fails(-1, errno.EIO, seen),
        ):
            change(fs)
    assert set(seen) >= {
        "open",
        "write",
        "fsync",
        "rename",
        "renameat2",
        "mkdir",
        "unlink",
        "rmdir",
    }
