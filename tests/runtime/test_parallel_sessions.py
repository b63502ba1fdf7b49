"""Concurrent calls on one session: each commits or drops its own changes atomically.

`--long` checks 10,000 random rounds, and takes about a minute.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.contrib.plain import Plain
from tests.runtime.linearizability import (
    START,
    Added,
    Note,
    OnModel,
    OnSession,
    Program,
    Record,
    Step,
    Total,
    explain,
    note,
    run,
    total,
)
from tests.sizes import size
from weakincentives.adapters import ToolCall, ToolExecutor
from weakincentives.contrib.tools.file_projection import ProjectionUpdater, VirtualFileSystem, scan
from weakincentives.filesystem import FileWritten, HostFilesystem, InMemoryFilesystem
from weakincentives.posix import TimeLimitError
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import (
    Session,
    TransactionEndedError,
    append_all,
)
from weakincentives.runtime.session.store import Draft
from weakincentives.runtime.transactions import read_consistently, transaction

ROUNDS = int(os.environ.get("WINK_LINEARIZABILITY_ROUNDS", size(150, 10_000)))
SEED = int(os.environ.get("WINK_LINEARIZABILITY_SEED", "0"))
WAIT = 60.0


@pytest.fixture(autouse=True)
def threads_that_change_places_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def new_session() -> Session:
    session = Session()
    session.install(Total, initial=Total, reducers={Added: total})
    session[Note].register(Added, note)
    session.snapshot("start")
    return session


# --- the checker itself ---


def appending(number: int) -> Step:
    return Step("append", number)


COUNTING = Step("count")


def test_the_checker_accepts_what_an_order_explains():
    calls = [Record([appending(1)], 0, 3, True), Record([appending(2)], 1, 2, True)]
    assert explain(calls, ((Note(2), Note(1)), (Total(),))) == [1, 0]


@pytest.mark.parametrize(
    "end",
    [
        ((Note(1),), (Total(),)),  # one is lost
        ((Note(1), Note(2), Note(3)), (Total(),)),  # one that failed is there
        ((Note(2), Note(1)), (Total(),)),  # the first had ended before the second began
    ],
)
def test_the_checker_refuses_what_no_order_explains(end: Any):
    calls = [
        Record([appending(1)], 0, 1, True),
        Record([appending(2)], 2, 3, True),
        Record([appending(3)], 0, 3, False),
    ]
    assert explain(calls, end) is None


def test_the_checker_refuses_a_lost_update():
    calls = [Record([COUNTING], 0, 3, True, [1]), Record([COUNTING], 1, 2, True, [1])]
    assert explain(calls, ((), (Total(2),))) is None


# --- random programs ---


STEPS = ["append", "append", "dispatch", "seed", "see notes", "see value", "append length", "count"]


def random_step(random: Random, depth: int = 0) -> Step:
    number = random.randrange(1_000_000)
    if random.random() < 0.05:
        return Step("back")
    if depth == 0 and random.random() < 0.1:
        program = tuple(random_step(random, 1) for _ in range(random.randrange(1, 3)))
        return Step("inner", program=program, fails=random.random() < 0.5)
    return Step(random.choice(STEPS), number)


@dataclass(frozen=True)
class Plan:
    """What one call is to do."""

    program: Program
    way: str  # how it ends
    read_only: bool
    path: str | None


def random_plan(random: Random) -> Plan:
    program = [random_step(random) for _ in range(random.randrange(1, 4))]
    way = random.choice(["success", "success", "success", "error", "raise", "timeout", "bare"])
    path = random.choice(["a", "b", "c/d"]) if random.random() < 0.2 else None
    return Plan(program, way, path is None and random.random() < 0.5, path)


class Round:
    """A session, its files, and what threads have done to them."""

    def __init__(self) -> None:
        self.session = new_session()
        self.files = InMemoryFilesystem()
        self.follower = ProjectionUpdater(self.session, self.files)
        self.clock = count()
        self.records: list[Record] = []
        self.late: list[Callable[[], int]] = []
        self.given_up: list[Callable[[], int]] = []
        self.random = Random(0)

    def perform(self, plan: Plan) -> None:
        record = Record(plan.program)
        self.records.append(record)
        record.began = next(self.clock)
        if plan.way == "bare":
            record.succeeded = self.bare(plan, record)
        else:
            record.succeeded = self.call(plan, record)
        record.ended = next(self.clock)

    def bare(self, plan: Plan, record: Record) -> bool:
        """Do it in a transaction of our own."""
        with transaction(self.session):
            run(plan.program, OnSession(self.session), record.saw)
        return True

    def call(self, plan: Plan, record: Record) -> bool:
        def handler(params: None, *, context: ToolContext) -> ToolResult[str]:
            record.saw = []
            if plan.path is not None:
                self.files.write(plan.path, "x" * self.random.randrange(100))
            run(plan.program, OnSession(context.session), record.saw)
            if plan.way == "timeout":
                self.give_up()
            if plan.way == "raise":
                raise OSError("no")
            return ToolResult("done", success=plan.way == "success")

        tool = Tool("work", "Works.", handler, read_only=plan.read_only)
        files = None if plan.path is None else self.files
        context = ToolContext(None, None, None, self.session, filesystem=files)
        return ToolExecutor([tool], context=context).execute(ToolCall("work")).result.success

    def give_up(self) -> None:
        """Fail, and leave behind a thread that goes on with the call."""
        here = copy_context()

        def late() -> int:
            """Return how many of the changes were not refused."""
            done = 0
            for change in (
                lambda: self.session[Note].append(Note(-1)),
                lambda: self.session[Total].clear(),
                lambda: self.session.dispatch(Added(-1)),
                lambda: self.session.rollback("start"),
                lambda: self.session.reset(),
            ):
                with suppress(TransactionEndedError):
                    change()
                    done += 1
            return done

        self.late.append(lambda: here.run(late))
        raise TimeoutError("given up")

    def go_on(self) -> None:
        """Go on with a call that was given up, or is about to be."""
        with suppress(IndexError):
            late = self.late.pop()
            late()
            self.given_up.append(late)


def play(random: Random) -> Round:
    played = Round()
    plans = [
        [random_plan(random) for _ in range(random.randrange(1, 4))]
        for _ in range(random.randrange(2, 9))
    ]
    start = threading.Barrier(len(plans))
    failures: list[BaseException] = []

    def work(mine: list[Plan]) -> None:
        try:
            start.wait(WAIT)
            for plan in mine:
                played.perform(plan)
                played.go_on()
        except BaseException as error:  # noqa: BLE001 # raised in the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=[each]) for each in plans]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT)
    assert not failures, failures
    return played


@pytest.mark.slow
def test_calls_on_many_threads_are_as_if_one_after_the_other():
    random = Random(SEED)
    succeeded = failed = 0
    for number in range(ROUNDS):
        played = play(random)
        end = (played.session[Note].all(), played.session[Total].all())
        assert explain(played.records, end) is not None, story(number, played.records, end)
        assert [late() for late in (*played.late, *played.given_up) if late()] == []
        assert sizes(played.session) == {
            each.path: played.files.stat(each.path).size_bytes for each in played.files.glob("**")
        }
        calls = [each for each in played.records if each.succeeded]
        succeeded += len(calls)
        failed += len(played.records) - len(calls)
    print(f"{ROUNDS} rounds: {succeeded} calls succeeded, {failed} failed")
    assert succeeded > ROUNDS
    assert failed > ROUNDS / 2


def story(number: int, records: list[Record], end: object) -> str:
    return "\n".join([f"Round {number} ended with {end}:", *map(str, records)])


def sizes(session: Session) -> dict[str, int]:
    known = session[VirtualFileSystem].latest()
    assert known is not None
    return {str(each.path): each.size_bytes for each in known.files}


# --- one thing at a time ---


def run_all(*functions: Callable[[], object]) -> None:
    threads = [threading.Thread(target=each) for each in functions]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT)


def together(session: Session, *works: Callable[[], object], at_once: bool = True) -> None:
    """Run each in a transaction of its own; `at_once`, all are open before the first one ends."""
    ready = threading.Barrier(len(works))

    def call(work: Callable[[], object]) -> None:
        with (
            suppress(ValueError),
            # like a command, which neither waits for others nor keeps them waiting
            transaction(session, bypasses_filesystem=at_once),
        ):
            work()
            if at_once:
                ready.wait(WAIT)
            if work.__name__ == "fail":
                raise ValueError("no")

    run_all(*[lambda work=work: call(work) for work in works])


@pytest.mark.parametrize("at_once", [True, False])
def test_a_call_that_fails_takes_nothing_of_another_back(at_once: bool):
    session = new_session()

    def keep() -> None:
        session[Note].append(Note(1))
        session.dispatch(Added(2))

    def fail() -> None:
        session[Note].seed([Note(8)])
        session[Note].append(Note(9))

    together(session, keep, fail, fail, fail, at_once=at_once)
    assert session[Note].all() == (Note(1), Note(2))
    assert session[Total].all() == total((Total(),), Added(2))


class SnapshotsOnly:
    """Somebody's own backend: the protocol, and snapshots."""

    root, read_only = "/", False

    def __init__(self) -> None:
        self.backend = InMemoryFilesystem()
        for name in dir(Plain):
            if not name.startswith("_") and name not in {"backend", "root", "read_only"}:
                setattr(self, name, getattr(self.backend, name))
        self.snapshot, self.restore = self.backend.snapshot, self.backend.restore


