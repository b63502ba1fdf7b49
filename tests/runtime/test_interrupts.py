"""Interrupts: a Ctrl-C during a commit or rollback is delivered when that is complete.

At any line of our code, it leaves the old state or the new one, and no lock that others wait for.
"""

import dis
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import CodeType, FrameType
from typing import Any

import pytest

import weakincentives
from tests.sizes import size
from weakincentives.filesystem import (
    BaseFilesystem,
    FilesystemSnapshot,
    HostFilesystem,
    InMemoryFilesystem,
    TransactionalFilesystem,
)
from weakincentives.posix import defer_interrupts, fault_hook
from weakincentives.runtime.session import Session, append_all
from weakincentives.runtime.transactions import transaction

GUARD = 60
"""Seconds that only a thread takes that waits forever."""


@dataclass(frozen=True)
class Note:
    text: str


def press() -> None:
    """Press Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_waits_for_the_end_of_the_block():
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), defer_interrupts():
        press()
        done.append("all of it")
    assert done == ["all of it"]


def test_it_is_not_lost_if_the_block_fails():
    with pytest.raises(KeyboardInterrupt) as caught, defer_interrupts():
        press()
        raise OSError("the disk failed")
    assert isinstance(caught.value.__context__, OSError)


def test_the_handler_that_was_there_is_the_one_that_is_told():
    told: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: told.append(number))
    try:
        with defer_interrupts(), defer_interrupts():
            press()
            assert told == []
        assert told == [signal.SIGINT]
        press()
        assert len(told) == 2
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_other_threads_it_does_nothing():
    before, seen = signal.getsignal(signal.SIGINT), list[object]()

    def look() -> None:
        with defer_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    other = Thread(target=look)
    other.start()
    other.join()
    assert seen == [before]


# --- transactions ---


@pytest.fixture(params=["memory", "host"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseFilesystem]:
    if request.param == "memory":
        yield InMemoryFilesystem()
        return
    (tmp_path / "root").mkdir()
    with HostFilesystem(tmp_path / "root", git_dir=tmp_path / "store") as host:
        yield host


def state(fs: BaseFilesystem, session: Session) -> tuple[list[tuple[str, str]], tuple[Note, ...]]:
    return [(each.path, fs.read(each.path).content) for each in fs.glob("**")], session[Note].all()


def work(fs: BaseFilesystem, session: Session) -> None:
    fs.write("a", "new")
    fs.write("b/c", "new")
    session[Note].append(Note("new"))


def test_a_second_interrupt_does_not_stop_the_rollback(tmp_path: Path):
    (tmp_path / "root").mkdir()
    with HostFilesystem(tmp_path / "root", git_dir=tmp_path / "store") as host:
        session = Session()
        host.write("a", "old")
        before = state(host, session)
        undone: list[str] = []

        def hook(point: str) -> None:
            if point == "journal.undone":
                undone.append(point)
                press()

        with fault_hook(hook), pytest.raises(KeyboardInterrupt), transaction(session, host):
            work(host, session)
            press()
        assert len(undone) > 1
        assert state(host, session) == before


def test_an_interrupt_while_the_session_is_told_keeps_everything(fs: BaseFilesystem):
    session = Session()
    told: list[str] = []

    def listen(event: object) -> None:
        told.append(str(event))
        press()

    session[Note].register(Note, append_all)
    session.bus.subscribe(object, listen)
    with pytest.raises(KeyboardInterrupt), transaction(session, fs):
        work(fs, session)
    assert told == ["a created", "b/ created", "b/c created"]
    assert state(fs, session) == ([("a", "new"), ("b/c", "new")], (Note("new"),))


class Interrupted(InMemoryFilesystem):
    """Ctrl-C is pressed while a snapshot is taken."""

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        press()
        return super().snapshot(tag=tag)


def test_an_interrupt_at_the_beginning_leaves_nothing_open():
    fs, session = Interrupted(), Session()
    with pytest.raises(KeyboardInterrupt), transaction(session, fs, bypasses_filesystem=True):
        pytest.fail("it must not begin")
    other = Thread(target=fs.write, args=("a", "goes on"))
    other.start()
    other.join(GUARD)
    assert fs.read("a").content == "goes on"


# --- at every line ---


STEP = size(6, 1)
"""At which lines: all, or some, which differ from test to test."""
PACKAGE = str(Path(weakincentives.__file__).parent)
OLD, NEW = ([("a", "old")], ()), ([("a", "new"), ("b/c", "new")], (Note("new"),))
_exits: dict[CodeType, set[int]] = {}


def leaves_a_block(code: CodeType, offset: int) -> bool:
    """Return whether a `with` block is left here: Python handles no signal before it is."""
    found = _exits.get(code)
    if found is None:
        steps = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
        calls = [(each.opname, each.argval) for each in steps]
        starts = [
            at for at in range(len(steps)) if calls[at : at + 3] == [("LOAD_CONST", None)] * 3
        ]
        # if the block returns, what it returns is moved below the call first
        starts += [at - 1 for at in starts if steps[at - 1].opname == "SWAP"]
        found = _exits[code] = {steps[at].offset for at in starts}
    return offset in found


def interrupt_at(number: int, work: Callable[[], object]) -> bool:
    """Press Ctrl-C at a line of our code; return whether `work` came that far."""
    left = [number]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or code.co_name == "__del__":
            return None  # Python itself drops what a finalizer raises
        if event == "line" and not leaves_a_block(code, frame.f_lasti):
            left[0] -= 1
            if not left[0]:
                press()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(KeyboardInterrupt):
            work()
    finally:
        sys.settrace(before)
    return left[0] <= 0


class FailedError(Exception):
    """What a block that is to be rolled back ends with."""


def save(fs: TransactionalFilesystem, session: Session, *, fails: bool) -> None:
    with suppress(FailedError), fs.savepoint():
        fs.write("a", "new")
        fs.write("b/c", "new")
        if fails:
            raise FailedError


def transact(fs: BaseFilesystem, session: Session, *, fails: bool) -> None:
    with suppress(FailedError), transaction(session, fs):
        work(fs, session)
        if fails:
            raise FailedError


def is_free(fs: BaseFilesystem, session: Session) -> bool:
    """Return whether a call in another thread, then one here, need not wait."""

    def call() -> None:
        with transaction(session, fs):
            fs.write("a", "next")
            session[Note].append(Note("next"))

    other = Thread(target=call, daemon=True)
    other.start()
    other.join(GUARD)
    if other.is_alive() or fs.read("a").content != "next":
        return False
    fs.write("a", "here")
    other = Thread(target=fs.write, args=("a", "old"), daemon=True)
    other.start()
    other.join(GUARD)
    return not other.is_alive() and session[Note].latest() == Note("next")


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("change", [save, transact])
def test_an_interrupt_at_any_line_leaves_one_state_and_no_lock(
    fs: BaseFilesystem, change: Callable[..., None], fails: bool
):
    session = Session()
    number = 1 + (fails + 2 * (change is transact) + isinstance(fs, HostFilesystem)) % STEP
    outcomes: set[str] = set()
    while True:
        fs.write("a", "old")
        fs.delete("b", recursive=True) if fs.exists("b") else None
        session[Note].clear()
        came_that_far = interrupt_at(number, lambda: change(fs, session, fails=fails))
        files, notes = state(fs, session)
        is_new = (files, notes if change is transact else NEW[1]) == NEW
        is_old = (files, notes) == OLD
        assert is_new or is_old, (number, files, notes)
        assert is_free(fs, session), number
        outcomes.add("new" if is_new else "old")
        if not came_that_far:
            break
        number += STEP
    assert outcomes == ({"old"} if fails else {"old", "new"})
    print(f"{number - 1} lines")
