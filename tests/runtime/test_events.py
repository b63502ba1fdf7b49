from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.filesystem import FileWritten, InMemoryFilesystem
from weakincentives.runtime.budget import TokenUsage
from weakincentives.runtime.events import (
    EventBus,
    InProcessDispatcher,
    InProcessEventBus,
    PromptExecuted,
    PromptRendered,
    PublishResult,
    ToolInvoked,
)
from weakincentives.serde import decode, encode

# a busy machine is no fault of the code


@dataclass(frozen=True)
class Base:
    value: int = 0


@dataclass(frozen=True)
class Derived(Base):
    pass


@dataclass(frozen=True)
class Other:
    pass


@pytest.fixture
def bus() -> InProcessEventBus:
    return InProcessEventBus()


def test_a_handler_gets_the_events_of_its_type_only(bus: InProcessEventBus):
    seen: list[object] = []
    bus.subscribe(Base, seen.append)
    result = bus.publish(Base(1))
    bus.publish(Other())
    assert seen == [Base(1)]
    assert result == PublishResult(Base(1), (seen.append,), ())
    assert result.ok


def test_a_base_class_stands_for_its_subclasses_and_object_for_everything(bus: InProcessEventBus):
    base: list[object] = []
    everything: list[object] = []
    bus.subscribe(Base, base.append)
    bus.subscribe(object, everything.append)
    for event in (Base(), Derived(), Other(), "text"):
        bus.publish(event)
    assert base == [Base(), Derived()]
    assert everything == [Base(), Derived(), Other(), "text"]


@given(st.permutations([object, Base, Derived, Base]))
def test_handlers_are_told_in_the_order_of_their_subscription(types: list[type]):
    bus = InProcessEventBus()
    told: list[int] = []
    for number, each in enumerate(types):
        bus.subscribe(each, lambda _, number=number: told.append(number))
    bus.publish(Derived())
    assert told == [0, 1, 2, 3]


def test_a_handler_that_fails_stops_nobody_and_is_reported(
    bus: InProcessEventBus, caplog: pytest.LogCaptureFixture
):
    seen: list[object] = []

    def failing(_: Base) -> None:
        raise ValueError("no")

    bus.subscribe(Base, failing)
    bus.subscribe(Base, seen.append)
    result = bus.publish(Base())
    assert seen == [Base()]
    assert result.handlers_invoked == (failing, seen.append)
    assert not result.ok
    [failure] = result.errors
    assert failure.handler is failing
    assert isinstance(failure.error, ValueError)
    assert str(failure).endswith("failing failed: ValueError: no")
    assert "failing failed on Base" in caplog.text


def test_an_interrupt_is_nobodys_failure(bus: InProcessEventBus):
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    bus.subscribe(object, interrupted)
    with pytest.raises(KeyboardInterrupt):
        bus.publish(Base())


def test_an_event_published_by_a_handler_reaches_everybody_first(bus: InProcessEventBus):
    told: list[str] = []

    def first(event: Base) -> None:
        told.append(f"first {event.value}")
        if event.value < 2:
            result = bus.publish(Base(event.value + 1))
            told.append(f"{len(result.handlers_invoked)} were told of {event.value + 1}")

    bus.subscribe(Base, first)
    bus.subscribe(Base, lambda event: told.append(f"second {event.value}"))
    bus.publish(Base(0))
    assert told == [
        "first 0",
        "first 1",
        "first 2",
        "second 2",
        "2 were told of 2",
        "second 1",
        "2 were told of 1",
        "second 0",
    ]


def test_a_subscription_made_by_a_handler_begins_with_the_next_event(bus: InProcessEventBus):
    seen: list[object] = []

    def subscribing(event: Base) -> None:
        if event.value == 1:
            bus.subscribe(Base, seen.append)

    bus.subscribe(Base, subscribing)
    bus.publish(Base(1))
    bus.publish(Base(2))
    assert seen == [Base(2)]


def test_a_handler_that_is_removed_before_its_turn_is_not_told(bus: InProcessEventBus):
    seen: list[object] = []
    bus.subscribe(Base, lambda _: stop())
    stop = bus.subscribe(Base, seen.append)
    bus.subscribe(Base, seen.append)
    result = bus.publish(Base())
    assert seen == [Base()]
    assert len(result.handlers_invoked) == 2