@pytest.mark.parametrize("make", [InMemoryFilesystem, SnapshotsOnly, Plain, HostFilesystem])
@pytest.mark.parametrize("bypasses_filesystem", [True, False])
def test_a_call_that_fails_takes_no_files_of_another_back(
    make: Callable[..., Any], bypasses_filesystem: bool, tmp_path: Path
):
    fs: Any = make(tmp_path) if make is HostFilesystem else make()
    other: list[threading.Thread] = []

    def fail(params: None, *, context: ToolContext) -> ToolResult[str]:
        assert context.filesystem is not None
        context.filesystem.write("failed", "1")
        other.append(threading.Thread(target=lambda: executor.execute(ToolCall("succeed"))))
        other[0].start()
        other[0].join(0.2)  # it ends now, or waits for its turn
        return ToolResult.error("no")

    def succeed(params: None, *, context: ToolContext) -> ToolResult[str]:
        assert context.filesystem is not None
        context.filesystem.write("succeeded", "1")
        return ToolResult("done")

    tools = [
        Tool("fail", "Fails.", fail, bypasses_filesystem=bypasses_filesystem),
        Tool("succeed", "Works.", succeed),
    ]
    context = ToolContext(None, None, None, Session(), filesystem=fs)
    executor = ToolExecutor(tools, context=context)
    executor.execute(ToolCall("fail"))
    other[0].join(WAIT)
    assert (fs.exists("failed"), fs.exists("succeeded")) == (False, True)


