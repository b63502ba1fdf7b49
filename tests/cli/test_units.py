"""Durations and counts as people write and read them."""

import pytest

from weakincentives.cli.units import (
    format_clock,
    format_count,
    format_duration,
    parse_count,
    parse_duration,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1h 30m", 5400), ("0.5s", 0.5), ("45", 45)],
)
def test_a_time_is_written_with_units_or_is_seconds(text: str, seconds: float):
    assert parse_duration(text) == seconds


def test_a_number_of_a_file_is_seconds():
    assert parse_duration(600) == parse_duration(600.0) == 600


@pytest.mark.parametrize("text", ["", "soon", "10 minutes", "m", "-5s", "10x", "1e3", True, None])
def test_what_is_no_time_is_refused_with_an_example(text: object):
    with pytest.raises(ValueError, match="90s, 10m, 12h, 14d or 2w"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["0s", 0, "400000000s", -1, float("inf"), float("nan")])
def test_a_time_that_no_run_can_take_is_refused(text: object):
    with pytest.raises(ValueError, match="more than 0"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "number"), [("5000", 5000), ("5_000", 5000), ("200k", 200_000), ("1M", 10**6), (7, 7)]
)
def test_a_count_may_have_a_unit(text: object, number: int):
    assert parse_count(text) == number


@pytest.mark.parametrize("text", ["", "many", "1.5", "-3", "0", True, "2kk", 0])
def test_what_is_no_count_is_refused(text: object):
    with pytest.raises(ValueError, match="must be"):
        parse_count(text)


def test_times_and_numbers_are_shown_in_few_characters():
    assert (format_clock(5), format_clock(605), format_clock(3661), format_clock(-3)) == (
        "0:05",
        "10:05",
        "1:01:01",
        "0:00",
    )
    assert (format_duration(12.3), format_duration(3400), format_duration(65_000)) == (
        "12 ms",
        "3.4 s",
        "1:05",
    )
    assert (format_count(1, "step"), format_count(1200, "step")) == ("1 step", "1,200 steps")
