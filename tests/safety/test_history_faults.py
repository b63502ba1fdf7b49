"""A failed system call leaves the snapshot history in the old state or the new one."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.filesystem.trees_on_disk import state_of
from tests.posix.forks import is_killed_at
from tests.safety.history import OPERATIONS, Stage, check, check_store, hidden_names
from tests.safety.places import ROOT, mounted
from tests.safety.test_faults import CODES, nth_call_fails
from tests.sizes import size
from weakincentives.errors import SnapshotError, SnapshotRestoreError, WinkError
from weakincentives.filesystem import HostFilesystem
from weakincentives.posix import RESERVED_PREFIX

pytestmark = pytest.mark.filterwarnings("ignore:This process .*fork:DeprecationWarning")

CHOSEN = size(40, 10_000)


def numbers(count: int) -> list[int]:
    """Return which of so many calls fail: all of them, or some from the first to the last."""
    step = max(1.0, (count - 1) / CHOSEN)
    return sorted({round(number * step) for number in range(int((count - 1) / step) + 1)})


def calls_of(stage: Stage, operation: str) -> list[str]:
    called: list[str] = []
    with stage.opened() as fs, nth_call_fails(-1, errno.EIO, called):
        OPERATIONS[operation](fs, stage)
    check(stage, operation, finished=True)
    return called


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("code", CODES, ids=[errno.errorcode[code] for code in CODES])
def test_whichever_call_fails_the_old_or_the_new_is_there(
    light_directory: Path, operation: str, code: int
) -> None:
    stage = Stage(light_directory)
    calls = calls_of(stage, operation)
    texts: list[str] = []
    for nth in numbers(len(calls)):
        called: list[str] = []
        with stage.opened() as fs:
            try:
                with nth_call_fails(nth, code, called):
                    OPERATIONS[operation](fs, stage)
            except (WinkError, OSError) as error:
                texts.append(str(error))
        try:
            check(stage, operation, swept=False)
        except (AssertionError, WinkError, OSError) as error:
            raise AssertionError(f"call {nth}, {called[nth]}: {error!r}") from error
        sweep(stage)
    # a restore goes on without room in the store, so a full disk seldom stops it
    fewest = 1 if (operation, code) == ("restore", errno.ENOSPC) else 6
    assert len(texts) >= fewest
    assert [text for text in texts if not is_about_something(text)] == []
    check_store(stage, set())


def is_about_something(text: str) -> bool:
    """Return whether a message names a place, and none that nobody sees."""
    return "'" in text and RESERVED_PREFIX not in text and "/proc/" not in text


def sweep(stage: Stage) -> None:
    """Remove what could not be removed; whoever comes after the end of this process does it."""
    for name in hidden_names(stage.directory):
        assert is_temporary_of(os.getpid(), name)
        subprocess.run(["rm", "-rf", "--", name], check=True)


def is_temporary_of(pid: int, path: str) -> bool:
    return f"-{pid}-" in path.rpartition("/")[2]


@contextmanager
def read_only(stage: Stage, part: str) -> Iterator[None]:
    """Let a disk refuse to be written to for a while."""
    path = str(stage.directory / part)
    subprocess.run(["mount", "-o", "remount,ro", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", path], check=True)


@contextmanager
def on_a_disk_of_its_own(directory: Path, part: str) -> Iterator[Stage]:
    (directory / part).mkdir()
    with mounted(directory / part):
        yield Stage(directory)


@pytest.mark.root
@pytest.mark.parametrize(
    ("part", "refused"),
    [("workspace", ["restore", "import"]), ("store", ["snapshot", "restore", "import"])],
)
def test_a_disk_that_may_only_be_read(light_directory: Path, part: str, refused: list[str]) -> None:
    with on_a_disk_of_its_own(light_directory, part) as stage:
        for operation, work in OPERATIONS.items():
            with read_only(stage, part), stage.opened() as fs:
                if operation in refused:
                    with pytest.raises((SnapshotError, OSError), match="Read-only file system"):
                        work(fs, stage)
                else:
                    work(fs, stage)
                assert stage.state() == "two"
            check(stage, operation)
        check_store(stage, set())


@pytest.mark.root
def test_what_was_decided_waits_until_the_disk_may_be_written(light_directory: Path) -> None:
    with on_a_disk_of_its_own(light_directory, "workspace") as stage:
        with stage.opened() as fs:
            assert is_killed_at("change.created", lambda: fs.restore(stage.kept["one"]))
        half = state_of(stage.root)
        with read_only(stage, "workspace"):
            for _ in range(2):
                with pytest.raises(SnapshotRestoreError, match="cannot be finished"):
                    stage.opened()
            with HostFilesystem(stage.root, git_dir=stage.store, read_only=True) as fs:
                assert fs.read_bytes("same").content == b"same " * 500
        assert state_of(stage.root) == half
        assert check(stage, "restore", finished=True) == "one"


WITHOUT_PROGRAMS = """
import sys
from weakincentives.filesystem import HostFilesystem
fs = HostFilesystem(sys.argv[1], git_dir=sys.argv[2])
kept = fs.snapshot()
fs.write("new", "x")
fs.restore(kept)
fs.export_archive(sys.argv[2] + ".zip")
fs.import_archive(sys.argv[2] + ".zip")
fs.history.gc()
print(len(fs.history.list()), fs.exists("new"))
"""


def test_no_program_is_needed(light_directory: Path) -> None:
    (light_directory / "workspace").mkdir()
    places = [str(light_directory / name) for name in ("workspace", "store")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PROGRAMS, *places],
        cwd=ROOT,
        env={"PATH": "/nonexistent", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "4 False\n"
