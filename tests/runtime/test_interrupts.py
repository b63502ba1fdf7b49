"""Interrupts: a Ctrl-C during a commit or rollback is delivered when that is complete."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import pytest

from weakincentives.filesystem import (
    BaseFilesystem,
    FilesystemSnapshot,
    HostFilesystem,
    InMemoryFilesystem,
)
from weakincentives.posix.faults import fault_hook
from weakincentives.runtime.session import Session, append_all
from weakincentives.runtime.transactions import defer_interrupts, transaction


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


def state(fs: BaseFilesystem, session: Session) -> object:
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
    other.join(10)
    assert fs.read("a").content == "goes on"
