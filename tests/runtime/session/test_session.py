import gc
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from weakincentives.errors import WinkError
from weakincentives.runtime import (
    InProcessDispatcher,
    InProcessEventBus,
    ManualClock,
    PromptExecuted,
    PromptRendered,
    ToolInvoked,
)
from weakincentives.runtime.session import (
    Session,
    Snapshot,
    UnknownTagError,
    append_all,
    replace_latest,
)


@dataclass(frozen=True)
class Note:
    text: str


@dataclass(frozen=True)
class Plan:
    steps: int = 0


@dataclass(frozen=True)
class Happened:
    number: int


def planned(session: Session) -> Session:
    session.install(Plan, initial=Plan, reducers={Plan: replace_latest})
    session.install(Happened, log=True, reducers={Happened: append_all})
    session[Note].register(Note, append_all)
    return session


@pytest.fixture
def session() -> Session:
    return planned(Session(clock=ManualClock()))


def test_a_session_has_a_name_a_date_and_labels():
    clock = ManualClock()
    session = Session(clock=clock)
    assert isinstance(session.session_id, UUID)
    assert session.session_id != Session().session_id
    assert session.created_at == clock.now()
    assert session.tags == {}
    assert repr(session) == f"Session('{session.session_id}')"


def test_name_date_and_labels_can_be_given():
    labels = {"session_id": "abc"}
    when = datetime(2020, 1, 2, tzinfo=UTC)
    session = Session(session_id=UUID(int=7), created_at=when, tags=labels)
    labels["session_id"] = "changed"
    assert (session.session_id, session.created_at) == (UUID(int=7), when)
    assert session.tags == {"session_id": "abc"}
    with pytest.raises(TypeError):
        session.tags["x"] = "y"  # type: ignore[index] # what is tested


def test_a_date_without_a_time_zone_is_refused():
    with pytest.raises(ValueError, match="no time zone"):
        Session(created_at=datetime(2020, 1, 2))  # noqa: DTZ001 # what is tested


def test_bus_and_dispatcher_are_two_words():
    bus = InProcessDispatcher()
    for session in (Session(bus=bus), Session(dispatcher=bus), Session(bus=bus, dispatcher=bus)):
        assert session.bus is session.dispatcher is bus
    with pytest.raises(ValueError, match="not both"):
        Session(bus=bus, dispatcher=InProcessEventBus())
    assert Session().bus is not Session().bus


@pytest.mark.parametrize(
    "event",
    [
        ToolInvoked(tool="ls"),
        PromptRendered(prompt_ns="a", prompt_key="b"),
        PromptExecuted(prompt_ns="a", prompt_key="b"),
    ],
)
def test_what_happens_is_logged_from_the_start(event: Any):
    session = Session()
    session.bus.publish(event)
    assert session[type(event)].all() == (event,)
    session.restore(Session().snapshot())
    assert session[type(event)].all() == (event,)


def test_a_restore_brings_back_state_and_leaves_logs(session: Session):
    session.dispatch(Note("before"))
    session.dispatch(Happened(1))
    snapshot = session.snapshot()
    session.dispatch(Note("after"))
    session.dispatch(Plan(3))
    session.dispatch(Happened(2))
    session.restore(snapshot)
    assert session[Note].all() == (Note("before"),)
    assert session[Plan].all() == (Plan(0),)
    assert session[Happened].all() == (Happened(1), Happened(2))


def test_a_restore_can_take_the_logs_too(session: Session):
    session.dispatch(Happened(1))
    snapshot = session.snapshot()
    session.dispatch(Happened(2))
    session.restore(snapshot, preserve_logs=False)
    assert session[Happened].all() == (Happened(1),)
    fresh = Session()
    fresh.restore(snapshot, preserve_logs=False)
    assert fresh[Happened].all() == (Happened(1),)
    fresh.restore(Session().snapshot())
    assert fresh[Happened].all() == (Happened(1),)  # still a log


def test_reducers_go_on_after_a_restore(session: Session):
    snapshot = session.snapshot()
    session.restore(snapshot)
    session.dispatch(Note("a"))
    assert session[Note].all() == (Note("a"),)


def test_a_snapshot_stays_as_it_is(session: Session):
    session.dispatch(Note("a"))
    snapshot = session.snapshot("t")
    session.dispatch(Note("b"))
    session.restore(snapshot)
    session.dispatch(Note("c"))
    assert snapshot.slices[Note] == (Note("a"),)
    assert snapshot.slices.get(Note, ()) == (Note("a"),)
    assert snapshot.slices.get(type(snapshot), ()) == ()
    assert set(snapshot.slices) == {Note, Plan}
    assert "Note: 1" in repr(snapshot.slices)
    assert str(snapshot) == f"t ({snapshot.snapshot_id})"


