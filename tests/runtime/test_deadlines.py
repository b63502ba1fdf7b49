from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.errors import WinkError
from weakincentives.filesystem import InMemoryFilesystem, TimeLimitError, time_limit
from weakincentives.runtime import (
    SYSTEM_CLOCK,
    Deadline,
    DeadlineExceededError,
    ManualClock,
)

# a busy machine is no fault of the code

DAY = timedelta(days=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_what_remains_shrinks_as_time_passes(clock: ManualClock):
    deadline = Deadline.after(10, clock=clock)
    clock.advance(4)
    assert deadline.remaining() == timedelta(seconds=6)
    assert not deadline.expired
    deadline.check()


def test_a_deadline_is_a_moment(clock: ManualClock):
    deadline = Deadline(clock.now() + timedelta(seconds=10), clock)
    assert deadline == Deadline.after(timedelta(seconds=10), clock=clock)
    assert deadline.expires_at == datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC)
    assert deadline.allowed == timedelta(seconds=10)


def test_the_error_says_which_limit_and_by_how_much(clock: ManualClock):
    deadline = Deadline.after(10, clock=clock)
    clock.advance(13.25)
    with pytest.raises(DeadlineExceededError) as caught:
        deadline.check("Tool 'grep'")
    assert str(caught.value) == "Tool 'grep' stopped: the deadline of 10 s passed 3.25 s ago"
    assert caught.value.deadline is deadline
    assert caught.value.overrun == timedelta(seconds=3.25)
    assert isinstance(caught.value, WinkError)
    assert isinstance(caught.value, TimeoutError)


def test_a_deadline_is_over_at_its_very_moment(clock: ManualClock):
    deadline = Deadline.after(1, clock=clock)
    clock.advance(1)
    assert deadline.expired
    with pytest.raises(DeadlineExceededError) as caught:
        deadline.check()
    assert str(caught.value).endswith("stopped: the deadline of 1 s passed")


@given(st.timedeltas(-10 * DAY, 10 * DAY), st.floats(0, 9.99))
def test_a_wall_clock_that_jumps_fires_nothing_and_grants_nothing(jump: timedelta, passed: float):
    clock = ManualClock()
    deadline = Deadline.after(10, clock=clock)
    clock.jump(jump)
    clock.advance(passed)
    deadline.check()
    clock.jump(-jump)
    clock.advance(10 - passed)
    with pytest.raises(DeadlineExceededError):
        deadline.check()


def test_a_deadline_in_the_past_has_passed_from_the_start(clock: ManualClock):
    deadline = Deadline(clock.now() - DAY, clock)
    with pytest.raises(DeadlineExceededError, match=r"the deadline passed 86,400 s ago"):
        deadline.check()


def test_a_moment_without_a_time_zone_is_refused():
    with pytest.raises(ValueError, match="no time zone"):
        Deadline(datetime(2026, 1, 1))  # noqa: DTZ001 # what is tested


def test_filesystem_work_stops_when_the_deadline_passes(clock: ManualClock):
    fs = InMemoryFilesystem()
    fs.write("a.txt", "x")
    deadline = Deadline.after(1, clock=clock)
    with deadline.enforce():
        assert fs.glob("*")
        clock.advance(1)
        with pytest.raises(TimeLimitError):
            fs.glob("*")
    assert fs.glob("*")


def test_a_deadline_that_passed_before_it_was_applied_stops_at_once(clock: ManualClock):
    fs = InMemoryFilesystem()
    deadline = Deadline.after(1, clock=clock)
    clock.advance(2)
    with deadline.enforce(), pytest.raises(TimeLimitError):
        fs.glob("*")


def test_an_earlier_limit_of_the_caller_stays(clock: ManualClock):
    fs = InMemoryFilesystem()
    with time_limit(1, clock=clock.monotonic), Deadline.after(10, clock=clock).enforce():
        clock.advance(2)
        with pytest.raises(TimeLimitError):
            fs.glob("*")


def test_the_clock_of_the_machine_is_in_utc_and_goes_on():
    assert SYSTEM_CLOCK.now().tzinfo is UTC
    assert SYSTEM_CLOCK.monotonic() <= SYSTEM_CLOCK.monotonic()
    assert Deadline.after(3600).remaining() <= timedelta(hours=1)
