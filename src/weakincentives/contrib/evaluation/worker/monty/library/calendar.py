"""Months and leap years: the common part of `calendar`."""

from datetime import date

MONDAY, TUESDAY, WEDNESDAY, THURSDAY, FRIDAY, SATURDAY, SUNDAY = range(7)
day_name: list[str] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
day_abbr: list[str] = [each[:3] for each in day_name]
month_name: list[str] = [
    *("", "January", "February", "March", "April", "May", "June", "July", "August"),
    *("September", "October", "November", "December"),
]
month_abbr: list[str] = [each[:3] for each in month_name]


def isleap(year: int) -> bool:
    """Return whether a year has 366 days."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def leapdays(y1: int, y2: int) -> int:
    """Return the number of leap years from y1 up to, not including, y2."""
    return len([year for year in range(y1, y2) if isleap(year)])


def weekday(year: int, month: int, day: int) -> int:
    """Return the weekday of a date; Monday is 0."""
    return date(year, month, day).weekday()


def monthrange(year: int, month: int) -> tuple[int, int]:
    """Return the weekday of the first of a month, and its number of days."""
    days = [31, 29 if isleap(year) else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    return weekday(year, month, 1), days[month - 1]


def monthcalendar(year: int, month: int) -> list[list[int]]:
    """Return the weeks of a month; days outside it are 0."""
    first, count = monthrange(year, month)
    days = [0] * first + list(range(1, count + 1))
    days += [0] * (-len(days) % 7)
    return [days[start : start + 7] for start in range(0, len(days), 7)]