def test_a_snapshot_says_whose_it_is_and_when(session: Session):
    snapshot = session.snapshot("t", snapshot_id=UUID(int=3))
    assert snapshot.session_id == session.session_id
    assert snapshot.created_at == ManualClock().now()
    assert (snapshot.tag, snapshot.snapshot_id) == ("t", UUID(int=3))
    assert session.snapshot().snapshot_id != session.snapshot().snapshot_id
    assert hash(snapshot) == hash(replace(snapshot))


def test_a_slice_that_a_snapshot_does_not_know_gets_its_initial_item(session: Session):
    @dataclass(frozen=True)
    class Late:
        value: int = 0

    snapshot = session.snapshot()
    session.install(Late, initial=Late)
    session[Late].append(Late(2))
    session.restore(snapshot)
    assert session[Late].all() == (Late(0),)


def test_a_slice_that_was_empty_is_empty_again(session: Session):
    session[Plan].clear()
    snapshot = session.snapshot()
    session.dispatch(Plan(2))
    session.restore(snapshot)
    assert session[Plan].all() == ()


def test_a_snapshot_made_by_hand_can_be_restored(session: Session):
    snapshot = Snapshot(
        snapshot_id=UUID(int=1),
        session_id=UUID(int=2),
        created_at=datetime.now(UTC),
        slices={Note: (Note("x"),)},
    )
    session.restore(snapshot)
    session.dispatch(Note("y"))
    assert session[Note].all() == (Note("x"), Note("y"))
    assert snapshot.slices[Note] == (Note("x"),)


def test_rollback_restores_the_latest_snapshot_with_the_tag(session: Session):
    session.dispatch(Note("a"))
    session.snapshot("turn")
    session.dispatch(Note("b"))
    latest = session.snapshot("turn")
    session.snapshot("other")
    session.dispatch(Note("c"))
    assert session.rollback("turn") is latest
    assert session[Note].all() == (Note("a"), Note("b"))
    session.dispatch(Note("d"))
    session.rollback("turn")
    assert session[Note].all() == (Note("a"), Note("b"))
    assert session.snapshots["turn"] is latest
    assert set(session.snapshots) == {"turn", "other"}


def test_rollback_to_an_unknown_tag_says_so_and_changes_nothing(session: Session):
    session.dispatch(Note("a"))
    session.snapshot()
    with pytest.raises(UnknownTagError) as caught:
        session.rollback("turn-5")
    assert str(caught.value) == "No snapshot has the tag: 'turn-5'"
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, WinkError)
    assert session[Note].all() == (Note("a"),)


def test_reset_starts_over_logs_included(session: Session):
    session.dispatch(Note("a"))
    session.dispatch(Plan(4))
    session.dispatch(Happened(1))
    session.dispatch(ToolInvoked(tool="ls"))
    session.snapshot("before")
    session.reset()
    assert session[Note].all() == session[Happened].all() == session[ToolInvoked].all() == ()
    assert session[Plan].all() == (Plan(0),)
    session.dispatch(Note("b"))
    assert session[Note].all() == (Note("b"),)
    session.rollback("before")
    assert session[Note].all() == (Note("a"),)


def test_reset_makes_a_new_initial_item_each_time():
    numbers = iter(range(10))
    session = Session()
    session.install(Plan, initial=lambda: Plan(next(numbers)))
    session.reset()
    assert session[Plan].all() == (Plan(1),)


def test_a_reset_that_cannot_make_an_initial_item_changes_nothing(session: Session):
    answers = iter([Plan(1)])
    session.install(Plan, initial=lambda: next(answers))
    session.dispatch(Note("a"))
    with pytest.raises(StopIteration):
        session.reset()
    assert session[Note].all() == (Note("a"),)


def test_a_clone_has_everything_and_shares_nothing(session: Session):
    session.dispatch(Note("a"))
    session.dispatch(Happened(1))
    session.snapshot("t")
    clone = session.clone()
    assert clone[Note].all() == (Note("a"),)
    assert clone[Happened].all() == (Happened(1),)
    assert clone.session_id != session.session_id
    assert clone.bus is not session.bus
    session.dispatch(Note("original"))
    clone.dispatch(Note("clone"))
    clone.dispatch(Plan(2))
    clone.snapshot("u")
    assert session[Note].all() == (Note("a"), Note("original"))
    assert clone[Note].all() == (Note("a"), Note("clone"))
    assert (session[Plan].latest(), clone[Plan].latest()) == (Plan(0), Plan(2))
    assert set(session.snapshots) == {"t"}
    clone.rollback("t")
    assert clone[Note].all() == (Note("a"),)
    assert session[Note].all() == (Note("a"), Note("original"))


