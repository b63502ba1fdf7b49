from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from weakincentives.runtime.events import InProcessEventBus
from weakincentives.runtime.session import (
    ReducerError,
    Session,
    Slice,
    append_all,
    replace_latest,
    select_all,
    select_latest,
    select_where,
)


@dataclass(frozen=True)
class Count:
    value: int = 0

    def added(self, event: "Added") -> "Count":
        return replace(self, value=self.value + event.by)

    def split(self, event: "Added") -> tuple["Count", ...]:
        return (self, Count(event.by))

    @staticmethod
    def folded(items: tuple["Count", ...], event: "Added") -> tuple["Count", ...]:
        return (*items, Count(event.by))


@dataclass(frozen=True)
class Added:
    by: int


@dataclass(frozen=True)
class AddedTwice(Added):
    pass


@dataclass(frozen=True)
class Plan:
    steps: tuple[str, ...] = ()


@dataclass
class Mutable:
    value: int = 0


@pytest.fixture
def session() -> Session:
    return Session()


def add(items: tuple[Count, ...], event: Added) -> Iterable[Count]:
    return (Count(sum(each.value for each in items) + event.by),)


def fail(items: tuple[Plan, ...], event: Added) -> Iterable[Plan]:
    raise ZeroDivisionError("no plan")


def test_a_slice_starts_empty(session: Session):
    assert session[Count].all() == ()
    assert session[Count].latest() is None
    assert session[Count].where(lambda _: True) == ()
    assert repr(session[Count]) == "Slice(Count, 0 items)"


def test_items_are_appended_seeded_and_cleared(session: Session):
    slice_ = session[Count]
    slice_.append(Count(1))
    slice_.append(Count(2))
    assert slice_.all() == (Count(1), Count(2))
    assert slice_.latest() == Count(2)
    assert slice_.where(lambda each: each.value < 2) == (Count(1),)
    slice_.seed(Count(value) for value in (3, 4))
    assert slice_.all() == (Count(3), Count(4))
    slice_.seed(Count(5))
    assert slice_.all() == (Count(5),)
    slice_.clear()
    assert slice_.all() == ()


def test_every_way_to_a_slice_shows_the_same(session: Session):
    session.mutate(Count).append(Count(1))
    session[Count].append(Count(2))
    assert session.query(Count).all() == select_all(session, Count) == (Count(1), Count(2))
    assert session.query(Count).latest() == select_latest(session, Count) == Count(2)
    wanted: Callable[[Count], bool] = lambda each: each.value == 1  # noqa: E731 # used twice
    assert session.query(Count).where(wanted) == select_where(session, Count, wanted) == (Count(1),)
    assert isinstance(session.query(Count), Slice)


def test_what_a_slice_returned_stays(session: Session):
    session[Count].append(Count(1))
    before = session[Count].all()
    session[Count].append(Count(2))
    assert before == (Count(1),)


@pytest.mark.parametrize("kind", [Mutable, int, list, Callable, Count(), Any])
def test_only_frozen_dataclasses_are_kept(session: Session, kind: Any):
    for use in (session.__getitem__, session.query, session.mutate, session.install):
        with pytest.raises(TypeError, match="not a frozen dataclass"):
            use(kind)


def test_an_item_of_another_type_is_refused(session: Session):
    wrong: Any = Plan()
    for use in (
        session[Count].append,
        session[Count].seed,
        lambda item: session[Count].seed([item]),
    ):
        with pytest.raises(TypeError):
            use(wrong)
    assert session[Count].all() == ()


def test_an_event_is_folded_by_the_reducer_of_its_type(session: Session):
    session[Count].register(Added, add)
    session.dispatch(Added(1))
    session[Count].dispatch(Added(2))
    session.mutate(Count).dispatch(Added(3))
    session.dispatch("nobody knows this")
    assert session[Count].all() == (Count(6),)


def test_events_that_others_publish_on_the_bus_arrive_too():
    bus = InProcessEventBus()
    session = Session(bus=bus)
    session[Count].register(Added, add)
    bus.publish(Added(1))
    assert session[Count].latest() == Count(1)


def test_one_event_reaches_every_slice_that_wants_it(session: Session):
    session[Count].register(Added, add)
    session[Plan].register(Added, lambda items, event: (*items, Plan((str(event.by),))))
    session[Added].register(Added, append_all)
    session.dispatch(Added(1))
    assert session[Count].all() == (Count(1),)
    assert session[Plan].all() == (Plan(("1",)),)
    assert session[Added].all() == (Added(1),)


def test_a_reducer_gets_subclasses_unless_there_is_a_nearer_one(session: Session):
    session[Count].register(Added, add)
    session.dispatch(AddedTwice(1))
    assert session[Count].latest() == Count(1)
    session[Count].register(AddedTwice, lambda items, event: add(add_to(items, event), event))
    session.dispatch(AddedTwice(1))
    assert session[Count].latest() == Count(3)
    session.dispatch(Added(1))
    assert session[Count].latest() == Count(4)


def add_to(items: tuple[Count, ...], event: Added) -> tuple[Count, ...]:
    return tuple(add(items, event))


def test_registering_again_replaces_the_reducer(session: Session):
    session[Added].register(Added, append_all)
    session[Added].register(Added, append_all)
    session.dispatch(Added(1))
    assert session[Added].all() == (Added(1),)
    session[Added].register(Added, replace_latest)
    session.dispatch(Added(2))
    assert session[Added].all() == (Added(2),)


