"""Amounts as people write and read them."""

import pytest

from weakincentives.cli.units import brief_time, clock, count_text, duration, positive_count


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1h 30m", 5400), ("0.5s", 0.5), ("45", 45)],
)
def test_a_time_is_written_with_units_or_is_seconds(text: str, seconds: float):
    assert duration(text) == seconds


def test_a_number_of_a_file_is_seconds():
    assert duration(600) == duration(600.0) == 600


@pytest.mark.parametrize("text", ["", "soon", "10 minutes", "m", "-5s", "10x", "1e3", True, None])
def test_what_is_no_time_is_refused_with_an_example(text: object):
    with pytest.raises(ValueError, match="90s, 10m or 1h30m"):
        duration(text)


@pytest.mark.parametrize("text", ["0s", 0, "400000000s", -1, float("inf"), float("nan")])
def test_a_time_that_no_run_can_take_is_refused(text: object):
    with pytest.raises(ValueError, match="more than 0"):
        duration(text)


@pytest.mark.parametrize(
    ("text", "number"), [("5000", 5000), ("5_000", 5000), ("200k", 200_000), ("1M", 10**6), (7, 7)]
)
def test_a_count_may_have_a_unit(text: object, number: int):
    assert positive_count(text) == number


@pytest.mark.parametrize("text", ["", "many", "1.5", "-3", "0", True, "2kk", 0])
def test_what_is_no_count_is_refused(text: object):
    with pytest.raises(ValueError, match="must be"):
        positive_count(text)


def test_times_and_numbers_are_shown_in_few_characters():
    assert (clock(5), clock(605), clock(3661), clock(-3)) == ("0:05", "10:05", "1:01:01", "0:00")
    assert (brief_time(12.3), brief_time(3400), brief_time(65_000)) == ("12 ms", "3.4 s", "1:05")
    assert (count_text(1, "step"), count_text(1200, "step")) == ("1 step", "1,200 steps")