def test_reducers_registered_later_belong_to_one_of_the_two(session: Session):
    clone = session.clone()
    clone[Note].register(Plan, lambda items, event: (*items, Note(str(event.steps))))
    session[Note].register(Note, replace_latest)
    clone.dispatch(Plan(1))
    session.dispatch(Plan(1))
    assert clone[Note].all() == (Note("1"),)
    assert session[Note].all() == ()
    for each in (Note("x"), Note("y")):
        clone.dispatch(each)
        session.dispatch(each)
    assert clone[Note].all() == (Note("1"), Note("x"), Note("y"))
    assert session[Note].all() == (Note("y"),)


def test_a_clone_can_be_given_a_bus_a_parent_and_labels():
    clock = ManualClock()
    session = Session(tags={"a": "1"}, clock=clock)
    clock.advance(5)
    bus = InProcessEventBus()
    clone = session.clone(bus=bus, parent=session, session_id=UUID(int=1), tags={"b": "2"})
    assert clone.bus is bus
    assert clone.parent is session
    assert (clone.session_id, clone.tags) == (UUID(int=1), {"b": "2"})
    assert session.clone().tags == {"a": "1"}
    assert session.clone().parent is None
    assert clone.created_at - session.created_at == timedelta(seconds=5)


def test_parents_know_their_children_and_share_no_state():
    parent = planned(Session())
    first, second = Session(parent=parent), planned(Session(parent=parent))
    assert parent.children == (first, second)
    assert first.parent is parent
    assert parent.parent is None
    assert first.children == ()
    second.dispatch(Note("child"))
    assert parent[Note].all() == ()
    assert second[Note].all() == (Note("child"),)


def test_sessions_on_one_bus_fold_the_same_events():
    bus = InProcessEventBus()
    one, two = planned(Session(bus=bus)), planned(Session(bus=bus))
    one.dispatch(Note("a"))
    assert one[Note].all() == two[Note].all() == (Note("a"),)


def test_a_session_that_nobody_uses_leaves_the_bus():
    bus = InProcessEventBus()
    kept = planned(Session(bus=bus))
    for _ in range(10):
        planned(Session(bus=bus)).dispatch(Note("gone"))
    gc.collect()
    bus.publish(Note("sweep"))
    assert len(bus.publish(Note("x")).handlers_invoked) == 1
    assert kept[Note].latest() == Note("x")


def test_a_slice_keeps_its_session_at_work():
    bus = InProcessEventBus()
    notes = planned(Session(bus=bus))[Note]
    gc.collect()
    bus.publish(Note("x"))
    assert notes.all() == (Note("x"),)


def test_a_mark_brings_back_state_and_leaves_logs(session: Session):
    session.dispatch(Note("a"))
    savepoint = session.savepoint()
    inner = session.savepoint()
    session.dispatch(Note("b"))
    session.dispatch(Happened(1))
    session.restore_savepoint(inner)
    session.dispatch(Note("c"))
    session.restore_savepoint(savepoint)
    assert session[Note].all() == (Note("a"),)
    assert session[Happened].all() == (Happened(1),)


def test_a_mark_of_another_session_is_refused(session: Session):
    for other in (Session(), session.clone()):
        with pytest.raises(ValueError, match="another session"):
            session.restore_savepoint(other.savepoint())


def test_a_slice_first_used_after_a_mark_is_empty_again(session: Session):
    @dataclass(frozen=True)
    class Late:
        value: int

    savepoint = session.savepoint()
    session[Late].append(Late(1))
    session.restore_savepoint(savepoint)
    assert session[Late].all() == ()


