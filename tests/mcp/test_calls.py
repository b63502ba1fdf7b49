"""The queue of calls: order, exclusion and limits."""

from functools import partial
from threading import Barrier, Event

import pytest

from weakincentives.mcp import calls
from weakincentives.mcp.calls import CallQueue, QueuedCall, ServerBusyError

TIMEOUT = 60  # seconds; only a failing test waits


def test_readers_run_side_by_side_and_a_writer_alone_in_its_turn() -> None:
    queue = CallQueue()
    together, release = Barrier(2, timeout=TIMEOUT), Event()
    done: list[str] = []

    def read(name: str) -> None:
        together.wait()  # breaks if the other one does not run at the same time
        release.wait(TIMEOUT)
        done.append(name)

    readers = [queue.submit(QueuedCall(n, partial(read, n))) for n in ("r1", "r2")]
    writer = queue.submit(QueuedCall("call", lambda: done.append("w"), exclusive=True))
    late = queue.submit(QueuedCall("call", lambda: done.append("late")))
    cancelled = queue.submit(QueuedCall("call", lambda: done.append("never")))
    assert cancelled.cancel()
    assert not writer.running()
    release.set()
    for each in (*readers, writer, late):
        each.result(TIMEOUT)
    assert done[2:] == ["w", "late"]
    queue.close()
    assert "never" not in done


def test_nothing_starts_while_a_writer_runs() -> None:
    queue = CallQueue()
    started, release = Event(), Event()

    def write() -> None:
        started.set()
        release.wait(TIMEOUT)

    writer = queue.submit(QueuedCall("call", write, exclusive=True))
    started.wait(TIMEOUT)
    reader = queue.submit(QueuedCall("call", lambda: 1))
    other = queue.submit(QueuedCall("call", lambda: 2, exclusive=True))
    assert not reader.running()
    assert not other.running()
    release.set()
    assert [each.result(TIMEOUT) for each in (writer, reader, other)] == [None, 1, 2]
    queue.close()


def test_too_many_or_too_large_calls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_WAITING", 2)
    queue = CallQueue()
    release = Event()
    running = queue.submit(QueuedCall("call", lambda: release.wait(TIMEOUT), exclusive=True))
    waiting = queue.submit(QueuedCall("call", lambda: 1, size=calls.MAX_WAITING_BYTES))
    with pytest.raises(ServerBusyError, match="busy"):
        queue.submit(QueuedCall("call", lambda: 2, size=1))
    queue.submit(QueuedCall("call", lambda: 3))
    with pytest.raises(ServerBusyError, match="2 calls are waiting"):
        queue.submit(QueuedCall("call", lambda: 4))
    release.set()
    assert running.result(TIMEOUT)
    assert waiting.result(TIMEOUT) == 1
    queue.close()
    with pytest.raises(ServerBusyError, match="shutting down"):
        queue.submit(QueuedCall("call", lambda: 5))


def test_a_function_that_raises_does_not_stop_the_queue() -> None:
    queue = CallQueue()

    def fail() -> None:
        raise ValueError("no")

    failed = queue.submit(QueuedCall("call", fail, exclusive=True))
    with pytest.raises(ValueError, match="no"):
        failed.result(TIMEOUT)
    assert queue.submit(QueuedCall("call", lambda: 1, exclusive=True)).result(TIMEOUT) == 1
    queue.close()