def test_a_method_of_the_item_is_called_on_the_latest(session: Session):
    session.install(Count, initial=Count)
    session.mutate(Count).register(Added, Count.added)
    session.dispatch(Added(2))
    session.dispatch(Added(3))
    assert session[Count].all() == (Count(5),)
    session.mutate(Count).register(Added, Count.split)
    session.dispatch(Added(1))
    assert session[Count].all() == (Count(5), Count(1))


def test_a_static_method_is_a_reducer_like_any_other(session: Session):
    session[Count].register(Added, Count.folded)
    session.dispatch(Added(2))
    assert session[Count].all() == (Count(2),)


def test_a_method_needs_an_item(session: Session):
    session[Count].register(Added, Count.added)
    [failure] = session.dispatch(Added(1)).errors
    assert "The slice is empty: install it with an initial item" in str(failure)


def test_a_reducer_that_fails_leaves_its_slice_and_stops_nobody(session: Session):
    session[Plan].seed(Plan(("kept",)))
    session[Plan].register(Added, fail)
    session[Count].register(Added, add)
    seen: list[Added] = []
    session.bus.subscribe(Added, seen.append)
    result = session.dispatch(Added(1))
    assert session[Plan].all() == (Plan(("kept",)),)
    assert session[Count].all() == (Count(1),)
    assert seen == [Added(1)]
    [failure] = result.errors
    error = failure.error
    assert isinstance(error, ReducerError)
    assert str(error) == "Reducer fail of slice Plan failed on Added: ZeroDivisionError: no plan"
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert (error.slice_type, error.event) == (Plan, Added(1))
    assert str(session.session_id) in str(failure)


def test_all_reducers_that_fail_are_reported(session: Session):
    session[Plan].register(Added, fail)
    wrong: Any = lambda items, event: (event,)  # noqa: E731 # its type is hidden
    session[Count].register(Added, wrong)
    [failure] = session.dispatch(Added(1)).errors
    assert isinstance(failure.error, ExceptionGroup)
    assert [str(each) for each in failure.error.exceptions] == [
        "Reducer fail of slice Plan failed on Added: ZeroDivisionError: no plan",
        "Reducer test_all_reducers_that_fail_are_reported.<locals>.<lambda> of slice Count failed "
        "on Added: TypeError: Not a Count: Added(by=1)",
    ]


@pytest.mark.parametrize("result", [None, Count(1), "text", [Plan()], 3])
def test_what_a_reducer_returns_is_checked(session: Session, result: Any):
    session[Count].seed(Count(7))
    session[Count].register(Added, lambda items, event: result)
    assert not session.dispatch(Added(1)).ok
    assert session[Count].all() == (Count(7),)


@pytest.mark.parametrize(
    "change",
    [
        lambda session: session[Count].append(Count(1)),
        lambda session: session[Plan].seed(Plan()),
        lambda session: session[Plan].register(Plan, append_all),
        lambda session: session.install(Plan, initial=Plan),
        lambda session: session.restore_savepoint(session.savepoint()),
        lambda session: session.restore(session.snapshot()),
        lambda session: session.reset(),
    ],
)
def test_a_reducer_cannot_change_its_session(session: Session, change: Callable[[Session], None]):
    def impure(items: tuple[Count, ...], event: Added) -> Iterable[Count]:
        change(session)
        return (*items, Count(99))

    session[Count].register(Added, impure)
    [failure] = session.dispatch(Added(1)).errors
    assert "A reducer must not change its session" in str(failure)
    assert session[Count].all() == session[Plan].all() == ()
    session[Count].append(Count(1))


def test_an_interrupt_in_a_reducer_leaves_every_slice_as_it_was(session: Session):
    def interrupted(items: tuple[Plan, ...], event: Added) -> Iterable[Plan]:
        raise KeyboardInterrupt

    session[Added].register(Added, append_all)
    session[Plan].register(Added, interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.dispatch(Added(1))
    assert session[Added].all() == ()
    session[Plan].register(Added, lambda items, event: items)
    assert session.dispatch(Added(2)).ok
    assert session[Added].all() == (Added(2),)


def test_what_a_reducer_dispatches_is_refused_and_the_rest_goes_on(session: Session):
    nested: list[bool] = []

    def impure(items: tuple[Count, ...], event: Added) -> Iterable[Count]:
        nested.append(session.dispatch(AddedTwice(event.by)).ok)
        return (*items, Count(event.by))

    session[Count].register(Added, impure)
    assert session.dispatch(Added(1)).ok
    assert nested == [False]
    assert session[Count].all() == (Count(1),)


def test_a_handler_sees_the_slices_with_the_event_folded(session: Session):
    session[Count].register(Added, add)
    seen: list[Count | None] = []
    session.bus.subscribe(Added, lambda _: seen.append(session[Count].latest()))
    session.dispatch(Added(2))
    assert seen == [Count(2)]


def test_install_gives_an_empty_slice_its_first_item(session: Session):
    assert session.install(Count, initial=Count).all() == (Count(0),)
    assert session.install(Plan, initial=Plan(("a",))).all() == (Plan(("a",)),)


def test_install_leaves_what_is_there(session: Session):
    session[Count].append(Count(9))
    session.install(Count, initial=Count)
    assert session[Count].all() == (Count(9),)


def test_install_registers_reducers(session: Session):
    session.install(Count, initial=lambda: Count(10), reducers={Added: add, Count: replace_latest})
    session.dispatch(Added(1))
    assert session[Count].all() == (Count(11),)
    session.dispatch(Count(5))
    assert session[Count].all() == (Count(5),)


@pytest.mark.parametrize("initial", [3, Plan(), Plan])
def test_an_initial_item_of_another_type_is_refused(session: Session, initial: Any):
    with pytest.raises(TypeError, match="a Count"):
        session.install(Count, initial=initial)
    assert session[Count].all() == ()