def test_a_handler_may_end_itself(bus: InProcessEventBus):
    seen: list[object] = []

    def once(event: Base) -> None:
        seen.append(event)
        stop()

    stop = bus.subscribe(Base, once)
    bus.publish(Base(1))
    bus.publish(Base(2))
    stop()
    assert seen == [Base(1)]


def test_unsubscribe_ends_one_subscription_and_says_whether_there_was_one(bus: InProcessEventBus):
    seen: list[object] = []
    bus.subscribe(Base, seen.append)
    bus.subscribe(Base, seen.append)
    assert bus.unsubscribe(Base, seen.append)
    bus.publish(Base())
    assert seen == [Base()]
    assert not bus.unsubscribe(Derived, seen.append)
    assert bus.unsubscribe(Base, seen.append)
    assert not bus.unsubscribe(Base, seen.append)
    assert bus.publish(Base()).handlers_invoked == ()


def test_ending_a_subscription_leaves_its_twin(bus: InProcessEventBus):
    seen: list[object] = []
    first = bus.subscribe(Base, seen.append)
    bus.subscribe(Base, seen.append)
    first()
    first()
    bus.publish(Base())
    assert seen == [Base()]


def test_dispatch_is_another_word_for_publish():
    bus = InProcessDispatcher()
    seen: list[object] = []
    bus.subscribe(Base, seen.append)
    assert bus.dispatch(Base()).ok
    assert seen == [Base()]
    assert InProcessDispatcher is InProcessEventBus


def test_the_bus_is_an_event_bus(bus: InProcessEventBus):
    protocol: EventBus = bus
    assert protocol.publish(Base()).ok


def test_threads_publish_subscribe_and_leave_without_losing_an_event(bus: InProcessEventBus):
    seen: list[object] = []
    bus.subscribe(Base, seen.append)

    def work(number: int) -> None:
        for count in range(500):
            stop = bus.subscribe(object, lambda _: None)
            assert bus.publish(Derived(number * 500 + count)).ok
            stop()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert sorted(event.value for event in seen if isinstance(event, Base)) == list(range(4_000))
    assert len(bus.publish(Base()).handlers_invoked) == 1


def test_each_thread_is_told_in_its_own_order(bus: InProcessEventBus):
    seen: list[Base] = []
    bus.subscribe(Base, seen.append)

    def work(number: int) -> None:
        for count in range(200):
            bus.publish(Base(number * 1_000 + count))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    for number in range(4):
        mine = [each.value for each in seen if each.value // 1_000 == number]
        assert mine == list(range(number * 1_000, number * 1_000 + 200))


def test_filesystem_events_travel_on_the_same_bus(bus: InProcessEventBus):
    seen: list[FileWritten] = []
    bus.subscribe(FileWritten, seen.append)
    fs = InMemoryFilesystem()
    fs.subscribe(bus.publish)
    fs.write("a.txt", "x")
    assert [event.path for event in seen] == ["a.txt"]


WHEN = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


@pytest.mark.parametrize(
    "event",
    [
        ToolInvoked(tool="ls"),
        ToolInvoked(
            tool="write_file",
            call_id="call-1",
            params={"file_path": "a.txt", "lines": [1, None, {"x": True}]},
            success=False,
            result_message="no",
            result_size=2,
            error="FileExistsError: a.txt",
            duration_ms=1.5,
            paths=("a.txt",),
            mode="create",
            snapshot_ref="0" * 40,
            usage=TokenUsage(1, 2, 1),
            prompt_name="coder",
            session_id=UUID(int=1),
            event_id=UUID(int=2),
            created_at=WHEN,
        ),
        PromptRendered(prompt_ns="agents", prompt_key="k", text="# T", tools=("ls",)),
        PromptExecuted(prompt_ns="agents", prompt_key="k", usage=TokenUsage(3), error="late"),
    ],
)
def test_events_can_be_stored(event: object):
    assert decode(encode(event), type(event)) == event


def test_an_event_knows_when_it_happened_and_what_it_was_about():
    event = ToolInvoked(tool="read_file", paths=("a", "b"))
    assert event.path == "a"
    assert event.created_at.tzinfo is UTC
    assert event != ToolInvoked(tool="read_file", paths=("a", "b"))
    assert ToolInvoked(tool="ls").path is None