def test_eight_threads_lose_nothing():
    session = planned(Session())
    threads, each = 8, 10_000

    def work(thread: int) -> None:
        for number in range(each):
            session.dispatch(Happened(thread * each + number))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    found = [event.number for event in session[Happened].all()]
    assert sorted(found) == list(range(threads * each))
    for thread in range(threads):
        mine = [number for number in found if number // each == thread]
        assert mine == sorted(mine)


def test_threads_that_snapshot_clone_and_read_see_whole_prefixes():
    session = planned(Session())

    def write(thread: int) -> None:
        for number in range(2_000):
            session.dispatch(Happened(thread * 2_000 + number))

    def look(_: int) -> None:
        for _ in range(100):
            snapshot = session.snapshot()
            clone = session.clone()
            clone.dispatch(Happened(-1))
            seen = session[Happened].all()
            before = snapshot.slices.get(Happened, ())
            assert seen[: len(before)] == before
            assert -1 not in {event.number for event in seen}
            assert [event.number for event in clone[Happened].all()].count(-1) == 1

    with ThreadPoolExecutor(6) as pool:
        writers = [pool.submit(write, number) for number in range(3)]
        lookers = [pool.submit(look, number) for number in range(3)]
        for each in (*writers, *lookers):
            each.result()
    assert len(session[Happened].all()) == 6_000


def test_keeping_moments_of_a_long_slice_takes_no_memory():
    session = planned(Session())
    session[Note].seed(Note(str(number)) for number in range(100_000))
    kept: list[object] = []
    tracemalloc.start()
    try:
        for number in range(200):
            kept += (session.snapshot(), session.savepoint(), session.clone())
            session.dispatch(Note(str(number)))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # one copy of the slice is 800 kB, and there are 600 moments
    assert taken < 4_000_000


class Model:
    """A session as plain dictionaries."""

    def __init__(self) -> None:
        self.state: dict[type, tuple[object, ...]] = {Note: (), Plan: (Plan(0),)}
        self.log: tuple[Happened, ...] = ()
        self.tags: dict[str, dict[type, tuple[object, ...]]] = {}

    def copy(self) -> "Model":
        made = Model()
        made.state, made.log, made.tags = dict(self.state), self.log, dict(self.tags)
        return made


class SessionMachine(RuleBasedStateMachine):
    """Two sessions, one cloned from the other, against plain dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = [(planned(Session()), Model())]
        self.count = 0

    which = st.integers(0, 3)
    tag = st.sampled_from("ab")

    def pair(self, which: int) -> tuple[Session, Model]:
        self.count += 1
        return self.pairs[which % len(self.pairs)]

    @rule(which=which)
    def note(self, which: int) -> None:
        session, model = self.pair(which)
        session.dispatch(Note(str(self.count)))
        model.state[Note] = (*model.state[Note], Note(str(self.count)))

    @rule(which=which)
    def plan(self, which: int) -> None:
        session, model = self.pair(which)
        session.dispatch(Plan(self.count))
        model.state[Plan] = (Plan(self.count),)

    @rule(which=which)
    def happen(self, which: int) -> None:
        session, model = self.pair(which)
        session.dispatch(Happened(self.count))
        model.log = (*model.log, Happened(self.count))

    @rule(which=which)
    def append(self, which: int) -> None:
        session, model = self.pair(which)
        session[Plan].append(Plan(self.count))
        model.state[Plan] = (*model.state[Plan], Plan(self.count))

    @rule(which=which, tag=tag)
    def snapshot(self, which: int, tag: str) -> None:
        session, model = self.pair(which)
        session.snapshot(tag)
        model.tags[tag] = dict(model.state)

    @rule(which=which, tag=tag)
    def rollback(self, which: int, tag: str) -> None:
        session, model = self.pair(which)
        if tag in model.tags:
            session.rollback(tag)
            model.state = dict(model.tags[tag])
        else:
            with pytest.raises(UnknownTagError):
                session.rollback(tag)

    @rule(which=which)
    def reset(self, which: int) -> None:
        session, model = self.pair(which)
        session.reset()
        model.state, model.log = Model().state, ()

    @rule(which=which)
    def undo(self, which: int) -> None:
        session, _ = self.pair(which)
        savepoint = session.savepoint()
        session.dispatch(Note("undone"))
        session[Plan].clear()
        session.restore_savepoint(savepoint)

    @precondition(lambda self: len(self.pairs) < 3)
    @rule(which=which)
    def clone(self, which: int) -> None:
        session, model = self.pair(which)
        self.pairs.append((session.clone(), model.copy()))

    @rule(which=which)
    def through_json(self, which: int) -> None:
        session, _ = self.pair(which)
        loaded = Snapshot.from_json(session.snapshot().to_json(), (Note, Plan, Happened))
        session.restore(loaded, preserve_logs=False)

    @invariant()
    def agree(self) -> None:
        for session, model in self.pairs:
            assert session[Note].all() == model.state[Note]
            assert session[Plan].all() == model.state[Plan]
            assert session[Happened].all() == model.log


SessionMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
)
TestSessionMachine = SessionMachine.TestCase
