"""Limits and the time limit."""

import threading

import pytest

from weakincentives.filesystem import InMemoryFilesystem, Limits, TimeLimitError, time_limit
from weakincentives.posix import check_time, remaining_time


class Clock:
    """Time that moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_defaults_are_those_of_the_specification() -> None:
    limits = Limits()
    assert (limits.max_path_depth, limits.max_segment_length) == (16, 80)
    assert (limits.max_write_length, limits.default_read_limit) == (48_000, 2_000)
    assert limits.max_grep_matches == 1_000


def test_without_a_time_limit_nothing_stops() -> None:
    check_time("Search")
    with pytest.raises(TimeLimitError), time_limit(0):
        check_time("Search")
    check_time("Search")


def test_time_is_up_when_the_clock_says_so() -> None:
    clock = Clock()
    with time_limit(5, clock=clock):
        clock.now += 4.9
        check_time("Search")
        clock.now += 0.1
        with pytest.raises(TimeLimitError, match="Search stopped") as caught:
            check_time("Search")
    assert isinstance(caught.value, TimeoutError)


def test_an_inner_limit_cannot_outlast_the_outer_one() -> None:
    clock = Clock()
    with time_limit(1, clock=clock), time_limit(60, clock=clock):
        clock.now += 2
        with pytest.raises(TimeLimitError):
            check_time("Read")


def test_a_shorter_inner_limit_ends_with_its_block() -> None:
    clock = Clock()
    with time_limit(60, clock=clock):
        with time_limit(1, clock=clock):
            clock.now += 2
            with pytest.raises(TimeLimitError):
                check_time("Read")
        check_time("Read")


def test_another_thread_has_its_own_time() -> None:
    reached: list[str] = []

    def other() -> None:
        check_time("Search")
        reached.append("end")

    with time_limit(0):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert reached == ["end"]


@pytest.mark.parametrize("operation", ["glob", "grep"])
def test_a_search_stops_at_the_time_limit(operation: str) -> None:
    fs = InMemoryFilesystem()
    fs.write("a/b.txt", "text")
    with time_limit(0), pytest.raises(TimeLimitError):
        getattr(fs, operation)("text")


def test_what_is_left_of_the_time_can_be_asked_for():
    assert remaining_time() is None
    with time_limit(10, clock=lambda: 100.0):
        assert remaining_time() == 10
        with time_limit(20, clock=lambda: 100.0):
            assert remaining_time() == 10
    assert remaining_time() is None