def test_nobody_sees_a_change_before_its_call_is_over():
    session = new_session()
    seen: list[object] = []

    def look() -> None:
        seen.append((session[Note].all(), session.snapshot().slices[Note], session.snapshots))
        seen.append(session.clone()[Note].all())

    with transaction(session):
        session[Note].append(Note(1))
        session.snapshot("inside")
        run_all(look)
        assert session[Note].all() == (Note(1),)
        assert session.clone()[Note].all() == (Note(1),)
    assert seen[0] == ((), (), {"start": session.snapshots["start"]})
    assert seen[1] == ()
    assert session[Note].all() == (Note(1),)


@pytest.mark.parametrize("at_once", [True, False])
def test_events_are_folded_into_what_others_have_left(at_once: bool):
    session = new_session()
    works = [lambda number=number: session.dispatch(Added(number)) for number in (1, 2)]
    together(session, *works, at_once=at_once)
    one, two = Added(1), Added(2)
    orders = [total(total((Total(),), first), last) for first, last in ((one, two), (two, one))]
    assert session[Total].all() in orders
    assert len(session[Note].all()) == 2


def test_two_that_read_and_write_the_same_take_turns():
    session = new_session()
    together(session, *[lambda: COUNTING.perform(OnSession(session), [])] * 2, at_once=False)
    assert session[Total].all() == (Total(3),)


