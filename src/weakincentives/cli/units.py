"""Amounts as people write them: `10m`, `1h30m`, `200k`; and as people read them."""

import re

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)([hms])")
_DURATION = re.compile(r"(\d+(?:\.\d+)?[hms])+")
_COUNT = re.compile(r"(\d[\d_,]*)([kM]?)")
_FACTORS = {"": 1, "k": 1_000, "M": 1_000_000}
_MAX_SECONDS = 366 * 24 * 3600.0


def duration(value: object) -> float:
    """Return the seconds of a text like `90s`, `10m` or `1h30m`; a number is seconds.

    Raises:
        ValueError: It is not an amount of time, or not more than none.
    """
    seconds = _seconds(value)
    if seconds is None:
        raise ValueError(f"must be a time like 90s, 10m or 1h30m: {value!r}")
    if not 0 < seconds <= _MAX_SECONDS:
        raise ValueError(f"must be more than 0 and at most a year: {value!r}")
    return seconds


def positive_count(value: object) -> int:
    """Return the number of a text like `5000`, `5_000` or `200k`.

    Raises:
        ValueError: It is not a whole number, or less than 1.
    """
    found = _COUNT.fullmatch(str(value)) if not isinstance(value, bool) else None
    if found is None:
        raise ValueError(f"must be a whole number like 5000 or 200k: {value!r}")
    number = int(re.sub("[_,]", "", found[1])) * _FACTORS[found[2]]
    if number < 1:
        raise ValueError(f"must be 1 or more: {value!r}")
    return number


def clock(seconds: float) -> str:
    """Return a length of time as `m:ss` or `h:mm:ss`."""
    whole = max(0, int(seconds))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def brief_time(milliseconds: float) -> str:
    """Return a length of time in few characters: `12 ms`, `3.4 s`."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    return clock(milliseconds / 1000)


def count_text(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _seconds(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    text = "".join(str(value).split())
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
