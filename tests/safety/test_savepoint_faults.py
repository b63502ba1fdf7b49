"""Disk faults and interrupts in a savepoint leave the old state or the new one."""

import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.safety import test_faults
from tests.safety.savepoints import WORKS, Expected, Stage, check_works, laid_out
from tests.safety.test_faults import nth_call_fails
from tests.sizes import size
from weakincentives.errors import WinkError
from weakincentives.filesystem import HostFilesystem, host
from weakincentives.history import slots
from weakincentives.posix import fault_hook

JOURNALS = (Path(host.__file__).parent / "journal").glob("*.py")
NAMED = {
    name
    for path in JOURNALS
    for name in re.findall(r'\bfault_point\("(journal\.\w+)"', path.read_text())
}
FAULTS: dict[str, BaseException] = {
    "full": OSError(errno.ENOSPC, "No space left on device"),
    "broken": OSError(errno.EIO, "Input/output error"),
    "interrupt": KeyboardInterrupt(),
}


@pytest.fixture(autouse=True)
def _no_power_is_lost(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return iter([None])


def failing_at(index: int, fault: BaseException) -> Callable[[str], None]:
    reached = 0

    def hook(_: str) -> None:
        nonlocal reached
        reached += 1
        if reached == index + 1:
            raise fault

    return hook


def attempt(stage: Stage, name: str, fs: HostFilesystem) -> bool:
    """Do the work; return whether it raised."""
    try:
        WORKS[name](fs, stage)
    except (OSError, WinkError, KeyboardInterrupt):
        return True
    return False


def check_afterwards(fs: HostFilesystem, stage: Stage, expected: Expected) -> str:
    """Check what is there once somebody changes something else."""
    fs.mkdir("probe")
    with fs.savepoint():
        fs.write("probe/one", "")
        fs.write("probe/two", "")
    assert [entry.name for entry in fs.list("probe")] == ["one", "two"]
    fs.delete("probe", recursive=True)
    return expected.check(stage.root)


def test_the_work_passes_every_named_point(light_directory: Path) -> None:
    passed: set[str] = set()
    for name in WORKS:
        passed.update(Expected.found(light_directory / "stage", name).points)
    assert {point for point in passed if point.startswith("journal.")} == NAMED
    assert len(NAMED) >= 8


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("name", WORKS)
def test_a_fault_at_any_point_leaves_before_or_after(
    light_directory: Path, name: str, fault: BaseException
) -> None:
    expected = Expected.found(light_directory / "stage", name)
    raised = 0
    step = size(len(FAULTS), 1)  # in the short run each point has one of the faults
    first = list(FAULTS.values()).index(fault) % step
    for index in range(first, len(expected.points), step):
        stage = laid_out(light_directory / "stage", name)
        with stage.opened() as fs:
            with fault_hook(failing_at(index, fault)):
                failed = attempt(stage, name, fs)
            outcome = check_afterwards(fs, stage, expected)
            if failed and isinstance(fault, OSError):
                assert outcome == "before", expected.points[index]
            raised += failed
        check_works(stage)
    assert raised > 0


@pytest.mark.parametrize("durable", [False, True], ids=["", "durable"])
@pytest.mark.parametrize("name", ["changes", "nested", "taken back"])
def test_whichever_system_call_fails_all_or_nothing_has_happened(
    light_directory: Path, name: str, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_faults, "CALLS", [*test_faults.CALLS, "pwrite", "ftruncate"])
    expected = Expected.found(light_directory / "stage", name)
    step, raised = size(3, 1), 0
    nth = int(durable) % step
    called, outcome = list[str](), ""
    while nth < step or len(called) > nth - step:
        stage = laid_out(light_directory / "stage", name)
        called.clear()
        with HostFilesystem(stage.root, durable=durable) as fs:
            with nth_call_fails(nth, errno.EIO, called):
                raised += attempt(stage, name, fs)
            outcome = check_afterwards(fs, stage, expected)
        nth += step
    assert outcome == "after" or name == "taken back"
    assert nth > 60
    assert raised > 20 // step


@pytest.mark.parametrize("name", ["changes", "nested", "taken back"])
def test_a_fault_leaves_before_or_after_where_names_cannot_be_exchanged(
    light_directory: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(slots, "exchange", refuse)
    expected = Expected.found(light_directory / "stage", name)
    assert "slot.out" in expected.points
    for index in range(0, len(expected.points), size(3, 1)):
        stage = laid_out(light_directory / "stage", name)
        with stage.opened() as fs:
            with fault_hook(failing_at(index, FAULTS["full"])):
                attempt(stage, name, fs)
            check_afterwards(fs, stage, expected)
        check_works(stage)