# --- nothing runs twice ---


def caller(session: Session, handler: Any, **options: Any) -> Callable[[], ToolInvoked]:
    """Return a function that calls a tool with the handler, and returns the event."""
    context = ToolContext(None, None, None, session, filesystem=options.pop("filesystem", None))
    executor = ToolExecutor([Tool("work", "Works.", handler, **options)], context=context)

    def call() -> ToolInvoked:
        executor.execute(ToolCall("work"))
        return session[ToolInvoked].all()[-1]

    return call


KINDS: dict[str, dict[str, Any]] = {
    "change": {},
    "files": {"filesystem": InMemoryFilesystem},
    "read": {"read_only": True},
    "command": {"bypasses_filesystem": True},
}


def options_of(kind: str) -> dict[str, Any]:
    options = dict(KINDS[kind])
    return options | {key: make() for key, make in options.items() if key == "filesystem"}


@pytest.mark.parametrize("mine", KINDS)
@pytest.mark.parametrize("theirs", [*KINDS, "bare"])
def test_a_call_sends_its_request_once_whatever_others_do_meanwhile(mine: str, theirs: str):
    """The other reads and writes the same; it runs while the request is sent, or waits for it."""
    session = new_session()
    sent: list[int] = []
    others: list[threading.Thread] = []

    def count_up(params: None, *, context: ToolContext) -> ToolResult[str]:
        COUNTING.perform(OnSession(context.session), [])
        context.session.dispatch(Added(2))
        return ToolResult("counted")

    other = {kind: caller(session, count_up, **options_of(kind)) for kind in KINDS}
    other["bare"] = lambda: session.dispatch(Added(2))  # pyright: ignore[reportArgumentType] # not awaited

    def send(params: None, *, context: ToolContext) -> ToolResult[str]:
        OnSession(context.session).value()
        sent.append(1)
        others.append(threading.Thread(target=other[theirs]))
        others[0].start()
        if "command" in (mine, theirs) or theirs == "bare":
            others[0].join(WAIT)  # it does not wait
            assert not others[0].is_alive()
        context.session[Note].append(Note(1))
        COUNTING.perform(OnSession(context.session), [])
        return ToolResult("sent")

    call = caller(session, send, **options_of(mine))
    assert call().success
    others[0].join(WAIT)
    assert sent == [1]
    assert [each.success for each in session[ToolInvoked].all() if each.tool == "work"] != []
    assert all(each.success for each in session[ToolInvoked].all())
    assert sorted(each.number for each in session[Note].all()) == [1, 2]
    if "command" not in (mine, theirs) and theirs != "bare":
        assert session[Total].all() == total((Total(3),), Added(2))  # as one after the other


def test_a_reducer_runs_once_on_an_event_that_is_logged_too():
    session = new_session()
    folded: list[str] = []

    def count_calls(items: tuple[Note, ...], event: ToolInvoked) -> tuple[Note, ...]:
        folded.append(event.tool)
        return (*items, Note(len(folded)))

    session[Note].register(ToolInvoked, count_calls)
    with transaction(session):
        session.dispatch(LOGGED)
        session.dispatch(LATER)
        assert session[ToolInvoked].all() == (LOGGED, LATER)
    assert session[Note].all() == (Note(1), Note(2))
    assert folded == ["earlier", "later"]


def test_calls_that_read_and_write_the_same_all_succeed_however_many_there_are():
    session = new_session()

    def count_up(params: None, *, context: ToolContext) -> ToolResult[str]:
        value = OnSession(context.session).value()
        for _ in range(20):
            time.sleep(0)  # let other threads go on
        context.session[Total].seed(Total(value + 1))
        return ToolResult("counted")

    context = ToolContext(None, None, None, session)
    executor = ToolExecutor([Tool("count", "Counts.", count_up)], context=context)

    def call_often() -> None:
        for _ in range(50):
            executor.execute(ToolCall("count"))

    run_all(*[call_often] * 6)
    assert [each for each in session[ToolInvoked].all() if not each.success or each.error] == []
    assert session[Total].all() == (Total(1 + 300),)


