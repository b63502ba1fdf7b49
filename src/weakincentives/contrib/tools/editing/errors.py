"""`EditError`, and the parts of its messages: excerpts, clipped lines, lists of line numbers."""

from collections.abc import Sequence

from weakincentives.errors import WinkError

_MAX_EXCERPT = 160
_MAX_LINE_NUMBERS = 10


class EditError(WinkError, ValueError):
    """An edit cannot be applied; the message is for the model: why, and what to do next."""


def excerpt(text: str, limit: int = _MAX_EXCERPT) -> str:
    """Return a text as a Python literal; a long one without its middle."""
    if len(text) <= limit:
        return repr(text)
    half = limit // 2
    return f"{text[:half]!r}...{text[-half:]!r} ({len(text)} characters)"


def clip(line: str, limit: int = _MAX_EXCERPT, around: int = 0) -> str:
    """Return a line, cut to `limit` characters around a position if it is longer.

    Bytes that are not text are escaped, so that the message can be encoded anywhere.
    """
    if len(line) <= limit:
        return line.encode("utf-8", "backslashreplace").decode("utf-8")
    start = max(0, min(around - limit // 2, len(line) - limit))
    before = "..." if start else ""
    after = "..." if start + limit < len(line) else ""
    return f"{before}{clip(line[start : start + limit])}{after}"


def format_line_numbers(numbers: Sequence[int], *, more: bool = False) -> str:
    """Return line numbers as words: `lines 3, 8 and 20`; `more` adds "and others"."""
    words = [str(number) for number in dict.fromkeys(numbers)]
    if more or len(words) > _MAX_LINE_NUMBERS:
        return f"lines {', '.join(words[:_MAX_LINE_NUMBERS])} and others"
    if len(words) == 1:
        return f"line {words[0]}"
    return f"lines {', '.join(words[:-1])} and {words[-1]}"
