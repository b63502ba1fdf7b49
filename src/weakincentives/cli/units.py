"""Parse and format durations, counts, tokens, costs and paths: `10m`, `200k`, `$0.043`, `~/x`."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from weakincentives.posix import display_path

_UNITS = {"w": 7 * 86400.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)([wdhms])")
_DURATION = re.compile(r"(\d+(?:\.\d+)?[wdhms])+")
_COUNT = re.compile(r"(\d[\d_,]*)([kM]?)")
_FACTORS = {"": 1, "k": 1_000, "M": 1_000_000}
_MAX_SECONDS = 366 * 24 * 3600.0


def parse_duration(value: object) -> float:
    """Return a duration such as `90s`, `10m` or `1h30m` in seconds; a bare number is seconds.

    Raises:
        ValueError: It is not a duration, or not between 0 and a year.
    """
    text = "".join(str(value).split())
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif re.fullmatch(r"\d+(\.\d+)?", text):
        seconds = float(text)
    elif _DURATION.fullmatch(text):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    else:
        raise ValueError(f"must be a duration like 90s, 10m, 12h, 14d or 2w: {value!r}")
    if not 0 < seconds <= _MAX_SECONDS:
        raise ValueError(f"must be more than 0 and at most a year: {value!r}")
    return seconds


def parse_count(value: object) -> int:
    """Return a count such as `5000`, `5_000` or `200k` as an integer.

    Raises:
        ValueError: It is not a whole number, or less than 1.
    """
    match = _COUNT.fullmatch(str(value)) if not isinstance(value, bool) else None
    if match is None:
        raise ValueError(f"must be a whole number like 5000 or 200k: {value!r}")
    number = int(re.sub("[_,]", "", match[1])) * _FACTORS[match[2]]
    if number < 1:
        raise ValueError(f"must be 1 or more: {value!r}")
    return number


def format_clock(seconds: float) -> str:
    """Return a duration as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_duration(milliseconds: float) -> str:
    """Return a short duration: `12 ms`, `3.4 s`."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    return format_clock(milliseconds / 1000)


def format_count(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun, singular or plural."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def pick(value: object, *names: str) -> dict[str, Any]:
    """Return attributes by their names, as data for `--json`."""
    return {name: getattr(value, name) for name in names}


def shorten_home(path: Path) -> str:
    """Return a path for people, with `~` for the home directory."""
    try:
        inside = path.relative_to(Path.home())
    except (ValueError, RuntimeError):
        return display_path(str(path))
    return display_path(f"~/{inside}" if inside.parts else "~")


def format_size(size: int) -> str:
    """Return a number of bytes: `812 B`, `4.1 kB`, `23 MB`, `1.2 GB`."""
    value, units = float(size), ("B", "kB", "MB", "GB", "TB")
    for unit in units:
        if value < 999.5 or unit == units[-1]:
            digits = 1 if value < 9.95 and unit != "B" else 0
            return f"{value:.{digits}f} {unit}"
        value /= 1000
    raise AssertionError


def format_date(date: datetime, now: datetime | None = None) -> str:
    """Return a date in local time, in words where it is recent: `5 minutes ago`, `today 14:05`."""
    local = date.astimezone()
    today = (now or datetime.now(UTC)).astimezone()
    seconds = (today - local).total_seconds()
    if 0 <= seconds < 60:
        return "just now"
    if 0 <= seconds < 3600:
        return f"{format_count(int(seconds // 60), 'minute')} ago"
    if local.date() == today.date():
        return f"today {local:%H:%M}"
    if local.date() == today.date() - timedelta(days=1):
        return f"yesterday {local:%H:%M}"
    return f"{local:%Y-%m-%d %H:%M}"


def format_short_count(number: int) -> str:
    """Return a number in at most four characters: `950`, `12.3k`, `1.2M`."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            short = number / size
            return f"{short:.1f}{unit}" if short < 100 else f"{short:.0f}{unit}"
    return str(number)


def format_cost(dollars: float) -> str:
    """Return an amount in US dollars: `$0.043`, `$1.20`."""
    if 0 < dollars < 0.001:
        return "under $0.001"
    return f"${dollars:.3f}" if dollars < 1 else f"${dollars:,.2f}"