def test_what_was_read_may_change_as_long_as_the_answer_is_the_same():
    session = new_session()
    session[Note].seed([Note(1)])
    with transaction(session):
        assert session[Note].where(lambda each: each.number == 1) == (Note(1),)
        session[Note].append(Note(5))
        assert session[Note].latest() == Note(5)
        run_all(lambda: session[Note].append(Note(2)))
    assert session[Note].all() == (Note(1), Note(2), Note(5))


def test_who_only_reads_sees_one_moment():
    session = new_session()
    with transaction(session):
        before = session[Note].all(), session[Total].all()
        run_all(lambda: session.dispatch(Added(1)))
        assert (session[Note].all(), session[Total].all()) == before
    assert session[Note].all() == (Note(1),)


def test_a_slice_that_was_not_touched_yet_is_seen_as_it_is_now():
    session = new_session()
    with transaction(session):
        assert session[Total].latest() == Total()
        run_all(lambda: session[Note].append(Note(1)))
        assert session[Note].all() == (Note(1),)
        session[Note].append(Note(2))
        assert session[Total].latest() == Total()
    assert session[Note].all() == (Note(1), Note(2))


def test_a_thread_that_runs_in_the_context_of_a_call_takes_part_in_it():
    session = new_session()
    for fails in (True, False):
        with transaction(session) as step:
            contexts = [copy_context() for _ in range(4)]
            run_all(*[lambda here=here: here.run(session.dispatch, Added(1)) for here in contexts])
            assert len(session[Note].all()) == 4
            if fails:
                step.rollback()
    assert session[Note].all() == (Note(1),) * 4


def test_a_change_that_comes_after_its_call_was_taken_back_is_refused():
    session = new_session()
    told: list[object] = []
    session.bus.subscribe(Added, told.append)
    with transaction(session) as step:
        here = copy_context()
        step.rollback()
    for change in (
        lambda: session[Note].append(Note(1)),
        lambda: session.dispatch(Added(1)),
        lambda: session[Note].register(Added, note),
        lambda: session.snapshot("late"),
        lambda: transaction(session).__enter__(),
    ):
        with pytest.raises(TransactionEndedError):
            here.run(change)
    assert here.run(lambda: session[Note].all()) == ()
    assert told == []
    assert "late" not in session.snapshots


def test_a_change_that_comes_after_its_call_was_kept_is_one_of_its_own():
    session = new_session()
    with transaction(session):
        here = copy_context()
    here.run(session[Note].append, Note(1))
    assert session[Note].all() == (Note(1),)


def test_a_transaction_whose_outer_one_was_taken_back_meanwhile_keeps_nothing():
    session = new_session()
    with transaction(session) as outer:
        here = copy_context()
        inner = here.run(transaction(session).__enter__)
        here.run(session[Note].append, Note(1))
        outer.rollback()
    with pytest.raises(TransactionEndedError):
        inner.finish()
    assert session[Note].all() == ()


def test_reducers_that_a_failed_call_registers_are_not_there():
    session = new_session()

    def double(items: tuple[Note, ...], event: Added) -> tuple[Note, ...]:
        return (*items, Note(event.number), Note(event.number))

    for number, fails in ((1, True), (2, False), (3, False)):
        with transaction(session) as step:
            session[Note].register(Added, double)
            session.install(FileWritten, reducers={FileWritten: append_all})
            session.dispatch(Added(number))
            run_all(lambda number=number: session.dispatch(Added(number * 10)))
            if fails:
                step.rollback()
    assert [each.number for each in session[Note].all()] == [10, 20, 2, 2, 30, 30, 3, 3]


@pytest.mark.parametrize("back", ["restore", "rollback", "savepoint", "reset"])
def test_going_back_inside_a_call_that_fails_changes_nothing(back: str):
    session = new_session()
    session.dispatch(Added(1))
    snapshot, savepoint = session.snapshots["start"], new_savepoint(session)
    session.dispatch(Added(2))
    before = session[Note].all(), session[Total].all()
    with transaction(session) as step:
        {
            "restore": lambda: session.restore(snapshot),
            "rollback": lambda: session.rollback("start"),
            "savepoint": lambda: session.restore_savepoint(savepoint),
            "reset": session.reset,
        }[back]()
        assert session[Note].all() == ((Note(1),) if back == "savepoint" else ())
        step.rollback()
    assert (session[Note].all(), session[Total].all()) == before


def new_savepoint(session: Session) -> Any:
    return session.savepoint()


LOGGED = ToolInvoked(tool="earlier")
LATER = ToolInvoked(tool="later")
EMPTYING: dict[str, Callable[[Session], object]] = {
    "reset": lambda session: session.reset(),
    "restore": lambda session: session.restore(Session().snapshot(), preserve_logs=False),
    "clear": lambda session: session[ToolInvoked].clear(),
    "inside": lambda session: emptied_inside(session),
}


def emptied_inside(session: Session) -> None:
    with transaction(session):
        session.reset()


@pytest.mark.parametrize("way", EMPTYING)
def test_a_call_that_fails_removes_nothing_from_a_log(way: str):
    session = new_session()
    session.dispatch(LOGGED)
    with transaction(session) as step:
        EMPTYING[way](session)
        assert session[ToolInvoked].all() == ()
        session.dispatch(LATER)
        assert session[ToolInvoked].all() == session.snapshot().slices[ToolInvoked] == (LATER,)
        step.rollback()
    assert session[ToolInvoked].all() == (LOGGED, LATER)


@pytest.mark.parametrize("way", EMPTYING)
def test_a_call_that_empties_a_log_keeps_what_was_logged_since(way: str):
    session = new_session()
    session.dispatch(LOGGED)
    with transaction(session):
        EMPTYING[way](session)
        run_all(lambda: session.dispatch(LATER))
    assert session[ToolInvoked].all() == (LATER,)


def test_a_log_that_others_have_emptied_meanwhile_is_left_to_them():
    session = new_session()
    session.dispatch(LOGGED)
    with transaction(session):
        session[ToolInvoked].clear()
        run_all(lambda: session[ToolInvoked].seed([LATER]))
    assert session[ToolInvoked].all() == (LATER,)


def test_going_back_while_a_call_is_under_way_comes_before_it():
    session = new_session()
    session.dispatch(Added(1))
    with transaction(session):
        session[Note].append(Note(2))
        run_all(lambda: session.rollback("start"))
    assert session[Note].all() == (Note(2),)
    with transaction(session):
        session.rollback("start")
        run_all(lambda: session[Note].append(Note(3)))
    assert session[Note].all() == ()


def test_going_back_to_a_moment_of_the_call_itself_takes_nothing_of_others():
    session = new_session()
    with transaction(session):
        savepoint = session.savepoint()
        session[Note].append(Note(1))
        run_all(lambda: session[Note].append(Note(2)))
        session.restore_savepoint(savepoint)
    assert session[Note].all() == (Note(2),)


def test_going_back_and_forth_in_a_call_ends_at_each_of_its_moments():
    session = new_session()
    with transaction(session):
        first = session.savepoint()
        session[Note].append(Note(1))
        second = session.savepoint()
        session.restore_savepoint(first)
        session[Note].append(Note(3))
        assert session[Note].all() == (Note(3),)
        session.restore_savepoint(second)
        assert session[Note].all() == (Note(1),)
    assert session[Note].all() == (Note(1),)


def test_a_call_waits_for_its_turn_and_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("weakincentives.runtime.session.store.TURN_TIMEOUT", 0.0)
    session = new_session()
    failures: list[BaseException] = []

    def late() -> None:
        try:
            with transaction(session):
                session[Note].append(Note(2))
        except TimeLimitError as error:
            failures.append(error)

    with transaction(session):
        session[Note].append(Note(1))
        run_all(late)
    assert "another call on the session" in str(failures)
    assert session[Note].all() == (Note(1),)


def test_a_subscriber_may_wait_for_a_call_of_another_thread():
    session, files = new_session(), InMemoryFilesystem()
    follower = ProjectionUpdater(session, files)

    def react(event: FileWritten) -> None:
        if event.path == "a":
            run_all(lambda: write("b"))

    def write(path: str) -> None:
        with transaction(session, files):
            files.write(path, "1")

    session.bus.subscribe(FileWritten, react)
    with patience_of(0.01):
        write("a")
    assert sizes(session) == {"a": 1, "b": 1}
    follower.close()


@contextmanager
def patience_of(seconds: float) -> Iterator[None]:
    """Let sessions wait no longer for each other than this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weakincentives.runtime.session.session._PUBLISH_TIMEOUT", seconds)
        yield


def test_a_reducer_that_fails_only_on_what_others_left_changes_nothing(
    caplog: pytest.LogCaptureFixture,
):
    session = new_session()

    def picky(items: tuple[Note, ...], event: Added) -> tuple[Note, ...]:
        if items:
            raise ValueError("only the first")
        return (Note(event.number),)

    session[Note].register(Added, picky)
    with transaction(session):
        assert session.dispatch(Added(1)).ok
        run_all(lambda: session[Note].append(Note(7)))
    assert session[Note].all() == (Note(7),)
    assert "only the first, applied to what others had changed" in caplog.text


def test_transactions_of_two_sessions_inside_each_other_are_apart():
    mine, theirs = new_session(), new_session()
    with transaction(mine) as outer:
        mine.dispatch(Added(1))
        with transaction(theirs):
            theirs.dispatch(Added(2))
            mine.dispatch(Added(3))
        assert [each.number for each in mine[Note].all()] == [1, 3]
        outer.rollback()
    assert mine[Note].all() == ()
    assert theirs[Note].all() == (Note(2),)


def test_files_are_told_in_the_order_in_which_they_were_written():
    session, files = new_session(), InMemoryFilesystem()
    ProjectionUpdater(session, files)
    session[FileWritten].register(FileWritten, append_all)

    def write(size: int) -> None:
        for number in range(50):
            with transaction(session, files):
                files.write("a", "x" * (number % 7 * 10 + size))

    run_all(*[lambda size=size: write(size) for size in range(6)])
    told = session[FileWritten].all()
    assert [each.before_hash for each in told[1:]] == [each.after_hash for each in told[:-1]]
    assert sizes(session) == {"a": files.stat("a").size_bytes}


def test_one_who_looked_before_files_were_taken_back_looks_again(monkeypatch: pytest.MonkeyPatch):
    session, fs = new_session(), InMemoryFilesystem()
    fs.write("a", "1")
    ProjectionUpdater(session, fs)
    seen, gone = threading.Event(), threading.Event()
    drop = Draft.drop

    def look(known: VirtualFileSystem | None) -> VirtualFileSystem:
        assert known is not None

        def scanned() -> VirtualFileSystem:
            found = scan(fs, known, "", session.created_at)
            seen.set()
            gone.wait(WAIT)
            return found

        found, unsettled = read_consistently(fs, scanned)
        looked.extend(unsettled)
        return found

    def drop_later(draft: Draft) -> None:
        gone.set()  # the files are what they were, and the transaction is not over yet
        looking.join(WAIT)
        drop(draft)

    looked: list[object] = []
    looking = threading.Thread(target=lambda: session.refresh(VirtualFileSystem, look))
    monkeypatch.setattr(Draft, "drop", drop_later)
    with transaction(session, fs) as step:
        fs.write("a", "longer")
        looking.start()
        seen.wait(WAIT)
        step.rollback()
    assert looked == [step]


def test_a_long_slice_is_not_copied_by_a_call_that_appends():
    session = new_session()
    session[Note].seed(map(Note, range(1000)))
    with transaction(session):
        session[Note].append(Note(1000))
    shared = session.savepoint().items[Note]
    with transaction(session):
        session[Note].append(Note(1001))
    assert len(shared) == 1001
    assert session[Note].all() == tuple(map(Note, range(1002)))


def test_a_model_and_a_session_do_the_same_alone():
    random = Random(SEED)
    for _ in range(200):
        program = [random_step(random) for _ in range(6)]
        session, model = new_session(), OnModel(START)
        saw: tuple[list[object], list[object]] = ([], [])
        with transaction(session):
            run(program, OnSession(session), saw[0])
        run(program, model, saw[1])
        assert (session[Note].all(), session[Total].all()) == model.state
        assert saw[0] == saw[1]
